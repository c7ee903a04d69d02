"""In whose name a worker holds its leases: one that no other process has or ever had, wherever it runs.

Two containers may be alike in host name and paths and still share a database, so a name is made anew at each start.
What the process before it left open is found by that one's name, which lies beside the record's file of this writer:
the lock on that file says that whoever wrote it there has ended. Where there is none, leases lapse by themselves.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"[\x21-\x7e]{1,300}")


@dataclass(frozen=True, slots=True)
class Tenure:
    """`owner` is this process; `before` the one that had the same place (`path`) last and has ended, or `""`."""

    owner: str
    before: str
    path: Path

    def write_down(self) -> None:
        """For the next one here; to be called once `before` was reconciled. A full disk costs that one some time."""
        coming = self.path.with_name(f"{self.path.name}.new")
        with contextlib.suppress(OSError):
            coming.unlink(missing_ok=True)
            fd = os.open(coming, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(self.owner)
            coming.replace(self.path)


def begin_tenure(record: Path) -> Tenure:
    """A name of its own for this process, which has the lock of `record`, and whose place it takes."""
    path = record.with_name(f"{record.name}.owner")
    owner = f"{socket.gethostname()}/{secrets.token_hex(16)}"
    return Tenure(owner, _read(path), path)


def _read(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            text = file.read(301).decode("ascii")
    except (OSError, UnicodeDecodeError):
        return ""
    return text if _NAME.fullmatch(text) else ""
