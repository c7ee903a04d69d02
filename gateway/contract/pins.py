"""Pins: the definitions of tools that somebody accepted, their file's text, and what deviates from them.

A pin keeps the whole accepted definition, so that a change can be shown, and its digest, which is what counts: it
covers all that the server lists of the tool (fingerprint.digest_definition). The text is stable and sorted, for
review in version control, and in ASCII alone, so that nothing in it can hide.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

import orjson

from gateway.contract.fingerprint import digest, digest_definition
from gateway.contract.passage import Tool

Mode = Literal["off", "warn", "enforce"]
VERSION: Final = 1
MAX_BYTES: Final = 67_108_864
"""Of a file of pins. A thousand usual tools take two million."""

_PIN: Final = frozenset({"accepted_at", "accepted_by", "definition", "digest"})


class State(StrEnum):
    """What a tool is to its server's pins, unless it is as accepted."""

    CHANGED = "changed"
    NEW = "new"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Pin:
    """An accepted definition. `accepted_at` is UTC (ISO 8601), `accepted_by` is `local:UID@HOST`."""

    definition: Mapping[str, Any]
    digest: str
    accepted_by: str
    accepted_at: str


Pinned = Mapping[str, Mapping[str, Pin]]
"""Server -> tool -> pin."""


class PinsUnreadable(ValueError):  # noqa: N818 - what was found
    """Not a file of pins. The text says what is wrong and, where it is one pin, with which."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A tool that is not as accepted: `before` is its pin, `now` what is offered; one of them may be missing."""

    server: str
    tool: str
    before: Pin | None
    now: Tool | None

    @property
    def state(self) -> State:
        """What it is."""
        if self.now is None:
            return State.GONE
        return State.NEW if self.before is None else State.CHANGED

    @property
    def digests(self) -> tuple[str, str]:
        """Accepted and offered; empty where there is none."""
        return (self.before.digest if self.before else "", self.now.digest if self.now else "")


def read_pins(text: bytes) -> dict[str, dict[str, Pin]]:
    """The pins of a file's text. Raises `PinsUnreadable`: nothing is taken from a text that is not all right."""
    try:
        document = orjson.loads(text)
        json.loads(text, object_pairs_hook=_once)  # a name that stands twice would be reviewed in one reading
    except (ValueError, RecursionError) as error:
        raise PinsUnreadable(f"not JSON with one reading: {error}") from None
    if not isinstance(document, dict) or document.keys() != {"version", "servers"}:
        raise PinsUnreadable("must be an object with `version` and `servers`, and nothing else")
    servers = document["servers"]
    if type(document["version"]) is not int or document["version"] != VERSION:
        raise PinsUnreadable(f"version must be {VERSION}")
    if not isinstance(servers, dict) or not all(isinstance(tools, dict) for tools in servers.values()):
        raise PinsUnreadable("servers must be an object of objects")
    return {
        server: {name: _pin(f"{server}/{name}", name, pin) for name, pin in tools.items()}
        for server, tools in servers.items()
    }


def write_pins(pinned: Pinned) -> bytes:
    """The text of a file: sorted, one member a line, ASCII, the same for the same pins."""
    servers = {
        server: {
            name: {
                "accepted_at": pin.accepted_at,
                "accepted_by": pin.accepted_by,
                "definition": pin.definition,
                "digest": pin.digest,
            }
            for name, pin in tools.items()
        }
        for server, tools in pinned.items()
        if tools
    }
    document = {"version": VERSION, "servers": servers}
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=True).encode() + b"\n"


def check_pins(text: bytes) -> None:
    """Raise `PinsUnreadable` for a text that no gateway would take: what a server lists may be too large or deep."""
    if len(text) > MAX_BYTES:
        raise PinsUnreadable(f"would be larger than {MAX_BYTES} bytes")
    read_pins(text)


def deviations(server: str, pins: Mapping[str, Pin], offered: Mapping[str, Tool]) -> list[Deviation]:
    """All tools of a server that are not as accepted, by name. `offered` is the whole of what it lists."""
    return [
        Deviation(server, name, pins.get(name), offered.get(name))
        for name in sorted({*pins, *offered})
        if name not in pins or name not in offered or pins[name].digest != offered[name].digest
    ]


def seen_digest(found: Sequence[Deviation]) -> str:
    """SHA-256 (hex) of exactly these deviations: who accepts by it accepts what was shown, and nothing else."""
    return digest([[one.server, one.tool, *one.digests] for one in found])


def accept(pinned: Pinned, found: Iterable[Deviation], by: str, at: str) -> dict[str, dict[str, Pin]]:
    """The pins after these deviations were accepted: what is offered is pinned, the pin of what is gone goes."""
    after = {server: dict(tools) for server, tools in pinned.items()}
    for one in found:
        tools = after.setdefault(one.server, {})
        if one.now is None:
            tools.pop(one.tool, None)
        else:
            tools[one.tool] = Pin(one.now.definition, one.now.digest, by, at)
    return after


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return members


def _pin(where: str, name: str, pin: Any) -> Pin:
    if not isinstance(pin, dict) or pin.keys() != _PIN or not isinstance(pin["definition"], dict):
        raise PinsUnreadable(f"{where}: must have a definition, {', '.join(sorted(_PIN - {'definition'}))}")
    if not all(isinstance(pin[key], str) for key in _PIN - {"definition"}):
        raise PinsUnreadable(f"{where}: digest, accepted_at and accepted_by must be strings")
    if pin["definition"].get("name") != name:
        raise PinsUnreadable(f"{where}: the definition is another tool's")
    if digest_definition(pin["definition"]) != pin["digest"]:
        raise PinsUnreadable(f"{where}: the digest is not that of the definition")
    return Pin(pin["definition"], pin["digest"], pin["accepted_by"], pin["accepted_at"])
