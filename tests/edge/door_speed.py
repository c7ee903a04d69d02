"""What the door costs: the server's CPU time a request through it and without it, side by side.

`python -m tests.edge.door_speed` serves, each in a process of its own, a bare ASGI application on uvicorn's parsers
and the door with a corridor that only answers, and loads them in turns: a shared machine's noise meets all alike.
Report the ratios: the absolute numbers are this machine's. CPU time is what a busy machine distorts least.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, MutableMapping
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, cast

import uvicorn
import uvloop

from gateway.contract.passage import Arrival, Reply
from gateway.door.connection import server_options
from gateway.door.framing import DoorLimits
from gateway.edge import Edge
from tests.edge.door import HOST, MAIN

BODY = b'{"jsonrpc":"2.0","id":1,"method":"tools/call", "params":{"name":"read_file","arguments":{}}}'
REQUEST = b"\r\n".join(
    [
        b"POST /main/mcp HTTP/1.1",
        b"Host: gw.example",
        b"Accept: application/json, text/event-stream",
        b"Accept-Encoding: gzip, deflate",
        b"Connection: keep-alive",
        b"User-Agent: python-httpx/0.28.1",
        b"Content-Type: application/json",
        b"Authorization: Bearer " + b"x" * 700,
        b"MCP-Protocol-Version: 2026-07-28",
        b"Mcp-Method: tools/call",
        b"Mcp-Name: read_file",
        b"Content-Length: %d" % len(BODY),
        b"",
        BODY,
    ]
)
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'
HEADERS = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))


async def hello(scope: MutableMapping[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    """The least that an ASGI application can do with a POST."""
    await receive()
    headers = [*HEADERS, (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


class Answering:
    """A corridor without rooms."""

    async def serve(self, arrival: Arrival) -> Reply:
        """Take the request in, answer."""
        arrival.receive()
        await arrival.body()
        return Reply(200, HEADERS, ANSWER)


def _options(what: str) -> dict[str, Any]:
    if what == "door":
        edge = Edge(Answering(), {MAIN.path: MAIN}, DoorLimits(), {HOST})
        return {"app": edge, **server_options(DoorLimits(), lambda *_: "none")}
    bare = {"ws": "none", "interface": "asgi3", "proxy_headers": False, "server_header": False, "access_log": False}
    return {"app": hello, "http": what, "loop": "uvloop", **bare}


def _serve(what: str, pipe: Pipe) -> None:
    config = uvicorn.Config(lifespan="off", log_config=None, **_options(what))
    server = uvicorn.Server(config)

    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname())
    uvloop.run(server.serve([listener]))


class Load(asyncio.Protocol):
    """One connection that asks again as soon as it is answered."""

    def __init__(self) -> None:
        self.done = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        """Count an answer; one never comes in two pieces here, and is looked at once."""
        if data.endswith(ANSWER):
            self.done += 1
            self.transport.write(REQUEST)


def cpu_s(pid: int) -> float:
    """CPU seconds, user and system, that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(address: tuple[str, int], pid: int, connections: int, seconds: float) -> tuple[float, float]:
    """Requests per second, and the server's CPU microseconds a request."""
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Load, *address) for _ in range(connections)]
    await asyncio.sleep(0.2)
    before, began, used = sum(one.done for _, one in made), time.perf_counter(), cpu_s(pid)
    await asyncio.sleep(seconds)
    done = sum(one.done for _, one in made) - before
    rate, cost = done / (time.perf_counter() - began), (cpu_s(pid) - used) / done * 1e6
    for transport, _ in made:
        transport.abort()
    return rate, cost


def main() -> int:
    """Print a Markdown table of medians and ratios."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=1.0)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--connections", type=int, default=8)
    given = arguments.parse_args()
    names = [
        name for name in ("h11", "httptools", "zttp", "door") if name == "door" or importlib.util.find_spec(name)
    ]
    spawn = multiprocessing.get_context("spawn")
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    served = {}
    for name in names:
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_serve, args=(name, theirs), daemon=True)
        process.start()
        served[name] = (process, ours.recv())
    for _ in range(given.rounds):
        for name in names:
            process, address = served[name]
            measured[name].append(uvloop.run(load(address, process.pid or 0, given.connections, given.seconds)))
    for process, _ in served.values():
        process.terminate()
    out = sys.stdout.write
    out(
        "| server | CPU us a request (median) | min - max | of httptools | best requests/s |\n|---|---|---|---|---|\n"
    )
    bare = statistics.median(cost for _, cost in measured["httptools"])
    for name in names:
        costs = [cost for _, cost in measured[name]]
        median = statistics.median(costs)
        spread = f"{min(costs):.0f} - {max(costs):.0f}"
        best = max(rate for rate, _ in measured[name])
        out(f"| {name} | {median:.0f} | {spread} | {median / bare:.2f} | {best:,.0f} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
