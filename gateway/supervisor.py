"""One supervisor and N worker processes: it starts, watches, replaces and stops them.

It binds the data plane's socket once and hands it to every worker, so that a worker that dies takes only its own
connections along. A gateway that has never served and can't start ends at once and says why; one that has served
keeps what works at work and tries again. It imports as little as it can: it is what is left when all else breaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from gateway.listener import SETTLE_S, CannotServe, bind, keep_out
from gateway.metrics_folder import MetricsFolder
from gateway.roster import Roster, Worker
from gateway.status import LONGEST_LINE, Resigned, read_line

CANNOT_START = 3
"""A worker's exit code when its configuration or its bundle can't be used."""
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
STEADY_AFTER_S = 10.0
TRIES = 5
"""Deaths of a worker that was never ready after which a gateway that has never served gives up."""
SILENCE_S = 30
"""A worker that spoke once and has been silent for so long hangs, and is replaced."""
LAST_WORD_S = 1.0
CLOSING_S = 10.0
"""What a worker may need after its grace time: to commit its records and end its evaluators."""


@dataclass(frozen=True, slots=True)
class Posts:
    """Where to listen and whom to start. `command` is the worker's argv; port and descriptors are appended to it."""

    host: str
    port: int
    admin_host: str
    admin_port: int
    workers: int
    command: tuple[str, ...]
    grace_s: float
    drain_s: float = 0.0


