"""The desk, leg by leg: a use that waits for an answer is continued once, by its ticket's rules of that moment."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from approvals.approvers import LOCAL, Person, local_person
from approvals.ticket import Asked, Claimed, Held, MovedOn, NotAllowed, NotHeld, Origin, Run, StoreUnavailable, Terms
from tests.support.approvals import ALICE, BOB, ISSUER, TERMS, Bench, bench, effect


@pytest.fixture
async def it(where: Path | str) -> AsyncIterator[Bench]:
    """A desk on a database of its own."""
    async with bench(where, issuers=[ISSUER]) as made:
        yield made


async def waiting(it: Bench, terms: Terms = TERMS) -> Claimed:
    """An approved call whose server asked for input -> its use, at the leg that waits."""
    await it.approved(terms=terms)
    return await ask(it, await it.claimed(terms=terms))


async def ask(it: Bench, use: Claimed) -> Claimed:
    """The server asks -> the use at its next leg."""
    await it.desk.sent(use)
    await it.desk.finish(use, Run.WAITING)
    return replace(use, leg=use.leg + 1, answers=None)


async def go_on(it: Bench, use: Claimed, terms: Terms | None = TERMS, asked: Asked | None = None) -> Claimed | str:
    """The use that goes on, or why it does not."""
    settled = await it.desk.go_on(effect() if asked is None else asked, Origin(use, terms), claims={})
    return settled.why if isinstance(settled, Held) else settled


async def shown(it: Bench, use: Claimed, who: Person = BOB) -> tuple[str, list[str]]:
    """A ticket's state, and its runs."""
    ticket = await it.desk.show(who, use.ticket_id)
    return ticket["state"], [run["state"] for run in ticket["runs"]]


async def test_the_story_of_a_call_that_is_asked_twice(it: Bench) -> None:
    """Each leg has its number in the record; the last one makes the ticket `used`."""
    use = await waiting(it)
    assert (await it.held()).why == "waiting"
    for _ in range(2):
        gone_on = await go_on(it, use)
        assert isinstance(gone_on, Claimed)
        assert (gone_on.use_id, gone_on.leg) == (use.use_id, use.leg)
        assert gone_on.expires_at == it.clock.now + TERMS.ttl_s
        assert (await it.held()).why == "in_flight"
        last, use = gone_on, await ask(it, gone_on)
    last = await go_on(it, use)  # type: ignore[assignment]
    await it.desk.sent(last)
    await it.desk.finish(last, Run.EXECUTED)
    assert await shown(it, last) == ("used", ["executed"])
    assert [(move.verb, move.leg) for move in it.journal.kept if move.use_id] == [
        *(("claim", 0), ("sent", 0), ("waiting", 1)),
        *(("continue", 1), ("sent", 1), ("waiting", 2)),
        *(("continue", 2), ("sent", 2), ("waiting", 3)),
        *(("continue", 3), ("sent", 3), ("executed", 3)),
    ]
    for leg in range(5):
        assert await go_on(it, replace(last, leg=leg)) == "continued"
    assert (await it.held()).why == "pending"


async def test_a_hundred_parallel_continuations_are_one(where: Path | str) -> None:
    """APR-02: over two desks that share the file one goes on; each loser knows within a second (one time in three at
    the least, as a busy machine may stand still for as long)."""
    async with bench(where) as one, bench(where, clock=one.clock, owner="other") as other:
        slowest: list[float] = []

        async def attempt(it: Bench, use: Claimed) -> Claimed | str:
            began = time.perf_counter()
            found = await go_on(it, use)
            slowest[-1] = max(slowest[-1], time.perf_counter() - began)
            return found

        while len(slowest) < 3 and (not slowest or min(slowest) >= 1):
            use = await waiting(one)
            slowest.append(0.0)
            desks = [one, other] * 50
            found = await asyncio.gather(*(attempt(it, use) for it in desks))
            won = {it: each for it, each in zip(desks, found, strict=True) if isinstance(each, Claimed)}
            assert (len(won), Counter(each for each in found if isinstance(each, str))) == (1, {"in_flight": 99})
            for it, goes_on in won.items():
                await it.desk.sent(goes_on)
                await it.desk.finish(goes_on, Run.EXECUTED)
        assert min(slowest) < 1


