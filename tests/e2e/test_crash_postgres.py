"""Tickets in PostgreSQL, and kill -9 at every step of an approved call: of the gateway's worker, or of the database.

As tests/e2e/test_crash.py, whose upstream counts what it executes. A gateway that lost its database says 503 exactly
where it sent nothing (APR-13); when the database is back it is used again by itself, and nothing runs a second time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.demo.exchange import Answer
from gateway.demo.house import Ports
from gateway.demo.stack import Stack
from tests.e2e.test_crash import (
    DYING,
    ERRAND_STEPS,
    LEG_STEPS,
    NEVER_SENT,
    SENT,
    STEPS,
    UNUSED,
    DeadlyUpstream,
    Scene,
    _amounts,
    die_once,
    verify,
)
from tests.support.postgres import Postgres

WITHIN_S = 5.0
WORKER_STEPS = ("after the use is consumed", "while the upstream works")
"""The steps that the database has a part in; all of them, twenty times, in `soak`."""
CONSUMED = NEVER_SENT[:-1]
UNCONSUMED = ("after the lease is taken", *UNUSED)
OFTEN = (
    "before the leg is taken", "after the leg is taken", "while the upstream works", "before the use is ended",
    "before the lease is taken", "after the lease is taken", "after the use is consumed", "before the result is kept",
)  # fmt: skip
"""The steps of a leg and of a task that are tried with every change; the others in `soak`."""


@dataclass
class FatalUpstream(DeadlyUpstream):
    """Kills the database where a worker is not told to be the victim."""

    database: Postgres | None = field(default=None, kw_only=True)

    def kill(self) -> None:
        """kill -9, once."""
        if self.victim:
            super().kill()
            return
        assert self.database is not None
        self.database.kill()
        self.deadly = ""  # last: whoever waits for it starts the database anew


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    """A server that is killed again and again."""
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="module")
def scene(database: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One gateway with one worker, and its tickets in PostgreSQL."""
    order = tmp_path_factory.mktemp("dying") / "step"
    upstream = FatalUpstream(database=database)
    with upstream.running():
        environment = {"PYTHONPATH": str(DYING), "DYING_AT": str(order), "DYING_DATABASE": database.create()}
        settings = {"limits": {"tickets_per_hour": 10_000}, "approvals": {"database_env": "DYING_DATABASE"}}
        with Stack(Ports.free(0), replicas=(upstream.url,), settings=settings, environment=environment) as stack:
            yield Scene(stack, upstream, order)


def soon(scene: Scene, amount: int, state: str = "") -> Answer:
    """The call, or its next leg, once the database is used again."""
    end = time.monotonic() + WITHIN_S
    while True:
        answer = scene.call(amount, state)
        assert answer is not None
        if answer.status != 503:
            return answer
        assert time.monotonic() < end, "the database is back and not used"
        time.sleep(0.05)


def some(steps: tuple[str, ...]) -> list[Any]:
    """The steps, those beyond `OFTEN` for `soak`."""
    return [step if step in OFTEN else pytest.param(step, marks=pytest.mark.soak) for step in steps]


def arm(scene: Scene, database: Postgres, step: str) -> None:
    """Let the database die at `step`."""
    scene.upstream.victim = 0
    if step in ("while the upstream works", "after the upstream's reply"):
        scene.upstream.deadly = step
    else:
        scene.order.write_text(f"{step}\n{database.pid}")


def until_dead(scene: Scene) -> None:
    """Wait until the armed step was reached, by whatever runs apart from a connection."""
    end = time.monotonic() + 20
    while scene.order.exists() or scene.upstream.deadly:
        assert time.monotonic() < end, "the step was not reached"
        time.sleep(0.02)


def lose_database(scene: Scene, database: Postgres, step: str) -> None:
    """One approval, one death of the database at `step`, its return, and one repetition of the identical call."""
    amount = next(_amounts)
    ticket = scene.approve(amount)
    arm(scene, database, step)
    try:
        answer = scene.call(amount)
        until_dead(scene)
        executed = scene.upstream.executed[amount]
        assert answer is not None, "the gateway itself lives"
        assert (answer.status == 503) is (executed == 0), answer.text
    finally:
        database.kill()
        database.start()
    again = soon(scene, amount)
    if step in UNUSED:
        assert executed == 0
        assert again.status == 200, f"the approval was lost although nothing was consumed: {again.text}"
        assert scene.upstream.executed[amount] == 1
        return
    assert executed == (1 if step in SENT or step == NEVER_SENT[-1] else 0)
    assert scene.upstream.executed[amount] == executed, "the repeated call ran"
    assert (again.status, again.code) in ((403, 40303), (403, 40304)), again.text
    assert scene.runs(ticket) in (["claimed"], ["sent"], ["executed"], ["failed"])


