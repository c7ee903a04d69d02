"""Committed records as OpenTelemetry logs (OTLP over HTTP): an export that may lag, and counts what it loses.

What is sent is the record's own line and nothing more. The queue is bounded; what finds no room, or is still waiting
at the end, is counted (`lost`) and told. A thread of its own sends: the exporter blocks.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import requests
import structlog
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gateway.audit.query import read_record

MAX_WAITING: Final = 10_000
_MAX_BYTES: Final = 16 * 1024 * 1024
_BATCH: Final = 256
_GROWS_AFTER: Final = 64
_TIMEOUT_S: Final = 5.0
_AGAIN_S: Final = 1.0
_CLOSE_S: Final = 2.0
_SCOPE: Final = InstrumentationScope("ostiary.audit")


class OtlpExport:
    """`endpoint` is the receiver's whole URL (`…/v1/logs`), `headers` go with every request."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], *, max_waiting: int = MAX_WAITING) -> None:
        session = requests.Session()
        session.trust_env = False  # no proxy and no .netrc from the environment
        session.max_redirects = 0
        self._exporter: Final = OTLPLogExporter(endpoint, headers=dict(headers), timeout=_TIMEOUT_S, session=session)
        self._resource: Final = Resource({"service.name": "ostiary"})
        self._max: Final = max_waiting
        self._waiting: Final[deque[bytes]] = deque()
        self._taken_bytes = self._given_bytes = 0  # each is counted by one thread only
        self._more: Final = threading.Event()
        self._closing = False
        self._failing = False
        self._log = structlog.get_logger("audit")
        self._thread: Final = threading.Thread(target=self._run, name="audit-otlp", daemon=True)
        self.lost = self.sent = 0

    @property
    def waiting(self) -> int:
        """Records that the receiver does not have yet."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def take(self, lines: Sequence[bytes]) -> None:
        """Durable records: queued, or counted as lost. Never waits."""
        for taken, line in enumerate(lines):
            if len(self._waiting) >= self._max or self._taken_bytes - self._given_bytes + len(line) > _MAX_BYTES:
                if not self.lost:
                    self._log.error("audit_export_overflows", waiting=len(self._waiting))
                self.lost += len(lines) - taken
                break
            self._taken_bytes += len(line)
            self._waiting.append(line)
        self._more.set()

    def close(self) -> None:
        """Send what waits, for two seconds at most; the rest is counted and told. Blocks."""
        self._closing = True
        self._more.set()
        self._thread.join(_CLOSE_S)
        left = len(self._waiting)
        self.lost += left
        if self.lost:
            self._log.error("audit_export_lost", records=self.lost)

    def _run(self) -> None:
        size, fitted = _BATCH, 0
        while True:
            if not self._waiting:
                if self._closing:
                    break
                self._more.clear()
                if not self._waiting and not self._closing:
                    self._more.wait()
                continue
            batch = [self._waiting[n] for n in range(min(size, len(self._waiting)))]
            if self._export(batch):
                for line in batch:
                    self._waiting.popleft()
                    self._given_bytes += len(line)
                self.sent += len(batch)
                fitted += 1
                if fitted % _GROWS_AFTER == 0:
                    size = min(2 * size, _BATCH)
            elif self._closing:
                break
            else:
                size, fitted = max(1, len(batch) // 2), 0  # the receiver may take fewer at a time
                self._more.clear()
                self._more.wait(_AGAIN_S)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _export(self, batch: Sequence[bytes]) -> bool:
        try:
            done = self._exporter.export([self._as_log(line) for line in batch]) is LogRecordExportResult.SUCCESS
        except requests.RequestException:
            done = False
        if done is self._failing:
            self._failing = not done
            if done:
                self._log.info("audit_exported_again", waiting=len(self._waiting))
            else:
                self._log.warning("audit_not_exported", waiting=len(self._waiting))
        return done

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
