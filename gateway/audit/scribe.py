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
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from gateway.audit.rotation import is_named, is_same_file, set_aside, sync_folder
from gateway.audit.segments import segment_path
from gateway.audit.slot import Slot, claim_slot
from gateway.audit.space import give_back, take_ahead

T = TypeVar("T")
_ROTATE_AGAIN_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a file is set aside: beyond so many bytes, or so many seconds after its first record; 0 for never."""

    rotate_bytes: int = 0
    rotate_s: float = 0.0


class Scribe:
    """One thread, one claimed slot. Methods are called on the loop; what they start runs in the thread, in order.

    `remarks` are what there is to tell of it, as acts with their facts.
    """

    def __init__(
        self,
        file: Path,
        only: int | None,
        rotation: Rotation,
        *,
        sync: Callable[[int], None],
        write: Callable[[int, memoryview], int],
    ) -> None:
        self._file: Final = file
        self._only: Final = only
        self._rotation: Final = rotation
        self._not_before = 0.0
        self.remarks: Final[deque[tuple[str, Mapping[str, Any]]]] = deque(maxlen=16)
        self._sync: Final = sync
        self._write: Final = write
        self._jobs: Final[queue.SimpleQueue[Callable[[], None] | None]] = queue.SimpleQueue()
        self._loop: Final = asyncio.get_running_loop()
        self._slot: Slot | None = None
        threading.Thread(target=self._work, name="audit", daemon=True).start()

    @property
    def wants_rotation(self) -> bool:
        """Whether the file is full, or old. What the next commit begins with then is the next file's first record."""
        slot, when = self._slot, self._rotation
        if slot is None or not slot.size or time.monotonic() < self._not_before:
            return False
        full = 0 < when.rotate_bytes <= slot.size
        return full or (0 < when.rotate_s <= time.time() - slot.began if slot.began else False)

    async def claim(self) -> Slot:
        """Claim and mend the lowest free slot of the file, or only that one. Raises `AuditUnavailable`."""
        self._slot = slot = await self._ask(lambda: claim_slot(self._file, self._only))
        return slot

    def write(
        self, lines: Sequence[bytes], *, first: int, mend: bool, rotate: bool, then: Callable[[str], None]
    ) -> None:
        """Append the lines durably, then call `then` on the loop with `""`, or with why it failed.

        `first` is the number of the first line's record. `mend` allows to cut off what an earlier failure may have
        left behind the last whole record; `rotate` asks for the next file before.
        """
        data = b"".join(lines)

        def job() -> None:
            if rotate:
                self._rotate(first)
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
            self._leave(self._slot)
            self._slot = None

    @staticmethod
    def _leave(slot: Slot) -> None:
        with contextlib.suppress(OSError):  # the room behind its end is all that it costs
            give_back(slot.fd, slot.size)
        os.close(slot.fd)

    def _rotate(self, first: int) -> None:
        """Set the file aside; where that fails, the file goes on growing and it is tried again later."""
        slot = self._slot
        if slot is None or not is_same_file(slot.path, slot.fd) or os.fstat(slot.fd).st_size != slot.size:
            return  # for `_append` to tell
        try:
            fd = set_aside(slot.path, slot.first)
        except OSError as error:
            self._not_before = time.monotonic() + _ROTATE_AGAIN_S
            self.remarks.append(("rotation_failed", {"why": f"{slot.path}: {error.strerror or error}"}))
            return
        self.remarks.append(
            ("rotated", {"file": segment_path(slot.path, slot.first).name, "from": slot.first, "to": first - 1})
        )
        self._leave(slot)
        slot.fd, slot.size, slot.first, slot.began, slot.folder_due, slot.room = fd, 0, first, time.time(), True, 0

    def _append(self, data: bytes, mend: bool) -> str:
        slot = self._slot
        if slot is None:
            return "no file is claimed"
        try:
            if slot.folder_due:
                sync_folder(slot.path.parent)
                slot.folder_due = False
            here = os.fstat(slot.fd)
            if not is_named(slot.path, here):
                return f"{slot.path} was removed or replaced"
            size = here.st_size
            if size < slot.size:
                return f"{slot.path} was cut by somebody else: {size} bytes instead of {slot.size}"
            if size > slot.size:
                if not mend:
                    return f"{slot.path} was written to by somebody else"
                os.ftruncate(slot.fd, slot.size)
                slot.room = 0
            if slot.size + len(data) > slot.room:
                slot.room = take_ahead(slot.fd, slot.size)
            rest = memoryview(data)
            while rest:
                rest = rest[self._write(slot.fd, rest) :]
            self._sync(slot.fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(slot.fd, slot.size)
                slot.room = 0
            return f"{slot.path}: {error.strerror or error}"
        if not slot.size:
            slot.began = time.time()
        slot.size += len(data)
        return ""
