"""The newest records of a chain, and those that follow.

Read from the end; shown so that nothing that a file holds acts on a terminal (requirements AUD-04).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.audit.slot import lines_of
from gateway.audit.verify import open_chain
from gateway.contract.chain import MAX_LINE
from gateway.contract.redaction import printable

_STEP: Final = 1 << 18


class Follower:
    """One file: its last lines, then what is appended. Raises `OSError` where it can't be opened."""

    def __init__(self, path: Path) -> None:
        self._fd = open_chain(path)
        self._offset = 0

    def last(self, count: int) -> list[bytes]:
        """The last `count` lines; `new` goes on after them."""
        start = size = os.fstat(self._fd).st_size
        lines: list[bytes] = []
        step = _STEP
        while start > 0 and len(lines) <= count:
            start, step = max(0, size - step), 4 * step
            self._offset = start
            # The first line of a later block is cut off somewhere: it is whole in the next round.
            lines = self.new()[0 if start == 0 else 1 :]
        return lines[-count:] if count else []

    def new(self) -> list[bytes]:
        """The lines that were finished since the last time; one that is too long ends what can be shown."""
        lines = []
        for line in lines_of(self._fd, self._offset):
            if not line.endswith(b"\n") and len(line) <= MAX_LINE:
                break
            lines.append(line)
            self._offset += len(line)
        return lines

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def time_of(line: bytes) -> str:
    """The record's time, `""` where there is none."""
    told = _read_record(line).get("time")
    return told if isinstance(told, str) else ""


def show(line: bytes, *, as_json: bool) -> str:
    """A line as a sentence, or as it stands; in printable characters only."""
    record = _read_record(line)
    if not record:
        return printable(line.decode("utf-8", "replace").removesuffix("\n"), 500)
    if as_json:
        # As it stands, unless something in it could act on a terminal: then it was not written by a sink.
        text = line.decode("utf-8").removesuffix("\n")
        return text if text.isprintable() else orjson.dumps(_escape(record)).decode("utf-8")
    actor, reasons = record.get("actor"), record.get("reasons")
    # What the policy would have said of a refused call is not how it ended: `--json` has it.
    verdict = None if record.get("kind") == "refusal" else record.get("verdict")
    words = (
        record.get("time"),
        record.get("kind"),
        record.get("outcome") or verdict or record.get("transition") or record.get("act"),
        actor.get("subject") if isinstance(actor, dict) else None,
        record.get("server"),
        record.get("method"),
        record.get("name"),
        record.get("status"),
        ",".join(map(str, reasons)) if isinstance(reasons, list) else None,
        record.get("decision_id"),
    )
    return "  ".join(printable(str(word), 128) for word in words if word not in (None, ""))


def _read_record(line: bytes) -> dict[str, Any]:
    try:
        record = orjson.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _escape(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value, 10 * len(value))
    if isinstance(value, dict):
        return {printable(key, 10 * len(key)): _escape(item) for key, item in value.items()}
    return [_escape(item) for item in value] if isinstance(value, list) else value
