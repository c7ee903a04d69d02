"""The shelf of held calls, on both databases: one open errand a ticket, every move a compare-and-set, all sealed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from approvals.errand import RUN, WAIT, Errand, Questions, Recipe, Stage, next_step
from approvals.filed import Filed, Open
from approvals.ledger import new_id
from approvals.schema import errands
from approvals.shelf import Shelf
from approvals.ticket import Run, State, StoreUnavailable, Ticket
from tests.support.approvals import BOB, Bench, bench, effect

RECIPE = Recipe("handle", "pay", "agent", '{"planted":"ä"}'.encode(), ((b"mcp-name", b"\xff pay"),))
ASKED = Questions(1, "sealed state", {"1.q": {"method": "roots/list"}, "1.r": {"method": "roots/list"}})


@dataclass
class Shelves:
    """Two workers' shelves on one store."""

    bench: Bench
    one: Shelf
    two: Shelf

    async def ticket(self, amount: int = 1) -> Ticket:
        """A ticket that waits for a person."""
        return (await self.bench.held(effect({"amount": amount}))).ticket

    async def put(self, amount: int = 1) -> Errand:
        """A new errand of a ticket that waits."""
        errand_id = new_id()
        found = await self.one.put(await self.ticket(amount), errand_id, RECIPE)
        assert found is not None
        assert (found[0].id, found[1]) == (errand_id, "handle")
        return found[0]

    async def change(self, errand: Errand, **values: Any) -> None:
        """As somebody with the database alone would."""
        query = update(errands).where(errands.c.id == errand.id).values(values)
        await self.bench.store.write(lambda ledger: ledger.connection.execute(query))


@asynccontextmanager
async def shelves(where: Path | str, **more: Any) -> AsyncIterator[Shelves]:
    """A desk, and two shelves with its clock."""
    async with bench(where) as made:
        of = [Shelf(made.store, owner=name, clock=made.clock, **more) for name in ("one", "two")]
        yield Shelves(made, *of)


async def test_a_ticket_has_one_open_errand_however_many_ask(where: Path | str) -> None:
    """Asked at once at two workers, all get the same one; once it has ended, the next is another."""
    async with shelves(where) as there:
        ticket = await there.ticket()
        both = (there.one, there.two)
        put = [both[n % 2].put(ticket, new_id(), replace(RECIPE, handle=f"handle {n}")) for n in range(10)]
        found = await asyncio.gather(*put)
        assert len({one[0].id for one in found if one is not None}) == 1
        assert len({one[1] for one in found if one is not None}) == 1
        assert found[0] is not None
        first = found[0][0]
        assert await there.two.open_of(ticket.id) == found[0]
        ended = await there.two.tell(first, Stage.ENDED, {"status": "cancelled"})
        assert ended is not None
        assert await there.one.open_of(ticket.id) is None
        again = await there.one.put(ticket, new_id(), RECIPE)
        assert again is not None
        assert again[0].id != first.id


async def test_the_lease_is_taken_once(where: Path | str) -> None:
    """Of many who found it held one runs it; who comes late with what was read before moves nothing."""
    async with shelves(where) as there:
        held = await there.put()
        taken = await asyncio.gather(*((there.one, there.two)[n % 2].take(held) for n in range(10)))
        (mine,) = [one for one in taken if one is not None]
        assert (mine.stage, mine.lease_until) == (Stage.RUNNING, there.bench.clock.now + there.one.lease_s)
        assert await there.one.tell(held, Stage.HELD, {}) is None
        assert await there.one.held([mine]) == {mine.id}
        there.bench.clock.now += 30
        assert await there.two.renew([mine]) == there.bench.clock.now + there.two.lease_s
        done = await there.two.tell(mine, Stage.ENDED, {"status": "completed", "result": {}})
        assert done is not None
        assert await there.one.find(mine.id) == done
        assert not await there.one.held([mine])
        before = await there.one.find(mine.id)
        there.bench.clock.now += 1
        await there.one.renew([mine])
        assert await there.one.find(mine.id) == before, "what is lost is not held longer"
        assert await there.one.tell(done, Stage.ENDED, {"status": "cancelled"}) is None, "the end is the end"


