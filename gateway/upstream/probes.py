"""Active health: each replica of a server that wants it is asked now and then whether it is there.

Three questions are known: a connection (`tcp`), `server/discover` with the gateway's own credential, and a GET of a
path without one, which is well with any 2xx. A probe takes no place of a call's, so a replica that is full is not
taken for one that is dead; while a replica is out for its faults, a probe finds out in place of a call.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from gateway.upstream.health import OFF
from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import UpstreamFault
from gateway.upstream.replicas import Replica
from gateway.upstream.ring import Ring

PROBE_S: Final = 2.0
"""How long a probe may take after its connection."""


class Probes:
    """All probes of one worker. A pause is the setting's, up to a fifth longer, so that workers do not ask as one."""

    def __init__(self, http: HttpUpstream, chance: Callable[[], float] = random.random) -> None:
        self._http = http
        self._chance = chance
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to ask."""
        for ring in self._http.rings.values():
            if ring.rules.health.probe != OFF:
                for replica in ring.replicas:
                    self._tasks.append(asyncio.create_task(self._go_on(ring, replica), name="probe"))

    async def close(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _go_on(self, ring: Ring, replica: Replica) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            well = await self._ask(replica, ring.rules.health.probe)
            ring.probed(replica, clock(), well=well)
            await asyncio.sleep(ring.rules.health.probe_s * (1.0 + 0.2 * self._chance()))

    async def _ask(self, replica: Replica, probe: str) -> bool:
        try:
            if probe == "tcp":
                (await replica.connect()).close()
                return True
            async with asyncio.timeout(PROBE_S):
                if probe == "discover":
                    await self._http.discover(replica, PROBE_S)
                    return True
                return await self._http.check(replica, probe) // 100 == 2
        except (UpstreamFault, TimeoutError):
            return False
