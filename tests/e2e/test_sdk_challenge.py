"""A held call whose client waits by itself: official clients at two gateways on one PostgreSQL, whichever answers.

Each request of a client is a connection of its own, and each connection goes to the other gateway: a retry is hardly
ever kept where the call was held, nor where somebody decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import pytest_asyncio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, ElicitRequestParams, ElicitResult, TextContent

from tests.e2e.test_sdk_legs import until_serving
from tests.support.ports import free_port
from tests.support.postgres import Postgres
from tests.support.processes import eventually
from tests.support.replicas import Behind, Pair, two_gateways
from tests.support.stack import HOLD, body

ROOT = Path(__file__).parents[2]
TYPESCRIPT = Path(__file__).parent / "typescript"
PAY = {"effect": "write", "scopes": ["files:write"], "approval": HOLD}
SOON = {**PAY, "approval": {**HOLD, "ttl_s": 3}}
DATA = {"methods": {"tools/list": {}, "server/discover": {}}, "tools": {"pay": PAY, "pay_soon": SOON, "give": PAY}}
_amounts = itertools.count(1)
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@dataclass
class Bank:
    """Both gateways, and what the bank behind them did."""

    pair: Pair
    file: Path
    pages: list[str] = field(default_factory=list)

    async def whole(self) -> Bank:
        """Itself, once both gateways serve, whatever an earlier test did to them."""
        self.pages.clear()
        for gateway in self.pair.gateways:
            assert gateway.process is not None
            if gateway.process.returncode is not None:
                await gateway.launch()

        async def is_idle() -> bool:
            shown = [(await self.pair.http.get(f"{gateway.admin}/metrics")).text for gateway in self.pair.gateways]
            return all("ostiary_calls_waiting 0.0" in text for text in shown)

        # Gauges come with the heartbeat: what an earlier test's call left there would name the wrong keeper.
        await eventually("nothing is kept any more", is_idle)
        return self

    def paid(self, amount: int) -> int:
        """How often a payment was made."""
        noted = [line.split() for line in self.file.read_text().splitlines()] if self.file.exists() else []
        return sum((verb, number) == ("paid", str(amount)) for _, verb, _, number in noted)

    @contextlib.asynccontextmanager
    async def client(self, word: str = "accept") -> AsyncIterator[Client]:
        """The client as an application makes it; its user says `word` to a page, and yes to the bank. `""`: nobody
        is there to be asked, and the client declares nothing.
        """

        async def answer(context: Any, params: ElicitRequestParams) -> ElicitResult:
            assert context is not None
            if params.mode != "url":
                return ElicitResult(action="accept", content={"sure": True})
            self.pages.append(params.url)
            return ElicitResult(action=word)  # type: ignore[arg-type]

        headers = {"Authorization": f"Bearer {self.pair.one.token('bank')}"}
        limits = httpx2.Limits(max_keepalive_connections=0)
        async with httpx2.AsyncClient(headers=headers, timeout=60, limits=limits, trust_env=False) as http:
            transport = streamable_http_client(self.pair.one.endpoint("bank"), http_client=http)
            asked = answer if word else None
            async with Client(transport, mode="2026-07-28", elicitation_callback=asked) as client:
                yield client

    async def sent_to(self, before: int) -> str:
        """The ticket of the page that a client was sent to after the first `before`."""
        await eventually("a client is sent to a page", lambda: len(self.pages) > before)
        return self.pages[before].rpartition("/")[2]

    async def until_kept(self, ticket: str, times: int = 3) -> None:
        """Wait until calls that need this ticket were answered so often without being run."""
        await eventually("it is kept for several rounds", lambda: len(self.refusals(ticket)) >= times)

    async def asked(self, amount: int) -> tuple[str, dict[str, Any]]:
        """A payment whose client was sent to a page -> its ticket, and the retry that is kept."""
        call = body("tools/call", {"name": "pay", "arguments": {"to": "acme", "amount": amount}})
        declared: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
        call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = declared
        asked = (await self.pair.one.post("bank", call, Connection="close")).json()["result"]
        ticket = asked["inputRequests"]["approval"]["params"]["url"].rpartition("/")[2]
        answers = {"requestState": asked["requestState"], "inputResponses": {"approval": {"action": "accept"}}}
        return ticket, {**call, "params": {**call["params"], **answers}}

    async def keeper(self) -> Behind:
        """The gateway that keeps the one call that is kept."""
        keeps: list[Behind] = []

        async def is_kept() -> bool:
            for gateway in self.pair.gateways:
                with contextlib.suppress(httpx.TransportError):  # one that was ended
                    shown = (await self.pair.http.get(f"{gateway.admin}/metrics")).text
                    if "ostiary_calls_waiting 1.0" in shown:
                        keeps[:] = [gateway]
            return bool(keeps)

        await eventually("it is kept somewhere", is_kept)
        return keeps[0]

    def refusals(self, ticket: str) -> list[dict[str, Any]]:
        """The records of requests that were held for a ticket and not run."""
        return [one for one in self.pair.records() if one["kind"] == "refusal" and one["ticket"] == ticket]

    def requests(self) -> int:
        """How many tickets were ever opened."""
        return sum(one["kind"] == "approval" and one["transition"] == "request" for one in self.pair.records())

    def transitions(self, ticket: str) -> Counter[str]:
        """What happened to a ticket, by both gateways' records."""
        moved = [one for one in self.pair.records() if one["kind"] == "approval" and one["ticket"] == ticket]
        return Counter(one["transition"] for one in moved)


