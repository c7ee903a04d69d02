"""The official client subscribes through the gateway to the official server, and learns how its subscription ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import Subscription
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.subscriptions import ResourceUpdated, ToolsListChanged

from tests.support.ports import free_port
from tests.support.stack import Stack

DATA = {
    "methods": {"tools/list": {}, "server/discover": {}, "subscriptions/listen": {}},
    "tools": {"change": {"effect": "read"}},
    "resources": {"demo://a": {}},
}


@pytest.fixture
def replica() -> Iterator[str]:
    """A server as its author writes it; its one tool says that things have changed."""
    server = MCPServer("changing")

    @server.tool()
    async def change(ctx: Context) -> str:
        await ctx.notify_tools_changed()
        await ctx.notify_prompts_changed()
        await ctx.notify_resource_updated("demo://a")
        return "changed"

    port = free_port()
    config = uvicorn.Config(server.streamable_http_app(), port=port, log_config=None, timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    end = time.monotonic() + 20
    while not running.started:
        assert time.monotonic() < end
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}/mcp"
    running.should_exit = True
    thread.join(20)


@pytest.fixture
async def stack(tmp_path: Path, replica: str) -> AsyncIterator[Stack]:
    """The gateway in front of it."""
    async with Stack(tmp_path, {"main": [replica]}, data=DATA) as running:
        yield running


@contextlib.asynccontextmanager
async def connect(stack: Stack, token: str) -> AsyncIterator[Client]:
    """The client as an application makes it."""
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False) as http:
        transport = streamable_http_client(stack.endpoint("main"), http_client=http)
        async with Client(transport, mode="2026-07-28") as client:
            yield client


async def rest_of(subscription: Subscription) -> list[object]:
    """Everything up to its graceful end; `SubscriptionLost` where there is none."""
    return [event async for event in subscription]


async def test_the_client_hears_of_what_it_asked_for_until_the_gateway_stops(stack: Stack) -> None:
    """Changes arrive as events; the stop is a graceful end and no loss."""
    wanted: dict[str, Any] = {"tools_list_changed": True, "resource_subscriptions": ["demo://a"]}
    async with connect(stack, stack.token("main")) as client, client.listen(**wanted) as subscription:
        assert subscription.honored.tools_list_changed is True
        assert subscription.honored.prompts_list_changed is None
        assert (await client.call_tool("change", {})).is_error is False
        events = [await asyncio.wait_for(anext(subscription), 20) for _ in range(2)]
        assert sorted(events, key=str) == sorted([ToolsListChanged(), ResourceUpdated(uri="demo://a")], key=str)
        ending = asyncio.create_task(rest_of(subscription))
        assert await stack.stop() == 0
        assert await asyncio.wait_for(ending, 20) == []


async def test_the_client_takes_the_end_of_its_token_for_a_graceful_end(stack: Stack) -> None:
    """JWT-13, as the official client sees it."""
    token = stack.token("main", exp=int(time.time()) + 5)
    async with connect(stack, token) as client, client.listen(tools_list_changed=True) as subscription:
        assert await asyncio.wait_for(rest_of(subscription), 36) == []
