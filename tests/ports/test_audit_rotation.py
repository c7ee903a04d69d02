"""Rotation: every record stays in exactly one file, and all files are one chain (AUD-05 to AUD-07)."""
# ruff: noqa: ASYNC240 - nothing else runs on the loop while a test looks at files

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.audit.commands import audit
from gateway.audit.jsonl import JsonlSink
from gateway.audit.orphans import close_orphans
from gateway.audit.port import AuditUnavailable
from gateway.audit.segments import segment_path, segments_of
from gateway.audit.space import AHEAD
from gateway.audit.tail import Follower
from gateway.audit.verify import verify_file
from tests.ports.test_audit import decision, opened, outcome, records_of, settled, whole


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def all_records(file: Path) -> list[dict[str, Any]]:
    """Of the files that were set aside, then of the growing one."""
    return [record for path in (*(path for _, path in segments_of(file)), file) for record in records_of(path)]


async def call(sink: JsonlSink, *numbers: int) -> None:
    for n in numbers:
        await sink.append(decision(n))
        sink.note(outcome(n))
        await settled(sink)


async def test_a_full_file_is_set_aside_and_the_chain_goes_on(file: Path) -> None:
    """Names sort by the first record; each later file begins with a mark; nothing is lost, doubled or renumbered."""
    sink = await opened(file, rotate_bytes=8000)
    await call(sink, *range(30))
    await sink.close()
    kept = segments_of(file)
    assert len(kept) > 3
    for first, path in kept:
        records = records_of(path)
        assert (records[0]["seq"], path.name) == (first, f"audit.jsonl.s{first:016d}")
        assert records[0]["act"] == ("started" if first == 1 else "mark")
        assert path.stat().st_size < 20_000
        assert path.stat().st_mode & 0o777 == 0o600
    assert records_of(file)[0]["act"] == "mark"
    records = all_records(file)
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    assert whole(file) == len(records)
    told = [record["facts"] for record in records if record.get("act") == "rotated"]
    assert [(one["from"], one["file"]) for one in told] == [(first, path.name) for first, path in kept]
    assert [record["decision_id"] for record in records if record["kind"] == "decision"] == [
        f"{n:032x}" for n in range(30)
    ]


async def test_an_old_file_is_set_aside(file: Path) -> None:
    """Age counts from a file's first record, over restarts; an idle gateway rotates with its next record."""
    sink = await opened(file, rotate_s=0.3)
    await call(sink, 1)
    assert segments_of(file) == []
    await sink.close()
    await asyncio.sleep(0.4)
    sink = await opened(file, rotate_s=0.3)
    assert [first for first, _ in segments_of(file)] == [1]
    await sink.close()
    whole(file)


async def test_every_life_may_rotate_and_the_next_goes_on(file: Path) -> None:
    """seq, prev and what is open are found again wherever the last file was cut."""
    for n in range(12):
        sink = await opened(file, rotate_bytes=2500)
        await call(sink, n)
        await sink.close()
    assert len(segments_of(file)) > 12
    assert whole(file) == len(all_records(file))


async def test_a_decision_that_is_open_over_a_rotation_gets_its_end(file: Path) -> None:
    """The mark at a file's beginning names what is open in the files before it."""
    sink = await opened(file, rotate_bytes=4000)
    await sink.append(decision(777))
    await call(sink, *range(20))
    assert len(segments_of(file)) > 3
    await sink.close()
    sink = await opened(file)
    await sink.close()
    ends = [r["decision_id"] for r in all_records(file) if r["outcome"] == "unknown"]
    assert ends == [f"{777:032x}"]
    whole(file)


_DYING = """
import asyncio, os, signal, sys
from pathlib import Path
import gateway.audit.rotation, gateway.audit.scribe
from gateway.audit.jsonl import JsonlSettings, JsonlSink
from tests.ports.test_audit import decision

step, file = sys.argv[1], Path(sys.argv[2])
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
def after(module, name):
    was = getattr(module, name)
    def then(*words, **more):
        was(*words, **more)
        die()
    setattr(module, name, then)
write = os.write
def arm():
    global write
    match step:
        case "the next file is made": after(gateway.audit.rotation.fcntl, "flock")
        case "the full one has two names": after(gateway.audit.rotation.os, "link")
        case "the folder is synced": after(gateway.audit.rotation, "sync_folder")
        case "the next file has the name": after(gateway.audit.rotation.Path, "rename")
        case "the folder is synced again": after(gateway.audit.scribe, "sync_folder")
        case "half a record is written":
            def write(fd, data):
                os.write(fd, data[: len(data) // 2])
                die()
        case "all is written":
            def write(fd, data):
                os.write(fd, data)
                die()

async def main():
    sink = JsonlSink(JsonlSettings(file, rotate_bytes=5000), write=lambda fd, data: write(fd, data))
    await sink.start()
    n = 0
    while True:
        if sink._scribe.wants_rotation: arm()
        await sink.append(decision(n))
        print(f"{n:032x}", flush=True)
        n += 1
asyncio.run(main())
"""

