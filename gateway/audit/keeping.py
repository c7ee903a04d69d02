"""The chain's checkpoints go to a second place, and what is old enough and remembered there may go away.

Invariants: a checkpoint speaks of records that are durable; nothing here delays a record; a rotated file is removed
only after a checkpoint of exactly its end was kept in every place that is configured, so that what is left still
verifies, from there on. What could not be kept is tried again, and told.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, ParamSpec, Protocol, TypeVar

import structlog

from gateway.audit.checkpoints import MAX_CHECKPOINT, SigningKey, read_checkpoint, write_checkpoint
from gateway.audit.port import AuditUnavailable
from gateway.audit.rotation import sync_folder
from gateway.audit.segments import lines_back, open_chain, segments_of, slot_path
from gateway.contract.chain import Checkpoint, read_line
from gateway.contract.record import admin_record

_CLOSE_S: Final = 2.0
_LOOK_S: Final = 5.0
_PATIENCE_S: Final = 10.0
_MOST_HANGING: Final = 2

P = ParamSpec("P")
T = TypeVar("T")


class SecondPlace(Protocol):
    """Where checkpoints are kept, out of the writer's reach."""

    async def keep(self, points: Mapping[Checkpoint, bytes]) -> set[Checkpoint]:
        """Keep the lines -> the ones that are surely there now, soon. Raises `OSError` where the place fails."""
        ...

    async def close(self) -> None:
        """Nothing more will come."""
        ...


class KeptSink(Protocol):
    """What is asked of the sink: where its chain stands, durably."""

    writer: int
    seq: int
    head: str

    async def append(self, record: Mapping[str, Any]) -> None:
        """See the port."""
        ...


@dataclass(frozen=True, slots=True)
class Keeping:
    """How often a checkpoint is made (seconds), and how long a rotated file stays (seconds; 0: for ever)."""

    every_s: float = 300.0
    keep_s: float = 0.0


class CheckpointFile:
    """A file that lines are appended to, one write each, durably; several processes may share it."""

    def __init__(self, file: Path) -> None:
        self._file: Final = file
        self._one: Final = threading.Lock()  # a write whose waiter was cancelled goes on, and comes before the next
        self._room: Final = threading.Semaphore(_MOST_HANGING)

    async def keep(self, points: Mapping[Checkpoint, bytes]) -> set[Checkpoint]:
        """See the protocol."""
        if not self._room.acquire(blocking=False):
            raise OSError("what was written before still hangs")
        return await _apart(self._append, points)

    def _append(self, points: Mapping[Checkpoint, bytes]) -> set[Checkpoint]:
        try:
            with self._one:
                return self._append_alone(points)
        finally:
            self._room.release()

    def _append_alone(self, points: Mapping[Checkpoint, bytes]) -> set[Checkpoint]:
        new = not self._file.exists()
        fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            for line in points.values():
                # What a crash, or a full disk, left half-written is ended first: one write, so others may write too.
                text = b"\n" + line if self._is_torn() else line
                if os.write(fd, text) != len(text):
                    raise OSError("only a part of a checkpoint could be written")
            os.fsync(fd)
        finally:
            os.close(fd)
        if new:
            sync_folder(self._file.parent)
        return set(points)

    def _is_torn(self) -> bool:
        with contextlib.suppress(OSError), self._file.open("rb") as there:
            end = there.seek(0, os.SEEK_END)
            return end > 0 and os.pread(there.fileno(), 1, end - 1) != b"\n"
        return False

    def known(self, key: SigningKey, wanted: Collection[Checkpoint]) -> set[Checkpoint]:
        """Which of the wanted ones the file holds, signed by the key; other lines are passed over."""
        found = set()
        with contextlib.suppress(FileNotFoundError), self._file.open("rb") as lines:
            while line := lines.readline(MAX_CHECKPOINT + 1):
                with contextlib.suppress(ValueError):
                    if read_checkpoint(line) in wanted:
                        found.add(read_checkpoint(line, (key.public,)))
        return found

    async def close(self) -> None:
        """See the protocol."""


async def _apart(work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Do it in a thread of its own, which the process does not wait for at its end: a second place can hang for ever.

    Raises `OSError` where there is no answer within `_PATIENCE_S`.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(outcome: Future[T]) -> None:
        if not future.done():
            fault = outcome.exception()
            future.set_result(outcome.result()) if fault is None else future.set_exception(fault)

    def run() -> None:
        outcome: Future[T] = Future()
        try:
            outcome.set_result(work(*given, **named))
        except OSError as fault:
            outcome.set_exception(fault)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, name="checkpoints", daemon=True).start()
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await future
    except TimeoutError:
        raise OSError(f"it did not answer within {_PATIENCE_S:g} s") from None


