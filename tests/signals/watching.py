"""Two gateways that a real Prometheus watches with the shipped rules, and what docs/operations.md says of them.

All that its table "At a glance" names is there: one gateway keeps its record on a disk and its tickets in PostgreSQL,
the other asks OPA and keeps its record in PostgreSQL.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.house.test_operations import rows
from tests.rows.asking import tool
from tests.rows.conftest import furnish, opened, settings_of
from tests.rows.stage import SECOND, House, Server, Stage, listed
from tests.signals.files import quick, quick_rules
from tests.support.disk import Ext4, file_system
from tests.support.issuer import JwksServer
from tests.support.opa import Opa
from tests.support.otlp import Receiver
from tests.support.postgres import Postgres
from tests.support.prometheus import Prometheus
from tests.support.stack import ISSUER, Stack
from tests.support.upstream import Exchange, ScriptedUpstream, http

PATIENCE_S = 100.0
IMPATIENT = {"deadlines": {"tools/call": 1}}


@dataclass(frozen=True)
class Row:
    """What the table says of one dependency. `ways`: how it breaks. `status` 0: callers notice nothing.

    `restarts`: the ways after which the gateway has to be started anew.
    """

    ways: tuple[str, ...]
    status: int
    code: int
    metric: str
    events: tuple[str, ...]
    readiness: int
    standing: tuple[str, str]
    alert: str
    restarts: frozenset[str]


def the_table() -> dict[str, Row]:
    """docs/operations.md, row by row."""
    found = {}
    for name, broken, callers, metric, log, readiness, alert, heals in rows("At a glance; each is told below."):
        status, code = (0, 0) if callers == "nothing" else map(int, callers.split())
        standing = re.findall(r"`(missing|degraded): (\w+)`", readiness)
        found[name] = Row(
            tuple(broken.rpartition(": ")[2].split(", ")), status, code, quick(metric.strip("`")),
            tuple(re.findall(r"`(\w+)`", log)), int(readiness[:3]),
            standing[0] if standing else ("", ""), alert.strip("`"),
            frozenset(re.findall(r"; ([\w-]+): restart", heals)),
        )  # fmt: skip
    return found


TABLE = the_table()
SOAKED = {"replica, slow", "replica, wrong"}
"""Rows whose first way as well is left to `make soak`."""


def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait until it is so."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@dataclass
class Watched:
    """The gateways (`disk`, `opa`), all that they depend on, and who watches them."""

    houses: Mapping[str, House]
    stage: Stage
    jwks: JwksServer
    gone: Server
    hook_answers: list[bytes | None]
    otlp: Receiver
    opa: Opa
    postgres: Postgres
    disk: Path
    room: Path
    """Where PostgreSQL keeps the tables, if `breakable`."""
    file_room: Path
    """Where the tickets' file of `opa` is, if `breakable`."""
    breakable: Mapping[str, Ext4]
    """Disks that can be frozen and break, if `breakable`: `disk`'s of its record, `opa`'s of its tickets."""
    prometheus: Prometheus
    tried: set[tuple[str, str]] = field(default_factory=set)

    def ask(self, house: str, message: dict[str, Any], server: str = "plain", token: str = "") -> tuple[int, int]:
        """Status and error code of a call."""
        one = self.houses[house]
        answer = one.ask(one.good(message, server, token or one.token(server)))
        return answer.status, answer.json().get("error", {}).get("code", 0)

    @contextlib.contextmanager
    def broken(
        self, at: Mapping[str, str], mend: Callable[[], object], way: str = "", ask: Callable[[], object] = bool
    ) -> Iterator[list[Row]]:
        """Dependency -> the gateway that lacks it: what its row says is so, until `mend`, and is not so after it.

        Callers are the body's business, as is breaking it; `ask` is done while something is waited for.
        """
        told = [(name, self.houses[house], house, TABLE[name]) for name, house in at.items()]
        before = [workers(one) for _, one, *_ in told]
        try:
            yield [row for *_, row in told]
            for case in told:
                self._await_trouble(*case, ask)
        finally:
            mend()
        for (name, one, house, row), those in zip(told, before, strict=True):
            self._await_end(name, one, house, row)
            tried = way or row.ways[0]
            assert (workers(one) != those) is (tried in row.restarts), f"{name} {tried}: heals by itself, or does not"
            self.tried.add((name, tried))

    def _await_trouble(self, name: str, one: House, house: str, row: Row, ask: Callable[[], object]) -> None:
        def fires() -> bool:
            ask()
            return bool({(row.alert, house), (row.alert, "")} & self.prometheus.firing())

        def shows() -> bool:
            ask()  # a counter's first count is no rate yet
            return house in self.prometheus.instances(row.metric)

        until(f"{name}: {row.metric}", shows)
        until(f"{name}: {row.alert}", fires)
        until(f"{name}: {row.readiness}", lambda: one.readiness()[0] == row.readiness)
        until(f"{name}: {row.standing}", lambda: row.standing[1] in standing(one, row.standing[0]))

    def _await_end(self, name: str, one: House, house: str, row: Row) -> None:
        until(f"{name}: log {row.events}", lambda: set(row.events) <= events(one))
        until(f"{name} is over: ready", lambda: one.readiness()[0] == 200)
        until(f"{name} is over: {row.metric}", lambda: self._is_over(house, row))
        until(
            f"{name} is over: {row.alert}",
            lambda: not {(row.alert, house), (row.alert, "")} & self.prometheus.firing(),
        )

    def _is_over(self, house: str, row: Row) -> bool:
        if row == TABLE["replica"]:
            self.ask(house, tool("read"), "gone")  # whether it is back is found out by calls
        return house not in self.prometheus.instances(row.metric)


