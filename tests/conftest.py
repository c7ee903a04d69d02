"""What every test shares: with CI=true a skip for a missing real part is a failure."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.postgres import Postgres

# Two shared cores are slow at times: what a test is held to is its rule, not the pace of its examples.
settings.register_profile("ostiary", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ostiary")

IN_CI = os.environ.get("CI") == "true"

# Where the environment forbids to keep what is compiled, each process that a test starts compiles the house anew:
# 0.2 s of each worker, and as much of whoever starts it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(autouse=True)
def logs_as_they_come() -> Iterator[None]:
    """Log settings of a command, or of a server that a test runs (uvicorn sets its loggers' levels), end with it."""
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "asyncio"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.NOTSET)
        logger.handlers[:], logger.propagate, logger.disabled = [], True, False
    yield
    structlog.reset_defaults()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure in CI: what is not run there is not known to work."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL for all tests of a process; each makes a database of its own (`postgres.create()`).

    A test that stops or kills its server makes one for itself: `Postgres()`.
    """
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.remove()


def built_program(name: str, folder: str = "", flags: str = "") -> Path:
    """A tool that Go builds: `.tools/NAME` of this checkout, or the one on the PATH; else the test is skipped."""
    built = Path(__file__).parent.parent / ".tools" / name
    found = built if built.exists() else Path(shutil.which(name) or "")
    if not found.is_file():
        place = f"tests/tools/{folder or name}"
        pytest.skip(f"{name} is not here: (cd {place} && GOBIN=$PWD/../../../.tools go install {flags}tool)")
    return found


@pytest.fixture(scope="session")
def opa_program() -> Path:
    """The real OPA."""
    return built_program("opa")


@pytest.fixture(scope="session")
def helm_program() -> Path:
    """The real Helm."""
    return built_program("helm")


@pytest.fixture(scope="session")
def prometheus_program() -> Path:
    """The real Prometheus, Debian's `prometheus`; `promtool` lies beside it."""
    found = shutil.which("prometheus")
    if found is None or shutil.which("promtool") is None:
        pytest.skip("Prometheus is not here: apt-get install --no-install-recommends prometheus")
    return Path(found)
