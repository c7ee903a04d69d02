"""The fixture server with two replicas, and a gateway in front of it: the stage for the suite and the clients."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from mcp.server.subscriptions import InMemorySubscriptionBus

from tests.conformance.jobs import Jobs
from tests.conformance.server import PATH, build
from tests.conformance.shim import Shim
from tests.support.ports import free_port
from tests.support.processes import eventually
from tests.support.stack import Stack

NAME = "everything"
SCOPE = "mcp:use"
METHODS = ("completion/complete", "subscriptions/listen")


async def policy_data() -> dict[str, Any]:
    """A policy that lets everybody use all that the server offers."""
    server = build(Jobs(), InMemorySubscriptionBus())
    tools = {tool.name: {"effect": "read"} for tool in await server.list_tools()}
    prompts: dict[str, Any] = {prompt.name: {} for prompt in await server.list_prompts()}
    methods: dict[str, Any] = {name: {} for name in METHODS}
    return {"methods": methods, "tools": tools, "prompts": prompts, "resources": {"test://": {}}}


@contextlib.asynccontextmanager
async def fixture_server(folder: Path, *options: str) -> AsyncIterator[list[str]]:
    """Both replicas' endpoints, for as long as they are needed."""
    ports = [free_port(), free_port()]
    with (folder / "server.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.conformance.server",
            *options,
            *map(str, ports),
            stdout=log,
            stderr=log,
        )
    try:

        async def answering() -> bool:
            assert process.returncode is None, (folder / "server.log").read_text()
            with contextlib.suppress(httpx.TransportError):
                async with httpx.AsyncClient(trust_env=False) as client:
                    for port in ports:
                        await client.get(f"http://127.0.0.1:{port}/")
                return True
            return False

        await eventually("the fixture server answers", answering, 60)
        yield [f"http://127.0.0.1:{port}{PATH}" for port in ports]
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 10)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def gateway(folder: Path, replicas: list[str], **settings: Any) -> Stack:
    """A gateway in front of `replicas`, not started. `settings` are more settings of the server."""
    return Stack(folder, {NAME: replicas}, workers=2, data=await policy_data(), settings=settings)


def token(house: Stack) -> str:
    """A good token for the server."""
    return house.token(NAME, scope=SCOPE)


@contextlib.asynccontextmanager
async def shimmed(house: Stack) -> AsyncIterator[str]:
    """The gateway, running, behind a shim that adds a token -> the server's endpoint there.

    The suite calls the shim by its address, so that is a `Host` and an `Origin` that the gateway is told to serve.
    """
    async with Shim(house.port, token(house)) as shim:
        house.changes = {**house.changes, "allowed_hosts": [shim.authority]}
        house.settings = {**house.settings, "allowed_origins": [f"http://{shim.authority}"]}
        async with house:
            yield f"http://{shim.authority}{PATH}"
