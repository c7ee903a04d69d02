"""Replicas that fail and fill up behind a whole gateway: what each received, what callers got, what operators see.

(rows UPS-08, OPS-04, OPS-06; issue 6, "Operation".) The counts are exact: a request more would be a second execution.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.contract.refusals import Refusal
from tests.rows.asking import Ask, tool
from tests.rows.conftest import DATA, READS, furnish, opened, provoked, served, settings_of
from tests.rows.proof import passes
from tests.rows.stage import PATIENCE_S, House, Server, Stage, listed, listing
from tests.rows.test_approvals import told
from tests.rows.test_pins import accept
from tests.support.http_raw import Answer, RawClient
from tests.support.stack import Stack
from tests.support.upstream import Exchange, Script, http

AGAIN = {"annotations": {"idempotentHint": True}}
TOOLS = listed(read=AGAIN, fetch=AGAIN, narrow={}, write=AGAIN)
HERE = {**DATA, "tools": {**DATA["tools"], "fetch": READS}}
PLACES, QUEUE, QUEUE_S, TAKES_S = 4, 4, 0.5, 0.05
EJECTED_S = 0.5
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def faltering(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two replicas each: `pair` is never put out of service, `ill` soon is, `small` has few places."""
    behind = {name: [Server(TOOLS), Server(TOOLS)] for name in ("pair", "ill", "small")} | {"calm": [Server(TOOLS)]}
    with opened(stage, (one for replicas in behind.values() for one in replicas)):
        stack = Stack(tmp_path_factory.mktemp("faltering"), {}, data=HERE)
        servers = settings_of(
            behind,
            pair={
                "pins": "enforce",
                "health": {"faults": 0},
                "retries": {"idempotent_tools": ["read", "write", "narrow"]},
            },
            ill={"health": {"ejected_s": EJECTED_S, "slow_start_s": 0}},
            small={"load": {"concurrent": PLACES, "queue": QUEUE, "queue_s": QUEUE_S}},
        )
        furnish(stack, servers)
        house = House(stage, stack, behind)
        with served(stage, stack), house.http:
            accept(house)
            yield house


async def closes(exchange: Exchange) -> None:
    """Takes the request and ends the connection."""
    exchange.writer.close()


async def fails(exchange: Exchange) -> None:
    """Takes the request and says that it can't."""
    await exchange.send(http(503, b"<html>", kind="text/html"))


def until_it(house: House, ill: Server, ask: Ask) -> list[Answer]:
    """The same, until it was this replica's turn once."""
    before, answers = len(ill.forwarded), [house.ask(ask)]
    while len(ill.forwarded) == before:
        assert len(answers) < 10
        answers.append(house.ask(ask))
    return answers


def outcomes(house: House, answers: list[Answer]) -> list[dict[str, Any]]:
    return [house.await_records(one.values("ostiary-decision")[0], "decision", "outcome")[1] for one in answers]


def message_of(method: str, **params: Any) -> dict[str, Any]:
    return {**listing(), "method": method, "params": {**listing()["params"], **params}}


SAFE: dict[str, dict[str, Any]] = {
    "tools/list": listing(),
    "prompts/list": message_of("prompts/list"),
    "server/discover": message_of("server/discover"),
    "resources/read": message_of("resources/read", uri="demo://open"),
    "prompts/get": message_of("prompts/get", name="greet"),
    "a tool that both call idempotent": tool("read", path="a"),
}
ONCE: dict[str, dict[str, Any]] = {
    "the configuration alone": tool("narrow", path="a"),
    "the definition alone": tool("fetch", path="a"),
}


@pytest.mark.parametrize("script", [closes, fails])
@pytest.mark.parametrize("name", SAFE)
def test_what_changes_nothing_is_asked_for_once_more(faltering: House, name: str, script: Script) -> None:
    """UPS-08: nobody notices a replica that breaks; it got one request, and the record says which was sent again."""
    ill, well = faltering.behind["pair"]
    ask = faltering.good(SAFE[name], "pair")
    passes(faltering, ask)
    before = len(ill.forwarded), len(well.forwarded)
    with ill.playing(script):
        answers = until_it(faltering, ill, ask)
    assert {one.status for one in answers} == {200}
    assert (len(ill.forwarded) - before[0], len(well.forwarded) - before[1]) == (1, len(answers))
    records = outcomes(faltering, answers)
    assert [record.get("retries", 0) for record in records] == [0] * (len(answers) - 1) + [1]
    assert {(record["outcome"], record["replica"]) for record in records} == {("executed", well.url)}


