"""Held calls as tasks, over real processes: two gateways on one database, each poll at the other one.

The official client sees a gated call through without knowing of approvals; the server behind is a real one, or one
that the test plays. Once on SQLite, once on PostgreSQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.e2e.test_sdk_challenge import DATA, ROOT, Bank, pay, text_of
from tests.e2e.test_sdk_legs import until_serving
from tests.e2e.test_tasks import Tasks, never_asked
from tests.support.postgres import Postgres
from tests.support.processes import eventually
from tests.support.replicas import Pair, two_gateways
from tests.support.stack import body, free_port, headers_of
from tests.support.upstream import Exchange, Script, ScriptedUpstream, http, result_of

TASK = {"challenge": "task"}
_amounts = itertools.count(1)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str:
    """Where the tickets are, in the configuration's words; empty for a file that both gateways share."""
    if request.param == "sqlite":
        return ""
    server: Postgres = request.getfixturevalue("postgres")
    return server.create()


@contextlib.asynccontextmanager
async def a_bank(folder: Path, database: str) -> AsyncIterator[Bank]:
    """A bank that asks before it pays, behind both gateways."""
    file, port = folder / "payments.txt", free_port()
    replica = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.e2e.asking_server", str(port), str(file), "replica", cwd=ROOT
    )
    try:
        await until_serving(port)
        servers = {"bank": [f"http://127.0.0.1:{port}/mcp"]}
        async with two_gateways(folder, servers, data=DATA, database=database, settings=TASK) as pair:
            yield Bank(pair, file)
    finally:
        with contextlib.suppress(ProcessLookupError):
            replica.kill()
        await replica.wait()


@contextlib.asynccontextmanager
async def a_client(bank: Bank) -> AsyncIterator[Client]:
    """The official client, which polls tasks and says yes to what they ask; each request is a connection."""
    headers = {"Authorization": f"Bearer {bank.pair.one.token('bank')}"}
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with httpx2.AsyncClient(headers=headers, timeout=60, limits=limits, trust_env=False) as http:
        transport = streamable_http_client(bank.pair.one.endpoint("bank"), http_client=http)
        tasks = Tasks({"sure": True})
        async with Client(
            transport, mode="2026-07-28", extensions=[tasks], elicitation_callback=never_asked
        ) as client:
            yield client


async def the_pending_one(pair: Pair) -> str:
    """The ticket that waits for a person."""
    found: list[str] = []

    async def is_there() -> bool:
        found[:] = [one["id"] for one in (await pair.api("GET", "?state=pending")).json()["tickets"]]
        return bool(found)

    await eventually("a ticket waits", is_there)
    return found[0]


@pytest.mark.timeout(300)
async def test_the_python_client_follows_a_held_call_through_both_gateways(tmp_path: Path, database: str) -> None:
    """Held, approved by a person meanwhile, asked by the bank under the same task, paid once, whoever is asked."""
    async with a_bank(tmp_path, database) as bank, a_client(bank) as client:
        for _ in range(2):
            amount = next(_amounts)
            paying = pay(client, amount)
            ticket = await the_pending_one(bank.pair)
            assert not paying.done()
            assert bank.paid(amount) == 0
            await bank.pair.act("approve", ticket)
            assert text_of(await asyncio.wait_for(paying, 40)) == "paid"
            assert bank.paid(amount) == 1
            moved = bank.transitions(ticket)
            assert (moved["request"], moved["claim"], moved["continue"], moved["executed"]) == (1, 1, 1, 1)
        polled = [{one["method"] for one in gateway.records()} for gateway in bank.pair.gateways]
        assert all("tasks/get" in methods for methods in polled), "both gateways answered"
        run = [
            one for one in bank.pair.records() if one["ticket"] == ticket and one["kind"] in ("decision", "outcome")
        ]
        assert len({one["task"] for one in run}) == 1, "one task in all records of its call"