async def test_leases_of_a_leg_are_renewed_by_its_holder_alone(where: Path | str) -> None:
    """Whoever lost the race for a leg does not count as holding it, and whoever won does."""
    async with bench(where) as one, bench(where, clock=one.clock, owner="other") as other:
        use = await waiting(one)
        found = await asyncio.gather(*(go_on(it, use) for it in [one, other] * 10))
        (held,) = [each for each in found if isinstance(each, Claimed)]
        for _ in range(3):
            one.clock.now += 250
            for it in (one, other):
                await it.desk.renew()
                await it.desk.sweep()
        winner = one if held in found[::2] else other
        await winner.desk.sent(held)
        await winner.desk.finish(held, Run.EXECUTED)
        assert await shown(one, use) == ("used", ["executed"])


async def test_a_use_that_waits_has_no_lease(it: Bench) -> None:
    """It waits for a person at the caller's side: as long as its ticket lives, over restarts of every worker."""
    use = await waiting(it)
    it.clock.now += TERMS.ttl_s - 1
    assert await it.desk.reconcile("ostiary") == 0
    assert await it.desk.sweep() == 0
    now = it.clock.now
    assert not await it.store.write(lambda ledger: ledger.run(use.use_id, Run.ABANDONED, now))
    assert isinstance(await go_on(it, use), Claimed)


@pytest.mark.parametrize("uses", [1, 2])
@pytest.mark.parametrize("noticed_by", ["sweep", "call"])
async def test_a_call_that_waits_ends_with_its_ticket(it: Bench, noticed_by: str, uses: int) -> None:
    """It never completed: `abandoned`, and the same call is asked anew."""
    terms = replace(TERMS, uses=uses)
    use = await waiting(it, terms)
    it.clock.now += TERMS.ttl_s
    assert await go_on(it, use, terms) == "expired"
    if noticed_by == "sweep":
        assert await it.desk.sweep() == uses  # with a use left the ticket itself expires as well
    assert (await it.held(terms=terms)).why == "pending"
    assert await shown(it, use) == ("used" if uses == 1 else "expired", ["abandoned"])
    assert await go_on(it, use, terms) == ("continued" if uses == 1 else "expired")


async def test_a_leg_that_lost_its_worker_is_unknown(it: Bench) -> None:
    """APR-13: a crash in the middle of a leg is like one in the middle of a call: never run again by itself."""
    for sent in (False, True):
        use = await waiting(it)
        gone_on = await go_on(it, use)
        assert isinstance(gone_on, Claimed)
        if sent:
            await it.desk.sent(gone_on)
        after = Bench(it.store, clock=it.clock)
        assert await after.desk.reconcile("ostiary") == 1
        assert await go_on(after, use) == "unknown"
        assert (await after.held()).why == "unknown"
        await after.desk.act("resolve", BOB, use.ticket_id, comment="it did not run")
        assert await go_on(after, use) == "continued"


async def test_a_lapsed_lease_of_a_leg_is_noticed_by_whoever_asks(it: Bench) -> None:
    """Also without a sweep nothing is taken for running that nobody holds."""
    use = await waiting(it)
    assert isinstance(await go_on(it, use), Claimed)
    assert await go_on(it, use) == "in_flight"
    it.clock.now += 301
    assert await go_on(it, use) == "unknown"


async def test_a_leg_has_a_lease_of_its_own(it: Bench) -> None:
    """However long the use waited: a leg is held for a whole lease from the moment that it is continued."""
    use = await waiting(it)
    it.clock.now += 1000
    assert isinstance(await go_on(it, use), Claimed)
    it.clock.now += 299
    assert await it.desk.sweep() == 0
    assert await go_on(it, use) == "in_flight"
    it.clock.now += 2
    assert await it.desk.sweep() == 1
    assert await go_on(it, use) == "unknown"


async def test_a_leg_is_given_back_as_a_leg_and_never_as_a_use(it: Bench) -> None:
    """Nothing of this leg left, but an earlier one ran: the same leg waits again, and no further call is granted."""
    use = await waiting(it)
    for sent in (False, True):
        gone_on = await go_on(it, use)
        assert isinstance(gone_on, Claimed)
        if sent:
            await it.desk.sent(gone_on)
        await it.desk.restore(gone_on)
        assert (await it.desk.show(BOB, use.ticket_id))["uses_left"] == 0
        assert (await it.held()).why == "waiting"
    gone_on = await go_on(it, use)
    assert isinstance(gone_on, Claimed)
    await it.desk.restore(replace(gone_on, leg=0))
    assert (await it.desk.show(BOB, use.ticket_id))["uses_left"] == 0
    await it.desk.sent(gone_on)
    await it.desk.finish(gone_on, Run.EXECUTED)
    await it.desk.restore(gone_on)
    assert await shown(it, use) == ("used", ["executed"])


