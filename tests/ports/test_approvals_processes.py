"""Several processes on one database, and processes that die: one approval is used once (APR-02, APR-13)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from approvals.ticket import Claimed, Held, Origin, Run
from tests.support.approvals import BOB, TERMS, Bench, bench, effect
from tests.support.approvals_worker import ANSWERS

ROOT = Path(__file__).parents[2]


class Worker:
    """A child process that answers in JSON lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def hear(self) -> dict[str, Any]:
        """The next line, `{}` at the end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else {}

    def tell(self, text: str) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()


@contextmanager
def worker(*arguments: object) -> Iterator[Worker]:
    """Start a child; it is gone afterwards."""
    command = [sys.executable, "-m", "tests.support.approvals_worker", *map(str, arguments)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with process:
        try:
            yield Worker(process)
        finally:
            process.kill()


async def race(file: Path | str, rounds: int) -> None:
    async with bench(file, clock=time.time, tickets_per_hour=10**6) as it:
        with ExitStack() as stack:
            workers = [stack.enter_context(worker("race", file, f"worker-{number}", 50)) for number in range(2)]
            assert all(one.hear() == {"ready": True} for one in workers)
            for number in range(rounds):
                await it.approved(effect({"round": number}))
                for one in workers:
                    one.tell(str(number))
                results = [one.hear() for one in workers]
                for one in workers:
                    one.tell("")
                assert [one.hear() for one in workers] == [{"finished": True}] * 2
                assert sum(result["claimed"] for result in results) == 1
                assert {why for result in results for why in result["whys"]} == {"in_flight"}
                assert max(result["slowest"] for result in results) < 1.0


async def test_a_race_of_two_processes_has_one_winner(where: Path | str) -> None:
    """APR-02: 100 parallel uses of one approval over two processes: one runs, all others are held within a second."""
    await race(where, rounds=5)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_two_hundred_races_have_two_hundred_winners(where: Path | str) -> None:
    """APR-02, the whole: 200 rounds, exactly 200 uses."""
    await race(where, rounds=200)


async def die_at(file: Path | str, point: str) -> None:
    async with bench(file, clock=time.time) as it:
        ticket_id = await it.approved()
        with worker("crash", file, "worker", point) as child:
            child.process.wait(30)
            assert child.process.returncode == -9
        assert await it.desk.reconcile("worker") == (1 if point in ("after_commit", "sent") else 0)
        shown = await it.desk.show(BOB, ticket_id)
        settled = await it.settle()
        if point == "before_commit":
            assert (shown["uses_left"], shown["runs"]) == (1, [])
            assert isinstance(settled, Claimed)
        elif point == "finished":
            assert (shown["state"], shown["runs"][0]["state"]) == ("used", "executed")
            assert isinstance(settled, Held)
            assert settled.why == "pending"
        else:
            assert (shown["uses_left"], shown["runs"][0]["state"]) == (0, "unknown")
            assert isinstance(settled, Held)
            assert (settled.why, settled.ticket.id) == ("unknown", ticket_id)


POINTS = ["before_commit", "after_commit", "sent", "finished"]


@pytest.mark.parametrize("point", POINTS)
async def test_a_process_killed_on_the_way_never_leaves_a_second_use(where: Path | str, point: str) -> None:
    """APR-13: unused only if killed before the commit; after it the outcome is what was written, or `unknown`."""
    await die_at(where, point)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", POINTS)
async def test_killed_twenty_times_at_each_point(tmp_path: Path, point: str) -> None:
    """APR-13, the whole."""
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        await die_at(folder / "approvals.db", point)


LEG_POINTS = [*POINTS, "asked_again", "given_back"]
STILL_WAITS = ("before_commit", "before_commit_of_both", "given_back")
LOST = ("after_commit", "sent")


async def die_on_a_leg(folder: Path, point: str) -> None:
    file = folder / "approvals.db"
    async with bench(file, clock=time.time) as it:
        ticket_id, leg = await waiting(it)
        kill_on_a_leg(file, point, leg, "alone")
        assert await it.desk.reconcile("worker") == (1 if point in LOST else 0)
        settled = await it.desk.go_on(effect(), Origin(leg, TERMS), claims={})
        if point in STILL_WAITS:
            assert isinstance(settled, Claimed)
            assert await why_not(it, leg) == "in_flight", "one leg was continued twice"
            return
        assert isinstance(settled, Held)
        assert settled.why == ("unknown" if point in LOST else "continued")
        assert await run_of(it, ticket_id) == {"finished": "executed", "asked_again": "waiting"}.get(point, "unknown")
        following = await it.desk.go_on(effect(), Origin(replace(leg, leg=2), TERMS), claims={})
        assert isinstance(following, Claimed) is (point == "asked_again")


async def die_with_answers(folder: Path, point: str) -> None:
    file = folder / "approvals.db"
    async with bench(file, clock=time.time) as it:
        ticket_id, leg = await waiting(it)
        origin = Origin(leg, TERMS)
        answers_id = await it.approved(ANSWERS, origin=origin)
        kill_on_a_leg(file, point, leg, "answers")
        assert await it.desk.reconcile("worker") == (2 if point in LOST else 0)
        settled = await it.settle(ANSWERS, origin=origin)
        if point in STILL_WAITS:
            assert isinstance(settled, Claimed)
            assert settled.answers is not None
            assert (settled.use_id, settled.answers.ticket_id) == (leg.use_id, answers_id)
            assert (await it.held(ANSWERS, origin=origin)).why == "in_flight"
            assert await why_not(it, leg) == "in_flight", "one leg was continued twice"
            return
        assert isinstance(settled, Held)
        assert settled.why == ("unknown" if point in LOST else "continued")
        call, answers = await run_of(it, ticket_id), await run_of(it, answers_id)
        assert (call, answers) == {
            "finished": ("executed", "executed"),
            "asked_again": ("waiting", "executed"),
        }.get(point, ("unknown", "unknown"))
        assert await why_not(it, leg) == settled.why, "without its answers' ticket the leg ran again"


async def waiting(it: Bench) -> tuple[str, Claimed]:
    """An approved call whose server asked -> its ticket, and its use at the leg that waits."""
    ticket_id = await it.approved()
    use = await it.claimed()
    await it.desk.sent(use)
    await it.desk.finish(use, Run.WAITING)
    return ticket_id, replace(use, leg=1)


def kill_on_a_leg(file: Path, point: str, leg: Claimed, mode: str) -> None:
    with worker("crash_on_a_leg", file, "worker", point, leg.ticket_id, leg.use_id, mode) as child:
        child.process.wait(30)
        assert child.process.returncode == -9


async def why_not(it: Bench, leg: Claimed) -> str:
    settled = await it.desk.go_on(effect(), Origin(leg, TERMS), claims={})
    assert isinstance(settled, Held)
    return settled.why


async def run_of(it: Bench, ticket_id: str) -> str:
    (run,) = (await it.desk.show(BOB, ticket_id))["runs"]
    return str(run["state"])


@pytest.mark.parametrize("point", LEG_POINTS)
async def test_a_process_killed_on_a_leg_never_leaves_a_second_one(tmp_path: Path, point: str) -> None:
    """APR-13 for the legs of a call: the leg waits only if its process died before the commit, or gave it back."""
    await die_on_a_leg(tmp_path, point)


@pytest.mark.parametrize("point", [*LEG_POINTS, "before_commit_of_both"])
async def test_a_process_killed_with_approved_answers_leaves_both_or_neither(tmp_path: Path, point: str) -> None:
    """APR-13: the leg and its answers' approval are one; no death parts them."""
    await die_with_answers(tmp_path, point)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("die", [die_on_a_leg, die_with_answers])
