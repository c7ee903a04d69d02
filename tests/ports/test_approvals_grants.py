"""Grants: one approval for several calls of one tool, whose arguments fit a schema, and for nothing else."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from approvals.desk import TooManyTickets
from approvals.ticket import (
    Asked,
    Claimed,
    Covers,
    Granted,
    Held,
    MovedOn,
    NotHeld,
    Run,
    State,
    StoreUnavailable,
    Terms,
)
from gateway.contract.arguments import Contract
from tests.support.approvals import ALICE, BOB, TERMS, Bench, Clock, bench, contents, effect, grant_of, person

SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "minimum": 1, "maximum": 100}, "to": {"const": "IBAN"}},
    "required": ["amount", "to"],
}
BOUNDS = {"properties": {"amount": {"maximum": 50}}}
FIVE = replace(TERMS, uses=5)


def fits(arguments: Mapping[str, Any], vary: Mapping[str, Any]) -> bool:
    """As the house finds out."""
    text = orjson.dumps(arguments)
    both = Contract(vary["schema"], strict=True, formats=True), Contract(vary["bounds"], strict=False, formats=True)
    return all(one.admits(arguments, text) for one in both)


def by_policy(asked: Asked, terms: Terms | None = FIVE) -> Covers:
    """A policy that gives grants of the tool on these terms (`None`: not any more)."""

    async def covers(vary: Mapping[str, Any]) -> Granted | None:
        return Granted(terms) if terms is not None and fits(asked.arguments, vary) else None

    return covers


def pay(amount: int, **changes: str) -> Asked:
    """Alice's call."""
    return effect({"amount": amount, "to": "IBAN"}, **changes)


GRANT = grant_of(pay(1), SCHEMA, BOUNDS)


async def call(it: Bench, asked: Asked, terms: Terms | None = FIVE) -> Claimed | Held:
    """What the corridor asks for a call that may run under a grant."""
    return await it.settle(asked, covers=by_policy(asked, terms))


async def run(it: Bench, asked: Asked, end: Run = Run.EXECUTED) -> str:
    """A call to its end -> the ticket that it ran under."""
    use = await call(it, asked)
    assert isinstance(use, Claimed), use
    await it.desk.sent(use)
    await it.desk.finish(use, end)
    return use.ticket_id


async def granted(it: Bench, asked: Asked = GRANT, terms: Terms = FIVE) -> str:
    """An approved grant."""
    shown, opened = await it.desk.request(ALICE, asked, terms, reasons=("rule",), mask=())
    assert opened
    await it.desk.act("approve", BOB, shown["id"])
    return str(shown["id"])


@pytest.fixture
async def it(where: Path | str) -> AsyncIterator[Bench]:
    """A desk on a database of its own."""
    async with bench(where, limit_s=30) as made:
        yield made


async def test_the_story_of_a_grant(it: Bench) -> None:
    """Asked for, shown as what it is, approved, used as often as it says, by calls that differ; then asked anew."""
    shown, opened = await it.desk.request(ALICE, GRANT, FIVE, reasons=("rule",), mask=())
    assert opened
    assert (shown["arguments"], shown["uses"], shown["vary"]) == ({}, 5, {"schema": SCHEMA, "bounds": BOUNDS})
    again, opened = await it.desk.request(ALICE, GRANT, FIVE, reasons=("rule",), mask=())
    assert (again["id"], opened) == (shown["id"], False)
    seen = (await it.desk.show(BOB, shown["id"]))["digest"]
    await it.desk.act("approve", BOB, shown["id"], seen=seen)
    for amount in (1, 2, 2, 50, 7):
        assert await run(it, pay(amount)) == shown["id"]
    after = await it.desk.show(ALICE, shown["id"])
    assert (after["state"], after["uses_left"], len(after["runs"])) == ("used", 0, 5)
    held = await call(it, pay(3))
    assert isinstance(held, Held)
    assert (held.why, held.ticket.asked.vary) == ("pending", None)