async def test_only_a_leg_waits_again(it: Bench) -> None:
    """Before its first leg a use waits for nothing: the store itself does not let it."""
    await it.approved()
    use, now = await it.claimed(), it.clock.now
    assert not await it.store.write(lambda ledger: ledger.wait_again(use.use_id, 0, "ostiary", now))
    leg = await go_on(it, await ask(it, use))
    assert isinstance(leg, Claimed)
    for owner, number, done in (
        ("other", 1, False),
        ("ostiary", 0, False),
        ("ostiary", 2, False),
        ("ostiary", 1, True),
    ):
        again = await it.store.write(
            lambda ledger, owner=owner, number=number: ledger.wait_again(use.use_id, number, owner, now)  # type: ignore[misc]
        )
        assert again is done


async def test_a_revocation_stops_a_leg_up_to_its_sending(it: Bench) -> None:
    """Between the continuation and the sending, and while it waits; there the use has ended with it."""
    use = await waiting(it)
    gone_on = await go_on(it, use)
    assert isinstance(gone_on, Claimed)
    await it.desk.act("revoke", BOB, use.ticket_id)
    with pytest.raises(NotHeld):
        await it.desk.sent(gone_on)
    await it.desk.restore(gone_on)
    assert await go_on(it, use) == "revoked"
    assert (await it.held()).why == "pending"
    assert await shown(it, use) == ("revoked", ["abandoned"])


@pytest.mark.parametrize("step", ["waiting", "claimed", "sent"])
async def test_whoever_asked_gives_up_a_call_with_the_scope_to_ask(it: Bench, step: str) -> None:
    """Asking for approvals and taking them back is one right; what was sent already is not undone by it."""
    alice = replace(ALICE, scopes=frozenset({"approvals:read", "approvals:request"}))
    use = await waiting(it)
    gone_on = await go_on(it, use) if step != "waiting" else use
    assert isinstance(gone_on, Claimed)
    if step == "sent":
        await it.desk.sent(gone_on)
    for other in (BOB, replace(ALICE, scopes=frozenset({"approvals:read"}))):
        with pytest.raises(NotAllowed):
            await it.desk.act("withdraw", other, use.ticket_id)
    it.clock.now += 1  # decisions are shown in the order of their times
    told = len(it.journal.kept)
    withdrawn = await it.desk.act("withdraw", alice, use.ticket_id, comment="not any more")
    assert withdrawn["state"] == "revoked"
    assert withdrawn["decisions"][-1]["verb"] == "withdraw"
    moves = [(move.verb, move.by, move.leg) for move in it.journal.kept[told:]]
    assert moves == [("withdraw", ALICE.by, 0), *([("abandoned", "ostiary", 1)] if step == "waiting" else [])]
    if step == "sent":
        await it.desk.finish(gone_on, Run.EXECUTED)
    elif step == "claimed":
        with pytest.raises(NotHeld):
            await it.desk.sent(gone_on)
        await it.desk.restore(gone_on)
    assert await go_on(it, use) == "revoked"
    assert (await it.held()).why == "pending"
    assert await shown(it, use) == ("revoked", ["executed" if step == "sent" else "abandoned"])
    with pytest.raises(MovedOn, match="revoked"):
        await it.desk.act("withdraw", alice, use.ticket_id)


async def test_who_approved_is_weighed_again(it: Bench) -> None:
    """The approvers by today's terms and the claims of then; nobody who asks today may be among them."""
    use = await waiting(it)
    assert await go_on(it, use, asked=effect(tool_digest="tool-2")) == "tool_changed"
    assert await shown(it, use) == ("revoked", ["abandoned"])
    use = await waiting(it)
    acting = {"act": {"iss": BOB.issuer, "sub": BOB.subject}}
    settled = await it.desk.go_on(effect(), Origin(use, TERMS), claims=acting)
    assert isinstance(settled, Held)
    assert settled.why == "approvers_changed"
    assert await shown(it, use) == ("revoked", ["abandoned"])


async def test_a_local_approval_counts_for_a_leg_only_while_it_may(where: Path | str) -> None:
    """`local_approve` turned off between the legs: the approval would not do today."""
    async with bench(where, local_approve=True) as it:
        await it.approved(by=local_person(0, "here"))
        use = await ask(it, await it.claimed())
        assert use.ticket_id
        strict = Bench(it.store, clock=it.clock)
        for terms in (None, TERMS):
            assert await go_on(strict, use, terms) in ("approvers_changed", "revoked")
        assert LOCAL in (await it.desk.show(BOB, use.ticket_id))["decisions"][0]["by"]


