"""What is kept: tickets and who is told of them, the record and its checkpoints, seals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    model_validator,
)

from gateway.settings.kinds import (
    DATABASES,
    Group,
    Seconds,
    SecureUrl,
    as_written,
)


class WebhookSettings(Group):
    """Who is told of tickets: a URL (in the environment where it is itself a secret), its secrets, and of what."""

    url: str = ""
    url_env: str = ""
    secret_env: str = ""
    events: Annotated[tuple[Literal["new", "decided", "expiring"], ...], Field(min_length=1)] = (
        "new",
        "decided",
        "expiring",
    )
    format: Literal["json", "slack"] = "json"

    @model_validator(mode="after")
    def _one_url(self) -> Self:
        if bool(self.url) == bool(self.url_env):
            raise ValueError("give either url or url_env")
        return self


class ApprovalSettings(Group):
    """Where tickets are kept, and who may be asked. `issuers` defaults to all issuers.

    `database_env` names a variable with the whole URL, instead of `database`: a password has no place in a file.
    `hold_s` is how long a retry of a call that waits for a person is kept before it is answered.
    """

    database: Annotated[str, Field(repr=False)] = "sqlite:///ostiary.db"
    database_env: str = ""
    migrate: bool = True
    issuers: tuple[str, ...] = ()
    volatile_meta: tuple[str, ...] = ()
    keep_s: Annotated[float, Field(ge=604_800)] = 7_776_000.0
    task_keep_s: Annotated[float, Field(ge=60, le=604_800)] = 3600.0
    local_approve: bool = False
    hold_s: Annotated[float, Field(ge=0, le=60)] = 25.0
    webhooks: Annotated[tuple[WebhookSettings, ...], Field(max_length=16)] = ()

    @model_validator(mode="after")
    def _one_database(self) -> Self:
        if not self.database.startswith(DATABASES):
            raise ValueError("database must be sqlite:///PATH or postgresql://USER@HOST/DATABASE")
        if self.database_env and "database" in self.model_fields_set:
            raise ValueError("database and database_env are two answers to one question")
        return self


class IdempotencySettings(Group):
    """Calls under idempotency keys, in the approvals' database: for how long, and how much of them."""

    keep_s: Annotated[float, Field(ge=60, le=2_592_000)] = 86_400.0
    outcome_bytes: Annotated[int, Field(ge=1024, le=1 << 24)] = 262_144
    keys_per_subject: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    keys: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    total_bytes: Annotated[int, Field(ge=1024)] = 1_073_741_824


class BudgetSettings(Group):
    """Where the policy's `limits` are counted: in the one worker's memory, or in the approvals database for all."""

    store: Literal["memory", "database"] = "memory"


def _never_or(least: int) -> Callable[[float], float]:
    def judge(value: float) -> float:
        if value != 0 and not value >= least:
            raise ValueError(f"must be 0 (never) or at least {least}")
        return value

    return judge


class CheckpointSettings(Group):
    """Where the signed ends of the chains are kept, out of the writers' reach: a file, a webhook, or both."""

    file: Path | None = None
    webhook: SecureUrl | None = None
    key_env: str = "OSTIARY_CHECKPOINT_KEY"
    every_s: Annotated[float, Field(ge=1, le=86400)] = 300.0


class OtlpSettings(Group):
    """Where committed records are sent as OpenTelemetry logs: the whole URL; headers `NAME=VALUE,…` in a variable."""

    endpoint: SecureUrl | None = None
    headers_env: str = ""


class AuditSettings(Group):
    """The durable record. `file` is writer 0's; writer k appends `.k`. Files rotate by size or age; 0: never.

    With a database (`database`, or by `database_env` a variable's whole URL) the record is there, and no file is.
    """

    file: Path
    database: Annotated[str, Field(repr=False)] = ""
    database_env: str = ""
    hmac_key_env: str = "OSTIARY_AUDIT_KEY"
    rotate_bytes: Annotated[int, Field(le=1 << 40), AfterValidator(_never_or(65_536))] = 0
    rotate_s: Annotated[float, Field(le=31_622_400), AfterValidator(_never_or(60))] = 0.0
    keep_s: Annotated[float, Field(ge=0, le=1e10)] = 0.0
    checkpoints: CheckpointSettings | None = None
    otlp: OtlpSettings = OtlpSettings()

    @model_validator(mode="after")
    def _one_database(self) -> Self:
        if self.database and not self.database.startswith(DATABASES[1:]):
            raise ValueError("database must be postgresql://USER@HOST/DATABASE")
        if self.database and self.database_env:
            raise ValueError("database and database_env are two answers to one question")
        return self


def _day(value: str) -> str:
    try:
        if date.fromisoformat(value).isoformat() == value:
            return value
    except ValueError:
        pass
    raise ValueError("must be a day, as 2026-11-30")


Day = Annotated[
    str,
    BeforeValidator(as_written),
    AfterValidator(_day),
    Field(json_schema_extra={"pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}),
]


class SealSettings(Group):
    """Keys of everything that is sealed or kept encrypted. `state_s` is how long a sealed `requestState` lives.

    `since` is the day on which the first key began to seal, where no file remembers it.
    """

    keys_env: str = "OSTIARY_SEAL_KEYS"
    since: Day | None = None
    state_s: Seconds = 3600.0
