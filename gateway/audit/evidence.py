"""A selection of records that can be judged without the rest: records verbatim, gaps named, a signed statement.

The hash chain alone can't prove that a selection belongs to a chain: a record's hash needs the whole of the one
before. So each record proves its own content, neighbours prove their link, each gap is named, and the last line
states which chains were judged whole when the selection was made; its signature covers every line before it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.audit.checkpoints import SigningKey, VerifyKey
from gateway.audit.segments import lines_back, lines_of, open_chain
from gateway.contract.chain import MAX_LINE, ZERO, Checkpoint, Finding, read_line
from gateway.contract.fingerprint import canonical

_LABEL: Final = b"ostiary export v1\0"
_GAP: Final = b'{"gap":'
_STATEMENT: Final = b'{"export":'
_STATED: Final = frozenset({"version", "time", "filter", "chains", "sha256", "key"})
_CHAIN: Final = frozenset({"writer", "first", "count", "head", "records", "gaps"})


@dataclass(slots=True)
class Selection:
    """What is chosen of one or several chains; `lines` go into the file in this order."""

    filter: Mapping[str, str]
    chains: list[dict[str, Any]] = field(default_factory=list)
    _digest: Any = field(default_factory=hashlib.sha256)
    _at: int = 0

    def begin(self, writer: int | None, first: int) -> None:
        """The next chain; its records that are still there begin with number `first`."""
        self.chains.append({"writer": writer or 0, "first": first, "count": 0, "head": ZERO, "records": 0, "gaps": 0})
        self._at = first

    def take(self, line: bytes, record: Mapping[str, Any]) -> Iterator[bytes]:
        """A record that is chosen."""
        yield from self._skip_to(record["seq"])
        self.chains[-1]["records"] += 1
        self._at = record["seq"] + 1
        yield self._add(line)

    def end(self, first: int, count: int, head: str) -> Iterator[bytes]:
        """The chain ends here, whole."""
        chain = self.chains[-1]
        chain |= {"first": first, "count": count, "head": head}
        yield from self._skip_to(count + 1)

    def state(self, time: str, key: SigningKey | None) -> bytes:
        """The last line."""
        told: dict[str, Any] = {
            "version": 1,
            "time": time,
            "filter": dict(self.filter),
            "chains": self.chains,
            "sha256": self._digest.hexdigest(),
            "key": key.public.id if key else None,
        }
        return canonical({"export": told, "signature": key.sign(_LABEL, told) if key else None}) + b"\n"

    def _skip_to(self, seq: int) -> Iterator[bytes]:
        if self._at < seq:
            self.chains[-1]["gaps"] += 1
            gap = {"from": self._at, "to": seq - 1, "writer": self.chains[-1]["writer"]}
            yield self._add(canonical({"gap": gap}) + b"\n")

    def _add(self, line: bytes) -> bytes:
        self._digest.update(line)
        return line


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found in an export: the statement's chains and time, who signed it, the first thing that is wrong."""

    path: Path
    chains: Sequence[Mapping[str, Any]] = ()
    time: str = ""
    key: str = ""
    finding: Finding | None = None
    writer: int | None = None

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        found = self.finding
        return {
            "file": str(self.path),
            "export": True,
            "whole": found is None,
            "time": self.time,
            "signed_by": self.key or None,
            "chains": list(self.chains),
            "writer": self.writer,
            "first_bad": asdict(found) if found else None,
        }


def is_export(path: Path) -> bool:
    """Whether the file ends with an export's statement. Raises `OSError`."""
    fd = open_chain(path)
    try:
        return next(lines_back(fd), b"").startswith(_STATEMENT)
    finally:
        os.close(fd)


def judge_export(path: Path, trusted: Sequence[VerifyKey], checkpoints: Sequence[Checkpoint]) -> Judgement:
    """Judge an export alone. Raises `OSError`; never for what the file holds."""
    fd = open_chain(path)
    try:
        last = next(lines_back(fd), b"")
        told, why = _read_statement(last, trusted)
        if why:
            return Judgement(path, finding=Finding(0, 0, why, "unsigned" if "signed" in why else "altered"))
        judge = _Judge(told["chains"], checkpoints)
        before = b""
        for line in lines_of(fd):
            if before:  # the last line is the statement; a copy of it further up is a line like another
                judge.read(before)
            if judge.fault is not None:
                break
            before = line
    finally:
        os.close(fd)
    finding = judge.end(told["sha256"])
    return Judgement(path, told["chains"], told["time"], told["key"] or "" if trusted else "", finding, judge.writer)