@contextlib.asynccontextmanager
async def a_bank(folder: Path, database: str, *, hold_s: float) -> AsyncIterator[Bank]:
    """The bank's process behind both gateways. `database` "": one SQLite file."""
    file, port = folder / "payments.txt", free_port()
    replica = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.e2e.asking_server", str(port), str(file), "replica",
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        await until_serving(port)
        servers = {"bank": [f"http://127.0.0.1:{port}/mcp"]}
        async with two_gateways(
            folder, servers, data=DATA, database=database, approvals={"hold_s": hold_s}
        ) as pair:  # fmt: skip
            yield Bank(pair, file)
    finally:
        with contextlib.suppress(ProcessLookupError):
            replica.kill()
        await replica.wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def brief_bank(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bank]:
    """One whose calls are kept for a moment, so that a client comes back several times."""
    async with a_bank(tmp_path_factory.mktemp("brief"), postgres.create(), hold_s=1.0) as bank:
        yield bank


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def patient_bank(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bank]:
    """One whose calls are kept for as long as a test takes."""
    async with a_bank(tmp_path_factory.mktemp("patient"), postgres.create(), hold_s=30.0) as bank:
        yield bank


def pay(client: Client, amount: int, tool: str = "pay", **more: Any) -> asyncio.Task[CallToolResult]:
    """A payment, by the client's own driver of questions."""
    return asyncio.create_task(client.call_tool(tool, {"to": "acme", "amount": amount}, **more))


def text_of(result: CallToolResult) -> str:
    """What the tool says."""
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


async def test_the_python_client_waits_by_itself_and_pays_once(brief_bank: Bank) -> None:
    """Sent to one page, kept over several rounds at both gateways, approved by a person meanwhile, asked by the bank
    itself, paid once; one ticket, and nobody was told of it twice."""
    bank = await brief_bank.whole()
    kept_by: Counter[int] = Counter()
    async with bank.client() as client:
        for number in range(2):
            amount = next(_amounts)
            paying = pay(client, amount)
            ticket = await bank.sent_to(number)
            await bank.until_kept(ticket)
            assert not paying.done()
            assert bank.paid(amount) == 0
            await bank.pair.act("approve", ticket)
            assert text_of(await asyncio.wait_for(paying, 30)) == "paid"
            assert bank.paid(amount) == 1
            assert len(bank.pages) == number + 1, "one question for all rounds"
            assert bank.transitions(ticket)["request"] == bank.transitions(ticket)["claim"] == 1
            kept = bank.refusals(ticket)
            assert {(one["reasons"][0], one["status"], one["code"], one["challenge"]) for one in kept} == {
                ("approval_required", 200, 40303, "elicitation")
            }
            for at, gateway in enumerate(bank.pair.gateways):
                kept_by[at] += sum(one["ticket"] == ticket for one in gateway.records() if one["kind"] == "refusal")
        assert min(kept_by.values()) > 1, "both gateways kept it"