@pytest.mark.parametrize("script", [closes, fails])
@pytest.mark.parametrize("name", ONCE)
def test_a_tool_that_only_one_of_both_calls_idempotent_is_called_once(
    faltering: House, name: str, script: Script
) -> None:
    """UPS-08: a call that may have run is its caller's to repeat: 502, outcome `unknown`, one request."""
    ill, well = faltering.behind["pair"]
    ask = faltering.good(
        ONCE[name], "pair", faltering.token("pair", scope="mcp:use files:read files:rare files:write")
    )
    passes(faltering, ask)
    before = len(ill.forwarded), len(well.forwarded)
    with ill.playing(script):
        *others, last = until_it(faltering, ill, ask)
    assert ({one.status for one in others} <= {200}, told(last)[0]) == (True, 502)
    assert (len(ill.forwarded) - before[0], len(well.forwarded) - before[1]) == (1, len(others))
    *executed, unknown = outcomes(faltering, [*others, last])
    assert all(record["outcome"] == "executed" for record in executed)
    assert (unknown["outcome"], unknown["replica"], unknown.get("retries")) == ("unknown", ill.url, None)


def test_an_approved_call_is_sent_once_whatever_its_tool_is(faltering: House) -> None:
    """UPS-08: idempotent by its accepted definition and the configuration, and yet a use is of one execution."""
    message = tool("write", number=next(_numbers))
    ticket = faltering.approved("pair", message)
    replicas = faltering.behind["pair"]
    before = len(faltering.forwarded("pair"))
    with replicas[0].playing(closes), replicas[1].playing(closes):
        answer = faltering.call("pair", message)
    assert told(answer) == (502, 50201)
    assert len(faltering.forwarded("pair")) == before + 1
    assert told(faltering.call("pair", message)) == (403, 40304)
    assert len(faltering.forwarded("pair")) == before + 1
    assert [run["state"] for run in faltering.api("GET", f"/{ticket}").json()["runs"]] == ["unknown"]


def log_of(house: House, event: str) -> list[dict[str, Any]]:
    lines = (house.stack.folder / "gateway.log").read_bytes().splitlines()
    return [
        found for line in lines if f'"{event}"'.encode() in line and (found := json.loads(line))["event"] == event
    ]


def await_said(house: House, line: str) -> None:
    """Until `/metrics` has it; workers speak once a second."""
    end = time.monotonic() + PATIENCE_S
    while line not in house.metrics().splitlines():
        assert time.monotonic() < end, line
        time.sleep(0.1)


def test_a_replica_that_fails_is_out_and_comes_back_and_operators_see_both(faltering: House) -> None:
    """OPS-06: five calls are lost and not one more; the log and the metrics name it; it is back when well."""
    ill, well = faltering.behind["ill"]
    ask, authority = faltering.good(tool("fetch", path="a"), "ill"), f"127.0.0.1:{ill.wire.port}"
    passes(faltering, ask)
    named = 'server="ill"'
    labels = f'replica="{authority}",server="ill"'
    before, ejections = len(ill.forwarded), len(log_of(faltering, "replica_ejected"))
    with ill.playing(fails):
        answers = [faltering.ask(ask) for _ in range(16)]
        assert Counter(one.status for one in answers) == {200: 11, 502: 5}
        assert len(ill.forwarded) == before + 5
        await_said(faltering, f"ostiary_replica_out{{{labels}}} 1.0")
        await_said(faltering, f"ostiary_replicas_ejected{{{named}}} 1.0")
        assert f'ostiary_replica_requests_total{{replica="{authority}",result="status_5xx",server="ill"}} 5.0' in (
            faltering.metrics()
        )
        end = time.monotonic() + PATIENCE_S
        while len(ill.forwarded) < before + 6:  # one call finds out that it is not well yet
            assert told(faltering.ask(ask))[0] in {200, 502}
            assert time.monotonic() < end
        assert len(ill.forwarded) == before + 6
    (said,) = log_of(faltering, "replica_ejected")[ejections:]
    assert (said["server"], said["replica"], said["why"], said["faults"]) == ("ill", authority, "faults", 5)
    recovered = time.monotonic()
    while len(ill.forwarded) < before + 10:
        passes(faltering, ask)
        assert time.monotonic() < recovered + 5, "and no call was lost on the way"
    (back,) = log_of(faltering, "replica_returned")[-1:]
    assert (back["server"], back["replica"]) == ("ill", authority)
    await_said(faltering, f"ostiary_replica_out{{{labels}}} 0.0")
    assert len(well.forwarded) > 11


def memory(house: House) -> float:
    """Bytes that the workers hold."""
    lines = house.metrics().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("ostiary_worker_memory_bytes{"))


