"""The loop that servers behind the gateways live on, and gateways that are watched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rows.stage import Stage
from tests.signals.watching import Watched, watch


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """One, in a thread of its own."""
    stage = Stage()
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture(scope="module")
def watched(
    stage: Stage, opa_program: Path, prometheus_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    """Anew for each module; the issuer of some tokens is not there yet."""
    yield from watch(stage, opa_program, prometheus_program, tmp_path_factory)