def lose_database_on_a_leg(scene: Scene, database: Postgres, step: str) -> None:
    """One approved call that its server asks for an answer, one death of the database at `step` of the next leg."""
    amount = next(_amounts)
    ticket, state = scene.begin(amount)
    arm(scene, database, step)
    try:
        answer = scene.call(amount, state)
        until_dead(scene)
        executed = scene.upstream.executed[amount]
        assert answer is not None, "the gateway itself lives"
        assert (answer.status == 503) is (executed == 0), answer.text
    finally:
        database.kill()
        database.start()
    again = soon(scene, amount, state)
    assert scene.upstream.asked[amount] == 1
    if step == LEG_STEPS[0]:
        assert (executed, again.status, scene.upstream.executed[amount]) == (0, 200, 1), again.text
        return
    assert scene.upstream.executed[amount] == executed <= 1, "the repeated leg ran"
    assert (again.status, again.code) == (403, 40304), again.text
    soon(scene, amount)
    assert scene.upstream.executed[amount] == executed, "the repeated call ran"
    assert "waiting" not in scene.runs(ticket)


def lose_database_on_an_errand(scene: Scene, database: Postgres, step: str) -> None:
    """One held call that is a task and was approved, one death of the database at `step` of its run."""
    amount = next(_amounts)
    handle, _ = scene.hold(amount)
    arm(scene, database, step)
    try:
        scene.ask("tasks/get", {"taskId": handle})
        until_dead(scene)
    finally:
        database.kill()
        database.start()
    soon(scene, 0)  # any call that needs the database
    told = [scene.ask("tasks/get", {"taskId": handle}) for _ in range(3)]
    assert all(one is not None and one.status == 200 for one in told), told
    again = soon(scene, amount)
    if step in CONSUMED:  # and not a byte was sent
        assert (again.status, again.code, scene.upstream.executed[amount]) == (403, 40304, 0), again.text
        return
    end = scene.follow(handle)["status"]
    if step in UNCONSUMED:  # the repetition may use the approval, which its task then says
        assert (again.status, end, scene.upstream.executed[amount]) == (200, "failed", 1), again.text
        return
    assert (again.status, end, scene.upstream.executed[amount]) == (403, "completed", 1), again.text


@pytest.mark.parametrize("step", some(LEG_STEPS))
def test_a_death_of_the_database_at_any_step_of_a_leg_never_executes_twice(
    scene: Scene, database: Postgres, step: str
) -> None:
    """APR-13: a leg that was not taken can still be continued, once; one that was is never run again."""
    lose_database_on_a_leg(scene, database, step)
    verify(scene)


@pytest.mark.parametrize("step", some(ERRAND_STEPS))
def test_a_death_of_the_database_at_any_step_of_a_held_calls_run_never_executes_twice(
    scene: Scene, database: Postgres, step: str
) -> None:
    """APR-13: however often the task is polled afterwards, and the call repeated, it was sent once at most."""
    lose_database_on_an_errand(scene, database, step)
    verify(scene)


@pytest.mark.parametrize("step", STEPS)
def test_a_death_of_the_database_at_any_step_never_executes_twice(
    scene: Scene, database: Postgres, step: str
) -> None:
    """503 where nothing was sent and only there; back within seconds; unused only if it died before the claim."""
    lose_database(scene, database, step)
    verify(scene)


@pytest.mark.parametrize("step", WORKER_STEPS)
def test_a_death_of_the_worker_is_known_to_the_database(scene: Scene, step: str) -> None:
    """The next worker ends what it left open, though its name is another one."""
    die_once(scene, step)
    verify(scene)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("step", STEPS)
def test_twenty_deaths_of_each_at_each_step(scene: Scene, database: Postgres, step: str) -> None:
    """The whole size of APR-13 with PostgreSQL."""
    for _ in range(20):
        lose_database(scene, database, step)
        die_once(scene, step)
    verify(scene)
