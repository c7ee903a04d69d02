"""The thread that alone touches the audit file, so that a disk that blocks never blocks the event loop.

Invariant: after `write` answered with a failure, the file ends where the last whole record ends, or is brought there
before anything else is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from gateway.audit.slot import Slot, claim_slot, is_same_file

T = TypeVar("T")


class Scribe:
    """One thread, one claimed slot. Methods are called on the loop; what they start runs in the thread, in order."""

    def __init__(self, sync: Callable[[int], None], write: Callable[[int, memoryview], int]) -> None:
        self._sync: Final = sync
        self._write: Final = write
        self._jobs: Final[queue.SimpleQueue[Callable[[], None] | None]] = queue.SimpleQueue()
        self._loop: Final = asyncio.get_running_loop()
        self._slot: Slot | None = None
        threading.Thread(target=self._work, name="audit", daemon=True).start()

    async def claim(self, file: Path, only: int | None = None) -> Slot:
        """Claim and mend the lowest free slot of `file`, or `only` that one. Raises `AuditUnavailable`."""
        self._slot = slot = await self._ask(lambda: claim_slot(file, only))
        return slot

    def write(self, data: bytes, *, mend: bool, then: Callable[[str], None]) -> None:
        """Append `data` durably, then call `then` on the loop with `""`, or with why it failed.

        `mend` allows to cut off what an earlier failure may have left behind the last whole record.
        """

        def job() -> None:
            why = self._append(data, mend)
            with contextlib.suppress(RuntimeError):  # the loop may be gone when a blocked file comes back
                self._loop.call_soon_threadsafe(then, why)

        self._jobs.put(job)

    async def close(self, timeout_s: float) -> None:
        """Close the file, and free its lock, once what was asked before is done; waits `timeout_s` at most."""
        closed = self._ask(self._release)
        self._jobs.put(None)
        await asyncio.wait((closed,), timeout=timeout_s)
        closed.cancel()

    def _ask(self, question: Callable[[], T]) -> asyncio.Future[T]:
        answer: asyncio.Future[T] = self._loop.create_future()

        def job() -> None:
            try:
                settle = functools.partial(answer.set_result, question())
            except Exception as error:  # noqa: BLE001 - handed over to who waits, whatever it is
                settle = functools.partial(answer.set_exception, error)
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(lambda: None if answer.done() else settle())

        self._jobs.put(job)
        return answer

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _release(self) -> None:
        if self._slot is not None:
            os.close(self._slot.fd)
            self._slot = None

    def _append(self, data: bytes, mend: bool) -> str:
        slot = self._slot
        if slot is None:
            return "no file is claimed"
        try:
            if not is_same_file(slot.path, slot.fd):
                return f"{slot.path} was removed or replaced"
            size = os.fstat(slot.fd).st_size
            if size < slot.size:
                return f"{slot.path} was cut by somebody else: {size} bytes instead of {slot.size}"
            if size > slot.size:
                if not mend:
                    return f"{slot.path} was written to by somebody else"
                os.ftruncate(slot.fd, slot.size)
            rest = memoryview(data)
            while rest:
                rest = rest[self._write(slot.fd, rest) :]
            self._sync(slot.fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(slot.fd, slot.size)
            return f"{slot.path}: {error.strerror or error}"
        slot.size += len(data)
        return ""