async def test_each_record_names_the_very_call(it: Bench) -> None:
    """What ran under a grant is told by its own effect, not by the grant's: claim, sent and end alike; the ticket's
    runs name the uses, so that whoever looks at it finds the records.
    """
    ticket_id = await granted(it)
    await run(it, pay(7))
    await run(it, pay(8))
    told = [(one.verb, one.ticket.asked.digest) for one in it.journal.kept if one.use_id]
    assert told == [(verb, pay(n).digest) for n in (7, 8) for verb in ("claim", "sent", "executed")]
    runs = [one["use"] for one in (await it.desk.show(BOB, ticket_id))["runs"]]
    assert sorted(runs) == sorted({one.use_id for one in it.journal.kept if one.use_id})


@pytest.mark.parametrize(
    "arguments",
    [
        {"amount": 0, "to": "IBAN"}, {"amount": 51, "to": "IBAN"}, {"amount": 101, "to": "IBAN"},
        {"amount": 1.5, "to": "IBAN"},
        {"amount": "1", "to": "IBAN"}, {"amount": 1, "to": "iban"}, {"amount": 1}, {"to": "IBAN"}, {},
        {"amount": 1, "to": "IBAN", "more": 1}, {"amount": True, "to": "IBAN"}, {"Amount": 1, "to": "IBAN"},
    ],
)  # fmt: skip
async def test_other_arguments_find_no_grant_and_burn_none(it: Bench, arguments: dict[str, Any]) -> None:
    """Outside of either schema, or with a member that none names, a call waits for its own approval."""
    ticket_id = await granted(it)
    held = await call(it, effect(arguments))
    assert isinstance(held, Held)
    assert (held.why, held.ticket.asked.is_grant) == ("pending", False)
    assert (await it.desk.show(ALICE, ticket_id))["uses_left"] == 5
    assert await run(it, pay(1)) == ticket_id


@pytest.mark.parametrize(
    "changes",
    [{"subject": "mallory"}, {"client": "other"}, {"server": "other"}, {"resource": "https://x"}, {"name": "pay2"},
     {"environment": "staging"}, {"method": "prompts/get"}, {"issuer": "https://other.example"}],
)  # fmt: skip
async def test_a_grant_binds_who_where_and_which_tool(it: Bench, changes: dict[str, str]) -> None:
    """Another caller, program, server, environment or tool finds no grant."""
    ticket_id = await granted(it)
    held = await call(it, pay(1, **changes))
    assert isinstance(held, Held)
    assert held.ticket.id != ticket_id
    assert (await it.desk.show(ALICE, ticket_id))["uses_left"] == 5


@pytest.mark.parametrize("end", ["expired", "revoked", "withdrawn", "pending", "denied"])
async def test_a_grant_that_does_not_stand_covers_nothing(it: Bench, end: str) -> None:
    """Before it is approved, after its time, its revocation or a denial a call is held as if there were none."""
    if end in ("pending", "denied"):
        shown, _ = await it.desk.request(ALICE, GRANT, FIVE, reasons=(), mask=())
        ticket_id = shown["id"]
        if end == "denied":
            await it.desk.act("deny", BOB, ticket_id)
    else:
        ticket_id = await granted(it)
        assert await run(it, pay(1)) == ticket_id
        if end == "expired":
            it.clock.now += FIVE.ttl_s
        else:
            await it.desk.act(*(("revoke", BOB) if end == "revoked" else ("withdraw", ALICE)), ticket_id)
    held = await call(it, pay(2))
    assert isinstance(held, Held)
    assert (held.why, held.ticket.asked.is_grant) == ("pending", False)


