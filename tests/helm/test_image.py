"""The image as far as it can be known without building one: its Dockerfile, its steps, its wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helm.chart import ROOT, Helm, gateway_of, one, rendered
from tests.helm.dockerfile import Stage, read

BEFORE, STAGES = read(ROOT / "Dockerfile")
BUILD, LAST = STAGES
DATA = (
    "gateway/refusals.md",
    "policies/bundle/.manifest",
    "policies/bundle/mcp/authz/authz.rego",
    "policies/bundle/mcp/authz/data.json",
    "approvals/migrations/env.py",
)
"""What the gateway reads at run time besides modules: one of each kind at least; the rest is held to the checkout."""


def test_there_are_two_stages_of_one_pinnable_base() -> None:
    """One ARG names the base of both: no registry, a small image, a version; the last stage builds nothing."""
    assert BEFORE == [("ARG", "PYTHON=python:3.11-slim")]
    assert [stage.image for stage in STAGES] == ["${PYTHON}", "${PYTHON}"]
    assert BUILD.name == "build"
    built = " ".join(LAST.all("RUN"))
    assert not re.search(r"\b(apt-get|pip (install|wheel|download)|gcc|make|curl|wget|git)\b", built)
    assert "pip uninstall --yes" in built
    assert not re.search(r"[a-z0-9-]+\.(io|com|org)/", (ROOT / "Dockerfile").read_text())


def test_nothing_is_fetched_but_by_hash() -> None:
    """No ADD and no address; packages by the lock file's hashes, as wheels; all later steps have no index."""
    text = (ROOT / "Dockerfile").read_text()
    assert not [one for stage in STAGES for one in stage.all("ADD")]
    assert "://" not in re.sub(r"http://127\.0\.0\.1:9090/livez", "", text)
    pips = [step for rest in BUILD.all("RUN") for step in rest.split("&&") if " -m pip " in step]
    assert len(pips) == 4
    for step in pips:
        fetched = "--require-hashes" in step and "--only-binary=:all:" in step and "requirements.lock" in step
        assert fetched or "--no-index" in step, step


def test_it_runs_as_nobody_in_particular(helm: Helm) -> None:
    """A numeric user, the chart's, whom Kubernetes can tell from root by the image alone."""
    assert LAST.all("USER") == ["10001:10001"]
    last = [word for word, _ in LAST.steps].index("USER")
    assert not {word for word, _ in LAST.steps[last:]} & {"RUN", "COPY"}
    spec = gateway_of(rendered(helm, "single"))["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsUser"] == 10001


def test_what_it_starts_is_what_the_chart_starts(helm: Helm) -> None:
    """The entry point takes the chart's arguments, from a process that reaps; ports, folders and signal agree."""
    entry = LAST.command("ENTRYPOINT")
    assert entry == ["/usr/bin/tini-static", "--", "ostiary"]
    pod = gateway_of(rendered(helm, "single"))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "command" not in container
    assert container["args"][:3] == LAST.command("CMD")
    assert LAST.all("EXPOSE") == [" ".join(str(port["containerPort"]) for port in container["ports"])]
    assert LAST.all("STOPSIGNAL") == ["SIGTERM"]
    assert "/livez" in LAST.all("HEALTHCHECK")[0]
    assert LAST.all("WORKDIR") == ["/var/lib/ostiary"]
    assert one(rendered(helm, "single"), "Pod")["spec"]["containers"][0]["command"][0] == "python"


def test_it_says_what_it_is() -> None:
    """Title, description, licence, version and revision, in the OCI's names; the version is pyproject.toml's."""
    names = re.findall(r'org\.opencontainers\.image\.(\w+)="', LAST.all("LABEL")[0])
    assert names == ["title", "description", "licenses", "version", "revision"]
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert f"VERSION={version[1]}" in LAST.all("ARG")


def _ignores() -> list[str]:
    return [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]


def test_only_what_is_copied_leaves_the_checkout() -> None:
    """.dockerignore lets through what is copied and no more: no key, database or record lies in a layer."""
    copied = {source for stage in STAGES for origin, sources, _ in stage.copies() if not origin for source in sources}
    ignored, *let, caches = _ignores()
    assert ignored == "*"
    assert caches == "**/__pycache__"
    assert all(line.startswith("!") for line in let)
    assert {line[1:] for line in let} == {one for one in copied if not one.startswith("policies/")}
    assert all((ROOT / one).exists() for one in copied)


def _context(folder: Path) -> Path:
    """The checkout as the build stage has it at /src."""
    for origin, sources, destination in BUILD.copies():
        assert not origin
        for source in sources:
            whole = ROOT / source
            target = folder / destination / (whole.name if destination.endswith("/") else "")
            target.parent.mkdir(parents=True, exist_ok=True)
            if whole.is_dir():
                shutil.copytree(whole, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(whole, target)
    return folder


def _run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_the_wheel_holds_all_that_the_gateway_reads(tmp_path: Path) -> None:
    """Built from what the build stage has, without an index: all of the packages is in it, and it starts."""
    source = _context(tmp_path / "src")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    build = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), ".")
    _run(*pip, "wheel", *build, cwd=source)
    (wheel,) = tmp_path.glob("ostiary-*.whl")
    there = tmp_path / "there"
    _run(
        *pip,
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--target",
        str(there),
        str(wheel),
        cwd=tmp_path,
    )
    listed = subprocess.run(
        ["git", "ls-files", "gateway", "policies", "approvals"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(listed) > 200
    assert [name for name in (*listed, *DATA) if not (there / name).is_file()] == []
    said = _run(sys.executable, str(there / "bin/ostiary"), "--help", cwd=tmp_path, PYTHONPATH=str(there))
    assert "serve" in said
    where = "import gateway, policies, approvals as a; print(gateway.__file__, policies.__file__, a.__file__)"
    assert _run(sys.executable, "-c", where, cwd=tmp_path, PYTHONPATH=str(there)).count(str(there)) == 3


@pytest.mark.soak
def test_the_steps_of_the_build_stage_work(tmp_path: Path) -> None:
    """Each RUN of the build stage but the system's package, in its order, as it stands: packages fetched by hash."""
    source = _context(tmp_path / "src")

    def here(step: str) -> str:
        for folder in ("/wheels", "/builder", "/opt/ostiary"):
            step = step.replace(folder, f"{tmp_path}{folder}")
        return re.sub(
            r"\bpython -m", f"{sys.executable} -m", step.replace(f"{tmp_path}/builder/bin/python", "BUILDER")
        )

    for step in _steps(BUILD):
        script = here(step).replace("BUILDER", f"{tmp_path}/builder/bin/python")
        _run("/bin/sh", "-ec", script, cwd=source, PIP_DISABLE_PIP_VERSION_CHECK="1")
    program = tmp_path / "opt/ostiary/bin/ostiary"
    assert "serve" in _run(str(program), "--help", cwd=tmp_path)
    python = str(tmp_path / "opt/ostiary/bin/python")
    listing = "from importlib.metadata import distributions as d; print(*{x.name.lower() for x in d()})"
    names = set(_run(python, "-c", listing, cwd=tmp_path).split())
    assert {"ostiary", "uvicorn"} <= names
    assert not names & {"pip", "setuptools", "wheel", "hatchling", "editables", "mcp", "rich", "pytest"}


def _steps(stage: Stage) -> list[str]:
    """The RUN lines that need no system of their own."""
    return [rest for rest in stage.all("RUN") if not rest.startswith("apt-get")]
