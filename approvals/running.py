"""The life of a use, from the claim to its end: sent, waiting for an answer, executed, failed, unknown, abandoned.

What takes away counts before it is recorded; what gives back is recorded before it counts. Nothing that was sent is
ever run again: a holder that is lost leaves `unknown`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from approvals.charter import Charter
from approvals.counter import ITSELF, JOURNAL_S, Counter
from approvals.filed import Filed
from approvals.ledger import Ledger
from approvals.ticket import MOVES, Claimed, NotHeld, Run, StoreUnavailable, Ticket, Transition, Unreadable

MOST_UNREADABLE = 1000
"""So many tickets or uses that can't be read are passed over in one turn."""

MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class End:
    """How a use ends or moves on; `ticket` where it is known, `leg` where somebody holds it."""

    use_id: str
    run: Run
    ticket: Ticket | None = None
    leg: int = 0


class Running(Counter):
    """The uses that one worker holds."""

    def __init__(self, charter: Charter) -> None:
        super().__init__(charter)
        self._owner = charter.owner
        self._lease_s = charter.lease_s
        self._held: dict[str, Ticket] = {}
        self._log = structlog.get_logger("approvals")

    async def sent(self, use: Claimed) -> None:
        """From here on bytes may have left.

        Raises `NotHeld` (it was revoked meanwhile, say) or `StoreUnavailable`: then nothing may be sent.
        """

        async def work(ledger: Ledger) -> float:
            now = self._clock()  # an approval may have ended while this waited for its transaction
            for part in use.parts:
                if not await ledger.run(part.use_id, Run.SENT, now, owner=self._owner, leg=part.leg):
                    raise NotHeld("the use is not held any more")
            return now

        now = await self._store.move(work)
        for part in use.parts:
            if (ticket := self._held.get(part.use_id)) is not None:
                await self._record(Transition(ticket, "sent", ITSELF, now, use_id=part.use_id, leg=part.leg))

    async def finish(self, use: Claimed, run: Run) -> None:
        """The use ended as `executed`, `failed` or `unknown`, or is `waiting` at its next leg. Asked twice, the first
        answer stands.

        An approval of answers covers them alone: its use is `executed` once the server has them, whatever it says.
        Raises `StoreUnavailable`; the use then stays open until its lease lapses into `unknown`.
        """
        ends = [End(use.use_id, run, self._held.pop(use.use_id, None), use.leg)]
        if (answers := use.answers) is not None:
            theirs = Run.EXECUTED if run is Run.WAITING else run
            ends.append(End(answers.use_id, theirs, self._held.pop(answers.use_id, None)))
        await self._end(ends, self._owner)

    async def restore(self, use: Claimed) -> None:
        """Give a use back, of which provably not one byte left. Once; a use that has ended is not given back.

        A use that was continued waits again instead. Where this can't be recorded it ends as `failed`: nothing is
        granted without its record.
        """
        for part in use.parts:
            self._held.pop(part.use_id, None)

        async def work(ledger: Ledger) -> None:
            now = self._clock()
            for part in use.parts:
                if part.leg:
                    back = ledger.wait_again(part.use_id, part.leg, self._owner, now)
                else:
                    back = ledger.give_back(part.use_id, self._owner, now)
                if not await back:
                    continue
                filed = await ledger.holding(part.use_id)
                if filed is not None:
                    told = Transition(filed.ticket, "restore", ITSELF, now, use_id=part.use_id, leg=part.leg)
                    await self._record(told)

        try:
            await self._store.write(work, patience_s=JOURNAL_S)
        except StoreUnavailable:
            raise
        except Exception:  # noqa: BLE001 - whatever the house's journal raises means the same here
            await self._fail(use)

    async def renew(self) -> None:
        """Extend the leases of all uses that this desk holds open. To be called several times per `lease_s`."""
        if held := list(self._held):
            until = self._clock() + self._lease_s
            await self._store.write(lambda ledger: ledger.extend(held, self._owner, until))

    async def reconcile(self, owner: str) -> int:
        """At the start of worker `owner`, or after its death: what it left open is `unknown` -> how many uses."""
        return await self._reconcile(owner)

    async def sweep(self) -> int:
        """Lapsed leases become `unknown`, uses that nobody can answer any more `abandoned`, tickets out of time
        `expired` -> how many. Any worker, at any time.
        """
        moved = await self._reconcile(None)
        moved += await self._end_all(lambda ledger, but: ledger.stalled(self._clock(), but), Run.ABANDONED)

        async def work(ledger: Ledger) -> tuple[int, bool]:
            now, before = self._clock(), len(unreadable)
            found = await ledger.overdue(now, unreadable)
            closed = sum([await self._close(ledger, filed, "expire", "", now) for filed in found])
            return closed, len(unreadable) > before

        unreadable: set[str] = set()
        goes_on = True
        while goes_on and len(unreadable) < MOST_UNREADABLE:
            closed, met = await self._store.write(work, patience_s=JOURNAL_S)
            moved, goes_on = moved + closed, bool(closed) or met
        self._tell_unreadable(unreadable)
        return moved

    def _tell_unreadable(self, tickets: set[str]) -> None:
        if tickets:
            self._log.error("tickets_unreadable", tickets=sorted(tickets)[:MOST_NAMED], count=len(tickets))

    async def _reconcile(self, owner: str | None) -> int:
        def adrift(ledger: Ledger, but: set[str]) -> Awaitable[list[str]]:
            return ledger.adrift(self._clock(), owner, list(self._held) if owner == self._owner else (), but=but)

        return await self._end_all(adrift, Run.UNKNOWN)

    async def _end_all(self, found: Callable[[Ledger, set[str]], Awaitable[list[str]]], run: Run) -> int:
        moved = 0
        unreadable: set[str] = set()
        while use_ids := await self._store.read(lambda ledger: found(ledger, unreadable)):
            before = moved + len(unreadable)
            for use_id in use_ids:
                try:
                    moved += await self._end([End(use_id, run)])
                except Unreadable:
                    unreadable.add(use_id)
            if moved + len(unreadable) == before or len(unreadable) >= MOST_UNREADABLE:
                break
        if unreadable:
            self._log.error("uses_unreadable", uses=sorted(unreadable)[:MOST_NAMED], count=len(unreadable))
        return moved

    async def _end(self, ends: Sequence[End], owner: str | None = None) -> int:
        """Move these uses in one transaction, as far as their states admit it -> how many moved."""

        async def work(ledger: Ledger) -> list[Transition]:
            now, moved = self._clock(), []
            for end in ends:
                filed = None if end.ticket is not None else await ledger.holding(end.use_id)
                if not await ledger.run(end.use_id, end.run, now, owner=owner, leg=end.leg):
                    continue
                ticket, leg = end.ticket, end.leg + (end.run is Run.WAITING)
                if filed is not None:
                    ticket = filed.ticket
                    leg = filed.running.leg if filed.running is not None and owner is None else leg
                if ticket is not None:
                    moved.append(Transition(ticket, end.run.value, ITSELF, now, use_id=end.use_id, leg=leg))
            return moved

        moved = await self._store.move(work)
        for transition in moved:
            self._watch.tell(transition.ticket.id)
            await self._record(transition)
        return len(moved)

    async def _close(self, ledger: Ledger, filed: Filed, verb: str, why: str, now: float) -> bool:
        target = MOVES[filed.ticket.state][verb]
        if not await ledger.move(filed, target, now):
            return False
        await self._record(Transition(replace(filed.ticket, state=target), verb, ITSELF, now, why))
        return True

    async def _fail(self, use: Claimed) -> None:
        async def work(ledger: Ledger) -> None:
            now = self._clock()
            for part in use.parts:
                await ledger.run(part.use_id, Run.FAILED, now, owner=self._owner, leg=part.leg)

        for part in use.parts:
            self._held.pop(part.use_id, None)
        with contextlib.suppress(StoreUnavailable):
            await self._store.move(work)