@pytest.mark.parametrize(
    ("terms", "changes", "why"),
    [
        (None, {}, ""),
        (replace(FIVE, uses=1), {}, "terms_tightened"),
        (replace(FIVE, ttl_s=10), {}, "terms_tightened"),
        (replace(FIVE, approvers=("group:others",)), {}, "approvers_changed"),
        (FIVE, {"tool_digest": "tool-2"}, "tool_changed"),
    ],
)
async def test_a_grant_is_held_to_today(it: Bench, terms: Terms | None, changes: dict[str, str], why: str) -> None:
    """What the policy would not give today covers no call: revoked with the reason, or, where it says no, left."""
    ticket_id = await granted(it)
    await run(it, pay(1))
    it.clock.now += 20
    held = await call(it, pay(2, **changes), terms)
    assert isinstance(held, Held)
    assert not held.ticket.asked.is_grant
    assert (await it.desk.show(ALICE, ticket_id))["state"] == ("revoked" if why else "approved")
    assert [one.comment for one in it.journal.kept if one.verb == "revoke"] == ([why] if why else [])


async def test_a_ticket_of_the_very_call_comes_first(it: Bench) -> None:
    """Its approval is used before the grant's, its denial holds, and while it waits for people the call waits too."""
    grant = await granted(it)
    approved = await it.approved(pay(1))
    assert await run(it, pay(1)) == approved
    assert await run(it, pay(1)) == grant
    pending = await it.held(pay(2))
    held = await call(it, pay(2))
    assert isinstance(held, Held)
    assert (held.why, held.ticket.id) == ("pending", pending.ticket.id)
    await it.desk.act("deny", BOB, pending.ticket.id)
    held = await call(it, pay(2))
    assert isinstance(held, Held)
    assert (held.why, held.ticket.id) == ("denied", pending.ticket.id)
    assert await run(it, pay(3)) == grant


async def test_a_revoked_approval_of_the_very_call_takes_it_out_of_the_grant(it: Bench) -> None:
    """Until that ticket's end a person is asked again; a withdrawal, and other calls, leave the grant as it is."""
    grant = await granted(it)
    revoked = await it.approved(pay(1))
    await it.desk.act("revoke", BOB, revoked)
    held = await call(it, pay(1))
    assert isinstance(held, Held)
    assert (held.why, held.ticket.asked.is_grant) == ("pending", False)
    assert held.ticket.id != revoked
    assert await run(it, pay(2)) == grant
    withdrawn = await it.approved(pay(3))
    await it.desk.act("withdraw", ALICE, withdrawn)
    assert await run(it, pay(3)) == grant
    await it.desk.act("withdraw", ALICE, held.ticket.id)
    held = await call(it, pay(1))
    assert isinstance(held, Held)
    assert held.why == "pending"


async def test_a_revocation_in_the_last_moment_holds(it: Bench) -> None:
    """A person who takes the very call's approval back while its grant is being looked at is heard."""
    await granted(it)
    asked = pay(2)

    async def covers(vary: Mapping[str, Any]) -> Granted | None:
        if "revoke" not in it.journal.verbs:
            await it.desk.act("revoke", BOB, await it.approved(asked))
        return await by_policy(asked)(vary)

    held = await it.settle(asked, covers=covers)
    assert isinstance(held, Held)
    assert held.why == "pending"
    assert "claim" not in it.journal.verbs


async def test_a_denial_in_the_last_moment_holds(it: Bench) -> None:
    """A person who says no to the very call while its grant is being looked at is heard."""
    await granted(it)
    asked = pay(2)

    async def covers(vary: Mapping[str, Any]) -> Granted | None:
        pending = await it.held(asked)
        await it.desk.act("deny", BOB, pending.ticket.id)
        return await by_policy(asked)(vary)

    held = await it.settle(asked, covers=covers)
    assert isinstance(held, Held)
    assert held.why == "denied"
    assert "claim" not in it.journal.verbs


