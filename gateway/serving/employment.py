"""One worker process from its start to its end, as its supervisor sees it: what it says, and how it is ended.

A worker that spoke once and falls silent hangs, and is ended. One that is told to leave has its grace time, and is
ended certainly after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from gateway.serving.roster import Worker
from gateway.serving.status import LONGEST_LINE, Resigned, read_line
from gateway.serving.understudy import Understudy

SILENCE_S = 30
"""A worker that spoke once and has been silent for so long hangs, and is replaced."""
LAST_WORD_S = 1.0
COMMAND = 3
"""Where in the argv of one of our own commands its name stands: after `python -m gateway.cli`."""
CLOSING_S = 10.0
"""What a worker may need after its grace time: to commit its records and end its evaluators."""


class Life:
    """One worker. `ready` is set when it has said so for the first time; `ended` has its exit code and last word."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: io.FileIO, seat: int, grace_s: float) -> None:
        self.seat: Final = seat
        self.worker: Final = Worker(process.pid)
        self.ready: Final = asyncio.Event()
        self.retired = False
        self._process: Final = process
        self._grace_s: Final = grace_s
        self._log = structlog.get_logger("supervisor")
        self._end: asyncio.TimerHandle | None = None
        self.ended: Final = asyncio.create_task(self._run(pipe))

    @classmethod
    async def begin(
        cls,
        command: Sequence[str],
        fd: int,
        seat: int,
        grace_s: float,
        environment: Mapping[str, str],
        *,
        understudy: Understudy | None = None,
    ) -> Life:
        """Start the process, or let the `understudy` be it; the listener's `fd` is passed to it. Raises `OSError`."""
        readable, writable = os.pipe()
        pipe = os.fdopen(readable, "rb", 0)
        try:
            if understudy is not None:
                arguments = (*command[COMMAND:], "--seat", str(seat))
                try:
                    return cls(understudy.play(arguments, fd, writable, environment), pipe, seat, grace_s)
                except OSError:  # it is gone, and was no worker yet: that is no failed start
                    await understudy.dismiss()
            process = await asyncio.create_subprocess_exec(
                *command, "--seat", str(seat), "--fd", str(fd), "--status-fd", str(writable),
                pass_fds=(fd, writable), stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **environment},
            )  # fmt: skip
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(writable)
        return cls(process, pipe, seat, grace_s)

    def leave(self, number: signal.Signals) -> None:
        """Tell it to end; how, the signal says (`worker.LEAVE`). Its time runs from the first one on."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        if self._end is None:
            loop = asyncio.get_running_loop()
            self._end = loop.call_later(self._grace_s + CLOSING_S, self._cut_off)

    def _cut_off(self) -> None:
        if self._process.returncode is None:
            self._log.error("worker_killed", pid=self.worker.pid)
            self._process.kill()

    async def _run(self, pipe: io.FileIO) -> tuple[int, str]:
        listening = asyncio.create_task(self._listen(pipe))
        watching = asyncio.create_task(self._watch())
        try:
            code = await self._process.wait()
        finally:
            watching.cancel()
            if self._end is not None:
                self._end.cancel()
            # Its end of the pipe closed with it; should a child of its hold it open, nobody waits for that.
            await asyncio.wait({listening}, timeout=LAST_WORD_S)
            listening.cancel()
        return code, listening.result() if listening.done() else ""

    async def _listen(self, pipe: io.FileIO) -> str:
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
                self.worker.hear(said)
                if said.ready:
                    self.ready.set()
        except ValueError as error:
            self.worker.status, self.worker.unintelligible = None, True
            self._log.error("worker_unintelligible", pid=self.worker.pid, error=str(error))
        finally:
            transport.close()
        return last

    async def _watch(self) -> None:
        """End a worker that hangs."""
        while self._end is None:
            await asyncio.sleep(1)
            self.worker.silent_for += self.worker.status is not None
            if self.worker.silent_for == SILENCE_S:
                self._log.error("worker_hangs", pid=self.worker.pid, silent_s=SILENCE_S)
                self._process.kill()

    @property
    def age_s(self) -> float:
        """Since it was started."""
        return time.monotonic() - self.worker.born_at
