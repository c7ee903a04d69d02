"""One client connection: deadlines, the strict head, no early bytes, a parting that lets the refusal be read.

What uvicorn's server is given as its protocol, on httptools (chosen by evidence, docs/http-parser.md). The library
frames bodies, `cycle.py` writes answers; this module decides which bytes the library gets to see. Invariant: no byte
that follows a request is parsed before that request was answered, so that nothing hidden in or behind a body becomes
a request (FRM-01..11).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from gateway.contract.refusals import Refusal, Refused
from gateway.contract.reply import refusal_reply
from gateway.door.cycle import STATUS_LINES, Cycle
from gateway.door.familiar import MOST_CONNECTIONS, Familiar
from gateway.door.framing import DOOR, DoorLimits, Head, find_end, has_bare_line_end, read_head
from gateway.door.post import Post
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


class Connection(asyncio.Protocol):
    """One client's connection. Made by uvicorn, from the type that `make_protocol` returns.

    An application finds it in `scope["extensions"][DOOR]`. It may read `request_complete`, `fault` and `lost`, and
    set `task`, which is cancelled at once when the client goes away before its answer is complete. One that knows
    nothing of faults has `guest` set for it instead: it is cancelled likewise, and a body's fault answered for it.
    """

    limits: ClassVar[DoorLimits]
    watch: ClassVar[Watch]
    outgoing: ClassVar[Post]
    on_refused: ClassVar[OnRefused]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.app = config.loaded_app
        self.loop = _loop or asyncio.get_running_loop()
        self.tasks = server_state.tasks
        self.phase = AWAITING_HEAD
        self.deadline = self.loop.time() + self.limits.head_s
        self.stall_deadline = math.inf
        self.task: asyncio.Task[Any] | None = None
        self.guest: asyncio.Task[Any] | None = None
        self.fault: Refused | None = None
        self.lost = False
        self.write_paused = False
        self.transport: asyncio.Transport
        self._config = config
        self._state = server_state
        self._app_state = app_state
        # It is told nothing of heads, which are ours: it checks them too, but reports no part of one, nor of a
        # trailer (requirements G1).
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._cycle: Cycle | None = None
        self._writable: asyncio.Event | None = None
        self._read_paused = False
        self._left_unread = 0  # when the client's time to read was last set
        self._head: Head | None = None
        self._familiar = Familiar()
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
        self.transport = transport
        self._server, self._client = get_local_addr(transport), get_remote_addr(transport)
        self._scheme = "https" if is_ssl(transport) else "http"
        self._state.connections.add(self)  # type: ignore[arg-type]  # of which it is asked to shut down, no more
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

    def eof_received(self) -> None:
        """The client sends no more, and the transport closes: behind what is ready for it, and under what is not."""
        if self.outgoing:
            self.outgoing.leave(self.loop)

    def connection_lost(self, _exc: Exception | None) -> None:
        """The client is gone: what is done for it ends at once."""
        self._state.connections.discard(self)
        self.watch.connections.discard(self)
        self.lost = True
        self.phase = PARTING
        task, cycle = self.task or self.guest, self._cycle
        if cycle is not None:
            if task is not None and not cycle.response_complete:
                task.cancel()
            cycle.lose()
        self.resume_writing()
        # These refer to each other. Left to the collector, which comes by once in many thousand requests, a lost
        # connection would keep its unsent answer, and memory would look as if it leaked (OPS-05).
        self._cycle = self._parser = None

    def pause_writing(self) -> None:
        """The client does not read: what is written waits, but not for ever."""
        self._await_reading()
        self.write_paused = True

    def resume_writing(self) -> None:
        """The client reads again."""
        self.stall_deadline = math.inf
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def write(self, *pieces: bytes) -> None:
        """Send these bytes now, at one go, and behind what was ready before them."""
        if self.outgoing:
            self.outgoing.leave(self.loop)
        if len(pieces) == 1:
            self.transport.write(pieces[0])
        else:
            self.transport.writelines(pieces)

    def post(self, answer: bytes) -> None:
        """Send a whole answer: now, or with those of the other requests that end in this turn of the loop."""
        if len(self.tasks) > 1:
            self.outgoing.add(self.loop, self.transport, answer)
        else:
            self.write(answer)

    async def drain(self) -> None:
        """Until the client has read enough of what waits for it, or has gone."""
        if self._writable is None:
            self._writable = asyncio.Event()
        await self._writable.wait()

    def resume_reading(self) -> None:
        """Read the client on, where enough of its body waited for the application."""
        if self._read_paused:
            self._read_paused = False
            self.transport.resume_reading()

    def _await_reading(self) -> None:
        self.stall_deadline = self.loop.time() + self.limits.stall_s
        self._left_unread = self.unread_bytes

    @property
    def unread_bytes(self) -> int:
        """How much of what was written the client has not taken yet."""
        return int(self.transport.get_write_buffer_size())

    def cut(self) -> None:
        """End it now; what the client has not read is lost."""
        self.transport.abort()

    def overdue(self, now: float) -> None:
        """A deadline has passed. Who reads slowly, but reads, gets more time: a large answer and a thin line."""
        if self.stall_deadline <= now and self._left_unread - self.unread_bytes >= READ_BYTES:
            self._await_reading()
            if self.deadline > now:
                return
        if self.phase == PARTING or self.stall_deadline <= now or self.fault is not None:
            self.transport.abort()
        elif self.phase == AWAITING_BODY:
            self._fail(Refused(Refusal.REQUEST_TIMEOUT, "body"))
        elif self._pending:
            self._refuse(Refused(Refusal.REQUEST_TIMEOUT, "head"))
        else:
            self.part()  # nothing was begun, so nothing is refused

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
            if (known := self._familiar.recall(data)) is not None:
                self._begin_body(data, *known)
                return
            end = find_end(data)
            if end < 0:
                if data:
                    pending += data
                    self.deadline = self.loop.time() + self.limits.head_s
                    self._await_rest(0)
                return
        try:
            head = read_head(data, end, self.limits)
        except Refused as refused:
            self._refuse(refused)
            return
        if len(self.watch.connections) <= MOST_CONNECTIONS:
            self._familiar.keep(data[:end], head, self.limits)
        self._begin_body(data, head, end)

    def _begin_body(self, data: bytes, head: Head, end: int) -> None:
        """`data` begins with this head, which ends there: the parser gets both that and what of its body is here."""
        self._head = head
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
        assert self._parser is not None  # noqa: S101 - what arrives comes before the end
        try:
            self._parser.feed_data(data)
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
        if self._cycle is not None:
            self._cycle.keep_alive = False

    def _fail(self, refused: Refused) -> None:
        """The body is at fault: let the edge say so, which reads it, or answer for an application that can't."""
        self.fault = refused
        self._unread = True
        self.deadline = self.loop.time() + FAULT_GRACE_S
        if self._cycle is not None:
            self._cycle.keep_alive = False
            self._cycle.wake()
        self.loop.call_soon(self._answer_fault)  # behind the first step of a request that has just begun

    def _answer_fault(self) -> None:
        """Answer in place of an application that knows nothing of faults, and make it see its client go."""
        cycle, fault = self._cycle, self.fault
        if self.task is not None or fault is None or self.phase != AWAITING_BODY:
            return
        if cycle is None or cycle.response_complete:
            return
        cycle.lose()
        if cycle.response_started:
            self.part()
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
        parser, method = self._parser, head.method.decode("ascii")
        scope = {
            "type": "http",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": self._scheme,
            "path": head.path.decode("ascii"),
            "raw_path": head.path,
            "query_string": head.query,
            "root_path": self._config.root_path,
            "headers": head.headers,
            "client": self._client,
            "server": self._server,
            "state": self._app_state.copy(),
            "extensions": {DOOR: self},  # ASGI wants JSON here; this never leaves the process
        }
        keep_alive = parser is not None and parser.should_keep_alive() and not self.watch.leaving
        self._cycle = cycle = Cycle(self, method, head.expects_continue, keep_alive)
        task = self.loop.create_task(self.app(scope, cycle.receive, cycle.send))
        self.tasks.add(task)
        task.add_done_callback(cycle.ended)

    def on_body(self, body: bytes) -> None:
        """Of what the application has not received, the client sends no more than a little ahead."""
        cycle = self._cycle
        if cycle is not None and not cycle.response_complete and cycle.add(body) and not self._read_paused:
            self._read_paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        """The request is whole; from here on, every byte is early."""
        self.phase = SERVING
        self.deadline = math.inf
        cycle = self._cycle
        if cycle is not None and not cycle.response_complete:
            cycle.complete()

    # Answers and partings

    @property
    def default_headers(self) -> Iterable[tuple[bytes, bytes]]:
        """What every answer begins with: uvicorn's `Date`, another one each second."""
        return self._state.default_headers

    def answered(self, keep_alive: bool) -> None:
        """Wait for the next head, or part: as agreed, or where the client's bytes can't be told apart any more."""
        self._state.total_requests += 1
        self.task = self.guest = None
        if self.phase == AWAITING_BODY:
            self._unread = True  # what is left of the body may be on its way
        if self._unread or not keep_alive:
            self.part()
        if self.phase == PARTING:
            return
        self.resume_reading()
        self.phase = AWAITING_HEAD
        self.deadline = self.loop.time() + min(self.limits.idle_s, self.watch.rest_s)

    def announce_end(self) -> None:
        """See `Watch.leave`. An answer whose head is on its way can't say it any more: the next one does."""
        if self.phase == AWAITING_HEAD:
            if not self._pending:
                self.deadline = min(self.deadline, self.loop.time() + self.watch.rest_s)
        elif self.phase != PARTING and self._cycle is not None and not self._cycle.response_started:
            self._cycle.keep_alive = False

    def shutdown(self) -> None:
        """The listener is closed. Whoever rests is looked after by the clock, if the server took its leave."""
        if not self.watch.leaving:
            if self._cycle is None or self._cycle.response_complete:
                self.part()
            else:
                self._cycle.keep_alive = False
        elif self.phase == AWAITING_HEAD and self.deadline <= self.loop.time():
            self.part()

    def _refuse(self, refused: Refused) -> None:
        """Answer without an application: nothing that came can be trusted to be a request."""
        self._unread = True
        decision_id = type(self).on_refused(refused.refusal.reason, refused.detail, self._client)
        self.write(render_refusal(refused, decision_id, self._state.default_headers))
        self.part()

    def part(self) -> None:
        """Close, but read on for a moment where the client still sends: a reset would destroy the answer unread."""
        if self.phase == PARTING:
            return
        self.phase = PARTING
        self._pending.clear()
        if self.outgoing:
            self.outgoing.leave(self.loop)
        if self.transport.is_closing():
            return
        if self._unread and self.limits.linger_s > 0:
            self.deadline = self.loop.time() + self.limits.linger_s
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.resume_reading()
        else:
            self.deadline = self.loop.time() + self.limits.stall_s
            self.transport.close()


def render_refusal(refused: Refused, decision_id: str, more: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """A whole answer to what can't be trusted to be a request, after which the connection is over."""
    reply = refusal_reply(refused, request_id=None, server=None, decision_id=decision_id)
    length = (b"content-length", b"%d" % len(reply.body))
    lines = (*more, *reply.headers, length, (b"connection", b"close"))
    head = b"".join([b"%b: %b\r\n" % line for line in lines])
    return STATUS_LINES[reply.status] + head + b"\r\n" + reply.body


def make_protocol(limits: DoorLimits, on_refused: OnRefused) -> type[Connection]:
    """The protocol type for one server (`uvicorn.Config(http=...)`), with its own clock."""
    shortest = min(limits.head_s, limits.body_s, limits.idle_s, limits.stall_s, limits.linger_s or math.inf)
    members = {
        "limits": limits,
        "watch": Watch(min(0.5, shortest / 4), limits.unread_bytes),
        "outgoing": Post(),
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
