"""Waiting for a ticket to move: told at once or at the next look, one look for all, bounded, and never for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from approvals.ledger import Ledger
from approvals.store import Store
from approvals.ticket import Claimed, Run, Standing, State, StoreUnavailable
from approvals.watching import Watch, is_no_longer_pending
from tests.support.approvals import ALICE, BOB, TERMS, Bench, bench, effect

LONG_S = 30.0


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Bench]:
    """A desk on a file of its own."""
    async with bench(tmp_path / "approvals.db") as made:
        yield made


class Counted:
    """A store whose looks are counted; with `broken` they raise it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.looks = 0
        self.broken: Exception | None = None

    async def read(self, work: Callable[[Ledger], Any]) -> Any:
        """One look."""
        self.looks += 1
        if self.broken is not None:
            raise self.broken
        return await self.store.read(work)


def watch_of(it: Bench, **more: Any) -> tuple[Watch, Counted]:
    counted = Counted(it.store)
    return Watch(counted, it.clock, **more), counted  # type: ignore[arg-type]


async def wait(watch: Watch, ticket_id: str, within_s: float = LONG_S) -> Standing | None:
    return await watch.wait(ticket_id, is_no_longer_pending, within_s)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what no event tells of."""
    async with asyncio.timeout(LONG_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("verb", "by", "state"),
    [
        ("approve", BOB, State.APPROVED),
        ("deny", BOB, State.DENIED),
        ("withdraw", ALICE, State.WITHDRAWN),
    ],
)
async def test_who_waits_is_told_of_a_move_of_the_same_worker_at_once(
    it: Bench, verb: str, by: Any, state: State
) -> None:
    """A person's act wakes whoever waits at the same desk: nobody waits for the next look."""
    it.desk._watch = Watch(it.store, it.clock, every_s=LONG_S)
    held = await it.held()
    waiting = asyncio.create_task(it.desk.watch(held.ticket.id, within_s=LONG_S))
    await until(lambda: len(it.desk._watch) == 1)
    began = time.monotonic()
    await it.desk.act(verb, by, held.ticket.id)
    found = await waiting
    assert found is not None
    assert (found.id, found.state) == (held.ticket.id, state)
    assert time.monotonic() - began < 10


async def test_a_move_by_another_worker_is_seen_at_the_next_look(it: Bench, tmp_path: Path) -> None:
    """Two desks on one store: what the one decides, the other's waiter learns without asking anew."""
    held = await it.held()
    async with bench(tmp_path / "approvals.db", clock=it.clock) as other:
        waiting = asyncio.create_task(it.desk.watch(held.ticket.id, within_s=LONG_S))
        await until(lambda: len(it.desk._watch) == 1)
        await other.desk.act("approve", BOB, held.ticket.id)
        found = await waiting
    assert found is not None
    assert found.state is State.APPROVED


async def test_what_moved_before_is_told_at_once(it: Bench) -> None:
    """Whoever comes late does not wait for a second move."""
    ticket_id = await it.approved()
    found = await it.desk.watch(ticket_id, within_s=LONG_S)
    assert found is not None
    assert found.state is State.APPROVED


async def test_time_alone_ends_a_wait(it: Bench) -> None:
    """A ticket expires for who waits although nobody writes it down."""
    watch, _ = watch_of(it, every_s=0.02)
    held = await it.held()
    waiting = asyncio.create_task(wait(watch, held.ticket.id))
    await until(lambda: len(watch) == 1)
    it.clock.now += TERMS.ttl_s
    found = await waiting
    assert found is not None
    assert found.state is State.EXPIRED


async def test_at_the_deadline_the_latest_look_is_the_answer(it: Bench) -> None:
    """Nothing moved: pending, in time; with no time at all there is one look all the same."""
    watch, counted = watch_of(it, every_s=LONG_S)
    held = await it.held()
    began = time.monotonic()
    found = await wait(watch, held.ticket.id, 0.2)
    assert found is not None
    assert found.state is State.PENDING
    assert 0.15 < time.monotonic() - began < 10
    looks = counted.looks
    at_once = await wait(watch, held.ticket.id, 0)
    assert at_once is not None
    assert counted.looks > looks
    assert len(watch) == 0


async def test_a_ticket_that_is_not_there_is_none(it: Bench) -> None:
    """Nobody waits for what can't move."""
    assert await it.desk.watch("made-up", within_s=LONG_S) is None


