"""One worker process: the house behind a uvicorn server, on the supervisor's socket.

It says about once a second on the status pipe how it is. When its supervisor is gone it stops as on SIGTERM: calls
finish within the grace time, records are committed, and the process ends. Nothing serves unobserved.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import structlog
import uvicorn

from gateway.serving.departure import Departure
from gateway.serving.status import Resigned, Status

STATUS_EVERY_S = 1.0
LOOK_EVERY_S = 0.1
UNACKNOWLEDGED_S = 60.0
TRIM_EVERY_S = 10.0
WORTH_BYTES = 8 << 20
KEPT_BYTES = 32 << 20
LARGE_BYTES = 16 << 20
COLLECT_AFTER = (10_000, 10, 10)
"""Objects made and not freed before the collector looks at them (Python's own: 700, which the requests in flight of
one moment exceed, so that it looked all the time and found nothing)."""
_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LEAVE: Mapping[signal.Signals, Callable[[Departure], None]] = {
    signal.SIGTERM: Departure.leave,
    signal.SIGINT: Departure.leave_at_once,
    signal.SIGUSR1: Departure.retire,
}
"""How each signal ends a worker."""


class Servable(Protocol):
    """What a worker needs of the house (`gateway.app.House`)."""

    async def start(self) -> None:
        """Open every room."""
        ...

    def status(self) -> Status:
        """How it is now."""
        ...

    def drain(self) -> None:
        """It stops: end what would go on for ever. Safe to call twice."""
        ...

    @property
    def drain_s(self) -> float:
        """How long it serves on when it stops."""
        ...

    def server(self) -> uvicorn.Server:
        """uvicorn, serving it with the door's own protocol (`connection.make_protocol`)."""
        ...

    async def close(self) -> None:
        """Close every room; what waits to be recorded is recorded."""
        ...


class StatusPipe:
    """The worker's end of the pipe to its supervisor. A line that does not fit is finished before the next begins."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._rest = b""
        self.broken = False

    def say(self, said: Status | Resigned) -> None:
        """Write one line. One that the supervisor has no room for is left out: the next says it better."""
        if not self._rest:
            self._rest = said.encode()
        try:
            self._rest = self._rest[os.write(self._fd, self._rest) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.broken = True


def hold_to_supervisor(status_fd: int) -> None:
    """End with the supervisor even while nothing looks at the pipe: at start, say (Linux). At once if it is gone.

    SIGHUP, which a closed terminal sends to all of a group, is the supervisor's alone to answer.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if sys.platform == "linux":
        # Not SIGTERM: the next supervisor wants the address, and whoever comes then is to find that one.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    look = select.poll()
    look.register(status_fd, 0)
    if look.poll(0):
        sys.exit("the supervisor is gone")


def use_all_descriptors() -> None:
    """Two descriptors a stream: take as many as the system grants, not the customary 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # a hard limit that the kernel itself would not accept
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def notice_the_dead(listener: socket.socket) -> None:
    """A client whose machine is gone is noticed by what it does not acknowledge (Linux; connections inherit this).

    Without it, each comment on its quiet streams would wait for a quarter of an hour.
    """
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(UNACKNOWLEDGED_S * 1000))


def keep_freed_memory() -> None:
    """Have the C library keep up to `KEPT_BYTES` of what was freed for what comes next (Linux with glibc); a block of
    `LARGE_BYTES`, which hardly a call takes, goes back at once.

    By itself it gives back what a call of a megabyte took as soon as that is answered, and the next has each page
    faulted in and cleared again: more than a third of its time. `Returns` gives back what no further call wanted.
    """
    allot = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if allot is not None:  # both: to set one of them ends the library's own choice of the other
        allot(_M_MMAP_THRESHOLD, LARGE_BYTES)
        allot(_M_TRIM_THRESHOLD, KEPT_BYTES)


class Returns:
    """Gives back what was freed after a peak: the C library keeps it, and the gateway would look as if it leaked.

    Only once memory has stopped growing, at most every `TRIM_EVERY_S`, and where at least `WORTH_BYTES` more are
    held than after the last time. It takes tens of milliseconds, in a thread: the loop goes on, and waits only where
    it needs memory of the arena that is being trimmed. A C library without `malloc_trim` (musl) is left alone.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
        self._kept = self._seen = resident_bytes() if self._trim else 0
        self._next = time.monotonic() + TRIM_EVERY_S

    @property
    def works(self) -> bool:
        """Whether the C library can be asked."""
        return self._trim is not None

    async def look(self) -> None:
        """Give back what is worth it."""
        if self._trim is None:
            return
        seen, self._seen = self._seen, resident_bytes()
        now = time.monotonic()
        if self._seen <= seen and self._seen > self._kept + WORTH_BYTES and now >= self._next:
            await asyncio.to_thread(self._trim, 0)
            self._next = now + TRIM_EVERY_S
            self._kept = self._seen = resident_bytes()


