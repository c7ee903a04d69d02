"""What a decision rests on: one look with everything in it, the queue's lines, and what the requester may add."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.dialects import sqlite

from approvals.desk import Terms
from approvals.ledger import Ledger
from approvals.printing import sheet
from approvals.sieve import Sieve, Whose, last_approved
from approvals.ticket import ActInvalid, MovedOn, NotAllowed, State, TicketUnknown
from tests.support.approvals import ALICE, BOB, CAROL, MALLORY, TERMS, Bench, bench, effect, person

QUORUM = replace(TERMS, min_approvers=2)


@pytest.fixture
async def it(where: Path | str) -> AsyncIterator[Bench]:
    """A desk on a fresh store."""
    async with bench(where) as made:
        yield made


async def test_a_look_says_what_this_person_can_do_and_why_not_the_rest(it: Bench) -> None:
    """An approver may approve and deny, the requester withdraw and justify; every other verb names its bar."""
    ticket_id = (await it.held()).ticket.id
    bobs, alices = await it.desk.look(BOB, ticket_id), await it.desk.look(ALICE, ticket_id)
    assert not bobs.is_own
    assert alices.is_own
    assert dict(bobs.barred) == {
        "revoke": "pending",
        "withdraw": "not_your_request",
        "justify": "not_your_request",
        "resolve": "nothing_unknown",
    }
    assert dict(alices.barred) == {
        "approve": "own_request",
        "deny": "own_request",
        "revoke": "pending",
        "resolve": "own_request",
    }
    reader = replace(BOB, scopes=frozenset({"approvals:read"}))
    assert {(await it.desk.look(reader, ticket_id)).barred[verb] for verb in ("approve", "deny")} == {
        "insufficient_scope"
    }
    with pytest.raises(TicketUnknown):
        await it.desk.look(MALLORY, ticket_id)
    with pytest.raises(NotAllowed):
        await it.desk.look(replace(BOB, scopes=frozenset()), ticket_id)


@pytest.mark.parametrize("verb", ["approve", "deny", "withdraw", "justify"])
async def test_what_a_look_allows_is_what_an_act_does(it: Bench, verb: str) -> None:
    """`barred` and `act` are one rule: what is not barred works, what is barred is refused by that name."""
    ticket_id = (await it.held()).ticket.id
    for who in (ALICE, BOB):
        why = (await it.desk.look(who, ticket_id)).barred.get(verb)
        if why is None:
            await it.desk.act(verb, who, ticket_id, comment="because")
        else:
            with pytest.raises((NotAllowed, MovedOn)) as caught:
                await it.desk.act(verb, who, ticket_id, comment="because")
            assert str(caught.value) == why


async def test_the_quorum_is_counted_as_the_claim_counts_it(it: Bench) -> None:
    """`agreed` grows with each approval that counts; whoever approved already is told so."""
    ticket_id = (await it.held(terms=QUORUM)).ticket.id
    assert (await it.desk.look(BOB, ticket_id)).agreed == 0
    await it.desk.act("approve", BOB, ticket_id)
    seen = await it.desk.look(BOB, ticket_id)
    assert (seen.agreed, seen.ticket["state"], seen.barred["approve"]) == (1, "pending", "already_approved")
    assert "approve" not in (await it.desk.look(CAROL, ticket_id)).barred
    lines, _ = await it.desk.queue(CAROL, Sieve(State.PENDING))
    assert [(one["agreed"], one["min_approvers"]) for one in lines] == [(1, 2)]


async def test_the_comparison_is_with_the_last_approval_of_the_same_tool_target_and_environment(it: Bench) -> None:
    """By when it was approved, whoever asked; not with what was denied, nor with another tool, server or stage."""
    first = (await it.held(effect({"amount": 1}))).ticket.id
    it.clock.now += 1
    second = (await it.held(effect({"amount": 2}, subject="zoe"))).ticket.id
    it.clock.now += 1
    await it.desk.act("approve", BOB, second)
    it.clock.now += 1
    await it.desk.act("approve", BOB, first)
    for change in ({"server": "other"}, {"environment": "test"}, {"name": "refund"}, {"resource": "https://x/mcp"}):
        it.clock.now += 1
        await it.approved(effect({"amount": 3}, **change))
    denied = (await it.held(effect({"amount": 4}))).ticket.id
    await it.desk.act("deny", BOB, denied)
    asked = (await it.held(effect({"amount": 5}))).ticket.id
    before = (await it.desk.look(BOB, asked)).before
    assert before is not None
    assert (before["id"], before["arguments"]) == (first, {"amount": 1})
    await it.claimed(effect({"amount": 1}))  # in use or used, it was approved
    assert (await it.desk.look(BOB, asked)).before is not None
    alone = (await it.held(effect({"amount": 6}, name="lonely"))).ticket.id
    assert (await it.desk.look(BOB, alone)).before is None


async def test_a_comparison_tells_nothing_that_its_reader_may_not_read(it: Bench) -> None:
    """Tickets of others than the reader's, or for other approvers, are not compared with; both masks count."""
    await it.approved(effect({"amount": 1, "pin": "canary", "note": "x"}), mask=("/pin",))
    asked = (await it.held(effect({"amount": 2, "pin": "other", "note": "y"}), mask=("/note",))).ticket.id
    before = (await it.desk.look(BOB, asked)).before
    assert before is not None
    assert before["arguments"] == {"amount": 1, "pin": "[masked]", "note": "[masked]"}
    zoe = person("zoe")
    hers = (await it.held(effect({"amount": 3}, subject="zoe"))).ticket.id
    assert (await it.desk.look(BOB, hers)).before is not None
    assert (await it.desk.look(zoe, hers)).before is None


