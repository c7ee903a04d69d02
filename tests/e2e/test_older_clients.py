"""Official clients of revisions before 2026-07-28, unmodified, against modern servers through `legacy_clients`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from gateway.demo.house import Ports
from gateway.demo.stack import Stack
from tests.e2e.test_old_servers import ARCHITECTURE, DATA, EVERYTHING, OldServer
from tests.support import stack as processes

HERE = Path(__file__).parent
READS, PAYS = "mcp:use bank:read", "mcp:use bank:read payments:write"
OLD = "2025-11-25"
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """The demo with both its servers open to older clients."""
    on = {f"OSTIARY_SERVERS__{name.upper()}__LEGACY_CLIENTS": "true" for name in ("readonly", "payments")}
    with Stack(ports=Ports.free(), workers=2, environment=on) as running:
        yield running


def typescript() -> list[str]:
    """SDK 1.x for TypeScript."""
    if not (HERE / "typescript/node_modules/@modelcontextprotocol/sdk").is_dir():
        lacks("the older TypeScript client is not installed: npm ci --prefix tests/e2e/typescript")
    return [shutil.which("node") or "node", str(HERE / "typescript/older.mjs")]


def python() -> list[str]:
    """SDK 1.x for Python, in an environment of its own."""
    found = HERE / "old_sdk/.venv/bin/python"
    if not found.exists():
        lacks("the older Python client is not installed: tests/e2e/old_sdk/.venv, from requirements.lock beside it")
    return [str(found), str(HERE / "old_sdk/client.py")]


def lacks(what: str) -> None:
    """What CI installs may be missing elsewhere."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(params=[typescript, python], ids=["typescript", "python"])
def command(request: pytest.FixtureRequest) -> list[str]:
    """How a client is started."""
    started: list[str] = request.param()
    return started


class Told:
    """A client that runs: `hear` is its next answer, `go_on` lets it past a `wait`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def hear(self) -> dict[str, Any]:
        """The next step's answer."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert line, "the client ended"
        told: dict[str, Any] = json.loads(line)
        return told

    async def go_on(self) -> None:
        """Past a `wait`."""
        await self.say({})
        assert "result" in await self.hear()

    async def say(self, document: dict[str, Any]) -> None:
        """A line for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(document).encode() + b"\n")
        await self._process.stdin.drain()


def talking(
    command: list[str], stack: Stack, server: str, scope: str, *steps: list[Any]
) -> AbstractAsyncContextManager[Told]:
    """Alice's client begins a conversation with one of the demo's servers and does these steps."""
    return conversing(command, stack.house.endpoint(server), stack.mint("alice", server, scope), *steps)


@asynccontextmanager
async def conversing(command: list[str], url: str, token: str, *steps: list[Any]) -> AsyncIterator[Told]:
    """A client that begins a conversation and does these steps."""
    pipe = asyncio.subprocess.PIPE
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, cwd=HERE, env=environment, limit=1 << 22
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            told = Told(process)
            await told.say({"url": url, "token": token, "steps": steps})
            yield told
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_an_older_client_works_as_it_always_did(command: list[str], stack: Stack) -> None:
    """Begin, ping, list, call, read, prompt, and the end of it: with the server's own answers."""
    steps: list[list[Any]] = [
        ["ping"], ["tools"], ["call", "get_balance", {"account": "payroll"}], ["read", "bank://accounts"],
        ["prompt", "account_report", {"account": "payroll"}], ["roots"], ["end"],
    ]  # fmt: skip
    async with talking(command, stack, "readonly", READS, *steps) as client:
        begun = (await client.hear())["result"]
        assert begun["protocolVersion"] == OLD
        assert begun["capabilities"] == {"tools": {}, "resources": {}, "prompts": {}}
        assert begun["serverInfo"]["name"] == "readonly"
        assert "result" in await client.hear()
        tools = (await client.hear())["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["get_balance", "list_transfers"]
        called = (await client.hear())["result"]
        assert called["structuredContent"]["balance_cents"] == stack.books.balance("payroll")
        assert "supplier-acme" in (await client.hear())["result"]["contents"][0]["text"]
        assert "payroll" in (await client.hear())["result"]["messages"][0]["content"]["text"]
        assert "result" in await client.hear()
        assert "result" in await client.hear()


async def test_what_is_refused_is_shown_and_breaks_nothing(command: list[str], stack: Stack) -> None:
    """A hidden tool, arguments that do not fit, a tool's own error: each is told, and the next call works."""
    good = ["call", "get_balance", {"account": "payroll"}]
    steps = [["call", "made_up", {}], ["call", "get_balance", {}], ["call", "get_balance", {"account": "x"}], good]
    async with talking(command, stack, "readonly", READS, *steps) as client:
        assert "result" in await client.hear()
        denied = (await client.hear())["error"]
        assert denied["code"] == 40302
        assert "policy does not allow" in denied["message"]
        misfit = (await client.hear())["result"]
        assert misfit["isError"]
        assert "account" in misfit["content"][0]["text"]
        assert (await client.hear())["result"]["isError"]
        assert (await client.hear())["result"]["structuredContent"]


async def test_a_held_call_shows_its_page_and_runs_once_approved(command: list[str], stack: Stack) -> None:
    """The error that the application gets names the ticket's page; repeated after the approval, it runs once."""
    memo = f"older client {Path(command[0]).name}"
    pay = {"from_account": "payroll", "to_account": "supplier-acme", "amount_cents": 700, "memo": memo}
    call = ["call", "transfer_funds", pay]
    async with talking(command, stack, "payments", PAYS, call, ["wait"], call, call) as client:
        assert "result" in await client.hear()
        held = (await client.hear())["error"]
        assert held["code"] == 40303
        page = re.search(rf"{re.escape(stack.house.public_url)}/review/tickets/([\w-]+) ", held["message"])
        assert page is not None, held["message"]
        ticket = page[1]
        bob = stack.mint("bob", "approvals", "approvals:read approvals:decide")
        async with httpx.AsyncClient(trust_env=False, timeout=WITHIN_S) as http:
            url = f"{stack.house.approvals_url}/{ticket}/approve"
            done = await http.post(url, json={"comment": "fine"}, headers={"Authorization": f"Bearer {bob}"})
        assert done.status_code == 200, done.text
        await client.go_on()
        assert (await client.hear())["result"]["structuredContent"]["amount_cents"] == 700
        assert (await client.hear())["error"]["code"] == 40303, "the approval is used up"
    assert [line["memo"] for line in stack.books.transfers()].count(memo) == 1


async def test_a_conversation_outlives_the_gateway_that_began_it(command: list[str], stack: Stack) -> None:
    """Nothing is stored: after kill -9 and a new start the same session goes on, in whichever worker."""
    call = ["call", "get_balance", {"account": "payroll"}]
    async with talking(command, stack, "readonly", READS, call, ["wait"], call) as client:
        assert "result" in await client.hear()
        assert "result" in await client.hear()
        await asyncio.to_thread(stack.restart_gateway)
        await client.go_on()
        assert (await client.hear())["result"]["structuredContent"]


async def test_the_client_of_today_in_yesterdays_words(stack: Stack) -> None:
    """The official 2.x client made to begin with `initialize` gets the same, errors included."""
    token = stack.mint("alice", "readonly", READS)
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=30, trust_env=False) as http:
        transport = streamable_http_client(stack.house.endpoint("readonly"), http_client=http)
        async with Client(transport, mode="legacy") as client:
            assert client.protocol_version == OLD
            assert [tool.name for tool in (await client.list_tools()).tools] == ["get_balance", "list_transfers"]
            assert (await client.call_tool("get_balance", {"account": "payroll"})).structured_content is not None
            with pytest.raises(MCPError) as denied:
                await client.call_tool("made_up", {})
            assert denied.value.code == 40302


