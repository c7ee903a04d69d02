"""Log lines: one JSON object each, on standard output, and never in a call's way.

What is said in one turn of the loop leaves in one write, and only as far as standard output takes it without
blocking: a log collector that stalls costs lines, which are counted, never a call. What waits at exit is written.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import select
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

import orjson
import structlog

MAX_WAITING: Final = 4 * 1024 * 1024
"""Bytes of lines that may wait for a stalled reader; those beyond are counted and dropped."""

RETRY_S: Final = 0.05
EXIT_S: Final = 1.0
"""How long the end of the process waits for a reader that is slow."""

_FRAMES: Final = 16


class Outlet:
    """Lines on their way to one descriptor, from any thread. The methods named like levels are structlog's."""

    def __init__(self, fd: int, max_waiting: int = MAX_WAITING) -> None:
        self.lost = 0
        self._fd = fd
        self._max_waiting = max_waiting
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._rest = b""
        self._told = 0
        self._turn_of: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        # Up to PIPE_BUF bytes a pipe takes whole: lines of several processes do not mix.
        self._most = 1 << 20 if stat.S_ISREG(os.fstat(fd).st_mode) else select.PIPE_BUF

    def add(self, line: bytes) -> None:
        """One line, without its line feed. Leaves within this turn of the loop, or at once where none runs."""
        if self._bytes >= self._max_waiting:
            self.lost += 1
            return
        self._lines.append(line)
        self._bytes += len(line) + 1
        turn_of = self._turn_of
        if turn_of is not None and turn_of.is_running():  # it leaves with those before it, whoever's turn that is
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush(EXIT_S)
            return
        if self._turn_of is not loop:
            self._turn_of = loop
            loop.call_soon(self._turn, loop)

    debug = info = warning = warn = error = critical = fatal = exception = msg = log = add

    def flush(self, wait_s: float = 0.0) -> None:
        """Write what waits, as far as the descriptor takes it within `wait_s`."""
        deadline = time.monotonic() + wait_s
        with self._lock:
            while self._lines or self._rest:
                if not self._rest:
                    self._rest = self._gather()
                if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    return
                try:
                    self._rest = self._rest[os.write(self._fd, self._rest[: self._most]) :]
                except OSError:  # nobody reads any more, or the disk is full: calls go on, the record is elsewhere
                    self.lost += 1 + len(self._lines)
                    self._lines.clear()
                    self._rest, self._bytes = b"", 0

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn_of = None
        self.flush()
        if self._lines or self._rest:
            self._turn_of = loop
            loop.call_later(RETRY_S, self._turn, loop)
        elif self.lost > self._told:
            lost, self._told = self.lost - self._told, self.lost
            self.add(render_line({"event": "log_lines_lost", "level": "error", "timestamp": stamp(), "lost": lost}))

    def _gather(self) -> bytes:
        """As many lines as may be written at once; a line that is longer goes alone."""
        lines = [self._lines.popleft()]
        size = len(lines[0]) + 1
        while self._lines and size + len(self._lines[0]) < self._most:
            lines.append(self._lines.popleft())
            size += len(lines[-1]) + 1
        self._bytes -= size
        return b"\n".join(lines) + b"\n"


class _Clock:
    """UTC time as text; the part that stays the same for a second is made once."""

    def __init__(self) -> None:
        self._second = -1
        self._prefix = ""

    def __call__(self) -> str:
        second, micros = divmod(time.time_ns() // 1000, 1_000_000)
        if second != self._second:
            self._second, self._prefix = second, time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second))
        return f"{self._prefix}{micros:06d}Z"


stamp = _Clock()


def render_line(event: Mapping[str, Any]) -> bytes:
    """An event as JSON in ASCII: no control, bidi or separator character of anybody's text reaches a terminal."""
    return json.dumps(event, default=repr, separators=(",", ":")).encode("ascii")


_BEGINNING: Final = b'{"event":"request","level":"info","timestamp":"%b",'


class RequestLog:
    """The canonical line of each request, written without structlog's chain of processors.

    That chain costs three times as much as the line itself (docs/operations.md), for one event of one form whose
    fields come from the record's projection: escaped, cut, and of JSON's own types.
    """

    def __init__(self, outlet: Outlet | None = None) -> None:
        """`outlet` is by default the one of `set_up_logs`; without that, nothing is written."""
        self._outlet = outlet or _outlet

    @property
    def lost(self) -> int:
        """Lines of all kinds that found no way out of this process."""
        return self._outlet.lost if self._outlet is not None else 0

    def write(self, fields: Mapping[str, Any]) -> None:
        """One line. `fields` are flat, of JSON's types, and at least one."""
        if self._outlet is not None:
            self._outlet.add(_BEGINNING % stamp().encode() + orjson.dumps(fields)[1:])


_outlet: Outlet | None = None


def set_up_logs(level: int = logging.INFO) -> None:
    """Configure structlog, and send the standard library's warnings and worse (uvicorn, asyncio) the same way."""
    global _outlet  # noqa: PLW0603 - standard output is one for the process, and so is what leads there
    if _outlet is None:
        _outlet = Outlet(1)
        atexit.register(_outlet.flush, EXIT_S)
    outlet = _outlet
    structlog.configure(
        processors=[_complete, _name_error, _render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: outlet,
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Bridge(level=logging.WARNING)]
    root.setLevel(logging.WARNING)


def _complete(_: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    level = "error" if method == "exception" else method
    return {"event": event.pop("event"), "level": level, "timestamp": stamp(), **event}


def _name_error(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """An exception is told by its type and places: its text can hold a caller's data."""
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        event.update(describe_error(error))
    return event


def _render(_: Any, __: str, event: structlog.typing.EventDict) -> bytes:
    return render_line(event)


def describe_error(error: BaseException) -> dict[str, Any]:
    """An exception's type and the innermost places it came through, without its text."""
    frames: deque[str] = deque(maxlen=_FRAMES)
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
        trace = trace.tb_next
    return {"error": type(error).__name__, "frames": list(frames)}


class _Bridge(logging.Handler):
    """Standard library records -> structlog: the first line of what is said, with numbers only filled in.

    Others' words are quoted there: an exporter's line tells what its receiver answered, or a request's whole address.
    """

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        message = _without_words(record).partition("\n")[0][:500]
        told = describe_error(error) if error else {}
        log = structlog.get_logger()
        (log.error if record.levelno >= logging.ERROR else log.warning)(message, logger=record.name, **told)


def _without_words(record: logging.LogRecord) -> str:
    """The message with its numbers; an exception is its type, and any other value `…`."""
    given, text = record.args, str(record.msg)
    try:
        if isinstance(given, Mapping):
            return text % {name: _number_or_kind(value) for name, value in given.items()}
        return text % tuple(map(_number_or_kind, given)) if given else text
    except (TypeError, ValueError, KeyError):
        return text


def _number_or_kind(value: object) -> object:
    if isinstance(value, (int, float)):
        return value
    return type(value).__name__ if isinstance(value, BaseException) else "…"
