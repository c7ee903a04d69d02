"""The official Python client, 2.x, speaking 2026-07-28, knows nothing of the gateway and works through it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import TextContent, TextResourceContents

from gateway.demo.exchange import ask_api, ask_mcp, ask_tool, send
from gateway.demo.stack import Stack

READS = "mcp:use bank:read"
PAYS = "mcp:use bank:read payments:write"


@contextlib.asynccontextmanager
async def connect(stack: Stack, server: str, scope: str, mode: str = "2026-07-28") -> AsyncIterator[Client]:
    """The client as an application makes it: a URL and a bearer token."""
    token = stack.mint("alice", server, scope)
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=30, trust_env=False) as http:
        transport = streamable_http_client(stack.house.endpoint(server), http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


@pytest.mark.parametrize("mode", ["auto", "2026-07-28"])
async def test_the_client_lists_calls_reads_and_prompts(stack: Stack, mode: str) -> None:
    """Everything that the read-only server offers can be used through the gateway, probing or pinned."""
    async with connect(stack, "readonly", READS, mode) as client:
        assert client.protocol_version == "2026-07-28"
        assert [tool.name for tool in (await client.list_tools()).tools] == ["get_balance", "list_transfers"]
        assert [str(each.uri) for each in (await client.list_resources()).resources] == ["bank://accounts"]
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["account_report"]

        result = await client.call_tool("get_balance", {"account": "payroll"})
        assert not result.is_error
        assert result.structured_content is not None
        assert result.structured_content["balance_cents"] == stack.books.balance("payroll")

        contents = (await client.read_resource("bank://accounts")).contents
        assert isinstance(contents[0], TextResourceContents)
        assert "supplier-acme" in contents[0].text
        prompt = await client.get_prompt("account_report", {"account": "payroll"})
        assert isinstance(prompt.messages[0].content, TextContent)
        assert "payroll" in prompt.messages[0].content.text


async def test_a_tools_own_error_reaches_the_client_as_one(stack: Stack) -> None:
    """What the server says about its own work passes unchanged: it is a result, not a refusal."""
    async with connect(stack, "readonly", READS) as client:
        result = await client.call_tool("get_balance", {"account": "nowhere"})
        assert result.is_error
        assert isinstance(result.content[0], TextContent)
        assert "there is no account 'nowhere'" in result.content[0].text


async def test_a_gated_call_runs_once_after_approval_by_repeating_it(stack: Stack) -> None:
    """A client that knows nothing of approvals repeats its call: held, then run exactly once, then held again."""
    arguments: dict[str, Any] = {
        "from_account": "operating",
        "to_account": "supplier-globex",
        "amount_cents": 1_234,
        "memo": "python client",
    }

    def moved() -> int:
        return sum(line["memo"] == arguments["memo"] for line in stack.books.transfers())

    reviewer = stack.mint("bob", "approvals", "approvals:read approvals:decide")
    async with connect(stack, "payments", PAYS) as client:
        assert "transfer_funds" in [tool.name for tool in (await client.list_tools()).tools]
        with pytest.raises(MCPError) as held:
            await client.call_tool("transfer_funds", arguments)
        assert held.value.error.code == 40303
        assert moved() == 0
        ticket = held.value.error.data["ticket"]

        url = f"{stack.house.approvals_url}/{ticket['id']}"
        yes = send(stack.http, ask_api(f"{url}/approve", reviewer, {"comment": "fine"}))
        assert yes.status // 100 == 2, yes.text

        result = await client.call_tool("transfer_funds", arguments)
        assert not result.is_error
        assert moved() == 1

        with pytest.raises(MCPError) as again:
            await client.call_tool("transfer_funds", arguments)
        assert again.value.error.code == 40303
        assert again.value.error.data["ticket"]["id"] != ticket["id"]
        assert moved() == 1


async def test_two_hundred_concurrent_calls_over_two_replicas(stack: Stack) -> None:
    """All answers are right and belong to their call, and both replicas served (issue 2, must show 5)."""
    accounts = ("operating", "payroll", "supplier-acme", "supplier-globex")
    balances = {account: stack.books.balance(account) for account in accounts}
    before = Counter(line["replica"] for line in stack.books.arrivals("tools/call"))
    async with connect(stack, "readonly", READS) as client:
        results = await asyncio.gather(
            *(client.call_tool("get_balance", {"account": accounts[n % 4]}) for n in range(200))
        )
    for n, result in enumerate(results):
        assert result.structured_content is not None
        assert result.structured_content["account"] == accounts[n % 4]
        assert result.structured_content["balance_cents"] == balances[accounts[n % 4]]
    served = Counter(line["replica"] for line in stack.books.arrivals("tools/call")) - before
    assert served.total() == 200
    assert set(served) == {"replica-1", "replica-2"}
    assert min(served.values()) > 20


def test_another_protocol_version_in_the_header_reaches_neither_policy_nor_tool(stack: Stack) -> None:
    """The same body with another MCP-Protocol-Version: 400 -32020, nothing invoked (issue 2, must show 3)."""
    token = stack.mint("alice", "readonly", READS)
    honest = ask_tool(stack.house.endpoint("readonly"), token, "get_balance", {"account": "payroll"})
    assert send(stack.http, honest).status == 200

    arrivals = len(stack.books.arrivals("tools/call"))
    lying = ask_tool(
        stack.house.endpoint("readonly"),
        token,
        "get_balance",
        {"account": "payroll"},
        headers={"MCP-Protocol-Version": "2025-11-25"},
    )
    answer = send(stack.http, lying)
    assert (answer.status, answer.code) == (400, -32020)
    assert lying.body is not None
    assert answer.document["id"] == lying.body["id"]
    assert len(stack.books.arrivals("tools/call")) == arrivals
    refusal = stack.await_records(answer.decision_id, "refusal")[0]
    assert refusal["reasons"] == ["header_mismatch"]
    assert not refusal.get("verdict"), "the policy was asked"


def test_a_token_for_the_read_only_server_is_refused_by_the_other(stack: Stack) -> None:
    """Audience decides: 401, upstream untouched (issue 2, must show 4)."""
    token = stack.mint("alice", "readonly", PAYS)
    assert send(stack.http, ask_mcp(stack.house.endpoint("readonly"), token, "tools/list", {})).status == 200
    arrivals = len(stack.books.arrivals("tools/list"))
    answer = send(stack.http, ask_mcp(stack.house.endpoint("payments"), token, "tools/list", {}))
    assert answer.status == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert len(stack.books.arrivals("tools/list")) == arrivals


async def test_a_hundred_parallel_uses_of_one_approval_make_one_call(stack: Stack) -> None:
    """Whoever is first consumes it: one execution, and every other call is a 403 at once (issue 2, must show 5)."""
    arguments = {"from_account": "operating", "to_account": "supplier-globex", "amount_cents": 31, "memo": "race"}
    token = stack.mint("alice", "payments", PAYS)
    bob = stack.mint("bob", "approvals", "approvals:read approvals:decide")
    ask = ask_tool(stack.house.endpoint("payments"), token, "transfer_funds", arguments)
    held = send(stack.http, ask)
    assert held.code == 40303, held.text
    url = f"{stack.house.approvals_url}/{held.ticket['id']}/approve"
    assert send(stack.http, ask_api(url, bob, {"comment": "once"})).status // 100 == 2

    before = len(stack.books.arrivals("tools/call"))
    limits = httpx2.Limits(max_connections=100)
    async with httpx2.AsyncClient(trust_env=False, timeout=30, limits=limits) as http:
        answers = await asyncio.gather(
            *(http.post(ask.url, headers=dict(ask.headers), content=ask.text) for _ in range(100))
        )
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses == {200: 1, 403: 99}, statuses
    codes = {answer.json()["error"]["code"] for answer in answers if answer.status_code == 403}
    assert codes <= {40303, 40304}
    assert len(stack.books.arrivals("tools/call")) == before + 1
    assert sum(line["memo"] == "race" for line in stack.books.transfers()) == 1
