"""The desk: has a person said yes to exactly this? Settles calls, opens tickets, follows each use to its end.

A use is consumed at most once, by one atomic statement, before anything is sent; whatever fails leaves it consumed.
What grants is recorded before it counts (request, approve, restore), what takes away counts before it is recorded
(claim, sent, outcomes, expiry). docs/approvals.md has the whole table.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from approvals.acts import REQUEST
from approvals.approvers import Person, parties_to, read_terms
from approvals.counter import JOURNAL_S, MOST_CHARACTERS, Counter, Journal, require
from approvals.ledger import Filed, Ledger, new_id
from approvals.looks import Looks
from approvals.store import Store
from approvals.ticket import (
    MOVES,
    ActInvalid,
    Asked,
    Claimed,
    Held,
    MovedOn,
    NotAllowed,
    NotHeld,
    Run,
    State,
    StoreUnavailable,
    Terms,
    Ticket,
    TooManyTickets,
    Transition,
    Unapprovable,
)
from approvals.weighing import Claim, Hold, Lapse, Replace, Today, weigh

__all__ = ["Desk", "NotHeld", "StoreUnavailable", "Terms", "TooManyTickets"]

ITSELF = "ostiary"
HOUR_S = 3600.0
ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class _Settled:
    ticket: Ticket
    why: str = ""
    use: Claimed | None = None
    opened: bool = False


class Desk(Counter):
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
        clock: Callable[[], float] = time.time,
        lease_s: float = 300.0,
        tickets_per_hour: int = 100,
        local_approve: bool = False,
    ) -> None:
        super().__init__(
            store, journal, page_url=page_url, issuers=issuers, clock=clock, local_approve=local_approve
        )  # fmt: skip
        self._owner = owner
        self._lease_s = lease_s
        self._tickets_per_hour = tickets_per_hour
        self._held: dict[str, Ticket] = {}
        self._looks = Looks(store, clock)
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
    ) -> Claimed | Held:
        """Consume one use of an approval of exactly this effect, or say why not; opens a ticket where there is none.

        `claims` are the caller's (who acts for whom decides who may not approve). To be run to its end: a use that is
        claimed for a caller who has gone stays consumed. Raises `StoreUnavailable`, `TooManyTickets`, and what the
        journal raises; then nothing may run.
        """
        try:
            today = self._today(asked, claims, terms, mask)
        except Unapprovable as fault:
            never = _draft(
                "", asked, terms, mask=mask, reasons=reasons, justification=justification, now=self._clock()
            )
            return Held("unapprovable", never, str(fault))
        settled = await self._settle(today, reasons, justification, claim=True)
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

        Raises `NotAllowed`, `Unapprovable`, `ActInvalid`, `MovedOn` (`denied`, `in_flight`, `unknown`),
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

    async def _settle(self, today: Today, reasons: Sequence[str], justification: str, *, claim: bool) -> _Settled:
        for _ in range(ATTEMPTS):  # each further round means that another worker moved the same effect meanwhile
            found, mine = await self._looks.of_effect(today.asked)
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
                    if (use := await self._claim(filed)) is not None:
                        return _Settled(filed.ticket, use=use)
                case Lapse(_, use_id):
                    await self._end(use_id, Run.UNKNOWN)
                case Replace():
                    if (settled := await self._replace(today, reasons, justification)) is not None:
                        return settled
        raise StoreUnavailable("the ticket moves too fast")

    async def _claim(self, filed: Filed) -> Claimed | None:
        use_id = new_id()
        ticket = replace(filed.ticket, uses_left=filed.ticket.uses_left - 1)
        now = self._clock()
        self._held[use_id] = ticket
        claiming = self._claiming[filed.ticket.id] = asyncio.create_task(
            self._store.write(
                lambda ledger: ledger.claim(
                    filed, use_id, self._owner, now=now, lease_until=now + self._lease_s
                )
            )
        )  # fmt: skip
        claiming.add_done_callback(lambda done: done.cancelled() or done.exception())  # others may ask for it too
        claimed = False
        try:
            claimed = await claiming
        finally:
            # A claim whose commit is unknown counts as consumed; nobody holds it, so its lease is not extended.
            if self._claiming.get(filed.ticket.id) is claiming:  # a later look may have begun a claim of its own
                del self._claiming[filed.ticket.id]
            if not claimed:
                del self._held[use_id]
        if not claimed:
            return None
        try:
            await self._record(Transition(ticket, "claim", ITSELF, now, use_id=use_id))
        except Exception:
            # Nothing was sent. It ends as `failed` and is not given back: nothing is granted without its record.
            await self._fail(use_id)
            raise
        return Claimed(ticket.id, use_id)

    async def _is_claimed_by_another(self, filed: Filed) -> bool:
        # Whoever shares our look went first: theirs is the claim of this moment, and its failure is ours.
        claiming = self._claiming.get(filed.ticket.id)
        if claiming is None:
            return False
        await asyncio.wait({claiming})
        return not claiming.cancelled() and claiming.result()

    async def _replace(self, today: Today, reasons: Sequence[str], justification: str) -> _Settled | None:
        async def work(ledger: Ledger) -> _Settled | None:
            asked, now = today.asked, self._clock()
            step = weigh(await ledger.of_effect(asked, now), replace(today, now=now))
            if isinstance(step, Hold):
                return _Settled(step.filed.ticket, step.why)
            if not isinstance(step, Replace):
                return None
            if await ledger.opened_since(asked, now - HOUR_S) >= self._tickets_per_hour:
                raise TooManyTickets
            for filed, verb, why in step.closing:
                if not await self._close(ledger, filed, verb, why, now):
                    return None
            ticket = _draft(
                new_id(), asked, today.terms, mask=today.mask, reasons=reasons, justification=justification, now=now
            )
            if not await ledger.file(ticket, today.approvers, today.parties):
                return None
            await self._record(Transition(ticket, "request", f"{asked.issuer}|{asked.subject}", now))
            return _Settled(ticket, "pending", opened=True)

        return await self._store.write(work, patience_s=JOURNAL_S)

    async def _close(self, ledger: Ledger, filed: Filed, verb: str, why: str, now: float) -> bool:
        target = MOVES[filed.ticket.state][verb]
        if not await ledger.move(filed, target, now):
            return False
        await self._record(Transition(replace(filed.ticket, state=target), verb, ITSELF, now, why))
        return True

    # The life of a use

    async def sent(self, use: Claimed) -> None:
        """From here on bytes may have left.

        Raises `NotHeld` (it was revoked meanwhile, say) or `StoreUnavailable`: then nothing may be sent.
        """
        now = self._clock()
        if not await self._store.write(lambda ledger: ledger.run(use.use_id, Run.SENT, now, owner=self._owner)):
            raise NotHeld("the use is not held any more")
        if (ticket := self._held.get(use.use_id)) is not None:
            await self._record(Transition(ticket, "sent", ITSELF, now, use_id=use.use_id))

    async def finish(self, use: Claimed, run: Run) -> None:
        """The use ended as `executed`, `failed` or `unknown`. Asked twice, the first answer stands.

        Raises `StoreUnavailable`; the use then stays open until its lease lapses into `unknown`.
        """
        await self._end(use.use_id, run, owner=self._owner, ticket=self._held.pop(use.use_id, None))

    async def restore(self, use: Claimed) -> None:
        """Give a use back, of which provably not one byte left. Once; a use that has ended is not given back.

        Where this can't be recorded the use ends as `failed` instead: nothing is granted without its record.
        """
        self._held.pop(use.use_id, None)

        async def work(ledger: Ledger) -> None:
            now = self._clock()
            if await ledger.give_back(use.use_id, self._owner, now):
                filed = await ledger.holding(use.use_id)
                if filed is not None:
                    await self._record(Transition(filed.ticket, "restore", ITSELF, now, use_id=use.use_id))

        try:
            await self._store.write(work, patience_s=JOURNAL_S)
        except StoreUnavailable:
            raise
        except Exception:  # noqa: BLE001 - whatever the house's journal raises means the same here
            await self._fail(use.use_id)

    async def renew(self) -> None:
        """Extend the leases of all uses that this desk holds open. To be called several times per `lease_s`."""
        if held := list(self._held):
            until = self._clock() + self._lease_s
            await self._store.write(lambda ledger: ledger.extend(held, self._owner, until))

    async def reconcile(self, owner: str) -> int:
        """At the start of worker `owner`, or after its death: what it left open is `unknown` -> how many uses."""
        return await self._reconcile(owner)

    async def sweep(self) -> int:
        """Lapsed leases become `unknown`, tickets out of time `expired` -> how many. Any worker, at any time."""
        moved = await self._reconcile(None)

        async def work(ledger: Ledger) -> int:
            now = self._clock()
            found = await ledger.overdue(now)
            return sum([await self._close(ledger, filed, "expire", "", now) for filed in found])

        while closed := await self._store.write(work, patience_s=JOURNAL_S):
            moved += closed
        return moved

    async def _reconcile(self, owner: str | None) -> int:
        moved = 0
        while True:
            held = list(self._held) if owner == self._owner else []
            adrift = await self._store.read(partial(Ledger.adrift, now=self._clock(), owner=owner, held=held))
            ended = 0
            for use_id in adrift:
                ended += await self._end(use_id, Run.UNKNOWN)
            moved += ended
            if not ended:
                return moved

    async def _end(
        self, use_id: str, run: Run, *, owner: str | None = None, ticket: Ticket | None = None
    ) -> bool:  # fmt: skip
        now = self._clock()

        async def work(ledger: Ledger) -> Ticket | None:
            if not await ledger.run(use_id, run, now, owner=owner):
                return None
            if ticket is not None:
                return ticket
            filed = await ledger.holding(use_id)
            return None if filed is None else filed.ticket

        ended = await self._store.write(work)
        if ended is not None:
            await self._record(Transition(ended, run.value, ITSELF, now, use_id=use_id))
        return ended is not None

    async def _fail(self, use_id: str) -> None:
        self._held.pop(use_id, None)
        now = self._clock()
        with contextlib.suppress(StoreUnavailable):
            await self._store.write(lambda ledger: ledger.run(use_id, Run.FAILED, now, owner=self._owner))


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
    )
