"""What is remembered of definitions: read once each, by each server's own rules, bounded whatever servers list."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import structlog

from gateway import definitions
from gateway.contract.fingerprint import digest_definition
from gateway.contract.passage import Tool
from gateway.contract.refusals import Refused
from gateway.definitions import ArgumentRules, Definitions
from gateway.prompts import Prompts

WRONG: dict[str, Any] = {"type": "strnig"}


def tool(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", **schema}}


def holds(found: Tool | None) -> list[bool]:
    """Whether a tool's contract refuses a wrong type, and a member that nothing declares."""
    assert found is not None
    refused = []
    for arguments in ({"n": "x"}, {"other": 1}):
        try:
            assert found.contract is not None
            found.contract.check(arguments, b"{}")
        except Refused:
            refused.append(True)
        else:
            refused.append(False)
    return refused


async def test_each_tool_is_held_by_its_own_rule() -> None:
    """A server's default, single tools by name; a server without rules is held to what is declared."""
    rules = {"a": ArgumentRules("strict", {"two": "off", "three": "declared"}), "b": ArgumentRules("off")}
    known = Definitions(rules)
    page = [tool(name, properties={"n": {"type": "integer"}}) for name in ("one", "two", "three")]
    one, two, three = await known.read("a", page)
    assert holds(one) == [True, True]
    assert two is not None
    assert two.contract is None
    assert holds(three) == [True, False]
    (off, *_) = await known.read("b", page)
    assert off is not None
    assert off.contract is None
    (declared, *_) = await known.read("c", page)
    assert holds(declared) == [True, False]


async def test_a_definition_is_read_once() -> None:
    """The same definition has the same contract, however often it is listed; another has another."""
    known = Definitions()
    (first,) = await known.read("a", [tool("one")])
    again, other = await known.read("a", [tool("one"), tool("one", description="x")])
    assert first is not None
    assert again is not None
    assert other is not None
    assert again.contract is first.contract
    assert other.contract is not first.contract
    assert again == first
    assert other != first


async def test_what_cant_be_used_is_left_out_with_one_warning() -> None:
    """A schema that is none is a fault where it is held, and none where it is not; bindings are always held."""
    known = Definitions({"off": ArgumentRules("off")})
    crooked = tool("crooked", properties={"a": {"type": "string", "x-mcp-header": ""}})
    page = [tool("good"), {"name": "wrong", "inputSchema": WRONG}, crooked, {"name": "bare"}]
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            assert [one is not None for one in await known.offered("a", page)] == [True, False, False, False]
            assert [one is not None for one in await known.offered("off", page)] == [True, True, False, False]
    told = [(line["server"], line["tool"], line["log_level"], bool(line["reason"])) for line in lines]
    assert sorted(told) == [
        ("a", "crooked", "warning", True),
        ("a", "wrong", "warning", True),
        ("off", "crooked", "warning", True),
    ]


async def test_memory_is_bounded_and_no_check_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled is limited in bytes, what is remembered in number; a tool in use keeps its contract."""
    monkeypatch.setattr(definitions, "KEPT", 50)
    known = Definitions(compiled_bytes=4_000)
    kept = []
    for number in range(100):
        schema: dict[str, Any] = {"properties": {"n": {"type": "integer"}, "x" * 100: {"const": number}}}
        kept += await known.read("a", [tool(f"t{number}", **schema)])
    assert len(known._known) == 50
    assert 0 < len(known._compiled) < 50
    assert 0 < known._weight <= 4_000
    assert known._weight == sum(contract.weight for contract in known._compiled.values())
    assert all(holds(one) == [True, False] for one in kept)


async def test_what_is_listed_is_what_stays_compiled() -> None:
    """The definition that was asked for longest ago goes first."""
    known = Definitions(compiled_bytes=3_000)
    schema: dict[str, Any] = {"properties": {"x" * 500: {}}}
    for number in range(20):
        await known.read("a", [tool("used", **schema), tool(f"t{number}", **schema)])
    (used,) = await known.read("a", [tool("used", **schema)])
    assert used is not None
    assert used.contract in known._compiled.values()


async def test_a_large_schema_holds_nobody_up() -> None:
    """It is read beside the loop: timers go on while a second of schemas is compiled, each in one stretch."""
    properties = {f"p{n}": {"type": "object", "properties": {"a": {"type": "string"}}} for n in range(1500)}
    known = Definitions()
    reading = asyncio.create_task(known.read("a", [tool(f"large{n}", properties=properties) for n in range(8)]))
    longest, before, turns = 0.0, time.perf_counter(), 0
    began = before
    while not reading.done():
        await asyncio.sleep(0.001)
        longest, before, turns = max(longest, time.perf_counter() - before), time.perf_counter(), turns + 1
    assert all(found is not None for found in await reading)
    assert turns > 5
    assert longest < (before - began) / 2, "one stretch was most of it"


@pytest.mark.parametrize("known_already", [False, True])
async def test_a_definition_whose_digest_takes_long_holds_nobody_up(known_already: bool) -> None:
    """The canonical form of floats takes Python most of a second a megabyte: beside the loop, and once."""
    known, page = Definitions(), [{**tool("slow"), "_meta": {"a.example/x": [1.5] * 240_000}}]
    if known_already:
        await known.read("a", page)
    reading = asyncio.create_task(known.read("a", page))
    began = before = time.perf_counter()
    longest = 0.0
    while not reading.done():
        await asyncio.sleep(0.001)
        longest, before = max(longest, time.perf_counter() - before), time.perf_counter()
    spent = before - began
    (found,) = await reading
    assert found is not None
    began = time.perf_counter()
    assert found.digest == digest_definition(page[0])
    digesting = time.perf_counter() - began
    assert spent < digesting / 2 if known_already else longest < digesting / 2


async def test_too_large_a_definition_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it would cost to read is not spent; it is told once, and the others stay."""
    page = [tool("large", description="x" * 2_000), tool("small", description="x" * 200)]
    assert all(await Definitions().read("a", page))
    monkeypatch.setattr(definitions, "LARGEST", 1_000)
    known = Definitions()
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            assert [one and one.name for one in await known.read("a", page)] == [None, "small"]
    assert [(line["tool"], line["reason"]) for line in lines] == [("large", "larger than 1000 bytes")]


async def test_two_who_read_the_same_have_the_same() -> None:
    """A list and the catalogue may meet a new definition at once: one of the readings is kept."""
    known = Definitions()
    pages = await asyncio.gather(*(known.read("a", [tool("one")]) for _ in range(5)))
    contracts = {id(page[0].contract) for page in pages if page[0] is not None}
    assert len(contracts) == 1
    assert known._weight == next(iter(known._compiled.values())).weight


async def test_a_page_of_what_cant_be_used_is_a_few_lines() -> None:
    """Whatever a server makes up, each time anew: a log that it could fill would hide what others say."""
    names = [f"made-up-{number}" for number in range(50)]
    with structlog.testing.capture_logs() as lines:
        assert await Definitions().read("a", [{"name": name, "inputSchema": WRONG} for name in names]) == [None] * 50
        broken = {"arguments": [{"name": "a"}, {"name": "a"}]}
        assert Prompts().read("a", [{**broken, "name": name} for name in names]) == [None] * 50
    for event in ("tool_left_out", "prompt_left_out"):
        said = [line["more"] for line in lines if line["event"] == event]
        assert said == [34] * 16
