"""The desk: one approval, one exact effect, one use at a time (requirements APR-01, 03, 04, 07, 10, 11, 12)."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import unicodedata
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from approvals.approvers import Person, local_person
from approvals.desk import TooManyTickets
from approvals.ticket import (
    ActInvalid,
    Claimed,
    Held,
    MovedOn,
    NotAllowed,
    NotHeld,
    Run,
    State,
    StoreUnavailable,
    Terms,
    TicketUnknown,
    Unapprovable,
)
from tests.support.approvals import (
    ALICE,
    BOB,
    CAROL,
    ISSUER,
    MALLORY,
    OTHER_ISSUER,
    TERMS,
    Bench,
    bench,
    effect,
    person,
)


@pytest.fixture
async def it(where: Path | str) -> AsyncIterator[Bench]:
    """A desk on a database of its own."""
    async with bench(where, issuers=[ISSUER]) as made:
        yield made


async def test_the_story_of_one_approval(it: Bench) -> None:
    """Held, approved by another person, used once, and then held again: each step is recorded, in order."""
    held = await it.held()
    assert held.why == "pending"
    assert (await it.held()).ticket.id == held.ticket.id
    await it.desk.act("approve", BOB, held.ticket.id, comment="fine")
    use = await it.claimed()
    assert (await it.held()).why == "in_flight"
    await it.desk.sent(use)
    assert (await it.held()).why == "in_flight"
    await it.desk.finish(use, Run.EXECUTED)
    again = await it.held()
    assert again.why == "pending"
    assert again.ticket.id != held.ticket.id
    assert it.journal.verbs == ["request", "approve", "claim", "sent", "executed", "request"]
    shown = await it.desk.show(ALICE, held.ticket.id)
    assert (shown["state"], shown["uses_left"]) == ("used", 0)
    assert [run["state"] for run in shown["runs"]] == ["executed"]
    earlier = (await it.desk.show(BOB, again.ticket.id))["earlier"]
    assert [(one["ticket"], one["state"]) for one in earlier] == [(held.ticket.id, "executed")]


@pytest.mark.parametrize("end", ["used", "expired", "revoked"])
async def test_an_approval_that_is_over_runs_nothing(it: Bench, end: str) -> None:
    """APR-01: after its use, its time or its revocation, the same call waits for a new approval."""
    ticket_id = await it.approved()
    if end == "used":
        use = await it.claimed()
        await it.desk.sent(use)
        await it.desk.finish(use, Run.EXECUTED)
    elif end == "expired":
        it.clock.now += TERMS.ttl_s
    else:
        await it.desk.act("revoke", BOB, ticket_id)
    held = await it.held()
    assert (held.why, held.ticket.state) == ("pending", State.PENDING)
    assert held.ticket.id != ticket_id
    assert (await it.desk.show(BOB, ticket_id))["state"] == end


async def test_an_approval_is_valid_until_its_last_instant(it: Bench) -> None:
    """The positive twin of expiry: just before, it still runs."""
    await it.approved()
    it.clock.now += TERMS.ttl_s - 0.001
    await it.claimed()


async def test_expiry_is_a_denial_of_a_decision_too(it: Bench) -> None:
    """A ticket out of time can't be approved any more, whether or not somebody has written its expiry down."""
    held = await it.held()
    it.clock.now += TERMS.ttl_s
    with pytest.raises(MovedOn, match="expired"):
        await it.desk.act("approve", BOB, held.ticket.id)
    assert (await it.desk.show(BOB, held.ticket.id))["state"] == "expired"
    assert (await it.held()).ticket.id != held.ticket.id


async def test_a_denial_holds_until_the_ticket_expires(it: Bench) -> None:
    """The same call is refused with the same ticket, without a new one, and asks again only after expiry."""
    held = await it.held()
    await it.desk.act("deny", BOB, held.ticket.id, comment="no")
    for _ in range(3):
        again = await it.held()
        assert (again.why, again.ticket.id) == ("denied", held.ticket.id)
    it.clock.now += TERMS.ttl_s
    assert (await it.held()).why == "pending"
    assert it.journal.verbs.count("request") == 2