async def test_a_long_history_is_not_read_for_a_comparison(tmp_path: Path) -> None:
    """The server's latest approvals are found by their index, newest first; no ticket is sorted or scanned."""
    async with bench(tmp_path / "approvals.db") as it:
        asked = (await it.held()).ticket
        query = last_approved(asked, BOB).compile(
            dialect=sqlite.dialect(paramstyle="named"), compile_kwargs={"render_postcompile": True}
        )

        async def explain(ledger: Ledger) -> list[str]:
            found = await ledger.connection.execute(text(f"EXPLAIN QUERY PLAN {query}"), query.params)
            return [str(row["detail"]) for row in found.mappings()]

        plan = await it.store.read(explain)
        assert any("tickets USING INDEX tickets_approved (server=?)" in step for step in plan), plan
        assert not any(step.startswith("SCAN tickets") for step in plan), plan


async def test_the_queue_is_narrowed_and_never_widened(it: Bench) -> None:
    """Server, tool, requester, age, state and whose leave out; nothing adds what its reader may not read."""
    mine = (await it.held(effect(server="bank"))).ticket.id
    it.clock.now += 100
    other = (await it.held(effect(server="mail", name="send", subject="zoe"))).ticket.id
    hidden = Terms(uses=1, ttl_s=3600, approvers=("group:others",), min_approvers=1)
    await it.held(effect(server="bank", subject="zoe"), terms=hidden)

    async def ids(sieve: Sieve, who: object = BOB) -> list[str]:
        lines, _ = await it.desk.queue(BOB if who is BOB else ALICE, sieve)
        return [one["id"] for one in lines]

    assert await ids(Sieve()) == [other, mine]
    assert await ids(Sieve(server="bank")) == [mine]
    assert await ids(Sieve(name="send")) == [other]
    assert await ids(Sieve(requester="alice")) == [mine]
    assert await ids(Sieve(requester="' OR 1=1 --")) == []
    assert await ids(Sieve(after=it.clock.now - 50)) == [other]
    assert await ids(Sieve(until=it.clock.now - 50)) == [mine]
    assert await ids(Sieve(State.DENIED)) == []
    assert await ids(Sieve(whose=Whose.OWN)) == []
    assert await ids(Sieve(whose=Whose.OWN), ALICE) == [mine]
    assert await ids(Sieve(whose=Whose.OTHERS), ALICE) == []
    lines, following = await it.desk.queue(BOB, Sieve(), limit=1)
    assert [one["id"] for one in lines] == [other]
    lines, last = await it.desk.queue(BOB, Sieve(), limit=1, cursor=following)
    assert ([one["id"] for one in lines], last) == ([mine], None)
    assert "arguments" not in lines[0]