async def test_terms_that_were_tightened_are_noticed(it: Bench) -> None:
    """A shorter life ends a call that waits; its own use is no reason to call it used up."""
    use = await waiting(it)
    it.clock.now += 100
    gone_on = await go_on(it, use)
    assert isinstance(gone_on, Claimed)
    await it.desk.restore(gone_on)
    assert await go_on(it, use, replace(TERMS, ttl_s=100)) == "terms_tightened"


async def test_answers_are_taken_together_with_their_leg(it: Bench) -> None:
    """Both or neither: without the leg no ticket is opened, and a leg that went on leaves the approval unused."""
    use = await waiting(it)
    answers = effect({"amount": 100, "sure": True})
    origin = Origin(use, TERMS)
    ticket = await it.approved(answers, origin=origin)
    both = await it.claimed(answers, origin=origin)
    assert (both.use_id, both.leg) == (use.use_id, 1)
    assert both.answers is not None
    assert both.answers.ticket_id == ticket
    await it.desk.restore(both)
    assert (await it.held()).why == "waiting"
    assert (await it.desk.show(BOB, ticket))["uses_left"] == 1
    alone = await go_on(it, use)
    assert isinstance(alone, Claimed)
    assert (await it.held(answers, origin=origin)).why == "in_flight"
    following = await ask(it, alone)
    opened = it.journal.verbs.count("request")
    for other in (answers, effect({"amount": 100, "sure": False})):
        assert (await it.held(other, origin=origin)).why == "continued"
    assert it.journal.verbs.count("request") == opened
    assert (await it.desk.show(BOB, ticket))["uses_left"] == 1
    assert isinstance(await go_on(it, following), Claimed)


async def test_who_lost_a_leg_to_other_answers_leaves_the_winner_its_lease(it: Bench) -> None:
    """Two answers to one question, both approved, brought at once: one runs, and its worker goes on holding it."""
    use = await waiting(it)
    origin = Origin(use, TERMS)
    answers = [effect({"amount": 100, "sure": sure}) for sure in (True, False)]
    for one in answers:
        await it.approved(one, origin=origin)
    settled = await asyncio.gather(*(it.settle(one, origin=origin) for one in answers))
    (held,) = [one for one in settled if isinstance(one, Claimed)]
    assert [one.why for one in settled if isinstance(one, Held)] == ["in_flight"]
    await it.desk.sent(held)
    for _ in range(3):
        it.clock.now += 250
        await it.desk.renew()
        assert await it.desk.sweep() == 0, "a lease that nobody extended has lapsed"
    following = replace(held, leg=held.leg + 1, answers=None)
    await it.desk.finish(held, Run.WAITING)
    assert isinstance(await go_on(it, following), Claimed)


