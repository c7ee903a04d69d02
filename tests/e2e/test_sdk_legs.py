"""A payment that a person approves and its payer confirms: the official SDK on both ends, two workers, two replicas.

Neither end knows of the gateway. The client answers the server's question by itself, on whatever worker and replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, ElicitRequestParams, ElicitResult, InputRequiredResult, TextContent

from tests.support.ports import free_port
from tests.support.processes import eventually
from tests.support.stack import HOLD, Stack

ROOT = Path(__file__).parents[2]
PAY = {"effect": "write", "scopes": ["files:write"], "approval": HOLD}
DATA = {
    "methods": {"tools/list": {}, "server/discover": {}},
    "tools": {"pay": PAY},
}
AGAIN = {**DATA, "tools": {"pay": {**PAY, "approval": {**HOLD, "answers": "again"}}}}
_amounts = itertools.count(1)


@dataclass
class Bank:
    """Two replicas with one memory, and the gateway before them."""

    stack: Stack
    file: Path
    asked: list[str] = field(default_factory=list)

    def lines(self, amount: int, what: str) -> list[str]:
        """Which replicas did this about a payment."""
        noted = [line.split() for line in self.file.read_text().splitlines()] if self.file.exists() else []
        return [name for name, verb, _, number in noted if (verb, number) == (what, str(amount))]

    @contextlib.asynccontextmanager
    async def client(self, subject: str = "alice", *, sure: bool = True) -> AsyncIterator[Client]:
        """The client as an application makes it, with somebody who answers questions."""

        async def answer(context: Any, params: ElicitRequestParams) -> ElicitResult:
            self.asked.append(params.message)
            return ElicitResult(action="accept", content={"sure": sure})

        headers = {"Authorization": f"Bearer {self.stack.token('bank', subject)}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
            transport = streamable_http_client(self.stack.endpoint("bank"), http_client=http)
            async with Client(transport, mode="2026-07-28", elicitation_callback=answer) as client:
                yield client

    async def act(self, verb: str, ticket: str) -> None:
        """Bob decides."""
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            url = f"{self.stack.url}/approvals/{ticket}"
            headers = {"Authorization": f"Bearer {self.stack.person()}"}
            given = await http.post(f"{url}/{verb}", headers=headers, json={"comment": "e2e"})
        assert given.status_code == 200, given.text

    async def runs(self, ticket: str) -> list[str]:
        """How a ticket's uses stand."""
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            headers = {"Authorization": f"Bearer {self.stack.person()}"}
            shown = (await http.get(f"{self.stack.url}/approvals/{ticket}", headers=headers)).json()
        return [run["state"] for run in shown["runs"]]

    def told(self, ticket: str) -> list[tuple[str, str]]:
        """What the record says of a ticket's requests, over all workers: kind and outcome."""
        every = [one for writer in range(self.stack.workers) for one in self.stack.records(writer)]
        mine = [one for one in every if one["ticket"] == ticket and one["kind"] in ("decision", "outcome")]
        return sorted((one["kind"], one["outcome"] or "") for one in mine)

    async def until_told(self, ticket: str, wanted: list[tuple[str, str]]) -> None:
        """Wait for the record: outcomes join the next commit."""
        await eventually("both legs are recorded", lambda: self.told(ticket) == wanted)


async def until_serving(port: int) -> None:
    """Wait until something listens there."""

    async def serves() -> bool:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
        return False

    await eventually("a replica serves", serves, 60)


@contextlib.asynccontextmanager
async def a_bank(folder: Path, data: Any = DATA) -> AsyncIterator[Bank]:
    """Everything, as processes."""
    file, ports = folder / "payments.txt", [free_port(), free_port()]
    replicas = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.e2e.asking_server", str(port), str(file), f"replica-{number}",
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for number, port in enumerate(ports)
    ]  # fmt: skip
    try:
        for port in ports:
            await until_serving(port)
        urls: Sequence[str] = [f"http://127.0.0.1:{port}/mcp" for port in ports]
        # Held calls are told by the error: this suite repeats them by itself.
        async with Stack(folder, {"bank": urls}, workers=2, data=data, settings={"challenge": "error"}) as stack:
            yield Bank(stack, file)
    finally:
        for replica in replicas:
            with contextlib.suppress(ProcessLookupError):
                replica.kill()
            await replica.wait()


