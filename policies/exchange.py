"""One connection to a policy server and the question on it: what is accepted as an answer.

The text of a failure quotes nothing of an answer but the status and OPA's own code for an error.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from select import POLLERR, POLLHUP, POLLIN, poll
from typing import Any, Final, Protocol, cast

import httptools

from policies.verdict import PolicyUnavailable

_HEAD_BYTES: Final = 65_536
_ERROR_BYTES: Final = 1 << 20
_TOLD: Final = frozenset({400, 401, 403, 500})
"""Statuses whose body is read for OPA's code."""
_CODE: Final = re.compile(rb'"code"\s*:\s*"([a-z_]{1,40})"')
_ONCE: Final = frozenset({b"content-type", b"content-length", b"transfer-encoding", b"content-encoding"})


class Posed:
    """A question on its way: its whole request, who waits for the answer's body, by when (loop time)."""

    __slots__ = ("answer", "asked_again", "connection", "request", "until")

    def __init__(self, request: bytes, answer: asyncio.Future[bytes], until: float) -> None:
        self.request = request
        self.answer = answer
        self.until = until
        self.asked_again = False
        self.connection: Connection | None = None

    def fail(self, why: PolicyUnavailable) -> None:
        """It is refused, unless it has ended otherwise."""
        if not self.answer.done():
            self.answer.set_exception(why)


class Pool(Protocol):
    """Whoever owns a connection."""

    def rest(self, connection: Connection) -> None:
        """It can carry another question."""

    def gone(self, connection: Connection) -> None:
        """It is closed. Safe to call twice."""

    def send(self, posed: Posed) -> None:
        """Ask this on another connection."""