@pytest.mark.parametrize("end", ["withdraw", "revoke", "expire"])
async def test_a_call_that_waited_for_its_own_ticket_does_not_end_under_a_grant(it: Bench, end: str) -> None:
    """What was taken back or ran out while its caller waited is answered as such; only the call made anew may run."""
    grant = await granted(it, terms=replace(FIVE, ttl_s=10_000))
    asked = pay(2)
    own = (await it.held(asked)).ticket.id
    if end == "revoke":
        await it.desk.act("approve", BOB, own)
    if end == "expire":
        it.clock.now += TERMS.ttl_s + 1
    else:
        await it.desk.act(end, ALICE if end == "withdraw" else BOB, own)
    told = await it.settle(asked, covers=by_policy(asked, replace(FIVE, ttl_s=10_000)), waited_for=own)
    assert isinstance(told, Held)
    why = {"withdraw": "withdrawn", "revoke": "revoked", "expire": "expired"}[end]
    assert (told.ticket.id, told.why) == (own, why)
    assert (await it.desk.show(ALICE, grant))["uses_left"] == 5
    anew = await call(it, asked, replace(FIVE, ttl_s=10_000))
    if end == "revoke":  # a person said "not this call"
        assert isinstance(anew, Held)
        assert (anew.why, anew.ticket.asked.is_grant) == ("pending", False)
    else:
        assert isinstance(anew, Claimed)
        assert anew.ticket_id == grant


async def test_one_at_a_time(it: Bench) -> None:
    """While a use is in flight any call that the grant covers is held as such, and opens no ticket."""
    grant = await granted(it)
    use = await call(it, pay(1))
    assert isinstance(use, Claimed)
    held = await call(it, pay(2))
    assert isinstance(held, Held)
    assert (held.why, held.ticket.id) == ("in_flight", grant)
    await it.desk.sent(use)
    await it.desk.finish(use, Run.FAILED)
    assert await run(it, pay(2)) == grant


@pytest.mark.parametrize("alike", [True, False])
async def test_of_parallel_calls_one_runs(where: Path | str, alike: bool) -> None:
    """Over two replicas, with the same arguments or with others: one use at a time, as many as it says, and nobody is
    told anything but that one runs.
    """
    clock = Clock()
    options: dict[str, Any] = {"clock": clock, "limit_s": 30, "tickets_per_hour": 10**6}
    async with bench(where, **options) as here, bench(where, **options) as there:
        grant = await granted(here, terms=replace(FIVE, uses=2))
        terms = replace(FIVE, uses=2)
        for _ in range(2):
            calls = [call((here, there)[n % 2], pay(7 if alike else n + 1), terms) for n in range(30)]
            settled = await asyncio.gather(*calls)
            won = [(n, one) for n, one in enumerate(settled) if isinstance(one, Claimed)]
            assert len(won) == 1
            assert {one.why for one in settled if isinstance(one, Held)} == {"in_flight"}
            ((number, use),) = won
            desk = (here, there)[number % 2].desk
            await desk.sent(use)
            await desk.finish(use, Run.EXECUTED)
        assert (await here.desk.show(ALICE, grant))["state"] == "used"
        held = await call(there, pay(7), terms)
        assert isinstance(held, Held)
        assert held.why == "pending"


async def test_an_unknown_end_is_not_run_again(it: Bench) -> None:
    """Not by the grant, not by another one, not by an approval of the very call: until a person resolved it."""
    first = await granted(it)
    assert await run(it, pay(7), Run.UNKNOWN) == first
    other = await granted(it, grant_of(pay(1), {**SCHEMA, "title": "another"}, BOUNDS))
    held = await call(it, pay(7))
    assert isinstance(held, Held)
    assert (held.why, held.ticket.id) == ("unknown", first)
    with pytest.raises(MovedOn, match="unknown"):
        await it.desk.request(ALICE, pay(7), TERMS, reasons=(), mask=())
    assert await run(it, pay(8)) == other
    await it.desk.act("revoke", BOB, first)
    held = await call(it, pay(7))
    assert isinstance(held, Held)
    assert held.why == "unknown"
    shown = await it.desk.show(BOB, first)
    assert [(one["state"], one["resolved"]) for one in shown["runs"]] == [("unknown", False)]
    await it.desk.act("resolve", BOB, first, comment="it was not paid")
    assert await run(it, pay(7)) == other


