"""Claiming a writer's slot: the lowest free file, its lock, its mended tail, and what an earlier life left open.

Invariant: a chain is continued only if everything that the earlier life wrote since its last mark verifies; what a
crash left half-written is cut off and reported, anything else that does not verify stops the start (AUD-05, AUD-07).
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.audit.port import AuditUnavailable
from gateway.audit.segments import lines_of, slot_path
from gateway.contract.chain import ZERO, Chain

MAX_WRITERS: Final = 1024
_BLOCK = 1 << 20
_MARK_BYTES = 32
_MAX_KEPT = 2000
# Canonical lines of marks begin with their first member; no caller's text can hold a raw line feed.
_MARKED = re.compile(rb'(?:\A|(?<=\n))\{"act":"(?:started|mark)"')


class SlotTaken(AuditUnavailable):
    """Another process is that writer."""


@dataclass(slots=True)
class Slot:
    """A claimed file. `size` is the offset after the last whole record; `cut` the bytes that were torn off after it.

    `open` maps the decision ids without an end to the decision's record, or to `{}` where only the id is known.
    """

    path: Path
    fd: int
    writer: int
    seq: int = 0
    head: str = ZERO
    size: int = 0
    cut: int = 0
    open: dict[str, Mapping[str, Any]] = field(default_factory=dict)


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
        slot = Slot(path, fd, writer)
        try:
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
                _sync_folder(path.parent)
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


def is_same_file(path: Path, fd: int) -> bool:
    """Whether `path` still names the open file."""
    try:
        there, here = path.lstat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _resume(slot: Slot) -> None:
    """Read the chain from its last mark on; cut off the torn tail."""
    total = os.fstat(slot.fd).st_size
    start = _last_mark(slot.fd, total)
    while not _read_on(slot, start, total):
        start = _last_mark(slot.fd, start)  # the mark itself was torn: begin at the one before it
    slot.cut = total - slot.size
    if slot.cut:
        os.ftruncate(slot.fd, slot.size)
        os.fsync(slot.fd)


def _read_on(slot: Slot, start: int, total: int) -> bool:
    """Read from `start` to the end of the chain; False if not even the first line could be read."""
    chain, offset = Chain(slot.writer), start
    for line in lines_of(slot.fd, start):
        if start and offset == start:
            chain.count, chain.head = _before(line)
        record = chain.read(line)
        if record is None:
            if line.endswith(b"\n") and b"\0" not in line:
                why = chain.fault.why if chain.fault else ""
                raise AuditUnavailable(
                    f"{slot.path}: record {chain.count + 1} (byte {offset}) does not verify: {why}. The chain is not"
                    " continued; look at it with `ostiary audit verify`, then move the file away"
                )
            # Not finished, or a hole that a crash of the machine left: never acknowledged.
            if start and offset == start:
                return False
            break
        offset += len(line)
        _follow(slot, record)
    slot.seq, slot.head, slot.size = chain.count, chain.head, min(offset, total)
    return True


def _before(line: bytes) -> tuple[int, str]:
    """The state that a chain must have before `line`, as the line itself says; its hash is judged all the same."""
    seq = re.search(rb',"seq":([1-9][0-9]{0,15}),', line)
    prev = re.search(rb',"prev":"([0-9a-f]{64})",', line)
    return (int(seq[1]) - 1, prev[1].decode("ascii")) if seq and prev else (0, ZERO)


def _follow(slot: Slot, record: Mapping[str, Any]) -> None:
    kind, decision = record["kind"], record.get("decision_id")
    if kind == "decision" and isinstance(decision, str):
        # Thousands can only be left open by a defect: of those the id is enough.
        slot.open[decision] = {**record, "arguments": None} if len(slot.open) < _MAX_KEPT else {}
    elif kind in ("outcome", "refusal") and isinstance(decision, str):
        slot.open.pop(decision, None)
    elif kind == "admin" and record.get("act") in ("started", "mark"):
        facts = record.get("facts")
        ids = facts.get("open") if isinstance(facts, dict) else None
        slot.open = {id_: slot.open.get(id_, {}) for id_ in ids or () if isinstance(id_, str)}


def _last_mark(fd: int, before: int) -> int:
    """The offset of the last line that begins before `before` and says which decisions were open; 0 without one."""
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
    return 0
