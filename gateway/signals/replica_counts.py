"""Counters of the replicas and of retries: counted where they happen, carried over into the worker's files.

Labels are configured names alone: a server, and a replica's host and port.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from gateway.upstream.figures import Telling, counts


class ReplicaCounters:
    """One worker's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...]) -> Counter:
            return Counter(f"ostiary_{name}", text, labels, registry=registry)

        self._counters = {
            "requests": counter(
                "replica_requests", "Requests to a replica by how they ended.", ("server", "replica", "result")
            ),
            "ejections": counter("replica_ejections", "Ends of a replica's service.", ("server", "replica", "why")),
            "retries": counter(
                "upstream_retries", "Second attempts, made or not, by what came of them.", ("server", "result")
            ),
        }
        self._seen: dict[tuple[str, ...], int] = {}

    def carry_over(self, told: Telling) -> None:
        """Bring the counters up to what happened since."""
        for name, labels, number in counts(told):
            key = (name, *labels)
            if (more := number - self._seen.get(key, 0)) > 0:
                self._counters[name].labels(*labels).inc(more)
                self._seen[key] = number
