"""An MCP server that writes every call down before it answers, and that can be restarted while it is called.

`python -m tests.support.ledger PORT FILE DRAIN_S`: each `tools/call` appends its `n` to FILE, which several share. On
SIGTERM it ends decently, as a good server does: each answer says that it is its connection's last, newcomers are
refused after DRAIN_S and only once nobody is left half-way in, and no kept connection is closed that a client may
still use. Subscriptions get their result; their connections are closed with it, as uvicorn does, though a head that
was sent before could not say so. A line on stdout says that it listens, another one that it no longer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import Any, cast

import orjson

from gateway.serving.listener import SETTLE_S, bind, keep_out
from gateway.upstream.target import UpstreamLimits
from tests.support.streaming import SUBSCRIPTION_ID, acknowledgement, event
from tests.support.upstream import SSE_HEAD, chunk, result_of

LINGER_S = UpstreamLimits().idle_s * 3
"""The gateway closes what has idled for a third of this. One that idles since before SIGTERM is closed no sooner than
a client that gets little processor has had time for it: a request might be on its way in it."""
LAST_HEAD = SSE_HEAD[:-2] + b"Connection: close\r\n\r\n"
TOOLS = [{"name": "read", "inputSchema": {"type": "object"}}]
open_: set[Ledger] = set()
alone = asyncio.Event()
subscribed: dict[Ledger, Any] = {}
leaving = asyncio.Event()


class Ledger(asyncio.Protocol):
    """One connection, one request at a time."""

    transport: asyncio.Transport
    book: int

    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast(asyncio.Transport, transport)
        open_.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Gone."""
        open_.discard(self)
        if not open_:
            alone.set()
        subscribed.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """Whole requests, one after the other."""
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._data) < end + 4 + length:
                return
            body, self._data = self._data[end + 4 : end + 4 + length], self._data[end + 4 + length :]
            self._serve(orjson.loads(body))

    def _serve(self, request: dict[str, Any]) -> None:
        method, request_id = request["method"], request["id"]
        if method == "subscriptions/listen":
            head = LAST_HEAD if leaving.is_set() else SSE_HEAD
            self.transport.write(head + event(acknowledgement(request)))
            subscribed[self] = request_id
            if leaving.is_set():
                self.end()
        elif method == "tools/list":
            self._answer(result_of(request_id, tools=TOOLS, ttlMs=600_000, cacheScope="public"))
        elif method == "tools/call":
            os.write(self.book, b"%d\n" % request["params"]["arguments"]["n"])
            self._answer(result_of(request_id, content=[], isError=False))
        else:
            error = {"code": -32601, "message": "no such method"}
            self._answer(orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}))

    def _answer(self, content: bytes) -> None:
        close = b"Connection: close\r\n" if leaving.is_set() else b""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
        self.transport.write(head % (close, len(content)) + content)
        if leaving.is_set():
            self.transport.close()

    def end(self) -> None:
        """The subscription's result."""
        request_id = subscribed.pop(self)
        done = {"resultType": "complete", "_meta": {SUBSCRIPTION_ID: request_id}}
        self.transport.write(event({"jsonrpc": "2.0", "id": request_id, "result": done}) + chunk(b""))
        self.transport.close()


async def main(port: int, book: str, drain_s: float) -> None:
    """Serve until SIGTERM, and a little longer."""
    Ledger.book = os.open(book, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    loop, door = asyncio.get_running_loop(), bind("127.0.0.1", port, "port")
    loop.add_signal_handler(signal.SIGTERM, leaving.set)
    server = await loop.create_server(Ledger, sock=door, backlog=1024)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await leaving.wait()
    until = loop.time() + LINGER_S
    for one in list(subscribed):
        one.end()
    await asyncio.sleep(drain_s)
    keep_out(door)
    await asyncio.sleep(SETTLE_S)
    server.close()
    sys.stdout.write("closed\n")
    sys.stdout.flush()
    await asyncio.sleep(0.1)  # whoever was accepted at the last moment is among `open_` by then
    alone.clear()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            if open_:
                await alone.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