class Keeper:
    """One writer's checkpoints. `file` is writer 0's audit file, where files are kept; `places` by their names."""

    def __init__(
        self,
        sink: KeptSink,
        file: Path | None,
        places: Mapping[str, SecondPlace],
        key: SigningKey,
        keeping: Keeping,
    ) -> None:
        self._sink: Final = sink
        self._file: Final = file
        self._places: Final = places
        self._key: Final = key
        self._keeping: Final = keeping
        self._kept: Final[dict[str, set[Checkpoint]]] = {name: set() for name in places}
        self._ends: Final[dict[Path, Checkpoint]] = {}
        self._failing: Final[set[str]] = set()
        self._log = structlog.get_logger("audit")
        self._task: asyncio.Task[None] | None = None
        self._last = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since every place held all that there was to keep."""
        return time.monotonic() - self._last

    def start(self) -> None:
        """Begin; the sink has started."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """The sink has ended: keep where it ended, as far as the places answer in time."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.keep()
        for place in self._places.values():
            await place.close()

    async def _run(self) -> None:
        for name, place in self._places.items():
            if isinstance(place, CheckpointFile):
                try:
                    ends = set((await asyncio.to_thread(self._find_ends)).values())
                    self._kept[name] |= await _apart(place.known, self._key, ends)
                except OSError as error:
                    self._tell(name, error)
        due = 0.0
        while True:
            # A file that was just set aside is remembered soon, the rest in its time.
            if time.monotonic() >= due or await asyncio.to_thread(self._has_new_end):
                due = time.monotonic() + self._keeping.every_s
                await self.keep()
                if self._keeping.keep_s:
                    await self._remove_old()
            await asyncio.sleep(min(_LOOK_S, self._keeping.every_s))

    async def keep(self) -> None:
        """Make a checkpoint of the chain's end and of each rotated file's, and keep those that a place lacks."""
        sink = self._sink
        points = {Checkpoint(sink.writer, sink.seq, sink.head)} if sink.seq else set()
        try:
            points |= set((await asyncio.to_thread(self._find_ends)).values())
        except OSError as error:
            self._tell("audit.file", error)
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        whole = True
        for name, place in self._places.items():
            wanted = sorted(points - self._kept[name], key=lambda point: point.count)
            lines = {point: write_checkpoint(point, now, self._key) for point in wanted}
            try:
                kept = await place.keep(lines) if lines else set()
            except OSError as error:
                self._tell(name, error)
                whole = False
                continue
            whole = whole and kept >= lines.keys()
            # Only ends of files are asked for again: what else was kept need not be remembered here.
            self._kept[name] = (self._kept[name] & points) | (kept & points)
            if name in self._failing:
                self._failing.discard(name)
                self._log.info("checkpoints_kept_again", place=name)
        if whole:
            self._last = time.monotonic()

    def _tell(self, name: str, error: OSError) -> None:
        if name not in self._failing:
            self._failing.add(name)
            self._log.error("checkpoint_not_kept", place=name, error=str(error))

    def _has_new_end(self) -> bool:
        with contextlib.suppress(OSError):
            return any(path not in self._ends for path in self._set_aside())
        return False

    def _set_aside(self) -> list[Path]:
        """The rotated files, oldest first."""
        if self._file is None:
            return []
        return [path for _, path in segments_of(slot_path(self._file, self._sink.writer))]

    def _find_ends(self) -> dict[Path, Checkpoint]:
        """What each rotated file ends with."""
        here = self._set_aside()
        for path in [path for path in self._ends if path not in here]:
            del self._ends[path]
        for path in here:
            if path not in self._ends:
                fd = open_chain(path)
                try:
                    record, why = read_line(next(lines_back(fd), b""))
                finally:
                    os.close(fd)
                if not why and record["writer"] == self._sink.writer:
                    self._ends[path] = Checkpoint(record["writer"], record["seq"], record["hash"])
        return dict(self._ends)

    async def _remove_old(self) -> None:
        """Remove the oldest files whose time is over and whose end is remembered everywhere; the last one stays."""
        try:
            gone = await asyncio.to_thread(self._removable)
            if not gone:
                return
            end = self._ends[gone[-1]]
            facts = {"files": [path.name for path in gone[:64]], "to": end.count, "head": end.head}
            await self._sink.append(admin_record("segments_removed", facts=facts))
            await asyncio.to_thread(_remove, gone)
        except (OSError, AuditUnavailable) as error:
            self._log.error("segments_not_removed", error=str(error))
            return
        self._log.info("segments_removed", files=len(gone), to=end.count)

    def _removable(self) -> list[Path]:
        limit = time.time() - self._keeping.keep_s
        gone: list[Path] = []
        # The last rotated file stays: a start reads what the growing one follows.
        for path in self._set_aside()[:-1]:
            end = self._ends.get(path)
            if end is None or path.stat().st_mtime > limit or not all(end in kept for kept in self._kept.values()):
                break
            gone.append(path)
        return gone


def _remove(paths: Sequence[Path]) -> None:
    folders: Iterable[Path] = {path.parent for path in paths}
    for path in paths:
        path.unlink(missing_ok=True)
    for folder in folders:
        sync_folder(folder)