async def test_a_requester_adds_to_the_justification_and_takes_nothing_back(it: Bench) -> None:
    """Each addition stands below the first word, moves the digest and is recorded; theirs alone, while it waits."""
    ticket_id = (await it.held(justification="invoice 1041")).ticket.id
    before = await it.desk.show(BOB, ticket_id)
    after = await it.desk.act("justify", ALICE, ticket_id, comment="it is due today")
    assert after["justification"] == "invoice 1041\n\nit is due today"
    assert after["state"] == "pending"
    assert it.journal.verbs == ["request", "justify"]
    with pytest.raises(MovedOn, match="stale"):
        await it.desk.act("approve", BOB, ticket_id, seen=before["digest"])
    with pytest.raises(ActInvalid, match="comment_required"):
        await it.desk.act("justify", ALICE, ticket_id, comment=" ")
    with pytest.raises(NotAllowed, match="not_your_request"):
        await it.desk.act("justify", BOB, ticket_id, comment="me too")
    for number in range(9):
        await it.desk.act("justify", ALICE, ticket_id, comment=str(number))
    with pytest.raises(MovedOn, match="said_enough"):
        await it.desk.act("justify", ALICE, ticket_id, comment="once more")
    await it.desk.act("approve", BOB, ticket_id)
    with pytest.raises(MovedOn, match="approved"):
        await it.desk.act("justify", ALICE, ticket_id, comment="late")


async def test_what_the_server_said_of_its_tool_is_shown_and_covered_by_the_digest(it: Bench) -> None:
    """Description and annotations as they were listed when the call was asked for; sealed like the arguments."""
    asked = replace(effect(), tool={"title": "Pay", "description": "Moves money.", "annotations": {"x": True}})
    ticket_id = (await it.held(asked)).ticket.id
    shown = await it.desk.show(BOB, ticket_id)
    assert shown["tool"] == asked.tool
    again = await it.desk.act("approve", BOB, ticket_id, seen=shown["digest"])
    assert again["state"] == "approved"
    await it.claimed(effect())  # the digest of the definition decides about a use, not this text


@pytest.mark.parametrize("verb", ["approve", "deny", "revoke"])
async def test_an_act_without_the_right_to_read_tells_nothing_of_the_ticket(it: Bench, verb: str) -> None:
    """Its answer is the id, the state and what was done; with that right it is the whole ticket."""
    blind = replace(BOB, scopes=frozenset({"approvals:decide"}))
    amounts = (1, 2)
    for who, amount in zip((BOB, blind), amounts, strict=True):
        asked = effect({"amount": amount, "iban": "canary"})
        ticket_id = await it.approved(asked) if verb == "revoke" else (await it.held(asked)).ticket.id
        told = await it.desk.act(verb, who, ticket_id)
        state = {"approve": "approved", "deny": "denied", "revoke": "revoked"}[verb]
        assert (told["id"], told["state"]) == (ticket_id, state)
        if who is blind:
            assert told == {"id": ticket_id, "state": state, "done": verb}
            assert sheet(told).splitlines() == [
                f"id         {ticket_id}",
                f"state      {state}",
                f"done       {verb}",
            ]
        else:
            assert told["arguments"] == {"amount": 1, "iban": "canary"}
