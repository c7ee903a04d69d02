"""A process of its own with a desk on a shared file: it races when told, works through a list, or dies at a point.

`python -m tests.support.approvals_worker MODE DATABASE OWNER ...`; keys and effects as in `tests.support.approvals`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from approvals.ledger import Ledger
from approvals.ticket import Claimed, Held, Origin, Run
from tests.support.approvals import TERMS, Bench, bench, effect

ANSWERS = effect({"amount": 100, "sure": True})
"""What the answers of a leg of `effect()` are to the desk, where they need an approval of their own."""
FATAL = {
    "before_commit": "go_on",
    "before_commit_of_both": "claim",
}
"""Points that lie in a transaction: the method of the ledger after which there is no more."""


def say(**what: Any) -> None:
    """One JSON line to the parent."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def die() -> None:
    """As by `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)


async def race(it: Bench, calls: int) -> None:
    """For each line (a round's number): `calls` parallel uses of that round's approval."""
    loop = asyncio.get_running_loop()
    say(ready=True)
    while number := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        asked = effect({"round": int(number)})
        slowest = 0.0

        async def one(asked: Any = asked) -> Any:
            nonlocal slowest
            began = time.perf_counter()
            settled = await it.settle(asked)
            slowest = max(slowest, time.perf_counter() - began)
            return settled

        settled = await asyncio.gather(*(one() for _ in range(calls)), return_exceptions=True)
        uses = [use for use in settled if isinstance(use, Claimed)]
        whys = sorted({getattr(held, "why", repr(held)) for held in settled if not isinstance(held, Claimed)})
        say(claimed=len(uses), whys=whys, slowest=slowest)
        await loop.run_in_executor(None, sys.stdin.readline)  # the other process has settled as well
        for use in uses:
            await it.desk.sent(use)
            await it.desk.finish(use, Run.EXECUTED)
        say(finished=True)


async def crash(it: Bench, point: str) -> None:
    """Use the approval of `effect()` and die at this point of it."""
    if point == "before_commit":
        die_in("claim")
    use = await it.claimed()
    if point == "after_commit":
        die()
    await it.desk.sent(use)
    if point == "sent":
        die()
    await it.desk.finish(use, Run.EXECUTED)
    die()


def die_in(method: str) -> None:
    """Die in the transaction, when this method of the ledger has done its work."""
    whole: Callable[..., Awaitable[bool]] = getattr(Ledger, method)

    async def mortal(*arguments: Any, **options: Any) -> bool:
        assert await whole(*arguments, **options)
        die()
        return False

    setattr(Ledger, method, mortal)


async def crash_on_a_leg(it: Bench, point: str, use: Claimed, *, has_answers: bool) -> None:
    """Go on with this use of `effect()`, which waits, and die at this point of it.

    With answers that were approved their use is taken as well, after the leg.
    """
    if point in FATAL:
        die_in(FATAL[point])
    if has_answers:
        settled: Claimed | Held = await it.settle(ANSWERS, origin=Origin(use, TERMS))
    else:
        settled = await it.desk.go_on(effect(), Origin(use, TERMS), claims={})
    assert isinstance(settled, Claimed), settled
    assert (settled.answers is not None) is has_answers
    if point == "after_commit":
        die()
    if point == "given_back":
        await it.desk.restore(settled)
        die()
    await it.desk.sent(settled)
    if point == "sent":
        die()
    await it.desk.finish(settled, Run.EXECUTED if point == "finished" else Run.WAITING)
    die()


def note(log: Path, number: int, leg: int, use: Claimed) -> None:
    """An execution as a durable line: the effect's number, the leg, and the use as its client would know it."""
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{number} {leg} {use.ticket_id} {use.use_id}\n".encode())
    os.fsync(handle)
    os.close(handle)


def noted(log: Path) -> dict[int, Claimed]:
    """What earlier processes began, by the effect's number."""
    lines = log.read_text().splitlines() if log.exists() else []
    return {int(number): Claimed(ticket_id, use_id) for number, _, ticket_id, use_id in map(str.split, lines)}


async def toil(it: Bench, effects: int, log: Path, legs: int) -> None:
    """Reconcile, then run each leg of the approved effects that can be run; each execution is noted in `log`."""
    await it.desk.reconcile("worker")
    known = noted(log)
    say(ready=True)
    for number in range(effects):
        asked = effect({"number": number})
        settled = await it.settle(asked)
        for leg in range(legs):
            if leg and number in known:
                settled = await it.desk.go_on(asked, Origin(replace(known[number], leg=leg), TERMS), claims={})
            if not isinstance(settled, Claimed):
                continue
            await it.desk.sent(settled)
            note(log, number, leg, settled)
            known[number] = settled
            await it.desk.finish(settled, Run.WAITING if leg + 1 < legs else Run.EXECUTED)
    say(done=True)


async def main(mode: str, file: str, owner: str, *more: str) -> None:
    """Open the desk, and do what the mode says."""
    async with bench(
        file if "://" in file else Path(file), owner=owner, clock=time.time, tickets_per_hour=10**6
    ) as it:
        if mode == "race":
            await race(it, int(more[0]))
        elif mode == "crash":
            await crash(it, more[0])
        elif mode == "crash_on_a_leg":
            await crash_on_a_leg(it, more[0], Claimed(more[1], more[2], 1), has_answers=more[3] == "answers")
        else:
            await toil(it, int(more[0]), Path(more[1]), int(more[2]))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
