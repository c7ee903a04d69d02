"""The port of the audit: a decision is durable before the first byte goes upstream, or nothing goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gateway.contract.folding import Kind


class AuditUnavailable(Exception):  # noqa: N818 - the room's own word; the corridor refuses
    """The record could not be made durable in time (disk full, read-only, blocked). Nothing may be forwarded."""


class AuditSink(Protocol):
    """One writer of one hash chain. Fills `seq`, `prev`, `hash`, `writer` and `time` of what it is given."""

    @property
    def healthy(self) -> bool:
        """Whether the last commit succeeded (readiness and the `ostiary_audit_healthy` gauge)."""
        ...

    async def start(self) -> None:
        """Claim a writer's slot, verify and mend the torn tail, close open decisions as `unknown`."""
        ...

    async def append(self, record: Mapping[str, Any]) -> None:
        """Durable (fsync, shared by all that wait) when it returns; `AuditUnavailable` within 2 s otherwise."""
        ...

    def note(self, record: Mapping[str, Any]) -> None:
        """Joins the next commit without waiting: outcomes and refusals. Never blocks and never raises; bounded."""
        ...

    def fold(self, kind: Kind, make: Callable[[], Mapping[str, Any]]) -> bool:
        """Whether a refusal came beyond the rate, and shares a record with its kind; `make` would give its own."""
        ...

    async def close(self) -> None:
        """Commit what waits, free the slot."""
        ...
