"""Work that strangers can cause takes turns: a few pieces in each turn of the loop, and all others wait for theirs.

Invariant: who has nothing to be worked out waits for no more than `most` pieces in a turn of the loop, however many
wait; whoever waits comes in the order of arrival, and never not at all. Who has gone takes nobody's turn.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """`most`: how many go on in one turn of the loop. Of one loop for life; whoever calls bounds how many wait."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        """How many wait, of whom some may have gone."""
        return len(self._waiting)

    async def take(self) -> None:
        """Returns in a later turn of the loop, together with those whose turn it is too."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        mine = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._let_go_on, loop)
        self._waiting.append(mine)
        await mine

    def _let_go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        woken: list[asyncio.Future[None]] = []
        while self._waiting and len(woken) < self._most:
            first = self._waiting.popleft()
            if not first.done():
                woken.append(first)
        if self._waiting:
            loop.call_soon(self._let_go_on, loop)
        for each in woken:
            each.set_result(None)
