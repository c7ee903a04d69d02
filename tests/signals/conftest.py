"""The loop that servers behind the gateways live on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rows.stage import Stage


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """One, in a thread of its own."""
    stage = Stage()
    try:
        yield stage
    finally:
        stage.close()
