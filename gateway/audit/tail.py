"""The newest records of a chain, and those that follow, over rotations as well.

Read from the end; shown so that nothing that a file holds acts on a terminal (requirements AUD-04).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.audit.query import read_record
from gateway.audit.segments import lines_back, lines_of, open_chain, open_slot, segments_of
from gateway.contract.chain import MAX_LINE
from gateway.contract.printable import printable

_SEQ: Final = re.compile(rb',"seq":([1-9][0-9]{0,15}),')


class Follower:
    """One slot: its last lines, then what is appended. Raises `OSError` where its file can't be opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = open_chain(path)
        self._offset = self._seen = 0

    def last(self, count: int) -> list[bytes]:
        """The last `count` lines, of files that were set aside as well; `new` goes on after them."""
        with open_slot(self._path) as opened:
            os.close(self._fd)
            self._fd = os.dup(opened.fd)
            self._offset = os.fstat(self._fd).st_size
            lines: list[bytes] = []
            for _, fd in opened.files(newest_first=True, pass_over=True):
                for line in islice(lines_back(fd), count - len(lines) + 1):
                    if not lines and not line.endswith(b"\n") and len(line) <= MAX_LINE:
                        self._offset -= len(line)  # it is being written: `new` will have it
                        continue
                    lines.append(line)
                if len(lines) >= max(count, 1):
                    break
        self._note(lines[:1])
        return lines[count - 1 :: -1] if 0 < count <= len(lines) else lines[::-1] if count else []

    def new(self) -> list[bytes]:
        """The lines that were finished since the last time; one that is too long ends what can be shown."""
        lines = list(self._appended())
        try:
            there, here = self._path.stat(), os.fstat(self._fd)
        except FileNotFoundError:
            return lines
        if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
            return lines
        lines += self._appended()  # what came between the look and the rotation
        with open_slot(self._path) as opened:
            begun = {path: first for first, path in segments_of(self._path)}
            for path, fd in opened.files(pass_over=True):
                if path == self._path or begun.get(path, 0) > self._seen:
                    os.close(self._fd)
                    self._fd, self._offset = os.dup(fd), 0
                    lines += self._appended()
        return lines

    def _appended(self) -> Iterator[bytes]:
        for line in lines_of(self._fd, self._offset):
            if not line.endswith(b"\n") and len(line) <= MAX_LINE:
                break
            self._offset += len(line)
            self._note([line])
            yield line

    def _note(self, lines: list[bytes]) -> None:
        for line in lines:
            if found := _SEQ.search(line):
                self._seen = int(found[1])

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def show(line: bytes, *, as_json: bool) -> str:
    """A line as a sentence, or as it stands; in printable characters only."""
    record = read_record(line)
    if not record:
        return printable(line.decode("utf-8", "replace").removesuffix("\n"), 500)
    if as_json:
        # As it stands, unless something in it could act on a terminal: then it was not written by a sink.
        text = line.decode("utf-8").removesuffix("\n")
        return text if text.isprintable() else orjson.dumps(_escape(record)).decode("utf-8")
    actor, reasons = record.get("actor"), record.get("reasons")
    # What the policy would have said of a refused call is not how it ended: `--json` has it.
    verdict = None if record.get("kind") == "refusal" else record.get("verdict")
    actors, shared = record.get("actors"), record.get("first")
    words = (
        record.get("time"),
        record.get("kind"),
        record.get("outcome") or verdict or record.get("transition") or record.get("act"),
        actor.get("subject") if isinstance(actor, dict) else f"{actors} callers" if actors else None,
        record.get("server"),
        record.get("method"),
        record.get("name"),
        record.get("status"),
        ",".join(map(str, reasons)) if isinstance(reasons, list) else None,
        f"{record.get('count')} times" if shared else None,
        record.get("decision_id"),
    )
    return "  ".join(printable(str(word), 128) for word in words if word not in (None, ""))


def _escape(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value, 10 * len(value))
    if isinstance(value, dict):
        return {printable(key, 10 * len(key)): _escape(item) for key, item in value.items()}
    return [_escape(item) for item in value] if isinstance(value, list) else value