async def test_hundreds_who_wait_share_their_looks(it: Bench) -> None:
    """Two hundred waiters on two tickets: looks are not counted by waiters, and one act wakes its own."""
    watch, counted = watch_of(it, every_s=LONG_S)
    one, other = await it.held(), await it.held(effect({"amount": 2}))
    tasks = [asyncio.create_task(wait(watch, held.ticket.id)) for held in (one, other) for _ in range(100)]
    await until(lambda: len(watch) == 200 and counted.looks > 0)
    await it.desk.act("approve", BOB, one.ticket.id)
    watch.tell(one.ticket.id)
    found = await asyncio.gather(*tasks[:100])
    assert {standing.state for standing in found if standing} == {State.APPROVED}
    assert not any(task.done() for task in tasks[100:])
    assert counted.looks <= 4
    await it.desk.act("deny", BOB, other.ticket.id)
    watch.tell(other.ticket.id)
    assert {standing.state for standing in await asyncio.gather(*tasks[100:]) if standing} == {State.DENIED}
    assert len(watch) == 0


async def test_a_move_of_another_ticket_costs_no_look(it: Bench) -> None:
    """A busy worker does not make those who wait look again and again."""
    watch, counted = watch_of(it, every_s=LONG_S)
    held = await it.held()
    waiting = asyncio.create_task(wait(watch, held.ticket.id, 0.3))
    await until(lambda: counted.looks == 1)
    for _ in range(50):
        watch.tell("another")
        await asyncio.sleep(0)
    await waiting
    assert counted.looks == 1