@pytest.mark.parametrize("seconds", [2.0, pytest.param(60.0, marks=pytest.mark.soak)])
def test_three_times_what_a_server_can_take(faltering: House, seconds: float) -> None:
    """OPS-04: early 503 with Retry-After and no call to a replica beyond its places; another server, `/livez` and
    `/readyz` answer meanwhile; within 10 s it is as before. What was refused was not sent."""
    small = faltering.behind["small"]
    running = {one.wire.port: 0 for one in small}
    most = Counter[int]()

    def working(one: Server) -> Script:
        async def script(exchange: Exchange) -> None:
            port = one.wire.port
            running[port] += 1
            most[port] = max(most[port], running[port])
            await asyncio.sleep(TAKES_S)
            running[port] -= 1
            await exchange.send(http(200, one.result(exchange)))

        return script

    passes(faltering, faltering.good(tool("fetch", path="a"), "small"))
    before, evaluations = len(faltering.forwarded("small")), faltering.evaluations()
    held = memory(faltering)
    ask = faltering.good(tool("fetch", path="a"), "small").encode()
    until = time.monotonic() + seconds
    found: list[tuple[int, int, float]] = []

    def caller() -> None:
        with RawClient(faltering.address, 60) as client:
            while time.monotonic() < until:
                began = time.monotonic()
                answer = client.ask(ask)
                found.append((*told(answer), time.monotonic() - began))
                if answer.status == 503:
                    assert answer.values("retry-after") == ["1"]
                    time.sleep(0.02)

    with small[0].playing(working(small[0])), small[1].playing(working(small[1])):
        callers = [threading.Thread(target=caller) for _ in range(3 * (2 * PLACES + QUEUE))]
        for one in callers:
            one.start()
        looks = 0
        while any(one.is_alive() for one in callers):
            assert faltering.http.get(f"{faltering.stack.admin}/livez").status_code == 200
            assert faltering.readiness()[0] == 200
            assert faltering.ask(faltering.good(tool("fetch", path="a"), "calm")).status == 200
            looks += 1
        for one in callers:
            one.join()
        statuses = Counter((status, code) for status, code, _ in found)
        assert set(statuses) == {(200, 0), (503, 50305)}, statuses
        assert looks > 1
        assert 0 < memory(faltering) < held + 64 * 2**20
        assert len(faltering.forwarded("small")) - before == statuses[200, 0]
        assert set(most.values()) == {PLACES}
        early = sorted(took for status, _, took in found if status == 503)
        assert early[len(early) // 2] < QUEUE_S, "most of them at once, and not after the wait"
        asked = faltering.evaluations() - evaluations - looks
        assert asked < statuses[200, 0] + statuses[503, 50305] / 2, "most of them before the policy was asked"
        over = time.monotonic()
        for _ in range(2 * PLACES):
            assert faltering.ask(ask).status == 200
        assert time.monotonic() < over + 10
    assert Refusal.OVERLOADED in provoked(faltering)
    passes(faltering, faltering.good(tool("fetch", path="a"), "small"))


def test_a_call_that_waited_in_vain_gets_its_approval_back(faltering: House) -> None:
    """OPS-04: not one byte of it left, so the use is given back, and the call runs once there is a place."""
    small = faltering.behind["small"]
    message = tool("write", number=next(_numbers))
    ticket = faltering.approved("small", message)
    going = asyncio.Event()

    async def stays(exchange: Exchange) -> None:
        await asyncio.wait_for(going.wait(), PATIENCE_S)
        await exchange.send(http(200, small[0].result(exchange)))

    async def go() -> None:
        going.set()

    before = len(faltering.forwarded("small"))
    ask = faltering.good(tool("fetch", path="a"), "small").encode()
    clients = [RawClient(faltering.address, PATIENCE_S) for _ in range(2 * PLACES)]
    try:
        with small[0].playing(stays), small[1].playing(stays):
            for client in clients:
                client.send(ask)
            end = time.monotonic() + PATIENCE_S
            while len(faltering.forwarded("small")) < before + 2 * PLACES:
                assert time.monotonic() < end
                time.sleep(0.01)
            answer = faltering.call("small", message)
            assert told(answer) == (503, 50305)
            faltering.stage.run(go())
            assert {client.read_answer().status for client in clients} == {200}
    finally:
        for client in clients:
            client.close()
    (outcome,) = outcomes(faltering, [answer])
    assert (outcome["outcome"], outcome["reasons"], outcome["ticket"]) == ("failed", ["overloaded"], ticket)
    assert len(faltering.forwarded("small")) == before + 2 * PLACES
    assert faltering.call("small", message).status == 200
    assert len(faltering.forwarded("small")) == before + 2 * PLACES + 1
