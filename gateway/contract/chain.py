"""The hash chain of the audit: how a record is linked to the one before it, and how a chain is judged.

A line is the record's RFC 8785 form with the member `hash` appended; `hash` is SHA-256 over the previous hash (its 64
hex digits; zeros before the first record) and that form. A line has exactly one spelling; nothing of it is trusted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from gateway.contract.fingerprint import canonical

ZERO: Final = "0" * 64
"""The hash before the first record."""

MAX_LINE: Final = 65536
"""Bytes; records are made far smaller (16 KiB), and a longer line is never read whole."""

KINDS: Final = frozenset({"decision", "outcome", "refusal", "approval", "admin"})
# Numbers that orjson and RFC 8785 write differently, or that RFC 8785 has no form for: exponents, `5.0`, 16 digits.
_DOUBTFUL = re.compile(rb"[:,\[]-?(?:[0-9]{16}|[0-9]+(?:e|\.[0-9]+e|\.0[,}\]]))")
_MARK = b',"hash":"'
_TAIL = len(_MARK) + 64 + len(b'"}\n')


def chain(prev: str, record: Mapping[str, Any]) -> tuple[str, bytes]:
    """Link `record` (without `hash`; its `prev` is `prev`) -> its hash (hex) and its line, newline included.

    The record is one of `record.py`'s: its numbers are such that orjson and RFC 8785 write them alike, which spares
    looking for others on every call. Raises `ValueError` or `TypeError` for what is no JSON.
    """
    body = orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
    if not body.isascii() and max(body) >= 0xEE:
        body = canonical(record)  # with characters from U+E000 on, the two can order members differently
    digest = hashlib.sha256(prev.encode("ascii") + body).hexdigest()
    return digest, b'%b%b%b"}\n' % (body[:-1], _MARK, digest.encode("ascii"))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a second place remembers of a chain: after `count` records its last hash was `head`."""

    writer: int
    count: int
    head: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Where a chain breaks first: the line of its file (from 1), the number that belongs there, why, and what it is.

    `kind` is a stable name (docs/audit.md, "What verify finds").
    """

    line: int
    seq: int
    why: str
    kind: str = "altered"


@dataclass(slots=True)
class Chain:
    """Judges one chain, line by line, in constant memory. `fault` is the first break; nothing after it is judged.

    `writer` is the slot that the chain must belong to (`None`: whichever its first record names); `checkpoints` of
    other writers are ignored. A chain begins with record 1, or where a checkpoint says that earlier records ended
    (`first`) if a record of it says that they were removed. `line` counts lines; who reads several files sets it
    back to 0 at each.
    """

    writer: int | None = None
    checkpoints: Sequence[Checkpoint] = ()
    count: int = 0
    head: str = ZERO
    fault: Finding | None = None
    first: int = 1
    line: int = 0
    _expected: dict[int, str] = field(default_factory=dict)
    _last: int = 0
    _agreed: int = 0
    _before: str = ZERO
    _removal_told: bool = False

    def __post_init__(self) -> None:
        if self.writer is not None and (why := self._expect(self.writer)):
            self._break("checkpoints_disagree", why)

    def _expect(self, writer: int) -> str:
        """Compare with the checkpoints of this writer from now on -> what is wrong with them."""
        for point in self.checkpoints:
            if point.writer == writer:
                if self._expected.setdefault(point.count, point.head) != point.head:
                    return f"two checkpoints disagree about record {point.count}"
                self._last = max(self._last, point.count)
        return ""

    def read(self, line: bytes) -> Mapping[str, Any] | None:
        """The next line, its newline included -> the record, or `None` once the chain is broken.

        Lines after the break only tell what kind of break it was.
        """
        if self.fault is not None:
            self._look(line)
            return None
        self.line += 1
        kind, why, record = self._judge(line)
        if why:
            self._break(kind, why)
            return None
        self.count += 1
        if self.first > 1 and record.get("act") == "segments_removed":
            self._read_removal(record.get("facts"))
        return record

    def end(self) -> Finding | None:
        """No more lines: compare with the checkpoints. Returns the fault, if there is one."""
        if self.writer is None:  # nothing was read: whosever it was, a second place remembers records
            self._last = max((point.count for point in self.checkpoints), default=0)
        if self.fault is None and self.first > 1 and not self._removal_told:
            told = (
                f"the chain begins with record {self.first}, and no record of it says that those before were removed"
            )
            self.fault = Finding(1, 1, told, "head_cut")
        if self.fault is None and self._last > self.count:
            self.line += 1
            self._break(
                "tail_cut",
                f"the chain ends after {self.count} records, a checkpoint counted {self._last}: its tail was cut",
            )
        return self.fault

    def _break(self, kind: str, why: str) -> None:
        self.fault = Finding(line=max(self.line, 1), seq=self.count + 1, why=why, kind=kind)

    def _read_removal(self, facts: Any) -> None:
        """Retention removes the oldest files one by one: a crash may leave some of those that it had told of."""
        to, head = (facts.get("to"), facts.get("head")) if isinstance(facts, dict) else (None, None)
        if type(to) is int and (to >= self.first or (to == self.first - 1 and self._expected.get(to) == head)):
            self._removal_told = True

    def _look(self, line: bytes) -> None:
        """Is the record that belongs where the chain broke still there, further down?"""
        fault = self.fault
        if fault is None or fault.kind not in _DISPLACED or b',"seq":%d,' % fault.seq not in line:
            return
        record, why = read_line(line)
        if not why and record["seq"] == fault.seq and record["prev"] == self.head:
            kind, told = _DISPLACED[fault.kind]
            self.fault = replace(fault, kind=kind, why=f"{fault.why}; {told}")

    def _judge(self, line: bytes) -> tuple[str, str, Mapping[str, Any]]:
        record, why = read_line(line)
        if why:
            torn = len(line) <= MAX_LINE and not line.endswith(b"\n")
            return "torn_tail" if torn else "altered", why, record
        seq, digest, prev = record["seq"], record["hash"], record["prev"]
        if self.writer is None:
            self.writer = record["writer"]
            if disagree := self._expect(record["writer"]):
                return "checkpoints_disagree", disagree, record
        if record["writer"] != self.writer:
            return "swapped", f"it belongs to writer {record['writer']}, not {self.writer}", record
        if not self.count and seq > 1 and self._expected.get(seq - 1) == prev:
            self.first, self.count, self.head, self._agreed = seq, seq - 1, prev, seq - 1
        if seq != self.count + 1:
            return *self._misplaced(seq, prev), record
        if prev != self.head:
            return "rewritten", f"it does not follow record {self.count}: its prev is another hash", record
        expected = self._expected.get(seq)
        if expected is not None:
            if expected != digest:
                kind = "forked" if self._agreed else "swapped"
                since = f" after record {self._agreed}" if self._agreed else ""
                return kind, f"its hash is not the one that a checkpoint holds: the chain was replaced{since}", record
            self._agreed = seq
        self._before, self.head = self.head, digest
        return "", "", record

    def _misplaced(self, seq: int, prev: str) -> tuple[str, str]:
        if not self.count:
            return "head_cut", f"the chain begins with record {seq}: its head was cut off"
        here = f"record {seq} stands here: records are missing, doubled or out of order"
        if seq > self.count:
            gone = f"{self.count + 1} to {seq - 1}" if seq > self.count + 2 else str(seq - 1)
            return "removed", f"{here} ({gone} not before it)"
        if seq == self.count and prev == self._before:
            return "forked", f"{here} (two follow record {seq - 1}: one was inserted, or two writers wrote one chain)"
        return "doubled", f"{here} (it stood before)"


_DISPLACED: Final[Mapping[str, tuple[str, str]]] = {
    "removed": ("reordered", "it follows later"),
    "altered": ("inserted", "the record that belongs here follows"),
    "rewritten": ("inserted", "the record that belongs here follows"),
    "swapped": ("inserted", "the record that belongs here follows"),
}
"""Kinds of break -> what it was if the record that belongs there comes later."""


def verify_chain(lines: Iterable[bytes], checkpoints: Sequence[Checkpoint] = (), writer: int | None = None) -> Chain:
    """Judge a whole chain of lines; the answer's `fault` is `None` if it is whole."""
    judged = Chain(writer, checkpoints)
    for line in lines:
        judged.read(line)
    judged.end()
    return judged


