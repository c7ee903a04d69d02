"""docs/operations.md, "At a glance", at gateways that run: each dependency in every way of being broken."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rows.asking import tool
from tests.rows.stage import House, Stage
from tests.signals.watching import SOAKED, TABLE, Watched, serves, until, watch
from tests.support.disk import fill
from tests.support.impostor import Impostor, says
from tests.support.issuer import JwksServer
from tests.support.opa import Opa
from tests.support.otlp import Receiver
from tests.support.postgres import Postgres
from tests.support.upstream import Exchange, Script, http


@pytest.fixture(scope="module")
def watched(
    stage: Stage, opa_program: Path, prometheus_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    """On disks that break in every way."""
    yield from watch(stage, opa_program, prometheus_program, tmp_path_factory, breakable=True)


@dataclass(frozen=True)
class Way:
    """How one dependency of a gateway breaks, is mended, and who notices. `served`: the answer of better days."""

    house: str
    harm: Callable[[], object]
    mend: Callable[[], object]
    ask: Callable[[], tuple[int, int]]
    served: tuple[int, int] = (200, 0)


async def hang(exchange: Exchange) -> None:
    """Takes the request and says nothing."""
    del exchange
    await asyncio.sleep(3600)


def ways(watched: Watched) -> dict[tuple[str, str], Way]:
    """Those of the table that test_dependencies.py does not try; those of keys are about the start."""
    gone, disk = watched.gone, watched.breakable["disk"]
    numbers = itertools.count(10)

    def read(house: str, server: str = "plain") -> Callable[[], tuple[int, int]]:
        return lambda: watched.ask(house, tool("read"), server)

    def play(script: Script | None) -> Callable[[], None]:
        return lambda: setattr(gone, "script", script)

    def hook(answer: bytes | None) -> Callable[[], None]:
        def do() -> None:
            watched.hook_answers[0] = answer
            if answer != http(410):
                watched.houses["disk"].held("plain", tool("write", number=next(numbers)))

        return do

    def gated(house: str = "disk") -> tuple[int, int]:
        return watched.ask(house, tool("write", number=next(numbers)))

    hung = watched.postgres.pause, watched.postgres.resume
    behind, again = read("disk", "gone"), play(None)
    return {
        ("replica, slow", "hung"): Way("disk", play(hang), again, behind),
        ("replica, wrong", "answers 500"): Way("disk", play(plays(http(500))), again, behind),
        ("replica, wrong", "answers no JSON"): Way("disk", play(plays(http(200, b"{"))), again, behind),
        ("webhook", "hung"): Way("disk", hook(None), hook(http(410)), read("disk")),
        ("OTLP receiver", "hung"): Way("disk", *hanging(watched.otlp), read("disk")),
        ("OPA", "hung"): Way("opa", watched.opa.pause, watched.opa.resume, read("opa")),
        ("OPA", "answers 500"): Way("opa", *replaced_by_500(watched), read("opa")),
        ("OPA", "without its bundle"): Way("opa", *without_bundle(watched.opa), read("opa")),
        ("PostgreSQL: approvals", "hung"): Way("disk", *hung, gated, (403, 40303)),
        ("PostgreSQL: approvals", "read-only"): Way("disk", *read_only(watched.postgres), gated, (403, 40303)),
        ("PostgreSQL: approvals", "full"): Way("disk", *full(watched.room), gated, (403, 40303)),
        ("SQLite: approvals", "full"): Way("opa", *full(watched.file_room), lambda: gated("opa"), (403, 40303)),
        ("SQLite: approvals", "read-only"): Way("opa", *broken(watched, "opa"), lambda: gated("opa"), (403, 40303)),
        ("PostgreSQL: audit", "full"): Way("opa", *full(watched.room), read("opa")),
        ("audit disk", "hung"): Way("disk", disk.freeze, disk.thaw, read("disk")),
        ("audit disk", "read-only"): Way("disk", *broken(watched, "disk"), read("disk")),
        ("PostgreSQL: audit", "hung"): Way("opa", *hung, read("opa")),
        ("PostgreSQL: audit", "read-only"): Way("opa", *read_only(watched.postgres), read("opa")),
    }


def hanging(receiver: Receiver) -> tuple[Callable[[], None], Callable[[], None]]:
    """It takes what comes and says nothing; as before."""
    stuck = threading.Event()

    def mend() -> None:
        receiver.hang = None
        stuck.set()

    return lambda: setattr(receiver, "hang", stuck), mend


def replaced_by_500(watched: Watched) -> tuple[Callable[[], None], Callable[[], object]]:
    """Another program at OPA's place; OPA again."""
    opa, run = watched.opa, watched.stage.run
    impostor = Impostor(says(b"{}", "500 Internal Server Error"), at=opa.port)

    def harm() -> None:
        opa.kill()
        run(impostor.__aenter__())

    def mend() -> None:
        run(impostor.__aexit__())
        opa.start()

    return harm, mend


