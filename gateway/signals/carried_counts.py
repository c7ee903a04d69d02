"""Counters of what rooms count by themselves: carried over into the worker's files from time to time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter


class PolicyFigures(Protocol):
    """What was asked of the policy since it was opened; `seconds`: spent waiting for its answers."""

    seconds: float

    @property
    def remembered(self) -> int:
        """Questions that were answered by what was decided before."""
        ...


class AuditFigures(Protocol):
    """What the audit sink counts by itself since its start."""

    commits: int
    failures: int
    lost: int

    @property
    def folded(self) -> int:
        """Refusals beyond the rate: what is of one kind shares a record."""
        ...


class SessionFigures(Protocol):
    """What the sessions at servers of earlier revisions count by themselves."""

    opened: int
    lost: int


class StreamFigures(Protocol):
    """What the relayed streams count by themselves since the start."""

    dropped: int


class SpanFigures(Protocol):
    """What the spans on their way to the receiver of traces count by themselves."""

    sent: int
    lost: int


class ShadowFigures(Protocol):
    """What the policy's shadow counts by itself since the start."""

    judged: int
    dropped: int


class LineFigures(Protocol):
    """What the log of requests counts by itself."""

    @property
    def lost(self) -> int:
        """Lines that nobody took."""
        ...


@dataclass(frozen=True, slots=True)
class Rooms:
    """Whoever counts by itself in one worker; `None` where there is no such room."""

    audit: AuditFigures
    policy: PolicyFigures
    sessions: SessionFigures
    streams: StreamFigures
    lines: LineFigures
    spans: SpanFigures | None
    shadow: ShadowFigures | None


COUNTS: Final[tuple[tuple[str, str, Callable[[Rooms], float]], ...]] = (
    ("policy_seconds", "Time spent waiting for the policy's answers.", lambda of: of.policy.seconds),
    ("policy_remembered", "Questions answered by what was decided before.", lambda of: of.policy.remembered),
    ("shadow_judged", "Questions that the candidate was asked.", lambda of: of.shadow.judged if of.shadow else 0),
    (
        "shadow_dropped",
        "Questions that found no room or no candidate.",
        lambda of: of.shadow.dropped if of.shadow else 0,
    ),
    ("audit_commits", "Commits to the audit file.", lambda of: of.audit.commits),
    ("audit_failures", "Commits that failed or took too long.", lambda of: of.audit.failures),
    ("audit_records_lost", "Records without a caller that found no room.", lambda of: of.audit.lost),
    (
        "audit_refusals_folded",
        "Refusals beyond the rate, which share a record with their kind.",
        lambda of: of.audit.folded,
    ),
    ("notifications_dropped", "Notifications that nobody had asked for.", lambda of: of.streams.dropped),
    ("spans_sent", "Spans that the receiver of traces has taken.", lambda of: of.spans.sent if of.spans else 0),
    ("spans_lost", "Spans that found no room on their way there.", lambda of: of.spans.lost if of.spans else 0),
    ("log_lines_lost", "Log lines that nobody took.", lambda of: of.lines.lost),
    ("upstream_sessions_opened", "Sessions opened at servers of earlier revisions.", lambda of: of.sessions.opened),
    ("upstream_sessions_lost", "Sessions that such a server did not know any more.", lambda of: of.sessions.lost),
)
"""Each counter's name and text, and the number that it is brought up to."""


class CarriedCounters:
    """One worker's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = [(Counter(f"ostiary_{name}", text, registry=registry), read) for name, text, read in COUNTS]
        self._seen = [0.0] * len(COUNTS)

    def carry_over(self, rooms: Rooms) -> None:
        """Bring the counters up to what the rooms have counted since they were opened."""
        for place, (counter, read) in enumerate(self._counters):
            now = read(rooms)
            if (more := now - self._seen[place]) > 0:
                counter.inc(more)
                self._seen[place] = now