TOOLS = [{"name": "pay", "inputSchema": {"type": "object"}}]


@contextlib.asynccontextmanager
async def played(folder: Path, database: str, script: Script) -> AsyncIterator[tuple[Pair, list[Mapping[str, Any]]]]:
    """Both gateways before a server that the test plays, and the calls that reached it."""
    arrived: list[Mapping[str, Any]] = []

    async def answer(exchange: Exchange) -> None:
        asked = json.loads(exchange.seen.body)
        if asked["method"] != "tools/call":
            await exchange.send(http_of(exchange, tools=TOOLS, ttlMs=60_000, cacheScope="public"))
            return
        arrived.append(asked)
        await script(exchange)

    async with ScriptedUpstream(answer) as upstream:
        servers = {"bank": [f"{upstream.url}"]}
        async with two_gateways(folder, servers, data=DATA, database=database, settings=TASK) as pair:
            yield pair, arrived


def http_of(exchange: Exchange, **members: Any) -> bytes:
    """A whole answer."""
    return http(200, result_of(exchange.id, **members))


async def ask(
    pair: Pair, method: str, params: Mapping[str, Any], at: int | None = None, **token: Any
) -> httpx.Response:
    """A request of a client that can follow tasks; `at` one of the gateways, or at whichever comes."""
    message = body(method, dict(params), 1)
    capabilities: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities
    where = pair.one.endpoint("bank")
    if at is not None:
        where = where.replace(f":{pair.one.front}/", f":{pair.gateways[at].port}/")
    headers = {**headers_of(message, pair.one.token("bank", **token)), "Connection": "close"}
    headers["Host"] = f"127.0.0.1:{pair.one.front}"
    return await pair.http.post(where, content=json.dumps(message), headers=headers)


async def hold(pair: Pair) -> tuple[str, str]:
    """A call that was held as a task, and approved: its id, and its ticket's."""
    call = {"name": "pay", "arguments": {"amount": next(_amounts)}}
    made = (await ask(pair, "tools/call", call)).json()["result"]
    assert (made["resultType"], made["status"]) == ("task", "working")
    ticket = await the_pending_one(pair)
    await pair.act("approve", ticket)
    return made["taskId"], ticket


async def status_of(pair: Pair, handle: str, at: int | None = None) -> dict[str, Any]:
    """What `tasks/get` tells."""
    told = await ask(pair, "tasks/get", {"taskId": handle}, at)
    assert told.status_code == 200, told.text
    result: dict[str, Any] = told.json()["result"]
    return result


@pytest.mark.timeout(300)
async def test_a_crowd_of_polls_at_both_gateways_runs_it_once(tmp_path: Path, database: str) -> None:
    """60 polls at once for each of five tasks: five calls, and every poll is answered."""

    async def pays(exchange: Exchange) -> None:
        await asyncio.sleep(0.05)
        await exchange.send(http_of(exchange, content=[{"type": "text", "text": "paid"}]))

    async with played(tmp_path, database, pays) as (pair, arrived):
        for number in range(1, 6):
            handle, ticket = await hold(pair)
            polls = await asyncio.gather(
                *(ask(pair, "tasks/get", {"taskId": handle}, at=one % 2) for one in range(60))
            )
            told = [poll.json()["result"]["status"] for poll in polls if poll.status_code == 200]
            assert set(told) <= {"working", "completed"}
            # A machine with other work may not judge all of them in time; whoever is told so has started nothing.
            assert {poll.status_code for poll in polls} <= {200, 503}

            async def is_done(handle: str = handle) -> bool:
                answers = [await ask(pair, "tasks/get", {"taskId": handle}, at) for at in (0, 1)]
                return all(one.status_code == 200 for one in answers) and all(
                    one.json()["result"]["status"] == "completed" for one in answers
                )

            await eventually("it is done", is_done)
            assert len(arrived) == number, "it ran once"
            assert (await pair.api("GET", f"/{ticket}")).json()["state"] == "used"


