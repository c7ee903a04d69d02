"""Claiming a writer's slot: the lowest free file, its lock, its mended tail, and what an earlier life left open.

Invariant: a chain is continued only if everything that the earlier life wrote since its last mark verifies; what a
crash left half-written is cut off and reported, anything else that does not verify stops the start (AUD-05, AUD-07).
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gateway.audit.port import AuditUnavailable
from gateway.audit.query import time_of
from gateway.audit.resuming import MARKS, Left, state_before
from gateway.audit.rotation import is_same_file, sync_folder, undo_rotation
from gateway.audit.segments import MAX_WRITERS, lines_back, lines_of, open_chain, segments_of, slot_path
from gateway.contract.chain import ZERO, Chain, read_line

_BLOCK = 1 << 20
_MARK_BYTES = 32
_MARKED = re.compile(rb"(?:\A|(?<=\n))(?:" + b"|".join(map(re.escape, MARKS)) + b")")


class SlotTaken(AuditUnavailable):
    """Another process is that writer."""


@dataclass(slots=True, kw_only=True)
class Slot(Left):
    """A claimed file. `size` is the offset after the last whole record.

    `first` is the number of the file's first record, `began` when that one was written (seconds since the epoch, 0
    where there is none). `folder_due`: what its folder says is not durable yet. `room`: up to where space on the disk
    was taken for it.
    """

    path: Path
    fd: int
    size: int = 0
    first: int = 1
    began: float = 0.0
    folder_due: bool = False
    room: int = 0


def claim_slot(file: Path, only: int | None = None) -> Slot:
    """Lock the lowest free slot of `file` (or `only` that writer's), mend it and read where its chain ends.

    Raises `AuditUnavailable`; `SlotTaken` where another process holds it.
    """
    for writer in range(MAX_WRITERS) if only is None else (only,):
        path = slot_path(file, writer)
        try:
            fd = _lock(path)
            if fd is None:
                continue
        except OSError as error:
            raise AuditUnavailable(f"{path}: {error.strerror or error}") from error
        slot = Slot(writer=writer, path=path, fd=fd)
        try:
            undo_rotation(path, fd)
            _resume(slot)
        except OSError as error:
            os.close(fd)
            raise AuditUnavailable(f"{path}: {error.strerror or error}") from error
        except AuditUnavailable:
            os.close(fd)
            raise
        return slot
    raise SlotTaken(f"{file}: all {MAX_WRITERS} writers' slots are taken" if only is None else f"{path}: taken")


def _lock(path: Path) -> int | None:
    """The locked descriptor, or `None` if another process holds the slot."""
    for _ in range(8):
        new = not path.exists()
        if new and not path.is_symlink() and segments_of(path):
            # A rotation leaves the name in place at each of its steps.
            raise AuditUnavailable(
                f"{path} was removed, and its rotated files are there: bring it back, or move them away as well"
            )
        # A symbolic link would let whoever can write the folder send the record elsewhere.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise AuditUnavailable(f"{path}: the audit needs a regular file")
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            if not is_same_file(path, fd):  # replaced between open and lock
                os.close(fd)
                continue
            if new:
                sync_folder(path.parent)
        except BaseException:
            _close_quietly(fd)
            raise
        return fd
    raise AuditUnavailable(f"{path}: the file is replaced again and again")


def _close_quietly(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        return


def _resume(slot: Slot) -> None:
    """Read the chain from its last mark on, in an earlier file where this one has none; cut off the torn tail."""
    total = os.fstat(slot.fd).st_size
    before = [path for _, path in segments_of(slot.path)]
    base = _end_of(before[-1]) if before else (0, ZERO)
    slot.first = base[0] + 1
    start = _last_mark(slot.fd, total)
    while start is not None and not _read_on(slot, start, total, base):
        start = _last_mark(slot.fd, start)  # the mark itself was torn: begin at the one before it
    if start is None:
        if before:
            _look_back(slot, before)
        if (slot.seq, slot.head) != (base if before else (0, ZERO)):
            raise AuditUnavailable(f"{slot.path}: the files before it do not follow each other")
        _read_on(slot, 0, total, base)
    slot.began = _began(slot)
    slot.cut = total - slot.size
    if slot.cut:
        os.ftruncate(slot.fd, slot.size)
        os.fsync(slot.fd)


def _began(slot: Slot) -> float:
    line = next(lines_of(slot.fd), b"") if slot.size else b""
    try:
        return datetime.fromisoformat(time_of(line)).timestamp() if line else 0.0
    except ValueError:
        return 0.0


def _end_of(path: Path) -> tuple[int, str]:
    """(number, hash) of the last record of a file that was set aside."""
    fd = open_chain(path)
    try:
        line = next(lines_back(fd), b"")
    finally:
        os.close(fd)
    record, why = read_line(line)
    if why:
        raise AuditUnavailable(f"{path}: its last record does not verify: {why}")
    return record["seq"], record["hash"]


def _look_back(slot: Slot, before: list[Path]) -> None:
    """Find what is open in the files before: from the last mark in them on, or from their beginning."""
    late: list[tuple[Path, int]] = []
    for path in reversed(before):
        fd = open_chain(path)
        try:
            start = _last_mark(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        late.append((path, start or 0))
        if start is not None:
            break
    chain: Chain | None = None
    for path, start in reversed(late):
        fd = open_chain(path)
        try:
            for line in lines_of(fd, start):
                if chain is None:
                    chain = Chain(slot.writer)
                    chain.count, chain.head = state_before(line)
                record = chain.read(line)
                if record is None:
                    raise AuditUnavailable(_broken(path, chain, start))
                slot.follow(record)
        finally:
            os.close(fd)
    if chain is not None:
        slot.seq, slot.head = chain.count, chain.head


def _read_on(slot: Slot, start: int, total: int, base: tuple[int, str]) -> bool:
    """Read from `start` to the end of the chain; False if not even the mark there could be read.

    `base` is the state of the chain before this file.
    """
    chain, offset = Chain(slot.writer), start
    chain.count, chain.head = base
    marked = False
    for line in lines_of(slot.fd, start):
        if offset == start:
            marked = line.startswith(MARKS)
            if start:
                chain.count, chain.head = state_before(line)
        record = chain.read(line)
        if record is None:
            if line.endswith(b"\n") and b"\0" not in line:
                raise AuditUnavailable(_broken(slot.path, chain, offset))
            # Not finished, or a hole that a crash of the machine left: never acknowledged.
            if marked and offset == start and (start or slot.first > 1):
                return False
            break
        offset += len(line)
        slot.follow(record)
    slot.seq, slot.head, slot.size = chain.count, chain.head, min(offset, total)
    return True


def _broken(path: Path, chain: Chain, offset: int) -> str:
    why = chain.fault.why if chain.fault else ""
    return (
        f"{path}: record {chain.count + 1} (byte {offset}) does not verify: {why}. The chain is not"
        " continued; look at it with `ostiary audit verify`, then move the file away"
    )


def _last_mark(fd: int, before: int) -> int | None:
    """The offset of the last line that begins before `before` and says which decisions were open."""
    end = before
    while end > 0:
        start = max(0, end - _BLOCK)
        # The line feed in front of a line of this block may be the last byte of the block before it.
        ahead = max(0, start - 1)
        block = os.pread(fd, end - ahead + _MARK_BYTES, ahead)
        lines = [ahead + found.start() for found in _MARKED.finditer(block) if found.start() or not ahead]
        lines = [line for line in lines if line < end]
        if lines:
            return lines[-1]
        end = start
    return None
