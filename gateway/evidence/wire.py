"""One HTTP exchange after the other, as it went over the wire, kept without its secrets.

An exchange is `{request: {verb, url, headers, body}, trace, began_ms, sent_ms, ended_ms, answer, fault}`. `answer` is
`{status, headers, body}` or `null`; `fault` says how it broke off (`left`: we went away ourselves). Times count from
the client's first moment. Bodies are texts; one that is larger than is kept is `{bytes, sha256}`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self

import httpx

from gateway.evidence.scrubbing import Scrubber

REVISION: Final = "2026-07-28"
MOST_KEPT: Final = 262_144
"""Bytes of a body that are kept."""

ANSWER_S: Final = 30.0
_SECRET_HEADERS: Final = frozenset({"authorization", "cookie", "set-cookie", "proxy-authorization"})
_NAMES: Final = re.compile(r"\[(?:token|canary) [a-z ]+\]")
_NAMED: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"} | dict.fromkeys(
    ("tasks/get", "tasks/cancel", "tasks/update"), "taskId"
)
_META: Final = "io.modelcontextprotocol/"


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is ready to be sent."""

    verb: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""

    def with_headers(self, **changes: str | None) -> Request:
        """With other headers (`_` for `-`); `None` leaves one out."""
        named = {name.replace("_", "-"): value for name, value in changes.items()}
        lower = {name.lower() for name in named}
        kept = {name: value for name, value in self.headers.items() if name.lower() not in lower}
        return replace(self, headers=kept | {name: value for name, value in named.items() if value is not None})

    def with_body(self, body: bytes) -> Request:
        """With another body, and the same headers."""
        return replace(self, body=body)

    def with_query(self, query: str) -> Request:
        """With a query, which means nothing here."""
        return replace(self, url=f"{self.url}?{query}")

    def document(self) -> dict[str, Any]:
        """The body, decoded anew."""
        told: dict[str, Any] = json.loads(self.body)
        return told


def ask(url: str, token: str, method: str, params: Mapping[str, Any], *, progress: bool = False) -> Request:
    """An MCP request whose headers mirror its body."""
    meta: dict[str, Any] = {f"{_META}protocolVersion": REVISION, f"{_META}clientCapabilities": {}}
    if progress:
        meta["progressToken"] = "evidence"
    message = {"jsonrpc": "2.0", "id": secrets.token_hex(4), "method": method, "params": {**params, "_meta": meta}}
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": REVISION,
        "Mcp-Method": method,
    }
    if method in _NAMED:
        headers["Mcp-Name"] = str(params[_NAMED[method]])
    return Request("POST", url, headers, json.dumps(message).encode())


def ask_api(url: str, token: str, body: Mapping[str, Any] | None = None) -> Request:
    """A request to the approvals API: GET without a body, POST with one."""
    headers = {"Authorization": f"Bearer {token}"}
    if body is None:
        return Request("GET", url, headers)
    return Request("POST", url, headers | {"Content-Type": "application/json"}, json.dumps(body).encode())


@dataclass(slots=True)
class Client:
    """Sends each request once and keeps what happened. An async context manager."""

    scrubber: Scrubber
    tls: ssl.SSLContext | bool = True
    _http: httpx.AsyncClient = field(init=False)
    _start: float = field(init=False, default_factory=time.monotonic)

    async def __aenter__(self) -> Self:
        limits = httpx.Limits(max_connections=400, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(trust_env=False, verify=self.tls, timeout=ANSWER_S, limits=limits)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def send(
        self, request: Request, *, leave_after: bytes = b"", leave_s: float = 0, begun: asyncio.Event | None = None
    ) -> dict[str, Any]:
        """Send it -> the exchange. `leave_after`: go away once the body holds these bytes.

        Or, with `leave_s`, so long after it was sent. `begun` is set when the answer's body begins.
        """
        mark = secrets.token_hex(16)
        told: dict[str, Any] = {"trace": mark, "began_ms": self._now(), "sent_ms": None, "answer": None, "fault": ""}

        async def watch(event: str, _info: Mapping[str, Any]) -> None:
            if event == "http11.send_request_body.complete":
                told["sent_ms"] = self._now()
                if leave_s:
                    limit.reschedule(asyncio.get_running_loop().time() + leave_s)

        # What is compressed on its way can be neither judged nor searched for secrets.
        headers = {
            "Accept-Encoding": "identity",
            **request.headers,
            "traceparent": f"00-{mark}-{secrets.token_hex(8)}-01",
        }
        body, kept = bytearray(), hashlib.sha256()
        size = 0
        try:
            async with asyncio.timeout(ANSWER_S) as limit, self._http.stream(
                request.verb,
                request.url,
                headers=headers,
                content=request.body or None,
                extensions={"trace": watch},
            ) as response:  # fmt: skip
                told["answer"] = {"status": response.status_code, "headers": self._headers(response.headers)}
                async for chunk in response.aiter_raw():
                    if begun is not None:
                        begun.set()
                    size += len(chunk)
                    kept.update(chunk)
                    body += chunk[: MOST_KEPT - len(body)]
                    if leave_after and leave_after in body:
                        told["fault"] = "left"
                        break
        except TimeoutError:
            told["fault"] = "left" if leave_s and told["sent_ms"] else "no answer in time"
        except httpx.HTTPError as error:
            told["fault"] = type(error).__name__
        told["ended_ms"] = self._now()
        if told["answer"] is not None:
            told["answer"]["body"] = self._body(bytes(body), size, kept.hexdigest())
        sent = self._body(request.body, len(request.body), hashlib.sha256(request.body).hexdigest())
        told["request"] = {
            "verb": request.verb,
            "url": self.scrubber.clean(request.url),
            "headers": self._headers(headers),
            "body": sent,
        }
        return told

    def _now(self) -> float:
        return round((time.monotonic() - self._start) * 1000, 1)

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Credentials go by their names alone; all others are searched like any text."""
        cleaned = {name.lower(): self.scrubber.clean(value) for name, value in headers.items()}
        return {
            name: " ".join(_NAMES.findall(value)) or "[redacted]" if name in _SECRET_HEADERS else value
            for name, value in cleaned.items()
        }

    def _body(self, body: bytes, size: int, digest: str) -> str | dict[str, Any]:
        if size > MOST_KEPT:
            return {"bytes": size, "sha256": digest}
        return self.scrubber.clean(body.decode("utf-8", "backslashreplace"))
