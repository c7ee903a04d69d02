"""What operators see of the replicas: gauges for the status line, and counts that the telemetry carries over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from gateway.upstream.ring import Ring

Rings = Mapping[str, Ring]
Table = dict[str, float]


class Telling(Protocol):
    """Whatever has rings."""

    @property
    def rings(self) -> Rings:
        """Server -> its replicas."""
        ...


def gauges(told: Telling, now: float) -> dict[str, Table]:
    """Name -> server (or `server replica`) -> figure, as `gateway.serving.status` wants them."""
    found: dict[str, Table] = {
        name: {}
        for name in (
            "replicas", "replicas_unreachable", "replicas_ejected", "replicas_half_open", "replicas_warming",
            "replica_out", "replica_calls", "upstream_waiting",
        )
    }  # fmt: skip
    for server, ring in told.rings.items():
        healths = [replica.health for replica in ring.replicas]
        found["replicas"][server] = len(healths)
        found["replicas_unreachable"][server] = sum(health.why == "refused" for health in healths)
        found["replicas_ejected"][server] = sum(health.out for health in healths)
        found["replicas_half_open"][server] = sum(health.is_trying(now) for health in healths)
        found["replicas_warming"][server] = sum(health.is_warming() for health in healths)
        found["upstream_waiting"][server] = ring.waiting
        for replica in ring.replicas:
            key = f"{server} {replica.name}"
            found["replica_out"][key] = float(replica.health.out)
            found["replica_calls"][key] = replica.running
    return found


def counts(told: Telling) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """(counter, its labels' values, how often since the start)."""
    for server, ring in told.rings.items():
        for result, number in ring.retries.items():
            yield "retries", (server, result), number
        for replica in ring.replicas:
            for result, number in replica.results.items():
                yield "requests", (server, replica.name, result), number
            for why, number in replica.ejections.items():
                yield "ejections", (server, replica.name, why), number
