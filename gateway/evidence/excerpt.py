"""The records of one pack, out of a record that goes on: ours alone, as an export that is judged without the rest.

Other callers' records are gaps, which the export names. Of a chain that is broken the lines that can still be read
are kept without a statement: what happened can be told, and the check of the chain fails.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.audit.checkpoints import VerifyKey, read_checkpoints
from gateway.audit.choosing import Broken, choose
from gateway.audit.evidence import Judgement, judge_export
from gateway.audit.place import AnyChain, Place
from gateway.audit.query import Query
from gateway.audit.reading import Tables
from gateway.audit.segments import list_chains
from gateway.audit.trail import ChainOfFiles, ChainOfTable, search
from gateway.audit.verify import verify_all
from gateway.contract.chain import Checkpoint


@dataclass(frozen=True, slots=True)
class Ours(Query):
    """Records since a time that are of these decisions, traces or tickets, and what the house itself did."""

    of: frozenset[str] = field(default_factory=frozenset)

    def asked(self) -> dict[str, str]:
        """The filter, as the export tells it."""
        return {"since": self.since or "", "of": "one evidence pack, and the house"}

    def matches(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is one of them."""
        time = record.get("time")
        if not isinstance(time, str) or time < (self.since or ""):
            return False
        if record.get("kind") == "admin":
            return True
        return any(record.get(name) in self.of for name in ("decision_id", "trace_id", "ticket"))


def record_of(place: Place, query: Ours) -> tuple[list[dict[str, Any]], bytes]:
    """Every chain's report, and the records that are asked for. Raises `OSError`."""
    if place.database is None:
        return _read([ChainOfFiles(path, writer) for writer, path in list_chains(place.file)], place, query)
    with closing(Tables(place.database)) as tables:
        return _read([ChainOfTable(tables, writer) for writer in tables.writers()], place, query)


def judge_record(data: bytes, trusted: Sequence[VerifyKey] = ()) -> Judgement:
    """An excerpt alone; `trusted` are the keys one of which has to have signed it, where there are any."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.jsonl"
        path.write_bytes(data)
        return judge_export(path, trusted, ())


def _read(chains: Sequence[AnyChain], place: Place, query: Ours) -> tuple[list[dict[str, Any]], bytes]:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    points = _points(place)
    reports = [report.as_json() | {"file": Path(report.path).name} for report in verify_all(chains, points)]
    try:
        return reports, b"".join(choose(chains, query, "jsonl", now=now, key=place.key, points=points))
    except Broken:
        return reports, b"".join(line for line, _ in search(chains, query, newest_first=False))


def _points(place: Place) -> list[Checkpoint]:
    if place.checkpoints is None:
        return []
    try:
        return read_checkpoints(place.checkpoints, (place.key.public,) if place.key else ())
    except ValueError as error:
        raise OSError(str(error)) from None
