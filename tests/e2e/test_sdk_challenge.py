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

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, ElicitRequestParams, ElicitResult, TextContent

from tests.e2e.test_sdk_legs import until_serving
from tests.support.postgres import Postgres
from tests.support.processes import eventually
from tests.support.replicas import Pair, two_gateways
from tests.support.stack import HOLD, body, free_port

ROOT = Path(__file__).parents[2]
TYPESCRIPT = Path(__file__).parent / "typescript"
PAY = {"effect": "write", "scopes": ["files:write"], "approval": HOLD}
DATA = {"methods": {"tools/list": {}, "server/discover": {}}, "tools": {"pay": PAY}}
BRIEF = {**DATA, "tools": {"pay": {**PAY, "approval": {**HOLD, "ttl_s": 3}}}}
_amounts = itertools.count(1)


@pytest.fixture
def database(postgres: Postgres) -> str:
    """A PostgreSQL database of the test's own."""
    return postgres.create()


@dataclass
class Bank:
    """Both gateways, and what the bank behind them did."""

    pair: Pair
    file: Path
    pages: list[str] = field(default_factory=list)

    def paid(self, amount: int) -> int:
        """How often a payment was made."""
        noted = [line.split() for line in self.file.read_text().splitlines()] if self.file.exists() else []
        return sum((verb, number) == ("paid", str(amount)) for _, verb, _, number in noted)

    @contextlib.asynccontextmanager
    async def client(self, word: str = "accept") -> AsyncIterator[Client]:
        """The client as an application makes it; its user says `word` to a page, and yes to the bank."""

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
            async with Client(transport, mode="2026-07-28", elicitation_callback=answer) as client:
                yield client

    async def sent_to(self, before: int) -> str:
        """The ticket of the page that a client was sent to after the first `before`."""
        await eventually("a client is sent to a page", lambda: len(self.pages) > before)
        return self.pages[before].rpartition("/")[2]

    async def until_kept(self, ticket: str, times: int = 3) -> None:
        """Wait until calls that need this ticket were answered so often without being run."""
        await eventually("it is kept for several rounds", lambda: len(self.refusals(ticket)) >= times)

    def refusals(self, ticket: str) -> list[dict[str, Any]]:
        """The records of requests that were held for a ticket and not run."""
        return [one for one in self.pair.records() if one["kind"] == "refusal" and one["ticket"] == ticket]

    def transitions(self, ticket: str) -> Counter[str]:
        """What happened to a ticket, by both gateways' records."""
        moved = [one for one in self.pair.records() if one["kind"] == "approval" and one["ticket"] == ticket]
        return Counter(one["transition"] for one in moved)


@contextlib.asynccontextmanager
async def a_bank(folder: Path, database: str, *, data: Any = DATA, hold_s: float = 2.0) -> AsyncIterator[Bank]:
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
            folder, servers, data=data, database=database, approvals={"hold_s": hold_s}
        ) as pair:  # fmt: skip
            yield Bank(pair, file)
    finally:
        with contextlib.suppress(ProcessLookupError):
            replica.kill()
        await replica.wait()


def pay(client: Client, amount: int, **more: Any) -> asyncio.Task[CallToolResult]:
    """A payment, by the client's own driver of questions."""
    return asyncio.create_task(client.call_tool("pay", {"to": "acme", "amount": amount}, **more))


def text_of(result: CallToolResult) -> str:
    """What the tool says."""
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


@pytest.mark.timeout(300)
async def test_the_python_client_waits_by_itself_and_pays_once(tmp_path: Path, database: str) -> None:
    """Sent to one page, kept over several rounds at both gateways, approved by a person meanwhile, asked by the bank
    itself, paid once; one ticket, and nobody was told of it twice."""
    async with a_bank(tmp_path, database) as bank, bank.client() as client:
        for number in range(3):
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
        by = [len([one for one in each.records() if one["kind"] == "refusal"]) for each in bank.pair.gateways]
        assert min(by) > 1, "both gateways kept it"


@pytest.mark.timeout(300)
async def test_two_gateways_of_one_host_share_a_file_alike(tmp_path: Path) -> None:
    """On one SQLite file as well: held at one, decided at the other, run once."""
    async with a_bank(tmp_path, "") as bank, bank.client() as client:
        amount = next(_amounts)
        paying = pay(client, amount)
        ticket = await bank.sent_to(0)
        await bank.until_kept(ticket)
        await bank.pair.act("approve", ticket)
        assert text_of(await asyncio.wait_for(paying, 30)) == "paid"
        assert bank.paid(amount) == bank.transitions(ticket)["request"] == 1


@pytest.mark.timeout(300)
async def test_a_no_reaches_the_client_that_waits(tmp_path: Path, database: str) -> None:
    """Denied by a person, withdrawn by its requester, declined by its user: each an error that says so."""
    async with a_bank(tmp_path, database, hold_s=20.0) as bank:
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


