"""The table of `gateway/serving/reload.py`: a real supervisor and real processes, which are workers in name only.

What a worker does stands in its configuration's text, so that each line of the table can be had in an instant.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.serving import crew, judge_call, metrics_folder, reload
from gateway.serving.configuration import Configuration, digest_of
from gateway.serving.employment import Life
from gateway.serving.supervisor import Posts, Supervisor
from tests.support.ports import free_port
from tests.support.processes import descendants, eventually

WORKER = """
import json, os, signal, sys, time
option = dict(zip(sys.argv[1::2], sys.argv[2::2]))
text, fd = open(option["--text"]).read(), int(option["--status-fd"])
def leave(number, _):
    while "lingers" in text and number == signal.SIGUSR1 and not os.path.exists(text.split()[1]): time.sleep(0.02)
    os._exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1): signal.signal(number, leave)
if "resigns" in text and not (os.path.exists(text.split()[1]) and os.unlink(text.split()[1]) is None):
    os.write(fd, b'{"why":"limits: made to fail"}\\n')
    sys.exit(3)
said = {"missing": ["keys"] if "mute" in text else [], "degraded": [], "gauges": {}}
said["loaded"] = {"configuration": text}
while True:
    said["ready"] = "mute" not in text and ("shy" not in text or os.path.exists(text.split()[3]))
    os.write(fd, json.dumps({**said, "revision": option["--seat"]}).encode() + b"\\n")
    time.sleep(0.1)
"""
"""`resigns FILE`: only whoever finds FILE, and takes it away, gets ready.
`lingers FILE`: has work until it is there. `… … shy FILE`: gets ready once it is there."""

JUDGE = """
import json, os, sys, time
option = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if "--note" in option:
    print(json.dumps({"why": ""}))
    sys.exit()
text = open(option["--coming"]).read()
while "slow" in text and not os.path.exists(text.split()[1]): time.sleep(0.02)
if "nonsense" in text: sys.exit(70)
print(json.dumps({"mistakes": ["limits: no"] if "wrong" in text else [], "grace_s": 1, "drain_s": 0}))
"""


def at_work() -> set[int]:
    """The workers and judges of these tests' supervisor: others of this process (a database's, say) come and go."""
    found = set()
    for pid in descendants(os.getpid()):
        with suppress(OSError):  # it is gone
            if {WORKER.encode(), JUDGE.encode()} & set(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")):
                found.add(pid)
    return found


@asynccontextmanager
async def running(
    folder: Path, workers: int = 2, *, watch: bool = False, first: str = "first"
) -> AsyncIterator[tuple[Supervisor, Path]]:
    """A supervisor that serves `first`, and the file that it reads again. It ends in order, and leaves nobody.

    Where `first` is shy, nobody is ready yet.
    """
    file = folder / "configuration.yaml"
    file.write_text(first)
    python = (sys.executable, "-S", "-c")
    begun = Configuration(first.encode(), grace_s=1, drain_s=0)
    posts = Posts(
        "127.0.0.1", 0, "127.0.0.1", free_port(), workers, (*python, WORKER), begun, file, (*python, JUDGE), watch
    )
    house = Supervisor(posts)
    task = asyncio.create_task(house.run())
    try:
        ready = 0 if "shy" in first else workers
        await eventually("all are there", lambda: len(house.roster.workers) == workers)
        await eventually("all are ready", lambda: texts(house).count(first) == ready)
        yield house, file
    finally:
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)  # the supervisor runs in this very process
        assert await asyncio.wait_for(task, 30) == 0
        assert not at_work()


def texts(house: Supervisor) -> list[str]:
    """What the workers of all slots run on; nothing for one that is not ready."""
    slots = [house.roster.workers.get(slot) for slot in range(house.roster.wanted)]
    return [one.status.configuration if one and one.is_ready and one.status else "" for one in slots]


def hang_up(file: Path, text: str) -> None:
    """Another text, and SIGHUP."""
    file.write_text(text)
    os.kill(os.getpid(), signal.SIGHUP)


async def ended(house: Supervisor, result: str, times: int = 1) -> None:
    """Wait until a reload has ended so for the `times`-th time."""
    settled = house.roster.configuration
    await eventually(result, lambda: settled.results[result] == times and settled.state == "idle")


async def test_every_slot_is_renewed_and_there_is_never_more_than_one_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other; seats, by which workers count, are as few as there are at once; nothing is a death."""
    seats: set[str] = set()
    monkeypatch.setattr(metrics_folder, "MEMORY", tmp_path)
    async with running(tmp_path, 3) as (house, file):

        def look() -> bool:
            roster = house.roster
            everybody = [*roster.workers.values(), *roster.besides]
            seats.update(one.status.revision for one in everybody if one.status is not None)
            assert len({one.pid for one in everybody}) <= 4
            assert roster.ready, "somebody serves at every moment"
            return roster.configuration.results["taken"] == 1 and texts(house) == ["second"] * 3

        hang_up(file, "second")
        await eventually("taken", look)
        assert house.roster.restarts == 0
        assert house.roster.configuration.digest == digest_of(b"second")

        def kept() -> list[str]:
            return [one.read_text() for one in tmp_path.glob("ostiary-metrics-*/configuration-*")]

        await eventually("the first text is not kept", lambda: kept() == ["second"])
    assert seats <= {"0", "1", "2", "3"}
    assert "3" in seats