async def test_a_withdrawn_ticket_can_be_asked_for_again(it: Bench) -> None:
    """The requester, and nobody else, takes a pending ticket back."""
    held = await it.held()
    with pytest.raises(NotAllowed, match="not_your_request"):
        await it.desk.act("withdraw", BOB, held.ticket.id)
    assert (await it.desk.act("withdraw", ALICE, held.ticket.id))["state"] == "withdrawn"
    assert (await it.held()).ticket.id != held.ticket.id


@pytest.mark.parametrize(
    "changes",
    [{"subject": "mallory"}, {"issuer": OTHER_ISSUER}, {"client": "other"}, {"server": "other"}, {"resource": "https://x"},
     {"environment": "staging"}, {"method": "prompts/get"}, {"name": "pay2"}, {"name": "Pay"}, {"name": "pay "}],
)  # fmt: skip
async def test_an_approval_binds_who_where_and_what(it: Bench, changes: dict[str, Any]) -> None:
    """APR-07: another subject, issuer, client, tool, server or environment finds no approval and burns none."""
    await it.approved()
    other = effect(**changes)
    assert (await it.held(other)).why == "pending"
    # Even where a digest had been made that says too little:
    assert (await it.held(dataclasses.replace(other, digest=effect().digest))).why == "pending"
    await it.claimed()


_leaf = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
_arguments = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        _leaf,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)  # fmt: skip


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(first=_arguments, second=_arguments)
def test_other_arguments_are_another_effect(
    tmp_path_factory: pytest.TempPathFactory, first: Any, second: Any
) -> None:
    """APR-03: any other arguments are held, and the approval is not burned; equal ones run (APR-04)."""
    assume(effect(first).digest != effect(second).digest)

    async def story() -> None:
        async with bench(tmp_path_factory.mktemp("apr") / "a.db") as it:
            await it.approved(effect(first))
            assert (await it.held(effect(second))).why == "pending"
            await it.claimed(effect(copy.deepcopy(first)))

    asyncio.run(story())


@pytest.mark.parametrize(
    "changed",
    [
        {"amount": 101, "to": "IBAN"},
        {"amount": "100", "to": "IBAN"},
        {"amount": 100},
        {"amount": 100, "to": "IBAN", "x": None},
        {"amount": 100.5, "to": "IBAN"},
        {"amount": True, "to": "IBAN"},
        {"Amount": 100, "to": "IBAN"},
        {"amount": [100], "to": "IBAN"},
    ],
)
async def test_a_changed_argument_is_held(it: Bench, changed: dict[str, Any]) -> None:
    """APR-03: changed, removed, added, re-typed: held, and the approval is still there for what was approved."""
    await it.approved()
    assert (await it.held(effect(changed))).why == "pending"
    await it.claimed()


async def test_unicode_forms_are_not_folded(it: Bench) -> None:
    """APR-03: NFC and NFD of one word are two texts, and so two effects."""
    await it.approved(effect({"to": unicodedata.normalize("NFC", "é")}))
    assert (await it.held(effect({"to": unicodedata.normalize("NFD", "é")}))).why == "pending"


async def test_another_order_of_members_is_the_same_effect(it: Bench) -> None:
    """APR-04: the digest is of the canonical form."""
    await it.approved(effect({"amount": 100, "to": "IBAN"}))
    await it.claimed(effect({"to": "IBAN", "amount": 100}))


async def test_a_changed_tool_ends_what_was_asked_or_granted_for_it(it: Bench) -> None:
    """APR-10: pending or approved, the old ticket is closed by the gateway itself and a new one opens."""
    pending = await it.held()
    asked = effect(tool_digest="tool-2")
    renewed = await it.held(asked)
    assert renewed.ticket.id != pending.ticket.id
    await it.desk.act("approve", BOB, renewed.ticket.id)
    newest = await it.held(effect(tool_digest="tool-3"))
    assert newest.why == "pending"
    closed = [(one.verb, one.by, one.comment) for one in it.journal.kept if one.verb in ("expire", "revoke")]
    assert closed == [("expire", "ostiary", "tool_changed"), ("revoke", "ostiary", "tool_changed")]
    assert (await it.desk.show(BOB, renewed.ticket.id))["state"] == "revoked"


