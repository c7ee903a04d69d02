"""Prometheus metrics with bounded labels: what an on-call engineer is woken by, and what they look at first.

Workers write into memory-mapped files (prometheus-client's multiprocess mode); the supervisor reads them all for one
`/metrics`. Labels come from configuration and from the table of refusals, never from a request: ten thousand made-up
methods or tool names add no series (requirements AUD-08).
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

import structlog
from prometheus_client import Counter, Gauge, Histogram

from gateway.contract.headers import METHODS
from gateway.contract.passage import Passage
from gateway.contract.record import log_fields
from policies.port import Policy
from policies.verdict import Verdict

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)

requests_total = Counter("ostiary_requests", "Requests by how they ended.", ["server", "method", "verdict", "reason"])
latency_seconds = Histogram(
    "ostiary_request_seconds", "From the head to the end of the answer.", ["server"], buckets=LATENCY_BUCKETS
)
in_flight = Gauge("ostiary_requests_in_flight", "Requests in the corridor.", multiprocess_mode="livesum")
policy_info = Gauge("ostiary_policy_info", "The policy bundle's revision.", ["revision"], multiprocess_mode="livemax")
audit_healthy = Gauge("ostiary_audit_healthy", "1 while the last commit succeeded.", multiprocess_mode="livemin")
policy_evaluations_total = Counter("ostiary_policy_evaluations", "Questions that were put to the policy.")
defects_total = Counter("ostiary_defects", "Requests refused because of a defect of the gateway.", ["error"])

OTHER = "other"


class CountedPolicy:
    """A policy whose questions are counted, answered or not: what the corridor is given (`policies.port.Policy`)."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.start, self.close = policy.start, policy.close

    @property
    def revision(self) -> str:
        """See the port."""
        return self._policy.revision

    @property
    def ready(self) -> bool:
        """See the port."""
        return self._policy.ready

    def judge(self, question: bytes) -> Coroutine[Any, Any, Verdict]:
        """See the port."""
        policy_evaluations_total.inc()
        return self._policy.judge(question)


class Telemetry:
    """The observer of one worker: counts, times and logs each request once, from the record's own projection."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("request")
        self._children: dict[tuple[str, str, str, str], Any] = {}
        self._latencies: dict[str, Any] = {}

    def concluded(self, passage: Passage, record: Mapping[str, Any]) -> None:
        """Count and log one request's end. `record` is its last audit record."""
        server = passage.server.name if passage.server else OTHER
        method = passage.call.method if passage.call and passage.call.method in METHODS else OTHER
        verdict = passage.verdict.effect.value if passage.verdict else "none"
        reason = passage.refused.refusal.reason if passage.refused else passage.outcome
        key = (server, method, verdict, reason)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = requests_total.labels(*key)
        child.inc()
        latency = self._latencies.get(server)
        if latency is None:
            latency = self._latencies[server] = latency_seconds.labels(server)
        latency.observe(passage.latency_s)
        self._log.info("request", **log_fields(record))

    def broke(self, passage: Passage, error: BaseException) -> None:
        """A defect: counted, and logged with its traceback but without its text, which can hold a caller's data."""
        defects_total.labels(type(error).__name__).inc()
        frames = []
        trace = error.__traceback__
        while trace is not None:
            frames.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
            trace = trace.tb_next
        self._log.error("defect", decision_id=passage.decision_id, error=type(error).__name__, frames=frames)


def show_policy(revision: str, before: str | None = None) -> None:
    """Publish the revision that judges now, and withdraw the one before it."""
    if before is not None and before != revision:
        policy_info.labels(before).set(0)
    policy_info.labels(revision).set(1)
