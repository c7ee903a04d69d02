"""A server of an earlier revision as a script for `ScriptedUpstream`: sessions, and a hook for each method."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.support.upstream import SSE_HEAD, Exchange, Script, chunk, http

TOOL = {"name": "add", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}}
LISTS = {
    "tools/list": {"tools": [TOOL]},
    "prompts/list": {"prompts": []},
    "resources/list": {"resources": []},
    "resources/templates/list": {"resourceTemplates": []},
}


def rpc(exchange: Exchange, result: Any = None, error: Mapping[str, Any] | None = None) -> bytes:
    """An answer with the id that was asked."""
    told = {"result": result} if error is None else {"error": error}
    return orjson.dumps({"jsonrpc": "2.0", "id": exchange.id, **told})


def event(message: Any, head: bytes = b"event: message\n") -> bytes:
    """A message as an event, with an id as servers of that time give it."""
    text = message if isinstance(message, bytes) else orjson.dumps(message)
    return head + b"id: e-1\ndata: " + text + b"\n\n"


def stranger(status: int = 404, kind: str = "application/json") -> bytes:
    """What is answered to a session that is not known, the request's id unread."""
    error = {"jsonrpc": "2.0", "error": {"code": -32001, "message": "Session not found"}, "id": None}
    return http(status, orjson.dumps(error) if kind == "application/json" else b"Session not found", kind=kind)


@dataclass
class PastServer:
    """`hooks` replace what is done for a method; a hook that has sent nothing goes on to the ordinary answer.

    `asked` holds (method, session id) in order of arrival, `ran` the ids of calls that were carried out.
    """

    keeps_sessions: bool = True
    version: str = "2025-06-18"
    lost: Callable[[Exchange], bytes] = lambda _: stranger()
    name: str = "s"
    hooks: dict[str, Script] = field(default_factory=dict)
    known: list[str] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    ran: list[Any] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def methods(self) -> list[str]:
        """What was asked, in order."""
        return [method for method, _ in self.asked]

    async def __call__(self, exchange: Exchange) -> None:
        """Serve one request."""
        verb = exchange.seen.line.split()[0]
        session = "".join(exchange.seen.values("mcp-session-id"))
        method = orjson.loads(exchange.seen.body)["method"] if verb == "POST" else verb
        self.asked.append((method, session))
        if method in self.hooks:
            await self.hooks[method](exchange)
        elif method == "initialize":
            await self.welcome(exchange)
        elif self.keeps_sessions and session not in self.known:
            await exchange.send(self.lost(exchange))
        elif method == "DELETE":
            self.known.remove(session)
            await exchange.send(http(200, kind=""))
        elif method.startswith("notifications/"):
            await exchange.send(http(202, kind=""))
        else:
            await self.answer(exchange, method)

    async def welcome(self, exchange: Exchange, *lines: str, **result: Any) -> None:
        """Answer `initialize`; `lines` in place of the session's."""
        offered: dict[str, Any] = {"tools": {"listChanged": True}, "logging": {}}
        said = {
            "protocolVersion": self.version,
            "capabilities": offered,
            "serverInfo": {"name": "old", "version": "1"},
        }
        if self.keeps_sessions and not lines:
            self.known.append(f"{self.name}-{next(self.numbers)}")
            lines = (f"Mcp-Session-Id: {self.known[-1]}\r\n",)
        await exchange.send(http(200, rpc(exchange, {**said, **result}), extra="".join(lines)))

    async def answer(self, exchange: Exchange, method: str) -> None:
        """Carry a request out; calls of tools answer with a stream."""
        if method != "tools/call":
            await exchange.send(http(200, rpc(exchange, LISTS.get(method, {}))))
            return
        self.ran.append(exchange.id)
        told = rpc(exchange, {"content": [{"type": "text", "text": f"ran as {exchange.id}"}]})
        await exchange.send(SSE_HEAD + chunk(b"id: e-0\nretry: 10\ndata: \n\n" + event(told)) + chunk(b""))
