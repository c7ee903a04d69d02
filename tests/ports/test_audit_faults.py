"""Disks that are full, broken, read-only or stuck, and writers that die (AUD-07)."""
# ruff: noqa: ASYNC221, ASYNC240 - nothing else runs on the loop while a test looks at files and mounts

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.audit.jsonl import JsonlSettings, JsonlSink
from gateway.audit.port import AuditUnavailable
from gateway.audit.segments import segments_of
from tests.ports.test_audit import decision, opened, outcome, records_of, refusal, settled, until_healthy, whole

REFUSED_WITHIN_S = 2.0
DEADLINE_S = JsonlSettings(Path()).deadline_s


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


class Disk:
    """A disk that can be made to fail or to hang, in the place of `os.write` and `os.fdatasync`."""

    def __init__(self) -> None:
        self.write_error = self.sync_error = 0
        self.short = 0
        self.running = threading.Event()
        self.running.set()

    def write(self, fd: int, data: memoryview) -> int:
        if self.write_error:
            os.write(fd, data[: len(data) // 2])  # what a real one does: half of it arrives, then it is full
            raise OSError(self.write_error, os.strerror(self.write_error))
        return os.write(fd, data[: self.short] if self.short else data)

    def sync(self, fd: int) -> None:
        assert self.running.wait(30)
        if self.sync_error:
            raise OSError(self.sync_error, os.strerror(self.sync_error))
        os.fdatasync(fd)


@pytest.fixture
async def disk() -> AsyncIterator[Disk]:
    disk = Disk()
    yield disk
    disk.running.set()


async def refused(sink: JsonlSink, n: int = 99) -> float:
    """The seconds after which an append is refused."""
    began = time.perf_counter()
    with pytest.raises(AuditUnavailable):
        await sink.append(decision(n))
    return time.perf_counter() - began


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("where", ["write", "sync"])
async def test_a_failing_disk_refuses_and_comes_back(file: Path, disk: Disk, code: int, where: str) -> None:
    """AUD-07: nothing is acknowledged while the disk fails, the chain stays whole, service returns by itself."""
    sink = await opened(file, write=disk.write, sync=disk.sync)
    await sink.append(decision(1))
    good = file.read_bytes()
    setattr(disk, f"{where}_error", code)
    assert await refused(sink, 2) < REFUSED_WITHIN_S
    assert not sink.healthy
    assert os.strerror(code) in sink.fault
    assert file.read_bytes() == good
    sink.note(outcome(1))
    sink.note(refusal(2))
    assert await refused(sink, 3) < 0.1
    setattr(disk, f"{where}_error", 0)
    await until_healthy(sink, 5.0)
    await sink.append(decision(4))
    await settled(sink)
    await sink.close()
    told = [(record["kind"], record["decision_id"][-1]) for record in records_of(file) if record["kind"] != "admin"]
    assert told == [("decision", "1"), ("outcome", "1"), ("refusal", "2"), ("decision", "4")]
    acts = [record["act"] for record in records_of(file) if record["kind"] == "admin"]
    assert acts == ["started", "audit_unavailable", "audit_recovered", "stopped"]
    whole(file)


async def test_the_outage_is_noticed_and_ends_without_callers(file: Path, disk: Disk) -> None:
    """Health comes back by a probe of the sink's own: a gateway that is not ready gets no calls to try it with."""
    sink = await opened(file, sync=disk.sync)
    disk.sync_error = errno.EIO
    sink.note(outcome(1))
    await asyncio.sleep(0.1)
    assert not sink.healthy
    disk.sync_error = 0
    await until_healthy(sink, 1.0)
    await settled(sink)
    await sink.close()
    assert any(record["kind"] == "outcome" for record in records_of(file))
    whole(file)


async def test_a_disk_that_hangs_refuses_within_two_seconds_and_comes_back(file: Path, disk: Disk) -> None:
    """AUD-07: a sync that does not end refuses who waits in time and who follows at once."""
    sink = await opened(file, sync=disk.sync, deadline_s=DEADLINE_S)
    await sink.append(decision(1))
    disk.running.clear()
    times = await asyncio.gather(*(refused(sink, n) for n in range(10, 60)))
    assert 1.0 < max(times) < REFUSED_WITHIN_S
    assert not sink.healthy
    assert await refused(sink, 60) < 0.1
    sink.note(refusal(10))
    disk.running.set()
    await until_healthy(sink, 2.0)
    await sink.append(decision(2))
    await settled(sink)
    await sink.close()
    records = records_of(file)
    # The batch was written before the sync hung: it stands, refused though it was, and its refusal stands beside it.
    assert [r["decision_id"][-2:] for r in records if r["kind"] == "refusal"] == ["0a"]
    assert [r["decision_id"][-2:] for r in records if r["kind"] == "decision"][-1] == "02"
    whole(file)


async def test_who_comes_during_a_hang_is_refused_in_time_too(file: Path, disk: Disk) -> None:
    """Callers that arrive one after another while the disk hangs each wait less than two seconds."""
    sink = await opened(file, sync=disk.sync, deadline_s=DEADLINE_S)
    disk.running.clear()
    waiting = []
    for n in range(20):
        waiting.append(asyncio.create_task(refused(sink, n)))
        await asyncio.sleep(0.05)
    assert max(await asyncio.gather(*waiting)) < REFUSED_WITHIN_S
    disk.running.set()
    await until_healthy(sink)
    await sink.close()
    written = [record for record in records_of(file) if record["kind"] == "decision"]
    assert len(written) == 1
    whole(file)


async def test_a_hang_without_callers_shows_in_health(file: Path, disk: Disk) -> None:
    """Notes alone also find out that the disk hangs; `lag` says for how long."""
    sink = await opened(file, sync=disk.sync, deadline_s=0.3)
    disk.running.clear()
    sink.note(outcome(1))
    await asyncio.sleep(0.5)
    assert not sink.healthy
    assert sink.lag > 0.2
    disk.running.set()
    await until_healthy(sink)
    await sink.close()
    whole(file)


async def test_close_does_not_wait_for_a_hanging_disk(file: Path, disk: Disk) -> None:
    """An orderly end is bounded too, and leaves what the next life can mend."""
    sink = await opened(file, sync=disk.sync, deadline_s=0.3)
    disk.running.clear()
    sink.note(outcome(1))
    await asyncio.sleep(0.05)
    began = time.perf_counter()
    await sink.close()
    assert time.perf_counter() - began < REFUSED_WITHIN_S
    disk.running.set()
    await asyncio.sleep(0.1)
    await (await opened(file)).close()
    whole(file)


async def test_short_writes_are_continued(file: Path, disk: Disk) -> None:
    """A write that takes less than it was given is continued until all is written."""
    sink = await opened(file, write=disk.write)
    disk.short = 7
    await asyncio.gather(*(sink.append(decision(n)) for n in range(20)))
    await sink.close()
    whole(file)


async def test_notes_are_bounded_and_what_was_lost_is_counted(file: Path, disk: Disk) -> None:
    """While the disk fails, notes wait within bounds, strangers' in half of them; what was lost is counted."""
    sink = await opened(file, write=disk.write, max_notes=100, folded_beyond=1000)
    disk.write_error = errno.ENOSPC
    await refused(sink)
    for n in range(80):
        sink.note(refusal(n))
    for n in range(80):
        sink.note(outcome(n))
    assert sink.lost == 30 + 30
    disk.write_error = 0
    await until_healthy(sink)
    await settled(sink)
    await sink.close()
    records = records_of(file)
    lost = [record for record in records if record.get("act") == "records_lost"]
    assert [(record["count"], record["facts"]["lost"]) for record in lost] == [(60, 60)]
    assert len([record for record in records if record["kind"] == "outcome"]) == 50
    assert len([record for record in records if record["kind"] == "refusal"]) == 50
    whole(file)


async def test_notes_are_bounded_in_bytes(file: Path, disk: Disk) -> None:
    """Large records don't make the queue large: its bytes are bounded as well as its number."""
    sink = await opened(file, write=disk.write, max_note_bytes=100_000)
    disk.write_error = errno.ENOSPC
    await refused(sink)
    big = {**outcome(1), "arguments": {f"/{n}": {"type": "null"} for n in range(40)}}
    for _ in range(100):
        sink.note(big)
    assert 80 < sink.lost < 100
    disk.write_error = 0
    await until_healthy(sink)
    await sink.close()
    whole(file)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_really_full_disk(tiny_disk: Path) -> None:
    """AUD-07: a real ENOSPC refuses in time, the file ends with its last whole record, space brings service back."""
    file = tiny_disk / "audit.jsonl"
    sink = await opened(file)
    await _fill_up(sink, file)
    assert file.stat().st_size <= 64 * 1024
    subprocess.run(["mount", "-o", "remount,size=1m", str(tiny_disk)], check=True)
    await _come_back(sink, file)


_LIMITED = """
import asyncio, resource, sys
from pathlib import Path
from tests.ports import test_audit_faults as faults
limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

async def main():
    file = Path(sys.argv[1])
    sink = await faults.opened(file)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limit))
    await faults._fill_up(sink, file)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    await faults._come_back(sink, file)

asyncio.run(main())
"""


def test_a_file_at_its_size_limit(file: Path) -> None:
    """AUD-07: a limit on the file's size (EFBIG, also without root) is a full disk like any other."""
    child = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(file)], check=False, capture_output=True, text=True, timeout=60
    )
    assert child.returncode == 0, child.stderr
    whole(file)


