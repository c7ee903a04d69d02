"""A server of streams as a process of its own: subscriptions that say nothing, floods, calls that never end.

One task-free protocol, so that ten thousand streams cost it little. `python -m tests.support.streaming` prints its
port. What it has to say of itself is a tool: `count` -> `{"open", "subscribed", "written"}` (connections, callers'
subscriptions, bytes of the floods).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

import orjson

from tests.support.upstream import SSE_HEAD, chunk, http, result_of

SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
NAMES = ("read", "wait", "go", "flood", "hang", "stand", "line", "many", "count")
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
PIECE = 32_768
open_: set[Streaming] = set()
subscribed: dict[Streaming, object] = {}
"""Connection -> the id of the subscription on it; those of the gateway's own are not counted."""
waiting: list[tuple[asyncio.Transport, bytes]] = []
written = 0


def event(message: Any) -> bytes:
    """One message as a chunk of an event stream."""
    return chunk(b"data: " + orjson.dumps(message) + b"\n\n")


def acknowledgement(request: dict[str, Any]) -> dict[str, Any]:
    """All that was asked for."""
    asked = request["params"]["notifications"]
    params = {"_meta": {SUBSCRIPTION_ID: request["id"]}, "notifications": asked}
    return {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}


class Streaming(asyncio.Protocol):
    """One connection, one request at a time.

    Tools: `read` answers, `wait` does when somebody calls `go`, `flood` streams `bytes` of log messages and
    then its result, `hang` never begins an answer, `stand` begins a stream and leaves it there, `line` is one event
    of `bytes`, `many` are that many small `events`, `count` tells.
    """

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._data = b""
        self._flooding: tuple[object, int] | None = None
        self._paused = False
        self._left, self._piece = 0, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self.transport = cast(asyncio.Transport, transport)
        open_.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Gone."""
        open_.discard(self)
        subscribed.pop(self, None)
        self._flooding = None

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

    def pause_writing(self) -> None:
        """The gateway takes no more."""
        self._paused = True

    def resume_writing(self) -> None:
        """It takes more."""
        self._paused = False
        self._flow()
        self._flood()

    def _serve(self, request: dict[str, Any]) -> None:
        method, request_id = request["method"], request["id"]
        name = request["params"].get("name")
        if method == "subscriptions/listen":
            if not str(request_id).startswith("ostiary-"):
                subscribed[self] = request_id
            self.transport.write(SSE_HEAD + event(acknowledgement(request)))
        elif method == "tools/list":
            self.transport.write(http(200, result_of(request_id, tools=TOOLS, ttlMs=60_000, cacheScope="public")))
        elif name == "line":
            self._begin(b"data: ", request["params"]["arguments"]["bytes"], b"x" * PIECE)
        elif name == "many":
            small = b'data: {"jsonrpc":"2.0","method":"com.example/notifications/note","params":{}}\n\n'
            self._begin(b"", request["params"]["arguments"]["events"] * len(small), small * (PIECE // len(small)))
        elif name == "flood":
            self.transport.write(SSE_HEAD)
            self._flooding = (request_id, request["params"]["arguments"]["bytes"])
            self._flood()
        elif name == "stand":
            self.transport.write(SSE_HEAD)
        elif name == "count":
            figures = {"open": len(open_), "subscribed": len(subscribed), "written": written}
            self.transport.write(http(200, result_of(request_id, structuredContent=figures)))
        elif name == "wait":
            waiting.append((self.transport, http(200, result_of(request_id))))
        elif name == "go":
            while waiting:
                transport, answer = waiting.pop()
                transport.write(answer)
            self.transport.write(http(200, result_of(request_id)))
        elif name != "hang":
            self.transport.write(http(200, result_of(request_id)))

    def _begin(self, head: bytes, size: int, piece: bytes) -> None:
        """Bytes, and no end that a client could wait for."""
        self.transport.write(SSE_HEAD + (chunk(head) if head else b""))
        self._left, self._piece = size, chunk(piece)
        self._flow()

    def _flow(self) -> None:
        while self._left > 0 and not self._paused and not self.transport.is_closing():
            self._left -= len(self._piece)
            self.transport.write(self._piece)

    def _flood(self) -> None:
        global written  # noqa: PLW0603 - the process's one figure
        while self._flooding is not None and not self._paused:
            request_id, left = self._flooding
            if left <= 0:
                self._flooding = None
                self.transport.write(chunk(b"data: " + result_of(request_id) + b"\n\n") + chunk(b""))
                return
            params = {"level": "info", "data": "x" * PIECE}
            self._flooding = (request_id, left - PIECE)
            written += PIECE
            self.transport.write(
                event({"jsonrpc": "2.0", "method": "com.example/notifications/note", "params": params})
            )


async def main(port: int = 0) -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Streaming, "127.0.0.1", port, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    import argparse
    import resource

    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(main(parser.parse_args().port))