async def test_asked_twice_it_is_done_once_more(tmp_path: Path) -> None:
    """SIGHUP while judging: what lies there then is judged afterwards; two more are still one."""
    async with running(tmp_path) as (house, file):
        go = tmp_path / "go"
        hang_up(file, f"slow {go}")
        await eventually("judging", lambda: house.roster.configuration.state == "judging")
        await eventually("the judge has it", lambda: len(at_work()) > 2)
        for _ in range(2):
            hang_up(file, "third")
            await asyncio.sleep(0)
        go.touch()
        await ended(house, "taken", 2)
        assert texts(house) == ["third"] * 2


async def test_asked_before_anybody_served_it_waits_and_says_so(tmp_path: Path) -> None:
    """SIGHUP at a gateway that was never ready is not lost on who sent it: log and readiness say so."""
    go = tmp_path / "go"
    with capture_logs() as logs:
        async with running(tmp_path, 1, first=f"first x shy {go}") as (house, file):
            hang_up(file, "second")
            await eventually("it waits", lambda: house.roster.configuration.state == "waiting")
            assert [line["log_level"] for line in logs if line["event"] == "configuration_waits"] == ["warning"]
            assert not house.roster.ready
            go.touch()
            await ended(house, "taken")
            assert texts(house) == ["second"]
            hang_up(file, "third")
            await ended(house, "taken", 2)
    assert sum(line["event"] == "configuration_waits" for line in logs) == 1


@pytest.mark.parametrize("text", ["slow nowhere", "mute"], ids=["judging", "rolling"])
async def test_a_gateway_that_stops_gives_its_reload_up(tmp_path: Path, text: str) -> None:
    """SIGTERM while judging and while rolling: the end is orderly, and nobody is left, the judge included."""
    async with running(tmp_path) as (house, file):
        hang_up(file, text)
        state = "judging" if "slow" in text else "rolling"
        await eventually(state, lambda: house.roster.configuration.state == state)
        if state == "rolling":
            await eventually("the successor spoke", lambda: any(one.status for one in house.roster.besides))
    assert house.roster.configuration.results == {"taken": 0, "refused": 0, "given_up": 0}


@pytest.mark.parametrize("text", ["wrong", "nonsense"])
async def test_what_is_refused_or_cannot_be_judged_changes_nobody(tmp_path: Path, text: str) -> None:
    """A judge that says no, and one that says nothing: the workers stay, and it is told."""
    async with running(tmp_path) as (house, file):
        pids = [one.pid for one in house.roster.workers.values()]
        with capture_logs() as logs:
            hang_up(file, text)
            await ended(house, "refused")
        assert [one.pid for one in house.roster.workers.values()] == pids
        assert [line["event"] for line in logs if line["log_level"] == "error"] == ["configuration_refused"]
        assert not house.roster.configuration.current


async def test_a_judge_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging has its time."""
    monkeypatch.setattr(judge_call, "JUDGED_WITHIN_S", 0.3)
    async with running(tmp_path, 1) as (house, file):
        hang_up(file, "slow nowhere")
        await ended(house, "refused")
        assert "no answer within 0.3 s" in house.roster.configuration.why


@pytest.mark.parametrize(
    ("text", "why"), [("mute", "not ready within 0.5 s: missing"), ("resigns nowhere", "limits: made to fail")]
)
async def test_a_successor_that_is_not_ready_gives_the_reload_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    """It has its time, and its word is passed on; whoever served goes on."""
    async with running(tmp_path) as (house, file):
        monkeypatch.setattr(crew, "READY_WITHIN_S", 0.5 if text == "mute" else 60.0)
        pids = [one.pid for one in house.roster.workers.values()]
        hang_up(file, text)
        await ended(house, "given_up")
        assert why in house.roster.configuration.why
        assert [one.pid for one in house.roster.workers.values()] == pids
        monkeypatch.setattr(crew, "READY_WITHIN_S", 60.0)
        hang_up(file, "good")
        await ended(house, "taken")
        assert texts(house) == ["good"] * 2


async def test_what_had_changed_changes_back(tmp_path: Path) -> None:
    """The second slot's successor fails: the first one runs on the old configuration again."""
    async with running(tmp_path, 3) as (house, file):
        once = tmp_path / "once"
        once.touch()
        pids = [house.roster.workers[slot].pid for slot in range(3)]
        hang_up(file, f"resigns {once}")
        await ended(house, "given_up")
        await eventually("all run on the first", lambda: texts(house) == ["first"] * 3)
        now = [house.roster.workers[slot].pid for slot in range(3)]
        assert now[0] != pids[0], "it had changed"
        assert now[1:] == pids[1:]
        assert house.roster.configuration.digest == digest_of(b"first")