async def test_who_leaves_is_forgotten_and_the_looking_ends(it: Bench) -> None:
    """A waiter that is cancelled takes nothing along; once nobody waits, nobody looks."""
    watch, counted = watch_of(it, every_s=0.01)
    held = await it.held()
    tasks = [asyncio.create_task(wait(watch, held.ticket.id)) for _ in range(3)]
    await until(lambda: counted.looks > 1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(watch) == 0
    await until(lambda: watch._looking is not None and watch._looking.done())


async def test_more_than_may_wait_get_one_look(it: Bench) -> None:
    """Memory is bounded: who finds no room is answered with how it stands, at once."""
    watch, _ = watch_of(it, every_s=LONG_S, most=1)
    held = await it.held()
    first = asyncio.create_task(wait(watch, held.ticket.id))
    await until(lambda: len(watch) == 1)
    began = time.monotonic()
    found = await wait(watch, held.ticket.id)
    assert found is not None
    assert found.state is State.PENDING
    assert time.monotonic() - began < 10
    first.cancel()


async def test_a_store_that_fails_is_told_to_all_who_come(it: Bench) -> None:
    """`StoreUnavailable` for each of them at once, and the next who waits is served again."""
    watch, counted = watch_of(it, every_s=0.02)
    held = await it.held()
    counted.broken = StoreUnavailable("gone")
    began = time.monotonic()
    tasks = [asyncio.create_task(wait(watch, held.ticket.id)) for _ in range(5)]
    assert [type(one) for one in await asyncio.gather(*tasks, return_exceptions=True)] == [StoreUnavailable] * 5
    assert time.monotonic() - began < 10
    counted.broken = None
    assert (await wait(watch, held.ticket.id, 0)) is not None


async def test_a_store_that_fails_for_a_while_ends_no_waiting(it: Bench) -> None:
    """Who waits already waits on, and is told of what moved meanwhile; at its deadline it is told the last look."""
    watch, counted = watch_of(it, every_s=0.02)
    held, other = await it.held(), await it.held(effect({"amount": 2}))
    waiting = [asyncio.create_task(wait(watch, held.ticket.id)) for _ in range(3)]
    brief = asyncio.create_task(wait(watch, other.ticket.id, 0.5))
    await until(lambda: all(one.last is not None for one in watch._waiters) and len(watch._waiters) == 4)
    counted.broken = StoreUnavailable("gone")
    looks = counted.looks
    await until(lambda: counted.looks > looks + 3)
    assert not any(task.done() for task in waiting)
    ended = await brief
    assert ended is not None
    assert ended.state is State.PENDING
    await it.desk.act("approve", BOB, held.ticket.id)
    counted.broken = None
    assert [one and one.state for one in await asyncio.gather(*waiting)] == [State.APPROVED] * 3


async def test_a_worker_that_stops_while_the_store_fails_keeps_nobody_waiting(it: Bench) -> None:
    """Whoever waits is told what the last look found."""
    watch, counted = watch_of(it, every_s=LONG_S)
    held = await it.held()
    waiting = asyncio.create_task(wait(watch, held.ticket.id))
    await until(lambda: [one for one in watch._waiters if one.last is not None] != [])
    counted.broken = StoreUnavailable("gone")
    watch.hurry()
    found = await asyncio.wait_for(waiting, 10)
    assert found is not None
    assert found.state is State.PENDING


async def test_a_look_that_breaks_leaves_nobody_waiting(it: Bench) -> None:
    """A defect in the looking is everybody's error, not everybody's silence."""
    watch, counted = watch_of(it, every_s=0.02)
    held = await it.held()
    counted.broken = KeyError("defect")
    with pytest.raises(KeyError):
        await wait(watch, held.ticket.id)


async def test_a_run_is_a_move_too(it: Bench) -> None:
    """`moved` is the caller's: a use that is taken or ends grows the version."""
    ticket_id = await it.approved()
    first = await it.desk.watch(ticket_id, within_s=0)
    assert first is not None
    waiting = asyncio.create_task(
        it.desk.watch(ticket_id, within_s=LONG_S, moved=lambda found: found.version != first.version)
    )
    await until(lambda: len(it.desk._watch) == 1)
    use = await it.claimed()
    taken = await waiting
    assert taken is not None
    assert (taken.state, taken.version > first.version) == (State.APPROVED, True)
    await it.desk.sent(use)
    ending = asyncio.create_task(
        it.desk.watch(ticket_id, within_s=LONG_S, moved=lambda found: found.state is State.USED)
    )
    await it.desk.finish(use, Run.EXECUTED)
    ended = await ending
    assert ended is not None
    assert ended.state is State.USED


async def test_a_worker_that_stops_keeps_nobody_waiting(it: Bench) -> None:
    """Whoever waits is told how it stands, and whoever comes then gets one look."""
    watch, _ = watch_of(it, every_s=LONG_S)
    held = await it.held()
    tasks = [asyncio.create_task(wait(watch, held.ticket.id)) for _ in range(3)]
    await until(lambda: len(watch) == 3)
    began = time.monotonic()
    watch.hurry()
    for found in (*await asyncio.gather(*tasks), await wait(watch, held.ticket.id)):
        assert found is not None
        assert found.state is State.PENDING
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("end", ["used", "denied", "withdrawn", "revoked", "expired"])
async def test_a_call_that_waited_opens_no_ticket_after_the_one_that_is_over(it: Bench, end: str) -> None:
    """Whoever waited is told how it ended, however often they ask; only the call itself, asked anew, opens one."""
    held = await it.held()
    if end in ("used", "revoked"):
        await it.desk.act("approve", BOB, held.ticket.id)
    if end == "used":
        use = await it.claimed(waited_for=held.ticket.id)
        await it.desk.sent(use)
        await it.desk.finish(use, Run.EXECUTED)
    elif end == "expired":
        it.clock.now += TERMS.ttl_s
    else:
        verb = {"denied": "deny", "withdrawn": "withdraw", "revoked": "revoke"}[end]
        await it.desk.act(verb, ALICE if end == "withdrawn" else BOB, held.ticket.id)
    for _ in range(2):
        waited = await it.held(waited_for=held.ticket.id)
        assert (waited.why, waited.ticket.id) == (end, held.ticket.id)
    assert it.journal.verbs.count("request") == 1
    if end != "denied":  # which holds for whoever asks
        anew = await it.held()
        assert (anew.why, anew.ticket.id != held.ticket.id) == ("pending", True)
        follows = await it.held(waited_for=held.ticket.id)
        assert (follows.why, follows.ticket.id) == ("pending", anew.ticket.id), "the live one is found by its effect"


@pytest.mark.parametrize("approved", [False, True])
async def test_a_ticket_that_would_not_do_today_is_replaced_for_who_waited(it: Bench, approved: bool) -> None:
    """APR-10: another tool or other terms need another approval: it is asked for at once, once."""
    held = await it.held()
    if approved:
        await it.desk.act("approve", BOB, held.ticket.id)
    changed = effect(tool_digest="tool-2")
    for _ in range(2):
        waited = await it.held(changed, waited_for=held.ticket.id)
        assert (waited.why, waited.ticket.id != held.ticket.id) == ("pending", True)
    assert it.journal.verbs.count("request") == 2


async def test_of_many_who_waited_one_runs_and_none_asks_anew(it: Bench) -> None:
    """APR-02: those who come to the desk while the one runs, and those after its end, open no ticket."""
    held = await it.held()
    await it.desk.act("approve", BOB, held.ticket.id)
    settled = await asyncio.gather(*(it.settle(waited_for=held.ticket.id) for _ in range(20)))
    (use,) = [one for one in settled if isinstance(one, Claimed)]
    await it.desk.sent(use)
    await it.desk.finish(use, Run.EXECUTED)
    late = await asyncio.gather(*(it.held(waited_for=held.ticket.id) for _ in range(20)))
    assert {one.why for one in late} == {"used"}
    assert it.journal.verbs.count("request") == 1
