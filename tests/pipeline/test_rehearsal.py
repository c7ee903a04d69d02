"""`ostiary decide` walks the corridor that requests walk: no room of it may be missing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from gateway.pipeline import Corridor
from gateway.rehearsal import decide
from gateway.rehearsal.decide import Halting, Rehearsal
from policies.embedded import EmbeddedPolicy

SHIPPED = Path(__file__).parents[2] / "policies" / "bundle"
ALONE = {"concurrent", "clock", "ids", "in_flight", "traces", "turnstile"}
"""What is about many requests at a time, about what time it is now, or about how long each room took."""


class Built(Exception):  # noqa: N818 - how far it went
    """The corridor is there."""


async def test_every_room_of_the_corridor_is_given_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new room of the corridor is one of the rehearsal's, or refused by name; none is there by its default."""
    given: dict[str, Any] = {}

    def build(**rooms: Any) -> Halting:
        given.update(rooms)
        raise Built

    monkeypatch.setattr(decide, "Halting", build)
    parts: dict[str, Any] = {field.name: None for field in dataclasses.fields(Rehearsal)}
    parts |= {"engine": EmbeddedPolicy(SHIPPED), "servers": {"s": SimpleNamespace(name="s")}, "claims": {}}
    request = {"server": "s", "claims": {"iss": "https://i", "sub": "bob"}, "body": {}}
    with pytest.raises(Built):
        await Rehearsal(**parts).decide(orjson.dumps(request), "local:0@here")
    assert given.keys() == {field.name for field in dataclasses.fields(Corridor)} - ALONE
