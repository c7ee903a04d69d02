"""One client connection: deadlines, the strict head, no early bytes, a parting that lets the refusal be read.

A subclass of uvicorn's httptools protocol (chosen by evidence, docs/http-parser.md). The library frames bodies and
writes answers; this module decides which bytes it gets to see. Invariant: no byte that follows a request is parsed
before that request was answered, so that nothing hidden in or behind a body becomes a request (FRM-01..11).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.contract.refusals import Refusal, Refused
from gateway.contract.reply import refusal_reply
from gateway.door.framing import DOOR, DoorLimits, Head, find_end, has_bare_line_end, read_head
from gateway.door.watch import Watch

Peer = tuple[str, int] | None

OnRefused = Callable[[str, str, Peer], str]
"""(reason, detail, peer) -> the decision id of the record that was made."""

AWAITING_HEAD, AWAITING_BODY, SERVING, PARTING = range(4)

FAULT_GRACE_S: Final = 5.0
"""How long the edge may take to notice a body's fault before the connection is cut."""


READ_BYTES: Final = 65_536
"""What a client has to take of a waiting answer in `stall_s`, or it counts as one that does not read."""


class EarlyBytes(Exception):  # noqa: N818 - what they are
    """The parser came upon a second message in what it was fed: bytes behind a chunked body."""


class Outlet(asyncio.Transport):
    """The transport as uvicorn sees it: it writes as ever, and closes by way of the connection's parting."""

    def __init__(self, transport: asyncio.Transport, part: Callable[[], None], parted: Callable[[], bool]) -> None:
        super().__init__()
        self.write = transport.write  # type: ignore[method-assign]  # no further call on the hot path
        self.close = part  # type: ignore[method-assign]
        self.is_closing = parted  # type: ignore[method-assign]

    def let_go(self) -> None:
        """The connection is lost: nothing here leads back to it, nor to its socket and what that has not sent."""
        self.write = _nothing  # type: ignore[method-assign]
        self.close = _nothing  # type: ignore[method-assign]
        self.is_closing = _closing  # type: ignore[method-assign]


def _nothing(data: bytes | bytearray | memoryview[Any] = b"") -> None:
    """What is written to a lost connection."""


def _closing() -> bool:
    return True


