"""Old tickets go, and only those that say nothing any more (docs/approvals.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from approvals.ledger import Ledger
from approvals.retention import forget
from approvals.schema import decisions, eligible, tickets, uses
from approvals.ticket import Claimed, Run
from tests.support.approvals import BOB, TERMS, Bench, bench, effect

KEEP_S = 100 * 86_400.0
DAY_S = 86_400.0


@pytest.fixture
async def it(where: Path | str) -> AsyncIterator[Bench]:
    """A desk on a database of its own."""
    async with bench(where, tickets_per_hour=10_000) as made:
        yield made


async def left(it: Bench) -> set[str]:
    """The ids of all tickets that are there."""

    async def look(ledger: Ledger) -> set[str]:
        return set((await ledger.connection.execute(select(tickets.c.id))).scalars())

    return await it.store.read(look)


async def rows(it: Bench) -> list[int]:
    """How many rows each table has."""

    async def look(ledger: Ledger) -> list[int]:
        counted = [select(func.count()).select_from(table) for table in (tickets, eligible, decisions, uses)]
        return [(await ledger.connection.execute(one)).scalar_one() for one in counted]

    return await it.store.read(look)


async def run(it: Bench, n: int, end: Run | None) -> str:
    """A ticket whose use came to this."""
    ticket_id = await it.approved(effect({"n": n}))
    use = await it.claimed(effect({"n": n}))
    await it.desk.sent(use)
    if end is not None:
        await it.desk.finish(use, end)
    return ticket_id


async def test_what_is_settled_and_old_goes_with_all_that_is_its_own(it: Bench) -> None:
    """Used, denied, withdrawn, revoked, expired: kept until `keep_s` after their time, and not a moment longer."""
    await run(it, 1, Run.EXECUTED)
    await run(it, 2, Run.FAILED)
    for number, verb in ((3, "deny"), (4, "revoke")):
        held = await (it.approved(effect({"n": number})) if verb == "revoke" else _held(it, number))
        await it.desk.act(verb, BOB, held)
    await it.held(effect({"n": 5}))
    over = it.clock.now + TERMS.ttl_s
    it.clock.now = over
    await it.desk.sweep()
    it.clock.now = over + KEEP_S - 1
    assert await forget(it.store, KEEP_S) == 0
    assert len(await left(it)) == 5
    it.clock.now = over + KEEP_S
    await it.held(effect({"n": 6}))
    assert await forget(it.store, KEEP_S) == 5
    assert await rows(it) == [1, 1, 0, 0]


async def _held(it: Bench, number: int) -> str:
    return (await it.held(effect({"n": number}))).ticket.id


async def test_what_still_says_something_stays_whatever_its_age(it: Bench) -> None:
    """An open use, one that waits, one of unknown outcome that nobody looked into, and what was not swept yet."""
    kept = {await run(it, 1, None), await run(it, 2, Run.UNKNOWN), await run(it, 3, Run.WAITING), await _held(it, 4)}
    await run(it, 5, Run.EXECUTED)
    it.clock.now += TERMS.ttl_s + 10 * KEEP_S
    assert await forget(it.store, KEEP_S) == 1
    assert await left(it) == kept
    assert (await it.held(effect({"n": 2}))).why == "unknown"


async def test_an_unknown_outcome_that_was_looked_into_goes_in_its_time(it: Bench) -> None:
    """Once a person set it aside it is like any other; counted from its end."""
    ticket_id = await run(it, 1, Run.UNKNOWN)
    it.clock.now += TERMS.ttl_s + 10 * KEEP_S
    await it.desk.act("resolve", BOB, ticket_id, comment="it ran")
    await it.desk.sweep()
    assert await forget(it.store, KEEP_S) == 1


async def test_a_denial_that_holds_is_not_forgotten(it: Bench) -> None:
    """However short tickets are kept: the same call stays refused until the denial ends."""
    held = await it.held(terms=type(TERMS)(1, int(30 * DAY_S), TERMS.approvers, 1))
    await it.desk.act("deny", BOB, held.ticket.id)
    it.clock.now += 29 * DAY_S
    assert await forget(it.store, 0) == 0
    assert (await it.held()).why == "denied"
    it.clock.now += 2 * DAY_S
    assert await forget(it.store, 0) == 1
    assert (await it.held()).why == "pending"


async def test_what_outlived_its_ticket_by_a_late_end_is_counted_from_that(it: Bench) -> None:
    """A call that ran for long ended after its ticket's time: its outcome is kept as long as any."""
    await it.approved()
    use = await it.claimed()
    assert isinstance(use, Claimed)
    await it.desk.sent(use)
    it.clock.now += TERMS.ttl_s + 5 * DAY_S
    await it.desk.finish(use, Run.EXECUTED)
    it.clock.now += KEEP_S - DAY_S
    assert await forget(it.store, KEEP_S) == 0
    it.clock.now += 2 * DAY_S
    assert await forget(it.store, KEEP_S) == 1


async def test_a_batch_is_bounded(it: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog goes in steps, the oldest first: nobody waits behind it."""
    monkeypatch.setattr("approvals.retention.BATCH", 2)
    for number in range(5):
        await run(it, number, Run.EXECUTED)
        it.clock.now += 1
    it.clock.now += TERMS.ttl_s + KEEP_S
    assert [await forget(it.store, KEEP_S) for _ in range(4)] == [2, 2, 1, 0]