def read_line(line: bytes) -> tuple[Mapping[str, Any], str]:
    """One line -> the record, and what is wrong with it (`""`: nothing). Its place in the chain is not judged."""
    if len(line) > MAX_LINE:
        return {}, f"the line is longer than {MAX_LINE} bytes"
    if not line.endswith(b"\n"):
        return {}, "the line is not finished: a torn tail"
    try:
        record = orjson.loads(line)
    except ValueError as error:
        return {}, f"the line is not JSON in UTF-8: {error}"
    why = _malformed(record)
    if why:
        return {}, why
    body = line[:-_TAIL] + b"}"
    digest = hashlib.sha256(record["prev"].encode("ascii") + body).hexdigest()
    if line[-_TAIL:] != b'%b%b"}\n' % (_MARK, record["hash"].encode("ascii")):
        return {}, "the line does not end with its hash"
    if digest != record["hash"]:
        return {}, "its content does not match its hash"
    try:
        spelled = _spell({name: value for name, value in record.items() if name != "hash"})
    except (ValueError, TypeError, RecursionError) as error:
        return {}, f"it has no canonical form: {error}"
    if spelled != body:
        return {}, "it is not in canonical form (a member twice, another order or spelling)"
    return record, ""


def _spell(record: Mapping[str, Any]) -> bytes:
    """The RFC 8785 form, the quick way where it is surely the same."""
    text = orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
    return text if text.isascii() and not _DOUBTFUL.search(text) else canonical(record)


def _malformed(record: Any) -> str:
    if not isinstance(record, dict):
        return "the line is not a JSON object"
    for name in ("hash", "prev"):
        if not _is_hash(record.get(name)):
            return f"its {name} is not 64 hex digits"
    for name in ("seq", "writer"):
        if type(record.get(name)) is not int or not 0 <= record[name] < 2**53:
            return f"its {name} is not a number"
    kind = record.get("kind")
    return "" if isinstance(kind, str) and kind in KINDS else "its kind is unknown"


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and not value.strip("0123456789abcdef")
