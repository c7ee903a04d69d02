"""Setting a full file aside, so that a crash at any step leaves each record in exactly one file.

The order: the next file is made and locked under a name of its own, the full one gets its second name, the folder is
synced, the next file takes the slot's name, the folder is synced again; only then is anything written. The slot's
name always leads to a file that this process has locked, so nobody else can claim it meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from gateway.audit.segments import segment_path, segments_of


def next_path(slot: Path) -> Path:
    """Where the file that comes next waits for its name."""
    return slot.with_name(f"{slot.name}.next")


def set_aside(slot: Path, first: int) -> int:
    """Keep the slot's file under the number of its `first` record -> the locked, empty file in its place.

    The folder is not synced after the last step: that is the caller's, before it writes. Raises `OSError`, and then
    everything is as it was.
    """
    coming, kept = next_path(slot), segment_path(slot, first)
    linked = False
    fd = os.open(coming, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.link(slot, kept, follow_symlinks=False)
        linked = True
        sync_folder(slot.parent)
        coming.rename(slot)
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            coming.unlink()
        if linked:
            with contextlib.suppress(OSError):
                kept.unlink()
        raise
    return fd


def undo_rotation(slot: Path, fd: int) -> None:
    """Take back what a crash left of a rotation. `fd` is the slot's own file, locked. Raises `OSError`."""
    coming = next_path(slot)
    undone = [path for _, path in segments_of(slot) if is_same_file(path, fd)]
    if coming.exists():
        undone.append(coming)
    for path in undone:
        path.unlink()
    if undone:
        sync_folder(slot.parent)


def is_same_file(path: Path, fd: int) -> bool:
    """Whether `path` names the open file."""
    return is_named(path, os.fstat(fd))


def is_named(path: Path, here: os.stat_result) -> bool:
    """Whether `path` names the file whose state is `here`."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def sync_folder(folder: Path) -> None:
    """Make what the folder lists durable. Raises `OSError`."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
