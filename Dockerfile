# The gateway's image. Two stages: what builds is left behind, and what runs has no compiler, no pip and no root.
#
#   docker build --tag ostiary:0.1.0 --build-arg REVISION="$(git rev-parse HEAD)" .
#
# For a build that is the same tomorrow: --build-arg PYTHON=python:3.11-slim@sha256:…
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements.lock ./
# Every package by its hash, and as a wheel: nothing of anybody else's is run to install it.
RUN python -m pip download --quiet --require-hashes --only-binary=:all: --dest /wheels --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY docs/refusals.md docs/configuration.md docs/
COPY gateway gateway
COPY policies policies
COPY approvals approvals
RUN python -m venv /builder \
 && /builder/bin/python -m pip install --quiet --no-index --find-links /wheels hatchling \
 && /builder/bin/python -m pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir /wheels .
# Of what was downloaded only what the gateway needs: neither the demo nor what builds.
RUN python -m venv --without-pip /opt/ostiary \
 && python -m pip --python /opt/ostiary/bin/python install --quiet --no-index --find-links /wheels ostiary \
 && /opt/ostiary/bin/ostiary --version

FROM ${PYTHON}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Ostiary" \
      org.opencontainers.image.description="A gateway in front of unmodified MCP servers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN python -m pip uninstall --yes --quiet --root-user-action=ignore pip setuptools wheel \
 && groupadd --system --gid 10001 ostiary \
 && useradd --system --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/ostiary --shell /usr/sbin/nologin ostiary \
 && install --directory --owner ostiary --group ostiary --mode 0700 /var/lib/ostiary \
 && install --directory --mode 0755 /etc/ostiary
# Whoever is process 1 has to reap what workers that were killed leave behind.
COPY --from=build /usr/bin/tini-static /usr/bin/tini-static
COPY --from=build /opt/ostiary /opt/ostiary
COPY policies/bundle /usr/share/ostiary/bundle
ENV PATH=/opt/ostiary/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/ostiary
EXPOSE 8080 9090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9090/livez', timeout=2)"]
ENTRYPOINT ["/usr/bin/tini-static", "--", "ostiary"]
CMD ["serve", "--config", "/etc/ostiary/ostiary.yaml"]