class Connection(HttpToolsProtocol):
    """One client's connection. Made by uvicorn, from the type that `make_protocol` returns.

    An application finds it in `scope["extensions"][DOOR]`. It may read `request_complete`, `fault` and `lost`, and
    set `task`, which is cancelled at once when the client goes away before its answer is complete. One that knows
    nothing of faults has `guest` set for it instead: it is cancelled likewise, and a body's fault answered for it.
    """

    limits: ClassVar[DoorLimits]
    watch: ClassVar[Watch]
    on_refused: ClassVar[OnRefused]

    # The head is ours: llhttp checks it too, but reports no part of it, nor of a trailer (requirements G1).
    on_url = None  # type: ignore[assignment]
    on_header = None  # type: ignore[assignment]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.headers = []
        self.phase = AWAITING_HEAD
        self.deadline = self.loop.time() + self.limits.head_s
        self.stall_deadline = math.inf
        self._left_unread = 0  # when the client's time to read was last set
        self.task: asyncio.Task[Any] | None = None
        self.guest: asyncio.Task[Any] | None = None
        self.fault: Refused | None = None
        self.lost = False
        self._head: Head | None = None
        self._pending = bytearray()  # an unfinished head
        self._body_left = 0  # of Content-Length; negative while the body is chunked
        self._body_bytes = 0  # as they came, chunks' framing included
        self._unread = False  # whether bytes of the client are thrown away

    @property
    def request_complete(self) -> bool:
        """Whether the whole message has arrived and was framed without a fault."""
        return self.phase == SERVING

    # What the transport says

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a deadline; turn away what is one connection too many."""
        super().connection_made(transport)
        self._transport = transport
        self.transport = self._outlet = Outlet(transport, self._part, self._parted)
        self.watch.add(self)
        if len(self.watch.connections) > self.limits.connections:
            self._refuse(Refused(Refusal.OVERLOADED, "too many connections"))

    def data_received(self, data: bytes) -> None:
        """Hand the parser a judged head and its body; nothing else."""
        if self.phase == AWAITING_HEAD:
            self._receive_head(data)
        elif self.phase == AWAITING_BODY:
            self._receive_body(data)
        elif self.phase == SERVING:
            self._drop_early_bytes()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: what is done for it ends at once."""
        self.watch.connections.discard(self)
        self.lost = True
        self.phase = PARTING
        super().connection_lost(exc)
        task = self.task or self.guest
        if task is not None and not self.cycle.response_complete:
            task.cancel()
        # Everything here refers to everything else. Left to the collector, which comes by once in many thousand
        # requests, a lost connection would keep its unsent answer, and memory would look as if it leaked (OPS-05).
        self._outlet.let_go()
        self.cycle = self.scope = self.parser = None  # type: ignore[assignment]

    def pause_writing(self) -> None:
        """The client does not read: what is written waits, but not for ever."""
        self._await_reading()
        super().pause_writing()

    def _await_reading(self) -> None:
        self.stall_deadline = self.loop.time() + self.limits.stall_s
        self._left_unread = self.unread_bytes

    def resume_writing(self) -> None:
        """The client reads again."""
        self.stall_deadline = math.inf
        super().resume_writing()

    @property
    def unread_bytes(self) -> int:
        """How much of what was written the client has not taken yet."""
        return int(self._transport.get_write_buffer_size())

    def cut(self) -> None:
        """End it now; what the client has not read is lost."""
        self._transport.abort()

    def overdue(self, now: float) -> None:
        """A deadline has passed. Who reads slowly, but reads, gets more time: a large answer and a thin line."""
        if self.stall_deadline <= now and self._left_unread - self.unread_bytes >= READ_BYTES:
            self._await_reading()
            if self.deadline > now:
                return
        if self.phase == PARTING or self.stall_deadline <= now or self.fault is not None:
            self._transport.abort()
        elif self.phase == AWAITING_BODY:
            self._fail(Refused(Refusal.REQUEST_TIMEOUT, "body"))
        elif self._pending:
            self._refuse(Refused(Refusal.REQUEST_TIMEOUT, "head"))
        else:
            self._part()  # nothing was begun, so nothing is refused

    # Head and body

    def _receive_head(self, data: bytes) -> None:
        pending = self._pending
        if pending:
            searched = len(pending)
            pending += data
            end = find_end(pending, searched)
            if end < 0:
                self._await_rest(searched)
                return
            data = bytes(pending)
            pending.clear()
        else:
            if data.startswith(b"\r\n"):
                data = data[2:]  # one empty line before a request is nothing (RFC 9112 section 2.2)
            end = find_end(data)
            if end < 0:
                if data:
                    pending += data
                    self.deadline = self.loop.time() + self.limits.head_s
                    self._await_rest(0)
                return
        try:
            head = self._head = read_head(data, end, self.limits)
        except Refused as refused:
            self._refuse(refused)
            return
        self.phase = AWAITING_BODY
        self.deadline = self.loop.time() + self.limits.body_s
        self._body_bytes = 0
        if head.tamed is not None:
            data = head.tamed + data[end:]
        if head.length is None:
            self._body_left = -1
        else:
            self._body_left = end + head.length - len(data)
            if self._body_left < 0:
                self._unread, data = True, data[: end + head.length]
        self._feed(data)

    def _await_rest(self, searched: int) -> None:
        """Wait for the rest of a head, unless it can't become one that is accepted."""
        if len(self._pending) > self.limits.head_bytes:
            self._refuse(Refused(Refusal.HEAD_TOO_LARGE, "more bytes than a head may have"))
        elif has_bare_line_end(self._pending, searched):
            self._refuse(Refused(Refusal.REQUEST_MALFORMED, "bare LF"))

    def _receive_body(self, data: bytes) -> None:
        if self.fault is not None:
            return
        if self._body_left >= 0:
            self._body_left -= len(data)
            if self._body_left < 0:
                self._unread, data = True, data[: self._body_left]
        else:
            self._body_bytes += len(data)
            if self._body_bytes > 2 * self.limits.body_bytes + self.limits.head_bytes:
                # Chunk extensions, trailers and tiny chunks are no part of a body, but bytes all the same.
                self._fail(Refused(Refusal.BODY_TOO_LARGE, "chunked framing"))
                return
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the request is whole, and no protocol is changed: the next head is read as HTTP/1.1
        except httptools.HttpParserError as error:
            if self.phase == SERVING:
                self._unread = True
            elif self._head is not None:
                self._refuse(Refused(Refusal.REQUEST_MALFORMED, f"head: {error}"))
                return
            else:
                self._fail(Refused(Refusal.REQUEST_MALFORMED, f"body: {error}"))
        if self._unread:
            self._drop_early_bytes()

    def _drop_early_bytes(self) -> None:
        """Bytes behind a request that is not answered yet are not read as another: the answer closes the connection.

        RFC 9112 section 9.3.2 allows it, no MCP client pipelines, and a smuggled request needs exactly this.
        """
        self._unread = True
        if not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def _fail(self, refused: Refused) -> None:
        """The body is at fault: let the edge say so, which reads it, or answer for an application that can't."""
        self.fault = refused
        self._unread = True
        self.deadline = self.loop.time() + FAULT_GRACE_S
        self.cycle.keep_alive = False
        self.cycle.message_event.set()
        self.loop.call_soon(self._answer_fault)  # behind the first step of a request that has just begun

    def _answer_fault(self) -> None:
        """Answer in place of an application that knows nothing of faults, and make it see its client go."""
        cycle, fault = self.cycle, self.fault
        if self.task is not None or fault is None or self.phase != AWAITING_BODY or cycle.response_complete:
            return
        cycle.disconnected = True
        if cycle.response_started:
            self._part()
        else:
            self._refuse(fault)

    # What the parser says

    def on_message_begin(self) -> None:
        """Only what begins with a head that was judged is a request."""
        if self._head is None:
            raise EarlyBytes

    def on_headers_complete(self) -> None:
        """Give the application the head as it was judged, not as the parser or a trailer would have it."""
        head = self._head
        assert head is not None  # noqa: S101 - the parser can't complete what it was not fed
        self._head = None
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "method": head.method.decode("ascii"),
            "scheme": self.scheme or "http",
            "path": head.path.decode("ascii"),
            "raw_path": head.path,
            "query_string": head.query,
            "root_path": self.root_path,
            "headers": head.headers,
            "client": self.client,
            "server": self.server,
            "state": self.app_state.copy(),
            "extensions": {DOOR: self},  # type: ignore[dict-item]  # ASGI wants JSON here; this never leaves the process
        }
        self.cycle = RequestResponseCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=head.expects_continue,
            keep_alive=self.parser.should_keep_alive() and not self.watch.leaving,
            on_response=self.on_response_complete,
        )
        self._start_asgi_task(self.cycle, self.app)

    def on_message_complete(self) -> None:
        """The request is whole; from here on, every byte is early."""
        self.phase = SERVING
        self.deadline = math.inf
        super().on_message_complete()

    # Answers and partings

    def on_response_complete(self) -> None:
        """Wait for the next head, or part where the client's bytes can't be told apart any more."""
        self.server_state.total_requests += 1
        self.task = self.guest = None
        if self.phase == PARTING:
            return
        if self.phase == AWAITING_BODY or self._unread:
            self._unread = True
            self._part()
            return
        self.flow.resume_reading()
        self.phase = AWAITING_HEAD
        self.deadline = self.loop.time() + min(self.limits.idle_s, self.watch.rest_s)

    def announce_end(self) -> None:
        """See `Watch.leave`. An answer whose head is on its way can't say it any more: the next one does."""
        if self.phase == AWAITING_HEAD:
            if not self._pending:
                self.deadline = min(self.deadline, self.loop.time() + self.watch.rest_s)
        elif self.phase != PARTING and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """The listener is closed. Whoever rests is looked after by the clock, if the server took its leave."""
        if not self.watch.leaving:
            super().shutdown()
        elif self.phase == AWAITING_HEAD and self.deadline <= self.loop.time():
            self._part()

    def _refuse(self, refused: Refused) -> None:
        """Answer without an application: nothing that came can be trusted to be a request."""
        self._unread = True
        decision_id = type(self).on_refused(refused.refusal.reason, refused.detail, self.client)
        self._transport.write(render_refusal(refused, decision_id, self.server_state.default_headers))
        self._part()

    def _part(self) -> None:
        """Close, but read on for a moment where the client still sends: a reset would destroy the answer unread."""
        if self.phase == PARTING:
            return
        self.phase = PARTING
        self._pending.clear()
        if self._transport.is_closing():
            return
        if self._unread and self.limits.linger_s > 0:
            self.deadline = self.loop.time() + self.limits.linger_s
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self.flow.resume_reading()
        else:
            self.deadline = self.loop.time() + self.limits.stall_s
            self._transport.close()

    def _parted(self) -> bool:
        return self.phase == PARTING