async def test_a_lapsed_lease_is_unknown(it: Bench) -> None:
    """A holder that was lost leaves `unknown`, for a grant's use like for any."""
    grant = await granted(it)
    assert isinstance(await call(it, pay(1)), Claimed)
    it.clock.now += 301
    held = await call(it, pay(1))
    assert isinstance(held, Held)
    assert (held.why, held.ticket.id) == ("unknown", grant)


async def test_a_use_of_which_nothing_left_is_given_back(it: Bench) -> None:
    """Restored, a grant has all its uses again."""
    grant = await granted(it)
    use = await call(it, pay(1))
    assert isinstance(use, Claimed)
    await it.desk.restore(use)
    assert (await it.desk.show(ALICE, grant))["uses_left"] == 5


async def test_a_revocation_stops_what_was_not_sent(it: Bench) -> None:
    """Up to the sending, taking the grant back stops its call."""
    grant = await granted(it)
    use = await call(it, pay(1))
    assert isinstance(use, Claimed)
    await it.desk.act("revoke", BOB, grant)
    with pytest.raises(NotHeld):
        await it.desk.sent(use)


async def test_grants_count_as_tickets(tmp_path: Path) -> None:
    """The hourly bound of tickets holds for grants too."""
    async with bench(tmp_path / "a.db", tickets_per_hour=2) as it:
        for number in range(2):
            await it.desk.request(ALICE, grant_of(pay(1), {"maxProperties": number}), FIVE, reasons=(), mask=())
        with pytest.raises(TooManyTickets):
            await it.desk.request(ALICE, grant_of(pay(1), {"maxProperties": 3}), FIVE, reasons=(), mask=())


async def test_whoever_writes_the_database_makes_no_grant(tmp_path: Path) -> None:
    """An approval of one call that is filed as a grant, or a grant of one tool as one of another, covers nothing."""
    path = tmp_path / "a.db"
    async with bench(path, limit_s=30) as it:
        grant = await granted(it)
        exact = await it.approved(pay(60))
        assert b"IBAN" not in contents(path)
    with closing(sqlite3.connect(path)) as database, database:
        (kin,) = database.execute("SELECT kin FROM tickets WHERE id = ?", [grant]).fetchone()
        database.execute("UPDATE tickets SET kin = ? WHERE id = ?", [kin, exact])
    async with bench(path, limit_s=30) as it:
        with pytest.raises(StoreUnavailable):
            await call(it, pay(2))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE tickets SET kin = NULL WHERE id = ?", [exact])
        database.execute("UPDATE tickets SET name = 'transfer' WHERE id = ?", [grant])
    async with bench(path, limit_s=30) as it:
        held = await call(it, pay(2, name="transfer"))
        assert isinstance(held, Held)
        with pytest.raises(StoreUnavailable):
            await call(it, pay(2))


# ------------------------------------------------------------------ whatever happens


ENDS = [Run.EXECUTED, Run.FAILED, Run.UNKNOWN]
STEP = st.one_of(
    st.tuples(st.just("call"), st.integers(-2, 60)),
    st.tuples(st.just("both"), st.integers(1, 3)),
    st.tuples(st.just("end"), st.sampled_from(ENDS)),
    st.tuples(st.just("restore"), st.none()),
    st.tuples(st.just("time"), st.sampled_from([1, 100, 301])),
    st.tuples(st.just("revoke"), st.none()),
    st.tuples(st.just("resolve"), st.none()),
    st.tuples(st.just("deny"), st.integers(1, 3)),
)
Story = Sequence[tuple[str, Any]]


