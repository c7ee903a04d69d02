"""One HTTP request of the tour and its answer, exactly as they went over the wire, and as a `curl` line.

MCP 2026-07-28 over stateless Streamable HTTP: a POST whose headers mirror the body (transport, "Standard headers").
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

REVISION = "2026-07-28"
NAMED = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/cancel": "taskId",
}
_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that is ready to be sent."""

    verb: str
    url: str
    headers: Mapping[str, str]
    body: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """The body as it is sent; empty where there is none."""
        return "" if self.body is None else json.dumps(self.body)

    def curl(self) -> str:
        """A command line that sends exactly this."""
        lines = [f"curl -sS {shlex.quote(self.url)}"]
        lines += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in self.headers.items()]
        if self.body is not None:
            lines.append(f"-d {shlex.quote(self.text)}")
        return " \\\n  ".join(lines)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    phrase: str
    headers: Mapping[str, str]
    text: str
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> int:
        """The JSON-RPC error's code, 0 where there is no error."""
        return int(self.document.get("error", {}).get("code", 0))

    @property
    def error_data(self) -> dict[str, Any]:
        """The JSON-RPC error's data, empty where there is none."""
        data = self.document.get("error", {}).get("data", {})
        return data if isinstance(data, dict) else {}

    @property
    def ticket(self) -> dict[str, Any]:
        """The ticket of an error 40303 or 40304, empty where there is none."""
        ticket = self.error_data.get("ticket", {})
        return ticket if isinstance(ticket, dict) else {}

    @property
    def structured(self) -> dict[str, Any]:
        """A tool result's structured content, empty where there is none."""
        content = self.document.get("result", {}).get("structuredContent", {})
        return content if isinstance(content, dict) else {}

    @property
    def decision_id(self) -> str:
        """The id that the audit record, `ostiary explain` and this answer share."""
        return self.headers.get("ostiary-decision", "")


def ask_mcp(
    url: str,
    token: str,
    method: str,
    params: Mapping[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    capabilities: Mapping[str, Any] | None = None,
) -> Ask:
    """An MCP request with the headers that mirror it; `headers` says otherwise, for the stops that lie."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": REVISION,
        "io.modelcontextprotocol/clientCapabilities": dict(capabilities or {}),
    }
    mirrored = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": REVISION,
        "Mcp-Method": method,
    }
    if method in NAMED:
        mirrored["Mcp-Name"] = str(params[NAMED[method]])
    body = {"jsonrpc": "2.0", "id": next(_ids), "method": method, "params": {**params, "_meta": meta}}
    return Ask("POST", url, mirrored | dict(headers or {}), body)


def ask_tool(
    url: str, token: str, tool: str, arguments: Mapping[str, Any], *, headers: Mapping[str, str] | None = None
) -> Ask:
    """A `tools/call`."""
    return ask_mcp(url, token, "tools/call", {"name": tool, "arguments": dict(arguments)}, headers=headers)


def ask_api(url: str, token: str, body: Mapping[str, Any] | None = None) -> Ask:
    """A request to the approvals API: GET without a body, POST with one."""
    headers = {"Authorization": f"Bearer {token}"} | (
        {"Content-Type": "application/json"} if body is not None else {}
    )
    return Ask("GET" if body is None else "POST", url, headers, body)


def send(http: httpx.Client, ask: Ask) -> Answer:
    """Send it once. Raises httpx's errors where no answer comes."""
    content = ask.text.encode() if ask.body is not None else None
    response = http.request(ask.verb, ask.url, headers=dict(ask.headers), content=content)
    text = response.text
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        text = next((line[6:] for line in reversed(text.splitlines()) if line.startswith("data: ")), "")
    try:
        document = json.loads(text)
    except ValueError:
        document = {}
    return Answer(
        response.status_code,
        response.reason_phrase,
        {name.lower(): value for name, value in response.headers.items()},
        response.text,
        document if isinstance(document, dict) else {},
    )