@pytest.mark.timeout(300)
async def test_a_client_that_waits_too_long_learns_that_its_ticket_expired(tmp_path: Path, database: str) -> None:
    """Nobody decided: 40304 `expired` while it is kept, and no second ticket instead."""
    async with a_bank(tmp_path, database, data=BRIEF, hold_s=20.0) as bank, bank.client() as client:
        paying = pay(client, next(_amounts))
        ticket = await bank.sent_to(0)
        with pytest.raises(MCPError) as refused:
            await asyncio.wait_for(paying, 20)
        assert (refused.value.error.code, refused.value.error.data["why"]) == (40304, "expired")
        assert refused.value.error.data["ticket"]["id"] == ticket
        assert sum(one["kind"] == "approval" and one["transition"] == "request" for one in bank.pair.records()) == 1


@pytest.mark.timeout(300)
async def test_a_client_whose_patience_is_shorter_than_the_hold_repeats_the_call(
    tmp_path: Path, database: str
) -> None:
    """A read timeout ends the client's wait and nothing else: recorded as gone, and the identical call runs later."""
    async with a_bank(tmp_path, database, hold_s=30.0) as bank:
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


@pytest.mark.timeout(300)
async def test_a_gateway_that_stops_hands_its_waiting_clients_on(tmp_path: Path, database: str) -> None:
    """SIGTERM: whoever waits there is answered at once, goes on at the other gateway, and is paid there."""
    async with a_bank(tmp_path, database, hold_s=30.0) as bank, bank.client() as client:
        amount = next(_amounts)
        paying = pay(client, amount)
        ticket = await bank.sent_to(0)
        keeps: list[Any] = []

        async def is_kept() -> bool:
            for gateway in bank.pair.gateways:
                shown = (await bank.pair.http.get(f"{gateway.admin}/metrics")).text
                if "ostiary_calls_waiting 1.0" in shown:
                    keeps[:] = [gateway]
            return bool(keeps)

        await eventually("it is kept somewhere", is_kept)
        assert await asyncio.wait_for(keeps[0].stop(), 20) == 0
        assert not paying.done()
        await bank.pair.act("approve", ticket)
        assert text_of(await asyncio.wait_for(paying, 30)) == "paid"
        assert bank.paid(amount) == 1


@pytest.mark.timeout(300)
async def test_of_retries_kept_at_both_gateways_one_reaches_the_server(tmp_path: Path, database: str) -> None:
    """APR-02: twelve copies of one retry, kept at either gateway when a person says yes: one is sent, the others are
    told why not, no 5xx, and nobody is asked for anything anew."""
    async with a_bank(tmp_path, database, hold_s=30.0) as bank:
        one, amount = bank.pair.one, next(_amounts)
        call = body("tools/call", {"name": "pay", "arguments": {"to": "acme", "amount": amount}})
        call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {
            "elicitation": {"form": {}, "url": {}}
        }
        asked = (await one.post("bank", call)).json()["result"]
        ticket = asked["inputRequests"]["approval"]["params"]["url"].rpartition("/")[2]
        retry = {**call, "params": {**call["params"], "requestState": asked["requestState"]}}
        retry["params"]["inputResponses"] = {"approval": {"action": "accept"}}
        kept = [asyncio.create_task(one.post("bank", retry, Connection="close")) for _ in range(12)]

        async def all_wait() -> bool:
            shown = [(await bank.pair.http.get(f"{gateway.admin}/metrics")).text for gateway in bank.pair.gateways]
            lines = [
                line for text in shown for line in text.splitlines() if line.startswith("ostiary_calls_waiting ")
            ]
            return sum(float(line.split()[1]) for line in lines) == 12

        await eventually("all of them are kept", all_wait)
        await bank.pair.act("approve", ticket)
        answers = [answer.json() for answer in await asyncio.wait_for(asyncio.gather(*kept), 30)]
        ran = [answer for answer in answers if "result" in answer]
        assert [list(answer["result"]["inputRequests"]) != ["approval"] for answer in ran] == [True]
        assert {answer["error"]["code"] for answer in answers if "error" in answer} == {40304}
        assert bank.transitions(ticket)["claim"] == bank.transitions(ticket)["request"] == 1
        requests = [
            one for one in bank.pair.records() if one["kind"] == "approval" and one["transition"] == "request"
        ]
        assert len(requests) == 1


async def drive(plan: dict[str, Any]) -> dict[str, Any]:
    """Run the TypeScript client on a plan; its answer decoded."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (TYPESCRIPT / "node_modules" / "@modelcontextprotocol" / "client").is_dir():
        pytest.skip("the TypeScript client is not installed: npm ci --prefix tests/e2e/typescript")
    process = await asyncio.create_subprocess_exec(
        node, "client.mjs", cwd=TYPESCRIPT,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await asyncio.wait_for(process.communicate(json.dumps(plan).encode()), 60)
    assert process.returncode == 0, errors.decode()
    said: dict[str, Any] = json.loads(out)
    return said


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("verb", "paid"), [("approve", 1), ("deny", 0)])
async def test_the_typescript_client_waits_by_itself(tmp_path: Path, database: str, verb: str, paid: int) -> None:
    """The same story: sent to one page, kept until a person decides, paid once, or told that it was denied."""
    async with a_bank(tmp_path, database) as bank:
        amount = next(_amounts)
        plan = {
            "url": bank.pair.one.endpoint("bank"),
            "token": bank.pair.one.token("bank"),
            "mode": {"pin": "2026-07-28"},
            "opens": True,
            "calls": [{"name": "pay", "arguments": {"to": "acme", "amount": amount}}],
        }
        driving = asyncio.create_task(drive(plan))
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