@pytest.mark.parametrize("point", LEG_POINTS)
async def test_killed_twenty_times_at_each_point_of_a_leg(
    tmp_path: Path, point: str, die: Callable[[Path, str], Awaitable[None]]
) -> None:
    """APR-13 for the legs of a call, the whole."""
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        await die(folder, point)


async def kill_at_random(file: Path | str, folder: Path, deaths: int, effects: int, legs: int) -> None:
    log = folder / "executed"
    async with bench(file, clock=time.time, tickets_per_hour=10**6) as it:
        tickets = [await it.approved(effect({"number": number})) for number in range(effects)]
        for number in range(deaths + 1):
            with worker("toil", file, "worker", effects, log, legs) as child:
                assert child.hear() == {"ready": True}
                if number < deaths:
                    time.sleep(random.random() * 0.15)  # noqa: ASYNC251 - nothing else runs here
                    child.process.kill()
                else:
                    assert child.hear() == {"done": True}
        executed = Counter(
            (int(number), int(leg)) for number, leg, *_ in map(str.split, log.read_text().splitlines())
        )
        runs = [(await it.desk.show(BOB, ticket_id))["runs"] for ticket_id in tickets]
    assert executed
    assert set(executed.values()) == {1}
    for number, ran in enumerate(runs):
        assert len(ran) == 1
        assert ran[0]["state"] == "executed" or ran[0]["state"] == "unknown"
        assert ran[0]["state"] == "unknown" or all(executed[number, leg] == 1 for leg in range(legs))


@pytest.mark.parametrize("legs", [1, 2])
async def test_killed_anywhere_nothing_runs_twice(where: Path | str, tmp_path: Path, legs: int) -> None:
    """Whenever the process dies and starts again: at most one execution of each leg, none lost in silence."""
    await kill_at_random(where, tmp_path, deaths=4, effects=25, legs=legs)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("legs", [1, 2])
async def test_killed_anywhere_a_hundred_times(tmp_path: Path, legs: int) -> None:
    """The same, with a hundred deaths."""
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        await kill_at_random(folder / "approvals.db", folder, deaths=10, effects=60, legs=legs)
