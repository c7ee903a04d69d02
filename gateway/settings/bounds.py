"""How much of anything there may be in one worker."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import (
    Field,
    model_validator,
)

from gateway.settings.kinds import (
    Group,
    Seconds,
)


class Limits(Group):
    """Bounds of one worker. Bytes, counts and seconds."""

    body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 4_194_304
    result_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 16_777_216
    head_bytes: Annotated[int, Field(ge=4096, le=1 << 20)] = 65_536
    head_lines: Annotated[int, Field(ge=16, le=1000)] = 100
    head_s: Annotated[float, Field(gt=0, le=15)] = 10.0
    body_s: Annotated[float, Field(gt=0, le=30)] = 25.0
    concurrent: Annotated[int, Field(ge=1)] = 1000
    concurrent_per_subject: Annotated[int, Field(ge=1)] | None = None
    requests_per_subject: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    burst_per_subject: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    answer_s: Seconds = 120.0
    quiet_s: Seconds = 300.0
    event_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 8_388_608
    keep_alive_s: Annotated[float, Field(gt=0, le=15)] = 10.0
    subscriptions: Annotated[int, Field(ge=1, le=100_000)] = 12_000
    subscriptions_per_subject: Annotated[int, Field(ge=1, le=100_000)] = 1000
    legacy_session_s: Annotated[float, Field(ge=60, le=604800)] = 43_200.0
    tickets_per_hour: Annotated[int, Field(ge=1)] = 100
    held_tasks_per_subject: Annotated[int, Field(ge=0, le=10_000)] = 100
    held_result_bytes: Annotated[int, Field(ge=1024, le=1 << 28)] = 4_194_304
    grace_s: Annotated[float, Field(ge=0, le=600)] = 25.0
    drain_s: Annotated[float, Field(ge=0, le=300)] = 5.0

    @model_validator(mode="after")
    def _no_subject_is_all(self) -> Self:
        if (self.concurrent_per_subject or 0) > self.concurrent:
            raise ValueError("concurrent_per_subject: is above concurrent, and so would hold nobody back")
        return self

    @property
    def at_once_per_subject(self) -> int:
        """How many requests one subject may have at once: half of all, where nothing else is said."""
        return self.concurrent_per_subject or max(1, self.concurrent // 2)
