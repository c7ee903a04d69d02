"""The scheduled check: records beside live servers, by one worker of a host, in turn, each within its time.

A finding is told once: log, count and record when it changes, and the gauge all the time. A check that could not be
made changes no finding: its age grows. Nothing that a check finds changes what is served.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from gateway.beside import tell_if_broken
from gateway.catalog import Catalog
from gateway.contract.passage import Server
from gateway.contract.pins import Pin, PinsUnreadable, read_pins
from gateway.contract.printable import printable
from gateway.pins import file as files
from gateway.registry.chair import Chair
from gateway.registry.drift import Comparison, compare
from gateway.registry.live import Live, ask_live
from gateway.registry.record import Published
from gateway.registry.sources import NoRecord, Sources
from gateway.upstream.port import Upstream, UpstreamFault

WITHIN_S: Final = 60.0
"""What the check of one server may take."""

FIRST_S: Final = 10.0
"""A worker looks for the first time within this after its start, or within one interval, whether the check is its."""

AGAIN_S: Final = 10.0
"""Whose it is not, looks again after this: the one whose it was may have ended."""

MOST: Final = 16
"""Differences that a log event and a record name; they count them all."""

Journal = Callable[[str, Mapping[str, Any]], None]
"""Writes down what the house found: an act and its facts. Must not block."""

Compared = Callable[[str, str], None]
"""Counts checks: server, result (`same`, `drift`, `failed`). Must not block."""


class NotChecked(Exception):  # noqa: N818 - what happened
    """One side could not be had. The text says which, and why."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A server that has a record. `file`: of the record, else `source` is `NAME@VERSION`."""

    server: Server
    replicas: tuple[str, ...]
    source: str
    file: Path | None
    pinned: bool


@dataclass(frozen=True, slots=True)
class Examined:
    """Each side as it was had, apart from the others, and what differs between them."""

    published: Published
    live: Live
    accepted: Mapping[str, Pin] | None
    comparison: Comparison

    def document(self) -> dict[str, Any]:
        """For programs: enough to compare them again."""
        accepted = self.accepted
        return {
            "record": self.comparison.record,
            "record_sha256": self.published.digest,
            "differences": [one.document() for one in self.comparison.found],
            "published": self.published.document,
            "accepted": None if accepted is None else {name: accepted[name].digest for name in sorted(accepted)},
            "live": self.live.document(),
        }


@dataclass(frozen=True, slots=True)
class Examiner:
    """Compares one server with its record and its pins."""

    upstream: Upstream
    catalog: Catalog
    sources: Sources
    pins_file: Path

    async def examine(self, subject: Subject, record: Callable[[], Awaitable[Published]] | None = None) -> Examined:
        """All sides, and what differs. `record`: where the record comes from instead. Raises `NotChecked`."""
        try:
            found = await (record() if record else self.sources.find(subject.source, subject.file))
        except NoRecord as error:
            raise NotChecked(str(error)) from None
        accepted = await asyncio.to_thread(self._pins, subject)
        try:
            live = await ask_live(self.upstream, self.catalog, subject.server, subject.replicas)
        except UpstreamFault as fault:
            raise NotChecked(f"the server could not be asked: {fault.detail}") from None
        # A server's list may be large, and all of it another one: beside the loop.
        return Examined(found, live, accepted, await asyncio.to_thread(compare, found, live, accepted))

    def _pins(self, subject: Subject) -> Mapping[str, Pin] | None:
        """The accepted definitions of a server that is held to them."""
        if not subject.pinned:
            return None
        try:
            text = files.read(self.pins_file)
            return {} if text is None else read_pins(text).get(subject.server.name, {})
        except (OSError, PinsUnreadable) as error:
            raise NotChecked(f"pins.file: {error}") from None


@dataclass(slots=True)
class _Standing:
    """What is known of one server: when it was last compared (monotonic), the digest of its finding, and how many."""

    since: float
    seen: str = ""
    count: int = 0


@dataclass(slots=True)
class RegistryWatch:
    """One worker's part in the check of all servers that have a record. Does nothing where there are none."""

    subjects: Sequence[Subject]
    examiner: Examiner
    chair: Chair
    interval_s: float
    journal: Journal
    count: Compared
    clock: Callable[[], float] = time.monotonic
    _standings: dict[str, _Standing] = field(init=False)
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._standings = {one.server.name: _Standing(self.clock()) for one in self.subjects}

    def start(self) -> None:
        """Begin; the check itself is made by the one worker that has the chair."""
        if self.subjects:
            self._task = asyncio.create_task(self._look_after(), name="registry")
            self._task.add_done_callback(tell_if_broken("registry"))

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self.chair.leave()

    def figures(self) -> dict[str, Mapping[str, float]]:
        """Gauges, by server: how many differences, and how long ago it was compared. None where others check."""
        if not self.chair.mine:
            return {"registry_drift": {}, "registry_age_seconds": {}}
        now = self.clock()
        return {
            "registry_drift": {name: float(one.count) for name, one in self._standings.items()},
            "registry_age_seconds": {name: now - one.since for name, one in self._standings.items()},
        }

    async def _look_after(self) -> None:
        pause = random.uniform(0, min(FIRST_S, self.interval_s))  # noqa: S311 - jitter is no secret
        while True:
            await asyncio.sleep(pause)
            if not await asyncio.to_thread(self.chair.take):
                pause = min(AGAIN_S, self.interval_s)
                continue
            for subject in self.subjects:
                await self.check(subject)
            pause = self.interval_s * random.uniform(0.9, 1.1)  # noqa: S311

    async def check(self, subject: Subject) -> None:
        """Compare one server, and tell what is news."""
        name = subject.server.name
        log = structlog.get_logger("registry")
        try:
            async with asyncio.timeout(WITHIN_S):
                found = (await self.examiner.examine(subject)).comparison
                seen = await asyncio.to_thread(lambda: found.seen)
        except (NotChecked, TimeoutError) as error:
            self.count(name, "failed")
            why = printable(str(error) or f"took more than {WITHIN_S:.0f} s", 1024)
            log.warning("registry_not_checked", server=name, why=why)
            return
        self.count(name, "drift" if found.found else "same")
        standing = self._standings[name]
        before, standing.count, standing.since = standing.count, len(found.found), self.clock()
        if seen == standing.seen:
            return
        standing.seen = seen
        if not found.found and not before:
            return
        facts = facts_of(found)
        if found.found:
            log.warning("registry_drift", **facts)
        else:
            log.info("registry_agrees", **facts)
        self.journal("registry_drift" if found.found else "registry_agrees", facts)


def facts_of(found: Comparison) -> dict[str, Any]:
    """A comparison for the log and the record: small, without a server's texts."""
    return {
        "server": found.server,
        "record": printable(found.record, 512),
        "record_sha256": found.digest,
        "count": len(found.found),
        "differences": [[one.aspect, printable(one.at, 128)] for one in found.found[:MOST]],
    }
