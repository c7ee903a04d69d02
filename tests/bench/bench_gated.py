"""A call that a person approved, in SQLite and in PostgreSQL, and one under a grant; 32 connections, one worker.

    python -m tests.bench.bench_gated [--rounds N] [--seconds S] [--spy FILE]

One gateway a database, three tools: one is allowed, one needs an approval, one is covered by grants. Each gated call
consumes a use of its own, durably. A ticket and a grant run one call at a time, so that there are more of
them than connections: 192 tickets of one caller, and as many callers with a grant each. PostgreSQL has the load's
core. `--spy` looks at the calls whose use is consumed in SQLite.

wrk hangs up on its last calls. What was sent of them is of unknown outcome, and such a ticket is held until a person
has looked into it: so does bob, after each measurement.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.bench.load import Sample, ask, family, sample, script
from tests.bench.stand import Gateway, Stand
from tests.bench.table import Options, Row, number, part
from tests.support.postgres import Postgres
from tests.support.stack import DATA, body, headers_of

TICKETS = 192
USES = 1000
ENDS = ("executed", "failed", "unknown", "restore")
"""Of a use, as its records name them."""

READ: dict[str, Any] = {"effect": "read", "scopes": ["files:read"]}
HOLD = {"needed": True, "approvers": ["user:https://bench.issuer.test|bob"], "uses": USES, "ttl_s": 3600}
GRANT = {"schema": {"properties": {"limit": {"maximum": 20}}}, "uses": USES, "ttl_s": 3600}
TOOLS = {
    "search_0": READ,
    "search_1": {**READ, "approval": HOLD},
    "search_2": {**READ, "approval": {**HOLD, "grant": GRANT}},
}
KINDS = dict(zip(("allowed", "approved", "granted"), TOOLS, strict=True))
VARY = {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}}
PEOPLE = "approvals:read approvals:request approvals:decide"


def measure(options: Options) -> list[Row]:
    """All kinds of calls in both databases, round by round."""
    rows = []
    for database, aim in (("SQLite", "≥ 400"), ("PostgreSQL", "≥ 300")):
        with Stand() as stand, _place(database, stand.load_core) as url:
            gateway = _gateway(stand, url)
            calls = {kind: _script(stand.folder, kind, gateway) for kind in KINDS}
            seen: dict[str, list[Sample]] = {kind: [] for kind in KINDS}
            for nth in range(options.rounds + 1):
                for kind in KINDS:
                    last = (database, kind, nth) == ("SQLite", "approved", options.rounds)
                    spy = options.spy if last else None
                    found = sample(gateway, calls[kind], 32, options.seconds if nth else 1, spy=spy)
                    seen[kind] += [found] if nth else []
                    if kind != "allowed":
                        _look_into(gateway)
        rows += _rows(database, aim, seen)
    return rows


@contextlib.contextmanager
def _place(database: str, core: int) -> Iterator[str]:
    """The URL of an empty database."""
    if database == "SQLite":
        yield "sqlite:///ostiary.db"
        return
    server = Postgres()
    try:
        server.start()
        for pid in family(server.pid):
            os.sched_setaffinity(pid, {core})
        yield server.create()
    finally:
        server.remove()


def _gateway(stand: Stand, url: str) -> Gateway:
    gateway = stand.gateway(
        [stand.upstream("--tools", str(len(TOOLS)))],
        data={**DATA, "tools": TOOLS},
        approvals={"database": url},
        limits={"tickets_per_hour": 100_000},
    )
    for kind in ("approved", "granted"):
        _approve(gateway, kind)
    return gateway


def _script(folder: Path, kind: str, gateway: Gateway) -> Path:
    """Calls that go round what was approved: no ticket, and no caller's grant, is asked twice at a time."""
    message = body("tools/call", {"name": KINDS[kind], "arguments": _arguments("NUMBER")})
    headers, text = headers_of(message), json.dumps(message)
    callers = [gateway.token(sub=f"caller-{n}") for n in range(TICKETS if kind == "granted" else 1)]
    first = text.replace("NUMBER", "0")
    status, answer = ask(gateway.url, first, {**headers, "Authorization": f"Bearer {callers[0]}"})
    assert status == 200, answer
    if kind == "approved":
        text = text.replace("NUMBER", f"]==] .. number % {TICKETS} .. [==[")
    return script(folder, kind, text, headers, token=callers)