def without_bundle(opa: Opa) -> tuple[Callable[[], None], Callable[[], None]]:
    """It is asked for what it does not have; as before."""
    bundle = opa.bundle

    def turn(to: Path | None) -> None:
        opa.kill()
        opa.bundle = to
        opa.start()

    return lambda: turn(None), lambda: turn(bundle)


def read_only(server: Postgres) -> tuple[Callable[[], None], Callable[[], None]]:
    """It answers, and takes nothing; as before."""

    def turn(*, on: bool) -> None:
        server.sql(f"ALTER SYSTEM {'SET' if on else 'RESET'} default_transaction_read_only{' = on' if on else ''}")
        server.sql("SELECT pg_reload_conf()")

    return lambda: turn(on=True), lambda: turn(on=False)


def full(disk: Path) -> tuple[Callable[[], object], Callable[[], None]]:
    """Nothing more finds room there; as before."""
    return lambda: fill(disk), (disk / "filler").unlink


def broken(watched: Watched, house: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """The kernel makes its disk read-only, for as long as anybody has a file open there: the gateway is stopped."""
    disk, stack, run = watched.breakable[house], watched.houses[house].stack, watched.stage.run

    def mend() -> None:
        run(stack.stop())
        disk.mount_anew()
        run(stack.launch())

    return disk.abort, mend


def plays(answer: bytes) -> Script:
    """Always the same."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(answer)

    return script


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_way_of_being_broken_looks_as_the_table_says(watched: Watched) -> None:
    """OPS-06, UPS-08: each row in its further ways, one after the other; and after each all is as before."""
    run, disk, jwks = watched.stage.run, watched.houses["disk"], watched.jwks
    good = jwks.routes["/jwks"]

    async def silent(writer: asyncio.StreamWriter) -> None:
        del writer
        await asyncio.sleep(3600)

    def keys_are_back() -> None:
        jwks.routes["/jwks"] = good
        run(restarted_keys(jwks))

    with watched.broken({"keys": "disk"}, keys_are_back) as (row,):
        until("it serves without them", lambda: serves(disk, "keys"))
        theirs = disk.second.mint(disk.stack.endpoint("plain"), sub="alice", scope="mcp:use files:read")
        run(jwks.listen())
        for way in ("hung", "no JSON"):
            jwks.routes["/jwks"] = silent if way == "hung" else b"<html>"
            before = told_of_keys(disk)
            until(f"keys {way}: told", lambda: told_of_keys(disk) > before + 1)  # noqa: B023 - now
            assert watched.ask("disk", tool("read"), token=theirs) == (row.status, row.code)
            watched._await_trouble("keys", disk, "disk", row, bool)
            watched.tried.add(("keys", way))
    for (name, way), one in ways(watched).items():
        until(f"{name} {way}: well before", lambda: one.ask() == one.served)  # noqa: B023 - now
        with watched.broken({name: one.house}, one.mend, way, one.ask) as (row,):
            one.harm()
            seen = (row.status, row.code) if row.status else one.served
            until(f"{name} {way}: callers get {seen}", lambda: one.ask() == seen)  # noqa: B023 - now
        if name == "webhook":
            watched.hook_answers[0] = http(200)
        until(f"{name} {way}: well again", lambda: one.ask() == one.served)  # noqa: B023 - now
    first = {(name, row.ways[0]) for name, row in TABLE.items() if name not in SOAKED} - {("keys", "away")}
    assert watched.tried == {(name, way) for name, row in TABLE.items() for way in row.ways} - first


def told_of_keys(house: House) -> int:
    """How often the log said that keys can't be had."""
    return house.stack.log().count('"keys_not_refreshed"')


async def restarted_keys(jwks: JwksServer) -> None:
    """With nobody hanging in it."""
    await jwks.stop()
    await jwks.listen()
