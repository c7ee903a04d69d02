"""Transactions that several works share: what one of them does to the others, which is nothing."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select, text, update

from approvals.desk import Desk
from approvals.ledger import Ledger
from approvals.schema import tickets
from approvals.sharing import MOST, Share, Sharing
from approvals.ticket import Claimed, NotHeld, Run, StoreUnavailable, Transition
from tests.support.approvals import BOB, ISSUER, PAGE, Bench, bench, effect
from tests.support.postgres import Postgres

Work = Callable[[Ledger], Awaitable[Any]]


def counted(it: Bench, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows by one with each transaction: whether it writes."""
    database, seen = it.store._database, list[bool]()
    carry_out = database.carry_out

    async def and_count(work: Any, *, write: bool, brisk: bool = False) -> Any:
        seen.append(write)
        return await carry_out(work, write=write, brisk=brisk)

    monkeypatch.setattr(database, "carry_out", and_count)
    return seen


def marking(ticket_id: str, ran: list[str], fault: Exception | None = None) -> Work:
    """Counts a ticket's version on, and then perhaps breaks."""

    async def work(ledger: Ledger) -> int:
        ran.append(ticket_id)
        one = tickets.c.id == ticket_id
        await ledger.connection.execute(update(tickets).where(one).values(version=tickets.c.version + 1))
        if fault is not None:
            raise fault
        return int((await ledger.connection.execute(select(tickets.c.version).where(one))).scalar_one())

    return work


async def versions(it: Bench, ids: list[str]) -> list[int]:
    """Where these stand now."""

    async def look(ledger: Ledger) -> dict[str, int]:
        found = await ledger.connection.execute(select(tickets.c.id, tickets.c.version))
        return {row.id: row.version for row in found}

    stand = await it.store.read(look)
    return [stand[one] for one in ids]


async def waits_or_ends(it: Bench, task: asyncio.Task[Any]) -> None:
    """Until it is done, or somebody waits for a lock in this database of PostgreSQL's."""

    async def look(ledger: Ledger) -> int:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return int((await ledger.connection.execute(text(waiting))).scalar_one())

    while not task.done() and not await it.store.read(look):  # noqa: ASYNC110 - the server tells nobody
        await asyncio.sleep(0.01)


def meanwhile(where: Path | str, doing: Callable[[], Coroutine[Any, Any, None]]) -> Work:
    """A work that has this done on the loop, and is under way until it is."""
    loop = asyncio.get_running_loop()

    async def work(_: Ledger) -> None:
        if isinstance(where, Path):  # whose works are carried out in another thread
            asyncio.run_coroutine_threadsafe(doing(), loop).result(5)
        else:
            await doing()

    return work


async def held(it: Bench, count: int) -> list[str]:
    """So many tickets."""
    return [(await it.held(effect({"amount": amount}))).ticket.id for amount in range(count)]