async def test_two_gateways_of_one_host_share_a_file_alike(tmp_path: Path) -> None:
    """On one SQLite file as well: held at one, decided at the other, run once."""
    async with a_bank(tmp_path, "", hold_s=1.0) as bank, bank.client() as client:
        amount = next(_amounts)
        paying = pay(client, amount)
        ticket = await bank.sent_to(0)
        await bank.until_kept(ticket)
        await bank.pair.act("approve", ticket)
        assert text_of(await asyncio.wait_for(paying, 30)) == "paid"
        assert bank.paid(amount) == bank.transitions(ticket)["request"] == 1


async def test_a_no_reaches_the_client_that_waits(patient_bank: Bank) -> None:
    """Denied by a person, withdrawn by its requester, declined by its user: each an error that says so."""
    bank = await patient_bank.whole()
    async with bank.client() as client:
        for verb, token, why in (
            ("deny", bank.pair.one.person(), "denied"),
            ("withdraw", bank.pair.one.person("alice"), "withdrawn"),
        ):
            amount = next(_amounts)
            before = len(bank.pages)
            paying = pay(client, amount)
            ticket = await bank.sent_to(before)
            await bank.pair.act(verb, ticket, token)
            with pytest.raises(MCPError) as refused:
                await asyncio.wait_for(paying, 15)
            assert (refused.value.error.code, refused.value.error.data["why"]) == (40304, why)
            assert bank.transitions(ticket)["request"] == 1
            assert bank.paid(amount) == 0
    for word in ("decline", "cancel"):
        async with bank.client(word) as client:
            with pytest.raises(MCPError) as refused:
                await asyncio.wait_for(pay(client, next(_amounts)), 15)
            assert refused.value.error.code == 40303
            assert refused.value.error.data["ticket"]["state"] == "pending"


async def test_a_client_that_waits_too_long_learns_that_its_ticket_expired(patient_bank: Bank) -> None:
    """Nobody decided: 40304 `expired` while it is kept, and no second ticket instead."""
    bank = await patient_bank.whole()
    before = bank.requests()
    async with bank.client() as client:
        paying = pay(client, next(_amounts), "pay_soon")
        ticket = await bank.sent_to(0)
        with pytest.raises(MCPError) as refused:
            await asyncio.wait_for(paying, 20)
        assert (refused.value.error.code, refused.value.error.data["why"]) == (40304, "expired")
        assert refused.value.error.data["ticket"]["id"] == ticket
        assert bank.requests() == before + 1


async def test_a_client_whose_patience_is_shorter_than_the_hold_repeats_the_call(patient_bank: Bank) -> None:
    """A read timeout ends the client's wait and nothing else: recorded as gone, and the identical call runs later."""
    bank = await patient_bank.whole()
    amount = next(_amounts)
    async with bank.client() as client:
        with pytest.raises(MCPError):
            await asyncio.wait_for(pay(client, amount, read_timeout_seconds=1), 20)
    ticket = await bank.sent_to(0)

    def gone() -> bool:
        return "client_gone" in [one["reasons"][0] for one in bank.refusals(ticket)]

    await eventually("its leaving is recorded", gone)
    await bank.pair.act("approve", ticket)
    async with bank.client() as client:
        assert text_of(await asyncio.wait_for(pay(client, amount), 30)) == "paid"
    assert bank.paid(amount) == 1
    assert len(bank.pages) == 1


