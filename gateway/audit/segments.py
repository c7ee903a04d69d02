"""The files of one writer's chain: the one that grows, and those that were set aside before it.

A rotated file keeps its bytes under a name that sorts: the slot's own with `.s` and the number of its first record in
16 digits. A reader sees each record once, also while a writer rotates: the growing file is opened first.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.contract.chain import MAX_LINE

MAX_WRITERS: Final = 1024
_BLOCK: Final = 1 << 20
_DIGITS: Final = 16
_SEGMENT: Final = re.compile(rf"\.s([0-9]{{{_DIGITS}}})")
_SLOT: Final = re.compile(r"(?:\.([1-9][0-9]{0,5}))?(?:\.s[0-9]{16})?")


def slot_path(file: Path, writer: int) -> Path:
    """Writer 0 owns `file` itself, writer k `file.k`."""
    return file if not writer else file.with_name(f"{file.name}.{writer}")


def segment_path(slot: Path, first: int) -> Path:
    """Where the slot's records from number `first` on are set aside."""
    return slot.with_name(f"{slot.name}.s{first:0{_DIGITS}d}")


def segments_of(slot: Path) -> list[tuple[int, Path]]:
    """(number of the first record, file) of all that was set aside, oldest first. Raises `OSError`."""
    found = []
    for path in slot.parent.iterdir():
        if path.name.startswith(slot.name) and (match := _SEGMENT.fullmatch(path.name, len(slot.name))):
            found.append((int(match[1]), path))
    return sorted(found)


def list_chains(file: Path) -> list[tuple[int, Path]]:
    """All writers' slots of `file`, found by listing its folder.

    Each up to the highest is named, also where it is missing: writers claim the lowest free slot, so it was removed.
    A number that no writer has claims no others.
    """
    try:
        names = [path.name for path in file.parent.iterdir() if path.name.startswith(file.name)]
    except OSError:
        names = []
    found = (_SLOT.fullmatch(name, len(file.name)) for name in names)
    writers = {int(match[1]) for match in found if match and match[1]}
    return [(writer, slot_path(file, writer)) for writer in all_writers(writers)]


def all_writers(found: Collection[int]) -> list[int]:
    """Those that were found, and all below the highest of them that a writer of ours can have."""
    highest = max((writer for writer in found if writer < MAX_WRITERS), default=0)
    return sorted({*found, *range(highest + 1)})


def open_chain(path: Path) -> int:
    """A file's descriptor, for reading. Raises `OSError`, also for what is no regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


@dataclass(frozen=True, slots=True)
class Opened:
    """A slot as it is at one moment: its growing file, open, and the names of what was set aside before it."""

    slot: Path
    fd: int
    before: tuple[Path, ...]

    def files(self, *, newest_first: bool = False, pass_over: bool = False) -> Iterator[tuple[Path, int]]:
        """Each file with a descriptor that is open until the next one is asked for. Raises `OSError`.

        `pass_over` those that retention removed meanwhile.
        """
        if newest_first:
            yield self.slot, self.fd
        for path in reversed(self.before) if newest_first else self.before:
            try:
                fd = open_chain(path)
            except FileNotFoundError:
                if pass_over:
                    continue
                raise
            try:
                yield path, fd
            finally:
                os.close(fd)
        if not newest_first:
            yield self.slot, self.fd


@contextmanager
def open_slot(slot: Path) -> Iterator[Opened]:
    """The slot's files. A file that was rotated in between is read once. Raises `OSError`."""
    fd = open_chain(slot)
    try:
        here = os.fstat(fd)
        before: list[Path] = []
        for _, path in segments_of(slot):
            try:
                there = path.stat()
            except FileNotFoundError:
                continue  # retention took it
            if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                break  # rotated since it was opened, or just being rotated: what follows is newer
            before.append(path)
        yield Opened(slot, fd, tuple(before))
    finally:
        os.close(fd)


def lines_of(fd: int, start: int = 0) -> Iterator[bytes]:
    """The lines from `start` on, newline included; of a line beyond `MAX_LINE` only its beginning (then the end).

    Reads by position: the descriptor's own offset stays. Bounded memory.
    """
    offset, rest = start, b""
    while True:
        block = os.pread(fd, _BLOCK, offset)
        if not block:
            break
        offset += len(block)
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield line + b"\n"
        if len(rest) > MAX_LINE:
            yield rest[: MAX_LINE + 1]
            return
    if rest:
        yield rest


def lines_back(fd: int, end: int | None = None) -> Iterator[bytes]:
    """The lines before `end`, the last one first, newline included; one beyond `MAX_LINE` ends it. Bounded."""
    end, rest = os.fstat(fd).st_size if end is None else end, b""
    while end > 0:
        start = max(0, end - _BLOCK)
        text = os.pread(fd, end - start, start) + rest
        end = start
        lines = _split(text)
        rest = lines.pop(0) if start else b""
        yield from reversed(lines)
        if len(rest) > MAX_LINE:
            return


def _split(text: bytes) -> list[bytes]:
    """Lines end with a line feed and with nothing else."""
    parts = text.split(b"\n")
    last = parts.pop()
    return [part + b"\n" for part in parts] + ([last] if last else [])
