"""Who is at work: the workers as their supervisor sees them, and whether traffic should be sent here.

A worker is believed only as long as it goes on speaking: one that hangs is not ready, and after a while not alive.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.serving.status import Status, sum_up

MIXED = "mixed"
"""In the place of a digest: workers differ, as they do for a moment whenever another file is taken."""

STALE_S = 4.0
"""A worker that speaks every second and was silent for so long is not ready."""


@dataclass(slots=True)
class Worker:
    """One process. Times are monotonic seconds; `silent_for` counts the looks since it last spoke."""

    pid: int
    born_at: float = field(default_factory=time.monotonic)
    status: Status | None = None
    heard_at: float = 0.0
    silent_for: int = 0
    unintelligible: bool = False

    def hear(self, status: Status) -> None:
        """It spoke."""
        self.status, self.heard_at, self.silent_for = status, time.monotonic(), 0

    @property
    def is_fresh(self) -> bool:
        """Whether what it said last can be believed."""
        return self.status is not None and time.monotonic() - self.heard_at < STALE_S

    @property
    def is_ready(self) -> bool:
        """Ready by its own word, and that word is fresh."""
        return self.status is not None and self.status.ready and self.is_fresh

    def describe(self) -> dict[str, Any]:
        """For `/readyz`."""
        missing = list(self.status.missing) if self.status is not None else ["starting"]
        if self.status is not None and not self.is_fresh:
            missing.append("heartbeat")
        configuration = self.status.configuration if self.status is not None else ""
        loaded = sum_up(self.status.loaded) if self.status is not None else ""
        return {
            "pid": self.pid,
            "ready": self.is_ready,
            "configuration": configuration,
            "loaded": loaded,
            "missing": missing,
        }


@dataclass(slots=True)
class Settled:
    """Which configuration was taken last, whether the one that was asked for since then is it, and if not why.

    `state` is reload.py's; `results` counts how reloads ended.
    """

    digest: str = ""
    current: bool = True
    why: str = ""
    state: str = "idle"
    results: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("taken", "refused", "given_up"), 0))

    def describe(self) -> dict[str, Any]:
        """For `/readyz`."""
        return {"digest": self.digest, "current": self.current, "state": self.state, "why": self.why}


@dataclass(slots=True)
class Roster:
    """All slots. `workers` holds those that have a process; `besides`: who comes or goes while another has one."""

    wanted: int
    workers: dict[int, Worker] = field(default_factory=dict)
    besides: list[Worker] = field(default_factory=list)
    configuration: Settled = field(default_factory=Settled)
    draining: bool = False
    restarts: int = 0

    def copy(self) -> Roster:
        """One that nobody changes, for whoever looks at it beside the loop."""
        settled = replace(self.configuration, results=dict(self.configuration.results))
        return replace(self, workers=dict(self.workers), besides=list(self.besides), configuration=settled)

    @property
    def ready(self) -> bool:
        """Whether to send traffic here: one ready worker is enough."""
        return not self.draining and any(worker.is_ready for worker in self.workers.values())

    def describe(self) -> dict[str, Any]:
        """What an operator wants to know about why, or why not."""
        nobody = {"pid": None, "ready": False, "configuration": "", "loaded": "", "missing": ["process"]}
        slots = [self.workers.get(slot) for slot in range(self.wanted)]
        said = [worker.status for worker in slots if worker is not None and worker.status is not None]
        return {
            "ready": self.ready,
            "draining": self.draining,
            "workers": [nobody if worker is None else worker.describe() for worker in slots],
            "degraded": sorted({name for status in said for name in status.degraded}),
            "configuration": self.configuration.describe(),
            "loaded": _in_common([status.loaded for status in said]),
        }


def _in_common(loaded: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """What all workers serve by: the digest of each part, `MIXED` for one in which they differ, and one over all."""
    names = sorted({part for one in loaded for part in one})
    found = {part: {one.get(part, "") for one in loaded} for part in names}
    parts = {part: digests.pop() if len(digests) == 1 else MIXED for part, digests in found.items()}
    return {"digest": MIXED if MIXED in parts.values() else sum_up(parts) if parts else "", "parts": parts}
