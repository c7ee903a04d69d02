"""One served door for the tests of a worker that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.edge.door import OpenDoor, open_door


@pytest.fixture(scope="session")
def _shared_door() -> Iterator[OpenDoor]:
    with open_door() as door:
        yield door


@pytest.fixture
def door(_shared_door: OpenDoor) -> OpenDoor:
    """A served door with an empty record. Tests that change its limits or script open their own."""
    corridor = _shared_door.corridor
    corridor.walked.clear()
    corridor.served.clear()
    corridor.refused.clear()
    corridor.cancelled = 0
    _shared_door.turned_away.clear()
    return _shared_door
