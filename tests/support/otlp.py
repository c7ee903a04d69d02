"""An OTLP receiver on a socket, for logs and traces: it decodes what comes, and can be made to refuse or to hang."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """`records` are log records, `spans` spans, `resources` the attributes of what sent those."""

    def __init__(self, port: int = 0) -> None:
        self.records: list[Any] = []
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.headers: list[str] = []
        self.status = 200
        self.largest = 2**30
        self.hang: threading.Event | None = None
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.headers.append(self.headers.get("x-key", ""))
                if receiver.hang is not None:
                    receiver.hang.wait(30)
                status = 413 if len(body) > receiver.largest else receiver.status
                if status == 200:
                    receiver.take(self.path, body)
                answer = ExportLogsServiceResponse().SerializeToString()  # empty, as the other one
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}/v1/logs"
        self.traces_url = f"http://127.0.0.1:{self.port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        """A body that was accepted."""
        if path.endswith("/v1/traces"):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(texts(resource.resource))
                for told in resource.scope_spans:
                    self.spans += told.spans
            return
        for logged in ExportLogsServiceRequest.FromString(body).resource_logs:
            for scope in logged.scope_logs:
                self.records += scope.log_records

    def close(self) -> None:
        """Gone: connections are refused."""
        self.server.shutdown()
        self.server.server_close()


def texts(told: Any) -> dict[str, str]:
    """The attributes of a span or resource; numbers as their digits."""
    return {one.key: one.value.string_value or str(one.value.int_value) for one in told.attributes}


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """One that is there meanwhile."""
    one = Receiver()
    try:
        yield one
    finally:
        one.close()
