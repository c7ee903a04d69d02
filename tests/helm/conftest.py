"""The chart's fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helm.chart import SETS, Helm, Manifest, rendered


@pytest.fixture(scope="session")
def helm(helm_program: Path) -> Helm:
    """The real Helm."""
    return Helm(helm_program)


@pytest.fixture(params=SETS)
def manifests(request: pytest.FixtureRequest, helm: Helm) -> tuple[Manifest, ...]:
    """What each set of values under helm/ci renders, once a process."""
    return rendered(helm, request.param)
