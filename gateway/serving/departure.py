"""How a worker leaves: nobody who was let in is turned away, and nobody is left with a request of unknown fate.

From the first moment on it is not ready, ends what would go on for ever, and closes each connection with the answer
that says so (`Connection: close`). Idle connections and the listener stay for `limits.drain_s`: a proxy may be just
sending on one, and would not repeat a POST whose connection broke. A worker that others stand in for (a reload)
stops listening at once and is gone with its last connection.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import uvicorn

from gateway.door.watch import Watch
from gateway.serving.listener import SETTLE_S

LOOK_EVERY_S = 0.05


class Draining(Protocol):
    """The house, as far as it is asked to end what goes on."""

    def drain(self) -> None:
        """It stops: end what would go on for ever. Safe to call twice."""
        ...


class Departure:
    """One worker's. It begins once; `leave_at_once` hastens one that has begun."""

    def __init__(self, house: Draining, server: uvicorn.Server, watch: Watch, drain_s: float) -> None:
        self._house = house
        self._server = server
        self._watch = watch
        self._drain_s = drain_s
        self.begun = False

    def leave(self) -> None:
        """The gateway stops: serve on for a while whoever still comes, saying to each that it is the last time."""
        if self._begin():
            settle_s = SETTLE_S if self._drain_s else 0.0
            asyncio.get_running_loop().call_later(self._drain_s + settle_s, self._exit)

    def retire(self) -> None:
        """Others listen on the same socket from now on: end with the connections that are here."""
        if self._begin():
            for listener in self._server.servers if self._server.started else ():
                listener.close()
            loop = asyncio.get_running_loop()
            self._look(loop, loop.time() + self._drain_s)

    def leave_at_once(self) -> None:
        """Nobody is waited for but the calls that run."""
        self._begin()
        self._watch.leave(0.0)
        self._exit()

    def _begin(self) -> bool:
        """Whether this is the beginning."""
        if self.begun:
            return False
        self.begun = True
        self._house.drain()
        self._watch.leave(self._drain_s)
        return True

    def _look(self, loop: asyncio.AbstractEventLoop, end: float) -> None:
        if self._server.server_state.connections and loop.time() < end:
            loop.call_later(LOOK_EVERY_S, self._look, loop, end)
        else:
            self._exit()

    def _exit(self) -> None:
        """Close the listener; calls that still run have the rest of the grace time."""
        self._server.should_exit = True