def standing(house: House, kind: str) -> list[str]:
    """What is missing or degraded; a row without either asks for nothing."""
    answer = house.readiness()[1]
    found: list[str] = {
        "": [""],
        "missing": [part for worker in answer["workers"] for part in worker["missing"]],
        "degraded": answer["degraded"],
    }[kind]
    return found


def workers(house: House) -> list[int]:
    """Its processes."""
    return [worker["pid"] for worker in house.readiness()[1]["workers"]]


def events(house: House) -> set[str]:
    """The events of its log."""
    return {json.loads(line).get("event", "") for line in house.stack.log().splitlines() if line.startswith("{")}


def watch(
    stage: Stage,
    opa_program: Path,
    prometheus_program: Path,
    tmp_path_factory: pytest.TempPathFactory,
    *,
    breakable: bool = False,
) -> Iterator[Watched]:
    """Started together; the issuer of some tokens is not there yet.

    `breakable`: the record's disk and that of PostgreSQL's tables break in further ways, and take longer to make.
    """
    folders = {name: tmp_path_factory.mktemp(name) for name in ("disk", "opa")}
    with contextlib.ExitStack() as open_:
        disk, room, file_room = tmp_path_factory.mktemp("disk-of-record"), None, folders["opa"]
        disks: dict[str, Ext4] = {}
        if not breakable:
            open_.enter_context(file_system(disk, "4m"))
        else:
            room = Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="ostiary-room-", dir="/tmp")))
            open_.enter_context(file_system(room, "48m"))
            file_room = tmp_path_factory.mktemp("disk-of-tickets")
            for whose, folder, size in (("disk", disk, "16m"), ("opa", file_room, "4m")):
                disks[whose] = open_.enter_context(Ext4(folder, size))
        postgres = Postgres()
        open_.callback(postgres.remove)
        postgres.start()
        otlp = Receiver()
        open_.callback(otlp.close)
        answers: list[bytes | None] = [http(200)]

        async def hear(exchange: Exchange) -> None:
            if answers[0] is None:
                await asyncio.sleep(3600)
            else:
                await exchange.send(answers[0])

        hook, jwks = ScriptedUpstream(hear), stage.run(make_jwks())
        stage.run(hook.start())
        open_.callback(lambda: stage.run(hook.stop()))
        stage.run(jwks.listen())
        stage.run(jwks.stop())  # it has its port now, and nobody answers there
        tools = listed(read={}, write={})
        behind = {"plain": [Server(tools)], "gone": [Server(tools)]}
        open_.enter_context(opened(stage, [server for servers in behind.values() for server in servers]))
        stacks = {name: Stack(folder, {}) for name, folder in folders.items()}
        houses = {name: House(stage, stack, behind) for name, stack in stacks.items()}
        open_.callback(lambda: stage.run(jwks.stop()))
        jwks.routes["/jwks"] = houses["disk"].second.jwks()
        issuers = [
            {"issuer": ISSUER, "jwks_file": "jwks.json", "algorithms": ["ES256"]},
            {"issuer": SECOND, "jwks_uri": f"{jwks.url}/jwks", "algorithms": ["ES256"]},
        ]
        rooms = {name: None if room is None else room / name for name in stacks}
        for place in rooms.values():
            if place is not None:
                place.mkdir()
        stacks["disk"].environment = {
            "DATABASE": postgres.create(place=rooms["disk"]),
            "HOOK": f"whsec_{base64.b64encode(bytes(32)).decode()}",
        }
        stacks["opa"].environment = {"AUDIT": postgres.create(place=rooms["opa"])}
        furnish(
            stacks["disk"], settings_of(behind, gone=IMPATIENT),
            identity={"issuers": issuers},
            approvals={
                "database_env": "DATABASE",
                "webhooks": [{"url": f"http://127.0.0.1:{hook.port}/hook", "secret_env": "HOOK"}],
            },
            audit={"file": str(disk / "audit.jsonl"), "otlp": {"endpoint": otlp.url}},
            telemetry={"traces": {"endpoint": otlp.traces_url}},
        )  # fmt: skip
        opa = Opa(opa_program, folders["opa"] / "bundle", folders["opa"] / "opa.log")
        furnish(
            stacks["opa"], settings_of(behind, gone=IMPATIENT),
            policy={"engine": "opa", "url": opa.url},
            approvals={"database": f"sqlite:///{file_room / 'ostiary.db'}"},
            audit={"file": "audit.jsonl", "database_env": "AUDIT"},
        )  # fmt: skip
        open_.callback(opa.kill)
        opa.start()
        open_.callback(lambda: stage.run(stop_all(stacks)))
        stage.run(start_all(stacks))
        place = tmp_path_factory.mktemp("prometheus")
        targets = {name: f"127.0.0.1:{stack.admin_port}" for name, stack in stacks.items()}
        prometheus = open_.enter_context(Prometheus(prometheus_program, place, targets, quick_rules(place)))
        for house in houses.values():
            open_.enter_context(house.http)
        gone = behind["gone"][0]
        yield Watched(
            houses, stage, jwks, gone, answers, otlp, opa, postgres, disk, room or disk, file_room, disks,
            prometheus,
        )  # fmt: skip


async def make_jwks() -> JwksServer:
    """Within the loop that it lives on."""
    return JwksServer()


async def stop_all(stacks: Mapping[str, Stack]) -> None:
    """However they started, and together."""
    await asyncio.gather(*(stack.__aexit__(None, None, None) for stack in stacks.values()))


async def start_all(stacks: Mapping[str, Stack]) -> None:
    """The one whose keys are away is not ready for now."""
    await stacks["disk"].spawn()
    await stacks["opa"].launch()


async def restarted(server: Server) -> None:
    """It is there again."""
    await server.wire.start()


def serves(house: House, *without: str) -> bool:
    """Whether the gateway is up, and lacks this and nothing else."""
    try:
        return standing(house, "missing") == [*without]
    except (httpx.TransportError, ValueError):
        return False


class Lock:
    """Somebody else's transaction on a SQLite file."""

    def __init__(self, file: Path) -> None:
        assert file.exists()
        self._file, self._open = file, sqlite3.connect(file, isolation_level=None, check_same_thread=False)

    def take(self) -> None:
        """Nobody else writes any more."""
        self._open.execute("BEGIN EXCLUSIVE")

    def release(self) -> None:
        """As before."""
        self._open.execute("ROLLBACK")
        self._open.close()
