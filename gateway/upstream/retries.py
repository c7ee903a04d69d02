"""Which fault of a repeatable call allows a second attempt, after which pause, and how many of them there may be.

What may be repeated at all is the contract's word (`gateway.contract.repeating`). Retries come from a budget that
calls fill: where everything fails, the servers get a fifth more requests and not twice as many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from gateway.upstream.port import UpstreamFault, UpstreamInvalid, UpstreamTimeout, UpstreamUnreachable

if TYPE_CHECKING:
    from gateway.upstream.replicas import Replica
    from gateway.upstream.ring import Ring

RESERVE: Final = 10.0
"""Retries that a server may have before its calls have earned any, so that little traffic has some as well."""

PAUSE_S: Final = 0.05
"""The longest pause before the second attempt; by chance anything down to nothing."""

PASSING: Final = frozenset({502, 503, 504})
"""Statuses by which a server says that it, or what is behind it, can't at the moment."""


Chance = Callable[[], float]
"""From 0 to 1."""


class Answered(Protocol):
    """An answer, as far as a retry looks at it."""

    status: int
    replica: str
    retries: int


Attempted = TypeVar("Attempted", bound=Answered)


class Budget:
    """A bucket of retries. Each call that may be repeated brings `share` of one, each retry takes a whole one."""

    __slots__ = ("_share", "left")

    def __init__(self, share: float) -> None:
        self.left = RESERVE if share else 0.0
        self._share = share

    def earn(self) -> None:
        """A call that may be repeated is about to be sent."""
        self.left = min(RESERVE, self.left + self._share)

    def spend(self) -> bool:
        """Take a retry, if there is one."""
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


def may_repeat(fault: UpstreamFault) -> bool:
    """Whether a fault may pass: it was sent, and no answer said that it was understood and not taken."""
    if not fault.sent:
        return False  # no replica took it: all were tried
    if isinstance(fault, UpstreamUnreachable | UpstreamTimeout):
        return True
    return isinstance(fault, UpstreamInvalid) and not fault.code and not 300 <= fault.status < 500


async def attempt_twice(
    ring: Ring, attempt: Callable[[float, Collection[Replica]], Awaitable[Attempted]], until: float, chance: Chance
) -> Attempted:
    """Attempt a repeatable call, and once more, at another replica first, after a fault that may pass.

    `attempt` takes its deadline and the replicas to avoid; where there is another replica, the first one has half of
    the time. Raises `UpstreamFault` subclasses.
    """
    clock = asyncio.get_running_loop().time
    ring.budget.earn()
    now = clock()
    fault: UpstreamFault | None = None
    told: Attempted | None = None
    try:
        told = await attempt(until if len(ring.replicas) == 1 else now + (until - now) / 2, ())
        if told.status not in PASSING:
            return told
        failed = told.replica
    except UpstreamFault as found:
        if not may_repeat(found):
            raise
        fault, failed = found, found.replica
    pause_s = PAUSE_S * chance()
    if clock() + pause_s < until and ring.budget.spend():
        await asyncio.sleep(pause_s)
        try:
            again = await attempt(until, [one for one in ring.replicas if one.address.url == failed])
        except UpstreamFault as found:
            ring.retries["failed"] += 1
            if found.sent:
                fault, told = found, None
                fault.retries = 1
        else:
            ring.retries["answered"] += 1
            again.retries = 1
            return again
    else:
        ring.retries["no_budget"] += 1
    if told is not None:
        return told
    raise fault or UpstreamUnreachable("no attempt was made", sent=False)
