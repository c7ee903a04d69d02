"""Everything that a gateway depends on comes and goes, alone and all at once, while callers go on (OPS-06).

A real OPA, an issuer's keys over HTTP, tickets in a real PostgreSQL, the record on a file system that fills up.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.rows.asking import tool
from tests.rows.conftest import furnish, opened, served, settings_of
from tests.rows.stage import House, Server, Stage, listed
from tests.rows.test_approvals import told
from tests.support.disk import file_system, fill
from tests.support.issuer import JwksServer
from tests.support.opa import Opa
from tests.support.postgres import Postgres
from tests.support.stack import DATA, ISSUER, Stack

WITHIN_S = 5.0
PAUSE_S = 0.05
SERVED, DENIED, HELD = (200, 0), (403, 40302), (403, 40303)
UNAVAILABLE = {"opa": (503, 50302), "postgresql": (503, 50303), "disk": (503, 50304)}
"""What may be the answer instead while this is off. Keys that were loaded stay good for a while (JWT-12)."""
HITS = {"read": {"opa", "disk"}, "hidden": {"opa"}, "write": {"opa", "postgresql", "disk"}}
"""Whom each call needs; a refusal needs no record."""
RIGHT = {"read": SERVED, "hidden": DENIED, "write": HELD}
_numbers = itertools.count(1)


@dataclass
class Scene:
    """The gateway, and how to switch off and on what it depends on."""

    house: House
    switches: Mapping[str, tuple[Callable[[], object], Callable[[], object]]]

    def ran(self, number: int) -> int:
        """How often the server was asked for this."""
        wanted = b'"number":%d' % number
        return sum(wanted in seen.body.replace(b" ", b"") for seen in self.house.forwarded())

    def answers(self) -> dict[str, tuple[int, int]]:
        """One call of each kind: of one that is allowed, one that is hidden, one that nobody approved."""
        messages = {"read": tool("read"), "hidden": tool("hidden"), "write": tool("write", number=0)}
        return {name: told(self.house.call("plain", message)) for name, message in messages.items()}

    def approved(self) -> dict[str, Any]:
        """A call that may run once."""
        message = tool("write", number=next(_numbers))
        self.house.approved("plain", message)
        return message


@pytest.fixture
def scene(stage: Stage, opa_program: Path, tmp_path: Path) -> Iterator[Scene]:
    """All is well."""

    async def make() -> JwksServer:
        return JwksServer()

    server = Server(listed(read={}, write={}, hidden={}))
    stack = Stack(tmp_path, {}, data=DATA)
    opa = Opa(opa_program, tmp_path / "bundle", tmp_path / "opa.log")
    database, keys = Postgres(), stage.run(make())
    (tmp_path / "disk").mkdir()
    with ExitStack() as open_:
        disk = open_.enter_context(file_system(tmp_path / "disk", "256m"))
        open_.callback(database.remove)
        database.start()
        stage.run(keys.listen())
        open_.callback(lambda: stage.run(keys.stop()))
        keys.routes["/jwks"] = stack.issuer.jwks()
        open_.enter_context(opened(stage, [server]))
        house = House(stage, stack, {"plain": [server]}, audit_folder=disk)
        open_.enter_context(house.http)
        furnish(
            stack,
            settings_of(house.behind),
            identity={"issuers": [{"issuer": ISSUER, "jwks_uri": f"{keys.url}/jwks", "algorithms": ["ES256"]}]},
            policy={"engine": "opa", "url": opa.url},
            approvals={"database": database.create()},
            audit={"file": str(disk / "audit.jsonl")},
            limits={"tickets_per_hour": 100_000},
        )
        open_.enter_context(opa)
        open_.enter_context(served(stage, stack))
        switches: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "opa": (opa.kill, opa.start),
            "keys": (lambda: stage.run(keys.stop()), lambda: stage.run(keys.listen())),
            "postgresql": (database.kill, database.start),
            "disk": (lambda: fill(disk), (disk / "filler").unlink),
        }
        yield Scene(house, switches)


def await_served(scene: Scene) -> None:
    """Until every kind of call has its right answer, within what the row allows."""
    end = time.monotonic() + WITHIN_S
    while (found := scene.answers()) != RIGHT:
        assert time.monotonic() < end, f"errors did not end: {found}"
        time.sleep(PAUSE_S)


def go_on(scene: Scene, off: set[str], for_s: float, held: dict[str, Any] | None = None) -> None:
    """Calls for a while: each has its right answer, or the exact 503 of something that is off.

    `held`: an approved call whose tickets can't be read now: it never runs.
    """
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        for name, answer in scene.answers().items():
            assert answer in {RIGHT[name], *(UNAVAILABLE[one] for one in HITS[name] & off)}, (name, off)
        if held is not None:
            assert told(scene.house.call("plain", held)) in {UNAVAILABLE[one] for one in HITS["write"] & off}
        time.sleep(PAUSE_S)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("rounds", "each_s"), [(1, 0.3), pytest.param(2, 30, marks=pytest.mark.soak)], ids=["small", "whole"]
)
def test_everything_comes_and_goes(scene: Scene, rounds: int, each_s: float) -> None:
    """OPS-06: each alone and all at once: nothing passes that should not, and errors end within 5 s of a return."""
    await_served(scene)
    for _ in range(rounds):
        for off in (*({name} for name in scene.switches), set(scene.switches)):
            held = scene.approved()
            number = held["params"]["arguments"]["number"]
            for name in off:
                scene.switches[name][0]()
            if "disk" in off:  # what a page of the file system still holds is used up first
                while told(scene.house.call("plain", tool("read"))) == SERVED:
                    pass
            go_on(scene, off, each_s, held if off & HITS["write"] else None)
            assert scene.ran(number) == 0
            for name in off:
                scene.switches[name][1]()
            await_served(scene)
            assert told(scene.house.call("plain", held)) == SERVED
            assert told(scene.house.call("plain", held)) == HELD
            go_on(scene, set(), each_s)
            assert scene.ran(number) == 1
    assert scene.house.records(), "and no planted value in record or log"
