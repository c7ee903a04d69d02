"""What the look at a bundle's promises takes, in time and in memory, and what it makes of a bundle that is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.rehearsal import promises
from gateway.rehearsal.bundles import make_cases
from gateway.rehearsal.promises import find_broken
from policies.bundles import Bundle, load_bundle
from policies.generation import Generation
from tests.ports.test_bundle import write_bundle

HEAD = """package mcp.authz

import rego.v1

promised := {"effect": "allow", "any_arguments": true}
"""
BROKEN = """
decision := {"effect": "deny"} if not input.request.name in ["clock", "undecided"]

decision := promised if {
	input.request.name == "undecided"
	not input.request.arguments.currency == "EUR"
}

decision := promised if {
	input.request.name == "clock"
	time.now_ns() < 4000000000000000000
}
"""
SLOW = """
decision := promised if count([n | some n in numbers.range(1, 400000)]) > 0
"""
"""Keeps what it promises, and takes about a tenth of a second for each."""


def bundle_of(folder: Path, rules: str) -> Bundle:
    return load_bundle(write_bundle(folder, HEAD + rules))


def named(name: str) -> str:
    return f"any_arguments of (another) tools/call {name}"


async def test_a_bundle_that_is_slow_breaks_no_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is late among many is asked again alone, what is late even then is not looked at: neither is a finding.
    What the rules themselves leave undecided is one."""
    found = await find_broken(bundle_of(tmp_path / "broken", BROKEN))
    assert {one.name: one.why.rsplit("there is ")[1] for one in found} == {
        named("clock"): "no decision", named("undecided"): "no decision",
    }  # fmt: skip
    monkeypatch.setattr(promises, "LOOKS_S", 3.0, raising=False)
    monkeypatch.setattr(promises, "DEADLINE_S", 0.5)
    assert await find_broken(bundle_of(tmp_path / "slow", SLOW)) == []
    monkeypatch.setattr(promises, "DEADLINE_S", 0.02)
    assert await find_broken(bundle_of(tmp_path / "late", SLOW)) == []


async def test_a_look_ends_with_what_it_found_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it has one bound of time, with the processes that it began; what was found by then is told."""
    asked: list[Generation] = []
    ask = Generation.ask

    async def stand_still(engine: Generation, text: bytes) -> bytes:
        if engine not in asked:
            asked.append(engine)
        if len(asked) == 1:
            return await ask(engine, text)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(Generation, "ask", stand_still)
    monkeypatch.setattr(promises, "LOOKS_S", 3.0)
    found = await find_broken(bundle_of(tmp_path / "bundle", BROKEN))
    assert [one.name for one in found] == [named("undecided")]
    assert asked
    assert not any(engine.pids for engine in asked)


async def test_the_clocks_copies_are_open_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many times of day are tried: the processes of one bundle at a time."""
    held: list[int] = []
    everyone: list[Generation] = []
    start = Generation.start

    async def started(engine: Generation) -> None:
        await start(engine)
        everyone.append(engine)
        held.append(sum(bool(one.pids) for one in everyone))

    monkeypatch.setattr(Generation, "start", started)
    found = await find_broken(bundle_of(tmp_path / "bundle", BROKEN))
    assert named("clock") in {one.name for one in found}
    assert held == [1] * (1 + len(promises.INSTANTS))


def test_only_so_many_cases_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle's data may name any number of servers, tools, tenants: what is made of them is bounded, what is kept
    is a sample of it."""
    bundle = bundle_of(tmp_path / "bundle", BROKEN)
    whole = [case for case in make_cases(bundle, bundle) if case["request"]["kind"] == "tool"]
    assert whole[0] in promises._choose_cases(bundle)
    made = 0

    def endless(*_: Bundle) -> Iterator[Any]:
        nonlocal made
        while made <= promises.MOST_MADE:
            made += 1
            yield {**whole[0], "made": made}
        pytest.fail("more are made than are looked at")

    monkeypatch.setattr(promises, "make_cases", endless)
    kept = [case["made"] for case in promises._choose_cases(bundle)]
    assert len(kept) <= promises.MOST_CASES + promises.MOST_CASES // 5
    assert max(kept) > promises.MOST_MADE / 2