def render_refusal(refused: Refused, decision_id: str, more: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """A whole answer to what can't be trusted to be a request, after which the connection is over."""
    reply = refusal_reply(refused, request_id=None, server=None, decision_id=decision_id)
    length = (b"content-length", b"%d" % len(reply.body))
    lines = (*more, *reply.headers, length, (b"connection", b"close"))
    head = b"".join([b"%b: %b\r\n" % line for line in lines])
    return STATUS_LINE[reply.status] + head + b"\r\n" + reply.body


def make_protocol(limits: DoorLimits, on_refused: OnRefused) -> type[Connection]:
    """The protocol type for one server (`uvicorn.Config(http=...)`), with its own clock."""
    shortest = min(limits.head_s, limits.body_s, limits.idle_s, limits.stall_s, limits.linger_s or math.inf)
    members = {
        "limits": limits,
        "watch": Watch(min(0.5, shortest / 4), limits.unread_bytes),
        "on_refused": staticmethod(on_refused),
    }
    return type("BoundConnection", (Connection,), members)


def server_options(limits: DoorLimits, on_refused: OnRefused) -> dict[str, Any]:
    """What the door asks of `uvicorn.Config`: its protocol, and nothing that would rewrite or disclose.

    No WebSocket, no `X-Forwarded-*` taken for the client, no `Server` header, no access log (audit and the canonical
    line say more), uvloop.
    """
    return {
        "http": make_protocol(limits, on_refused),
        "ws": "none",
        "interface": "asgi3",
        "proxy_headers": False,
        "server_header": False,
        "access_log": False,
        "loop": "uvloop",
    }
