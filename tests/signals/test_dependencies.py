"""docs/operations.md, "At a glance", at gateways that run, watched by a real Prometheus with the shipped rules.

Two gateways, so that everything that the table names is there: one keeps its record on a disk and its tickets in
PostgreSQL, the other asks OPA and keeps its record in PostgreSQL. Each dependency is broken and mended once.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.house.test_operations import rows
from tests.rows.asking import tool
from tests.rows.conftest import furnish, opened, settings_of
from tests.rows.stage import SECOND, House, Server, Stage, listed
from tests.signals.files import alerts, metrics_of, queries, quick_rules
from tests.support.disk import file_system, fill
from tests.support.issuer import JwksServer
from tests.support.opa import Opa
from tests.support.otlp import Receiver
from tests.support.postgres import Postgres
from tests.support.prometheus import Prometheus
from tests.support.stack import ISSUER, Stack
from tests.support.upstream import Exchange, ScriptedUpstream, http

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Row:
    """What the table says of one dependency. `status` 0: callers notice nothing."""

    status: int
    code: int
    metric: str
    events: tuple[str, ...]
    readiness: int
    standing: tuple[str, str]
    alert: str


def the_table() -> dict[str, Row]:
    """docs/operations.md, row by row."""
    found = {}
    for name, _, callers, metric, log, readiness, alert in rows("At a glance; each is told below."):
        status, code = (0, 0) if callers == "nothing" else map(int, callers.split())
        standing = re.findall(r"`(missing|degraded): (\w+)`", readiness)
        found[name] = Row(
            status, code, metric.strip("`"), tuple(re.findall(r"`(\w+)`", log)), int(readiness[:3]),
            standing[0] if standing else ("", ""), alert.strip("`"),
        )  # fmt: skip
    return found


TABLE = the_table()


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
    hook_answers: list[bytes]
    otlp: Receiver
    opa: Opa
    postgres: Postgres
    disk: Path
    prometheus: Prometheus
    tried: set[str] = field(default_factory=set)

    def ask(self, house: str, message: dict[str, Any], server: str = "plain", token: str = "") -> tuple[int, int]:
        """Status and error code of a call."""
        one = self.houses[house]
        answer = one.ask(one.good(message, server, token or one.token(server)))
        return answer.status, answer.json().get("error", {}).get("code", 0)

    @contextlib.contextmanager
    def broken(self, at: Mapping[str, str], mend: Callable[[], object]) -> Iterator[list[Row]]:
        """Dependency -> the gateway that lacks it: what its row says is so, until `mend`, and is not so after it.

        Callers are the body's business, as is breaking it.
        """
        told = [(name, self.houses[house], house, TABLE[name]) for name, house in at.items()]
        try:
            yield [row for *_, row in told]
            for case in told:
                self._await_trouble(*case)
        finally:
            mend()
        for case in told:
            self._await_end(*case)

    def _await_trouble(self, name: str, one: House, house: str, row: Row) -> None:
        until(f"{name}: {row.metric}", lambda: house in self.prometheus.instances(row.metric))
        until(f"{name}: {row.alert}", lambda: (row.alert, house) in self.prometheus.firing())
        until(f"{name}: {row.readiness}", lambda: one.readiness()[0] == row.readiness)
        until(f"{name}: {row.standing}", lambda: row.standing[1] in standing(one, row.standing[0]))

    def _await_end(self, name: str, one: House, house: str, row: Row) -> None:
        until(f"{name}: log {row.events}", lambda: set(row.events) <= events(one))
        until(f"{name} is over: ready", lambda: one.readiness()[0] == 200)
        until(f"{name} is over: {row.metric}", lambda: self._is_over(house, row))
        until(f"{name} is over: {row.alert}", lambda: (row.alert, house) not in self.prometheus.firing())
        self.tried.add(name)

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


def events(house: House) -> set[str]:
    """The events of its log."""
    return {json.loads(line).get("event", "") for line in house.stack.log().splitlines() if line.startswith("{")}


@pytest.fixture(scope="module")
def watched(
    stage: Stage, opa_program: Path, prometheus_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    """Started together; the issuer of some tokens is not there yet."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("disk", "opa")}
    with contextlib.ExitStack() as open_:
        disk = open_.enter_context(file_system(tmp_path_factory.mktemp("tmpfs"), "4m"))
        postgres = Postgres()
        open_.callback(postgres.remove)
        postgres.start()
        otlp = Receiver()
        open_.callback(otlp.close)
        answers = [http(200)]

        async def hear(exchange: Exchange) -> None:
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
        stacks["disk"].environment = {
            "DATABASE": postgres.create(),
            "HOOK": f"whsec_{base64.b64encode(bytes(32)).decode()}",
        }
        stacks["opa"].environment = {"AUDIT": postgres.create()}
        furnish(
            stacks["disk"], settings_of(behind),
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
            stacks["opa"], settings_of(behind),
            policy={"engine": "opa", "url": opa.url},
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
        yield Watched(houses, stage, jwks, behind["gone"][0], answers, otlp, opa, postgres, disk, prometheus)


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


def test_each_broken_dependency_looks_as_the_table_says(watched: Watched) -> None:
    """OPS-06, UPS-08, AUD-07: callers, metric, log, readiness and alert of each row, while it is so and after it.

    Before that, while nothing but an issuer's keys is away: every panel of the dashboard has data.
    """
    run, disk = watched.stage.run, watched.houses["disk"]
    look_at_the_dashboard(watched)

    with watched.broken({"keys": "disk"}, lambda: run(watched.jwks.listen())) as (row,):
        until("it serves without them", lambda: serves(disk, "keys"))
        theirs = disk.second.mint(disk.stack.endpoint("plain"), sub="alice", scope="mcp:use files:read")
        assert watched.ask("disk", tool("read"), token=theirs) == (row.status, row.code)
    assert watched.ask("disk", tool("read"), token=theirs)[0] == 200

    def mend_all() -> None:
        watched.opa.start()
        run(restarted(watched.gone))
        watched.hook_answers[0] = http(410)  # the message is given up
        watched.otlp.status = 200

    watched.hook_answers[0] = http(503, extra="Retry-After: 1\r\n")
    watched.otlp.status = 400
    several = {"OPA": "opa", **dict.fromkeys(("replica", "webhook", "OTLP receiver"), "disk")}
    with watched.broken(several, mend_all) as (policy, replica, *quiet):
        assert watched.ask("opa", tool("read"))[0] == 200
        watched.opa.kill()
        assert watched.ask("opa", tool("read")) == (policy.status, policy.code)
        assert watched.ask("disk", tool("read"), "gone")[0] == 200
        run(watched.gone.wire.stop())
        assert watched.ask("disk", tool("read"), "gone") == (replica.status, replica.code)
        ticket = disk.held("plain", tool("write", number=1))
        for _ in range(60):
            assert watched.ask("disk", tool("read"))[0] == 200
        assert [row.status for row in quiet] == [0, 0]
    watched.hook_answers[0] = http(200)
    assert watched.ask("disk", tool("read"), "gone")[0] == 200
    assert watched.ask("opa", tool("read"))[0] == 200
    assert len(watched.otlp.records) > 120
    assert len(watched.otlp.spans) > 120

    assert disk.act("approve", ticket["id"]).status_code == 200
    both = {"PostgreSQL: approvals": "disk", "PostgreSQL: audit": "opa"}
    with watched.broken(both, watched.postgres.start) as (approvals, audit):
        assert watched.ask("opa", tool("read"))[0] == 200
        watched.postgres.stop()
        assert watched.ask("disk", tool("write", number=1)) == (approvals.status, approvals.code)
        assert watched.ask("disk", tool("read"))[0] == 200
        assert watched.ask("opa", tool("read")) == (audit.status, audit.code)
    assert watched.ask("disk", tool("write", number=1))[0] == 200
    assert watched.ask("opa", tool("read"))[0] == 200

    with watched.broken({"audit disk": "disk"}, (watched.disk / "filler").unlink) as (audit,):
        fill(watched.disk)
        until("no room is left", lambda: watched.ask("disk", tool("read")) == (audit.status, audit.code))
    assert watched.ask("disk", tool("read"))[0] == 200
    assert watched.tried == TABLE.keys()


def serves(house: House, *without: str) -> bool:
    """Whether the gateway is up, and lacks this and nothing else."""
    try:
        return standing(house, "missing") == [*without]
    except (httpx.TransportError, ValueError):
        return False


FIRST_WHEN_IT_HAPPENS = {"ostiary_defects_total", "ostiary_replica_ejections_total"}
"""What has no series before there is one to count."""


def look_at_the_dashboard(watched: Watched) -> None:
    """Each query parses, and has numbers of gateways at work; what rules and panels name is in /metrics."""
    for house in watched.houses.values():
        until("it is up", lambda house=house: serves(house) or serves(house, "keys"))  # type: ignore[misc]
        house.held("plain", tool("write", number=2))
    asked = [*(one.expr for one in alerts()), *(expr for _, expr in queries())]
    named = {name for expr in asked for name in metrics_of(expr)}

    def unseen() -> set[str]:
        told = "".join(house.metrics() for house in watched.houses.values())
        return named - set(re.findall(r"^# TYPE (\w+)", told, re.MULTILINE))

    until("every metric is exposed", lambda: unseen() <= FIRST_WHEN_IT_HAPPENS)

    def has_numbers(expr: str) -> bool:
        for house in watched.houses:
            assert watched.ask(house, tool("read"))[0] == 200
        return any(sample["value"][1] != "NaN" for sample in watched.prometheus.ask(expr))

    for title, expr in queries():
        until(f"{title}: {expr}", partial(has_numbers, expr))