async def test_both_eras_share_one_endpoint(stack: Stack) -> None:
    """A client of 2026-07-28 on the same endpoint still speaks 2026-07-28, whatever else is served there."""
    token = stack.mint("alice", "readonly", READS)
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=30, trust_env=False) as http:
        transport = streamable_http_client(stack.house.endpoint("readonly"), http_client=http)
        async with Client(transport, mode="auto") as client:
            assert client.protocol_version == "2026-07-28"


async def test_older_client_and_older_server_meet(command: list[str], tmp_path: Path) -> None:
    """With both sides in older words the gateway still judges requests of 2026-07-28, and both sides understand."""
    if not EVERYTHING.is_file():
        lacks("server-everything is not installed: npm ci --prefix tests/e2e/typescript")
    servers = [OldServer([shutil.which("node") or "node", str(EVERYTHING), "streamableHttp"]) for _ in range(2)]
    settings = {"legacy_servers": OLD, "legacy_clients": True}
    with contextlib.ExitStack() as running:
        for server in servers:
            running.callback(server.stop)
            server.start()
        names = {"old": [server.url for server in servers]}
        async with processes.Stack(tmp_path, names, data=DATA, settings=settings) as house:
            steps: list[list[Any]] = [
                ["tools"],
                ["call", "get-sum", {"a": 2, "b": 3}],
                ["call", "made-up", {}],
                ["read", ARCHITECTURE],
            ]
            async with conversing(command, house.endpoint("old"), house.token("old"), *steps) as client:
                assert (await client.hear())["result"]["serverInfo"]["name"] == "mcp-servers/everything"
                assert "get-sum" in [tool["name"] for tool in (await client.hear())["result"]["tools"]]
                assert "is 5" in (await client.hear())["result"]["content"][0]["text"]
                assert (await client.hear())["error"]["code"] == 40302
                assert (await client.hear())["result"]["contents"]
            calls = [one for one in house.records() if one["method"] == "tools/call" and one["kind"] == "outcome"]
    assert [(call["legacy"], call["outcome"]) for call in calls] == [(OLD, "executed")]
