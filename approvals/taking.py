"""Taking a use, or the leg of one: at most once, by one atomic statement, and recorded before anything is sent.

Who shares a look with others of the worker finds out here whether theirs was the claim of that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from approvals.approvers import parties_to, read_terms
from approvals.charter import Charter
from approvals.counter import ITSELF
from approvals.filed import Filed
from approvals.ledger import Ledger, new_id
from approvals.running import Running
from approvals.ticket import Asked, Claimed, StoreUnavailable, Terms, Ticket, Transition, Unapprovable
from approvals.weighing import Replace, Today, weigh

ATTEMPTS = 5
"""Rounds of looking and moving; each further one means that another worker moved the same meanwhile."""

Work = Callable[[Ledger], Awaitable[bool]]
Taken = tuple[Ticket, Claimed, str, Work]
"""What a worker takes: the ticket, its use, the transition's verb, and the statement that moves it."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What came of a call: the ticket, and the use that it has or `why` it has none."""

    ticket: Ticket
    why: str = ""
    use: Claimed | None = None
    opened: bool = False


class Taking(Running):
    """What one worker takes."""

    def __init__(self, charter: Charter) -> None:
        super().__init__(charter)
        self._claiming: dict[str, asyncio.Task[bool]] = {}

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

    def _use_of(self, filed: Filed, call: Today | None = None) -> Taken:
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

    def _leg_of(self, filed: Filed, use: Claimed) -> Taken:
        """The use that waits at this leg."""

        async def take(ledger: Ledger) -> bool:
            now = self._clock()
            return await ledger.go_on(filed, use, self._owner, now=now, lease_until=now + self._lease_s)

        return filed.ticket, replace(use, expires_at=filed.ticket.expires_at), "continue", take

    async def _take(self, key: str, taken: Sequence[Taken]) -> bool:
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

        claiming = self._claiming[key] = asyncio.create_task(self._store.move(work))
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


def the_one(use: Claimed, taken: Sequence[Taken]) -> Claimed:
    """The use that the call goes on with: its own, or that of the leg, which these answers were approved for."""
    return use if len(taken) == 1 else replace(taken[0][1], answers=use)
