"""The JSONL sink: durable before it answers, one chain per writer, continued over restarts (AUD-01, 05 to 07)."""
# ruff: noqa: ASYNC110, ASYNC240 - the test looks at the file that the sink writes, and at the sink from outside

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
import uvloop

from gateway.audit import commits
from gateway.audit.jsonl import MAX_BATCH, JsonlSettings, JsonlSink
from gateway.audit.port import AuditUnavailable
from gateway.audit.segments import list_chains
from gateway.audit.slot import claim_slot
from gateway.audit.verify import verify_all, verify_file
from gateway.contract.record import decision_record, outcome_record, refusal_record
from gateway.contract.refusals import Refusal
from tests.contract.walked import REDACTOR, ended, turned_away, walked


def decision(n: int = 0) -> dict[str, Any]:
    return decision_record(walked(decision_id=f"{n:032x}"), REDACTOR)


def outcome(n: int = 0, how: str = "executed") -> dict[str, Any]:
    return outcome_record(ended(walked(decision_id=f"{n:032x}"), how), REDACTOR)


def refusal(n: int = 0, reason: Refusal = Refusal.TOKEN_MISSING) -> dict[str, Any]:
    return refusal_record(turned_away(reason, decision_id=f"{n:032x}"), REDACTOR)


def records_of(file: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in file.read_bytes().splitlines()]


def whole(file: Path) -> int:
    """The number of records, once all chains verify."""
    reports = verify_all(list_chains(file))
    assert [report.finding or report.unread for report in reports if not report.whole] == []
    return sum(report.count for report in reports)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


async def opened(file: Path, **changed: Any) -> JsonlSink:
    """A started sink, patient with the disk unless the deadline is what the test is about."""
    changed.setdefault("deadline_s", 20.0)
    disk = {name: changed.pop(name) for name in ("sync", "write") if name in changed}
    sink = JsonlSink(JsonlSettings(file, **changed), **disk)
    await sink.start()
    return sink


async def settled(sink: JsonlSink, seconds: float = 5.0) -> None:
    """Wait until nothing waits."""
    deadline = time.monotonic() + seconds
    while sink.lag and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    assert not sink.lag


async def until_healthy(sink: JsonlSink, seconds: float = 5.0) -> None:
    """Wait for the sink to come back by itself."""
    deadline = time.monotonic() + seconds
    while not sink.healthy and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert sink.healthy


async def test_an_append_is_synced_before_it_answers(file: Path) -> None:
    """AUD-07: when `append` returns, the line is in the file and the file was synced after it was written."""
    seen: list[bytes] = []

    def sync(fd: int) -> None:
        seen.append(file.read_bytes())
        os.fdatasync(fd)

    sink = await opened(file, sync=sync)
    await sink.append(decision())
    assert seen[-1] == file.read_bytes()
    assert records_of(file)[-1]["kind"] == "decision"
    assert sink.healthy
    await sink.close()
    assert whole(file) == 3
    assert [record["kind"] for record in records_of(file)] == ["admin", "decision", "admin"]


async def test_the_sink_fills_seq_prev_hash_writer_and_time(file: Path) -> None:
    """Records are numbered from 1, linked, and stamped in UTC."""
    sink = await opened(file)
    await sink.append(decision())
    await sink.close()
    records = records_of(file)
    assert [record["seq"] for record in records] == [1, 2, 3]
    assert [record["prev"] for record in records] == ["0" * 64, *(record["hash"] for record in records[:-1])]
    assert {record["writer"] for record in records} == {0}
    for record in records:
        assert abs(time.mktime(time.strptime(record["time"][:19], "%Y-%m-%dT%H:%M:%S")) - time.time()) < 86_400
        assert record["time"].endswith("Z")


async def test_what_waits_at_one_moment_shares_one_sync(file: Path) -> None:
    """Group commit: fifty callers of one turn of the loop wait for one sync."""
    sink = await opened(file)
    before = sink.commits
    await asyncio.gather(*(sink.append(decision(n)) for n in range(50)))
    assert sink.commits == before + 1
    await sink.close()
    assert whole(file) == 52


