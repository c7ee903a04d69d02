"""How the replicas of a server are asked: when one is out, how many calls each has, what may be sent again."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from gateway.contract.methods import METHODS
from gateway.settings.kinds import Group, Seconds, as_written
from gateway.upstream.target import ReplicaRefused, check_replica_url


def _probe(value: str) -> str:
    if value in {"off", "tcp", "discover"}:
        return value
    try:
        check_replica_url(f"http://replica.example{value}")
    except ReplicaRefused:
        value = ""
    if not value.startswith("/"):
        raise ValueError("must be off, tcp, discover, or the path of a health check, which begins with /")
    return value


TIMED = sorted(METHODS.keys() - {"subscriptions/listen"})


def _timed(method: str) -> str:
    if method not in TIMED:
        raise ValueError("is no method that has a deadline")
    return method


Probe = Annotated[
    str,
    BeforeValidator(as_written),
    AfterValidator(_probe),
    WithJsonSchema({"anyOf": [{"enum": ["off", "tcp", "discover"]}, {"type": "string", "pattern": "^/"}]}),
]
TimedMethod = Annotated[str, AfterValidator(_timed), Field(json_schema_extra={"enum": TIMED})]
Share = Annotated[float, Field(ge=0, le=1)]


class HealthSettings(Group):
    """When a replica is passed over, and how it comes back."""

    faults: Annotated[int, Field(ge=0, le=1000)] = 5
    ejected_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    ejected_share: Share = 0.5
    slow_start_s: Annotated[float, Field(ge=0, le=600)] = 10.0
    probe: Probe = "off"
    probe_s: Annotated[float, Field(ge=0.1, le=600)] = 5.0


class LoadSettings(Group):
    """How many calls each replica has at once, how many wait for a place, and how long a connection carries them."""

    concurrent: Annotated[int, Field(ge=0, le=100_000)] = 500
    queue: Annotated[int, Field(ge=0, le=10_000)] = 100
    queue_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    connection_s: Annotated[float, Field(ge=0, le=86400)] = 10.0


class RetrySettings(Group):
    """What may be sent a second time."""

    share: Share = 0.2
    idempotent_tools: tuple[Annotated[str, Field(min_length=1)], ...] = ()


Deadlines = dict[TimedMethod, Seconds]
