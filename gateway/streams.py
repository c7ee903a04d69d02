"""The open streams of one worker: how many there are, whose, and when the gateway itself ends one.

A subscription ends gracefully when its token expires (JWT-13) and when the worker stops (OPS-01). A call's stream is
only counted: it was authorised when it began, its answer is bounded by the deadlines of calls, and to cut it off
would leave its caller without the outcome of what was done.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from gateway.contract.passage import Call, Identity
from gateway.contract.refusals import Refusal, Refused

EXPIRED: Final = "token_expired"
DRAINING: Final = "draining"

LOOK_S: Final = 1.0
AT_ONCE: Final = 100
PAUSE_S: Final = 0.01
"""Ten thousand streams that end together are ended a hundred at a time, so that calls get their turns in between."""

Subject = tuple[str, str]


class Endable(Protocol):
    """A subscription that is being relayed."""

    identity: Identity

    def end(self, why: str) -> None:
        """Give the client the graceful result, and nothing after it. Safe to call twice; must not block."""
        ...


class Place:
    """One of the places for subscriptions, taken before its server is asked; `leave` gives it back, once."""

    __slots__ = ("_streams", "_subject")

    def __init__(self, streams: Streams, subject: Subject) -> None:
        self._streams: Streams | None = streams
        self._subject = subject

    def leave(self) -> None:
        """Somebody else may have it."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams.give_back(self._subject)


class Streams:
    """All of one worker. `calls` is the number of calls whose answer is being streamed.

    `dropped` counts notifications that servers sent and callers had not asked for. `clock` is the time since the
    epoch, by which tokens expire: one that is set forward ends streams at once.
    """

    def __init__(
        self, subscriptions: int = 12_000, per_subject: int = 1000, clock: Callable[[], float] = time.time
    ) -> None:
        self._most = subscriptions
        self._per_subject = per_subject
        self._clock = clock
        self._places: Counter[Subject] = Counter()
        self._taken = 0
        self._open: set[Endable] = set()
        self._due: deque[tuple[Endable, str]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._draining = False
        self.calls = 0
        self.dropped = 0

    @property
    def subscriptions(self) -> int:
        """Places that are taken."""
        return self._taken

    def check(self, call: Call, identity: Identity) -> None:
        """Whether there is a place for this call, if it needs one. Raises `Refused`."""
        if call.kind != "subscription":
            return
        if self._draining:
            raise Refused(Refusal.OVERLOADED, "stopping: no new subscriptions")
        if self._taken >= self._most:
            raise Refused(Refusal.OVERLOADED, "too many subscriptions")
        if self._places[_subject(identity)] >= self._per_subject:
            raise Refused(Refusal.RATE_LIMITED, "too many subscriptions of one subject")

    def take(self, call: Call, identity: Identity) -> Place:
        """A place for a subscription. Raises `Refused` where there is none."""
        self.check(call, identity)
        subject = _subject(identity)
        self._places[subject] += 1
        self._taken += 1
        return Place(self, subject)

    def give_back(self, subject: Subject) -> None:
        """A place is free again."""
        self._taken -= 1
        self._places[subject] -= 1
        if not self._places[subject]:
            del self._places[subject]

    def add(self, stream: Endable) -> None:
        """Look after a subscription until it is discarded: end it when its token expires, or the worker stops."""
        self._open.add(stream)
        if self._draining:
            self._end((stream,), DRAINING)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def discard(self, stream: Endable) -> None:
        """It has ended."""
        self._open.discard(stream)

    def drain(self) -> None:
        """The worker stops: no further subscription, and every open one ends gracefully."""
        if not self._draining:
            self._draining = True
            self._end(self._open, DRAINING)

    def close(self) -> None:
        """Nobody is looked after any more."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._clock()
        self._end([stream for stream in self._open if stream.identity.expires_at <= now], EXPIRED)
        again = self._open and not self._draining
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look) if again else None

    def _end(self, streams: Iterable[Endable], why: str) -> None:
        idle = not self._due
        self._due.extend((stream, why) for stream in streams)
        if idle:
            self._end_some()

    def _end_some(self) -> None:
        for _ in range(min(AT_ONCE, len(self._due))):
            stream, why = self._due.popleft()
            stream.end(why)
        if self._due:
            asyncio.get_running_loop().call_later(PAUSE_S, self._end_some)


def _subject(identity: Identity) -> Subject:
    return identity.issuer, identity.subject
