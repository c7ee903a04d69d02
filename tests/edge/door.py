"""A real uvicorn on loopback with the door in front of a corridor that writes down who came in.

The server runs on its own thread and loop (uvloop, as in production), so that tests may use blocking raw sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvicorn
import uvloop

from gateway.contract.passage import Arrival, Received, Reply, Server
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.reply import refusal_reply
from gateway.door.connection import Peer, server_options
from gateway.door.framing import DoorLimits
from gateway.door.quiet import QuietServer
from gateway.door.threshold import Secured, make_server
from gateway.edge import Edge

MAIN = Server(
    name="main",
    path="/main/mcp",
    resource="https://gw.example/main/mcp",
    metadata_url="https://gw.example/.well-known/oauth-protected-resource/main/mcp",
    allowed_origins=frozenset({"https://app.example"}),
)
CANARY = Server(name="canary", path="/canary/mcp", resource="https://gw.example/canary/mcp", metadata_url="")
HOST = "gw.example"
BODY = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
LIMITS = DoorLimits(head_s=1.0, body_s=1.5, idle_s=2.0, quiet_s=0.3, stall_s=2.0, linger_s=0.5)


def head(
    *lines: bytes, path: bytes = b"/main/mcp", method: bytes = b"POST", host: bytes | None = HOST.encode()
) -> bytes:
    """A request head that passes, plus `lines`; without the empty line at its end."""
    hosts = [] if host is None else [b"Host: " + host]
    common = [
        b"Accept: application/json, text/event-stream",
        b"Content-Type: application/json",
        b"Authorization: Bearer good",
    ]
    return b"\r\n".join([method + b" " + path + b" HTTP/1.1", *hosts, *common, *lines])


def post(*lines: bytes, body: bytes = BODY, path: bytes = b"/main/mcp") -> bytes:
    """A whole request that passes, with further header lines."""
    return head(*lines, b"Content-Length: %d" % len(body), path=path) + b"\r\n\r\n" + body


CANARY_REQUEST = post(path=b"/canary/mcp", body=b'{"canary":true}')


@dataclass
class StubCorridor:
    """Identifies by a fixed token, reads the body, and remembers. `script` plays the rest where it is set."""

    script: Callable[[Received, bytes], Awaitable[Reply]] | None = None
    walked: list[tuple[str, str]] = field(default_factory=list)
    served: list[tuple[Received, bytes]] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    cancelled: int = 0

    async def serve(self, arrival: Arrival) -> Reply:
        """As `gateway.pipeline.Corridor.serve`: refusals are replies."""
        try:
            received = arrival.receive()
            self.walked.append((received.http_method, received.path))
            if received.values(b"authorization") != [b"Bearer good"]:
                raise Refused(Refusal.TOKEN_INVALID)
            body = await arrival.body()
            self.served.append((received, body))
            if self.script is not None:
                return await self.script(received, body)
            return Reply(200, ((b"content-type", b"application/json"),), orjson.dumps({"served": len(self.served)}))
        except Refused as refused:
            self.refused.append(refused)
            return refusal_reply(
                refused, request_id=None, server=arrival.server, decision_id=f"c-{len(self.refused)}"
            )
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@dataclass
class OpenDoor:
    """A door that is being served."""

    address: tuple[str, int]
    corridor: StubCorridor
    turned_away: list[tuple[str, str, Peer]]
    loop: asyncio.AbstractEventLoop
    server: uvicorn.Server
    edge: Edge
    began: list[str] = field(default_factory=list)
    """How connections to a door behind TLS began."""

    def reasons(self) -> list[str]:
        """Why requests were refused, wherever they were."""
        return [reason for reason, _, _ in self.turned_away] + [one.refusal.reason for one in self.corridor.refused]


@contextlib.contextmanager
def open_door(
    limits: DoorLimits = LIMITS,
    corridor: StubCorridor | None = None,
    *,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
    wrap: Callable[[Any], Any] = lambda app: app,
    secured: Secured | None = None,
    **options: Any,
) -> Iterator[OpenDoor]:
    """Serve the door on a free port of loopback until the end of the block, over TLS where it is `secured`.

    `options` go to `uvicorn.Config`.
    """
    corridor = corridor or StubCorridor()
    turned_away: list[tuple[str, str, Peer]] = []

    def on_refused(reason: str, detail: str, peer: Peer) -> str:
        turned_away.append((reason, detail, peer))
        return f"d-{len(turned_away)}"

    edge = Edge(corridor, {MAIN.path: MAIN, CANARY.path: CANARY}, limits, {HOST})
    config = uvicorn.Config(
        wrap(edge),
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=1,
        **{**server_options(limits, on_refused), **options},
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    began: list[str] = []
    server: QuietServer = make_server(config, secured, on_refused=on_refused, count=began.append)
    loop = new_loop()
    thread = threading.Thread(target=_serve, args=(loop, server, listener), daemon=True)
    thread.start()
    try:
        yield OpenDoor(listener.getsockname(), corridor, turned_away, loop, server, edge, began)
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
    assert not thread.is_alive(), "the server did not stop"


def _serve(loop: asyncio.AbstractEventLoop, server: uvicorn.Server, listener: socket.socket) -> None:
    try:
        loop.run_until_complete(server.serve([listener]))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def relay(*chunks: bytes, every_s: float = 0.0) -> AsyncIterator[bytes]:
    """A stream of chunks, as an upstream would give them."""
    for chunk in chunks:
        if every_s:
            await asyncio.sleep(every_s)
        yield chunk
