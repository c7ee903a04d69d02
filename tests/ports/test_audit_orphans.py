"""Files of writers that nobody starts any more (design.md, "Audit line": open decisions are closed as unknown)."""
# ruff: noqa: ASYNC240 - the test looks at the files that the sink writes

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gateway.audit.jsonl import JsonlSettings, JsonlSink
from gateway.audit.orphans import close_orphans
from gateway.audit.port import AuditUnavailable
from gateway.audit.segments import segments_of
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


@pytest.mark.parametrize(
    "content", [b'{"act":"stopped"}\n', b"[]\n", b'{"act":"stopped","facts":[]}\n', b"\xff\n", b'"x"\n', b"7\n"]
)
async def test_a_file_that_is_no_chain_is_named_and_harms_no_other(tmp_path: Path, content: bytes) -> None:
    """What somebody put into a slot's place stops neither the look at the others nor who looks."""
    file = tmp_path / "audit.jsonl"
    sinks = [await started(file) for _ in range(3)]
    await sinks[1].close()
    await leave_open(tmp_path / "audit.jsonl.2", sinks[2])
    (tmp_path / "audit.jsonl.1").write_bytes(content)
    with pytest.raises(AuditUnavailable, match=r"audit\.jsonl\.1"):
        await close_orphans(file)
    assert records_of(tmp_path / "audit.jsonl.2")[-1]["act"] == "stopped"
    await sinks[0].close()


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
async def test_what_is_no_file_holds_nobody_up(tmp_path: Path, kind: str) -> None:
    """A pipe, a link, a folder in a slot's place are named; nobody waits there, the aim stays as it is."""
    file = tmp_path / "audit.jsonl"
    sinks = [await started(file) for _ in range(3)]
    await sinks[1].close()
    await leave_open(tmp_path / "audit.jsonl.2", sinks[2])
    strange = tmp_path / "audit.jsonl.1"
    strange.unlink()
    (tmp_path / "aim").write_bytes(b"")
    if kind == "pipe":
        os.mkfifo(strange)
    elif kind == "link":
        strange.symlink_to(tmp_path / "aim")
    else:
        strange.mkdir()
    with pytest.raises(AuditUnavailable, match=r"audit\.jsonl\.1"):
        await asyncio.wait_for(close_orphans(file), 20)
    assert records_of(tmp_path / "audit.jsonl.2")[-1]["act"] == "stopped"
    assert (tmp_path / "aim").read_bytes() == b""
    await sinks[0].close()


async def test_a_file_behind_a_missing_one_is_looked_after(tmp_path: Path) -> None:
    """A writer's file that was moved away hides none of those behind it."""
    file = tmp_path / "audit.jsonl"
    sinks = [await started(file) for _ in range(3)]
    await sinks[1].close()
    await leave_open(tmp_path / "audit.jsonl.2", sinks[2])
    (tmp_path / "audit.jsonl.1").unlink()
    assert await close_orphans(file) == [2]
    await sinks[0].close()


async def test_a_slot_whose_growing_file_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    """AUD-06: where rotated files stand without the one that grows, somebody took it: no chain goes on beside it."""
    file = tmp_path / "audit.jsonl"
    sink = JsonlSink(JsonlSettings(file, deadline_s=20.0, rotate_bytes=3000))
    await sink.start()
    for n in range(12):
        await sink.append(decision(n))
    await sink.close()
    assert segments_of(file)
    there = file.read_bytes()
    file.unlink()
    with pytest.raises(AuditUnavailable, match="was removed"):
        await started(file)
    assert not file.exists()
    file.write_bytes(there)
    await (await started(file)).close()
