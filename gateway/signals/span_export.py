"""Spans to an OpenTelemetry receiver (OTLP over HTTP); the queue counts what it loses (gateway/signals/otlp.py)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Final

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gateway.signals.otlp import MAX_WAITING, TIMEOUT_S, Export, own_session
from gateway.signals.traces import Ended

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_ABOUT: Final = 1024
"""Bytes that a span may come to: its texts are bounded, its attributes few."""


class SpanExport(Export[Ended]):
    """`endpoint` is the receiver's whole URL (`…/v1/traces`), `headers` go with every request."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], *, max_waiting: int = MAX_WAITING) -> None:
        super().__init__("traces-otlp", max_waiting)
        self._exporter: Final = OTLPSpanExporter(
            endpoint, headers=dict(headers), timeout=TIMEOUT_S, session=own_session()
        )
        told = {"service.name": "ostiary", "service.version": version("ostiary")}
        self._resource: Final = Resource({**told, "service.instance.id": str(uuid.uuid4())})
        self._scope: Final = InstrumentationScope("ostiary", version("ostiary"))
        self._log = structlog.get_logger("traces")

    def send(self, batch: Sequence[Ended]) -> bool:
        """See the queue."""
        return self._exporter.export([self._as_span(one) for one in batch]) is SpanExportResult.SUCCESS

    def size_of(self, item: Ended) -> int:  # noqa: ARG002 - all alike
        """See the queue."""
        return _ABOUT

    def shut(self) -> None:
        """See the queue."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def tell_overflow(self) -> None:
        """See the queue."""
        self._log.error("spans_overflow", waiting=self.waiting)

    def tell_lost(self) -> None:
        """See the queue."""
        self._log.error("spans_lost", spans=self.lost)

    def tell_failure(self) -> None:
        """See the queue."""
        self._log.warning("spans_not_exported", waiting=self.waiting)

    def tell_again(self) -> None:
        """See the queue."""
        self._log.info("spans_exported_again", waiting=self.waiting)

    def _as_span(self, one: Ended) -> ReadableSpan:
        trace_id, remote = int(one.trace_id, 16), not one.client
        parent = SpanContext(trace_id, int(one.parent, 16), remote, _SAMPLED) if one.parent else None
        return ReadableSpan(
            one.name,
            SpanContext(trace_id, int(one.span_id, 16), False, _SAMPLED),
            parent,
            self._resource,
            dict(one.attributes),
            kind=SpanKind.CLIENT if one.client else SpanKind.SERVER,
            status=Status(StatusCode.ERROR, one.failure or None) if one.failed else Status(StatusCode.UNSET),
            start_time=one.began,
            end_time=one.ended,
            instrumentation_scope=self._scope,
        )
