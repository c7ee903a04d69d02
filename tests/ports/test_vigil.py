"""A vigil: the loop stays awake for one call's short waits, gives way in each turn, and is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.audit.jsonl import JsonlSettings, JsonlSink
from gateway.upstream.http import HttpUpstream
from gateway.upstream.replicas import FREE, PROBE, SEATED
from gateway.upstream.target import UpstreamTarget, check_replica_url
from gateway.vigil import LONGEST_PAUSE_S, SHORTEST_PAUSE_S, Vigil
from tests.ports.test_audit import decision, outcome
from tests.support.upstream import SERVER, ScriptedUpstream, an_admitted

MOST_S = 0.0004
TURN_S = 0.00001


class Turns:
    """A loop of which each turn takes `TURN_S`, and its clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.gave_way = 0
        self._soon: list[Callable[[], None]] = []

    def call_soon(self, turn: Callable[[], None]) -> None:
        self._soon.append(turn)

    def give_way(self) -> None:
        self.gave_way += 1

    def turn(self) -> bool:
        """One turn -> whether there is another to come, so that the loop would not sleep."""
        self.now += TURN_S
        soon, self._soon = self._soon, []
        for turn in soon:
            turn()
        return bool(self._soon)

    def awake_s(self) -> float:
        """For how long it does not sleep from now on."""
        began = self.now
        while self._soon:
            self.turn()
        return self.now - began


def begun(turns: Turns, **changed: Any) -> Vigil:
    vigil = Vigil(MOST_S, clock=lambda: turns.now, **{"give_way": turns.give_way, **changed})
    vigil.begin(turns)  # type: ignore[arg-type]  # as much of a loop as it uses
    return vigil


def test_it_stays_awake_and_gives_way_in_each_turn_until_it_is_ended() -> None:
    """While something is waited for, the loop turns and gives way each time; from its end on it may sleep."""
    turns = Turns()
    vigil = begun(turns)
    assert [turns.turn() for _ in range(5)] == [True] * 5
    assert turns.gave_way == 5
    vigil.end()
    assert not turns.turn()
    assert turns.gave_way == 5


def test_it_is_bounded_however_long_the_wait_is() -> None:
    """What is not over in time is slept through."""
    turns = Turns()
    begun(turns)
    assert turns.awake_s() == pytest.approx(MOST_S, abs=2 * TURN_S)


def test_where_waits_are_long_there_is_hardly_any_vigil() -> None:
    """Each vigil in vain doubles the pause to the next, up to a second: a slow disk costs less than 1 % of a core."""
    turns = Turns()
    vigil = begun(turns)
    awake, began = turns.awake_s(), turns.now
    while turns.now < began + 30.0:
        turns.now += 0.005  # each commit takes that long
        vigil.begin(turns)  # type: ignore[arg-type]
        awake += turns.awake_s()
        vigil.end()
    assert 10 * MOST_S < awake < (30.0 / LONGEST_PAUSE_S + 12) * (MOST_S + 2 * TURN_S)
    turns.now += LONGEST_PAUSE_S
    vigil.begin(turns)  # type: ignore[arg-type]
    assert turns.turn()  # and then it is tried again
    vigil.end()


def test_one_wait_that_was_short_again_makes_the_pause_short_again() -> None:
    """A disk that was slow for a while is near again as soon as one vigil was not in vain."""
    turns = Turns()
    vigil = begun(turns)
    for _ in range(8):
        turns.awake_s()
        turns.now += LONGEST_PAUSE_S
        vigil.begin(turns)  # type: ignore[arg-type]
    assert turns.turn()
    vigil.end()
    turns.turn()
    vigil.begin(turns)  # type: ignore[arg-type]
    assert turns.awake_s() > MOST_S / 2  # in vain
    turns.now += 1.1 * SHORTEST_PAUSE_S
    vigil.begin(turns)  # type: ignore[arg-type]
    assert turns.turn()


def test_an_end_without_a_vigil_and_a_second_begin_are_harmless() -> None:
    """One chain of turns, whoever begins again meanwhile, and no end that was not begun counts as one in time."""
    turns = Turns()
    vigil = begun(turns)
    vigil.begin(turns)  # type: ignore[arg-type]
    turns.turn()
    assert turns.gave_way == 1
    assert turns.awake_s() > 0
    vigil.end()
    vigil.begin(turns)  # type: ignore[arg-type]  # the pause after the one in vain stands
    assert not turns.turn()


def test_where_nothing_can_give_way_there_is_no_vigil() -> None:
    """Without `sched_yield` a turn would keep the core from the thread that is waited for."""
    turns = Turns()
    begun(turns, give_way=None)
    assert not turns.turn()


class Counted(Vigil):
    """A vigil of which it is known how often it was begun and ended; it has no turns."""

    __slots__ = ("begins", "ends")

    def __init__(self) -> None:
        super().__init__(MOST_S, give_way=None)
        self.begins = self.ends = 0

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self.begins += 1
        super().begin(loop)

    def end(self) -> None:
        self.ends += 1
        super().end()


async def test_the_loop_stays_awake_for_one_caller_of_a_commit_alone(tmp_path: Path) -> None:
    """One caller's commit is waited for awake; several callers' and those of notes alone are not. All end it."""
    sink = JsonlSink(JsonlSettings(tmp_path / "audit.jsonl", deadline_s=20.0))
    await sink.start()
    sink._vigil = vigil = Counted()  # type: ignore[misc]
    await sink.append(decision(1))
    assert (vigil.begins, vigil.ends) == (1, 1)
    await asyncio.gather(*(sink.append(decision(number)) for number in range(2, 6)))
    assert (vigil.begins, vigil.ends) == (1, 2)
    commits = sink.commits
    sink.note(outcome(1))
    while sink.commits == commits:  # noqa: ASYNC110 - nobody is told of a note's commit
        await asyncio.sleep(0.001)
    assert vigil.begins == 1
    await sink.close()


async def test_the_loop_stays_awake_for_the_one_call_at_a_replica_alone() -> None:
    """The only call at its replica is waited for awake; with another there, and for what takes no place, none is."""
    async with ScriptedUpstream() as scripted:
        upstream = HttpUpstream({SERVER.name: UpstreamTarget((check_replica_url(scripted.url),))})
        replica = upstream.rings[SERVER.name].replicas[0]
        replica._vigil = vigil = Counted()
        for _ in range(2):  # the first makes its connection
            assert await (await upstream.forward(an_admitted())).whole()
        assert (vigil.begins, vigil.ends) == (1, 1)
        replica.running += 1
        assert await (await upstream.forward(an_admitted())).whole()
        assert (vigil.begins, vigil.ends) == (1, 1)
        replica.running = 1
        assert replica.vigil_over(SEATED) is vigil
        assert replica.vigil_over(FREE) is replica.vigil_over(PROBE) is None
        await upstream.close()
