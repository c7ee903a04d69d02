"""A client that does everything right, for tests that break one thing at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from gateway.contract.envelope import parse_envelope
from gateway.contract.headers import encode_value, match_headers
from gateway.contract.passage import Call, Envelope, Received, Server
from gateway.contract.refusals import Refusal, Refused

VERSION = "2026-07-28"
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
TASKS_META: dict[str, Any] = {
    **META,
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
}
"""That of a client which can handle tasks."""

SERVER = Server(
    name="readonly",
    path="/readonly/mcp",
    resource="https://mcp.example.com/readonly/mcp",
    metadata_url="https://mcp.example.com/.well-known/oauth-protected-resource/readonly/mcp",
    environment="production",
    scopes=("mcp:use",),
)
Lines = list[tuple[str, str | bytes]]


def message(method: str = "tools/call", *, meta: Any = META, **members: Any) -> dict[str, Any]:
    """A request as a value. `meta=None` leaves `_meta` out; `id=None` makes a notification."""
    request: dict[str, Any] = {"jsonrpc": "2.0", "id": members.pop("id", 1), "method": method}
    if request["id"] is None:
        del request["id"]
    params = members.pop("params", None)
    if params is None:
        params = {"tools/call": {"name": "read_file", "arguments": {"path": "/etc/motd"}}}.get(method, {})
    request["params"] = params if meta is None else {**params, "_meta": meta}
    return {**request, **members}


def lines_of(request: Mapping[str, Any]) -> Lines:
    """The header lines that a right client sends with this request."""
    params = request["params"]
    named = {
        "tools/call": "name",
        "prompts/get": "name",
        "resources/read": "uri",
        "tasks/get": "taskId",
        "tasks/update": "taskId",
        "tasks/cancel": "taskId",
    }.get(request["method"])
    lines: Lines = [
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("Authorization", "Bearer canary-token"),
        ("MCP-Protocol-Version", VERSION),
        ("Mcp-Method", request["method"]),
    ]
    if named and isinstance(params.get(named), str):
        lines.append(("Mcp-Name", encode_value(params[named]).decode()))
    return lines


def received(lines: Lines, server: Server = SERVER) -> Received:
    """The head's snapshot as the door takes it: names in lower case, optional whitespace around values trimmed."""
    head = tuple(
        (name.lower().encode(), (value if isinstance(value, bytes) else value.encode("latin-1")).strip(b" \t"))
        for name, value in lines
    )
    return Received(server, "POST", server.path, head)


def ask(request: Mapping[str, Any], lines: Lines | None = None, server: Server = SERVER) -> Call:
    """Envelope and headers of one request, as the corridor reads them."""
    lines = lines_of(request) if lines is None else lines
    return match_headers(received(lines, server), parse_envelope(orjson.dumps(request)))


def refusal(request: Mapping[str, Any], lines: Lines | None = None, server: Server = SERVER) -> Refused:
    """The refusal that this request must meet."""
    with pytest.raises(Refused) as caught:
        ask(request, lines, server)
    return caught.value


def unreadable(body: bytes, expected: Refusal) -> Refused:
    """The refusal that this body must meet as an envelope."""
    with pytest.raises(Refused) as caught:
        parse_envelope(body)
    assert caught.value.refusal is expected, caught.value
    return caught.value


def without(lines: Lines, name: str) -> Lines:
    """The lines less those of one header."""
    return [line for line in lines if line[0].lower() != name.lower()]


def replaced(lines: Lines, name: str, *values: str | bytes) -> Lines:
    """The lines with other values for one header, a line each."""
    return [*without(lines, name), *((name, value) for value in values)]


def envelope_of(arguments: str) -> Envelope:
    """A tool call whose arguments are this JSON text, spliced in as it is."""
    return parse_envelope(call_text(arguments.encode()))


def call_text(arguments: bytes) -> bytes:
    """The body of a tool call with this text in the place of its arguments."""
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":' + arguments + b"}}"
