"""A circuit breaker for an engine that is asked over the network.

Callers' failures only raise a suspicion; what opens the circuit is that the engine fails a plain question of ours, so
nobody's arguments can shut out the others. While it is open callers are refused at once, the engine is left to come
back, and one plain question at a time, at jittered intervals, finds out when it has.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from policies.verdict import PolicyUnavailable

Probe = Callable[[], Awaitable[None]]
"""Asks plain questions. Raises `PolicyUnavailable` where the engine can't answer them; ends within its deadline."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When to look. Seconds; `trips` is how many failures in a row make a suspicion.

    Errors end within `longest_s` and one probe of the engine's return; every wait is jittered by half.
    """

    trips: int = 5
    idle_s: float = 5.0
    hurry_s: float = 0.1
    shortest_s: float = 0.2
    longest_s: float = 1.5


class Breaker:
    """Whether the engine may be asked. It may from the first successful probe on."""

    def __init__(self, probe: Probe, moved: Callable[[str], None], pace: Pace | None = None) -> None:
        """`moved` hears of every opening (why) and closing (`""`); of a good start it hears nothing."""
        self.why = "OPA has not answered yet"
        """Why callers are refused, `""` while they are not."""
        self._told = ""
        self._probe = probe
        self._moved = moved
        self._pace = pace or Pace()
        self._strikes = 0
        self._suspicion = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def watches(self) -> bool:
        """Whether the engine is looked after."""
        return self._keeping is not None and not self._keeping.done()

    async def start(self) -> None:
        """Probe once, then go on probing in the background until `close`."""
        await self._look()
        self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Stop probing; the engine may not be asked any more."""
        self.why = "the policy engine is closed"
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})

    def answered(self) -> None:
        """A caller's question was answered."""
        self._strikes = 0

    def failed(self) -> None:
        """A caller's question was not answered, for whatever reason."""
        self._strikes += 1
        if self._strikes >= self._pace.trips:
            self._suspicion.set()

    async def _keep(self) -> None:
        pace, pause = self._pace, self._pace.shortest_s
        while True:
            if self.why:
                await asyncio.sleep(_jittered(pause))
                pause = min(pace.longest_s, pause * 2)
            else:
                pause = pace.shortest_s
                await self._wait_for_suspicion(pace.hurry_s if self._strikes > 0 else pace.idle_s)
            await self._look()

    async def _wait_for_suspicion(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(_jittered(longest_s)):
                await self._suspicion.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_jittered(self._pace.hurry_s) / 2)  # a caller who fails often makes no stream of probes

    async def _look(self) -> None:
        """Ask, and open or close the circuit by what comes of it."""
        self._suspicion.clear()
        try:
            await self._probe()
        except PolicyUnavailable as failure:
            self._strikes += 1
            if self.why or self._strikes >= self._pace.trips:
                self._move(str(failure))
        else:
            self._strikes = 0
            self._move("")

    def _move(self, why: str) -> None:
        self.why = why
        if bool(why) is not bool(self._told):
            self._told = why
            self._moved(why)


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - so that workers do not come together