async def test_nobody_approves_their_own_request(it: Bench) -> None:
    """APR-12: by whatever client, and even where the approvers name them; nor does who acts for them."""
    alice = person("alice", groups=["payers"])
    held = await it.held(claims={"act": {"sub": "bob"}})
    for who in (alice, dataclasses.replace(alice, client="another"), BOB):
        with pytest.raises(NotAllowed, match="own_request"):
            await it.desk.act("approve", who, held.ticket.id)
        with pytest.raises(NotAllowed, match="own_request"):
            await it.desk.act("deny", who, held.ticket.id)
    assert (await it.desk.act("approve", CAROL, held.ticket.id))["state"] == "approved"
    await it.claimed(claims={"act": {"sub": "bob"}})


@pytest.mark.parametrize(
    "who",
    [
        dataclasses.replace(BOB, claims={"act": {"sub": "alice"}}),
        dataclasses.replace(BOB, claims={"act": {"sub": "console", "act": {"sub": "alice"}}}),
        dataclasses.replace(BOB, claims={"act": {"sub": "agent"}}),
        person("agent", groups=["payers"]),
        dataclasses.replace(BOB, client="alice"),
    ],
)
async def test_a_requester_does_not_approve_in_anothers_name(it: Bench, who: Person) -> None:
    """APR-12: a token of Bob's that Alice or her program holds is hers; so is her program's own token."""
    held = await it.held()
    for verb in ("approve", "deny"):
        with pytest.raises(NotAllowed, match="own_request"):
            await it.desk.act(verb, who, held.ticket.id)
    for fine in ({}, {"act": {"sub": "console"}}, {"act": {"sub": "alice", "iss": OTHER_ISSUER}}):
        again = await it.held(effect({"n": len(str(fine))}))
        await it.desk.act("approve", dataclasses.replace(BOB, claims=fine, client="agent"), again.ticket.id)
        await it.claimed(effect({"n": len(str(fine))}))


async def test_an_approval_in_whose_name_a_requester_acted_is_worth_nothing_at_the_call(it: Bench) -> None:
    """Who acted for the approver is kept with the approval, and compared with who asks then."""
    await it.approved(by=dataclasses.replace(BOB, claims={"act": {"sub": "console"}}))
    assert (await it.held(claims={"act": {"sub": "console"}})).why == "pending"


async def test_nobody_fills_a_quorum_in_anothers_name(it: Bench) -> None:
    """Carol, and Carol acting for Bob, are one person; Bob and Carol at the same console are two."""
    terms = dataclasses.replace(TERMS, min_approvers=2)
    for actor, state in (("carol", "pending"), ("console", "approved")):
        asked = effect({"actor": actor})
        held = await it.held(asked, terms=terms)
        await it.desk.act("approve", CAROL, held.ticket.id)
        for_bob = dataclasses.replace(BOB, claims={"act": {"sub": actor}})
        assert (await it.desk.act("approve", for_bob, held.ticket.id))["state"] == state


async def test_an_actor_that_comes_later_is_a_party_too(it: Bench) -> None:
    """An approval by whoever now acts for the requester is worth nothing at the call."""
    await it.approved(by=BOB)
    assert (await it.held(claims={"act": {"sub": "bob"}})).why == "pending"


@pytest.mark.parametrize(
    "terms",
    [
        dataclasses.replace(TERMS, approvers=("group:treasurers",)),
        dataclasses.replace(TERMS, approvers=("user:carol",)),
        dataclasses.replace(TERMS, min_approvers=2),
        dataclasses.replace(TERMS, ttl_s=10),
    ],
)
async def test_an_approval_counts_only_by_todays_terms(it: Bench, terms: Terms) -> None:
    """APR-12: who would no longer do, too few, too old: not consumed, revoked by the gateway, asked again."""
    ticket_id = await it.approved()
    it.clock.now += 11
    held = await it.held(terms=terms)
    assert held.why == "pending"
    assert held.ticket.id != ticket_id
    assert (await it.desk.show(ALICE, ticket_id))["state"] == "revoked"
    assert it.journal.verbs[-2:] == ["revoke", "request"]


async def test_todays_terms_may_be_wider(it: Bench) -> None:
    """The positive twin: another approver beside the one who approved changes nothing."""
    await it.approved()
    await it.claimed(terms=dataclasses.replace(TERMS, approvers=("group:payers", "user:dave")))


async def test_a_pending_ticket_under_other_terms_is_replaced(it: Bench) -> None:
    """People never approve under terms, or behind a mask, that the policy no longer has."""
    held = await it.held()
    for more in ({"terms": dataclasses.replace(TERMS, approvers=("user:carol",))}, {"mask": ("/to",)}):
        again = await it.held(**more)
        assert again.ticket.id != held.ticket.id
        held = again
    assert (await it.held(mask=("/to",))).ticket.id == held.ticket.id


