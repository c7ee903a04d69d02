"""How much one caller may ask for at once and per second, so that no one of them fills a worker for all others.

Looked at once the caller is known and before anything of the request is read. A caller is a subject of an issuer,
whatever clients and tokens it comes with. Counts are one worker's, and their memory is bounded: of callers that have
been quiet the longest the rate is forgotten first, and one that comes back begins with a full bucket.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Final

from gateway.contract.passage import Identity
from gateway.contract.refusals import Refusal, Refused

REMEMBERED: Final = 50_000
"""Callers whose rate is known at once."""

LONGEST_WAIT_S: Final = 3600

Subject = tuple[str, str]


class Turnstile:
    """`concurrent`: requests of one caller at once. `per_s`: how many more a second it may begin, in the long run
    (0: any number), and `burst` how many it may have saved up. `clock`: monotonic seconds.
    """

    def __init__(
        self,
        concurrent: int = 500,
        per_s: float = 0.0,
        burst: int = 200,
        *,
        most: int = REMEMBERED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._concurrent = concurrent
        self._per_s = per_s
        self._burst = float(burst)
        self._most = most
        self._clock = clock
        self._inside: Counter[Subject] = Counter()
        self._buckets: OrderedDict[Subject, tuple[float, float]] = OrderedDict()

    @property
    def busiest(self) -> int:
        """The most requests that one caller has inside now."""
        return max(self._inside.values(), default=0)

    def enter(self, identity: Identity) -> Callable[[], None]:
        """Let a request in -> what gives its place back, to be called once. Raises `Refused`."""
        subject = (identity.issuer, identity.subject)
        inside = self._inside.get(subject, 0)
        if inside >= self._concurrent:
            raise Refused(Refusal.CALLER_BUSY)
        if self._per_s:
            self._spend(subject)
        self._inside[subject] = inside + 1
        return partial(self._leave, subject)

    def _spend(self, subject: Subject) -> None:
        now = self._clock()
        saved, at = self._buckets.get(subject, (self._burst, now))
        saved = min(self._burst, saved + (now - at) * self._per_s)
        taken = saved >= 1
        self._buckets[subject] = (saved - 1 if taken else saved, now)
        self._buckets.move_to_end(subject)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        if not taken:
            after_s = min(LONGEST_WAIT_S, max(1, ceil((1 - saved) / self._per_s)))
            raise Refused(Refusal.RATE_LIMITED, "requests of one subject", retry_after_s=after_s)

    def _leave(self, subject: Subject) -> None:
        self._inside[subject] -= 1
        if not self._inside[subject]:
            del self._inside[subject]
