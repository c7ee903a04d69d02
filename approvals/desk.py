"""The desk: has a person said yes to exactly this? Settles calls and their legs, opens tickets.

A use is consumed at most once, and a leg of it continued at most once, by one atomic statement, before anything is
sent; whatever fails leaves it consumed. What grants is recorded before it counts (request, approve, restore), what
takes away counts before it is recorded (claim, continue, sent, outcomes, expiry). docs/approvals.md has the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from approvals.acts import REQUEST
from approvals.approvers import Person, parties_to, read_terms
from approvals.counter import ITSELF, JOURNAL_S, MOST_CHARACTERS, Journal, require
from approvals.filed import Filed
from approvals.granting import find_grant
from approvals.ledger import Ledger, new_id
from approvals.looks import Looks
from approvals.running import End, Running
from approvals.showing import standing
from approvals.statements import LIVE
from approvals.store import Store
from approvals.ticket import (
    ActInvalid,
    Asked,
    Claimed,
    Covers,
    Granted,
    Held,
    MovedOn,
    NotAllowed,
    NotHeld,
    Origin,
    Run,
    State,
    StoreUnavailable,
    Terms,
    Ticket,
    TooManyTickets,
    Transition,
    Unapprovable,
)
from approvals.vault import effect_of
from approvals.weighing import Claim, Hold, Lapse, Replace, Step, Today, weigh, weigh_leg

__all__ = ["Desk", "NotHeld", "Origin", "StoreUnavailable", "Terms", "TooManyTickets"]

HOUR_S = 3600.0
MOST_S = 10**9
ATTEMPTS = 5

Work = Callable[[Ledger], Awaitable[bool]]
_Taken = tuple[Ticket, Claimed, str, Work]
"""What a worker takes: the ticket, its use, the transition's verb, and the statement that moves it."""