async def test_a_quorum_needs_that_many_people(it: Bench) -> None:
    """One person twice is one person; the second one makes it approved."""
    terms = dataclasses.replace(TERMS, min_approvers=2)
    held = await it.held(terms=terms)
    assert (await it.desk.act("approve", BOB, held.ticket.id))["state"] == "pending"
    with pytest.raises(MovedOn, match="already_approved"):
        await it.desk.act("approve", dataclasses.replace(BOB, client="x"), held.ticket.id)
    assert (await it.held(terms=terms)).why == "pending"
    assert (await it.desk.act("approve", CAROL, held.ticket.id))["state"] == "approved"
    await it.claimed(terms=terms)


@pytest.mark.parametrize(
    "terms",
    [
        Terms(),
        Terms(approvers=("nobody",)),
        Terms(approvers=("user:alice",)),
        Terms(approvers=(f"user:{OTHER_ISSUER}|bob",)),
        Terms(approvers=("user:bob",), min_approvers=0),
    ],
)
async def test_what_nobody_could_approve_is_refused_without_a_ticket(it: Bench, terms: Terms) -> None:
    """A stage without approvers approves nothing; the reason goes to the record, and the store stays empty."""
    held = await it.held(terms=terms)
    assert held.why == "unapprovable"
    assert held.detail
    assert it.desk.describe(held.ticket) == {}
    assert it.journal.verbs == []
    with pytest.raises(Unapprovable):
        await it.desk.request(ALICE, effect(), terms, reasons=(), mask=())


async def test_an_unknown_use_is_resolved_after_its_tickets_time_as_well(it: Bench) -> None:
    """A ticket with a use left, its time over and not yet swept: its unknown use is still a person's to set aside."""
    ticket_id = await it.approved(terms=replace(TERMS, uses=2))
    use = await it.claimed()
    await it.desk.sent(use)
    await it.desk.finish(use, Run.UNKNOWN)
    it.clock.now += TERMS.ttl_s + 1
    shown = await it.desk.act("resolve", BOB, ticket_id, comment="the bank says it ran")
    assert (shown["state"], shown["runs"][0]["resolved"]) == ("expired", True)
    assert (await it.held()).why == "pending"


@pytest.mark.parametrize("end", ["unknown", "lapsed", "crashed"])
async def test_an_unknown_outcome_blocks_the_effect_until_a_person_looked(it: Bench, end: str) -> None:
    """`unknown` is never retried and opens no ticket; a person resolves it with a note; the outcome stays unknown."""
    ticket_id = await it.approved()
    use = await it.claimed()
    await it.desk.sent(use)
    if end == "unknown":
        await it.desk.finish(use, Run.UNKNOWN)
    elif end == "lapsed":
        it.clock.now += 301
    else:
        again = Bench(it.store, clock=it.clock, owner="ostiary")
        assert await again.desk.reconcile("ostiary") == 1
    for _ in range(2):
        held = await it.held()
        assert (held.why, held.ticket.id) == ("unknown", ticket_id)
    with pytest.raises(ActInvalid, match="comment_required"):
        await it.desk.act("resolve", BOB, ticket_id)
    with pytest.raises(NotAllowed):
        await it.desk.act("resolve", ALICE, ticket_id, comment="it did run")
    shown = await it.desk.act("resolve", BOB, ticket_id, comment="the bank says it ran")
    assert shown["runs"][0]["state"] == "unknown"
    assert shown["runs"][0]["resolved"] is True
    assert (await it.held()).why == "pending"
    with pytest.raises(MovedOn):
        await it.desk.act("resolve", BOB, ticket_id, comment="again")


async def test_a_lapsed_use_may_not_be_sent(it: Bench) -> None:
    """Who lost the lease is told before a byte leaves."""
    await it.approved()
    use = await it.claimed()
    it.clock.now += 301
    assert (await it.held()).why == "unknown"
    with pytest.raises(NotHeld):
        await it.desk.sent(use)


