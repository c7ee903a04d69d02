"""One look at the store for all calls of one worker that ask for the same effect at the same moment.

A look serves only those who came before it began: nobody is answered with what was true before they asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from approvals.filed import Filed
from approvals.store import Store
from approvals.ticket import Asked
from approvals.vault import effect_of


class Looks:
    """Bounded by the calls in flight: at most one look that runs and one that waits for each effect."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._waiting: dict[bytes, asyncio.Task[list[Filed]]] = {}
        self._running: dict[bytes, asyncio.Task[list[Filed]]] = {}

    async def of_effect(self, asked: Asked) -> tuple[list[Filed], bool]:
        """The tickets of this effect, and whether this caller is the one of those who share the look to act on it.

        Raises `StoreUnavailable`.
        """
        effect = effect_of(asked)
        look = self._waiting.get(effect)
        mine = look is None
        if look is None:
            self._waiting[effect] = look = asyncio.create_task(self._look(effect, asked))
            look.add_done_callback(lambda done: done.cancelled() or done.exception())  # its askers may have gone
        return await asyncio.shield(look), mine

    async def _look(self, effect: bytes, asked: Asked) -> list[Filed]:
        if (before := self._running.get(effect)) is not None:
            await asyncio.wait({before})
        me = self._running[effect] = self._waiting.pop(effect)
        try:
            return await self._store.read(lambda ledger: ledger.of_effect(asked, self._clock()))
        finally:
            if self._running.get(effect) is me:
                del self._running[effect]