def _arguments(which: object) -> dict[str, Any]:
    return {"query": f"report {which}", "limit": 20}


def _approve(gateway: Gateway, kind: str) -> None:
    """Have bob approve all that will be called."""
    place = _place_of(gateway)
    wanted = {"server": "bench", "method": "tools/call", "name": KINDS[kind], "justification": "bench"}

    def one(which: int) -> None:
        caller = _person(gateway, f"caller-{which if kind == 'granted' else 0}")
        what = {"vary": VARY} if kind == "granted" else {"arguments": _arguments(which)}
        opened = http.post(place, json={**wanted, **what}, headers=caller).raise_for_status().json()
        said = {"comment": "bench", "seen": opened["digest"]}
        http.post(f"{place}/{opened['id']}/approve", json=said, headers=bob).raise_for_status()

    bob = _person(gateway, "bob")
    with httpx.Client(trust_env=False, timeout=30) as http, ThreadPoolExecutor(4) as several:
        list(several.map(one, range(TICKETS)))


def _look_into(gateway: Gateway) -> None:
    """Wait until every use has ended, and have bob resolve those of unknown outcome: their tickets run again."""
    deadline = time.monotonic() + 20
    while True:
        records = [json.loads(line) for line in gateway.file("audit.jsonl").read_bytes().splitlines()]
        moved = [record for record in records if record["kind"] == "approval"]
        ended = {record["use"] for record in moved if record["transition"] in ENDS}
        if all(record["use"] in ended for record in moved if record["transition"] == "claim"):
            break
        assert time.monotonic() < deadline, "uses that do not end"
        time.sleep(0.05)
    bob, verbs = _person(gateway, "bob"), ("unknown", "resolve")
    last = {record["ticket"]: record["transition"] for record in moved if record["transition"] in verbs}
    with httpx.Client(trust_env=False, timeout=30, headers=bob) as http:
        for ticket in (ticket for ticket, verb in last.items() if verb == "unknown"):
            said = {"comment": "wrk hung up on it"}
            http.post(f"{_place_of(gateway)}/{ticket}/resolve", json=said).raise_for_status()


def _place_of(gateway: Gateway) -> str:
    return f"http://127.0.0.1:{gateway.port}/approvals"


def _person(gateway: Gateway, subject: str) -> dict[str, str]:
    token = gateway.issuer.mint(_place_of(gateway), sub=subject, scope=PEOPLE)
    return {"Authorization": f"Bearer {token}"}


def _rows(database: str, aim: str, seen: dict[str, list[Sample]]) -> list[Row]:
    allowed = statistics.median(one.rps for one in seen["allowed"])
    told = {"approved": "a use of its ticket consumed", "granted": "a use of its caller's grant consumed"}
    rows = []
    for kind, what in told.items():
        rps = tuple(one.rps for one in seen[kind])
        beside = f"allowed: {number(allowed)}, {number(allowed / statistics.median(rps))} times as many"
        cpu, latency = (tuple(getattr(one, member) for one in seen[kind]) for member in ("cpu_us", "p99_ms"))
        key = f"gated.{database.lower()}.{kind}"
        wanted = aim if kind == "approved" else ""
        rows += [
            Row(f"{key}.rps", f"gated call, {what} in {database}", rps, "requests/s", wanted, beside),
            Row(f"{key}.cpu", "… CPU", cpu, "µs/request"),
            Row(f"{key}.p99", "… p99", latency, "ms"),
        ]  # fmt: skip
    return rows


if __name__ == "__main__":
    raise SystemExit(part(measure, __doc__, "wrk"))