def _read_statement(line: bytes, trusted: Sequence[VerifyKey]) -> tuple[dict[str, Any], str]:
    try:
        document = orjson.loads(line)
        told = document["export"]
        if told.keys() != _STATED or type(told["version"]) is not int or told["version"] != 1:
            raise ValueError("another version")
        texts = isinstance(told["sha256"], str) and isinstance(told["time"], str)
        if not texts or not isinstance(told["key"], str | None) or not all(map(_is_chain, told["chains"])):
            raise ValueError("its members are of another form")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {}, f"its last line is no statement of an export: {error}"
    if trusted:
        known = [key for key in trusted if key.id == told["key"]]
        if not known:
            return {}, "it is not signed by a key that is trusted here"
        if not any(key.has_signed(_LABEL, told, str(document.get("signature"))) for key in known):
            return {}, "its signature is wrong: the statement was changed, or made up"
    return told, ""


def _is_chain(told: Any) -> bool:
    if not isinstance(told, dict) or told.keys() != _CHAIN or not isinstance(told["head"], str):
        return False
    return all(_is_number(told[name]) for name in _CHAIN - {"head"})


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


class _Judge:
    """Line by line, in constant memory but for the checkpoints."""

    def __init__(self, chains: Sequence[Mapping[str, Any]], checkpoints: Sequence[Checkpoint]) -> None:
        self._chains: Final = list(chains)
        self._points: Final = {(point.writer, point.count): point.head for point in checkpoints}
        self._digest: Final = hashlib.sha256()
        self._which = -1
        self._line = 0
        self._at = self._records = 0
        self._head = ""
        self.writer: int | None = None
        self.fault: Finding | None = None

    def read(self, line: bytes) -> None:
        """A record, or a gap."""
        self._line += 1
        self._digest.update(line)
        if line.startswith(_GAP):
            self._skip(line)
            return
        record, why = read_line(line)
        if why:
            self._break(why, "altered")
            return
        self._turn_to(record["writer"])
        if self.fault is not None:
            return
        if record["seq"] != self._at:
            kind = "removed" if record["seq"] > self._at else "reordered"
            self._break(f"record {record['seq']} stands where {self._at} belongs, and no gap is named", kind)
        elif self._head and record["prev"] != self._head:
            self._break(f"it does not follow record {self._at - 1}", "rewritten")
        elif self._points.get((record["writer"], self._at), record["hash"]) != record["hash"]:
            self._break("its hash is not the one that a checkpoint holds", "forked")
        else:
            self._at, self._head, self._records = self._at + 1, record["hash"], self._records + 1

    def _skip(self, line: bytes) -> None:
        try:
            gap = orjson.loads(line)["gap"]
            writer, since, to = gap["writer"], gap["from"], gap["to"]
            numbers = _is_number(writer) and _is_number(since) and _is_number(to)
            if len(line) > MAX_LINE or not numbers or not since <= to:
                raise ValueError("no gap")
        except (ValueError, KeyError, TypeError):
            self._break("neither a record nor a gap", "altered")
            return
        self._turn_to(writer)
        if self.fault is None and since != self._at:
            self._break(f"a gap from {since} stands where {self._at} belongs", "removed")
        self._at, self._head = to + 1, ""

    def _turn_to(self, writer: int) -> None:
        if self._which < 0 or self._chains[self._which]["writer"] != writer:
            self._finish()
            self._which += 1
            if self._which >= len(self._chains) or self._chains[self._which]["writer"] != writer:
                self._break(f"the statement knows nothing of writer {writer} here", "inserted")
                return
            chain = self._chains[self._which]
            self.writer, self._at, self._head, self._records = writer, chain["first"], "", 0

    def _finish(self) -> None:
        if self.fault is not None or self._which < 0:
            return
        chain = self._chains[self._which]
        if self._at != chain["count"] + 1:
            self._break(f"writer {chain['writer']}'s part ends before record {chain['count']}", "tail_cut")
        elif self._records != chain["records"]:
            self._break(
                f"{self._records} records of writer {chain['writer']} instead of {chain['records']}", "removed"
            )
        elif self._head and self._head != chain["head"]:
            self._break("its last record is not the one that the statement ends with", "rewritten")
        elif self._points.get((chain["writer"], chain["count"]), chain["head"]) != chain["head"]:
            self._break("the statement's end is not the one that a checkpoint holds", "forked")

    def end(self, digest: str) -> Finding | None:
        """No more lines."""
        if self.fault is None:
            self._finish()
        left = [chain for chain in self._chains[self._which + 1 :] if chain["count"] >= chain["first"]]
        if self.fault is None and left:
            self._break(f"writer {left[0]['writer']}'s part is not there", "removed")
        if self.fault is None and self._digest.hexdigest() != digest:
            self._break("its lines are not those that the statement is about", "altered")
        return self.fault

    def _break(self, why: str, kind: str) -> None:
        if self.fault is None:
            self.fault = Finding(self._line, self._at, why, kind)
