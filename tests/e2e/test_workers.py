"""One supervisor, N workers, as real processes: deaths, signals, faults at start, and what operators see of them.

design.md, "Workers"; requirements AUD-08, OPS-07, JWT-12 (start), the supervisor's part of APR-13 and OPS-01.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.serving import crew, employment, metrics_folder
from gateway.serving.configuration import Configuration
from gateway.serving.listener import CannotServe
from gateway.serving.metrics_folder import MetricsFolder
from gateway.serving.supervisor import Posts, Supervisor
from tests.support.issuer import JwksServer
from tests.support.ports import free_port
from tests.support.processes import descendants, eventually, figures_of, living
from tests.support.stack import ISSUER, Stack, body, call, headers_of
from tests.support.upstream import SSE_HEAD, Exchange, ScriptedUpstream, chunk, http, result_of

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "write")]
WRITE = call("write", {"n": 1})


@dataclass
class Files:
    """An MCP server whose calls wait while `open_` is clear; as a stream where the arguments say so."""

    executed: list[str] = field(default_factory=list)
    open_: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, exchange: Exchange) -> None:
        """One request."""
        asked = json.loads(exchange.seen.body)
        if asked["method"] != "tools/call":
            listed = result_of(asked["id"], tools=TOOLS, ttlMs=60_000, cacheScope="public")
            await exchange.send(http(200, listed))
            return
        arguments = asked["params"]["arguments"]
        self.executed.append(asked["params"]["name"])
        if arguments.get("stream"):
            note = {
                "jsonrpc": "2.0",
                "method": "com.example/notifications/note",
                "params": {"level": "info", "data": "begun"},
            }
            await exchange.send(SSE_HEAD + chunk(b"data: " + json.dumps(note).encode() + b"\n\n"))
        if arguments.get("wait") or asked["params"]["name"] == "write":
            await self.open_.wait()
        done = result_of(asked["id"], isError=False)
        await exchange.send(
            chunk(b"data: " + done + b"\n\n") + chunk(b"") if arguments.get("stream") else http(200, done)
        )


@pytest.fixture
def files() -> Files:
    """The server's behaviour and its memory."""
    return Files()


@pytest.fixture
async def replica(files: Files) -> AsyncIterator[str]:
    """The server's URL."""
    upstream = ScriptedUpstream(files.answer)
    await upstream.start()
    yield f"http://127.0.0.1:{upstream.port}/mcp"
    files.open_.set()
    await upstream.stop()


def a_stack(folder: Path, replica: str, workers: int = 1, **changes: Any) -> Stack:
    return Stack(folder, {"files": [replica]}, workers=workers, changes=changes)


async def readiness(stack: Stack) -> tuple[int, dict[str, Any]]:
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{stack.admin}/readyz")
    return answer.status_code, answer.json()


async def is_ready(stack: Stack) -> bool:
    try:
        return (await readiness(stack))[0] == 200
    except httpx.TransportError:
        return False


async def metrics(stack: Stack) -> dict[str, float]:
    """Series -> value, histograms' buckets left out."""
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"{stack.admin}/metrics")).text
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#") and "_bucket" not in line]
    return {series: float(value) for series, _, value in lines}


async def total(stack: Stack, name: str) -> float:
    return sum(value for series, value in (await metrics(stack)).items() if series.startswith(name))


async def ended(stack: Stack, deadline_s: float = 20.0) -> int:
    assert stack.process is not None
    return await asyncio.wait_for(stack.process.wait(), deadline_s)


