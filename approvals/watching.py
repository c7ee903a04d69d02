"""Waiting for tickets to move: one look at the store for all who wait in this worker, whatever they wait for.

A look serves those who came before it began. The next one comes after `every_s`, or at once when somebody new waits
or a ticket was moved in this very worker. A store that fails is told to those who never had a look; whoever waits
already waits on, for it may be back within the time. What is found here is where a ticket stands, never an authority
to run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from approvals.store import Store
from approvals.ticket import Standing, State, StoreUnavailable

EVERY_S = 0.5
MOST_WAITING = 2000

Moved = Callable[[Standing], bool]


def is_no_longer_pending(standing: Standing) -> bool:
    """Somebody decided, or its time is over."""
    return standing.state is not State.PENDING


@dataclass(eq=False, slots=True)
class _Waiter:
    """Somebody who waits. `last` is what the latest look found."""

    ticket_id: str
    moved: Moved
    deadline: float
    told: asyncio.Future[Standing | None]
    last: Standing | None = field(default=None)

    def see(self, found: Standing | None, now: float) -> None:
        """One look's finding."""
        self.last = found
        if not self.told.done() and (found is None or self.moved(found) or now >= self.deadline):
            self.told.set_result(found)

    def fail(self, fault: BaseException) -> None:
        """There is nothing to be found for it."""
        if not self.told.done():
            self.told.set_exception(fault)


class Watch:
    """All who wait in one worker: `most` at once, the others get one look and no waiting."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] | None = None,
        *,
        every_s: float = EVERY_S,
        most: int = MOST_WAITING,
    ) -> None:
        self._store = store
        self._clock = clock or store.now
        self._every_s = every_s
        self._most = most
        self._waiters: set[_Waiter] = set()
        self._soon = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    async def wait(self, ticket_id: str, moved: Moved, within_s: float) -> Standing | None:
        """Where the ticket stands as soon as it has `moved`, or after `within_s`; `None` if there is no such ticket.

        At least one look is had, which began after this was asked; its failure is told (`StoreUnavailable`), that of
        a later one is waited out.
        """
        loop = asyncio.get_running_loop()
        within_s = within_s if len(self._waiters) < self._most else 0.0
        waiter = _Waiter(ticket_id, moved, loop.time() + within_s, loop.create_future())
        self._waiters.add(waiter)
        self._look_soon()
        try:
            await asyncio.wait({waiter.told}, timeout=within_s)
            if not waiter.told.done() and waiter.last is not None:
                return waiter.last
            return await waiter.told
        finally:
            self._waiters.discard(waiter)
            waiter.told.cancel()
            if not self._waiters:
                self._soon.set()

    def tell(self, ticket_id: str) -> None:
        """This ticket was moved in this worker, and the move is committed: whoever waits for it hears of it now."""
        if any(waiter.ticket_id == ticket_id for waiter in self._waiters):
            self._soon.set()

    def hurry(self) -> None:
        """The worker stops: whoever waits is told what the next look finds, and nobody waits from now on."""
        self._most = 0
        for waiter in self._waiters:
            waiter.deadline = 0.0
        self._soon.set()

    def _look_soon(self) -> None:
        self._soon.set()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_on())
            self._looking.add_done_callback(self._ended)

    async def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiters:
            self._soon.clear()
            asked = list(self._waiters)
            try:
                found = await self._look({waiter.ticket_id for waiter in asked})
            except StoreUnavailable as fault:
                now = loop.time()
                for waiter in asked:
                    if waiter.last is None:
                        waiter.fail(fault)
                    else:
                        waiter.see(waiter.last, now)
            else:
                now = loop.time()
                for waiter in asked:
                    waiter.see(found.get(waiter.ticket_id), now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._soon.wait()

    async def _look(self, ticket_ids: Collection[str]) -> dict[str, Standing]:
        return await self._store.read(lambda ledger: ledger.standings(ticket_ids, self._clock()))

    def _ended(self, looking: asyncio.Task[None]) -> None:
        # Nobody waits for ever for a look that a defect or the end of the process has ended.
        fault = asyncio.CancelledError() if looking.cancelled() else looking.exception()
        if fault is not None:
            for waiter in self._waiters:
                waiter.fail(fault)