STEPS = (
    "the next file is made",
    "the full one has two names",
    "the folder is synced",
    "the next file has the name",
    "the folder is synced again",
    "half a record is written",
    "all is written",
)


@pytest.mark.parametrize("step", STEPS)
def test_a_writer_that_dies_at_any_step_leaves_each_record_once(file: Path, step: str) -> None:
    """AUD-07: kill -9 at each step of a rotation: what was acknowledged is there once, the next life goes on."""
    child = subprocess.run(
        [sys.executable, "-c", _DYING, step, str(file)], check=False, capture_output=True, text=True, timeout=60
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    acknowledged = child.stdout.split()
    assert len(acknowledged) > 2

    async def next_life() -> None:
        sink = await opened(file)
        assert sink.writer == 0
        await sink.close()

    # What the dead one left is judged as it lies, too: half a record is all that may be found.
    found = verify_file(file, 0).finding
    assert (found.kind if found else "") == ("torn_tail" if step == "half a record is written" else "")
    asyncio.run(next_life())
    assert not file.with_name("audit.jsonl.next").exists()
    assert whole(file) == len(all_records(file))
    ids = [record["decision_id"] for record in all_records(file) if record["kind"] == "decision"]
    assert ids[: len(acknowledged)] == acknowledged
    assert len(ids) <= len(acknowledged) + 1
    ends = [record["decision_id"] for record in all_records(file) if record["outcome"] == "unknown"]
    assert sorted(ends) == sorted(ids)


async def test_a_file_that_cannot_be_set_aside_goes_on_growing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that takes no new name costs the rotation, not the record; it is told, and tried again later."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))

    monkeypatch.setattr("gateway.audit.rotation.os.link", refuse)
    sink = await opened(file, rotate_bytes=4000)
    await call(sink, *range(10))
    assert sink.healthy
    assert segments_of(file) == []
    assert sorted(path.name for path in file.parent.iterdir()) == ["audit.jsonl"]
    monkeypatch.undo()
    monkeypatch.setattr("gateway.audit.scribe._ROTATE_AGAIN_S", 0.0)
    vars(sink._scribe)["_not_before"] = 0.0  # half a minute later
    await call(sink, 11)
    await sink.close()
    assert len(segments_of(file)) == 1
    (told,) = [record["facts"]["why"] for record in all_records(file) if record.get("act") == "rotation_failed"]
    assert os.strerror(errno.EMLINK) in told
    whole(file)


async def test_a_folder_that_cannot_be_synced_after_the_rotation_is_an_outage(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AUD-07: nothing is acknowledged in a file whose name a crash of the machine could take away."""
    sink = await opened(file, rotate_bytes=4000)
    await call(sink, 1, 2)

    def refuse(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("gateway.audit.scribe.sync_folder", refuse)
    with pytest.raises(AuditUnavailable):
        await sink.append(decision(3))
    assert file.stat().st_size == 0
    monkeypatch.undo()
    for _ in range(200):
        if sink.healthy:
            break
        await asyncio.sleep(0.02)
    await sink.append(decision(4))
    await sink.close()
    assert records_of(file)[0]["act"] == "mark"
    whole(file)


async def test_a_rotated_file_that_was_removed_or_changed_is_found(file: Path) -> None:
    """AUD-05: a file less is `removed` or `head_cut`, a byte in one is `altered`, in the file where it is."""
    sink = await opened(file, rotate_bytes=5000)
    await call(sink, *range(20))
    await sink.close()
    (_, first), (_, second), (begins, third) = segments_of(file)[:3]
    text = second.read_bytes()
    second.unlink()
    report = verify_file(file, 0)
    assert report.finding is not None
    assert (report.finding.kind, report.path, report.finding.line) == ("removed", third, 1)
    assert report.finding.seq < begins
    second.write_bytes(text.replace(b"alice", b"mallo", 1))
    report = verify_file(file, 0)
    assert report.finding is not None
    assert (report.finding.kind, report.path) == ("altered", second)
    second.write_bytes(text)
    assert verify_file(file, 0).whole
    first.unlink()
    report = verify_file(file, 0)
    assert report.finding is not None
    assert (report.finding.kind, report.path, report.finding.seq) == ("head_cut", second, 1)


async def test_the_chain_before_is_not_continued_if_it_was_changed(file: Path) -> None:
    """A start reads the end of the file before; one that does not verify is named, and stops it."""
    sink = await opened(file, rotate_bytes=5000)
    await call(sink, *range(10))
    await sink.close()
    _, last = segments_of(file)[-1]
    good = last.read_bytes()
    last.write_bytes(good[:-40] + b"x" + good[-39:])
    with pytest.raises(AuditUnavailable, match=last.name):
        await opened(file)
    last.write_bytes(good)
    await (await opened(file)).close()
    whole(file)


async def test_readers_see_each_record_once_while_a_writer_rotates(file: Path) -> None:
    """`verify`, `search` and `tail -f` beside a writer that rotates all the time: none broken, missing or twice."""
    sink = await opened(file, rotate_bytes=3000)
    follower = Follower(file)
    follower.last(0)
    stop = threading.Event()
    broken: list[Any] = []

    def judge() -> None:
        while not stop.is_set():
            report = verify_file(file, 0)
            if not report.whole:
                broken.append(report)

    judging = asyncio.create_task(asyncio.to_thread(judge))
    seen: list[str] = []
    for n in range(120):
        await sink.append(decision(n))
        sink.note(outcome(n))
        if n % 7 == 0:  # several rotations between two looks
            seen += [json.loads(line)["hash"] for line in await asyncio.to_thread(follower.new)]
    await sink.close()
    stop.set()
    await judging
    assert broken == []
    seen += [json.loads(line)["hash"] for line in follower.new()]
    follower.close()
    records = all_records(file)
    assert seen == [record["hash"] for record in records][1:]
    assert len(segments_of(file)) > 20
    told = CliRunner().invoke(audit, ["search", "-n", "0", "--oldest-first", "--json", "--file", str(file)])
    assert sorted(json.loads(line)["hash"] for line in told.output.splitlines()) == sorted(r["hash"] for r in records)
    last = CliRunner().invoke(audit, ["tail", "-n", "30", "--json", "--file", str(file)])
    assert [json.loads(line)["seq"] for line in last.output.splitlines()] == [r["seq"] for r in records[-30:]]


async def test_what_a_dead_writer_left_open_before_its_rotation_is_closed(file: Path) -> None:
    """A slot whose file is still empty after a rotation is looked after like any other."""
    alive = await opened(file)
    dead = await opened(file)
    await dead.append(decision(5))
    slot = file.with_name("audit.jsonl.1")
    kept = {path: path.read_bytes() for path in (*(path for _, path in segments_of(slot)), slot)}
    await dead.close()
    for path in {*(path for _, path in segments_of(slot)), slot}:
        path.unlink()
    for path, text in kept.items():
        path.write_bytes(text)
    # As if it had died when the next file had the name.
    segment_path(slot, records_of(slot)[0]["seq"]).write_bytes(slot.read_bytes())
    slot.write_bytes(b"")
    assert await close_orphans(file) == [1]
    assert [r["decision_id"] for r in all_records(slot) if r["outcome"] == "unknown"] == [f"{5:032x}"]
    await alive.close()


async def test_room_taken_ahead_is_seen_by_nobody_and_given_back(file: Path) -> None:
    """Space is taken for records to come without lengthening the file; a file that was left keeps none of it."""
    sink = await opened(file, rotate_bytes=8000)
    await call(sink, 1)
    length, taken = file.stat().st_size, file.stat().st_blocks * 512
    assert length == sum(len(line) for line in file.read_bytes().splitlines(keepends=True)) < 8000
    if taken < AHEAD:
        await sink.close()
        pytest.skip("this file system takes no room ahead")
    await call(sink, *range(2, 30))
    assert len(segments_of(file)) > 1
    await sink.close()
    for path in (file, *(path for _, path in segments_of(file))):
        assert path.stat().st_blocks * 512 < path.stat().st_size + 65_536


async def test_a_disk_without_room_to_take_ahead_takes_records_all_the_same(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking room is tried, and what comes of it decides nothing."""
    asked: list[int] = []

    def full(_fd: int, _mode: int, offset: int, _length: int) -> int:
        asked.append(offset)
        return -1

    monkeypatch.setattr("gateway.audit.space._take", full)
    sink = await opened(file)
    await call(sink, *range(5))
    await sink.close()
    assert len(asked) == 1, "it is not asked for again before so many bytes were written"
    assert verify_file(file, 0).finding is None
