"""What stands before every demo server: it writes down each MCP request that arrives, and lets in the gateway only.

The lines are the ground truth of the demos: which replica served what is read from here, never from an answer. One
line is one append, so lines of several processes do not mix.
"""

from __future__ import annotations

import hmac
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

CREDENTIAL_ENV = "DEMO_UPSTREAM_CREDENTIAL"
"""The environment variable whose value (a whole `Authorization` header) the demo servers ask for."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The MCP requests that arrived, in a directory that all replicas share."""

    directory: Path

    def note_arrival(self, **what: str) -> None:
        """Write down that an MCP request reached a replica, before anything else is done with it."""
        self._append("arrivals.jsonl", what)

    def arrivals(self, method: str = "") -> list[dict[str, Any]]:
        """Every MCP request that reached a replica (of one `Mcp-Method`), in order."""
        return [line for line in self._lines("arrivals.jsonl") if method in ("", line["method"])]

    def _append(self, name: str, line: dict[str, Any]) -> None:
        handle = os.open(self.directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, json.dumps(line).encode() + b"\n")
        finally:
            os.close(handle)

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.directory / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Doorstep:
    """Writes down every MCP request that arrives, then lets in only who shows the gateway's credential."""

    def __init__(self, app: ASGIApp, arrivals: Arrivals, replica: str, credential: str) -> None:
        self._app = app
        self._arrivals = arrivals
        self._replica = replica
        self._expected = credential.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and scope["path"].endswith("/mcp"):
            head: dict[bytes, bytes] = dict(scope["headers"])
            self._arrivals.note_arrival(
                replica=self._replica,
                path=scope["path"],
                method=head.get(b"mcp-method", b"").decode("latin-1"),
                name=head.get(b"mcp-name", b"").decode("latin-1"),
                trace=head.get(b"traceparent", b"").decode("latin-1")[3:35],
            )
            if not hmac.compare_digest(head.get(b"authorization", b""), self._expected):
                await PlainTextResponse("this server answers the gateway only\n", 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)