_Leg = tuple[Asked, Origin, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Settled:
    ticket: Ticket
    why: str = ""
    use: Claimed | None = None
    opened: bool = False


class Desk(Running):
    """One worker's desk; several share a store. `owner` names the worker in its leases (`HOST/WRITER`, say).

    `lease_s`: how long a use is held unless `renew` extends it. `tickets_per_hour`: per requester (issuer, subject).
    """

    def __init__(
        self,
        store: Store,
        journal: Journal,
        *,
        page_url: str,
        issuers: Sequence[str],
        owner: str = ITSELF,
        clock: Callable[[], float] | None = None,
        lease_s: float = 300.0,
        tickets_per_hour: int = 100,
        local_approve: bool = False,
    ) -> None:
        super().__init__(
            store,
            journal,
            page_url=page_url,
            issuers=issuers,
            owner=owner,
            clock=clock,
            lease_s=lease_s,
            local_approve=local_approve,
        )
        self._tickets_per_hour = tickets_per_hour
        self._looks = Looks[list[Filed]](store)
        self._looks_at_legs = Looks[Filed | None](store)
        self._claiming: dict[str, asyncio.Task[bool]] = {}

    async def settle(
        self,
        asked: Asked,
        *,
        claims: Mapping[str, Any],
        terms: Terms,
        reasons: Sequence[str],
        mask: Sequence[str],
        justification: str = "",
        origin: Origin | None = None,
        waited_for: str = "",
        covers: Covers | None = None,
    ) -> Claimed | Held:
        """Consume one use of an approval of exactly this effect, or say why not; opens a ticket where there is none.

        `claims` are the caller's (who acts for whom decides who may not approve). With `origin` the effect is a leg's
        answers: they are asked for only while the leg can go on, and go on with it in one transaction. Where the call
        `waited_for` a ticket that is over, none is opened after it, unless it would not do for today's terms or tool.
        `covers` tells which grants the call may run under. To be run to its end: a use that is claimed for a caller
        who has gone stays consumed. Raises `StoreUnavailable`, `TooManyTickets`, what the journal and `covers` raise;
        then nothing may run.
        """
        try:
            today = self._today(asked, claims, terms, mask)
        except Unapprovable as fault:
            never = _draft(
                "", asked, terms, mask=mask, reasons=reasons, justification=justification, now=self._clock()
            )
            return Held("unapprovable", never, str(fault))
        leg = None if origin is None else (asked, origin, claims)
        settled = await self._settle(
            today, reasons, justification, claim=True, leg=leg, waited_for=waited_for, covers=covers
        )
        return settled.use or Held(settled.why, settled.ticket)

    async def go_on(self, asked: Asked, origin: Origin, *, claims: Mapping[str, Any]) -> Claimed | Held:
        """Continue the use that waits at this leg, once, if its approval would be given today; or say why not.

        `asked` is the call without what it answers. To be run to its end. Raises `StoreUnavailable`, and what the
        journal raises; then nothing may run.
        """
        use = origin.use
        for _ in range(ATTEMPTS):
            step = await self._weigh_leg(asked, origin, claims)
            if isinstance(step, Hold):
                return Held(step.why, step.filed.ticket)
            if (before := self._claiming.get(use.use_id)) is not None:
                await asyncio.wait({before})  # theirs is the continuation of this moment: what came of it decides
            elif await self._take(use.use_id, [self._leg_of(step.filed, use)]):
                return replace(use, expires_at=step.filed.ticket.expires_at)
        raise StoreUnavailable("the ticket moves too fast")

    async def _weigh_leg(self, asked: Asked, origin: Origin, claims: Mapping[str, Any]) -> Hold | Claim:
        """Whether the leg can go on; what no longer holds is closed on the way. Raises `StoreUnavailable`."""
        use = origin.use
        for _ in range(ATTEMPTS):
            filed, _ = await self._looks_at_legs.share(
                use.use_id.encode(), lambda ledger: ledger.holding(use.use_id, decided=True)
            )
            if filed is None or filed.ticket.id != use.ticket_id:
                raise StoreUnavailable("the use that a leg belongs to is not there any more")
            ticket = filed.ticket
            # Where the call needs no approval today, the one that it has is held to what it was given under.
            terms = origin.terms or Terms(ticket.uses, MOST_S, ticket.approvers, ticket.min_approvers)
            try:
                today: Today | None = self._today(asked, claims, terms, ticket.mask)
            except Unapprovable:
                today = None
            match weigh_leg(filed, use, today, self._clock()):
                case Lapse(_, use_id, run):
                    await self._end([End(use_id, run)])
                case Replace(((_, verb, why),)):
                    if await self._break_off(filed, use, verb, why):
                        return Hold(why, filed)
                case Hold() | Claim() as step:
                    return step
        raise StoreUnavailable("the ticket moves too fast")

    async def _break_off(self, filed: Filed, use: Claimed, verb: str, why: str) -> bool:
        async def work(ledger: Ledger) -> bool:
            return await self._close(ledger, filed, verb, why, self._clock())

        if not await self._store.write(work, patience_s=JOURNAL_S):
            return False
        self._watch.tell(filed.ticket.id)
        await self._end([End(use.use_id, Run.ABANDONED)])
        return True

    async def request(
        self,
        person: Person,
        asked: Asked,
        terms: Terms,
        *,
        reasons: Sequence[str],
        mask: Sequence[str],
        justification: str = "",
    ) -> tuple[dict[str, Any], bool]:
        """Ask ahead of the call -> the live ticket of this effect as people see it, and whether it was opened now.

        Raises `NotAllowed`, `Unapprovable`, `ActInvalid`, `MovedOn` (`denied`, `in_flight`, `waiting`, `unknown`),
        `TooManyTickets`, `StoreUnavailable`, and what the journal raises.
        """
        require(person, REQUEST)
        if person.party != (asked.issuer, asked.subject) or person.local:
            raise NotAllowed("not_your_request")
        if len(justification) > MOST_CHARACTERS:
            raise ActInvalid("justification_too_long")
        today = self._today(asked, person.claims, terms, mask)
        settled = await self._settle(today, reasons, justification, claim=False)
        if settled.why not in ("", "pending"):
            raise MovedOn(settled.why)
        filed = await self._store.read(lambda ledger: ledger.whole(settled.ticket.id))
        if filed is None:
            raise StoreUnavailable("the ticket has gone")
        return self._show(filed, self._clock()), settled.opened

    def _today(self, asked: Asked, claims: Mapping[str, Any], terms: Terms, mask: Sequence[str]) -> Today:
        if "\0" in asked.name:  # callers, programs and servers have no such names; a tool or a URI may
            raise Unapprovable("the name has a NUL in it, which not every database can keep")
        parties = parties_to(asked.issuer, asked.subject, claims)
        return Today(
            asked=asked,
            terms=terms,
            mask=tuple(mask),
            approvers=read_terms(terms, self._issuers, parties),
            parties=parties,
            issuers=self._issuers,
            local=self._local_approve,
            now=self._clock(),
        )

    async def _settle(
        self,
        today: Today,
        reasons: Sequence[str],
        justification: str,
        *,
        claim: bool,
        leg: _Leg | None = None,
        waited_for: str = "",
        covers: Covers | None = None,
    ) -> _Settled:
        asked = today.asked
        for _ in range(ATTEMPTS):  # each further round means that another worker moved the same effect meanwhile
            taken = []
            if leg is not None:  # answers to nothing need no approval
                going = await self._weigh_leg(*leg)
                if isinstance(going, Hold):
                    return _Settled(going.filed.ticket, going.why)
                taken.append(self._leg_of(going.filed, leg[1].use))
            found, mine = await self._looks.share(
                effect_of(asked), lambda ledger: ledger.of_effect(asked, self._clock())
            )
            today = replace(today, now=self._clock())
            match weigh(found, today):
                case Hold(why, filed):
                    return _Settled(filed.ticket, why)
                case Claim(filed):
                    if not claim:
                        return _Settled(filed.ticket)
                    if not mine:
                        if await self._is_claimed_by_another(filed):
                            return _Settled(filed.ticket, "in_flight")
                        continue
                    taken.append(new := self._use_of(filed))
                    if await self._take(filed.ticket.id, taken):
                        return _Settled(filed.ticket, use=_one(new[1], taken))
                case Lapse(_, use_id, run):
                    await self._end([End(use_id, run)])
                case Replace() as step:
                    by_grant = await self._run_under_grant(today, covers)
                    settled = by_grant or await self._replace(step, today, reasons, justification, waited_for)
                    if settled is not None:
                        return settled
        raise StoreUnavailable("the ticket moves too fast")

    async def _what_became_of(self, ticket_id: str) -> _Settled | None:
        """How a ticket that was waited for ended; `None` if it has not. Raises `StoreUnavailable` if it is gone."""
        filed = await self._store.read(lambda ledger: ledger.whole(ticket_id))
        if filed is None:
            raise StoreUnavailable("the ticket has gone")
        state = standing(filed.ticket, self._clock()).state
        return None if state in LIVE else _Settled(filed.ticket, state.value)

    async def _run_under_grant(self, today: Today, covers: Covers | None) -> _Settled | None:
        """Nothing of the very call stands in the way or speaks for it: a grant may. `None` where none covers it."""
        for _ in range(ATTEMPTS):
            step = None if covers is None else await self._find_grant(today, covers)
            if step is None:
                return None
            if (settled := await self._use_grant(today, step)) is not None:
                return settled
            found = await self._store.read(lambda ledger: ledger.of_effect(today.asked, self._clock()))
            if not isinstance(weigh(found, replace(today, now=self._clock())), Replace):
                return None
        raise StoreUnavailable("the grant moves too fast")

    async def _find_grant(self, today: Today, covers: Covers) -> Step | None:
        def today_for(granted: Granted) -> Today | None:
            try:
                approvers = read_terms(granted.terms, self._issuers, today.parties)
            except Unapprovable:
                return None
            return replace(today, terms=granted.terms, mask=granted.mask, approvers=approvers, now=self._clock())

        grants = await self._store.read(lambda ledger: ledger.grants(today.asked))
        return await find_grant(grants, covers, today_for) if grants else None

    async def _use_grant(self, today: Today, step: Step) -> _Settled | None:
        """Do this step; `None` where the call is to be looked at anew."""
        match step:
            case Hold(why, filed):
                return _Settled(filed.ticket, why)
            case Lapse(_, use_id, run):
                await self._end([End(use_id, run)])
            case Replace(((filed, verb, why),)):
                await self._store.write(
                    lambda ledger: self._close(ledger, filed, verb, why, self._clock()), patience_s=JOURNAL_S
                )
                self._watch.tell(filed.ticket.id)
            case Claim(filed):
                if (before := self._claiming.get(filed.ticket.id)) is not None:
                    await asyncio.wait({before})  # theirs is the claim of this moment
                elif await self._take(filed.ticket.id, [new := self._use_of(filed, today)]):
                    return _Settled(filed.ticket, use=new[1])
        return None

    def _use_of(self, filed: Filed, call: Today | None = None) -> _Taken:
        """A new use of an approved ticket; of a grant for this `call`, which is what the record then names."""
        ticket = replace(filed.ticket, uses_left=filed.ticket.uses_left - 1)
        use = Claimed(ticket.id, new_id(), expires_at=ticket.expires_at, by_grant=call is not None)
        if call is not None:
            ticket = replace(ticket, asked=call.asked)

        async def take(ledger: Ledger) -> bool:
            now = self._clock()
            until, asked = now + self._lease_s, None if call is None else call.asked
            if call is not None:
                await ledger.alone(call.asked)
                step = weigh(await ledger.of_effect(call.asked, now), replace(call, now=now))
                if not isinstance(step, Replace):
                    return False  # meanwhile the very call was denied, or runs under another grant
            return await ledger.claim(filed, use.use_id, self._owner, now=now, lease_until=until, call=asked)

        return ticket, use, "claim", take

    def _leg_of(self, filed: Filed, use: Claimed) -> _Taken:
        """The use that waits at this leg."""

        async def take(ledger: Ledger) -> bool:
            now = self._clock()
            return await ledger.go_on(filed, use, self._owner, now=now, lease_until=now + self._lease_s)

        return filed.ticket, replace(use, expires_at=filed.ticket.expires_at), "continue", take

    async def _take(self, key: str, taken: Sequence[_Taken]) -> bool:
        """Take all of it, or nothing, in one transaction; `key` is what others of this worker would take as well."""
        now = self._clock()
        # An object of our own tells our claim from that of whoever shared our look, and so holds the same ticket.
        claims = {use.use_id: replace(ticket) for ticket, use, _, _ in taken}
        self._held |= {use_id: ticket for use_id, ticket in claims.items() if use_id not in self._held}

        async def work(ledger: Ledger) -> bool:
            for number, (_, _, _, take) in enumerate(taken):
                if not await take(ledger):
                    if number:
                        raise StoreUnavailable("a ticket moved while another was taken")  # which rolls that back
                    return False
            return True

        claiming = self._claiming[key] = asyncio.create_task(self._store.write(work))
        claiming.add_done_callback(lambda done: done.cancelled() or done.exception())  # others may ask for it too
        claimed = False
        try:
            claimed = await claiming
        finally:
            # A claim whose commit is unknown counts as consumed; nobody holds it, so its lease is not extended.
            if self._claiming.get(key) is claiming:  # a later look may have begun a claim of its own
                del self._claiming[key]
            if not claimed:
                for use_id, ticket in claims.items():
                    if self._held.get(use_id) is ticket:  # a leg may be held already, by whoever was faster
                        del self._held[use_id]
        if not claimed:
            return False
        self._held |= claims
        for ticket, _, _, _ in taken:
            self._watch.tell(ticket.id)
        try:
            for ticket, use, verb, _ in taken:
                await self._record(Transition(ticket, verb, ITSELF, now, use_id=use.use_id, leg=use.leg))
        except Exception:
            # Nothing was sent. It ends as `failed` and is not given back: nothing is granted without its record.
            for _, use, _, _ in taken:
                await self._fail(use)
            raise
        return True

    async def _is_claimed_by_another(self, filed: Filed) -> bool:
        # Whoever shares our look went first: theirs is the claim of this moment, and its failure is ours.
        claiming = self._claiming.get(filed.ticket.id)
        if claiming is None:
            return False
        await asyncio.wait({claiming})
        return not claiming.cancelled() and claiming.result()

    async def _replace(
        self, step: Replace, today: Today, reasons: Sequence[str], justification: str, waited_for: str
    ) -> _Settled | None:
        if not _may_open(step, waited_for):
            return await self._what_became_of(waited_for)
        closed: list[str] = []

        async def work(ledger: Ledger) -> _Settled | None:
            asked = today.asked
            await ledger.alone(asked)
            now = self._clock()
            step = weigh(await ledger.of_effect(asked, now), replace(today, now=now))
            if isinstance(step, Hold):
                return _Settled(step.filed.ticket, step.why)
            if not isinstance(step, Replace) or not _may_open(step, waited_for):
                return None
            if await ledger.opened_since(asked, now - HOUR_S) >= self._tickets_per_hour:
                raise TooManyTickets
            for filed, verb, why in step.closing:
                if not await self._close(ledger, filed, verb, why, now):
                    return None
                closed.append(filed.ticket.id)
            ticket = _draft(
                new_id(), asked, today.terms, mask=today.mask, reasons=reasons, justification=justification, now=now
            )
            if not await ledger.file(ticket, today.approvers, today.parties):
                return None
            await self._record(Transition(ticket, "request", f"{asked.issuer}|{asked.subject}", now))
            return _Settled(ticket, "pending", opened=True)

        settled = await self._store.write(work, patience_s=JOURNAL_S)
        for ticket_id in closed:
            self._watch.tell(ticket_id)
        return settled


def _may_open(step: Replace, waited_for: str) -> bool:
    """Whether a ticket may be opened now: for a call that waited, only in place of one that would not do today."""
    return not waited_for or any(filed.ticket.id == waited_for and why for filed, _, why in step.closing)


def _one(use: Claimed, taken: Sequence[_Taken]) -> Claimed:
    """The use that the call goes on with: its own, or that of the leg, which these answers were approved for."""
    return use if len(taken) == 1 else replace(taken[0][1], answers=use)


def _draft(
    ticket_id: str,
    asked: Asked,
    terms: Terms,
    *,
    mask: Sequence[str],
    reasons: Sequence[str],
    justification: str,
    now: float,
) -> Ticket:
    return Ticket(
        id=ticket_id,
        state=State.PENDING,
        asked=asked,
        justification=justification,
        reasons=tuple(reasons),
        approvers=tuple(terms.approvers),
        min_approvers=terms.min_approvers,
        mask=tuple(mask),
        decisions=(),
        uses=terms.uses,
        uses_left=terms.uses,
        runs=(),
        created_at=now,
        expires_at=now + terms.ttl_s,
        clear=tuple(terms.clear),
    )
