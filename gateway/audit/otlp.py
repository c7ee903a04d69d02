"""Committed records as OpenTelemetry logs (OTLP over HTTP): an export that may lag, and counts what it loses.

What is sent is the record's own line and nothing more; the queue is gateway/signals/otlp.py's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import structlog
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gateway.audit.query import read_record
from gateway.signals.otlp import MAX_WAITING, TIMEOUT_S, Export, own_session

_SCOPE: Final = InstrumentationScope("ostiary.audit")


class OtlpExport(Export[bytes]):
    """`endpoint` is the receiver's whole URL (`…/v1/logs`), `headers` go with every request."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], *, max_waiting: int = MAX_WAITING) -> None:
        super().__init__("audit-otlp", max_waiting)
        self._exporter: Final = OTLPLogExporter(
            endpoint, headers=dict(headers), timeout=TIMEOUT_S, session=own_session()
        )
        self._resource: Final = Resource({"service.name": "ostiary"})
        self._log = structlog.get_logger("audit")

    def send(self, batch: Sequence[bytes]) -> bool:
        """See the queue."""
        return self._exporter.export([self._as_log(line) for line in batch]) is LogRecordExportResult.SUCCESS

    def size_of(self, item: bytes) -> int:
        """See the queue."""
        return len(item)

    def shut(self) -> None:
        """See the queue."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def tell_overflow(self) -> None:
        """See the queue."""
        self._log.error("audit_export_overflows", waiting=self.waiting)

    def tell_lost(self) -> None:
        """See the queue."""
        self._log.error("audit_export_lost", records=self.lost)

    def tell_failure(self) -> None:
        """See the queue."""
        self._log.warning("audit_not_exported", waiting=self.waiting)

    def tell_again(self) -> None:
        """See the queue."""
        self._log.info("audit_exported_again", waiting=self.waiting)

    def _as_log(self, line: bytes) -> ReadableLogRecord:
        record = read_record(line)
        refused = record.get("kind") == "refusal"
        try:
            at = int(datetime.fromisoformat(str(record.get("time"))).timestamp() * 1000) * 1_000_000
        except ValueError:
            at = time.time_ns()
        trace = str(record.get("trace_id") or "")
        told = LogRecord(
            timestamp=at,
            observed_timestamp=time.time_ns(),
            trace_id=int(trace, 16) if len(trace) == 32 and not trace.strip("0123456789abcdef") else 0,
            severity_number=SeverityNumber.WARN if refused else SeverityNumber.INFO,
            severity_text="WARN" if refused else "INFO",
            body=line.decode("utf-8").removesuffix("\n"),
            attributes={"ostiary.kind": str(record.get("kind")), "ostiary.seq": int(record.get("seq") or 0),
                        "ostiary.writer": int(record.get("writer") or 0)},
        )  # fmt: skip
        return ReadableLogRecord(told, self._resource, _SCOPE)
