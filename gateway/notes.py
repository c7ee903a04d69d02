"""Notes beside the record: one short line each, replaced at once, and done without where the disk takes none.

What is in them costs time where it is missing (leases lapse by themselves, a key counts as new), and no safety: so
no start fails for one, and each that can't be kept is told (`note_not_kept`).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import structlog


def read_note(path: Path, most: int) -> str:
    """Up to `most` bytes of ASCII; `""` where there is no such file. No link is followed, nothing waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            return file.read(most).decode("ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def leave_note(path: Path, text: str) -> None:
    """Put it there whole, or leave what was there and say so. Of two at once one remains."""
    coming = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        coming.unlink(missing_ok=True)  # of a process that had this number and was killed
        fd = os.open(coming, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text)
        coming.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            coming.unlink(missing_ok=True)  # empty, on a full disk
        structlog.get_logger("app").warning("note_not_kept", file=str(path), reason=error.strerror)
