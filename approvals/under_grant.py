"""A call under a grant: where nothing of the very call stands in its way or speaks for it, and a grant covers it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from approvals.approvers import read_terms
from approvals.counter import JOURNAL_S
from approvals.going_on import GoingOn
from approvals.granting import find_grant
from approvals.running import End
from approvals.taking import ATTEMPTS, Settled
from approvals.ticket import Covers, Granted, StoreUnavailable, Unapprovable
from approvals.weighing import Claim, Hold, Lapse, Replace, Step, Today, weigh


class UnderGrant(GoingOn):
    """The grants that one worker's calls run under."""

    async def _run_under_grant(self, today: Today, covers: Covers | None) -> Settled | None:
        """Nothing of the very call stands in the way or speaks for it: a grant may. `None` where none covers it."""
        for _ in range(ATTEMPTS):
            step = None if covers is None else await self._find_grant(today, covers)
            if step is None:
                return None
            if (settled := await self._use_grant(today, step)) is not None:
                return settled
            found = await self._store.look(lambda ledger: ledger.of_effect(today.asked, self._clock()))
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

        grants = await self._store.look(lambda ledger: ledger.grants(today.asked, self._clock()))
        return await find_grant(grants, covers, today_for) if grants else None

    async def _use_grant(self, today: Today, step: Step) -> Settled | None:
        """Do this step; `None` where the call is to be looked at anew."""
        match step:
            case Hold(why, filed):
                return Settled(filed.ticket, why)
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
                    return Settled(filed.ticket, use=new[1])
        return None
