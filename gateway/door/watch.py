"""The clock of all connections of one server: deadlines, and what all slow readers together may hold (OPS-03).

An answer that was handed over waits in memory until its client has read it, and no count of calls in flight sees it.
Invariant: beyond `unread_bytes` in all, those that have read nothing for longest are cut; nobody else notices.
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol


class Watched(Protocol):
    """A connection. `deadline` and `stall_deadline` are loop time, `inf` where nothing is due or unread."""

    loop: asyncio.AbstractEventLoop
    deadline: float
    stall_deadline: float

    @property
    def unread_bytes(self) -> int:
        """How much of what was written the client has not taken yet."""
        ...

    def overdue(self, now: float) -> None:
        """A deadline has passed."""
        ...

    def announce_end(self) -> None:
        """The server leaves: say so with the next answer."""
        ...

    def cut(self) -> None:
        """End it now."""
        ...


class Watch:
    """One timer, however many connections there are."""

    def __init__(self, tick_s: float, unread_bytes: int) -> None:
        self.connections: set[Watched] = set()
        self._tick_s = tick_s
        self._unread_bytes = unread_bytes
        self._timer: asyncio.TimerHandle | None = None
        self.leaving = False
        self.rest_s = math.inf
        """How long a connection without a request is kept once the server leaves."""

    def leave(self, rest_s: float) -> None:
        """The server leaves: each answer that begins from now on is its connection's last.

        A connection that rests is not closed under its client, who may be sending just now and could not tell whether
        that was heard: it is served once more, or closed when it has rested for `rest_s`.
        """
        self.leaving, self.rest_s = True, rest_s
        for connection in self.connections:
            connection.announce_end()

    def add(self, connection: Watched) -> None:
        """Look after `connection` until it is discarded."""
        self.connections.add(connection)
        if self._timer is None:
            self._timer = connection.loop.call_later(self._tick_s, self._look, connection.loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in [one for one in self.connections if one.deadline <= now or one.stall_deadline <= now]:
            connection.overdue(now)
        self._bound_unread()
        self._timer = loop.call_later(self._tick_s, self._look, loop) if self.connections else None

    def _bound_unread(self) -> None:
        stalled = [one for one in self.connections if one.stall_deadline < math.inf]
        excess = sum(one.unread_bytes for one in stalled) - self._unread_bytes
        if excess <= 0:
            return
        for connection in sorted(stalled, key=lambda one: one.stall_deadline):
            excess -= connection.unread_bytes
            connection.cut()
            if excess <= 0:
                return
