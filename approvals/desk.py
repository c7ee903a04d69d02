"""The desk: has a person said yes to exactly this? Settles calls, opens tickets.

A use is consumed at most once, and a leg of it continued at most once, by one atomic statement, before anything is
sent; whatever fails leaves it consumed. What grants is recorded before it counts (request, approve, restore), what
takes away counts before it is recorded (claim, continue, sent, outcomes, expiry). docs/approvals.md has the table.

Its rooms, each on the one before: `Counter` (people), `Running` (a use's life), `Taking` (what is consumed),
`GoingOn` (legs), `UnderGrant`, and the `Desk` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from approvals.acts import REQUEST
from approvals.approvers import Person
from approvals.charter import Charter, Journal
from approvals.counter import ITSELF, JOURNAL_S, MOST_CHARACTERS, require
from approvals.filed import Filed
from approvals.ledger import Ledger, new_id
from approvals.looks import Looks
from approvals.running import End
from approvals.showing import standing
from approvals.statements import LIVE
from approvals.store import Store
from approvals.taking import ATTEMPTS, Settled, the_one
from approvals.ticket import (
    ActInvalid,
    Asked,
    Claimed,
    Covers,
    Held,
    MovedOn,
    NotAllowed,
    NotHeld,
    Origin,
    State,
    StoreUnavailable,
    Terms,
    Ticket,
    TooManyTickets,
    Transition,
    Unapprovable,
)
from approvals.under_grant import UnderGrant
from approvals.vault import effect_of
from approvals.weighing import Claim, Hold, Lapse, Replace, Today, weigh

__all__ = ["Desk", "NotHeld", "Origin", "StoreUnavailable", "Terms", "TooManyTickets"]

HOUR_S = 3600.0

_Leg = tuple[Asked, Origin, Mapping[str, Any]]


class Desk(UnderGrant):
    """One worker's desk; several share a store. `owner` names the worker in its leases (`HOST/WRITER`, say).

    `issuers`: whose tokens may decide; `page_url`: where reviewers' pages live. `lease_s`: how long a use is held
    unless `renew` extends it. `tickets_per_hour`: per requester (issuer, subject).
    `journal` writes a transition into the audit chain; what it raises ends the act, and nothing has changed. It must
    not come back to the desk: a person's act waits for it inside the transaction, at most `JOURNAL_S`.
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
            Charter(
                store=store,
                journal=journal,
                page_url=page_url.rstrip("/"),
                issuers=tuple(issuers),
                owner=owner,
                clock=clock or store.now,
                lease_s=lease_s,
                tickets_per_hour=tickets_per_hour,
                local_approve=local_approve,
            )
        )
        self._tickets_per_hour = tickets_per_hour
        self._looks = Looks[list[Filed]](store)

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
        `covers` tells which grants the call may run under, if it waited for no ticket. To be run to its end: a use
        that is claimed for a caller who has gone stays consumed. Raises `StoreUnavailable`, `TooManyTickets`, what
        the journal and `covers` raise; then nothing may run.
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
        if (*person.party, person.tenant) != (asked.issuer, asked.subject, asked.tenant) or person.local:
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
    ) -> Settled:
        asked = today.asked
        for _ in range(ATTEMPTS):  # each further round means that another worker moved the same effect meanwhile
            taken = []
            if leg is not None:  # answers to nothing need no approval
                going = await self._weigh_leg(*leg)
                if isinstance(going, Hold):
                    return Settled(going.filed.ticket, going.why)
                taken.append(self._leg_of(going.filed, leg[1].use))
            found, mine = await self._looks.share(
                effect_of(asked), lambda ledger: ledger.of_effect(asked, self._clock())
            )
            today = replace(today, now=self._clock())
            match weigh(found, today):
                case Hold(why, filed):
                    return Settled(filed.ticket, why)
                case Claim(filed):
                    if not claim:
                        return Settled(filed.ticket)
                    if not mine:
                        if await self._is_claimed_by_another(filed):
                            return Settled(filed.ticket, "in_flight")
                        continue
                    taken.append(new := self._use_of(filed))
                    if await self._take(filed.ticket.id, taken):
                        return Settled(filed.ticket, use=the_one(new[1], taken))
                case Lapse(_, use_id, run):
                    await self._end([End(use_id, run)])
                case Replace() as step:
                    # Whoever waited for a ticket is told how that ended; a grant is for calls that are made anew.
                    by_grant = None if waited_for else await self._run_under_grant(today, covers)
                    settled = by_grant or await self._replace(step, today, reasons, justification, waited_for)
                    if settled is not None:
                        return settled
        raise StoreUnavailable("the ticket moves too fast")

    async def _what_became_of(self, ticket_id: str) -> Settled | None:
        """How a ticket that was waited for ended; `None` if it has not. Raises `StoreUnavailable` if it is gone."""
        filed = await self._store.read(lambda ledger: ledger.whole(ticket_id))
        if filed is None:
            raise StoreUnavailable("the ticket has gone")
        state = standing(filed.ticket, self._clock()).state
        return None if state in LIVE else Settled(filed.ticket, state.value)

    async def _replace(
        self, step: Replace, today: Today, reasons: Sequence[str], justification: str, waited_for: str
    ) -> Settled | None:
        if not _may_open(step, waited_for):
            return await self._what_became_of(waited_for)
        closed: list[str] = []

        async def work(ledger: Ledger) -> Settled | None:
            asked = today.asked
            await ledger.alone(asked)
            now = self._clock()
            step = weigh(await ledger.of_effect(asked, now), replace(today, now=now))
            if isinstance(step, Hold):
                return Settled(step.filed.ticket, step.why)
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
            return Settled(ticket, "pending", opened=True)

        settled = await self._store.write(work, patience_s=JOURNAL_S)
        for ticket_id in closed:
            self._watch.tell(ticket_id)
        return settled


def _may_open(step: Replace, waited_for: str) -> bool:
    """Whether a ticket may be opened now: for a call that waited, only in place of one that would not do today."""
    return not waited_for or any(filed.ticket.id == waited_for and why for filed, _, why in step.closing)


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
