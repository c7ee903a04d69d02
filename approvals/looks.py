"""One look at the store for all calls of one worker that ask for the same thing at the same moment.

A look serves only those who came before it began: nobody is answered with what was true before they asked.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from approvals.store import Store, Work

T = TypeVar("T")


class Looks(Generic[T]):
    """Bounded by the calls in flight: at most one look that runs and one that waits for each thing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[bytes, asyncio.Task[T]] = {}
        self._running: dict[bytes, asyncio.Task[T]] = {}

    async def share(self, key: bytes, work: Work[T]) -> tuple[T, bool]:
        """What `work` finds (the same for all who give this key), and whether this caller is the one to act on it.

        Raises `StoreUnavailable`.
        """
        look = self._waiting.get(key)
        mine = look is None
        if look is None:
            self._waiting[key] = look = asyncio.create_task(self._look(key, work))
            look.add_done_callback(lambda done: done.cancelled() or done.exception())  # its askers may have gone
        return await asyncio.shield(look), mine

    async def _look(self, key: bytes, work: Work[T]) -> T:
        if (before := self._running.get(key)) is not None:
            await asyncio.wait({before})
        me = self._running[key] = self._waiting.pop(key)
        try:
            return await self._store.look(work)
        finally:
            if self._running.get(key) is me:
                del self._running[key]