def events(stack: Stack, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in stack.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


async def approve_write(stack: Stack) -> str:
    """Ask for the write and let Bob say yes -> the ticket's id."""
    held = await stack.post("files", WRITE)
    ticket = str(held.json()["error"]["data"]["ticket"]["id"])
    async with httpx.AsyncClient(trust_env=False) as client:
        url, bob = f"{stack.url}/approvals/{ticket}/approve", {"Authorization": f"Bearer {stack.person('bob')}"}
        given = await client.post(url, json={"comment": "fine"}, headers=bob)
    assert given.status_code // 100 == 2, given.text
    return ticket


async def runs_of(stack: Stack, ticket: str) -> list[str]:
    async with httpx.AsyncClient(trust_env=False) as client:
        bob = {"Authorization": f"Bearer {stack.person('bob')}"}
        shown = (await client.get(f"{stack.url}/approvals/{ticket}", headers=bob)).json()
    return [run["state"] for run in shown["runs"]]


async def test_a_killed_worker_is_replaced_and_what_it_left_open_is_unknown(
    tmp_path: Path, files: Files, replica: str
) -> None:
    """kill -9 of one worker: seen, logged, counted, replaced; its use and its decision end as `unknown`, its
    evaluators end with it, the other worker serves on, and no counter goes back."""
    async with a_stack(tmp_path, replica, workers=2) as stack:
        ticket = await approve_write(stack)
        calling = asyncio.create_task(stack.post("files", WRITE))
        await eventually("the write runs", lambda: files.executed == ["write"])
        records = {writer: stack.records(writer) for writer in (0, 1)}
        writer = next(
            w
            for w, lines in records.items()
            if any(r.get("ticket") == ticket and r["kind"] == "decision" for r in lines)
        )
        victim = next(record["facts"]["pid"] for record in records[writer] if record.get("act") == "started")
        evaluators = descendants(victim)
        assert len(evaluators) == 2
        counted = await total(stack, "ostiary_requests_total")

        os.kill(victim, signal.SIGHUP)  # the supervisor's to answer; else this is what it would die of
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await calling
        assert (await stack.post("files", call())).status_code == 200, "the other worker serves"
        await eventually("the evaluators ended", lambda: not living(evaluators), 5)
        await stack.until_ready()

        assert victim not in await stack.worker_pids()
        assert [event["code"] for event in events(stack, "worker_died")] == [-signal.SIGKILL]
        shown = await metrics(stack)
        assert shown["ostiary_worker_restarts_total"] == 1
        assert shown["ostiary_workers_ready"] == 2
        assert await total(stack, "ostiary_requests_total") >= counted + 1
        decision = next(r for r in records[writer] if r.get("ticket") == ticket and r["kind"] == "decision")
        await eventually("the decision has its end", lambda: "unknown" in outcomes(stack, writer, decision))
        assert await runs_of(stack, ticket) == ["unknown"]
        again = await stack.post("files", WRITE)
        assert (again.status_code, again.json()["error"]["code"]) == (403, 40304), again.text
        assert files.executed.count("write") == 1


def outcomes(stack: Stack, writer: int, decision: Mapping[str, Any]) -> list[str]:
    of_it = [r for r in stack.records(writer) if r.get("decision_id") == decision["decision_id"]]
    return [record["outcome"] for record in of_it if record["kind"] == "outcome"]


async def test_without_their_supervisor_workers_end_and_leave_nothing(
    tmp_path: Path, files: Files, replica: str
) -> None:
    """kill -9 of the supervisor: the call in flight is finished, then workers, evaluators and the metrics' folder
    are gone within seconds, and the port is free."""
    stack = await a_stack(tmp_path, replica, workers=2).start()
    assert stack.process is not None
    started = descendants(stack.process.pid)
    assert len(started) == 2 + 4
    folder = figures_of(next(iter(await stack.worker_pids())))
    assert folder is not None
    assert folder.is_dir()
    calling = asyncio.create_task(stack.post("files", call(arguments={"wait": True})))
    await eventually("the call runs", lambda: bool(files.executed))

    stack.process.kill()
    await ended(stack)
    await eventually("nobody accepts any more", lambda: not accepts(stack.port), 5)
    files.open_.set()
    assert (await calling).status_code == 200
    await eventually("every process ended", lambda: not living(started), 10)
    assert not folder.exists()
    kinds = [r["outcome"] for writer in (0, 1) for r in stack.records(writer) if r["kind"] == "outcome"]
    assert kinds == ["executed"]


def accepts(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_sigterm_finishes_what_runs_and_commits_everything(tmp_path: Path, files: Files, replica: str) -> None:
    """SIGTERM: not ready at once, nothing new accepted, calls and streams end well, exit 0 within the grace time,
    every decision has its end; a second and a third signal change nothing."""
    stack = await a_stack(tmp_path, replica, workers=2).start()
    assert stack.process is not None
    started = descendants(stack.process.pid)
    message = call(arguments={"stream": True, "wait": True})
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        plain = asyncio.create_task(stack.post("files", call(arguments={"wait": True})))
        headers = headers_of(message, stack.token("files"))
        async with client.stream("POST", stack.endpoint("files"), json=message, headers=headers) as stream:
            lines = stream.aiter_lines()
            assert "begun" in await anext(lines)
            await eventually("both calls run", lambda: len(files.executed) == 2)

            began = time.monotonic()
            stack.process.send_signal(signal.SIGTERM)
            status, answer = await readiness(stack)
            assert (status, answer["ready"], answer["draining"]) == (503, False, True)
            await eventually("nobody accepts any more", lambda: not accepts(stack.port), 5)
            stack.process.send_signal(signal.SIGTERM)
            stack.process.send_signal(signal.SIGINT)
            async with httpx.AsyncClient(trust_env=False) as operator:
                assert (await operator.get(f"{stack.admin}/livez")).status_code == 200
            files.open_.set()
            rest = [line async for line in lines]
    assert (await plain).status_code == 200
    assert '"result"' in "".join(rest)
    assert await ended(stack) == 0
    assert time.monotonic() - began < 25
    assert not living(started)
    for writer in (0, 1):
        records = stack.records(writer)
        decided = {r["decision_id"] for r in records if r["kind"] == "decision"}
        concluded = {r["decision_id"] for r in records if r["kind"] == "outcome" and r["outcome"] == "executed"}
        assert decided == concluded
        assert records[-1]["act"] == "stopped"


async def test_the_grace_time_is_a_bound(tmp_path: Path, files: Files, replica: str) -> None:
    """A call that does not end is cut off when the grace time is over, and recorded so; the exit code is still 0."""
    stack = await a_stack(tmp_path, replica, limits={"grace_s": 1}).start()
    calling = asyncio.create_task(stack.post("files", call(arguments={"wait": True})))
    await eventually("the call runs", lambda: bool(files.executed))
    began = time.monotonic()
    assert await stack.stop() == 0
    assert 0.9 < time.monotonic() - began < 10
    with contextlib.suppress(httpx.TransportError):
        assert (await calling).status_code >= 500
    ends = [r["outcome"] for r in stack.records() if r["kind"] == "outcome"]
    assert len(ends) == 1
    assert ends[0] in {"cancelled", "unknown"}


async def test_a_call_that_ends_while_its_worker_closes_is_timed(tmp_path: Path, files: Files, replica: str) -> None:
    """What is counted after the last look, of a call that was cut off, is carried over all the same."""
    stack = await a_stack(tmp_path, replica, limits={"grace_s": 1, "drain_s": 0}).start()
    assert (await stack.post("files", call())).status_code == 200
    calling = asyncio.create_task(stack.post("files", call(arguments={"wait": True})))
    await eventually("both calls ran", lambda: len(files.executed) == 2)
    _, before = await readiness(stack)
    os.kill(before["workers"][0]["pid"], signal.SIGTERM)
    await eventually("the worker left", lambda: bool(events(stack, "worker_left")))
    with contextlib.suppress(httpx.TransportError):
        await calling
    counted = await total(stack, 'ostiary_requests_total{method="tools/call"')
    assert counted == 2
    assert await total(stack, 'ostiary_request_seconds_count{server="files"') == counted
    assert await total(stack, 'ostiary_room_seconds_count{room="record"') == counted
    assert await stack.stop() == 0


FAULTS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, str], str]] = {
    # what is wrong: (changed sections, changed environment, what standard error must name)
    "unknown key": ({"limits": {"body_byte": 1}}, {}, r"limits\.body_byte"),
    "missing secret": ({}, {"OSTIARY_SEAL_KEYS": ""}, r"seals\.keys_env: .*OSTIARY_SEAL_KEYS"),
    "short secret": ({}, {"OSTIARY_AUDIT_KEY": "c2hvcnQ="}, r"OSTIARY_AUDIT_KEY"),
    "no bundle": ({"policy": {"path": "nowhere"}}, {}, r"policy\.path: .*nowhere"),
    "no key file": (
        {"identity": {"issuers": [{"issuer": ISSUER, "jwks_file": "none.json"}]}},
        {},
        r"identity\.issuers: .*jwks_file .*none\.json",
    ),
    "no folder for the record": ({"audit": {"file": "nowhere/audit.jsonl"}}, {}, r"audit\.file: .*nowhere"),
    "no folder for the tickets": (
        {"approvals": {"database": "sqlite:///nowhere/x.db"}}, {}, r"approvals\.database: .*nowhere"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_cannot_start_says_why_once_and_ends(tmp_path: Path, fault: str) -> None:
    """A gateway that can't serve exits with 2, names the setting on standard error once, and starts nobody again."""
    changes, environment, told = FAULTS[fault]
    stack = a_stack(tmp_path, "http://127.0.0.1:9/mcp", workers=2 if fault == "no bundle" else 1, **changes)
    stack.configure()
    stack.environment = environment
    await stack.spawn()
    assert await ended(stack) == 2
    lines = [line for line in stack.log().splitlines() if not line.startswith("{")]
    assert len(lines) == 1, stack.log()
    assert re.search(told, lines[0]), lines[0]
    assert len(events(stack, "worker_started")) <= 2
    assert not events(stack, "worker_died")


@pytest.mark.parametrize("taken", ["listen", "admin"])
async def test_a_taken_port_is_named(tmp_path: Path, taken: str) -> None:
    """Two gateways on one port: the second exits with 2 and says which setting names an address in use."""
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        first.listen()
        port = first.getsockname()[1]
        stack = a_stack(tmp_path, "http://127.0.0.1:9/mcp")
        if taken == "listen":
            stack.port = port
        else:
            stack.admin_port = port
        stack.configure()
        await stack.spawn()
        assert await ended(stack) == 2
    assert f"{taken}: 127.0.0.1:{port}: Address already in use" in stack.log()
    assert not events(stack, "worker_started")


async def test_a_replacement_that_cannot_start_takes_nobody_along(tmp_path: Path, replica: str) -> None:
    """A gateway that has served keeps what works at work while a fault lasts, says why, and heals by itself."""
    async with a_stack(tmp_path, replica, workers=2) as stack:
        rules = tmp_path / "bundle/mcp/authz/authz.rego"
        good = rules.read_text()
        rules.write_text("package mcp.authz\ndecision := {")
        victim = (await stack.worker_pids())[0]
        os.kill(victim, signal.SIGKILL)
        await eventually("the replacement said why", lambda: len(events(stack, "worker_died")) >= 2)
        died = events(stack, "worker_died")[1]
        assert died["code"] == crew.CANNOT_START
        assert died["why"].startswith("policy.path: ")
        assert (await readiness(stack))[0] == 200
        assert (await stack.post("files", call())).status_code == 200
        rules.write_text(good)
        await stack.until_ready()
        assert (await stack.post("files", call())).status_code == 200


async def test_a_worker_that_hangs_is_not_ready(tmp_path: Path, replica: str) -> None:
    """SIGSTOP: not ready within 5 s, its gauges gone; SIGCONT: ready again."""
    async with a_stack(tmp_path, replica) as stack:
        pid = (await stack.worker_pids())[0]
        os.kill(pid, signal.SIGSTOP)
        try:

            async def hangs() -> bool:
                return not await is_ready(stack)

            assert await eventually("it is not ready", hangs, 6) < 5.5
            assert (await readiness(stack))[1]["workers"][0]["missing"] == ["heartbeat"]
            assert "ostiary_audit_healthy" not in await metrics(stack)
        finally:
            os.kill(pid, signal.SIGCONT)
        await stack.until_ready()


async def test_it_is_up_without_keys_and_ready_when_they_come(tmp_path: Path, replica: str) -> None:
    """JWT-12: the issuer is down at the start: the process lives, is not ready, refuses with 503, and recovers."""
    jwks = JwksServer()
    await jwks.listen()
    await jwks.stop()  # its port stays known
    issuers = [{"issuer": ISSUER, "jwks_uri": f"{jwks.url}/jwks", "algorithms": ["ES256"]}]
    stack = a_stack(tmp_path, replica, identity={"issuers": issuers})
    stack.configure()
    await stack.spawn()
    try:

        async def lacks_keys() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return bool((await readiness(stack))[1]["workers"][0]["missing"] == ["keys"])
            return False

        await eventually("only keys are missing", lacks_keys)
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{stack.admin}/livez")).status_code == 200
        refused = await stack.post("files", call())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, 50301)
        assert 'ostiary_degraded{dependency="https://idp.example.com"}' in await metrics(stack)
        jwks.routes["/jwks"] = stack.issuer.jwks()
        await jwks.listen()
        await stack.until_ready()
        assert (await stack.post("files", call())).status_code == 200
    finally:
        assert await stack.stop() == 0
        await jwks.stop()


async def test_port_0_and_address_literals(tmp_path: Path, replica: str) -> None:
    """Port 0 lets the system choose, the log says what; an IPv6 literal is an address like any other."""
    stack = a_stack(tmp_path, replica, listen={"host": "::1", "port": 0}, admin={"host": "127.0.0.1", "port": 0})
    stack.configure()
    await stack.spawn()
    try:
        await eventually("it listens", lambda: bool(events(stack, "listening")))
        told = events(stack, "listening")[0]
        assert told["port"] not in (0, told["admin_port"])
        async with httpx.AsyncClient(trust_env=False) as client:

            async def is_up() -> bool:
                return (await client.get(f"http://127.0.0.1:{told['admin_port']}/readyz")).status_code == 200

            await eventually("it is ready", is_up)
            url = f"http://[::1]:{told['port']}/.well-known/oauth-protected-resource/files/mcp"
            assert (await client.get(url)).status_code == 200
    finally:
        assert await stack.stop() == 0


FLOOD = 600
ACCEPT = "application/json, text/event-stream"
MADE_UP: tuple[tuple[str, dict[str, str]], ...] = (
    ("prompts/get", {"name": ""}),
    ("resources/read", {"uri": "note://"}),
    ("tasks/get", {"taskId": ""}),
    ("tasks/cancel", {"taskId": ""}),
    ("acme/report", {}),
)


@pytest.mark.parametrize("size", [FLOOD, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_made_up_names_add_no_series(tmp_path: Path, replica: str, size: int) -> None:
    """AUD-08: random methods, tool names, key ids and paths make at most 50 new time series."""
    stack = a_stack(tmp_path, replica)
    stack.settings = {"legacy_clients": True, "quirks": ["session_without_version"], "methods": ["acme/report"]}
    async with stack:
        assert (await stack.post("files", call())).status_code == 200
        before = await metrics(stack)
        token = stack.token("files")
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            for n in range(-(-size // 12)):
                await stack.post("files", body(f"made/up{n}", request_id=n), token, client)
                await stack.post("files", call(f"tool_{n}"), token, client)
                for method, params in MADE_UP:
                    named = {name: f"{value}tool_{n}" for name, value in params.items()}
                    await stack.post("files", body(method, named, n), token, client)
                listened = {"notifications": {"taskIds": [f"tool_{n}"]}}
                await stack.post("files", body("subscriptions/listen", listened, n), token, client)
                for lines in ({"MCP-Protocol-Version": f"tool_{n}"}, {"Mcp-Session-Id": f"tool_{n}"}):
                    begins = {
                        "protocolVersion": f"tool_{n}",
                        "capabilities": {},
                        "clientInfo": {"name": f"tool_{n}", "version": "1"},
                    }
                    message = {"jsonrpc": "2.0", "id": n, "method": "initialize", "params": begins}
                    plain = {"Authorization": f"Bearer {token}", "Accept": ACCEPT, **lines}
                    await client.post(stack.endpoint("files"), json=message, headers=plain)
                strange = stack.issuer.mint(stack.endpoint("files"), header={"kid": f"kid-{n}"})
                await stack.post("files", call(), strange, client)
                await client.post(f"{stack.url}/path/{n}", headers=headers_of(call(), token), json=call())
        after = await metrics(stack)
        new = set(after) - set(before)
        assert await total(stack, "ostiary_requests_total") >= size, "they were counted"
        assert len(new) <= 50, sorted(new)
        assert not any("made/up" in series or "tool_" in series or "kid-" in series for series in after)


def trivial(program: str, workers: int = 1) -> Supervisor:
    """A real supervisor over workers that run `program`."""
    command = (sys.executable, "-c", program)
    settings = Configuration(b"", grace_s=1, drain_s=0)
    return Supervisor(Posts("127.0.0.1", 0, "127.0.0.1", free_port(), workers, command, settings, Path("none"), ()))


async def test_a_worker_that_always_dies_is_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that has never served gives up after some deaths instead of looping."""
    monkeypatch.setattr(crew, "BACKOFF_S", (0.0,))
    house = trivial("raise SystemExit(70)")
    with pytest.raises(CannotServe, match="ended 5 times before it was ready"):
        await asyncio.wait_for(house.run(), 30)
    assert house.roster.restarts == crew.TRIES - 1


SAYS_READY = """
import os, sys, time
fd = int(sys.argv[sys.argv.index("--status-fd") + 1])
os.write(fd, b'{"ready":true,"missing":[],"degraded":[],"revision":"","gauges":{},"loaded":{}}\\n')
"""


async def test_a_worker_that_hangs_for_long_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that spoke once and then stays silent is ended and replaced; stopping takes no longer than it must."""
    monkeypatch.setattr(employment, "SILENCE_S", 1)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    house = trivial(deaf + SAYS_READY + "time.sleep(60)")
    monkeypatch.setattr(employment, "CLOSING_S", 0.0)
    running = asyncio.create_task(house.run())
    await eventually("it was replaced", lambda: house.roster.restarts >= 1)
    monkeypatch.setattr(employment, "SILENCE_S", 60)
    await eventually("the next one is there", lambda: house.roster.ready)
    os.kill(os.getpid(), signal.SIGTERM)  # the supervisor runs in this very process
    assert await asyncio.wait_for(running, 20) == 1, "one that had to be killed is no orderly end"


async def test_a_worker_that_speaks_nonsense_is_not_believed() -> None:
    """A line that is no status makes nobody ready and breaks nothing."""
    house = trivial(SAYS_READY.replace('{"ready"', '{"steady"') + "time.sleep(60)")
    running = asyncio.create_task(house.run())
    await eventually("it was started", lambda: bool(house.roster.workers))
    worker = house.roster.workers[0]
    await eventually("its nonsense was read", lambda: worker.unintelligible)
    assert not house.roster.ready
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, 20) == 0


def test_metrics_are_counted_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters' folder is in memory where there is such a place, else a temporary one, and private; the next
    supervisor removes what a killed one left behind, and nothing of one that lives."""
    monkeypatch.setattr(metrics_folder, "MEMORY", tmp_path)
    first = MetricsFolder()
    assert first.path.parent == tmp_path
    assert first.path.stat().st_mode & 0o777 == 0o700
    left = tmp_path / "ostiary-metrics-left"
    left.mkdir()
    (left / "lock").touch()
    unknown = tmp_path / "ostiary-metrics-unknown"  # without a lock: perhaps not ours
    unknown.mkdir()
    second = MetricsFolder()
    assert set(tmp_path.iterdir()) == {first.path, second.path, unknown}
    first.remove()
    assert set(tmp_path.iterdir()) == {second.path, unknown}
    second.remove()
    monkeypatch.setattr(metrics_folder, "MEMORY", tmp_path / "nowhere")
    other = MetricsFolder()
    assert other.path.is_dir()
    other.remove()