async def _fill_up(sink: JsonlSink, file: Path) -> None:
    acknowledged = 0
    for n in range(1000):
        began = time.perf_counter()
        try:
            await sink.append(decision(n))
        except AuditUnavailable:
            assert time.perf_counter() - began < REFUSED_WITHIN_S
            break
        acknowledged += 1
    assert 5 < acknowledged < 1000
    assert not sink.healthy
    assert file.read_bytes().endswith(b"\n")
    assert len([r for r in records_of(file) if r["kind"] == "decision"]) == acknowledged
    whole(file)


async def _come_back(sink: JsonlSink, file: Path) -> None:
    await until_healthy(sink, 5.0)
    await sink.append(decision(5000))
    await sink.close()
    assert [r for r in records_of(file) if r["kind"] == "decision"][-1]["decision_id"] == f"{5000:032x}"
    whole(file)


_WRITER = """
import asyncio, sys
from pathlib import Path
from tests.ports.test_audit import decision, opened, outcome

async def caller(sink, lane):
    n = 0
    while True:
        number = n * 16 + lane
        await sink.append(decision(number))
        sys.stdout.write(f"{number:032x}\\n")
        sys.stdout.flush()
        if number % 3:
            sink.note(outcome(number))
        n += 1

async def main():
    sink = await opened(Path(sys.argv[1]))
    await asyncio.gather(*(caller(sink, lane) for lane in range(16)))

asyncio.run(main())
"""


