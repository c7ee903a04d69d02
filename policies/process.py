"""One evaluator process as the gateway sees it: started, asked, heard, killed.

The child gets one socket and nothing else of the gateway: no environment, no descriptor, no terminal. It is started
by exec, never by a fork that would share memory or listening sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections import deque
from typing import Protocol, cast

from policies import frames

# What an interpreter may need to start where it is installed in an unusual place; nothing else is handed on.
_KEPT_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME")

LOAD_S = 20.0  # to start a process and compile the bundle


class Question:
    """One question on its way. `deadline` is loop time; `strikes` counts the evaluators that died on it."""

    __slots__ = ("answered", "deadline", "ident", "strikes", "text", "waits")

    def __init__(self, ident: int, text: bytes, deadline: float, answered: asyncio.Future[bytes]) -> None:
        self.ident = ident
        self.text = text
        self.deadline = deadline
        self.answered = answered
        self.strikes = 0
        self.waits = False


class Listener(Protocol):
    """Who owns an evaluator and hears of it."""

    def heard(self, evaluator: Evaluator, kind: int, ident: int, payload: bytes) -> None:
        """One frame came."""
        ...

    def lost(self, evaluator: Evaluator) -> None:
        """The process is gone, or can't be talked to any more. Said once."""
        ...


class Evaluator(asyncio.Protocol):
    """The gateway's end. `asked` are the questions sent and not answered; the first one is being evaluated."""

    def __init__(self, listener: Listener, process: subprocess.Popen[bytes]) -> None:
        self.asked: deque[Question] = deque()
        self.asked_bytes = 0
        self.head_since = 0.0  # loop time since which the first of `asked` has been evaluated
        self.answers = 0
        self.loaded = False
        self.stuck = False  # its first question takes long; the others were handed on
        self.retired = False  # gets no more questions and ends with the one it has
        self.process = process
        self._listener = listener
        self._reader = frames.FrameReader(frames.LONGEST_ANSWER)
        self._killed = False
        self._transport: asyncio.Transport | None = None
        self._outgoing: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the socket is ours."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class

    def data_received(self, data: bytes) -> None:
        """asyncio: the child wrote."""
        try:
            for kind, ident, payload in self._reader.feed(data):
                if self._killed:
                    return  # what came after the frame that it was killed for is not believed
                self._listener.heard(self, kind, ident, payload)
        except frames.FrameError:
            self.kill()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason changes nothing
        """asyncio: the child is gone, or we hung up."""
        self._transport = None
        self._kill_process()
        self._listener.lost(self)

    def send(self, kind: int, ident: int, payload: bytes) -> None:
        """Write one frame without waiting. To a process that is gone: nothing; `lost` is on its way.

        What is sent in one turn of the loop leaves in one write: each write wakes the child, which costs more than
        the frame does.
        """
        if self._transport is not None:
            if not self._outgoing:
                self._loop.call_soon(self._flush)
            self._outgoing.append(frames.pack_frame(kind, ident, payload))

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and outgoing:
            self._transport.write(b"".join(outgoing) if len(outgoing) > 1 else outgoing[0])

    def hang_up(self) -> None:
        """Let it end by itself: it reads the end of the stream and exits."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def kill(self) -> None:
        """End it now, whatever it does, and hear nothing more of it."""
        self._killed = True
        self._kill_process()
        if self._transport is not None:
            self._transport.abort()

    def demote(self) -> None:
        """Whatever it computes, it shall not take the processor from calls that are not stuck."""
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, self.process.pid, 19)

    def _kill_process(self) -> None:
        # `Popen.kill` looks first whether the process was reaped: a reused id is never hit.
        self.process.kill()


async def start_evaluator(listener: Listener) -> Evaluator:
    """Start a process and connect to it; it waits for its LOAD frame. Raises `OSError` when none can be started."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            ours.setblocking(False)
            process = _start_process(theirs)
        evaluator = Evaluator(listener, process)
    except BaseException:
        ours.close()
        raise
    try:
        await asyncio.get_running_loop().create_unix_connection(lambda: evaluator, sock=ours)
    except BaseException:
        ours.close()
        process.kill()
        process.wait()
        raise
    return evaluator


def connect_blocking() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The same process for callers without an event loop (`rego_tests`): its socket, and the process."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            return ours, _start_process(theirs)
    except BaseException:
        ours.close()
        raise


def _start_process(theirs: socket.socket) -> subprocess.Popen[bytes]:
    environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    # The child finds its modules where this process found them, and never in the working directory.
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    # The engine's allocator would reserve 1 GiB at once, and the memory limit counts what is reserved.
    environment["MIMALLOC_ARENA_RESERVE"] = "65536"  # KiB
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module; takes about a millisecond
        [sys.executable, "-P", "-S", "-X", "utf8", "-m", "policies.evaluator", str(os.getpid())],
        stdin=theirs.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # Rego's print() writes there what it is given
        env=environment,
        cwd="/",
        close_fds=True,
    )