async def test_what_arrives_together_is_one_transaction(where: Path | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own answer; what arrives while one is under way shares the next; no transaction grows for ever."""
    async with bench(where) as it:
        ids = await held(it, 5)
        seen = counted(it, monkeypatch)
        assert await asyncio.gather(*(it.store.move(marking(one, [])) for one in ids)) == [2] * 5
        assert seen == [True]
        late: list[asyncio.Task[Any]] = []

        async def come() -> None:
            late.extend(asyncio.ensure_future(it.store.move(marking(ids[0], []))) for _ in range(MOST + 1))

        async def first(_: Ledger) -> None:
            if isinstance(where, Path):  # whose works are carried out in another thread
                asyncio.run_coroutine_threadsafe(come(), loop).result(5)
            else:
                await come()

        loop = asyncio.get_running_loop()
        await it.store.move(first)
        assert sorted(await asyncio.gather(*late)) == list(range(3, 3 + MOST + 1))
        assert seen == [True] * 4, "one, its own, and two for those that came meanwhile"


async def test_who_breaks_a_shared_transaction_disturbs_nobody(where: Path | str) -> None:
    """It alone is told so, and nothing of it stays; the others are carried out, each by itself, as if alone.

    What was rolled back is done anew, and what is committed once.
    """
    async with bench(where) as it:
        ids, ran = await held(it, 3), list[str]()
        works = [marking(ids[0], ran), marking(ids[1], ran, LookupError("planted")), marking(ids[2], ran)]
        found = await asyncio.gather(*(it.store.move(work) for work in works), return_exceptions=True)
        assert [found[0], found[2]] == [2, 2]
        assert isinstance(found[1], LookupError)
        assert await versions(it, ids) == [2, 1, 2]
        assert sorted(ran[2:]) == sorted(ids)
        assert it.store.healthy


async def test_looks_that_break_disturb_nobody(where: Path | str) -> None:
    """A ticket that can't be read is its own caller's trouble."""
    async with bench(where) as it:
        ids = await held(it, 2)

        async def broken(ledger: Ledger) -> None:
            await ledger.whole(ids[0])
            raise LookupError("planted")

        found = await asyncio.gather(
            it.store.look(lambda ledger: ledger.whole(ids[0])),
            it.store.look(broken),
            it.store.look(lambda ledger: ledger.whole(ids[1])),
            return_exceptions=True,
        )
        assert [getattr(one, "ticket", one).__class__.__name__ for one in found] == [
            "Ticket",
            "LookupError",
            "Ticket",
        ]


async def test_a_shared_commit_whose_end_is_unknown_is_nobodys(tmp_path: Path) -> None:
    """All who shared it are told no, and none of them is carried out once more: it may have been done."""
    async with bench(tmp_path / "approvals.db") as it:
        ids, ran = await held(it, 3), list[str]()
        faults = [sqlite3.OperationalError("disk I/O error")]

        def fail(connection: Any) -> None:
            if connection.get_execution_options().get("ostiary_write") and faults:
                raise faults.pop()

        event.listen(it.store._database.engine, "commit", fail)
        works = [it.store.move(marking(one, ran)) for one in ids]
        found = await asyncio.gather(*works, return_exceptions=True)
        assert {type(one) for one in found} == {StoreUnavailable}
        assert sorted(ran) == sorted(ids)
        assert await versions(it, ids) == [1] * 3


async def test_two_of_one_worker_never_share_a_use(where: Path | str) -> None:
    """Two desks of one store claim the last use in one transaction: one has it."""
    async with bench(where) as it:
        await it.approved()
        other = Bench(it.store, clock=it.clock)
        found = await asyncio.gather(*(desk.settle() for desk in (it, other) for _ in range(5)))
        assert sum(isinstance(one, Claimed) for one in found) == 1


async def test_a_row_that_somebody_holds_keeps_nobody_else_waiting(postgres: Postgres) -> None:
    """Of those that came together with the one that has to wait, each is answered while it still does."""
    url = postgres.create()
    async with bench(url) as it, bench(url, clock=it.clock) as other:
        ids = await held(it, 4)
        stands, leave = asyncio.Event(), asyncio.Event()

        async def hold(ledger: Ledger) -> None:
            await ledger.hold(ids[0])
            stands.set()
            await leave.wait()

        holding = asyncio.create_task(other.store.write(hold, patience_s=5))
        await stands.wait()
        waits, *rest = (asyncio.create_task(it.store.move(marking(one, []))) for one in ids)
        assert await asyncio.gather(*rest) == [2] * 3
        assert not waits.done()
        leave.set()
        await holding
        assert await waits == 2


async def test_who_waits_for_a_row_keeps_nobody_waiting_who_comes_later(postgres: Postgres) -> None:
    """One that came alone waits for its row by itself: whoever comes after it shares the next transaction."""
    url = postgres.create()
    async with bench(url) as it, bench(url, clock=it.clock) as other:
        ids = await held(it, 4)
        stands, leave, begun = asyncio.Event(), asyncio.Event(), asyncio.Event()
        mark = marking(ids[0], [])

        async def hold(ledger: Ledger) -> None:
            await ledger.hold(ids[0])
            stands.set()
            await leave.wait()

        async def first(ledger: Ledger) -> int:
            begun.set()
            result: int = await mark(ledger)
            return result

        holding = asyncio.create_task(other.store.write(hold, patience_s=5))
        await stands.wait()
        waits = asyncio.create_task(it.store.move(first))
        await begun.wait()
        assert await asyncio.gather(*(it.store.move(marking(one, [])) for one in ids[1:])) == [2] * 3
        assert not waits.done()
        leave.set()
        await holding
        assert await waits == 2
        assert it.store.healthy


async def test_who_goes_before_its_transaction_begins_moves_nothing(where: Path | str) -> None:
    """A caller that is gone while others' transaction is under way has no share in the next one."""
    async with bench(where) as it:
        ids, ran, late = await held(it, 2), list[str](), list[asyncio.Task[Any]]()
        loop = asyncio.get_running_loop()

        async def come_and_go() -> None:
            late.extend(asyncio.create_task(it.store.move(marking(one, ran))) for one in ids)
            await asyncio.sleep(0)
            late[0].cancel()

        async def first(_: Ledger) -> None:
            if isinstance(where, Path):
                asyncio.run_coroutine_threadsafe(come_and_go(), loop).result(5)
            else:
                await come_and_go()

        await it.store.move(first)
        assert await late[1] == 2
        assert late[0].cancelled()
        assert ran == [ids[1]]
        assert await versions(it, ids) == [1, 2]


async def test_a_shared_commit_that_fails_is_told_to_whoever_asks_whether_all_is_well(tmp_path: Path) -> None:
    """Readiness sees a database that takes no commit, however many shared it."""
    for together in (1, 3):
        async with bench(tmp_path / f"approvals{together}.db") as it:
            ids = await held(it, together)
            assert it.store.healthy

            def fail(connection: Any) -> None:
                if connection.get_execution_options().get("ostiary_write"):
                    raise sqlite3.OperationalError("disk I/O error")

            event.listen(it.store._database.engine, "commit", fail)
            works = [it.store.move(marking(one, [])) for one in ids]
            await asyncio.gather(*works, return_exceptions=True)
            assert not it.store.healthy


async def test_what_is_revoked_while_others_of_its_transaction_go_on_is_not_sent(postgres: Postgres) -> None:
    """APR-01: no revocation is confirmed between the moment at which a use is `sent` and its commit."""
    url = postgres.create()
    async with bench(url) as it, bench(url, clock=it.clock) as other:
        ticket = await it.approved()
        use = await it.claimed()
        (slow,) = await held(it, 1)
        sent, go_on = asyncio.Event(), asyncio.Event()
        mark = marking(slow, [])

        async def last(ledger: Ledger) -> int:
            sent.set()
            await go_on.wait()
            result: int = await mark(ledger)
            return result

        sending = asyncio.create_task(it.desk.sent(use))
        sharing = asyncio.create_task(it.store.move(last))
        await sent.wait()
        revoking = asyncio.create_task(other.desk.act("revoke", BOB, ticket))
        await waits_or_ends(other, revoking)
        is_confirmed = revoking.done()
        go_on.set()
        assert not is_confirmed
        await asyncio.gather(sending, sharing, revoking)
        assert it.journal.verbs[-1] == "sent"


async def test_what_is_being_revoked_is_not_sent(postgres: Postgres) -> None:
    """Who comes while a revocation is written down waits for it, and then does not hold the use any more."""
    url = postgres.create()
    async with bench(url) as it, bench(url, clock=it.clock) as other:
        ticket = await it.approved()
        use = await it.claimed()
        writing, written = asyncio.Event(), asyncio.Event()

        async def record(transition: Transition) -> None:
            writing.set()
            await written.wait()

        slow = Desk(other.store, record, page_url=PAGE, issuers=[ISSUER], clock=it.clock)
        revoking = asyncio.create_task(slow.act("revoke", BOB, ticket))
        await writing.wait()
        sending = asyncio.create_task(it.desk.sent(use))
        await waits_or_ends(it, sending)
        written.set()
        with pytest.raises(NotHeld):
            await sending
        assert (await revoking)["state"] == "revoked"


async def test_a_work_without_patience_waits_for_nothing_else(tmp_path: Path) -> None:
    """It is run in the database's own thread, where nobody could wake it: that is said, and nothing was done."""
    async with bench(tmp_path / "approvals.db") as it:
        (ticket,) = await held(it, 1)
        mark = marking(ticket, [])

        async def waits(ledger: Ledger) -> None:
            await mark(ledger)
            await asyncio.sleep(0)

        with pytest.raises(RuntimeError, match="besides its database"):
            await it.store.write(waits)
        assert await versions(it, [ticket]) == [1]
        await it.store.write(waits, patience_s=1)
        assert await versions(it, [ticket]) == [2]
        assert (await it.desk.show(BOB, ticket))["state"] == "pending"


@pytest.mark.parametrize("passes_s", [0, 3600])
async def test_an_approval_that_ends_in_the_queue_is_not_sent(where: Path | str, passes_s: float) -> None:
    """It is in time when its transaction runs, not when somebody began to wait for that: it ends early, not late."""
    async with bench(where) as it:
        await it.approved()
        use, sending = await it.claimed(), list[asyncio.Task[None]]()

        async def come() -> None:
            sending.append(asyncio.create_task(it.desk.sent(use)))
            await asyncio.sleep(0)
            it.clock.now += passes_s

        await it.store.move(meanwhile(where, come))
        if passes_s:
            with pytest.raises(NotHeld):
                await sending[0]
        else:
            await sending[0]
        assert it.journal.verbs[-1] == ("claim" if passes_s else "sent")


@pytest.mark.parametrize("passes_s", [0, 3600])
async def test_an_end_is_of_the_moment_at_which_it_is_written(where: Path | str, passes_s: float) -> None:
    """What comes of a call is dated when its transaction runs, also where its approval is out of time by then."""
    async with bench(where) as it:
        await it.approved()
        use, ending = await it.claimed(), list[asyncio.Task[None]]()
        await it.desk.sent(use)

        async def come() -> None:
            ending.append(asyncio.create_task(it.desk.finish(use, Run.EXECUTED)))
            await asyncio.sleep(0)
            it.clock.now += passes_s

        await it.store.move(meanwhile(where, come))
        await ending[0]
        assert (it.journal.kept[-1].verb, it.journal.kept[-1].at) == ("executed", it.clock.now)


async def test_who_waits_when_the_store_closes_is_told(where: Path | str) -> None:
    """Nothing of theirs was done; what is under way comes to its end first; whoever comes later is told as well."""
    async with bench(where) as it:
        ids, ran, closing = await held(it, 2), list[str](), list[asyncio.Task[None]]()
        mark, told = marking(ids[0], ran), list[BaseException | int]()

        async def close() -> None:
            late = [asyncio.create_task(it.store.move(marking(ids[1], ran))) for _ in range(2)]
            await asyncio.sleep(0)
            closing.append(asyncio.create_task(it.store.close()))
            told.extend(await asyncio.gather(*late, return_exceptions=True))
            assert not closing[0].done()

        pause = meanwhile(where, close)

        async def first(ledger: Ledger) -> int:
            await pause(ledger)
            result: int = await mark(ledger)
            return result

        assert await it.store.move(first) == 2
        assert [type(one) for one in told] == [StoreUnavailable] * 2
        await closing[0]
        for ask in (it.store.move, it.store.look, it.store.write, it.store.read):
            with pytest.raises(StoreUnavailable, match="closed"):
                await ask(marking(ids[1], ran))
        assert ran == [ids[0]]
        if isinstance(where, Path):  # where a transaction outlasts what closing waits for
            with pytest.raises(StoreUnavailable, match="closed"):
                await it.store._database.carry_out(lambda _: asyncio.sleep(0), write=True)


async def test_who_goes_as_the_store_closes_is_gone() -> None:
    """One that was told so, and is cancelled before it has heard it, is nobody's defect."""

    async def serve(_: Sequence[Share]) -> None:
        """Never comes to it."""

    sharing = Sharing(serve, asyncio.Semaphore(0))
    share = sharing.join(marking("", []), 0.0)
    sharing.close()
    assert sharing.leave(share)
    assert isinstance(share.done.exception(), StoreUnavailable)


async def test_a_defect_while_others_wait_strands_nobody() -> None:
    """Whoever waits for the next transaction has it, without anybody who comes and begins it; the defect is told."""
    shares, defects, came = list[Share](), list[Any](), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: defects.append(context.get("exception")))

    async def serve(served: Sequence[Share]) -> None:
        if served[0] is not shares[0]:
            for share in served:
                share.done.set_result("done")
            return
        shares.append(sharing.join(marking("", []), 0.0))
        came.set()
        raise LookupError("planted")

    sharing = Sharing(serve, asyncio.Semaphore(1))
    shares.append(sharing.join(marking("", []), 0.0))
    await came.wait()
    assert await asyncio.wait_for(shares[1].done, 5) == "done"
    gc.collect()
    assert [type(one) for one in defects] == [LookupError]