async def test_a_gateway_that_stops_hands_its_waiting_clients_on(patient_bank: Bank) -> None:
    """SIGTERM: whoever waits there is answered at once, goes on at the other gateway, and is paid there."""
    bank = await patient_bank.whole()
    async with bank.client() as client:
        amount = next(_amounts)
        paying = pay(client, amount)
        ticket = await bank.sent_to(0)
        keeper = await bank.keeper()
        assert await asyncio.wait_for(keeper.stop(), 20) == 0
        assert not paying.done()
        await bank.pair.act("approve", ticket)
        assert text_of(await asyncio.wait_for(paying, 30)) == "paid"
        assert bank.paid(amount) == 1


@pytest.mark.parametrize("said", ["before", "after"])
async def test_a_gateway_that_dies_while_it_keeps_a_call_has_run_nothing(patient_bank: Bank, said: str) -> None:
    """kill -9 of the gateway that keeps it: the client's request breaks, and repeating the call at the other gateway
    runs it once, whether the yes came before the repetition or while that is kept."""
    bank, amount = await patient_bank.whole(), next(_amounts)
    ticket, retry = await bank.asked(amount)
    kept = asyncio.create_task(bank.pair.one.post("bank", retry))
    await (await bank.keeper()).die()
    with pytest.raises(httpx.TransportError):
        pytest.fail((await asyncio.wait_for(kept, 20)).text)
    assert bank.paid(amount) == 0
    if said == "before":
        await bank.pair.act("approve", ticket)
    async with bank.client() as client:
        paying = pay(client, amount)
        if said == "after":
            assert await bank.sent_to(0) == ticket
            await bank.keeper()
            await bank.pair.act("approve", ticket)
        assert text_of(await asyncio.wait_for(paying, 30)) == "paid"
    assert bank.paid(amount) == 1
    await bank.whole()
    assert bank.transitions(ticket)["request"] == bank.transitions(ticket)["claim"] == 1


async def test_of_retries_kept_at_both_gateways_one_reaches_the_server(patient_bank: Bank) -> None:
    """APR-02: twelve copies of one retry, kept at either gateway when a person says yes: one is sent, the others are
    told why not, no 5xx, and nobody is asked for anything anew."""
    bank = await patient_bank.whole()
    before = bank.requests()
    one, amount = bank.pair.one, next(_amounts)
    ticket, retry = await bank.asked(amount)
    kept = [asyncio.create_task(one.post("bank", retry, Connection="close")) for _ in range(12)]

    async def all_wait() -> bool:
        shown = [(await bank.pair.http.get(f"{gateway.admin}/metrics")).text for gateway in bank.pair.gateways]
        lines = [line for text in shown for line in text.splitlines() if line.startswith("ostiary_calls_waiting ")]
        return sum(float(line.split()[1]) for line in lines) == 12

    await eventually("all of them are kept", all_wait)
    await bank.pair.act("approve", ticket)
    answers = [answer.json() for answer in await asyncio.wait_for(asyncio.gather(*kept), 30)]
    ran = [answer for answer in answers if "result" in answer]
    assert [list(answer["result"]["inputRequests"]) != ["approval"] for answer in ran] == [True]
    assert {answer["error"]["code"] for answer in answers if "error" in answer} == {40304}
    assert bank.transitions(ticket)["claim"] == bank.transitions(ticket)["request"] == 1
    assert bank.requests() == before + 1


async def test_the_python_client_that_can_be_asked_nothing_repeats_the_call(brief_bank: Bank) -> None:
    """The error, which every client has: told at one gateway, the same ticket at the other one, approved, and then
    the identical call runs once; each of them may answer."""
    bank, amount = await brief_bank.whole(), next(_amounts)
    async with bank.client("") as client:
        tickets = []
        for _ in bank.pair.gateways:
            with pytest.raises(MCPError) as refused:
                await asyncio.wait_for(pay(client, amount, "give"), 30)
            error = refused.value.error
            assert (error.code, error.data["ticket"]["state"]) == (40303, "pending")
            assert error.data["ticket"]["page"] in error.message
            assert "repeat the identical call" in error.message
            tickets.append(error.data["ticket"]["id"])
        assert tickets == [tickets[0]] * 2
        assert bank.paid(amount) == 0
        await bank.pair.act("approve", tickets[0])
        assert text_of(await asyncio.wait_for(pay(client, amount, "give"), 30)) == "paid"
        with pytest.raises(MCPError):
            await asyncio.wait_for(pay(client, amount, "give"), 30)
    assert bank.paid(amount) == 1
    assert not bank.pages
    assert {one["challenge"] for one in bank.refusals(tickets[0])} == {"error"}
    for gateway in bank.pair.gateways:
        assert any(one["kind"] == "refusal" and one["ticket"] == tickets[0] for one in gateway.records())


