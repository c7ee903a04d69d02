"""A use that waits for an answer goes on with its next leg: once, and only if its approval would be given today."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from approvals.charter import Charter
from approvals.counter import JOURNAL_S
from approvals.filed import Filed
from approvals.ledger import Ledger
from approvals.looks import Looks
from approvals.running import End
from approvals.taking import ATTEMPTS, Taking
from approvals.ticket import Asked, Claimed, Held, Origin, Run, StoreUnavailable, Terms, Unapprovable
from approvals.weighing import Claim, Hold, Lapse, Replace, Today, weigh_leg

MOST_S = 10**9


class GoingOn(Taking):
    """The legs of one worker's calls."""

    def __init__(self, charter: Charter) -> None:
        super().__init__(charter)
        self._looks_at_legs = Looks[Filed | None](charter.store)

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