async def test_what_is_needed_to_run_it_is_kept_until_it_ended(where: Path | str) -> None:
    """Byte for byte, by whichever worker; not a moment longer than it is needed."""
    async with shelves(where) as there:
        held = await there.put()
        assert await there.two.recipe(held) == RECIPE
        asked = await there.one.ask(held, ASKED)
        assert asked is not None
        assert (await there.two.find(held.id)) == asked
        assert asked.questions == ASKED
        assert await there.two.recipe(asked) == RECIPE
        for stage, told in ((Stage.RELAYED, {"task": "own"}), (Stage.ENDED, {"status": "cancelled"})):
            moved = await there.one.tell(asked, stage, told)
            assert moved is not None
            assert await there.two.recipe(moved) is None
            asked = moved


async def test_a_requester_has_so_many_and_no_more(where: Path | str) -> None:
    """Ended ones count until their time is over; another requester's do not."""
    async with shelves(where, per_subject=2, keep_s=60.0) as there:
        first = await there.put(1)
        await there.one.tell(first, Stage.ENDED, {"status": "cancelled"})
        await there.put(2)
        third = await there.ticket(3)
        assert await there.one.put(third, new_id(), RECIPE) is None
        other = (await there.bench.held(effect({"amount": 9}, subject="carol"))).ticket
        assert await there.one.put(other, new_id(), RECIPE) is not None
        there.bench.clock.now = first.expires_at + 1
        assert await there.one.put(third, new_id(), RECIPE) is not None


async def test_what_has_outlived_its_time_is_gone(where: Path | str) -> None:
    """The ticket's time and `keep_s` more: then nothing tells of it, and the sweep takes the row."""
    async with shelves(where, keep_s=60.0) as there:
        held = await there.put()
        ticket = await there.bench.store.read(lambda ledger: ledger.bookkeeping(held.ticket_id))
        assert ticket is not None
        assert held.expires_at == ticket.ticket.expires_at + 60.0
        assert await there.one.stages([held.id]) == {held.id: (Stage.HELD, "")}
        there.bench.clock.now = held.expires_at
        assert await there.one.find(held.id) is None
        assert await there.one.look(held.id) is None
        assert await there.one.stages([held.id]) == {}
        assert (await there.two.sweep(), await there.two.sweep()) == (1, 0)


async def test_a_process_that_ended_runs_nothing_any_more(where: Path | str) -> None:
    """Its leases lapse at once when its successor begins; another's stay."""
    async with shelves(where) as there:
        mine, theirs = await there.put(1), await there.put(2)
        taken = [await there.one.take(mine), await there.two.take(theirs)]
        assert all(taken)
        await there.two.reconcile("one")
        now = there.bench.clock.now
        found = [await there.two.look(one.id) for one in (mine, theirs)]
        assert [next_step(*one, now) for one in found if one is not None] == ["interrupted", WAIT]


async def test_whoever_has_the_database_alone_changes_nothing_unseen(where: Path | str) -> None:
    """What is told belongs to its row and its stage: moved to another, or to another stage, it does not open."""
    async with shelves(where) as there:
        one, two = await there.put(1), await there.put(2)
        for errand, text in ((one, "planted-one"), (two, "planted-two")):
            await there.one.tell(errand, Stage.ENDED, {"status": "completed", "result": {"text": text}})
        query = errands.select().order_by(errands.c.id)
        rows = (await there.bench.store.read(lambda ledger: ledger.connection.execute(query))).all()
        assert not [row for row in rows if b"planted" in (row.told or b"") + (row.call or b"")]
        assert await there.one.find(one.id) is not None
        told = {row.id: row.told for row in rows}
        await there.change(one, told=told[two.id])
        with pytest.raises(StoreUnavailable):
            await there.one.find(one.id)
        await there.change(one, told=told[one.id], state=Stage.ASKED)
        with pytest.raises(StoreUnavailable):
            await there.one.find(one.id)