async def test_a_lease_is_extended_while_the_call_runs(it: Bench) -> None:
    """`renew` holds what this desk holds open, and nothing else."""
    await it.approved()
    use = await it.claimed()
    await it.desk.sent(use)
    for _ in range(4):
        it.clock.now += 200
        await it.desk.renew()
    assert (await it.held()).why == "in_flight"
    await it.desk.finish(use, Run.EXECUTED)
    it.clock.now += 400
    await it.desk.renew()
    assert await it.desk.sweep() == 0


async def test_who_holds_a_lapsed_use_may_still_say_how_it_ended(it: Bench) -> None:
    """A late fact replaces `unknown`, unless a person has resolved it meanwhile."""
    await it.approved()
    use = await it.claimed()
    await it.desk.sent(use)
    it.clock.now += 301
    assert await it.desk.sweep() == 1
    await it.desk.finish(use, Run.EXECUTED)
    assert (await it.held()).why == "pending"


async def test_a_use_is_given_back_once_and_only_by_its_holder(it: Bench) -> None:
    """`restore` makes the approval whole again; twice, late, or by another worker it does nothing."""
    await it.approved()
    use = await it.claimed()
    other = Bench(it.store, clock=it.clock, owner="other")
    await other.desk.restore(use)
    assert (await it.held()).why == "in_flight"
    await it.desk.restore(use)
    await it.desk.restore(use)
    second = await it.claimed()
    assert second.use_id != use.use_id
    await it.desk.sent(second)
    await it.desk.finish(second, Run.EXECUTED)
    await it.desk.restore(second)
    await it.desk.restore(use)
    assert (await it.held()).why == "pending"
    assert it.journal.verbs.count("restore") == 1


async def test_a_revoked_approval_is_not_revived_by_a_use_that_comes_back(it: Bench) -> None:
    """Revoked in flight stays revoked: what is restored belongs to a ticket that grants nothing."""
    ticket_id = await it.approved()
    use = await it.claimed()
    assert (await it.desk.act("revoke", BOB, ticket_id))["state"] == "revoked"
    await it.desk.restore(use)
    assert (await it.held()).ticket.id != ticket_id
    assert (await it.desk.show(BOB, ticket_id))["state"] == "revoked"


@pytest.mark.parametrize("end", ["revoke", "expire"])
async def test_what_was_taken_back_before_it_was_sent_is_not_sent(it: Bench, end: str) -> None:
    """APR-01: once a revocation was answered nothing leaves any more; what had left before runs to its end."""
    terms = dataclasses.replace(TERMS, uses=2)
    ticket_id = await it.approved(terms=terms)
    use = await it.claimed(terms=terms)
    await it.desk.sent(use)
    await it.desk.finish(use, Run.EXECUTED)
    use = await it.claimed(terms=terms)
    if end == "revoke":
        await it.desk.act("revoke", BOB, ticket_id)
    else:
        it.clock.now += TERMS.ttl_s
    with pytest.raises(NotHeld, match="not held"):
        await it.desk.sent(use)
    await it.desk.restore(use)
    assert (await it.held(terms=terms)).ticket.id != ticket_id
    assert it.journal.verbs.count("sent") == 1


async def test_several_uses_run_one_at_a_time(it: Bench) -> None:
    """An approval for three calls runs three, never two at once, never a fourth."""
    terms = dataclasses.replace(TERMS, uses=3)
    await it.approved(terms=terms)
    for _ in range(3):
        use = await it.claimed(terms=terms)
        assert (await it.held(terms=terms)).why == "in_flight"
        await it.desk.sent(use)
        await it.desk.finish(use, Run.FAILED)
    assert (await it.held(terms=terms)).why == "pending"


async def test_fewer_uses_by_todays_terms(it: Bench) -> None:
    """A policy that allows fewer uses now takes back those that are left."""
    terms = dataclasses.replace(TERMS, uses=3)
    await it.approved(terms=terms)
    use = await it.claimed(terms=terms)
    await it.desk.sent(use)
    await it.desk.finish(use, Run.EXECUTED)
    assert (await it.held()).why == "pending"


async def test_parallel_calls_open_one_ticket_and_use_one_approval(it: Bench) -> None:
    """However many ask at once: one pending ticket, one use."""
    settled = await asyncio.gather(*(it.settle() for _ in range(40)))
    assert len({one.ticket.id for one in settled if isinstance(one, Held)}) == 1
    assert it.journal.verbs == ["request"]
    held = settled[0]
    assert isinstance(held, Held)
    await it.desk.act("approve", BOB, held.ticket.id)
    settled = await asyncio.gather(*(it.settle() for _ in range(40)))
    assert sum(isinstance(one, Claimed) for one in settled) == 1
    assert {one.why for one in settled if isinstance(one, Held)} == {"in_flight"}


