"""The record in a file: a writer claims a slot, a commit is one write and one fdatasync for all who wait.

What is linked, who is refused and what is kept meanwhile is commits.py's; the disk is touched by scribe.py alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.audit.commits import MAX_BATCH, Bounds, GroupCommit
from gateway.audit.scribe import Rotation, Scribe

__all__ = ["MAX_BATCH", "JsonlSettings", "JsonlSink"]


@dataclass(frozen=True, slots=True)
class JsonlSettings:
    """`file` is writer 0's; `writer` None: the lowest free one. The rest: see `Bounds` and `Rotation`."""

    file: Path
    deadline_s: float = 1.5
    max_notes: int = 10_000
    max_note_bytes: int = 16 * 1024 * 1024
    folded_beyond: int = 200
    writer: int | None = None
    rotate_bytes: int = 0
    rotate_s: float = 0.0


class JsonlSink(GroupCommit):
    """`AuditSink` on a file.

    `sync` and `write` stand for `os.fdatasync` and `os.write`: tests put slow, full and broken disks there.
    """

    def __init__(
        self,
        settings: JsonlSettings,
        *,
        sync: Callable[[int], None] = os.fdatasync,
        write: Callable[[int, memoryview], int] = os.write,
    ) -> None:
        rotation = Rotation(settings.rotate_bytes, settings.rotate_s)
        super().__init__(
            Bounds(settings.deadline_s, settings.max_notes, settings.max_note_bytes, settings.folded_beyond),
            lambda: Scribe(settings.file, settings.writer, rotation, sync=sync, write=write),
            "the audit file",
        )
