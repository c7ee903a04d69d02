"""The health of one replica: in service, out, being tried, warming up. Sans-IO: times are the loop's, in seconds.

A replica is out at once when it takes no connection, because to ask another then costs nothing; after `faults` faults
in a row, because a single one may be the call's; and when its probe fails `PROBES` times in a row. It comes back by
one exchange (or probe) that goes well, and is then given its share of calls slowly (docs/upstream.md, "Health").
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

COOLING_S: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""How long a replica is passed over after its first, second, ... refused connection in a row."""

LONGEST_S: Final = 60.0
"""The longest that faults keep a replica out; so long without another ejection, and the next one is a first one."""

MOST_DOUBLED: Final = 32
"""How often an ejection is doubled, far beyond the longest: where all are out, thousands of calls may be tries."""

JITTER: Final = 0.1
"""By which share an ejection may last longer, so that workers do not try a replica at the same moment."""

TRIAL_S: Final = 5.0
"""How long nobody else tries a replica that a call is trying."""

LEAST_SHARE: Final = 0.1
"""Of its turns, what a replica that has just come back takes."""

PROBES: Final = 3
"""Probes that fail in a row until a replica is out."""

OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class HealthRules:
    """When a replica is out, for how long, and how it comes back.

    `faults` in a row (0: none are too many) put it out for `ejected_s`, doubled with each time up to `LONGEST_S`, but
    never more than `ejected_share` of a server's replicas, and never the only one. `probe` is `off`, `tcp`,
    `discover`, or the path of an HTTP health check, every `probe_s`.
    """

    faults: int = 5
    ejected_s: float = 5.0
    ejected_share: float = 0.5
    slow_start_s: float = 10.0
    probe: str = OFF
    probe_s: float = 5.0

    def most_out(self, replicas: int) -> int:
        """How many of a server's replicas faults may keep out at once: of several always one, and never all."""
        return min(max(1, int(replicas * self.ejected_share)), replicas - 1) if self.ejected_share else 0


class Health:
    """One replica's. Each method that can move it says whether it did: out of service, or back.

    `plain` is what nearly always holds, and all that a call asks then: neither out nor warming up. `why` it is out:
    `refused`, `faults` or `probe`.
    """

    __slots__ = (
        "_back", "_chance", "_credit", "_probes", "_refusals", "_returned", "_rules", "_times", "_trying", "faults",
        "out", "plain", "since", "until", "why",
    )  # fmt: skip

    def __init__(self, rules: HealthRules, chance: Callable[[], float] = random.random) -> None:
        self.plain = True
        self.out = False
        self.why = ""
        self.faults = 0
        self.since = 0.0
        self.until = 0.0
        self._rules = rules
        self._chance = chance
        self._refusals = 0
        self._probes = 0
        self._times = 0
        self._trying = 0.0
        self._returned = 0.0
        self._back = 0.0
        self._credit = 0.0

    def is_trying(self, now: float) -> bool:
        """Whether a call tries it at this moment: half open."""
        return self.out and self._trying > now

    def is_warming(self) -> bool:
        """Whether it is back and does not take all of its turns yet."""
        return not self.plain and not self.out

    def is_due(self, now: float) -> bool:
        """Whether a call may try it. Where it is probed, calls find out only whether it takes connections."""
        may = self._rules.probe == OFF or self.why == "refused"
        return self.out and may and self.until <= now and self._trying <= now

    def begin_trial(self, now: float) -> None:
        """A call is about to try it: nobody else does meanwhile."""
        self._trying = now + TRIAL_S

    def end_trial(self) -> None:
        """Whoever tried it has found out nothing."""
        self._trying = 0.0

    def takes(self, now: float) -> bool:
        """Whether it takes its turn: while it warms up, as many as its share by now says."""
        if self.plain:
            return True
        share = (now - self._back) / self._rules.slow_start_s if self._rules.slow_start_s else 1.0
        if share >= 1.0:
            self.plain = True
            return True
        self._credit += max(share, LEAST_SHARE)
        if self._credit < 1.0:
            return False
        self._credit -= 1.0
        return True

    def refuse(self, now: float) -> bool:
        """It took no connection."""
        self._trying = 0.0
        self._refusals += 1
        lasts_s = COOLING_S[min(self._refusals, len(COOLING_S)) - 1]
        if not self.out:
            return self._go(now, "refused", lasts_s)
        self.until = max(self.until, now + lasts_s)
        return False

    def connect(self, now: float) -> bool:
        """It took a connection, which is all that was in doubt where it had refused one."""
        self._refusals = 0
        return self.why == "refused" and self._return(now)

    def fault(self, now: float, *, tried: bool, may_go: bool) -> bool:
        """An exchange ended in a fault. `tried`: it was there to try the replica. `may_go`: others are left."""
        if self.out:
            if tried:
                self._trying = 0.0
                self.until = max(self.until, now + self._lasts_s(now))
            return False
        self.faults += 1
        return 0 < self._rules.faults <= self.faults and may_go and self._go(now, "faults", self._lasts_s(now))

    def well(self, now: float, *, tried: bool) -> bool:
        """An exchange went well; of one that was under way before the replica was out, that says nothing new."""
        if not self.out:
            self.faults = 0
            return False
        return tried and self._return(now)

    def probe(self, now: float, *, well: bool) -> bool:
        """The answer to a probe. What a probe sees is little, so that it clears no fault of a replica in service."""
        self._probes = 0 if well else self._probes + 1
        if not self.out:
            return self._probes >= PROBES and self._go(now, "probe", 0.0)
        return well and self.until <= now and self._return(now)

    def _lasts_s(self, now: float) -> float:
        if not self.out and now - self._returned > LONGEST_S:
            self._times = 0
        doubled = 2.0 ** min(self._times, MOST_DOUBLED)
        self._times += 1
        lasts_s: float = min(self._rules.ejected_s * doubled, LONGEST_S)
        return lasts_s * (1.0 + JITTER * self._chance())

    def _go(self, now: float, why: str, lasts_s: float) -> bool:
        self.out, self.plain, self.why = True, False, why
        self.since, self.until = now, now + lasts_s
        self._trying = 0.0
        return True

    def _return(self, now: float) -> bool:
        self.out, self.why = False, ""
        self.faults = self._probes = self._refusals = 0
        self._trying = 0.0
        self._back = self._returned = now
        self._credit = 0.0
        return True
