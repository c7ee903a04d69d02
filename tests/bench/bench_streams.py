"""Idle subscription streams: what each holds of a worker, how fast they are opened, and what they cost while idle.

    python -m tests.bench.bench_streams [--count N] [--rounds N]

Every stream is a `subscriptions/listen` of its own through the whole corridor, on a connection of its own at both
sides; it counts as open once its acknowledgement has come. The gateway has one core; clients and server the other.
Memory is the worker's resident set before the first and half a minute's beats after the last one, divided: a few
hundred streams that came and went before have warmed it.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Iterator
from typing import Final, cast

import orjson
import uvloop

from tests.bench.bench_start import memory
from tests.bench.load import cpu_by_process, kind_of
from tests.bench.stand import BENCH_DATA, Gateway, Stand
from tests.bench.table import Options, Row, number, part
from tests.support.stack import body, headers_of

COUNT: Final = 9_000
WARM: Final = 300
AT_ONCE: Final = 64
"""Streams that are being opened at one time."""
KEEP_ALIVE_S: Final = 5.0
IDLE_S: Final = 12.0
DATA: Final = {**BENCH_DATA, "methods": {"subscriptions/listen": {}}}


class Client(asyncio.Protocol):
    """One subscription. `acknowledged` is done once its server has answered it; afterwards what comes is counted."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._head = b""
        self.acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport
        self.pieces = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask at once."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """The acknowledgement, or a beat."""
        if self.acknowledged.done():
            self.pieces += 1
            return
        self._head += data
        if b"acknowledged" in self._head:
            self.acknowledged.set_result(None)
            self._head = b""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - ours ends only after the measurement
        """A stream that ends is a fault."""
        if not self.acknowledged.done():
            self.acknowledged.set_exception(ConnectionError(self._head.decode(errors="replace")[:500] or "closed"))


def requests(gateway: Gateway, count: int) -> Iterator[bytes]:
    """That many, each by a caller of its own."""
    token = gateway.token()
    for number_ in range(count):
        message = body("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, number_)
        content = orjson.dumps(message)
        lines = {"Host": f"127.0.0.1:{gateway.port}", **headers_of(message, token), "Content-Length": len(content)}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        yield b"POST /bench/mcp HTTP/1.1\r\n" + head.encode() + b"\r\n" + content


async def open_many(gateway: Gateway, count: int) -> list[Client]:
    """So many streams, some being opened at a time."""
    clients: list[Client] = []
    waiting = requests(gateway, count)
    loop = asyncio.get_running_loop()

    async def open_some() -> None:
        for request in waiting:
            client = Client(request)
            clients.append(client)
            await loop.create_connection(lambda client=client: client, "127.0.0.1", gateway.port)  # type: ignore[misc]
            await asyncio.wait_for(client.acknowledged, 60)

    await asyncio.gather(*[open_some() for _ in range(AT_ONCE)])
    return clients


async def measure_once(gateway: Gateway, worker: int, count: int) -> tuple[float, float, float, float]:
    """-> KiB of a stream, streams opened a second, % of a core while all are idle, µs of CPU to open one."""
    for client in await open_many(gateway, WARM):
        client.transport.abort()
    await asyncio.sleep(1)
    before, spent, began = memory(worker)["Rss"], sum(cpu_by_process(gateway.pid).values()), time.perf_counter()
    clients = await open_many(gateway, count)
    rate = count / (time.perf_counter() - began)
    opened = sum(cpu_by_process(gateway.pid).values())
    await asyncio.sleep(IDLE_S)
    idle = (sum(cpu_by_process(gateway.pid).values()) - opened) / IDLE_S * 100
    each = (memory(worker)["Rss"] - before) * 1e6 / 1024 / count
    lost = sum(client.transport.is_closing() or not client.pieces for client in clients)
    if lost:
        raise RuntimeError(f"{lost} of {count} streams ended, or had no beat in {IDLE_S:g} s")
    for client in clients:
        client.transport.abort()
    return each, rate, idle, (opened - spent) / count * 1e6


def measure(options: Options, count: int = COUNT) -> list[Row]:
    """A gateway a round."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found = []
    with Stand() as stand:
        upstream = stand.upstream(sys.executable, "-m", "tests.support.streaming")
        limits = {"keep_alive_s": KEEP_ALIVE_S, "subscriptions_per_subject": 2 * COUNT}
        for _ in range(options.rounds):
            gateway = stand.gateway([upstream], data=DATA, limits=limits)
            (worker,) = [pid for pid in cpu_by_process(gateway.pid) if kind_of(pid) == "worker"]
            found.append(uvloop.run(measure_once(gateway, worker, count)))
            stand.end(gateway.pid)
    each, rate, idle, cost = (tuple(column) for column in zip(*found, strict=True))
    beside = f"{number(sorted(cost)[len(cost) // 2])} µs of CPU each"
    what = f"{count:,} idle subscription streams"
    beats = f"of one core, a beat every {KEEP_ALIVE_S:g} s"
    return [
        Row("stream_kib", f"{what}: memory of each", each, "KiB", "≤ 40"),
        Row("streams_rps", f"{what}: opened", rate, "/s", "≥ 500", beside),
        Row("streams_idle", f"{what}: CPU while idle", idle, "%", beside=beats),
    ]


if __name__ == "__main__":
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--count", type=int, default=COUNT)
    given, sys.argv[1:] = own.parse_known_args()
    raise SystemExit(part(lambda options: measure(options, given.count), __doc__))
