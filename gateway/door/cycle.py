"""One request and its answer, as an ASGI application has them: `receive`, `send`, and what its end means.

In place of uvicorn's own cycle, which writes a head and its body apart: two packets and two calls of the system for
each answer. Here a whole answer is one write, and may wait for others (post.py). Invariants: a head that announces
the length of its body leaves with the first of it; every other head leaves at once, because whoever waits for a
stream wants to know that there is one; and nothing that an application names as a header can end its line.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, MutableMapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

Message = MutableMapping[str, Any]

STATUS_LINES: Final = {
    **{status: b"HTTP/1.1 %d \r\n" % status for status in range(100, 600)},
    **{status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus},
}
READ_AHEAD: Final = 65_536
"""Bytes of a body that may wait for the application before the client is not read any further."""

_JOINED: Final = 65_536
"""Up to this size a body is copied behind its head; a larger one is handed over as it is."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_BROKEN: Final = b"Internal Server Error"
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NO_VALUE: Final = bytes({*range(0x20), 0x7F} - {0x09})
_DECIDING: Final = frozenset({b"connection: ", b"content-length: ", b"transfer-encoding: "})


class Line(Protocol):
    """The connection, as far as a request on it has to do with it."""

    tasks: set[asyncio.Task[Any]]
    write_paused: bool

    @property
    def transport(self) -> asyncio.Transport:
        """Where the client is."""
        ...

    @property
    def default_headers(self) -> Iterable[tuple[bytes, bytes]]:
        """What every answer begins with."""
        ...

    def write(self, *pieces: bytes) -> None:
        """Send these bytes now, at one go."""
        ...

    def post(self, answer: bytes) -> None:
        """Send an answer that is whole within this turn of the loop, or now."""
        ...

    async def drain(self) -> None:
        """Until the client has read enough of what waits for it."""
        ...

    def resume_reading(self) -> None:
        """The client is read on."""
        ...

    def answered(self, keep_alive: bool) -> None:
        """The answer is whole."""
        ...

    def part(self) -> None:
        """The connection ends here."""
        ...


