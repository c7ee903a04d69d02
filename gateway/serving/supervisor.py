"""One supervisor and N worker processes: the sockets, signals and the operators' listener. The rest is the crew's.

It binds the data plane's socket once and hands it to every worker, so that a worker that dies takes only its own
connections along. A gateway that has never served and can't start ends at once and says why; one that has served
keeps what works at work and tries again. It imports as little as it can: it is what is left when all else breaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import structlog

from gateway.serving.configuration import Configuration
from gateway.serving.crew import Crew
from gateway.serving.judge_call import Judge
from gateway.serving.listener import SETTLE_S, CannotServe, bind, keep_out
from gateway.serving.metrics_folder import MetricsFolder
from gateway.serving.reload import Reload
from gateway.serving.roster import Roster
from gateway.serving.understudy import Understudy


@dataclass(frozen=True, slots=True)
class Posts:
    """Where to listen and whom to start. `command` is the worker's argv; port, text and descriptors are appended.

    `file` is what a reload reads, and `judge` the argv of who judges it; `watch`: also when it changes by itself.
    """

    host: str
    port: int
    admin_host: str
    admin_port: int
    workers: int
    command: tuple[str, ...]
    configuration: Configuration
    file: Path
    judge: tuple[str, ...]
    watch: bool = False


class Supervisor:
    """Listens, and passes on what signals and operators ask."""

    def __init__(self, posts: Posts, understudies: list[Understudy] | None = None) -> None:
        """`understudies` become the first workers; who does is taken out of the list."""
        self.posts = posts
        self._understudies = understudies
        self.roster = Roster(posts.workers)
        self._log = structlog.get_logger("supervisor")
        self._hurried = asyncio.Event()
        self._crew: Crew
        self._reload: Reload

    async def run(self) -> int:
        """Serve until told to stop -> exit code. Raises `CannotServe`."""
        posts = self.posts
        with (
            bind(posts.host, posts.port, "listen") as door,
            bind(posts.admin_host, posts.admin_port, "admin") as desk,
        ):
            folder = MetricsFolder()
            self._crew = crew = Crew(
                self.roster,
                posts.command,
                door,
                folder.path,
                posts.configuration,
                understudies=self._understudies,
            )
            self._reload = Reload(crew, posts.file, Judge(posts.judge, folder.path), posts.configuration)
            self._hear()
            host, port = door.getsockname()[:2]
            self._log.info("listening", host=host, port=port, admin_port=desk.getsockname()[1], pid=os.getpid())
            try:
                await self._serve(door, desk, folder.path)
            finally:
                folder.remove()
        if crew.fault:
            raise CannotServe(crew.fault)
        code = int(crew.killed)
        self._log.info("stopped", code=code)
        return code

    def _hear(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._crew.stop, False)
        loop.add_signal_handler(signal.SIGINT, self._stop_at_once)
        loop.add_signal_handler(signal.SIGHUP, self._reload.ask)

    def _stop_at_once(self) -> None:
        """Asked from a terminal: nobody waits for traffic that still comes."""
        self._hurried.set()
        self._crew.stop(True)

    async def _serve(self, door: socket.socket, desk: socket.socket, folder: Path) -> None:
        """Keep all slots filled and answer the operators until the last worker has ended."""
        working = asyncio.create_task(self._crew.work())
        besides = [asyncio.create_task(self._close_when_stopping(door)), asyncio.create_task(self._reload.run())]
        if self.posts.watch:
            besides.append(asyncio.create_task(self._reload.watch()))
        for task in besides:
            task.add_done_callback(self._tell_broken)
        await asyncio.sleep(0)  # the workers' processes start before this one imports the rest of its own
        from gateway.serving.admin import Admin  # noqa: PLC0415

        admin = Admin(self.roster, folder).server()
        answering = asyncio.create_task(admin.serve(sockets=[desk]))
        try:
            await working
        finally:
            for task in besides:
                task.cancel()
            await asyncio.wait(besides)
            admin.should_exit = True
            await answering

    def _tell_broken(self, task: asyncio.Task[None]) -> None:
        """A defect there leaves the workers at work."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("task_broke", exc_info=error)

    async def _close_when_stopping(self, door: socket.socket) -> None:
        """Workers accept for as long as traffic may still come; then nobody does, and who comes is refused."""
        await self._crew.stopping.wait()
        drain_s = self._reload.configuration.drain_s
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurried.wait(), drain_s)
        if not self._hurried.is_set():
            keep_out(door)
            await asyncio.sleep(SETTLE_S if drain_s else 0)
        door.close()


def stay_asked() -> None:
    """The process ends in order: a signal that asks for it once more must not end it otherwise at the last moment."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def command_of(verb: str, config: Path, *options: str) -> tuple[str, ...]:
    """The argv of one of our own hidden commands on `config`; who starts it appends the rest."""
    return (sys.executable, "-m", "gateway.cli", verb, "--config", str(config), *options)