async def test_calls_that_share_a_look_are_answered_from_after_they_asked(it: Bench) -> None:
    """A look that began before somebody asked does not answer them: an approval is seen by the very next call."""
    held = await it.held()
    for _ in range(10):
        asking = [asyncio.create_task(it.settle()) for _ in range(5)]
        await asyncio.sleep(0)
        await it.desk.act("approve", BOB, held.ticket.id)
        settled = [await it.settle(), *await asyncio.gather(*asking)]
        uses = [one for one in settled if isinstance(one, Claimed)]
        assert len(uses) == 1
        await it.desk.sent(uses[0])
        await it.desk.finish(uses[0], Run.EXECUTED)
        held = await it.held()
    assert not it.desk._claiming
    assert not it.desk._looks._running
    assert not it.desk._looks._waiting


async def test_tickets_per_hour_are_limited_per_requester(where: Path | str) -> None:
    """The limit counts one requester's new tickets over any client, and lets others, repeats and later ones pass."""
    async with bench(where, tickets_per_hour=3) as it:
        for amount in range(3):
            await it.held(effect({"amount": amount}, client=f"client-{amount}"))
        with pytest.raises(TooManyTickets) as caught:
            await it.settle(effect({"amount": 3}))
        assert caught.value.retry_after_s > 0
        assert (await it.held(effect({"amount": 0}, client="client-0"))).why == "pending"
        assert (await it.held(effect({"amount": 3}, subject="carol"))).why == "pending"
        it.clock.now += 3601
        assert (await it.held(effect({"amount": 3}))).why == "pending"


async def test_a_foreign_ticket_is_like_none(it: Bench) -> None:
    """APR-11: absent, foreign, cut, extended, changed in any character: one answer, for looking and for acting."""
    held = await it.held()
    ticket_id = held.ticket.id
    assert await it.desk.show(ALICE, ticket_id)
    assert await it.desk.show(BOB, ticket_id)
    flipped = [
        ticket_id[:at] + ("A" if one != "A" else "B") + ticket_id[at + 1 :] for at, one in enumerate(ticket_id)
    ]
    forged = [
        *flipped,
        ticket_id[:-1],
        ticket_id + "A",
        ticket_id + "=",
        ticket_id.swapcase(),
        "",
        "%",
        "' OR 1=1 --",
        "\0",
        "x" * 9999,
    ]
    for who, ids in ((BOB, forged), (MALLORY, [ticket_id, *forged])):
        for one in ids:
            with pytest.raises(TicketUnknown) as caught:
                await it.desk.show(who, one)
            assert caught.value.args == ()
    for verb in ("approve", "deny", "revoke", "withdraw", "resolve"):
        with pytest.raises(TicketUnknown):
            await it.desk.act(verb, MALLORY, ticket_id, comment="x")
    assert (await it.desk.page(MALLORY)) == ([], None)


async def test_scopes_are_needed_and_named(it: Bench) -> None:
    """Each act needs its scope, whoever one is."""
    held = await it.held()
    bare = dataclasses.replace(BOB, scopes=frozenset())
    for asking, scope in (
        (it.desk.show(bare, held.ticket.id), "approvals:read"),
        (it.desk.page(bare), "approvals:read"),
        (it.desk.act("approve", bare, held.ticket.id), "approvals:decide"),
        (it.desk.act("withdraw", bare, held.ticket.id), "approvals:request"),
        (it.desk.request(bare, effect(), TERMS, reasons=(), mask=()), "approvals:request"),
    ):
        with pytest.raises(NotAllowed) as caught:
            await asking
        assert caught.value.scopes == (scope,)


async def test_what_was_seen_must_be_what_stands(it: Bench) -> None:
    """A decision on a view that moved on changes nothing; one on the current view counts, with its digest."""
    terms = dataclasses.replace(TERMS, min_approvers=2)
    held = await it.held(terms=terms)
    seen = (await it.desk.show(BOB, held.ticket.id))["digest"]
    assert (await it.desk.page(CAROL))[0][0]["digest"] == seen
    await it.desk.act("approve", BOB, held.ticket.id, seen=seen)
    assert it.journal.kept[-1].seen == seen
    for stale in (seen, seen[:-1], "x", seen.upper()):
        with pytest.raises(MovedOn, match="stale"):
            await it.desk.act("approve", CAROL, held.ticket.id, seen=stale)
    now = (await it.desk.show(CAROL, held.ticket.id))["digest"]
    assert (await it.desk.act("approve", CAROL, held.ticket.id, seen=now))["state"] == "approved"