@pytest.mark.timeout(300)
async def test_what_one_gateway_runs_the_other_tells_of_and_cancels(tmp_path: Path, database: str) -> None:
    """`working` at both while it runs at one; cancelled at the other, its request is closed and its end unknown."""
    gone = asyncio.Event()

    async def never(exchange: Exchange) -> None:
        await exchange.gone(60)
        gone.set()

    async with played(tmp_path, database, never) as (pair, arrived):
        handle, ticket = await hold(pair)
        assert (await status_of(pair, handle, at=0))["status"] == "working"
        await eventually("it runs", lambda: len(arrived) == 1)
        assert (await status_of(pair, handle, at=1))["status"] == "working"
        assert (await ask(pair, "tasks/cancel", {"taskId": handle}, at=1)).json()["result"] == {
            "resultType": "complete"
        }
        for at in (0, 1):
            assert (await status_of(pair, handle, at))["status"] == "cancelled"
        await asyncio.wait_for(gone.wait(), 20)

        async def is_unknown() -> bool:
            return [run["state"] for run in (await pair.api("GET", f"/{ticket}")).json()["runs"]] == ["unknown"]

        await eventually("its use is unknown", is_unknown)
        assert len(arrived) == 1


@pytest.mark.timeout(300)
async def test_a_gateway_that_stops_ends_what_it_runs(tmp_path: Path, database: str) -> None:
    """SIGTERM while a held call runs: it goes on to its end, and the other gateway has the result."""
    gate = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await gate.wait()
        await exchange.send(http_of(exchange, content=[{"type": "text", "text": "paid"}]))

    async with played(tmp_path, database, waits) as (pair, arrived):
        handle, _ = await hold(pair)
        assert (await status_of(pair, handle, at=0))["status"] == "working"
        await eventually("it runs", lambda: len(arrived) == 1)
        stopping = asyncio.create_task(pair.gateways[0].stop())
        await eventually("it takes no more", lambda: is_closed(pair.gateways[0].port))
        assert (await status_of(pair, handle, at=1))["status"] == "working"
        gate.set()
        assert await stopping == 0
        told = await status_of(pair, handle, at=1)
        assert (told["status"], told["result"]["content"][0]["text"]) == ("completed", "paid")
        assert len(arrived) == 1


async def is_closed(port: int) -> bool:
    """Whether nobody listens there any more."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return False


@pytest.mark.timeout(300)
async def test_a_denied_call_fails_and_a_foreign_poll_is_no_task(tmp_path: Path, database: str) -> None:
    """Denied at one gateway, `failed` at both, with the refusal; nobody else learns that there is such a task."""

    async def never(exchange: Exchange) -> None:
        raise AssertionError(f"it was called: {exchange.seen.line}")

    async with played(tmp_path, database, never) as (pair, arrived):
        call = {"name": "pay", "arguments": {"amount": next(_amounts)}}
        handle = (await ask(pair, "tools/call", call)).json()["result"]["taskId"]
        again = (await ask(pair, "tools/call", call, at=1)).json()["result"]
        assert again["taskId"] == handle, "the same task at the other gateway"
        foreign = await ask(pair, "tasks/get", {"taskId": handle}, subject="mallory")
        guessed = await ask(pair, "tasks/get", {"taskId": "made-up"}, subject="mallory")
        assert (foreign.status_code, foreign.json()["error"]["message"]) == (400, "There is no such task.")
        assert foreign.json()["error"]["code"] == guessed.json()["error"]["code"] == -32602
        await pair.act("deny", await the_pending_one(pair))
        told = [await status_of(pair, handle, at) for at in (0, 1)]
        assert told[0] == told[1]
        assert (told[0]["status"], told[0]["error"]["code"]) == ("failed", 40304)
        assert told[0]["error"]["message"] == "A person denied this call."
        assert not arrived