class Connection(asyncio.Protocol):
    """A socket that carries one question at a time; answers have at most `most` bytes."""

    __slots__ = (
        "_fault", "_fields", "_framed", "_heard", "_most", "_overrun", "_parser", "_parts", "_persistent", "_poll",
        "_pool", "_posed", "_size", "_status", "_whole", "idle_since", "made", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, pool: Pool, most: int) -> None:
        self._pool = pool
        self._most = most
        self._posed: Posed | None = None
        self._poll = poll()
        self.made = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected (and, with TLS, the certificate verified)."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self.made = True
        self._poll.register(transport.get_extra_info("socket").fileno(), POLLIN | POLLHUP | POLLERR)

    @property
    def quiet(self) -> bool:
        """Whether the socket is open and the kernel knows of nothing that came or ended on it."""
        return not self.transport.is_closing() and not self._poll.poll(0)

    def carry(self, posed: Posed) -> None:
        """Send a question. The connection is free and open."""
        self._posed = posed
        posed.connection = self
        self._fields: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._fault = ""
        self._heard = self._size = self._status = 0
        self._framed = self._whole = self._persistent = self._overrun = False
        self._parser: Any = httptools.HttpResponseParser(self)
        self.transport.write(posed.request)
        if self.transport.is_closing():  # it ended as soon as it was made, before it had a question to tell of that
            self.connection_lost(None)

    def close(self) -> None:
        """Close the socket without waiting for anything; a question on it is nobody's any more."""
        self._part()
        if self.made:
            self.transport.abort()
        self._pool.gone(self)

    # What the loop calls.

    def data_received(self, data: bytes) -> None:
        """Bytes of OPA; without a question nobody asked for them."""
        posed = self._posed
        if posed is None:
            self.close()
            return
        self._heard += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse("OPA can't be asked: an upgrade that nobody asked for")
        except httptools.HttpParserError:
            self._overrun = True
            if not self._whole:
                self._refuse("OPA can't be asked: its answer is not HTTP")
        if not self._status and self._heard > _HEAD_BYTES:
            self._refuse("OPA can't be asked: its answer's head is too large")
        if self._fault or self._whole:
            self._end(posed)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone: the end of an answer without a length, or of one that is cut off."""
        posed = self._posed
        if posed is None:
            self._pool.gone(self)
        elif self._heard == 0 and not posed.asked_again and not isinstance(exc, ssl.SSLError):
            # OPA closed a connection that was kept, or has just been replaced.
            self.close()
            if not posed.answer.done():
                posed.asked_again = True
                self._pool.send(posed)
        else:
            if exc is None and self._status and not self._framed:
                self._whole = True
            else:
                self._refuse(str(unreachable(exc or ConnectionError(0, "the connection ended before the answer"))))
            self._end(posed)

    # What httptools calls while it reads; an exception here would be taken for one of its own.

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; one of a trailer is dropped."""
        key = name.lower()
        if not self._status and key in _ONCE:
            if key in self._fields:
                self._refuse(f"OPA can't be asked: its answer has two of {key.decode()}")
            self._fields[key] = value.strip(b" \t").lower()

    def on_headers_complete(self) -> None:
        """Judge the head. A redirect is not followed: who answers has to be who was configured."""
        if self._whole:  # the head of what nobody asked for says nothing of the answer before it
            return
        fields, coding = self._fields, self._fields.get(b"transfer-encoding")
        status = self._parser.get_status_code()
        version = self._parser.get_http_version()
        self._framed = coding is not None or b"content-length" in fields
        json = fields.get(b"content-type", b"").partition(b";")[0].strip() == b"application/json"
        if version not in ("1.1", "1.0"):
            self._refuse("OPA can't be asked: its answer is not HTTP/1.1")
        elif coding is not None and (coding != b"chunked" or b"content-length" in fields or version == "1.0"):
            self._refuse("OPA can't be asked: where its answer ends is told in two ways")
        elif status != 200 and not (status in _TOLD and json):
            self._refuse(f"OPA answered with status {status}")
        elif not json:
            self._refuse("OPA's answer is not application/json")
        elif fields.get(b"content-encoding", b"identity") != b"identity":
            self._refuse("OPA's answer is compressed, which was not asked for")
        self._status = status

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._size += len(body)
        most = self._most if self._status == 200 else _ERROR_BYTES
        if self._size > most:
            self._refuse(f"OPA's answer is longer than {most} bytes")
        elif not self._whole and not self._fault:
            self._parts.append(body)

    def on_message_begin(self) -> None:
        """After the answer's end nothing may begin: what does is never read as the next question's answer."""
        self._overrun = self._whole

    def on_message_complete(self) -> None:
        """The end as the framing says."""
        if not self._whole:
            self._whole = True
            self._persistent = self._parser.should_keep_alive()

    # The end of a question.

    def _refuse(self, why: str) -> None:
        if not self._fault and not self._whole:
            self._fault = why

    def _part(self) -> None:
        posed, self._posed = self._posed, None
        self._parser = None  # it refers back to this connection
        if posed is not None:
            posed.connection = None

    def _end(self, posed: Posed) -> None:
        """Settle the question, and rest or close: what was not read or written to its end is not used again."""
        transport = self.transport
        self._part()
        if not posed.answer.done():
            text = b"".join(self._parts)
            if self._status == 200 and not self._fault:
                posed.answer.set_result(text)
            elif not self._fault:
                code = _CODE.search(text)
                self._fault = f"OPA answered with status {self._status}{f' ({code[1].decode()})' if code else ''}"
            if self._fault:
                posed.fail(PolicyUnavailable(self._fault))
        clean = self._persistent and not self._overrun and not self._fault
        if clean and not transport.is_closing() and transport.get_write_buffer_size() == 0:
            self._pool.rest(self)
        else:
            self.close()


def unreachable(error: BaseException) -> PolicyUnavailable:
    """What went wrong with the connection: the kind alone, for a text could quote an answer."""
    if isinstance(error, ssl.SSLError):
        what = "its certificate is not accepted, or ours is not"
    elif isinstance(error, TimeoutError):
        what = "no connection in time"
    else:
        what = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return PolicyUnavailable(f"OPA can't be asked: {what}")
