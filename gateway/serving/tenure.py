"""In whose name a worker holds its leases: one that no other process has or ever had, wherever it runs.

Two containers may be alike in host name and paths and still share a database, so a name is made anew at each start.
What the process before it left open is found by that one's name, which lies beside the record's file of this writer:
the lock on that file says that whoever wrote it there has ended. Where there is none, leases lapse by themselves.
"""

from __future__ import annotations

import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from gateway.notes import leave_note, read_note

_NAME = re.compile(r"[\x21-\x7e]{1,300}")


@dataclass(frozen=True, slots=True)
class Tenure:
    """`owner` is this process; `before` the one that had the same place (`path`) last and has ended, or `""`."""

    owner: str
    before: str
    path: Path

    def write_down(self) -> None:
        """For the next one here; to be called once `before` was reconciled. A full disk costs that one some time."""
        leave_note(self.path, self.owner)


def begin_tenure(record: Path) -> Tenure:
    """A name of its own for this process, which has the lock of `record`, and whose place it takes."""
    path = record.with_name(f"{record.name}.owner")
    owner = f"{socket.gethostname()}/{secrets.token_hex(16)}"
    before = read_note(path, 301)
    return Tenure(owner, before if _NAME.fullmatch(before) else "", path)
