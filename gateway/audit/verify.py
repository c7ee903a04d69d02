"""Reading chains back: which files there are, whether each is whole, and where it breaks first.

Memory is bounded whatever the files hold: lines beyond the limit are named, never read whole (AUD-05, AUD-06).
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.audit.segments import lines_of, open_slot
from gateway.audit.trail import ChainOfFiles, ChainOfTable
from gateway.contract.chain import MAX_LINE, Chain, Checkpoint, Finding

AnyChain = ChainOfFiles | ChainOfTable
_AGAIN: Final = 5
_SETTLE_S: Final = 2.0
"""How long a line that a living writer has begun may take to be finished."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in one chain. `unread` says why it could not be judged; `finding` is the first break.

    `path` is the slot's file, or the one that breaks; the records there are have the numbers `first` to `count`.
    """

    path: Path
    writer: int | None
    count: int = 0
    head: str = ""
    finding: Finding | None = None
    unread: str = ""
    first: int = 1

    @property
    def whole(self) -> bool:
        """Whether every record verifies and nothing is missing, as far as can be known."""
        return self.finding is None and not self.unread

    def as_json(self) -> dict[str, Any]:
        """The report as `--json` prints it."""
        found = self.finding
        return {
            "file": str(self.path),
            "writer": self.writer,
            "whole": self.whole,
            "first": self.first,
            "count": self.count,
            "head": self.head,
            "first_bad": {"line": found.line, "seq": found.seq, "kind": found.kind, "why": found.why}
            if found
            else None,
            "unread": self.unread or None,
        }


def verify_file(path: Path, writer: int | None, checkpoints: Sequence[Checkpoint] = ()) -> Report:
    """Judge one chain: the slot's file and what was set aside before it. Never raises for what the files hold."""
    again = _AGAIN
    while True:
        try:
            return _judge_files(path, writer, checkpoints)
        except OSError as error:
            where = Path(error.filename or path)
            # Retention may take a rotated file between the look at the folder and its turn: what is left is judged.
            if isinstance(error, FileNotFoundError) and where != path and again:
                again -= 1
                continue
            return Report(where, writer, unread=error.strerror or str(error))


def _judge_files(path: Path, writer: int | None, checkpoints: Sequence[Checkpoint]) -> Report:
    chain = Chain(writer, checkpoints)
    at = path
    with open_slot(path) as opened:
        for file, fd in opened.files():
            if chain.fault is None:
                at, chain.line = file, 0
            for line in _settled_lines(fd) if file == path else lines_of(fd):
                chain.read(line)
    finding = chain.end()
    return Report(at if finding else path, chain.writer, chain.count, chain.head, finding, first=chain.first)


def _settled_lines(fd: int) -> Iterator[bytes]:
    """The lines; the last one, if a living writer is just at it, once it is finished or was taken back."""
    offset = 0
    for line in lines_of(fd):
        if line.endswith(b"\n") or len(line) > MAX_LINE:
            offset += len(line)
            yield line
            continue
        deadline = time.monotonic() + _SETTLE_S
        while _is_held(fd) and time.monotonic() < deadline:
            time.sleep(0.02)
            line = next(lines_of(fd, offset), b"")  # noqa: PLW2901 - the same line, read again
            if not line or line.endswith(b"\n"):
                break
        if line:
            yield line


def _is_held(fd: int) -> bool:
    """Whether a writer holds the file's lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def verify_table(table: ChainOfTable, checkpoints: Sequence[Checkpoint] = ()) -> Report:
    """Judge one writer's part of a database."""
    chain, place = Chain(table.writer, checkpoints), Path(table.name)
    try:
        for line in table.lines(newest_first=False):
            chain.read(line)
    except OSError as error:
        return Report(place, table.writer, unread=str(error))
    return Report(place, chain.writer, chain.count, chain.head, chain.end(), first=chain.first)


def verify_all(
    chains: Sequence[tuple[int | None, Path] | AnyChain], checkpoints: Sequence[Checkpoint] = ()
) -> list[Report]:
    """Judge all chains, and report each checkpoint's chain that is not among them."""
    reports = []
    for one in chains:
        if isinstance(one, ChainOfTable):
            reports.append(verify_table(one, checkpoints))
        else:
            writer, path = (one.writer, one.slot) if isinstance(one, ChainOfFiles) else one
            reports.append(verify_file(path, writer, checkpoints))
    known = {report.writer for report in reports}
    for writer in sorted({point.writer for point in checkpoints} - known):
        count = max(point.count for point in checkpoints if point.writer == writer)
        why = f"a checkpoint counted {count} records of writer {writer}, whose file is not here"
        reports.append(Report(Path(f"writer {writer}"), writer, finding=Finding(1, 1, why, "file_missing")))
    return reports
