"""Transactions that several works share: all that arrive while one is under way are carried out by the next.

A gated call moves its ticket three times, each time durably; what a commit costs is paid once for all who come
together. One that is alone waits for nobody. Who has a share is answered when the commit is known, like anybody; and
who makes a transaction fail disturbs no other: it is rolled back, and each of its works goes alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from approvals.ledger import Ledger
from approvals.ticket import StoreUnavailable

Work = Callable[[Ledger], Awaitable[Any]]

MOST = 64
"""Works of one transaction."""


@dataclass(slots=True, eq=False)
class Share:
    """One work, what comes of it, and until when (by the loop's clock) its caller waits for that."""

    work: Work
    deadline: float
    done: asyncio.Future[Any]
    begun: bool = False
    """Whether something of it may have been done."""


@dataclass(slots=True)
class Common:
    """The works of one transaction. `ran`: all of them did, in time, and what is left is to commit."""

    shares: Sequence[Share]
    clock: Callable[[], float]
    ran: bool = False

    @property
    def deadline(self) -> float:
        """When the first of their callers waits no longer."""
        return min(share.deadline for share in self.shares)

    async def carry_out(self, ledger: Ledger) -> list[Any]:
        """One after another, each sees what those before it moved. Raises what they do, and `StoreUnavailable`."""
        results = [await share.work(ledger) for share in self.shares]
        if self.clock() > self.deadline:
            raise StoreUnavailable("out of time; nothing was done")
        self.ran = True
        return results


@dataclass(slots=True)
class Sharing:
    """Who waits for the next transaction of a kind. `serve` carries the works out, `turn` is had meanwhile."""

    serve: Callable[[Sequence[Share]], Awaitable[None]]
    turn: asyncio.Semaphore
    waiting: deque[Share] = field(default_factory=deque)
    serving: asyncio.Task[None] | None = None
    closed: bool = False

    def join(self, work: Work, deadline: float) -> Share:
        """Have a work carried out by the next transaction. Raises `StoreUnavailable` where there is none any more."""
        if self.closed:
            raise StoreUnavailable("the store is closed")
        share = Share(work, deadline, asyncio.get_running_loop().create_future())
        share.done.add_done_callback(_hear)
        self.waiting.append(share)
        self._begin()
        return share

    def leave(self, share: Share) -> bool:
        """Its caller waits no longer -> whether it was not begun, and so is never done."""
        if not share.begun and not self.closed:
            self.waiting.remove(share)
        return not share.begun

    def close(self) -> None:
        """Whoever waits is told that nothing was done, as is whoever comes from now on; what was begun goes on."""
        self.closed = True
        while self.waiting:
            share = self.waiting.popleft()
            if not share.done.done():
                share.done.set_exception(StoreUnavailable("the store is closed; nothing was done"))

    def _begin(self) -> None:
        if self.serving is None:
            self.serving = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        try:
            while self.waiting:
                async with self.turn:
                    shares = [self.waiting.popleft() for _ in range(min(MOST, len(self.waiting)))]
                    for share in shares:
                        share.begun = True
                    if shares:
                        await self.serve(shares)
        except asyncio.CancelledError:
            self.close()  # the loop ends
            raise
        finally:
            self.serving = None
            if self.waiting:  # `serve` broke, which is the trouble of those whom it took away
                self._begin()


def _hear(done: asyncio.Future[Any]) -> None:
    """The caller may be gone: then nobody else asks what went wrong."""
    if not done.cancelled():
        done.exception()
