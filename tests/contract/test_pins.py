"""Pins as values: the file's text has one form and one reading, and what was shown is what is accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.differences import differences
from gateway.contract.fingerprint import digest_definition
from gateway.contract.passage import Tool
from gateway.contract.pins import (
    Pin,
    PinsUnreadable,
    State,
    accept,
    check_pins,
    deviations,
    read_pins,
    seen_digest,
    write_pins,
)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~\u202e", max_size=2), inner, max_size=3),
    max_leaves=12,
)


@st.composite
def definitions(draw: st.DrawFn, name: str = "read") -> dict[str, Any]:
    more = draw(st.dictionaries(st.sampled_from(["description", "annotations", "inputSchema"]), values))
    # As it comes from a server: read from JSON.
    return dict(orjson.loads(orjson.dumps({"name": name, **more})))


def tool(definition: dict[str, Any]) -> Tool:
    return Tool(definition["name"], digest_definition(definition), {}, definition)


def pin(definition: dict[str, Any], by: str = "local:0@host") -> Pin:
    return Pin(definition, digest_definition(definition), by, "2026-11-30T00:00:00Z")


READ = {"name": "read", "description": "Reads.", "inputSchema": {"type": "object"}}


@given(st.lists(definitions(), max_size=2), st.text(st.characters(exclude_categories=["Cs"]), max_size=6))
def test_what_is_written_is_read_back(found: list[dict[str, Any]], by: str) -> None:
    """The text holds the pins exactly, in ASCII; the same pins in another order are the same text."""
    pinned = {f"s{number}": {"read": pin(one, by)} for number, one in enumerate(found)}
    text = write_pins(pinned)
    assert text.isascii()
    assert read_pins(text) == pinned
    assert write_pins(dict(reversed(pinned.items()))) == text


BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "a member more": lambda it: it.update(more=1),
    "no version": lambda it: it.pop("version"),
    "another version": lambda it: it.update(version=2),
    "a version that is true": lambda it: it.update(version=True),
    "servers in a list": lambda it: it.update(servers=[]),
    "a server in a list": lambda it: it["servers"].update(files=[]),
    "a pin that is none": lambda it: it["servers"]["files"].update(read=None),
    "a pin with a member more": lambda it: it["servers"]["files"]["read"].update(note=""),
    "a pin without a digest": lambda it: it["servers"]["files"]["read"].pop("digest"),
    "a number for a person": lambda it: it["servers"]["files"]["read"].update(accepted_by=1),
    "another definition": lambda it: it["servers"]["files"]["read"]["definition"].update(description="Other."),
    "another digest": lambda it: it["servers"]["files"]["read"].update(digest="0" * 64),
    "another tool's": lambda it: it["servers"]["files"].update(write=it["servers"]["files"].pop("read")),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_text_that_is_not_right_is_none(name: str) -> None:
    """Nothing is taken from a file of which something is wrong: a pin must not be weaker than it looks."""
    text = write_pins({"files": {"read": pin(READ)}})
    assert read_pins(text)
    document = json.loads(text)
    BROKEN[name](document)
    with pytest.raises(PinsUnreadable):
        read_pins(json.dumps(document).encode())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff",
        b"{}",
        b'{"version": 1, "servers": {}, "servers": {}}',
        b'{"version": 1, "servers": {"a": {}, "a": {}}}',
        b'{"version": 1, "servers": NaN}',
        b"[" * 100_000,
    ],
)
def test_a_text_with_two_readings_or_none_is_refused(text: bytes) -> None:
    """What is reviewed is what is in force: no doubled name, no number that is none."""
    with pytest.raises(PinsUnreadable):
        read_pins(text)


@given(definitions(), definitions())
def test_what_deviates_is_shown(before: dict[str, Any], now: dict[str, Any]) -> None:
    """A tool deviates if and only if its digest is another, and then there is a difference to look at."""
    found = deviations("files", {"read": pin(before)}, {"read": tool(now)})
    assert bool(found) == (digest_definition(before) != digest_definition(now))
    if found:
        assert [one.state for one in found] == [State.CHANGED]
        assert differences(before, now)


@given(st.lists(st.sampled_from("abcd"), unique=True), st.lists(st.sampled_from("abcd"), unique=True), st.booleans())
def test_what_was_accepted_deviates_no_more(pinned: list[str], offered: list[str], changed: bool) -> None:
    """After all was accepted nothing deviates; until then it is new, changed or gone, each once, by name."""
    pins = {"files": {name: pin({"name": name}) for name in pinned}, "other": {"read": pin(READ)}}
    tools = {name: tool({"name": name, **({"description": "x"} if changed else {})}) for name in offered}
    found = deviations("files", pins["files"], tools)
    states = {one.tool: one.state for one in found}
    assert list(states) == sorted(states)
    for name in "abcd":
        wanted = {
            (False, True): State.NEW,
            (True, False): State.GONE,
            (True, True): State.CHANGED if changed else None,
        }
        assert states.get(name) == wanted.get((name in pinned, name in offered))
    after = accept(pins, found, "local:1@host", "2026-12-01T00:00:00Z")
    assert deviations("files", after["files"], tools) == []
    assert after["other"] == pins["other"]
    assert read_pins(write_pins(after)) == {server: kept for server, kept in after.items() if kept}


def test_a_look_is_one_digest() -> None:
    """Another server, tool, accepted or offered digest is another look; the order of pins and tools is not."""
    changed = {**READ, "description": "Other."}
    looks = [
        deviations("files", {"read": pin(READ)}, {"read": tool(changed)}),
        deviations("other", {"read": pin(READ)}, {"read": tool(changed)}),
        deviations("files", {"read": pin(changed)}, {"read": tool(READ)}),
        deviations("files", {}, {"read": tool(changed)}),
        deviations("files", {"read": pin(READ)}, {}),
        deviations("files", {"read": pin(READ)}, {"read": tool(changed), "write": tool({"name": "write"})}),
        [],
    ]
    assert len({seen_digest(look) for look in looks}) == len(looks)


def test_no_text_is_written_that_no_gateway_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server lists may grow in the file beyond what is read: nobody notices before the next start."""
    text = write_pins({"a": {"read": pin({"name": "read"})}})
    check_pins(text)
    monkeypatch.setattr("gateway.contract.pins.MAX_BYTES", len(text) - 1)
    with pytest.raises(PinsUnreadable, match="larger"):
        check_pins(text)
    with pytest.raises(PinsUnreadable):
        check_pins(text[:-3])