async def test_masked_values_are_shown_to_nobody(it: Bench) -> None:
    """Requester, approver and administrator see `[masked]`; what runs is still bound to the value itself."""
    asked = effect({"amount": 1, "pin": "secret-canary"})
    held = await it.held(asked, mask=("/pin",))
    views = [await it.desk.show(who, held.ticket.id) for who in (ALICE, BOB, local_person(0, "host"))]
    views += (await it.desk.page(ALICE))[0]
    views.append(await it.desk.act("approve", BOB, held.ticket.id))
    for view in views:
        assert view["arguments"] == {"amount": 1, "pin": "[masked]"}
        assert view["masked"] == ["/pin"]
        assert "secret-canary" not in str(view)
    assert (await it.held(effect({"amount": 1, "pin": "[masked]"}), mask=("/pin",))).why == "pending"
    await it.claimed(asked, mask=("/pin",))


async def test_a_local_administrator_narrows_and_approves_only_where_allowed(it: Bench) -> None:
    """Look, deny and revoke; approving is a setting, one voice of a quorum, void where the setting is taken back."""
    root = local_person(0, "host")
    held = await it.held()
    for verb in ("approve", "withdraw", "resolve"):
        with pytest.raises(NotAllowed):
            await it.desk.act(verb, root, held.ticket.id, comment="x")
    allowed = Bench(it.store, clock=it.clock, local_approve=True)
    assert (await allowed.desk.act("approve", root, held.ticket.id))["decisions"][0]["by"] == "local:0@host"
    assert (await it.held()).why == "pending"  # revoked by a desk that has it off, and asked again
    second = (await allowed.held()).ticket.id
    await allowed.desk.act("approve", root, second)
    await allowed.claimed()


async def test_lists_are_paged_newest_first(it: Bench) -> None:
    """Each ticket once, in order, over any size of page; foreign ones never; a made-up cursor is refused."""
    ids = []
    for amount in range(7):
        it.clock.now += 1
        ids.append((await it.held(effect({"amount": amount}))).ticket.id)
    await it.held(effect(subject="mallory"), terms=dataclasses.replace(TERMS, approvers=("user:carol",)))
    for limit in (1, 3, 100):
        seen: list[str] = []
        cursor = None
        while True:
            tickets, cursor = await it.desk.page(BOB, cursor=cursor, limit=limit)
            seen += [ticket["id"] for ticket in tickets]
            if cursor is None:
                break
        assert seen == ids[::-1]
    for forged in ("", "x", "AAAA", "=" * 10, "A" * 43, "\u00e9"):
        with pytest.raises(ActInvalid):
            await it.desk.page(BOB, cursor=forged)


async def test_lists_filter_by_the_state_that_stands(it: Bench) -> None:
    """Expiry counts in lists before anybody wrote it down."""
    await it.held()
    assert len((await it.desk.page(BOB, state=State.PENDING))[0]) == 1
    it.clock.now += TERMS.ttl_s
    assert (await it.desk.page(BOB, state=State.PENDING))[0] == []
    assert [one["state"] for one in (await it.desk.page(BOB, state=State.EXPIRED))[0]] == ["expired"]
    assert await it.desk.sweep() == 1
    assert it.journal.verbs[-1] == "expire"
    assert [one["state"] for one in (await it.desk.page(BOB, state=State.EXPIRED))[0]] == ["expired"]