async def held(client: Client, amount: int) -> dict[str, Any]:
    """The ticket that a payment has to wait for."""
    with pytest.raises(MCPError) as caught:
        await client.call_tool("pay", {"to": "acme", "amount": amount})
    assert caught.value.error.code == 40303
    ticket: dict[str, Any] = caught.value.error.data["ticket"]
    return ticket


def text_of(result: CallToolResult) -> str:
    """What the tool says."""
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


@pytest.mark.timeout(300)
async def test_an_approved_payment_is_confirmed_and_made_once(tmp_path: Path) -> None:
    """APR-09: approved once, asked once, paid once; on the way nobody pays for less. Then what is refused of it."""
    async with a_bank(tmp_path) as bank, bank.client() as client:
        for _ in range(4):  # so that both workers and both replicas have their turn
            amount = next(_amounts)
            ticket = await held(client, amount)
            assert bank.lines(amount, "asked") == []
            await bank.act("approve", ticket["id"])
            result = await client.call_tool("pay", {"to": "acme", "amount": amount})
            assert text_of(result) == "paid"
            assert bank.asked[-1] == f"Pay {amount} to acme?"
            assert len(bank.lines(amount, "paid")) == 1
            assert await bank.runs(ticket["id"]) == ["executed"]
            wanted = [("decision", "")] * 2 + [("outcome", "executed"), ("outcome", "input_required")]
            await bank.until_told(ticket["id"], wanted)
            assert (await held(client, amount))["id"] != ticket["id"]

        amount = next(_amounts)
        ticket = await held(client, amount)
        await bank.act("approve", ticket["id"])
        arguments: dict[str, Any] = {"to": "acme", "amount": amount}
        asked = await client.session.call_tool("pay", arguments, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        assert asked.input_requests is not None
        answers = {name: ElicitResult(action="accept", content={"sure": True}) for name in asked.input_requests}
        going_on: dict[str, Any] = {"input_responses": answers, "request_state": asked.request_state}
        with pytest.raises(MCPError) as refused:
            await client.session.call_tool("pay", {"to": "acme", "amount": amount + 1000}, **going_on)
        assert refused.value.error.code == -32602
        with pytest.raises(MCPError) as refused:
            await client.session.call_tool("pay", arguments)
        assert refused.value.error.data["why"] == "waiting"
        async with bank.client("mallory") as other:
            with pytest.raises(MCPError) as refused:
                await other.session.call_tool("pay", arguments, **going_on)
        assert refused.value.error.code == -32602

        each = [client.session.call_tool("pay", arguments, **going_on) for _ in range(20)]
        found = await asyncio.gather(*each, return_exceptions=True)
        codes = Counter(one.error.code if isinstance(one, MCPError) else "paid" for one in found)
        assert codes == {"paid": 1, 40304: 19}
        assert len(bank.lines(amount, "paid")) == 1
        assert await bank.runs(ticket["id"]) == ["executed"]


@pytest.mark.timeout(300)
async def test_answers_that_are_approved_as_well(tmp_path: Path) -> None:
    """`approval.answers: "again"`: the client repeats its answer, as it repeats any held call; paid once."""
    async with a_bank(tmp_path, AGAIN) as bank, bank.client() as client:
        amount = next(_amounts)
        first = await held(client, amount)
        await bank.act("approve", first["id"])
        arguments: dict[str, Any] = {"to": "acme", "amount": amount}
        asked = await client.session.call_tool("pay", arguments, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        assert asked.input_requests is not None
        answers = {name: ElicitResult(action="accept", content={"sure": True}) for name in asked.input_requests}
        going_on: dict[str, Any] = {"input_responses": answers, "request_state": asked.request_state}
        with pytest.raises(MCPError) as waits:
            await client.session.call_tool("pay", arguments, **going_on)
        assert waits.value.error.code == 40303
        second = waits.value.error.data["ticket"]["id"]
        assert second != first["id"]
        assert bank.lines(amount, "paid") == []
        await bank.act("approve", second)
        result = await client.session.call_tool("pay", arguments, **going_on)
        assert isinstance(result, CallToolResult)
        assert text_of(result) == "paid"
        assert len(bank.lines(amount, "paid")) == 1
        assert await bank.runs(first["id"]) == await bank.runs(second) == ["executed"]