class Supervisor:
    """Starts, watches, replaces and stops the workers; answers the operators."""

    def __init__(self, posts: Posts) -> None:
        self.posts = posts
        self.roster = Roster(posts.workers)
        self._log = structlog.get_logger("supervisor")
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._fault = ""
        self._exit_code = 0
        self._served: set[int] = set()

    @property
    def _has_served(self) -> bool:
        """Whether every slot had a ready worker at least once: what fails from now on is not the configuration."""
        return len(self._served) == self.posts.workers

    async def run(self) -> int:
        """Serve until told to stop -> exit code. Raises `CannotServe`."""
        posts = self.posts
        with (
            bind(posts.host, posts.port, "listen") as door,
            bind(posts.admin_host, posts.admin_port, "admin") as desk,
        ):
            folder = MetricsFolder()
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, self._stop)
            loop.add_signal_handler(signal.SIGINT, self._stop_at_once)
            host, port = door.getsockname()[:2]
            self._log.info("listening", host=host, port=port, admin_port=desk.getsockname()[1], pid=os.getpid())
            try:
                await self._serve(door, desk, folder.path)
            finally:
                folder.remove()
        if self._fault:
            raise CannotServe(self._fault)
        self._log.info("stopped", code=self._exit_code)
        return self._exit_code

    async def _serve(self, door: socket.socket, desk: socket.socket, folder: Path) -> None:
        """Keep all slots filled and answer the operators until the last worker has ended."""
        answering: asyncio.Task[None] | None = None
        try:
            async with asyncio.TaskGroup() as keepers:
                keepers.create_task(self._close_when_stopping(door))
                for slot in range(self.posts.workers):
                    keepers.create_task(self._keep(slot, door, folder))
                await asyncio.sleep(0)  # the workers' processes start before this one imports the rest of its own
                from gateway.admin import Admin  # noqa: PLC0415

                admin = Admin(self.roster, folder).server()
                answering = asyncio.create_task(admin.serve(sockets=[desk]))
        finally:
            if answering is not None:
                admin.should_exit = True
                await answering

    def _stop(self) -> None:
        """Not ready from this moment on. Asked again, nothing changes: what is being finished is finished."""
        self.roster.draining = True
        self._stopping.set()

    def _stop_at_once(self) -> None:
        """Asked from a terminal: nobody waits for traffic that still comes."""
        self._hurried.set()
        self._stop()

    async def _close_when_stopping(self, door: socket.socket) -> None:
        """Workers accept for as long as traffic may still come; then nobody does, and who comes is refused."""
        await self._stopping.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurried.wait(), self.posts.drain_s)
        if not self._hurried.is_set():
            keep_out(door)
            await asyncio.sleep(SETTLE_S if self.posts.drain_s else 0)
        door.close()

    async def _keep(self, slot: int, door: socket.socket, folder: Path) -> None:
        """Keep one slot filled until the gateway stops."""
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                code, why = await self._employ(slot, door, folder)
            except OSError as error:  # no process, no descriptor: the system is short of something
                code, why = None, f"no process could be started: {error.strerror}"
            if self._stopping.is_set():
                break
            failures = 0 if time.monotonic() - began > STEADY_AFTER_S else failures + 1
            if not self._has_served and (code == CANNOT_START or (slot not in self._served and failures >= TRIES)):
                self._fault = self._fault or why or f"a worker ended {failures} times before it was ready"
                self._stop()
                break
            self.roster.restarts += 1
            pause = BACKOFF_S[min(failures, len(BACKOFF_S) - 1)]
            tell = self._log.info if code == 0 else self._log.error
            tell("worker_left" if code == 0 else "worker_died", slot=slot, code=code, why=why, restart_in_s=pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _employ(self, slot: int, door: socket.socket, folder: Path) -> tuple[int | None, str]:
        """One worker's life, from its start to its end -> exit code, and its last word where it resigned."""
        readable, writable = os.pipe()
        pipe = os.fdopen(readable, "rb", 0)
        try:
            process = await asyncio.create_subprocess_exec(
                *self.posts.command, "--port", str(door.getsockname()[1]), "--slot", str(slot),
                "--fd", str(door.fileno()), "--status-fd", str(writable),
                pass_fds=(door.fileno(), writable), stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
            )  # fmt: skip
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(writable)
        worker = self.roster.workers[slot] = Worker(process.pid)
        self._log.info("worker_started", slot=slot, pid=process.pid)
        listening = asyncio.create_task(self._listen(slot, worker, pipe))
        watching = asyncio.create_task(self._watch(worker, process))
        try:
            code = await process.wait()
        finally:
            watching.cancel()
            del self.roster.workers[slot]
            # Its end of the pipe closed with it; should a child of its hold it open, nobody waits for that.
            await asyncio.wait({listening}, timeout=LAST_WORD_S)
            listening.cancel()
        why = listening.result() if listening.done() else ""
        if self._stopping.is_set() and code not in (0, -signal.SIGTERM, CANNOT_START):
            self._exit_code = 1
        return code, why

    async def _listen(self, slot: int, worker: Worker, pipe: io.FileIO) -> str:
        """Take in what the worker says until its pipe closes -> its last word, if it resigned."""
        reader = asyncio.StreamReader(limit=LONGEST_LINE)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        last = ""
        try:
            while line := await reader.readline():
                said = read_line(line)
                if isinstance(said, Resigned):
                    last = said.why
                    continue
                worker.hear(said)
                if said.ready and slot not in self._served:
                    self._served.add(slot)
                    self._log.info("worker_ready", slot=slot, after_s=round(time.monotonic() - worker.born_at, 3))
        except ValueError as error:
            worker.status, worker.unintelligible = None, True
            self._log.error("worker_unintelligible", slot=slot, pid=worker.pid, error=str(error))
        finally:
            transport.close()
        return last

    async def _watch(self, worker: Worker, process: asyncio.subprocess.Process) -> None:
        """End a worker that hangs; when the gateway stops, end it within the grace time, and certainly after it."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 1)
                break
            worker.silent_for += worker.status is not None
            if worker.silent_for == SILENCE_S:
                self._log.error("worker_hangs", pid=worker.pid, silent_s=SILENCE_S)
                process.kill()
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT if self._hurried.is_set() else signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurried.wait(), self.posts.drain_s)
                process.send_signal(signal.SIGINT)
            await asyncio.sleep(self.posts.grace_s + CLOSING_S)
            self._log.error("worker_killed", pid=worker.pid)
            process.kill()


def stay_asked() -> None:
    """The process ends in order: a signal that asks for it once more must not end it otherwise at the last moment."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def worker_command(config: Path, host: str, workers: int) -> tuple[str, ...]:
    """The argv that starts a worker on `config`; the supervisor appends the port and the descriptors."""
    options = ("--config", str(config), "--host", host, "--workers", str(workers))
    return (sys.executable, "-m", "gateway.cli", "worker", *options)
