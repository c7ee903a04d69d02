"""The file of pins on a disk: read whole or not at all, replaced at once, by one command at a time.

It may be a link that is turned to another file (a mounted ConfigMap); whoever reads follows it, and a command that
accepts writes where it leads.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gateway.contract.pins import MAX_BYTES, PinsUnreadable

Mark = tuple[int, int, int, int]
"""Device, inode, size and time of change (ns): another mark is another file."""


def mark_of(file: Path) -> Mark | None:
    """What tells a file from its next version; `None` where there is none. Raises `OSError`."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def read(file: Path) -> bytes | None:
    """The whole text; `None` where there is no file. Raises `OSError`, and `PinsUnreadable` for too large a one."""
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(text) > MAX_BYTES:
        raise PinsUnreadable(f"larger than {MAX_BYTES} bytes")
    return text


@contextlib.contextmanager
def held(file: Path) -> Iterator[Path]:
    """Nobody else accepts into this file meanwhile -> where it really lies. Raises `OSError`, also where it is held.

    The lock is the folder's: there is no file of its own that could be left behind.
    """
    target = file.resolve()
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield target
    finally:
        os.close(folder)


@contextlib.contextmanager
def prepared(target: Path, text: bytes) -> Iterator[Path]:
    """A file beside `target` that durably holds `text`; removed unless it was put in place. Raises `OSError`."""
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    beside = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text)
            os.fchmod(descriptor, mode)
            stream.flush()
            os.fsync(descriptor)
        yield beside
    finally:
        beside.unlink(missing_ok=True)


def put_in_place(beside: Path, target: Path) -> None:
    """The prepared file becomes the target, at once and durably. Raises `OSError`."""
    beside.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
