"""The door: an ASGI scope becomes a `Received`, a `Reply` becomes bytes (contract.md section 1).

The head is a tuple that was taken before anything could wait; the body is read, under limits, only when the corridor
asks for it. The client going away cancels what is done for it, and no stream is read ahead of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final, Protocol

from gateway.asgi import Receive, Scope, Send
from gateway.contract.passage import Arrival, Received, Reply, Server, values_of
from gateway.contract.quirks import Quirk
from gateway.contract.refusals import Refusal, Refused
from gateway.door.foreign import ForeignDoor
from gateway.door.framing import DOOR, DoorLimits, Headers
from gateway.media import accepts_both_answers, accepts_json, is_identity, is_json_in_utf8
from gateway.origins import cors_headers, preflight_headers

KEEP_ALIVE: Final = b": keep-alive\n\n"
TIMER_EARLY_S: Final = 0.01  # a loop's timers may fire a little before their time
_CLOSE: Final = (b"connection", b"close")


class Corridor(Protocol):
    """What the door opens to (`gateway.pipeline.Corridor`). Never raises `Refused`: a refusal is a reply too."""

    async def serve(self, arrival: Arrival) -> Reply:
        """Walk one request through the rooms."""
        ...


class Door(Protocol):
    """What a connection tells and is told: `gateway.door.connection.Connection`, or a `ForeignDoor` on other servers.

    `fault` is what is wrong with the framing, `task` is cancelled when the client goes away, `lost` says that it did.
    """

    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[Any] | None
    fault: Refused | None
    lost: bool

    @property
    def request_complete(self) -> bool:
        """Whether the whole message has arrived."""
        ...


class Incoming:
    """One request at the door: the `Arrival` that the corridor is given."""

    __slots__ = ("_door", "_edge", "_lines", "_receive", "answer_headers", "headers", "method", "server")

    def __init__(self, edge: Edge, scope: Scope, receive: Receive, door: Door) -> None:
        self._edge = edge
        self._receive = receive
        self._door = door
        self.headers: Headers = scope["headers"]
        self._lines = dict(self.headers)
        self.method: str = scope["method"]
        self.server: Server | None = edge.servers.get(scope["raw_path"])
        self.answer_headers: Headers = ()

    def receive(self) -> Received:
        """The head's snapshot. Raises `Refused` for framing, path, method, Host and Origin, in this order."""
        if self._door.fault is not None:
            raise self._door.fault
        server = self.server
        if server is None:
            raise Refused(Refusal.SERVER_UNKNOWN)
        if self.method != "POST":
            raise Refused(Refusal.METHOD_NOT_POST)
        host = self._lines[b"host"]  # exactly one: the framing was judged
        if host not in self._edge.hosts and host.lower() not in self._edge.hosts:
            raise Refused(Refusal.HOST_FORBIDDEN)
        origins = self.values(b"origin")
        if origins:
            if not self._edge.serves_origin(server, origins):
                raise Refused(Refusal.ORIGIN_FORBIDDEN)
            self.answer_headers = cors_headers(origins[0])
        return Received(server, self.method, server.path, self.headers)

    async def body(self) -> bytes:
        """Media types, then the whole body. Raises `Refused` (406, 415, 413, 408, or 400 for a broken framing)."""
        length = self._judge_media()
        limit = self._edge.limits.body_bytes
        if length > limit:
            raise Refused(Refusal.BODY_TOO_LARGE, f"{length} bytes announced")
        door, size = self._door, 0
        parts: list[bytes] = []
        while True:
            message = await self._receive()
            if door.fault is not None:
                raise door.fault
            if message["type"] == "http.disconnect":
                raise asyncio.CancelledError
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise Refused(Refusal.BODY_TOO_LARGE, f"more than {limit} bytes")
            if not message.get("more_body", False):
                if not parts:
                    return part
                parts.append(part)
                return b"".join(parts)
            if part:
                parts.append(part)

    def _judge_media(self) -> int:
        """What the head says of the body -> its announced length, 0 where none is announced."""
        accept = b",".join(self.values(b"accept"))
        if not accepts_both_answers(accept) and not self._tolerates(accept):
            raise Refused(Refusal.ACCEPT_UNSUPPORTED)
        types = self.values(b"content-type")
        if len(types) != 1 or not is_json_in_utf8(types[0]):
            raise Refused(Refusal.CONTENT_UNSUPPORTED, "media type")
        if not is_identity(self.values(b"content-encoding")):
            raise Refused(Refusal.CONTENT_UNSUPPORTED, "content coding")
        return int(self._lines.get(b"content-length", b"0"))

    def _tolerates(self, accept: bytes) -> bool:
        known = self.server is not None and Quirk.ACCEPT_JSON_ONLY in self.server.quirks
        return known and accepts_json(accept)

    def values(self, name: bytes) -> list[bytes]:
        """All values of a header; nearly always there is no more than one, and one look finds it."""
        return values_of(self.headers, self._lines, name)