NUMBERS = count()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(uses=st.integers(1, 3), story=st.lists(STEP, max_size=14))
def test_a_grant_never_runs_more_than_it_says(uses: int, story: Story) -> None:
    """Over any history: at most `uses` calls were sent, each within the schemas and the time, none after a
    revocation, none that a person denied, never two at once, and none again whose end is unknown.
    """
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(tell(Path(folder) / "a.db", "alice", uses, story))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(uses=st.integers(1, 3), story=st.lists(STEP, max_size=14))
def test_nor_does_it_on_postgresql(tables: str, uses: int, story: Story) -> None:
    """The same on the other database, each history by somebody else."""
    asyncio.run(tell(tables, f"alice-{next(NUMBERS)}", uses, story))


async def tell(path: Path | str, name: str, uses: int, story: Story) -> None:  # noqa: PLR0912 - a branch for each step
    """One history, on two desks as of two replicas."""
    terms = replace(FIVE, uses=uses, ttl_s=1000)
    async with (
        bench(path, limit_s=30, tickets_per_hour=10**6) as it,
        bench(path, limit_s=30, clock=it.clock, tickets_per_hour=10**6) as there,
    ):
        alice = person(name)
        asked = grant_of(pay(1, subject=name), SCHEMA, BOUNDS)
        shown, _ = await it.desk.request(alice, asked, terms, reasons=(), mask=())
        grant = str((await it.desk.act("approve", BOB, shown["id"]))["id"])
        begun, ends_at = it.clock.now, it.clock.now + terms.ttl_s
        revoked, denied, unknown, sent = False, set[int](), set[int](), 0
        open_use: tuple[Claimed, Bench, int] | None = None

        async def ask(desk: Bench, amount: int) -> Claimed | None:
            settled = await desk.settle(pay(amount, subject=name), covers=by_policy(pay(amount), terms))
            return settled if isinstance(settled, Claimed) and settled.ticket_id == grant else None

        for what, value in story:
            if what in ("call", "both"):
                desks = [it, there] if what == "both" else [it]
                taken = await asyncio.gather(*[ask(desk, value) for desk in desks])
                got = [(use, desk) for use, desk in zip(taken, desks, strict=True) if use is not None]
                assert len(got) <= 1
                for use, desk in got:
                    assert open_use is None
                    assert 1 <= value <= 50
                    assert it.clock.now < ends_at
                    assert not revoked
                    assert value not in denied
                    assert value not in unknown
                    open_use = (use, desk, value)
            elif what == "time":
                it.clock.now += value
                await it.desk.sweep()
                if open_use is not None and value > 300:
                    unknown.add(open_use[2])
                    open_use = None
            elif what == "revoke" and not revoked and it.clock.now < ends_at:
                state = (await it.desk.show(BOB, grant))["state"]
                if state == State.APPROVED:
                    await it.desk.act("revoke", BOB, grant)
                    revoked = True
            elif what == "resolve":
                if (await it.desk.show(BOB, grant))["runs"] and unknown:
                    await it.desk.act("resolve", BOB, grant, comment="looked")
                    unknown.clear()
            elif what == "deny":
                held = await it.settle(pay(value, subject=name))
                if isinstance(held, Held) and held.why == "pending":
                    await it.desk.act("deny", BOB, held.ticket.id)
                    denied.add(value)
            elif open_use is not None:
                use, desk, amount = open_use
                open_use = None
                if what == "restore":
                    await desk.desk.restore(use)
                    continue
                try:
                    await desk.desk.sent(use)
                except NotHeld:
                    assert revoked or it.clock.now >= ends_at
                    await desk.desk.restore(use)
                    continue
                assert not revoked
                assert begun <= it.clock.now < ends_at
                sent += 1
                await desk.desk.finish(use, value)
                if value is Run.UNKNOWN:
                    unknown.add(amount)
            assert sent <= uses