def _killed(file: Path, after_s: float) -> set[str]:
    """Run a writer in a process of its own, kill it in mid-stream; the ids that it had acknowledged."""
    child = subprocess.Popen([sys.executable, "-c", _WRITER, str(file)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    first = child.stdout.readline()
    time.sleep(after_s)
    child.send_signal(signal.SIGKILL)
    rest = child.stdout.read()
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    lines = (first + rest).decode().split("\n")[:-1]
    return set(lines)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.soak)])
async def test_kill_9_loses_nothing_that_was_acknowledged(file: Path, kills: int) -> None:
    """AUD-07: whenever a writer is killed, what it acknowledged is there, and what was open is `unknown`."""
    for n in range(kills):
        acknowledged = await asyncio.to_thread(_killed, file, 0.05 + 0.07 * (n % 5))
        assert acknowledged
        sink = await opened(file)
        await sink.close()
        whole(file)
        records = records_of(file)
        assert acknowledged <= {record["decision_id"] for record in records if record["kind"] == "decision"}
        endings: dict[str, int] = {}
        started = max(i for i, record in enumerate(records) if record.get("act") == "started")
        for record in records[:started]:
            if record["kind"] in ("decision", "outcome"):
                step = 1 if record["kind"] == "decision" else -1
                endings[record["decision_id"]] = endings.get(record["decision_id"], 0) + step
        assert set(endings.values()) == {0}
        assert any(record["outcome"] == "unknown" for record in records)


def test_two_processes_claim_two_slots(file: Path) -> None:
    """AUD-06: the lock is between processes, and dies with its process."""
    holder = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from gateway.audit.jsonl import JsonlSettings, JsonlSink\n"
        "async def main():\n"
        "    sink = JsonlSink(JsonlSettings(Path(sys.argv[1])))\n"
        "    await sink.start()\n"
        "    print(sink.writer, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with contextlib.ExitStack() as stack:

        def hold() -> tuple[subprocess.Popen[bytes], int]:
            child = subprocess.Popen([sys.executable, "-c", holder, str(file)], stdout=subprocess.PIPE)
            stack.callback(child.wait)
            stack.callback(child.kill)
            assert child.stdout is not None
            stack.callback(child.stdout.close)
            return child, int(child.stdout.readline())

        first, slot = hold()
        assert slot == 0
        assert hold()[1] == 1
        first.kill()
        first.wait()
        assert hold()[1] == 0
    whole(file)


async def test_a_read_only_folder_stops_the_start(file: Path) -> None:
    """A place that can't be written is named at the start."""
    missing = Path("/proc/1/audit.jsonl")
    with pytest.raises(AuditUnavailable, match="/proc/1"):
        await opened(missing)
    await (await opened(file)).close()


async def test_a_disk_that_is_full_at_the_start_is_an_error_that_can_be_tried_again(file: Path, disk: Disk) -> None:
    """A start on a full disk raises and frees the slot; the same file is claimed once there is space."""
    disk.write_error = errno.ENOSPC
    with pytest.raises(AuditUnavailable):
        await opened(file, write=disk.write)
    disk.write_error = 0
    sink = await opened(file, write=disk.write)
    assert sink.writer == 0
    await sink.close()
    whole(file)


async def test_a_failed_commit_forgets_no_decision_whose_end_it_held(file: Path, disk: Disk) -> None:
    """AUD-01: ends that a failed commit held are not durable: a mark before they are still names their decisions."""
    sink = await opened(file, write=disk.write, rotate_bytes=8000)
    await asyncio.gather(*(sink.append(decision(n)) for n in range(40)))
    disk.write_error = errno.EIO
    for n in range(40):
        sink.note(outcome(n))
    await refused(sink)
    disk.write_error = 0
    await until_healthy(sink)
    before = sink.commits  # a probe: a mark and a few records only
    assert before
    await settled(sink)
    await sink.close()
    told = [record for path in (*(p for _, p in segments_of(file)), file) for record in records_of(path)]
    ends: set[str] = set()
    opened_: set[str] = set()
    for record in told:
        if record["kind"] == "decision":
            opened_.add(record["decision_id"])
        elif record["kind"] == "outcome":
            ends.add(record["decision_id"])
        elif record.get("act") == "mark":
            assert set(record["facts"]["open"]) == opened_ - ends, record["seq"]
    assert len(ends) == 40
