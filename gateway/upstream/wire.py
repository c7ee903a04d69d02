"""One exchange on a connection: an answer in as it comes, under limits of size and time.

Its framing says where it ends, its connection's timer when it is given up, and it tells its connection once that it
is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import httptools

from gateway.upstream.head import HeadRefused, Kind, accept_head, is_framed
from gateway.upstream.port import UpstreamFault, UpstreamInvalid, UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.target import UpstreamLimits
from gateway.vigil import Vigil
from gateway.wires.pem import tell

if TYPE_CHECKING:
    from gateway.upstream.connection import Connection

RELEASED_S = 1.0
"""How long a stream whose response was read may take to end by itself."""
LONG_S = 1.0
"""An answer that ends so long after its head is its connection's last: a server that was told to end meanwhile could
not say `Connection: close` any more, and closes now (uvicorn does), without reading what was sent to it since."""


class GivenUp(UpstreamUnreachable):
    """Nobody waits for the answer any more: it says nothing of the replica."""


class Exchange:
    """One request's answer. Fed by its connection, read by whoever asked; it lets the connection go once it ended.

    At most `buffer_bytes` and two reads of the socket wait for a reader; then the replica is made to wait.
    """

    __slots__ = (
        "_buffered", "_clock", "_connection", "_fault", "_head_at", "_headers", "_interim", "_limits", "_loop",
        "_notification", "_parser", "_paused", "_pieces", "_quiet_s", "_released", "_total", "_until", "_waiter",
        "complete", "kind", "overrun", "persistent", "replica", "retries", "seat", "status",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        replica: str,
        limits: UpstreamLimits,
        *,
        notification: bool,
        quiet_s: float,
        until: float = 0.0,
        seat: int = 0,
    ) -> None:
        self.kind: Kind | None = None
        self.status = 0
        self.replica = replica
        self.complete = False
        self.persistent = False
        self.overrun = False
        self._connection: Connection | None = connection
        self._limits = limits
        self._notification = notification
        self._quiet_s = quiet_s
        self._headers: list[tuple[bytes, bytes]] = []
        self._interim = 0
        self._head_at = 0.0  # only where more was to come
        self._released = False
        self._total = 0
        self._pieces: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._fault: UpstreamFault | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._loop = connection.loop
        self._clock = connection.loop.time
        self.seat = seat
        self.retries = 0
        self._until = until or self._clock() + limits.answer_s
        connection.ring_by(self._until)
        self._parser: Any = httptools.HttpResponseParser(self)

    # What httptools calls while it reads.

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of a head; one of a trailer is dropped."""
        if self.kind is None:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Judge the head, or skip an interim answer (1xx)."""
        if self.complete or self._fault is not None:
            return
        headers, limits = self._headers, self._limits
        large = self._total > limits.head_bytes and sum(len(n) + len(v) for n, v in headers) > limits.head_bytes
        if large or len(headers) > limits.head_lines:
            self._refuse("the answer's head is too large")
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._interim += 1
            self._headers = []
            if self._interim > limits.interim_answers:
                self._refuse("too many interim answers")
            return
        try:
            kind = accept_head(status, self._parser.get_http_version(), headers, notification=self._notification)
        except HeadRefused as refused:
            self._refuse(str(refused), status)
            return
        self._total = 0
        self.status = status
        self.kind = kind

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self.complete or self._fault is not None:
            return
        self._buffered += len(body)
        self._total += len(body)
        if self._released:
            if self._buffered > self._limits.buffer_bytes:
                self._refuse("more after the response")
        elif self.kind is Kind.NOTHING:
            self._refuse("a body where none belongs")
        elif self.kind is Kind.JSON and self._total > self._limits.result_bytes:
            self._refuse("the answer is too large")
        else:
            self._pieces.append(body)

    def on_message_begin(self) -> None:
        """After the end of the answer, nothing may begin: what does is never read as another caller's answer."""
        self.overrun = self.complete

    def on_message_complete(self) -> None:
        """The end as the framing says, unless it was an interim answer's."""
        if self.kind is not None and self._fault is None and not self.complete:
            self.complete = True
            self.persistent = self._parser.should_keep_alive()

    # What the connection calls.

    def feed(self, data: memoryview) -> None:
        """Bytes of the socket, in order; they are copied where they are kept."""
        if self.kind is None:
            self._total += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.overrun = True
            self._refuse("an upgrade that nobody asked for")
        except httptools.HttpParserError as error:
            self.overrun = True
            if not self.complete:
                self._refuse(f"not HTTP: {error}")
        if self.kind is None and self._total > self._limits.head_bytes:
            self._refuse("the answer's head is too large")
        if self._fault is not None or self.complete:
            self._end()
        else:
            self._move_deadline()
            full = self._buffered > self._limits.buffer_bytes and self.kind is Kind.STREAM
            if full and not self._paused and not self._released and not self._is_awaited():
                self._paused = True
                if self._connection is not None:
                    self._connection.transport.pause_reading()
        self._wake()

    def _move_deadline(self) -> None:
        """The head and a JSON body share one deadline however they drip in; a stream has one for each piece."""
        if self.kind is None:
            return
        now = self._clock()
        if not self._head_at:
            self._head_at = now
        if self._released or self.kind is not Kind.STREAM:
            return
        self._until = until = now + self._quiet_s
        if self._connection is not None:
            self._connection.ring_by(until)

    def lost(self, error: BaseException | None) -> None:
        """The connection is gone."""
        if not self.complete and self._fault is None:
            if self.kind is not None and error is None and not is_framed(self._headers):
                self.complete = True
            elif self.kind is not None:
                self._fault = UpstreamInvalid("the answer was cut off", sent=True, replica=self.replica)
            else:
                secured = self._connection is not None and self._connection.context is not None
                why = f": {tell(error)}" if error is not None and secured else ""
                self._fault = UpstreamUnreachable(
                    f"the connection broke before an answer's head{why}", sent=True, replica=self.replica
                )
        self._end()
        self._wake()

    def _refuse(self, detail: str, status: int = 0) -> None:
        if self._fault is None and not self.complete:
            self._fault = UpstreamInvalid(detail, sent=True, replica=self.replica, status=status)
            self._pieces.clear()

    def look_at_deadline(self) -> None:
        """The connection's timer rang; it is set anew where the deadline has moved on meanwhile."""
        if self._until > self._clock() and self._connection is not None:
            self._connection.ring_by(self._until)
            return
        if self.complete or self._fault is not None:
            return
        detail = "no answer in time" if self.kind is None else "the answer stood still for too long"
        self._fault = UpstreamTimeout(detail, sent=True, replica=self.replica)
        self._end()
        self._wake()

    def _end(self) -> None:
        """Let the connection go: back to its pool after a whole answer, else closed at once."""
        connection, self._connection = self._connection, None
        self._parser = None  # it refers back to this exchange
        if connection is not None:
            clean = self.complete and self.persistent and not self.overrun and not self._paused
            if clean and self._head_at:
                clean = self._clock() - self._head_at < LONG_S
            connection.ended(clean=clean)
            try:
                connection.over(self)
            finally:  # whatever is made of it: whoever reads this exchange learns that it ended
                self._wake()

    def _is_awaited(self) -> bool:
        """Whether a reader waits for what just came: it takes all of it in the loop's next turn."""
        return self._waiter is not None and not self._waiter.done()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # What the reader calls.

    def _more(self) -> asyncio.Future[None]:
        self._waiter = waiter = self._loop.create_future()
        return waiter

    @property
    def fault(self) -> UpstreamFault | None:
        """What was wrong with the answer. After the response was read, nothing is."""
        return None if self._released else self._fault

    def loop_time(self) -> float:
        """Now, as the loop has it."""
        return self._clock()

    async def head(self, vigil: Vigil | None = None) -> None:
        """Wait for an accepted head. Raises `UpstreamFault` subclasses; a cancelled wait aborts the request."""
        if vigil is not None:
            vigil.begin(self._loop)
        try:
            while self.kind is None and self._fault is None:
                await self._more()
        except BaseException:
            self.abort()
            raise
        finally:
            if vigil is not None:
                vigil.end()
        if self._fault is not None:
            raise self._fault

    def values(self, name: bytes) -> list[bytes]:
        """All values of a field of the accepted head (`name` in lower case). None of them travels on."""
        return [value.strip(b" \t") for key, value in self._headers if key.lower() == name]

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body as it comes. Leaving early aborts the request."""
        try:
            while True:
                if self._pieces:
                    yield self._take_pieces()  # no name for it here: it would be kept while its reader is slow
                    if self._paused and self._connection is not None:
                        self._paused = False
                        self._until = self._clock() + self._quiet_s
                        self._connection.transport.resume_reading()
                elif self._fault is not None:
                    raise self._fault
                elif self.complete:
                    return
                else:
                    await self._more()
        finally:
            self.abort()

    async def whole(self) -> bytes:
        """See the port. Leaving early aborts the request."""
        try:
            while not self.complete:
                if self._fault is not None:
                    raise self._fault
                await self._more()
        finally:
            self.abort()
        return self._take_pieces()

    def _take_pieces(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        self._buffered = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def streaming(self) -> bool:
        """Whether the body is an event stream."""
        return self.kind is Kind.STREAM

    async def close(self) -> None:
        """Done with the answer, whole or not."""
        self.abort()

    def release(self) -> None:
        """The response was read: the rest is dropped as it comes, for at most `RELEASED_S`."""
        if self.complete or self._fault is not None or self._connection is None or self._released:
            return
        self._released = True
        self._pieces.clear()
        self._buffered = 0
        if self._paused:
            self._paused = False
            self._connection.transport.resume_reading()
        self._until = until = self._clock() + RELEASED_S
        self._connection.ring_by(until)

    def interrupt(self) -> None:
        """Abort, and say so to who waits for a piece. Safe to call twice."""
        self.abort()
        self._wake()

    def abort(self) -> None:
        """Close the connection at once if the answer is not whole; the replica sees it. Safe to call twice."""
        if not self.complete and self._fault is None and not self._released:
            self._fault = GivenUp("the request was given up", sent=True, replica=self.replica)
            self._pieces.clear()
            self._end()
