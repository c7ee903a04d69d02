"""Upstreams for tests: one that plays any script on a raw socket, and one that costs next to nothing.

`ScriptedUpstream` reads whole requests, records every one of them and lets a coroutine say what goes on the wire,
byte by byte, as broken or hostile as it likes. `serve_free` (also `python -m tests.support.upstream`) is a correct
MCP server for benchmarks: JSON answers, keep-alive, nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import ssl
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, cast

import orjson

from gateway.contract.envelope import parse_envelope
from gateway.contract.passage import Admitted, Call, Identity, Server


@dataclass(frozen=True)
class Seen:
    """One request as it came over the wire. Header names as they were sent."""

    line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def values(self, name: str) -> list[str]:
        """All values of a header, its name compared ignoring case."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


@dataclass
class Exchange:
    """One request and the socket that waits for its answer."""

    seen: Seen
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    nth: int

    async def send(self, data: bytes) -> None:
        """Put bytes on the wire."""
        self.writer.write(data)
        await self.writer.drain()

    async def gone(self, timeout_s: float = 5.0) -> float:
        """Wait until the other side closes; seconds that it took. `TimeoutError` when it does not."""
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(self.reader.read(1), timeout_s)
        return time.monotonic() - began

    def reset(self) -> None:
        """Drop the connection with a RST."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    @property
    def id(self) -> object:
        """The JSON-RPC id of the request."""
        return orjson.loads(self.seen.body).get("id")


Script = Callable[[Exchange], Awaitable[None]]

SERVER = Server("demo", "/demo/mcp", "https://gw.example/demo/mcp", "https://gw.example/.well-known/x")
CALLER = Identity("https://idp.example", "alice")
HEADERS = (
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
    (b"mcp-protocol-version", b"2026-07-28"),
    (b"mcp-method", b"tools/call"),
    (b"mcp-name", b"add"),
)


def a_call(
    request_id: str | int | None = 1,
    *,
    method: str = "tools/call",
    kind: str = "tool",
    capabilities: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Call:
    """A call as it looks after all checks of the request."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": {"name": "add", "arguments": {"a": 1}}}
    message["params"]["_meta"] = dict(meta or {})
    if request_id is not None:
        message["id"] = request_id
    envelope = parse_envelope(orjson.dumps(message))
    return Call(envelope, kind, method, "add", {"a": 1}, dict(capabilities or {}))


def a_subscription(
    notifications: Mapping[str, Any], request_id: str | int = 1, *, meta: Mapping[str, Any] | None = None
) -> Call:
    """A `subscriptions/listen` as it looks after all checks of the request."""
    params = {"notifications": dict(notifications), "_meta": dict(meta or {})}
    message = {"jsonrpc": "2.0", "id": request_id, "method": "subscriptions/listen", "params": params}
    envelope = parse_envelope(orjson.dumps(message))
    return Call(envelope, "subscription", "subscriptions/listen", None, {"notifications": dict(notifications)}, {})


def an_admitted(
    call: Call | None = None, *, headers: tuple[tuple[bytes, bytes], ...] = HEADERS, body: bytes | None = None
) -> Admitted:
    """An admitted call to `SERVER`, made without the corridor."""
    call = call or a_call()
    return Admitted("decision", SERVER, CALLER, call, call.envelope.raw if body is None else body, headers)


def http(
    status: int, body: bytes = b"", *, kind: str = "application/json", extra: str = "", reason: str = "x"
) -> bytes:
    """A whole HTTP answer with a Content-Length."""
    typed = f"Content-Type: {kind}\r\n" if kind else ""
    head = f"HTTP/1.1 {status} {reason}\r\n{typed}{extra}Content-Length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; the empty one ends it."""
    return b"%x\r\n%s\r\n" % (len(data), data)


SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def result_of(request_id: object, **members: object) -> bytes:
    """A JSON-RPC result with `resultType: complete`."""
    result = {"resultType": "complete", "content": [], **members}
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": result})


async def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    """For what the other side of a socket has no event for."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def answer(exchange: Exchange) -> None:
    """The well-behaved script."""
    await exchange.send(http(200, result_of(exchange.id)))


@dataclass
class ScriptedUpstream:
    """A listener on loopback. `script` decides each answer; `seen` holds each whole request, in order."""

    script: Script = answer
    port: int = 0
    tls: ssl.SSLContext | None = None
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        """The MCP endpoint."""
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._open)

    async def start(self) -> Self:
        """Listen; on the same port again after `stop`."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 24, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Refuse connections from now on and drop those that are open."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        self.connections += 1
        nth = 0
        try:
            while not writer.is_closing():
                seen = await _read_request(reader)
                self.seen.append(seen)
                nth += 1
                await self.script(Exchange(seen, reader, writer, nth))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(writer)
            self._tasks.discard(task)
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Seen:
    head = await reader.readuntil(b"\r\n\r\n")
    line, *lines = head[:-4].decode("latin-1").split("\r\n")
    headers = tuple((name, value.strip()) for name, _, value in (item.partition(":") for item in lines))
    length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
    return Seen(line, headers, await reader.readexactly(length))


class _Free(asyncio.Protocol):
    """Answers each request with a result that carries its id; no task, no await."""

    transport: asyncio.Transport

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._data = b""
        self._tools = tools

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._data) < end + 4 + length:
                return
            body, self._data = self._data[end + 4 : end + 4 + length], self._data[end + 4 + length :]
            self.transport.write(http(200, _free_answer(orjson.loads(body), self._tools)))


def _free_answer(request: dict[str, object], tools: Sequence[Mapping[str, Any]]) -> bytes:
    if request["method"] == "tools/list":
        return result_of(request["id"], tools=tools, ttlMs=60000, cacheScope="public")
    return result_of(request["id"], content=[{"type": "text", "text": "x" * 200}])


READ_FILE: Mapping[str, Any] = {
    "name": "read_file",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}},
    "annotations": {"readOnlyHint": True},
}


def many_tools(count: int) -> list[Mapping[str, Any]]:
    """Tools as large servers describe theirs, `search_0` and so on: some 600 bytes each."""
    properties = {
        "query": {"type": "string", "maxLength": 400, "description": "What to look for, in the words of who asks."},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100, "description": "How many at most."},
        "after": {"type": "string", "format": "date-time", "description": "Nothing that is older than this."},
    }
    schema = {"type": "object", "properties": properties, "required": ["query"]}
    about = "Searches collection {} and returns what fits best, newest first, with a link to each document found."
    annotations = {"title": "Search", "readOnlyHint": True}
    return [
        {"name": f"search_{n}", "description": about.format(n), "inputSchema": schema, "annotations": annotations}
        for n in range(count)
    ]


async def serve_free(
    host: str = "127.0.0.1", port: int = 0, tools: Sequence[Mapping[str, Any]] = (READ_FILE,)
) -> asyncio.Server:
    """Start the free upstream."""
    return await asyncio.get_running_loop().create_server(lambda: _Free(tools), host, port)


async def _main(port: int, tools: int) -> None:
    server = await serve_free(port=port, tools=many_tools(tools) or (READ_FILE,))
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    parser = argparse.ArgumentParser(description="A free MCP upstream; prints its port.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tools", type=int, default=0, help="so many in its list, instead of one")
    given = parser.parse_args()
    uvloop.run(_main(given.port, given.tools))