@pytest.mark.parametrize("meanwhile", ["revoked", "used", ""])
async def test_a_leg_is_not_taken_without_the_approval_of_its_answers(
    where: Path | str, meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the taking their ticket moves: the leg waits on, and what is free of it goes on."""
    async with bench(where) as it, bench(where, clock=it.clock, owner="other") as other:
        use = await waiting(it)
        answers, origin = effect({"amount": 100, "sure": True}), Origin(use, TERMS)
        ticket = await it.approved(answers, origin=origin)
        move = it.store.move

        async def move_late(*work: Any, **options: Any) -> Any:
            monkeypatch.undo()
            if meanwhile == "revoked":
                await other.desk.act("revoke", BOB, ticket)
            elif meanwhile == "used":
                await other.claimed(answers)
            return await move(*work, **options)

        monkeypatch.setattr(it.store, "move", move_late)
        if meanwhile:
            with pytest.raises(StoreUnavailable, match="moved while another was taken"):
                await it.settle(answers, origin=origin)
        else:
            assert (await it.claimed(answers, origin=origin)).use_id == use.use_id
        assert (await shown(it, use))[1] == ["waiting" if meanwhile else "claimed"]
        assert isinstance(await go_on(other, use), Claimed) is bool(meanwhile)


@pytest.mark.parametrize(
    ("run", "theirs"), [(Run.UNKNOWN, "unknown"), (Run.FAILED, "failed"), (Run.WAITING, "executed")]
)
async def test_both_uses_end_together(it: Bench, run: Run, theirs: str) -> None:
    """What is unknown of the call is unknown of its answers; a further question is an answer to them."""
    use = await waiting(it)
    answers, origin = effect({"amount": 100, "sure": True}), Origin(use, TERMS)
    await it.approved(answers, origin=origin)
    both = await it.claimed(answers, origin=origin)
    assert both.answers is not None
    await it.desk.sent(both)
    await it.desk.finish(both, run)
    assert (await shown(it, both))[1] == [run.value]
    assert (await shown(it, both.answers))[1] == [theirs]


async def test_neither_is_sent_when_one_was_revoked(it: Bench) -> None:
    """The approval of the answers can be taken back as long as they were not sent; the call then waits again."""
    use = await waiting(it)
    answers, origin = effect({"amount": 100, "sure": True}), Origin(use, TERMS)
    ticket = await it.approved(answers, origin=origin)
    both = await it.claimed(answers, origin=origin)
    await it.desk.act("revoke", BOB, ticket)
    with pytest.raises(NotHeld):
        await it.desk.sent(both)
    await it.desk.restore(both)
    assert (await shown(it, use))[1] == ["waiting"]
    assert (await it.held(answers, origin=origin)).why == "pending"
    assert isinstance(await go_on(it, use), Claimed)


async def test_a_continuation_without_its_record_is_none(it: Bench) -> None:
    """Nothing runs that is not recorded: the use ends as `failed`, and is not given back."""
    use = await waiting(it)
    it.journal.broken = StoreUnavailable("full")
    with pytest.raises(StoreUnavailable):
        await go_on(it, use)
    it.journal.broken = None
    assert await go_on(it, use) == "continued"
    assert await shown(it, use) == ("used", ["failed"])


async def test_asking_ahead_for_a_call_that_waits_says_so(it: Bench) -> None:
    """The approvals API opens no second ticket either."""
    await waiting(it)
    with pytest.raises(MovedOn, match="waiting"):
        await it.desk.request(ALICE, effect(), TERMS, reasons=(), mask=())


async def _goes_on_elsewhere(it: Bench, use: Claimed) -> None:
    gone_on = await go_on(it, use)
    assert isinstance(gone_on, Claimed)
    await ask(it, gone_on)


async def _is_taken_elsewhere(it: Bench, use: Claimed) -> None:
    assert isinstance(await go_on(it, use), Claimed)


async def _runs_out_of_time(it: Bench, use: Claimed) -> None:
    it.clock.now += TERMS.ttl_s


async def _is_revoked(it: Bench, use: Claimed) -> None:
    await it.desk.act("revoke", BOB, use.ticket_id)


@pytest.mark.parametrize("meanwhile", [_goes_on_elsewhere, _is_taken_elsewhere, _runs_out_of_time, _is_revoked, None])
async def test_what_was_seen_waiting_may_have_moved_on(
    it: Bench, meanwhile: Callable[[Bench, Claimed], Awaitable[None]] | None
) -> None:
    """APR-02: between another worker's look and its taking the leg passes, runs, expires or ends: it takes nothing.

    Also where the use waits again, one leg further.
    """
    use = await waiting(it)
    seen = await it.store.read(lambda ledger: ledger.holding(use.use_id, decided=True))
    assert seen is not None
    if meanwhile is not None:
        await meanwhile(it, use)
    now = it.clock.now
    taken = await it.store.write(lambda ledger: ledger.go_on(seen, use, "other", now=now, lease_until=now + 300))
    assert taken is (meanwhile is None)


async def test_parallel_continuations_of_one_worker_are_one_transaction(
    it: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever repeats a leg many times at once does not hold the write lock many times."""
    use, move = await waiting(it), it.store.move
    writes: list[object] = []

    async def counted(work: Any, **options: Any) -> Any:
        writes.append(work)
        return await move(work, **options)

    monkeypatch.setattr(it.store, "move", counted)
    found = await asyncio.gather(*(go_on(it, use) for _ in range(50)))
    assert [one for one in found if not isinstance(one, Claimed)] == ["in_flight"] * 49
    assert len(writes) == 1


async def test_a_use_goes_on_under_its_own_ticket_alone(it: Bench) -> None:
    """A use that is said to belong to another ticket is taken by nobody."""
    use = await waiting(it)
    other = await it.approved(effect({"amount": 1}))
    with pytest.raises(StoreUnavailable):
        await go_on(it, replace(use, ticket_id=other))
    assert (await shown(it, use))[1] == ["waiting"]
    assert isinstance(await go_on(it, use), Claimed)


@pytest.mark.parametrize("run", [Run.WAITING, Run.CLAIMED, Run.UNKNOWN, Run.FAILED])
async def test_nothing_is_claimed_of_a_ticket_that_is_busy(it: Bench, run: Run) -> None:
    """Also with a use left, in the statement itself: one at a time, whether it waits, runs or is unknown."""
    use = await waiting(it, replace(TERMS, uses=2))
    if run is not Run.WAITING:
        leg = await go_on(it, use)
        assert isinstance(leg, Claimed)
        if run is not Run.CLAIMED:
            await it.desk.sent(leg)
            await it.desk.finish(leg, run)
    seen, now = await it.store.read(lambda ledger: ledger.whole(use.ticket_id)), it.clock.now
    assert seen is not None
    assert (seen.ticket.state, seen.ticket.uses_left) == ("approved", 1)
    taken = await it.store.write(lambda ledger: ledger.claim(seen, "new", "other", now=now, lease_until=now + 300))
    assert taken is (run is Run.FAILED)


@pytest.mark.parametrize("is_resolved", [False, True])
async def test_what_a_person_set_aside_stays_unknown(it: Bench, is_resolved: bool) -> None:
    """A holder that comes back late tells how a lapsed call ended, unless somebody has looked into it already."""
    leg = await go_on(it, await waiting(it))
    assert isinstance(leg, Claimed)
    await it.desk.sent(leg)
    it.clock.now += 301
    assert await it.desk.sweep() == 1
    if is_resolved:
        await it.desk.act("resolve", BOB, leg.ticket_id, comment="it ran")
    told = len(it.journal.kept)
    await it.desk.finish(leg, Run.EXECUTED)
    assert await shown(it, leg) == ("used", ["unknown" if is_resolved else "executed"])
    assert len(it.journal.kept) == told + (not is_resolved)


@pytest.mark.parametrize("older", [0, 1])
async def test_a_leg_is_taken_by_what_stands_of_its_ticket(it: Bench, older: int) -> None:
    """What was weighed is what is taken: a ticket that was written to since then is looked at again."""
    use = await waiting(it)
    seen = await it.store.read(lambda ledger: ledger.holding(use.use_id, decided=True))
    assert seen is not None
    seen, now = replace(seen, version=seen.version - older), it.clock.now
    taken = await it.store.write(lambda ledger: ledger.go_on(seen, use, "other", now=now, lease_until=now + 300))
    assert taken is (not older)


@pytest.mark.parametrize("is_sent", [False, True])
async def test_a_late_word_about_an_earlier_leg_moves_nothing(it: Bench, is_sent: bool) -> None:
    """Whoever held a leg that has passed can neither end, send nor give back the one that runs now."""
    use = await waiting(it)
    passed = await go_on(it, use)
    assert isinstance(passed, Claimed)
    running = await go_on(it, await ask(it, passed))
    assert isinstance(running, Claimed)
    if is_sent:
        await it.desk.sent(running)
    state = "sent" if is_sent else "claimed"
    for late in (passed, replace(passed, leg=0)):
        with pytest.raises(NotHeld):
            await it.desk.sent(late)
        for run in (Run.EXECUTED, Run.FAILED, Run.UNKNOWN, Run.WAITING):
            await it.desk.finish(late, run)
        await it.desk.restore(late)
        assert (await shown(it, use))[1] == [state]
    if not is_sent:
        await it.desk.sent(running)
    await it.desk.finish(running, Run.EXECUTED)
    assert (await shown(it, use))[1] == ["executed"]


@pytest.mark.parametrize("is_leg", [False, True])
async def test_a_last_use_that_runs_beyond_its_tickets_time_ends_as_it_ends(it: Bench, is_leg: bool) -> None:
    """What was sent in time is sent: its ticket does not expire under it, and is `used` when it has ended."""
    if is_leg:
        use = await go_on(it, await waiting(it))
        assert isinstance(use, Claimed)
    else:
        await it.approved()
        use = await it.claimed()
    await it.desk.sent(use)
    for _ in range(int(TERMS.ttl_s // 250) + 1):
        it.clock.now += 250
        await it.desk.renew()
        assert await it.desk.sweep() == 0
    await it.desk.finish(use, Run.EXECUTED)
    assert await shown(it, use) == ("used", ["executed"])