async def test_a_page_is_bounded_in_bytes(it: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large arguments make a page shorter, never empty, and nothing is left out of the whole."""
    monkeypatch.setattr("approvals.counter.PAGE_BYTES", 5000)
    for amount in range(4):
        it.clock.now += 1
        await it.held(effect({"amount": amount, "text": "x" * 3000}))
    sizes, cursor = [], None
    while True:
        tickets, cursor = await it.desk.page(BOB, cursor=cursor)
        sizes.append(len(tickets))
        if cursor is None:
            break
    assert sizes == [1, 1, 1, 1]


async def test_asking_ahead_of_the_call(it: Bench) -> None:
    """A request opens the ticket that the call then finds; again, it attaches; for somebody else, it is refused."""
    ticket, opened = await it.desk.request(ALICE, effect(), TERMS, reasons=("r",), mask=(), justification="rent")
    assert (opened, ticket["justification"]) == (True, "rent")
    same, opened = await it.desk.request(ALICE, effect(), TERMS, reasons=("r",), mask=())
    assert (same["id"], opened) == (ticket["id"], False)
    await it.desk.act("approve", BOB, ticket["id"])
    granted, _ = await it.desk.request(ALICE, effect(), TERMS, reasons=("r",), mask=())
    assert (granted["id"], granted["state"]) == (ticket["id"], "approved")
    assert isinstance(await it.settle(), Claimed)
    with pytest.raises(MovedOn, match="in_flight"):
        await it.desk.request(ALICE, effect(), TERMS, reasons=("r",), mask=())
    with pytest.raises(NotAllowed, match="not_your_request"):
        await it.desk.request(MALLORY, effect(), TERMS, reasons=(), mask=())


class AuditDown(Exception):  # noqa: N818 - like the house's AuditUnavailable
    """The house's own word."""


@pytest.mark.parametrize("verb", ["approve", "deny", "revoke", "withdraw"])
async def test_an_act_without_its_record_does_not_count(it: Bench, verb: str) -> None:
    """The record is durable before the commit: where it fails the act fails with it, and nothing has changed."""
    ticket_id = (await it.held()).ticket.id if verb != "revoke" else await it.approved()
    who = ALICE if verb == "withdraw" else BOB
    before = await it.desk.show(BOB, ticket_id)
    it.journal.broken = AuditDown()
    with pytest.raises(AuditDown):
        await it.desk.act(verb, who, ticket_id)
    assert await it.desk.show(BOB, ticket_id) == before
    it.journal.broken = None
    assert (await it.desk.act(verb, who, ticket_id))["state"] != before["state"]


async def test_a_ticket_without_its_record_is_not_opened(it: Bench) -> None:
    """The same holds for the ticket itself."""
    it.journal.broken = AuditDown()
    with pytest.raises(AuditDown):
        await it.settle()
    assert (await it.desk.page(ALICE))[0] == []


async def test_a_claim_without_its_record_runs_nothing_and_grants_nothing_back(it: Bench) -> None:
    """The use is gone, its outcome is known (nothing was sent), and the next call needs a new approval."""
    ticket_id = await it.approved()
    it.journal.broken = AuditDown()
    with pytest.raises(AuditDown):
        await it.settle()
    it.journal.broken = None
    shown = await it.desk.show(BOB, ticket_id)
    assert (shown["state"], shown["runs"][0]["state"]) == ("used", "failed")
    assert (await it.held()).why == "pending"


async def test_a_restore_without_its_record_grants_nothing(it: Bench) -> None:
    """Fail closed: the use ends as `failed` instead."""
    await it.approved()
    use = await it.claimed()
    it.journal.broken = AuditDown()
    await it.desk.restore(use)
    it.journal.broken = None
    assert (await it.held()).why == "pending"


async def test_a_journal_that_hangs_ends_the_act(it: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that does not come in time is no record."""
    held = await it.held()
    monkeypatch.setattr("approvals.counter.JOURNAL_S", 0.2)

    async def hang(_: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(it.desk, "_journal", hang)
    with pytest.raises(StoreUnavailable):
        await it.desk.act("approve", BOB, held.ticket.id)
    assert (await it.desk.show(BOB, held.ticket.id))["state"] == "pending"


@pytest.mark.parametrize("step", ["look", "move"])
async def test_a_caller_who_goes_away_leaves_nothing_half_done(
    it: Bench, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled call either claimed its use wholly (and holds it until the lease lapses) or not at all."""
    await it.approved()
    way = getattr(it.store, step)

    async def gone_meanwhile(work: Any) -> Any:
        monkeypatch.undo()
        task.cancel()
        return await way(work)

    monkeypatch.setattr(it.store, step, gone_meanwhile)
    task = asyncio.create_task(it.settle())
    with pytest.raises(asyncio.CancelledError):
        await task
    settled = await it.settle()
    assert getattr(settled, "why", "") == ("" if step == "look" else "in_flight")