class Cycle:
    """One request on one connection. `keep_alive` may be withdrawn until the answer has begun."""

    __slots__ = (
        "_arrived", "_expects_continue", "_head", "_left", "_line", "_moved", "_parts", "_says_close", "_size",
        "_to_head", "disconnected", "keep_alive", "more_body", "response_complete", "response_started",
    )  # fmt: skip

    def __init__(self, line: Line, method: str, expects_continue: bool, keep_alive: bool) -> None:
        self._line = line
        self._to_head = method == "HEAD"
        self._expects_continue = expects_continue
        self.keep_alive = keep_alive
        self.disconnected = False
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self._parts: list[bytes] = []  # of the body, not yet received by the application
        self._size = 0
        self._moved = False  # whether there is something to receive
        self._arrived: asyncio.Event | None = None  # only where somebody had to wait for it
        self._head: bytes | None = None  # held back until there is some of its body
        self._says_close = False
        self._left: int | None = 0  # of the announced length; `None` for chunks

    # From the connection

    def add(self, body: bytes) -> bool:
        """More of the body has arrived -> whether it is enough for now."""
        self._parts.append(body)
        self._size += len(body)
        self.wake()
        return self._size > READ_AHEAD

    def complete(self) -> None:
        """The body has arrived."""
        self.more_body = False
        self.wake()

    def lose(self) -> None:
        """Nobody is there any more to be answered."""
        self.disconnected = not self.response_complete
        self.wake()

    def wake(self) -> None:
        """There is something to receive, were it only that there is nothing more."""
        self._moved = True
        if self._arrived is not None:
            self._arrived.set()

    def ended(self, task: asyncio.Task[None]) -> None:
        """The application's task is done; where it left its request without an answer, there is one all the same."""
        self._line.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            structlog.get_logger("door").error("application_broke", exc_info=error)
        if self.response_complete or self.disconnected:
            return
        if error is None and not task.cancelled():
            structlog.get_logger("door").error("application_left", answer_begun=self.response_started)
        if self.response_started:
            self._line.part()
            return
        self._head = None
        self._begin(500, [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(_BROKEN))])
        self.keep_alive = False
        self._go_on(_BROKEN, more=False)

    # To the application

    async def receive(self) -> Message:
        """What has arrived of the body since the last time; waits where that is nothing."""
        if not self.disconnected and not self.response_complete:
            if self._expects_continue and not self._line.transport.is_closing():
                self._expects_continue = False
                self._line.write(_CONTINUE)
            self._line.resume_reading()
            if not self._moved:
                if self._arrived is None:
                    self._arrived = asyncio.Event()
                await self._arrived.wait()
            self._moved = False
            if self._arrived is not None:
                self._arrived.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        parts, self._parts, self._size = self._parts, [], 0
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        """A message of the answer. Waits while the client reads nothing; goes nowhere when it has gone.

        Raises `RuntimeError` for what is no answer, `ValueError` for a header that would not be one line.
        """
        if self._line.write_paused and not self.disconnected:
            await self._line.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if kind == "http.response.start":
            self._begin(message["status"], message.get("headers", ()))
        elif kind == "http.response.body":
            self._go_on(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"not a message of an answer: {kind!r}")

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if self._head is not None or self.response_started:
            raise RuntimeError("the answer has begun before")
        lines = [*self._line.default_headers, *headers]
        if (text := b"".join([value for _, value in lines])) != text.translate(None, _NO_VALUE):
            raise ValueError("a header's value with a control character")
        pieces = [STATUS_LINES[status]]
        self._says_close = False
        left: int | None = None
        for name, value in lines:
            field = _field(name)
            if field in _DECIDING:
                if field == b"content-length: ":
                    if left is not None or not value.isdigit():
                        raise ValueError("not one length")
                    left = int(value)
                elif field == b"transfer-encoding: ":
                    continue  # the framing is ours
                elif b"close" in [option.strip() for option in value.lower().split(b",")]:
                    self._says_close, self.keep_alive = True, False
            pieces += (field, value, b"\r\n")
        if left is None and (self._to_head or status in (204, 304)):
            left = 0
        chunked = left is None
        if chunked:
            pieces.append(b"transfer-encoding: chunked\r\n")
        self._left, self._head = left, b"".join(pieces)
        if chunked:
            self._write(b"", b"", b"")

    def _go_on(self, body: bytes, *, more: bool) -> None:
        if self.response_complete or (self._head is None and not self.response_started):
            raise RuntimeError("a body without its head")
        if self._to_head:
            self._write(b"", b"", b"")
        elif self._left is None:
            before, after = (b"%x\r\n" % len(body), b"\r\n") if body else (b"", b"")
            self._write(before, body, after if more else after + b"0\r\n\r\n")
        else:
            left = self._left - len(body)
            if left < 0 or (left and not more):
                raise RuntimeError("the body is not as long as was announced")
            self._left = left
            self._write(b"", body, b"")
        if not more:
            self.response_complete = True
            if self._arrived is not None:
                self._arrived.set()
            self._line.answered(self.keep_alive)

    def _write(self, before: bytes, body: bytes, after: bytes) -> None:
        """Everything at once, behind the head where that was held back."""
        whole = self._left == 0 and self._head is not None
        if self._head is not None:
            close = b"\r\n" if self.keep_alive or self._says_close else b"connection: close\r\n\r\n"
            before = b"%b%b%b" % (self._head, close, before)
            self._head, self.response_started, self._expects_continue = None, True, False
        if len(body) > _JOINED:
            self._line.write(*[piece for piece in (before, body, after) if piece])
        elif data := b"%b%b%b" % (before, body, after):
            if whole:
                self._line.post(data)
            else:
                self._line.write(data)


@lru_cache(maxsize=256)
def _field(name: bytes) -> bytes:
    """A header's name as its line begins. Raises `ValueError` for what is none."""
    if not _TOKEN.fullmatch(name):
        raise ValueError("not a header's name")
    return name.lower() + b": "
