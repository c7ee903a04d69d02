"""The server that the suite is run against: all fixtures on the official SDK, as two replicas with one store.

`python -m tests.conformance.server [--careless] PORT PORT` serves the same at `/everything/mcp` on both ports until
it is told to stop; a careless one never finds a header wrong. Replicas share what replicas of a real server share:
the key of their states, tasks, and the bus over which one hears what the other announces.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import MCPServer, RequestStateSecurity
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.types import EmptyResult, SetLevelRequestParams, SubscribeRequestParams, UnsubscribeRequestParams
from starlette.types import ASGIApp

from tests.conformance import asking, offering
from tests.conformance.careless import Careless
from tests.conformance.jobs import Jobs

PATH = "/everything/mcp"
STATE_KEY = b"one key for all replicas of this test server"


async def nothing(ctx: ServerRequestContext[Any, Any], params: Any) -> EmptyResult:
    """Methods that only 2025-11-25 has: the answer is all that its scenarios look at."""
    return EmptyResult()


def serve_older_methods(server: Server[Any]) -> None:
    """What the revision before asks for and the SDK leaves to the server."""
    server.add_request_handler("logging/setLevel", SetLevelRequestParams, nothing)
    server.add_request_handler("resources/subscribe", SubscribeRequestParams, nothing)
    server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, nothing)


def build(jobs: Jobs, bus: InMemorySubscriptionBus) -> MCPServer[Any]:
    """One replica."""
    server = MCPServer[Any](
        name="everything",
        version="1.0.0",
        tools=[offering.keywords_tool()],
        extensions=[jobs],
        subscriptions=bus,
        request_state_security=RequestStateSecurity(keys=[STATE_KEY]),
        log_level="WARNING",
    )
    offering.offer_contents(server)
    offering.offer_work(server)
    offering.offer_resources(server)
    offering.offer_prompts(server)
    asking.ask_once(server)
    asking.ask_with_state(server)
    asking.ask_both_ways(server)
    serve_older_methods(server._lowlevel_server)
    return server


async def serve(ports: list[int], *, careless: bool) -> None:
    """Serve a replica on each port until a signal comes."""
    jobs, bus = Jobs(), InMemorySubscriptionBus()
    replicas = []
    for port in ports:
        app: ASGIApp = build(jobs, bus).streamable_http_app(streamable_http_path=PATH, retry_interval=100)
        served = Careless(app) if careless else app
        replicas.append(uvicorn.Server(uvicorn.Config(served, port=port, log_level="warning", access_log=False)))
    await asyncio.gather(*(replica.serve() for replica in replicas))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve([int(port) for port in sys.argv[-2:]], careless="--careless" in sys.argv))
