"""Prometheus counters and histograms with bounded labels: what one worker counts while it serves.

They live in memory-mapped files, one set per worker's slot, that outlive the worker: its replacement counts on, and
the supervisor reads them all for one `/metrics` (serving/admin.py; gauges go there by the status pipe). Labels come
from configuration and from tables, never from a request: ten thousand made-up names add no series (row AUD-08).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, SupportsBytes

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, values

from approvals.ticket import MOVES, Run, Transition
from gateway.contract.headers import METHODS
from gateway.contract.passage import Passage
from gateway.contract.record import log_fields
from gateway.logs import RequestLog, describe_error
from gateway.signals.carried_counts import (
    AuditFigures,
    CarriedCounters,
    PolicyFigures,
    Rooms,
    SessionFigures,
    ShadowFigures,
    StreamFigures,
)
from gateway.signals.durations import BOUNDS, Durations, Spread, server_seconds
from gateway.signals.replica_counts import ReplicaCounters
from gateway.signals.traces import Traces
from policies.around import Around
from policies.port import Policy
from policies.verdict import PolicyUnavailable, Verdict

LATENCY_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
OTHER: Final = "other"
TRANSITIONS: Final = (
    *dict.fromkeys(
        ("request", *(verb for verbs in MOVES.values() for verb in verbs if verb != "exhaust"), "resolve", "restore")
    ),
    *("claim" if run is Run.CLAIMED else run.value for run in Run),
    "continue",
)
"""How a ticket or one of its uses can move."""

ERRAND_EVENTS: Final = (
    "made", "begun", "again", "asked", "relayed", "completed", "failed", "cancelled", "lost",
)  # fmt: skip
"""What can happen to a held call that is a task."""

KEYED_ENDS: Final = ("kept", "ended", "asked", "unknown", "freed")
"""How a call under an idempotency key can end."""


def count_in_seat(seat: int) -> None:
    """Count in the files of `seat` instead of those of this process id; to be called before `Telemetry` is made.

    A worker that takes another one's seat continues its counters: there are never more files than workers at once.
    """
    values.ValueClass = values.MultiProcessValue(lambda: seat)  # type: ignore[no-untyped-call]


TLS_RESULTS: Final = ("completed", "failed", "late", "gone", "plain", "displaced")
"""How a connection to the TLS listener can begin (gateway/door/threshold.py)."""


class CountedPolicy(Around):
    """A policy whose questions are counted, answered or not: what the corridor is given (`policies.port.Policy`)."""

    def __init__(self, policy: Policy, telemetry: Telemetry) -> None:
        super().__init__(policy)
        self._asked = telemetry.policy_evaluations
        self._failed = telemetry.policy_failures
        self.seconds = 0.0

    async def judge(self, question: SupportsBytes) -> Verdict:
        """See the port."""
        self._asked.inc()
        began = time.perf_counter()
        try:
            return await self._policy.judge(question)
        except PolicyUnavailable:
            self._failed.inc()
            raise
        finally:
            self.seconds += time.perf_counter() - began


class Telemetry:
    """The observer of one worker: counts, times and logs each request once, from the record's own projection."""

    def __init__(self, registry: CollectorRegistry | None = None, lines: RequestLog | None = None) -> None:
        """`registry` only where somebody reads it in this process: the supervisor reads the files."""
        registry = registry or CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"ostiary_{name}", text, labels, registry=registry)

        self._lines = lines or RequestLog()
        self.traces: Traces | None = None
        self._log = structlog.get_logger("request")
        self._requests = counter("requests", "Requests by how they ended.", ("server", "method", "verdict", "reason"))
        self._latency = Spread(
            Histogram(
                "ostiary_request_seconds", "From the head to the end of the answer.", ("server",),
                buckets=LATENCY_BUCKETS, registry=registry,
            ),
            LATENCY_BUCKETS,
        )  # fmt: skip
        self._rooms = Durations(
            Histogram(
                "ostiary_room_seconds", "Of that time, what each room took.", ("room",),
                buckets=BOUNDS, registry=registry,
            )
        )  # fmt: skip
        self.policy_evaluations = counter("policy_evaluations", "Questions that were put to the policy.")
        self.policy_failures = counter("policy_failures", "Questions that the policy did not answer.")
        self._replaced = counter("policy_bundles", "Other bundles that were found, and what of them.", ("result",))
        self._shadow = counter("shadow_differences", "What the candidate judged otherwise.", ("server", "difference"))
        self._legacy = counter("legacy_requests", "Requests of older revisions.", ("server", "revision"))
        self._past = counter("upstream_legacy_requests", "Requests to older servers.", ("server", "revision"))
        self._quirks = counter("quirks", "Requests that a tolerated quirk helped.", ("server", "quirk"))
        self._defects = counter("defects", "Requests refused because of a defect of the gateway.", ("error",))
        self._deviating = counter("pins_deviations", "Definitions met that are not accepted.", ("server", "state"))
        self._list_changes = counter("list_changes", "Lists that a server said to have changed.", ("server", "list"))
        self._certified = counter("certificates", "Other certificates found, and what of them.", ("result",))
        came = counter("tls_connections", "Connections to the TLS listener, by how they began.", ("result",))
        self._came = {result: came.labels(result) for result in TLS_RESULTS}
        self._checks = counter("registry_checks", "Servers compared with their records.", ("server", "result"))
        moved = counter("approval_transitions", "Moves of tickets and of their uses.", ("transition",))
        self._moved = {verb: moved.labels(verb) for verb in (*TRANSITIONS, OTHER)}
        self._attempts = counter("webhook_attempts", "Attempts to tell a webhook.", ("webhook", "outcome"))
        errands = counter("held_tasks", "Held calls that are tasks, by what happened to them.", ("event",))
        self._errands = {event: errands.labels(event) for event in ERRAND_EVENTS}
        keyed = counter("keyed_calls", "Calls under idempotency keys, by what is known of their end.", ("end",))
        self._keyed = {end: keyed.labels(end) for end in KEYED_ENDS}
        self._carried = CarriedCounters(registry)
        self.replicas = ReplicaCounters(registry)
        self._children: dict[tuple[str, str, str, str], Any] = {}

    def concluded(self, passage: Passage, record: Mapping[str, Any]) -> None:
        """Count and log one request's end. `record` is its last audit record."""
        self._count(passage)
        if self.traces is not None:
            self.traces.concluded(passage, record)
        fields = log_fields(record)
        if (seconds := server_seconds(passage)) is not None:
            fields["server_ms"] = round(seconds * 1000, 3)
        self._lines.write(fields)

    def counted(self, passage: Passage, make: Callable[[], Mapping[str, Any]]) -> None:
        """Count one refusal that is told with others of its kind. `make` gives what would be its record."""
        self._count(passage)
        if self.traces is not None and passage.span is not None:
            self.traces.concluded(passage, make())

    def told(self, record: Mapping[str, Any]) -> None:
        """Log what many refusals share, as one line with their `count`."""
        shared = {name: record[name] for name in ("count", "first", "last", "actors") if name in record}
        self._lines.write(log_fields(record) | (shared if "first" in shared else {}))

    def _count(self, passage: Passage) -> None:
        """A new series needs room in a file. Where there is none, or the folder is gone with a supervisor that was
        killed, the request is no worse for it: it is logged, and not counted.
        """
        try:
            self._count_request(passage)
        except (OSError, IndexError) as error:  # the library's file, after one that could not grow
            self._log.error("metrics_not_written", **describe_error(error))
        self._rooms.count_rooms(passage)

    def _count_request(self, passage: Passage) -> None:
        server = passage.server.name if passage.server else OTHER
        method = passage.call.method if passage.call and passage.call.method in METHODS else OTHER
        verdict = passage.verdict.effect.value if passage.verdict else "none"
        reason = passage.refused.refusal.reason if passage.refused else passage.outcome
        key = (server, method, verdict, reason)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._requests.labels(*key)
        child.inc()
        self._latency.count(server, passage.latency_s)
        if passage.committed and passage.server is not None and passage.server.past:
            self._past.labels(server, passage.server.past).inc()
        if passage.heard is not None:
            if passage.heard.spoken is not None:
                self._legacy.labels(server, passage.heard.spoken.version).inc()
            for quirk in passage.heard.quirks:
                self._quirks.labels(server, quirk.value).inc()

    def broke(self, passage: Passage, error: BaseException) -> None:
        """A defect: counted, and logged with its places but without its text, which can hold a caller's data."""
        self._defects.labels(type(error).__name__).inc()
        self._log.error("defect", decision_id=passage.decision_id, **describe_error(error))

    def moved(self, transition: Transition) -> None:
        """A ticket or one of its uses made a move."""
        self._moved.get(transition.verb, self._moved[OTHER]).inc()

    def attempted(self, webhook: str, outcome: str) -> None:
        """A message to a webhook was tried."""
        self._attempts.labels(webhook, outcome).inc()

    def errand(self, event: str) -> None:
        """Something happened to a held call that is a task."""
        self._errands[event].inc()

    def keyed(self, end: str) -> None:
        """A call under an idempotency key has ended."""
        self._keyed[end].inc()

    def replaced(self, taken: bool) -> None:
        """Another bundle was found: it judges now, or may not."""
        self._replaced.labels("taken" if taken else "refused").inc()

    def certified(self, taken: bool) -> None:
        """Other certificates were found: they are in force now, or can't be."""
        self._certified.labels("taken" if taken else "refused").inc()

    def came(self, result: str) -> None:
        """A connection to the TLS listener began, or did not."""
        self._came[result].inc()

    def differed(self, server: str, difference: str) -> None:
        """The shadow would have judged otherwise. `server` is a configured one: others are refused before that."""
        self._shadow.labels(server, difference).inc()

    def deviated(self, server: str, state: str, tools: int) -> None:
        """Definitions were met that are not as accepted."""
        self._deviating.labels(server, state).inc(tools)

    def compared(self, server: str, result: str) -> None:
        """A server was compared with its published record, or could not be."""
        self._checks.labels(server, result).inc()

    def list_changed(self, server: str, method: str) -> None:
        """A server told that the list of `method` is another now."""
        self._list_changes.labels(server, method).inc()

    def carry_over(
        self,
        audit: AuditFigures,
        policy: PolicyFigures,
        sessions: SessionFigures,
        streams: StreamFigures,
        shadow: ShadowFigures | None = None,
    ) -> None:
        """Bring the counters up to what the rooms counted by themselves since they were opened."""
        spans = self.traces.spans if self.traces is not None else None
        self._carried.carry_over(Rooms(audit, policy, sessions, streams, self._lines, spans, shadow))
        self._rooms.carry_over()
        self._latency.carry_over()