def resident_bytes() -> int:
    """What this process holds in memory (Linux)."""
    with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - a virtual file, read once a second
        return int(statm.read().split()[1]) * resource.getpagesize()


async def _report(
    house: Servable, pipe: StatusPipe, server: uvicorn.Server, over: Callable[[], bool], departure: Departure
) -> None:
    """Say how the house is, at once where its readiness changes, until it is `over`; leave when the pipe breaks."""
    said: tuple[Any, ...] = ()
    returns = Returns()
    said_at, latest, loop_lag = 0.0, time.monotonic(), 0.0
    while not over():
        now = time.monotonic()
        loop_lag = max(loop_lag, now - latest)
        status = _with_server(house.status(), server, loop_lag, departure.begun)
        shown = (status.ready, status.missing, status.degraded)
        if shown != said or now - said_at >= STATUS_EVERY_S:
            pipe.say(status)
            said, said_at, loop_lag = shown, now, 0.0
            await returns.look()
        if pipe.broken:
            departure.leave_at_once()
        latest = time.monotonic() + LOOK_EVERY_S
        await asyncio.sleep(LOOK_EVERY_S)
    house.status()  # what was counted in memory since the last look is carried over


def _with_server(status: Status, server: uvicorn.Server, loop_lag: float, leaving: bool) -> Status:
    """The house's status and what only its server knows."""
    missing = status.missing
    if leaving:
        missing = (*missing, "draining")
    elif not server.started:
        missing = (*missing, "listener")
    gauges = {
        **status.gauges,
        "connections": len(server.server_state.connections),
        "loop_lag_seconds": max(0.0, loop_lag),
    }
    return replace(status, ready=not missing, missing=missing, gauges=gauges)


async def work(house: Servable, fd: int, pipe: StatusPipe) -> None:
    """Serve on the inherited socket `fd` until a signal ends it (`LEAVE`). Raises what `House.start` raises."""
    use_all_descriptors()
    keep_freed_memory()
    listener = socket.socket(fileno=fd)
    notice_the_dead(listener)
    await house.start()
    # What is there now stays: no later collection goes through it, which would hold the loop for a tenth of a second.
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()
    server = house.server()
    config: Any = server.config
    departure = Departure(house, server, config.http.watch, house.drain_s)
    loop = asyncio.get_running_loop()
    for number, leave in LEAVE.items():
        loop.add_signal_handler(number, leave, departure)
    served = asyncio.Event()
    reporting = asyncio.create_task(_report(house, pipe, server, served.is_set, departure))
    try:
        await server.serve(sockets=[listener])
    finally:
        served.set()
        try:
            await reporting
        finally:
            await house.close()
        structlog.get_logger("worker").info("stopped", pid=os.getpid(), alone=pipe.broken)
        if pipe.broken:  # the supervisor can't clean up any more
            with contextlib.suppress(KeyError):
                shutil.rmtree(os.environ["PROMETHEUS_MULTIPROC_DIR"], ignore_errors=True)
