"""Staying awake for a moment while one call waits for something that comes soon: a commit, a near server's answer.

A thread that sleeps gives its core away, and on a virtual machine the core itself is gone: what wakes up then runs
slower for a while (docs/performance.md). A vigil has the loop turn instead. Each turn gives way to whoever else wants
the core, the thread that writes the record before all, and lets the interpreter's lock go. What is not over in time
is slept through, and where that is the rule there is hardly any vigil: each in vain doubles the pause to the next.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final

SHORTEST_PAUSE_S: Final = 0.001
LONGEST_PAUSE_S: Final = 1.0

_give_way: Callable[[], None] | None = getattr(os, "sched_yield", None)
"""Without it a turn would keep the core from the very thread that is waited for: then there is no vigil."""


class Vigil:
    """For one kind of waiting. Used from the loop; `most_s` is how long one may last."""

    __slots__ = ("_clock", "_give_way", "_loop", "_most_s", "_not_before", "_pause_s", "_turns", "_until", "_waits")

    def __init__(
        self,
        most_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        give_way: Callable[[], None] | None = _give_way,
    ) -> None:
        self._most_s = most_s
        self._clock = clock
        self._give_way = give_way
        self._loop: asyncio.AbstractEventLoop
        self._until = self._not_before = 0.0
        self._pause_s = SHORTEST_PAUSE_S
        self._waits = self._turns = False

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Something is waited for from now on, and nothing else is to be done."""
        now = self._clock()
        if self._give_way is None or now < self._not_before:
            return
        self._until = now + self._most_s
        self._waits = True
        if not self._turns:
            self._turns, self._loop = True, loop
            loop.call_soon(self._turn)

    def end(self) -> None:
        """It is there, or will never be. Safe to call without a vigil."""
        if self._waits:
            self._waits = False
            self._pause_s = SHORTEST_PAUSE_S

    def _turn(self) -> None:
        self._turns = False
        if not self._waits or self._give_way is None:
            return
        now = self._clock()
        if now >= self._until:
            self._waits = False
            self._not_before = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            return
        self._give_way()
        self._turns = True
        self._loop.call_soon(self._turn)
