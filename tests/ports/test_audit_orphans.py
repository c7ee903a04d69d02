"""Files of writers that nobody starts any more (design.md, "Audit line": open decisions are closed as unknown)."""
# ruff: noqa: ASYNC240 - the test looks at the files that the sink writes

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.audit.jsonl import JsonlSettings, JsonlSink
from gateway.audit.orphans import close_orphans
from gateway.audit.port import AuditUnavailable
from tests.ports.test_audit import decision, outcome, records_of, whole


async def started(file: Path) -> JsonlSink:
    sink = JsonlSink(JsonlSettings(file, deadline_s=1.9))
    await sink.start()
    return sink


async def leave_open(file: Path, sink: JsonlSink) -> None:
    """The file as a kill -9 leaves it: a decision without its end, and no orderly stop."""
    await sink.append(decision(1))
    before = file.read_bytes()
    await sink.close()
    file.write_bytes(before)


async def test_what_a_dead_writer_left_open_is_closed_by_another(tmp_path: Path) -> None:
    """A gateway with fewer workers than before leaves no decision without an end, and every chain verifies."""
    file = tmp_path / "audit.jsonl"
    alive, dead = await started(file), await started(file)
    await leave_open(tmp_path / "audit.jsonl.1", dead)
    assert await close_orphans(file) == [1]
    outcomes = [record for record in records_of(tmp_path / "audit.jsonl.1") if record["kind"] == "outcome"]
    assert [(record["decision_id"], record["outcome"]) for record in outcomes] == [(f"{1:032x}", "unknown")]
    assert await close_orphans(file) == [], "once is enough"
    await alive.close()
    assert whole(file) == len(records_of(file)) + len(records_of(tmp_path / "audit.jsonl.1"))


async def test_a_writer_at_work_and_one_that_ended_orderly_are_left_alone(tmp_path: Path) -> None:
    """Nothing is written into a file that is held, nor into one that has nothing open."""
    file = tmp_path / "audit.jsonl"
    alive, ended = await started(file), await started(file)
    await alive.append(decision(1))
    await ended.append(decision(2))
    ended.note(outcome(2))
    await ended.close()
    before = [path.read_bytes() for path in (file, tmp_path / "audit.jsonl.1")]
    assert await close_orphans(file) == []
    assert [path.read_bytes() for path in (file, tmp_path / "audit.jsonl.1")] == before
    await alive.close()


async def test_a_chain_that_does_not_verify_is_named_and_harms_no_other(tmp_path: Path) -> None:
    """A file that was tampered with is not continued; those behind it are looked after all the same."""
    file = tmp_path / "audit.jsonl"
    sinks = [await started(file) for _ in range(3)]
    for writer in (1, 2):
        await leave_open(tmp_path / f"audit.jsonl.{writer}", sinks[writer])
    tampered = tmp_path / "audit.jsonl.1"
    tampered.write_bytes(tampered.read_bytes().replace(b"read_file", b"read_fils"))
    with pytest.raises(AuditUnavailable, match=r"audit\.jsonl\.1"):
        await close_orphans(file)
    assert records_of(tmp_path / "audit.jsonl.2")[-1]["act"] == "stopped"
    await sinks[0].close()