class Beat:
    """Says on a quiet event stream that it is still open: one timer a stream, no task, never inside an event."""

    def __init__(self, send: Send, quiet_s: float) -> None:
        self._send = send
        self._quiet_s = quiet_s
        self._loop = asyncio.get_running_loop()
        self._saying: asyncio.Task[None] | None = None
        self.sending = False
        self.sent_at = self._loop.time()
        self._timer = self._loop.call_at(self.sent_at + quiet_s, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        due = self.sent_at + self._quiet_s
        if due <= now + TIMER_EARLY_S:
            if not self.sending and (self._saying is None or self._saying.done()):
                self._saying = self._loop.create_task(self._say())
            self.sent_at = now
            due = now + self._quiet_s
        self._timer = self._loop.call_at(due, self._look)

    async def _say(self) -> None:
        if not self.sending:
            await self._send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})

    async def stop(self) -> None:
        """No further beat; one that waits for a slow client is given up."""
        self._timer.cancel()
        if self._saying is not None:
            self._saying.cancel()
            await asyncio.gather(self._saying, return_exceptions=True)


class Edge:
    """The data plane as an ASGI application: one path a server, POST only."""

    def __init__(
        self, corridor: Corridor, servers: Mapping[str, Server], limits: DoorLimits, hosts: Iterable[str]
    ) -> None:
        """Serve `servers` (by path) for requests whose `Host` is one of `hosts` (see `origins.accepted_hosts`)."""
        self._corridor = corridor
        self.servers: Mapping[bytes, Server] = {path.encode("ascii"): server for path, server in servers.items()}
        self.limits = limits
        self.hosts = frozenset(host.lower().encode("ascii") for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of an ASGI server."""
        door: Door | None = scope["extensions"].get(DOOR) if "extensions" in scope else None
        if door is None:
            door = foreign = ForeignDoor(scope, receive, self.limits)
            receive = foreign.receive
        incoming = Incoming(self, scope, receive, door)
        door.task = task = asyncio.current_task(door.loop)
        try:
            preflight = self._preflight(incoming) if incoming.method == "OPTIONS" and door.fault is None else None
            reply = preflight or await self._corridor.serve(incoming)
            await self._answer(reply, incoming, door, send)
        except asyncio.CancelledError:
            if not door.lost:
                raise
        finally:
            if door.task is task:  # the connection may be at its next request already
                door.task = None

    def serves_origin(self, server: Server, origins: list[bytes]) -> bool:
        """Whether the `Origin` lines of a request are one line with an origin that `server` allows."""
        return len(origins) == 1 and origins[0].decode("latin-1") in server.allowed_origins

    def _preflight(self, incoming: Incoming) -> Reply | None:
        """The answer to a browser that asks for an allowed origin; `None` for any other OPTIONS (405)."""
        values = incoming.values
        origins = values(b"origin")
        if (
            incoming.server is None
            or values(b"access-control-request-method") != [b"POST"]
            or not self.serves_origin(incoming.server, origins)
            or not all(host.lower() in self.hosts for host in values(b"host"))
        ):
            return None
        wanted = b", ".join(values(b"access-control-request-headers"))
        return Reply(204, preflight_headers(origins[0], wanted))

    async def _answer(self, reply: Reply, incoming: Incoming, door: Door, send: Send) -> None:
        headers = [*reply.headers, *incoming.answer_headers]
        if reply.close or not door.request_complete:
            headers.append(_CLOSE)  # what was not read is never read as a request
        if reply.chunks is None:
            if reply.status != 204:
                headers.append((b"content-length", b"%d" % len(reply.body)))
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            await send({"type": "http.response.body", "body": reply.body})
            return
        try:
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            await self._relay(reply.chunks, _is_event_stream(headers), send)
        finally:
            # A generator that waits for a slow client must learn of its end now, not when it is collected.
            close = getattr(reply.chunks, "aclose", None)
            if close is not None:
                await close()

    async def _relay(self, chunks: AsyncIterator[bytes], events: bool, send: Send) -> None:
        """Each chunk as it comes; the next is asked for only when the client's buffer has room."""
        beat = Beat(send, self.limits.quiet_s) if events else None
        try:
            async for chunk in chunks:
                if beat is None:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    continue
                beat.sending = True
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                beat.sending = False
                beat.sent_at = asyncio.get_running_loop().time()
        finally:
            if beat is not None:
                await beat.stop()
        await send({"type": "http.response.body"})


def _is_event_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)