@pytest.mark.parametrize("slot", [0, 1])
async def test_a_worker_that_dies_meanwhile_is_replaced_with_what_its_slot_runs_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slot: int
) -> None:
    """Whether its successor is on its way or its turn is still to come: the slot is filled, then renewed."""
    monkeypatch.setattr(crew, "BACKOFF_S", (0.0,))
    async with running(tmp_path) as (house, file):
        victim = house.roster.workers[slot].pid
        go, ready = tmp_path / "go", tmp_path / "ready"
        coming = f"slow {go} shy {ready}"
        hang_up(file, coming)
        await eventually("judging", lambda: house.roster.configuration.state == "judging")
        go.touch()
        await eventually("a successor comes", lambda: house.roster.configuration.state == "rolling")
        os.kill(victim, signal.SIGKILL)
        ready.touch()  # not before: whom it follows would be gone already
        await ended(house, "taken")
        await eventually("both changed", lambda: texts(house) == [coming] * 2)


async def test_a_successor_that_dies_is_replaced_while_its_predecessor_has_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who took over serves alone: its slot is filled again at once, however long who left it needs for its calls."""
    monkeypatch.setattr(crew, "BACKOFF_S", (0.0,))
    async with running(tmp_path, 1) as (house, file):
        go = tmp_path / "go"
        hang_up(file, f"lingers {go}")
        await ended(house, "taken")
        leaving = house.roster.workers[0].pid
        hang_up(file, "third")
        await eventually("it took over", lambda: texts(house) == ["third"])
        successor = house.roster.workers[0].pid
        os.kill(successor, signal.SIGKILL)

        def replaced() -> bool:
            return texts(house) == ["third"] and house.roster.workers[0].pid != successor

        await eventually("somebody serves again", replaced, 8)
        assert leaving in at_work(), "and it is still at work"
        go.touch()
        await ended(house, "taken", 2)
        assert house.roster.restarts == 1


async def test_a_replacement_that_is_just_being_started_does_not_displace_a_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker died, and its replacement's process comes up after the successor took over: it is the one to go."""
    monkeypatch.setattr(crew, "BACKOFF_S", (0.0,))
    begin, gate, old = Life.begin, asyncio.Event(), digest_of(b"first")[:32]
    held, late = asyncio.Event(), list[Life]()

    async def begin_late(command: Sequence[str], *rest: Any, **more: Any) -> Life:
        if old not in command[-1]:
            return await begin(command, *rest, **more)
        held.set()
        await gate.wait()
        late.append(await begin(command, *rest, **more))
        return late[-1]

    async with running(tmp_path, 1) as (house, file):
        monkeypatch.setattr(Life, "begin", begin_late)
        os.kill(house.roster.workers[0].pid, signal.SIGKILL)
        await asyncio.wait_for(held.wait(), 30)
        hang_up(file, "second")
        await ended(house, "taken")
        gate.set()
        await eventually("it came, and went", lambda: bool(late) and late[0].ended.done())
        assert texts(house) == ["second"]
        assert not house.roster.besides
        assert house.roster.restarts == 1


async def test_a_file_that_changes_is_taken_by_itself_where_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--watch`: by content, once it is the same at two looks; what was refused is not judged again and again."""
    monkeypatch.setattr(reload, "LOOK_EVERY_S", 0.05)
    async with running(tmp_path, 1, watch=True) as (house, file):
        file.write_bytes(b"first")  # touched, and the same
        draft = tmp_path / "draft"
        draft.write_bytes(b"second")
        draft.rename(file)
        await ended(house, "taken")
        assert texts(house) == ["second"]
        file.write_bytes(b"wrong")
        await ended(house, "refused")
        file.write_bytes(b"third")
        await ended(house, "taken", 2)
        assert house.roster.configuration.results["refused"] == 1


async def test_a_file_that_is_gone_is_refused(tmp_path: Path) -> None:
    """There is nothing to judge."""
    async with running(tmp_path, 1) as (house, file):
        file.unlink()
        os.kill(os.getpid(), signal.SIGHUP)
        await ended(house, "refused")
        assert house.roster.configuration.why == f"{file}: No such file or directory"
