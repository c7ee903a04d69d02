"""Who is told of requests besides the record: OpenTelemetry traces."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.settings.kinds import Group, SecureUrl


class TraceSettings(Group):
    """Where spans are sent: the whole URL; headers `NAME=VALUE,…` in a variable. `sample` is the share of the traces
    that begin here; one that a caller began is as sampled as the caller says."""

    endpoint: SecureUrl | None = None
    headers_env: str = ""
    sample: Annotated[float, Field(ge=0, le=1)] = 1.0


class TelemetrySettings(Group):
    """Nothing of it is on by itself."""

    traces: TraceSettings = TraceSettings()