async def test_the_step_that_follows_is_the_tickets(where: Path | str) -> None:
    """Pending waits, approved runs, anything else says why not; asked on the real rows of a ticket's life."""
    async with shelves(where) as there:

        async def step(errand: Errand) -> str:
            found = await there.one.look(errand.id)
            assert found is not None
            return next_step(*found, there.bench.clock.now)

        yes, no, late = await there.put(1), await there.put(2), await there.put(3)
        assert await step(yes) == WAIT
        await there.bench.desk.act("approve", BOB, yes.ticket_id)
        await there.bench.desk.act("deny", BOB, no.ticket_id)
        assert (await step(yes), await step(no)) == (RUN, "denied")
        use = await there.bench.claimed(effect({"amount": 1}))
        assert await step(yes) == WAIT, "a repetition of the call runs"
        await there.bench.desk.sent(use)
        await there.bench.desk.finish(use, Run.EXECUTED)
        assert await step(yes) == "used"
        there.bench.clock.now += 3601
        assert await step(late) == "expired"


TICKET = Ticket(
    id="t", state=State.APPROVED, asked=effect(), justification="", reasons=(), approvers=(), min_approvers=1,
    mask=(), decisions=(), uses=1, uses_left=0, runs=(), created_at=0.0, expires_at=100.0,
)  # fmt: skip
WAITS = Open("u", Run.WAITING, 0.0, 1)
WHOLE = replace(ASKED, answers={"1.q": {}, "1.r": {}})


@pytest.mark.parametrize(
    ("questions", "ticket", "running", "now", "step"),
    [
        (ASKED, TICKET, WAITS, 1.0, WAIT),
        (replace(ASKED, answers={"1.q": {}}), TICKET, WAITS, 1.0, WAIT),
        (WHOLE, TICKET, WAITS, 1.0, RUN),
        (replace(ASKED, requests={}), TICKET, WAITS, 1.0, RUN),
        (WHOLE, TICKET, WAITS, 101.0, "expired"),
        (ASKED, TICKET, WAITS, 101.0, "expired"),
        (WHOLE, replace(TICKET, state=State.REVOKED), None, 1.0, "revoked"),
        (WHOLE, TICKET, replace(WAITS, run=Run.UNKNOWN), 1.0, RUN),
        (replace(WHOLE, ticket="a"), replace(TICKET, state=State.PENDING, uses_left=1), None, 1.0, WAIT),
        (replace(WHOLE, ticket="a"), replace(TICKET, uses_left=1), None, 1.0, RUN),
        (replace(WHOLE, ticket="a"), replace(TICKET, state=State.DENIED), None, 1.0, "denied"),
        (None, TICKET, replace(WAITS, run=Run.UNKNOWN), 1.0, "unknown"),
    ],
)
def test_the_step_that_follows_a_question(
    questions: Questions | None, ticket: Ticket, running: Open | None, now: float, step: str
) -> None:
    """Nothing runs before all is answered, nor once the approval is over; the desk says what else is against it."""
    told = {} if questions is None else {
        "leg": questions.leg, "state": questions.state, "requests": questions.requests,
        "answers": questions.answers, "ticket": questions.ticket,
    }  # fmt: skip
    stage = Stage.HELD if questions is None else Stage.ASKED
    errand = Errand("e", "t", 1, stage, "i", "s", "", 0.0, 0.0, 0.0, 1000.0, told)
    assert next_step(errand, Filed(ticket, 1, (), running), now) == step
    assert errand.waits_for == ("a" if questions is not None and questions.ticket else "t")


def test_answers_go_back_under_the_servers_own_keys() -> None:
    """A key may hold anything, a point as well."""
    questions = Questions(2, "s", {"2.a.b": {}}, {"2.a.b": 1, "2.": 2})
    assert questions.responses == {"a.b": 1, "": 2}
    assert questions.open == {}
