"""Held calls as tasks, over real processes: two gateways on one database, each poll at the other one.

The official client sees a gated call through without knowing of approvals; the server behind is a real one, or one
that the test plays. Once on SQLite, once on PostgreSQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import httpx2
import pytest
import pytest_asyncio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.e2e.test_sdk_challenge import DATA, ROOT, Bank, pay, text_of
from tests.e2e.test_sdk_legs import until_serving
from tests.e2e.test_tasks import Tasks, never_asked
from tests.support.ports import free_port
from tests.support.postgres import Postgres
from tests.support.processes import eventually
from tests.support.replicas import Pair, two_gateways
from tests.support.stack import body, headers_of
from tests.support.upstream import Exchange, Script, ScriptedUpstream, http, result_of

TASK = {"challenge": "task"}
_amounts = itertools.count(1)
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


TOOLS = [{"name": "pay", "inputSchema": {"type": "object"}}]
PAID = [{"type": "text", "text": "paid"}]


@dataclass
class Stage:
    """Both gateways before a real bank ("bank") and a server that the test plays ("played")."""

    bank: Bank
    sql: Callable[[str], object]
    script: Script | None = None
    arrived: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def pair(self) -> Pair:
        """Both gateways."""
        return self.bank.pair

    async def answer(self, exchange: Exchange) -> None:
        """The played server."""
        asked = json.loads(exchange.seen.body)
        if asked["method"] != "tools/call":
            await exchange.send(http_of(exchange, tools=TOOLS, ttlMs=60_000, cacheScope="public"))
            return
        self.arrived.append(asked)
        assert self.script is not None
        await self.script(exchange)

    def lapse(self) -> None:
        """What minutes do: no lease of a call that runs, nor of its use, is held any more."""
        for table in ("errands", "uses"):
            self.sql(f"UPDATE {table} SET lease_until = 0")

    async def play(self, script: Script) -> tuple[Pair, list[Mapping[str, Any]]]:
        """Both gateways, whatever an earlier test did to them, and the calls that will reach the played server."""
        self.script, self.arrived = script, []
        await self.bank.whole()
        return self.pair, self.arrived


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sqlite", "postgresql"])
async def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """One for all tests, on each database."""
    url, folder = "", tmp_path_factory.mktemp(str(request.param))

    def sql(statement: str) -> None:
        with contextlib.closing(sqlite3.connect(folder / "shared.db")) as file, file:
            file.execute(statement)

    change: Callable[[str], object] = sql
    if request.param == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        url = server.create()
        change = functools.partial(server.sql, database=url.rpartition("/")[2])
    file, port = folder / "payments.txt", free_port()
    replica = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.e2e.asking_server", str(port), str(file), "replica", cwd=ROOT
    )
    played = ScriptedUpstream()
    try:
        await until_serving(port)
        async with played:
            servers = {"bank": [f"http://127.0.0.1:{port}/mcp"], "played": [played.url]}
            async with two_gateways(folder, servers, data=DATA, database=url, settings=TASK) as pair:
                here = Stage(Bank(pair, file), change)
                played.script = here.answer
                yield here
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


async def test_the_python_client_follows_a_held_call_through_both_gateways(stage: Stage) -> None:
    """Held, approved by a person meanwhile, asked by the bank under the same task, paid once, whoever is asked."""
    bank = await stage.bank.whole()
    asked: list[set[str]] = []
    async with a_client(bank) as client:
        for _ in range(8):  # whose turn it is at the relay is nobody's to say: until both were asked
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
            asked = [
                {one["method"] for one in each.records() if one["server"] == "bank"} for each in bank.pair.gateways
            ]
            if all("tasks/get" in methods for methods in asked):
                break
        assert all("tasks/get" in methods for methods in asked), "both gateways answered"
        run = [
            one for one in bank.pair.records() if one["ticket"] == ticket and one["kind"] in ("decision", "outcome")
        ]
        assert len({one["task"] for one in run}) == 1, "one task in all records of its call"


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
    where = pair.one.endpoint("played")
    if at is not None:
        where = where.replace(f":{pair.one.front}/", f":{pair.gateways[at].port}/")
    headers = {**headers_of(message, pair.one.token("played", **token)), "Connection": "close"}
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


async def test_a_crowd_of_polls_at_both_gateways_runs_it_once(stage: Stage) -> None:
    """60 polls at once for each of five tasks: five calls, and every poll is answered."""

    async def pays(exchange: Exchange) -> None:
        await asyncio.sleep(0.05)
        await exchange.send(http_of(exchange, content=PAID))

    pair, arrived = await stage.play(pays)
    for number in range(1, 6):
        handle, ticket = await hold(pair)
        polls = await asyncio.gather(*(ask(pair, "tasks/get", {"taskId": handle}, at=one % 2) for one in range(60)))
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


async def test_polls_and_repetitions_at_both_gateways_share_one_use(stage: Stage) -> None:
    """APR-02: sent before, while and after a person says yes, each of five calls reaches its server once, and whoever
    lost is told why. (Who repeats the call after its end asks anew.)"""

    async def pays(exchange: Exchange) -> None:
        await asyncio.sleep(0.05)
        await exchange.send(http_of(exchange, content=PAID))

    pair, arrived = await stage.play(pays)
    for number in range(1, 6):
        call = {"name": "pay", "arguments": {"amount": next(_amounts)}}
        handle = (await ask(pair, "tools/call", call)).json()["result"]["taskId"]
        ticket = await the_pending_one(pair)

        async def crowd(call: Any = call, handle: str = handle) -> list[httpx.Response]:
            plain = {**body("tools/call", call), "id": "plain"}
            return await asyncio.gather(
                *(ask(pair, "tasks/get", {"taskId": handle}, at=one % 2) for one in range(8)),
                *(pair.one.post("played", plain, Connection="close") for _ in range(8)),
            )

        before = asyncio.create_task(crowd())
        await pair.act("approve", ticket)
        answers = [*await crowd(), *await before]
        # A machine with other work may not judge all of them in time; whoever is told so has started nothing.
        assert {one.status_code for one in answers} <= {200, 403, 503}

        async def has_ended(handle: str = handle) -> bool:
            told = await ask(pair, "tasks/get", {"taskId": handle})
            return told.status_code == 200 and told.json()["result"]["status"] != "working"

        await eventually("the task has ended", has_ended)
        told = await status_of(pair, handle)
        ran = [one for one in answers if one.status_code == 200 and one.json()["id"] == "plain"]
        assert len(arrived) == number, "it was sent once"
        assert len(ran) == (told["status"] != "completed"), "by one of them"
        assert told["status"] == "completed" or told["error"]["data"]["why"] == "used"
        refused = [one.json()["error"]["code"] for one in answers if one.status_code == 403]
        assert set(refused) <= {40303, 40304}
        assert (await pair.api("GET", f"/{ticket}")).json()["state"] == "used"
        assert stage.bank.transitions(ticket)["claim"] == stage.bank.transitions(ticket)["request"] == 1
        for asked_anew in (await pair.api("GET", "?state=pending")).json()["tickets"]:
            await pair.act("deny", asked_anew["id"])


async def test_what_one_gateway_runs_the_other_tells_of_and_cancels(stage: Stage) -> None:
    """`working` at both while it runs at one; cancelled at the other, its request is closed and its end unknown."""
    gone = asyncio.Event()

    async def never(exchange: Exchange) -> None:
        await exchange.gone(60)
        gone.set()

    pair, arrived = await stage.play(never)
    handle, ticket = await hold(pair)
    assert (await status_of(pair, handle, at=0))["status"] == "working"
    await eventually("it runs", lambda: len(arrived) == 1)
    assert (await status_of(pair, handle, at=1))["status"] == "working"
    assert (await ask(pair, "tasks/cancel", {"taskId": handle}, at=1)).json()["result"] == {"resultType": "complete"}
    for at in (0, 1):
        assert (await status_of(pair, handle, at))["status"] == "cancelled"
    await asyncio.wait_for(gone.wait(), 20)

    async def is_unknown() -> bool:
        return [run["state"] for run in (await pair.api("GET", f"/{ticket}")).json()["runs"]] == ["unknown"]

    await eventually("its use is unknown", is_unknown)
    assert len(arrived) == 1


async def test_a_gateway_that_stops_ends_what_it_runs(stage: Stage) -> None:
    """SIGTERM while a held call runs: it goes on to its end, and the other gateway has the result."""
    gate = asyncio.Event()

    async def waits(exchange: Exchange) -> None:
        await gate.wait()
        await exchange.send(http_of(exchange, content=PAID))

    pair, arrived = await stage.play(waits)
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


async def test_a_gateway_that_dies_leaves_a_call_that_nobody_runs_again(stage: Stage) -> None:
    """kill -9 while a held call runs: `working` at the other gateway until the lease lapses, then `failed` with an
    unknown outcome, the same at every poll; neither a poll nor a repetition sends it again."""

    async def never(exchange: Exchange) -> None:
        await exchange.gone(60)

    pair, arrived = await stage.play(never)
    handle, ticket = await hold(pair)
    assert (await status_of(pair, handle, at=0))["status"] == "working"
    await eventually("it runs", lambda: len(arrived) == 1)
    await pair.gateways[0].die()
    assert [(await status_of(pair, handle, at=1))["status"] for _ in range(3)] == ["working"] * 3
    stage.lapse()

    async def has_failed() -> bool:
        return bool((await status_of(pair, handle, at=1))["status"] == "failed")

    await eventually("it has failed", has_failed)
    told = await asyncio.gather(*(status_of(pair, handle, at=1) for _ in range(10)))
    assert [one["error"] for one in told] == [told[0]["error"]] * 10
    assert (told[0]["error"]["code"], "unknown" in told[0]["error"]["message"]) == (40304, True)
    again = await ask(pair, "tools/call", {"name": "pay", "arguments": arrived[0]["params"]["arguments"]}, at=1)
    assert (again.status_code, again.json()["error"]["code"]) == (403, 40304), again.text
    await stage.bank.whole()
    assert await status_of(pair, handle, at=0) == await status_of(pair, handle, at=1)
    assert len(arrived) == 1, "it was sent once"
    assert stage.bank.transitions(ticket)["claim"] == stage.bank.transitions(ticket)["request"] == 1


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


async def test_a_denied_call_fails_and_a_foreign_poll_is_no_task(stage: Stage) -> None:
    """Denied at one gateway, `failed` at both, with the refusal; nobody else learns that there is such a task."""

    async def never(exchange: Exchange) -> None:
        raise AssertionError(f"it was called: {exchange.seen.line}")

    pair, arrived = await stage.play(never)
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
