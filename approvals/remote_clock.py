"""A server's clock as it is told with each transaction, carried on in between by this process's own monotonic one.

All who share the server agree on the time within the length of one question, whatever their hosts' clocks say. Where
that leaves a doubt the time is taken as the later one: an approval ends early rather than late.
"""

from __future__ import annotations

import time
from collections.abc import Callable

DRIFT = 0.001
"""How far two clocks run apart, in seconds a second, at the most."""


class RemoteClock:
    """Before it was told anything it is the host's clock. `monotonic`: seconds that only grow."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ahead: float | None = None
        self._wide = 0.0  # how long the question took by which `_ahead` is known
        self._heard = 0.0

    def __call__(self) -> float:
        """Seconds since the epoch."""
        return time.time() if self._ahead is None else self._monotonic() + self._ahead

    def hear(self, sent: float, told: float) -> None:
        """The server said that it is `told`, in answer to a question of `sent` (by `monotonic`)."""
        heard = self._monotonic()
        wide = heard - sent
        doubt = self._wide + DRIFT * (heard - self._heard)
        if self._ahead is not None and wide > doubt:
            latest = heard + self._ahead  # a slow answer is worth less than what is known, unless it contradicts it
            if told - DRIFT <= latest <= told + wide + doubt:
                return
        self._ahead, self._wide, self._heard = told - sent, wide, heard