@pytest.fixture
def node() -> str:
    """The program that runs the TypeScript client."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    if not (TYPESCRIPT / "node_modules" / "@modelcontextprotocol" / "client").is_dir():
        pytest.skip("the TypeScript client is not installed: npm ci --prefix tests/e2e/typescript")
    return found


async def drive(node: str, plan: dict[str, Any]) -> dict[str, Any]:
    """Run the TypeScript client on a plan; its answer decoded."""
    process = await asyncio.create_subprocess_exec(
        node, "client.mjs", cwd=TYPESCRIPT,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await asyncio.wait_for(process.communicate(json.dumps(plan).encode()), 60)
    assert process.returncode == 0, errors.decode()
    said: dict[str, Any] = json.loads(out)
    return said


@pytest.mark.parametrize(("verb", "paid"), [("approve", 1), ("deny", 0)])
async def test_the_typescript_client_waits_by_itself(node: str, brief_bank: Bank, verb: str, paid: int) -> None:
    """The same story: sent to one page, kept until a person decides, paid once, or told that it was denied."""
    bank = await brief_bank.whole()
    amount = next(_amounts)
    plan = {
        "url": bank.pair.one.endpoint("bank"),
        "token": bank.pair.one.token("bank"),
        "mode": {"pin": "2026-07-28"},
        "opens": True,
        "apart": True,
        "calls": [{"name": "pay", "arguments": {"to": "acme", "amount": amount}}],
    }
    driving = asyncio.create_task(drive(node, plan))
    pending: list[str] = []

    async def held() -> bool:
        pending[:] = [one["id"] for one in (await bank.pair.api("GET", "?state=pending")).json()["tickets"]]
        return bool(pending) and len(bank.refusals(pending[0])) > 2

    await eventually("it is kept for several rounds", held)
    await bank.pair.act(verb, pending[0])
    said = await driving
    assert said["opened"] == [f"{bank.pair.one.url}/review/tickets/{pending[0]}"]
    assert bank.paid(amount) == paid
    if paid:
        assert said["calls"][0]["result"]["content"][0]["text"] == "paid"
    else:
        refused = json.loads(said["calls"][0]["error"]["data"]["text"])["error"]
        assert (refused["code"], refused["data"]["why"]) == (40304, "denied")
    assert bank.transitions(pending[0])["request"] == 1


async def test_the_typescript_client_that_can_be_asked_nothing_repeats_the_call(node: str, brief_bank: Bank) -> None:
    """The same with the error: told twice of one ticket, and paid once by the identical call."""
    bank, amount = await brief_bank.whole(), next(_amounts)
    plan = {
        "url": bank.pair.one.endpoint("bank"),
        "token": bank.pair.one.token("bank"),
        "mode": {"pin": "2026-07-28"},
        "apart": True,
        "calls": [{"name": "give", "arguments": {"to": "acme", "amount": amount}}] * 2,
    }
    refused = [json.loads(one["error"]["data"]["text"])["error"] for one in (await drive(node, plan))["calls"]]
    assert [one["code"] for one in refused] == [40303, 40303]
    ticket, again = (one["data"]["ticket"]["id"] for one in refused)
    assert ticket == again
    assert bank.paid(amount) == 0
    await bank.pair.act("approve", ticket)
    first, second = (await drive(node, plan))["calls"]
    assert first["result"]["content"][0]["text"] == "paid"
    assert json.loads(second["error"]["data"]["text"])["error"]["code"] == 40303
    assert bank.paid(amount) == bank.transitions(ticket)["claim"] == bank.transitions(ticket)["request"] == 1