async def turns(number: int = 20) -> None:
    """Let the loop go round."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_under_load_a_commit_waits_for_as_many_as_shared_the_last(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers that come one by one share a commit as those before them did; when they are all there, it begins."""
    sink = await opened(file)
    await asyncio.gather(*(sink.append(decision(n)) for n in range(3)))
    monkeypatch.setattr(commits, "_GATHER_S", 3600.0)
    before = sink.commits
    callers: list[asyncio.Future[None]] = []
    for n in range(3, 6):
        assert not any(caller.done() for caller in callers)
        callers.append(asyncio.ensure_future(sink.append(decision(n))))
        await turns()
    await asyncio.wait_for(asyncio.gather(*callers), 20)
    assert sink.commits == before + 1
    await sink.close()
    assert whole(file) == 8


async def test_a_commit_waits_for_others_a_moment_only(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fewer come than last time, they are written soon; and one that is alone again waits for nobody."""
    sink = await opened(file)
    await asyncio.gather(*(sink.append(decision(n)) for n in range(3)))
    sink.note(outcome(0))
    await asyncio.wait_for(sink.append(decision(3)), 20)
    monkeypatch.setattr(commits, "_GATHER_S", 3600.0)
    for n in range(4, 8):
        await asyncio.wait_for(sink.append(decision(n)), 20)
    await sink.close()
    assert whole(file) == 11


def test_a_moment_that_is_over_when_it_is_asked_for_fails_nobody(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the moment is over before the loop hears of it; uvloop's handle for that knows no time."""

    async def come_together() -> None:
        sink = await opened(file)
        await asyncio.gather(*(sink.append(decision(n)) for n in range(3)))
        monkeypatch.setattr(commits, "_GATHER_S", 0.0)
        before = sink.commits
        await asyncio.gather(*(sink.append(decision(n)) for n in range(3, 5)))
        assert sink.commits == before + 1
        await sink.close()

    uvloop.run(come_together())
    assert whole(file) == 7


@pytest.mark.parametrize("ending", ["cancelled", "closed"])
async def test_who_waits_for_others_is_let_go(file: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """Nothing is written of a caller that leaves before the commit; whoever still waits at the end is written."""
    sink = await opened(file)
    await asyncio.gather(*(sink.append(decision(n)) for n in range(2)))
    monkeypatch.setattr(commits, "_GATHER_S", 3600.0)
    waiting = asyncio.ensure_future(sink.append(decision(2)))
    await turns()
    if ending == "cancelled":
        waiting.cancel()
        await asyncio.wait_for(asyncio.gather(*(sink.append(decision(n)) for n in range(3, 5))), 20)
    await sink.close()
    assert waiting.cancelled() or waiting.exception() is None
    assert whole(file) == 2 + 2 + (2 if ending == "cancelled" else 1)


async def test_a_commit_is_bounded_and_order_is_kept(file: Path) -> None:
    """Thousands that wait are linked in bounded batches, in order of arrival."""
    sink = await opened(file)
    await asyncio.gather(*(sink.append(decision(n)) for n in range(MAX_BATCH * 2 + 10)))
    await sink.close()
    ids = [record["decision_id"] for record in records_of(file) if record["kind"] == "decision"]
    assert ids == [f"{n:032x}" for n in range(MAX_BATCH * 2 + 10)]
    whole(file)


async def test_a_note_does_not_wait_and_is_written_all_the_same(file: Path) -> None:
    """Outcomes and refusals join the next commit without a caller, within a moment also where none comes."""

    free, synced = threading.Event(), 0

    def sync(fd: int) -> None:
        nonlocal synced
        free.wait(20)
        os.fdatasync(fd)
        synced += 1

    sink = await opened(file, sync=sync)
    free.set()
    await sink.append(decision())
    free.clear()
    before = synced
    sink.note(outcome())
    sink.note(refusal(1))
    assert synced == before, "the disk stands still, and nobody waited for it"
    free.set()
    await settled(sink)
    assert [record["kind"] for record in records_of(file)] == ["admin", "decision", "outcome", "refusal"]
    await sink.close()
    whole(file)


async def test_the_loop_is_never_blocked_by_the_disk(file: Path) -> None:
    """A sync that does not end leaves the loop running."""
    free, begun = threading.Event(), threading.Event()
    free.set()

    def sync(fd: int) -> None:
        begun.set()
        free.wait(20)
        os.fdatasync(fd)

    sink = await opened(file, sync=sync)
    free.clear()
    begun.clear()
    waiting = asyncio.create_task(sink.append(decision()))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not waiting.done(), "the loop went on while the disk stood still"
    free.set()
    await waiting
    await sink.close()


async def test_the_file_is_the_owners_alone(file: Path) -> None:
    """The audit is created with mode 0600."""
    sink = await opened(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    await sink.close()


async def test_a_restart_continues_the_chain(file: Path) -> None:
    """seq and prev go on where the earlier life ended."""
    for n in range(3):
        sink = await opened(file)
        await sink.append(decision(n))
        sink.note(outcome(n))
        await sink.close()
    assert whole(file) == 12
    assert [record["seq"] for record in records_of(file)] == list(range(1, 13))


async def test_two_writers_claim_slots_0_and_1_and_a_free_one_is_claimed_again(file: Path) -> None:
    """AUD-06: each writer owns one file and one chain; the lowest free slot is claimed."""
    first, second, third = await opened(file), await opened(file), await opened(file)
    assert [first.writer, second.writer, third.writer] == [0, 1, 2]
    await asyncio.gather(*(sink.append(decision(n)) for n in range(20) for sink in (first, second, third)))
    await second.close()
    again = await opened(file)
    assert again.writer == 1
    for sink in (first, third, again):
        await sink.close()
    assert sorted(path.name for path in file.parent.iterdir()) == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert {record["writer"] for record in records_of(file.with_name("audit.jsonl.1"))} == {1}
    whole(file)


@pytest.mark.parametrize(
    "torn",
    [
        b"{",
        b'{"act":"started"',
        b"\0" * 700,
        b"\0" * 300 + b"\n" + b"\0" * 300,
        b'{"act":"mark"' + b"\0" * 99 + b"\n",
    ],
)
async def test_a_torn_tail_is_cut_off_and_reported(file: Path, torn: bytes) -> None:
    """What a crash left half-written is cut off; a record says how much."""
    sink = await opened(file)
    await sink.append(decision())
    sink.note(outcome())
    await sink.close()
    good = file.read_bytes()
    file.write_bytes(good + torn)
    assert verify_file(file, 0).finding is not None
    sink = await opened(file)
    await sink.close()
    assert file.read_bytes().startswith(good)
    found = next(record for record in records_of(file) if record.get("act") == "torn_tail")
    assert found["facts"] == {"bytes": len(torn), "after": 4}
    whole(file)


async def test_half_of_every_record_is_mended(file: Path) -> None:
    """Wherever in its last record a writer dies, the next life goes on with a whole chain."""
    sink = await opened(file)
    await sink.append(decision())
    await sink.close()
    good = file.read_bytes()
    start = good.rindex(b"\n", 0, -1) + 1
    for cut in {start + 1, start + 50, len(good) - 40, len(good) - 2, len(good) - 1}:
        file.write_bytes(good[:cut])
        sink = await opened(file)
        await sink.close()
        whole(file)


async def test_a_tampered_tail_stops_the_start(file: Path) -> None:
    """A finished record that does not verify is no accident: the chain is not continued, the error names it."""
    sink = await opened(file)
    await sink.append(decision())
    await sink.close()
    good = file.read_bytes()
    file.write_bytes(good.replace(b"alice", b"mallo"))
    with pytest.raises(AuditUnavailable, match=r"record 2 .* does not verify.*hash"):
        await opened(file)
    assert file.read_bytes() == good.replace(b"alice", b"mallo")
    file.write_bytes(good)
    await (await opened(file)).close()
    whole(file)


async def test_open_decisions_are_closed_as_unknown(file: Path) -> None:
    """A decision that the earlier life left without an end gets the outcome `unknown`, once."""
    sink = await opened(file)
    for n in range(4):
        await sink.append(decision(n))
    sink.note(outcome(0))
    sink.note(refusal(1, Refusal.AUDIT_UNAVAILABLE))
    await sink.close()
    sink = await opened(file)
    await sink.close()
    closed = [record for record in records_of(file) if record["outcome"] == "unknown"]
    assert [record["decision_id"] for record in closed] == [f"{2:032x}", f"{3:032x}"]
    assert {(record["kind"], record["name"], record["reasons"][0]) for record in closed} == {
        ("outcome", "read_file", "writer_ended")
    }
    sink = await opened(file)
    await sink.close()
    assert len([record for record in records_of(file) if record["outcome"] == "unknown"]) == 2
    whole(file)


async def test_a_start_reads_back_to_the_last_mark_only(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long life is not read whole: marks name what is open, and what they name is closed all the same."""
    monkeypatch.setattr("gateway.audit.commits.MARK_EVERY", 100)
    sink = await opened(file)
    await sink.append(decision(9999))
    for n in range(300):
        await sink.append(decision(n))
        sink.note(outcome(n))
    await sink.close()
    marks = [record for record in records_of(file) if record.get("act") == "mark"]
    assert len(marks) >= 4
    assert f"{9999:032x}" in marks[-1]["facts"]["open"]
    # What lies before the last mark is not judged at a start: that is what `audit verify` is for.
    good = file.read_bytes()
    file.write_bytes(good.replace(b"alice", b"mallo", 1))
    slot = claim_slot(file)
    assert set(slot.open) == {f"{9999:032x}"}
    os.close(slot.fd)
    file.write_bytes(good)
    sink = await opened(file)
    await sink.close()
    assert [r["decision_id"] for r in records_of(file) if r["outcome"] == "unknown"] == [f"{9999:032x}"]
    whole(file)


@pytest.mark.parametrize("kind", ["symlink", "fifo", "folder", "no folder", "full of bytes"])
async def test_what_is_no_audit_file_is_refused(file: Path, kind: str) -> None:
    """A link, a pipe, a folder or another kind of file in the audit's place stops the start with its name."""
    match kind:
        case "symlink":
            file.symlink_to(file.with_name("elsewhere"))
        case "fifo":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case "no folder":
            file = file.parent / "absent" / file.name
        case _:
            file.write_bytes(b"this is a diary\n")
    with pytest.raises(AuditUnavailable, match=r"audit\.jsonl"):
        await opened(file)
    assert not file.with_name("elsewhere").exists()


async def test_after_close_and_before_start_nothing_is_accepted(file: Path) -> None:
    """A sink that isn't running refuses; it never says yes without a record."""
    sink = JsonlSink(JsonlSettings(file))
    assert not sink.healthy
    with pytest.raises(AuditUnavailable):
        await sink.append(decision())
    sink.note(outcome())
    await sink.close()
    await sink.start()
    await sink.append(decision())
    await sink.close()
    await sink.close()
    with pytest.raises(AuditUnavailable, match="closed"):
        await sink.append(decision())
    with pytest.raises(AuditUnavailable, match="started before"):
        await sink.start()
    assert not sink.healthy
    whole(file)


async def test_close_writes_what_waits(file: Path) -> None:
    """Nothing that was noted is lost by an orderly end."""
    sink = await opened(file)
    for n in range(1000):
        sink.note(outcome(n))
    await sink.close()
    assert len([record for record in records_of(file) if record["kind"] == "outcome"]) == 1000
    whole(file)


async def test_a_caller_that_leaves_while_its_decision_is_written_notes_the_end(file: Path) -> None:
    """A cancelled caller's decision is on disk or is not; the corridor's refusal follows it and is its only end."""

    def sync(fd: int) -> None:
        time.sleep(0.1)
        os.fdatasync(fd)

    sink = await opened(file, sync=sync)
    under_way = asyncio.create_task(sink.append(decision(1)))
    await asyncio.sleep(0.03)
    queued = asyncio.create_task(sink.append(decision(2)))
    await asyncio.sleep(0.03)
    under_way.cancel()
    queued.cancel()
    await asyncio.gather(under_way, queued, return_exceptions=True)
    for number in (1, 2):
        sink.note({**decision(number), "kind": "refusal", "reasons": ["client_gone"]})
    await sink.close()
    told = [(r["decision_id"][-1], r["kind"]) for r in records_of(file) if r["kind"] != "admin"]
    assert sorted(told) == [("1", "decision"), ("1", "refusal"), ("2", "refusal")]
    assert told.index(("1", "decision")) < told.index(("1", "refusal"))
    (stopped,) = [r for r in records_of(file) if r.get("act") == "stopped"]
    assert stopped["facts"]["open"] == []
    whole(file)


async def test_a_record_without_a_form_is_refused_and_harms_no_other(file: Path) -> None:
    """What can't be written is refused to its caller alone; a note of that kind is counted as lost, and said so."""
    sink = await opened(file)
    results = await asyncio.gather(
        sink.append(decision(1)),
        sink.append({**decision(2), "name": object()}),
        sink.append({**decision(3), "name": "\ud800"}),
        sink.append({**decision(4), "name": "x" * 70_000}),
        sink.append({"name": "of no kind"}),
        sink.append(decision(5)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), *[AuditUnavailable] * 4, type(None)]
    sink.note({**outcome(1), "name": object()})
    await sink.append(decision(6))
    await settled(sink)
    await sink.close()
    lost = [record for record in records_of(file) if record.get("act") == "records_lost"]
    assert sum(record["count"] for record in lost) == 1
    whole(file)


@pytest.mark.parametrize("change", ["appended", "cut", "removed", "replaced"])
async def test_a_file_that_somebody_else_changed_is_noticed(file: Path, change: str) -> None:
    """The sink refuses once the file is not what it wrote; foreign bytes at its end are cut off."""
    sink = await opened(file)
    await sink.append(decision(1))
    good = file.read_bytes()
    match change:
        case "appended":
            with file.open("ab") as other:
                other.write(b"foreign\n")
        case "cut":
            os.truncate(file, len(good) - 10)
        case "removed":
            file.unlink()
        case _:
            file.rename(file.with_name("moved"))
            file.write_bytes(good)
    with pytest.raises(AuditUnavailable, match=r"somebody else|removed or replaced"):
        await sink.append(decision(2))
    assert not sink.healthy
    if change == "appended":
        await until_healthy(sink)
    else:
        await asyncio.sleep(0.6)
    assert sink.healthy is (change == "appended")
    if sink.healthy:
        await sink.append(decision(3))
    await sink.close()
    if change == "appended":
        whole(file)
        assert [r["decision_id"][-1] for r in records_of(file) if r["kind"] == "decision"] == ["1", "3"]
        assert (
            "somebody else"
            in next(r for r in records_of(file) if r.get("act") == "audit_unavailable")["facts"]["why"]
        )


@pytest.mark.parametrize("writers", [4])
async def test_parallel_writers_give_chains_that_verify(file: Path, writers: int) -> None:
    """AUD-06: thousands of records by several writers at once: every chain is whole, every record is there once."""
    await _parallel(file, writers, 2_000)


@pytest.mark.soak
async def test_parallel_writers_at_full_size(file: Path) -> None:
    """AUD-06 at its full size: 10,000 records by two writers at once."""
    await _parallel(file, 2, 10_000)


async def _parallel(file: Path, writers: int, records: int) -> None:
    sinks = [await opened(file) for _ in range(writers)]

    async def call(n: int) -> None:
        sink = sinks[n % writers]
        await sink.append(decision(n))
        sink.note(outcome(n))

    for start in range(0, records // 2, 200):
        await asyncio.gather(*(call(n) for n in range(start, start + 200)))
    for sink in sinks:
        await sink.close()
    assert whole(file) == records + 2 * writers
    told = [record for _, path in list_chains(file) for record in records_of(path)]
    for kind in ("decision", "outcome"):
        ids = [record["decision_id"] for record in told if record["kind"] == kind]
        assert sorted(ids) == [f"{n:032x}" for n in range(records // 2)]
