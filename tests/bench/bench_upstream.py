"""Requests per second and CPU of `forward()` alone, beside other HTTP clients, in one run.

    python -m tests.bench.bench_upstream [--seconds 4] [--connections 32] [--clients ours,pyreqwest,...]

The clients share one core, the free upstream has another; each client does the same: send a tools/call with six
headers, read the whole answer. aiohttp and httpx are only measured where they are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import uvloop

from gateway.upstream.http import HttpUpstream
from gateway.upstream.target import UpstreamTarget, check_replica_url
from tests.support.upstream import HEADERS, SERVER, an_admitted

Ask = Callable[[], Awaitable[bytes]]
TOKEN = "Bearer own"
TEXT_HEADERS = {
    **{name.decode(): value.decode() for name, value in HEADERS},
    "accept-encoding": "identity",
    "authorization": TOKEN,
}


@asynccontextmanager
async def ours(url: str) -> AsyncIterator[Ask]:
    """The gateway's own upstream, everything on."""
    upstream = HttpUpstream({SERVER.name: UpstreamTarget((check_replica_url(url),), "authorization", TOKEN)})
    admitted = an_admitted()

    async def ask() -> bytes:
        answer = await upstream.forward(admitted)
        body = b"".join([piece async for piece in answer.chunks()])
        await answer.close()
        return body

    yield ask
    await upstream.close()


@asynccontextmanager
async def pyreqwest(url: str) -> AsyncIterator[Ask]:
    """reqwest behind a Python binding, reading the body as a stream, as a relay must."""
    from pyreqwest.client import ClientBuilder

    builder = ClientBuilder().gzip(False).brotli(False).zstd(False).deflate(False).follow_redirects(False)
    builder = builder.referer(False).no_proxy().http1_only().connect_timeout(timedelta(seconds=2))
    client = builder.read_timeout(timedelta(seconds=5)).build()
    body = an_admitted().body

    async def ask() -> bytes:
        pieces = []
        async with client.post(url).headers(TEXT_HEADERS).body_bytes(body).build_streamed() as response:
            while (piece := await response.body_reader.read_chunk()) is not None:
                pieces.append(bytes(piece))
        return b"".join(pieces)

    yield ask
    await client.close()


@asynccontextmanager
async def aiohttp(url: str) -> AsyncIterator[Ask]:
    """aiohttp's client, without cookies, proxies and decompression."""
    library: Any = importlib.import_module("aiohttp")
    session = library.ClientSession(
        auto_decompress=False,
        trust_env=False,
        cookie_jar=library.DummyCookieJar(),
        connector=library.TCPConnector(limit=0),
    )
    body = an_admitted().body

    async def ask() -> bytes:
        async with session.post(url, data=body, headers=TEXT_HEADERS, allow_redirects=False) as response:
            return b"".join([piece async for piece in response.content.iter_any()])

    yield ask
    await session.close()


@asynccontextmanager
async def httpx(url: str) -> AsyncIterator[Ask]:
    """httpx, raw bytes."""
    import httpx as library

    limits = library.Limits(max_connections=200, max_keepalive_connections=200)
    async with library.AsyncClient(trust_env=False, follow_redirects=False, timeout=5, limits=limits) as client:
        body = an_admitted().body

        async def ask() -> bytes:
            async with client.stream("POST", url, content=body, headers=TEXT_HEADERS) as response:
                return b"".join([piece async for piece in response.aiter_raw()])

        yield ask


CLIENTS = {"ours": ours, "pyreqwest": pyreqwest, "aiohttp": aiohttp, "httpx": httpx}


async def measure(name: str, url: str, connections: int, seconds: float) -> str:
    """One line of the table."""
    latencies: list[float] = []
    async with CLIENTS[name](url) as ask:
        assert b'"resultType"' in await ask()
        began, cpu = time.perf_counter(), time.process_time()
        end = began + seconds

        async def worker() -> None:
            while (start := time.perf_counter()) < end:
                await ask()
                latencies.append(time.perf_counter() - start)

        await asyncio.gather(*(worker() for _ in range(connections)))
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
    latencies.sort()
    count = len(latencies)
    p50, p99 = latencies[count // 2] * 1e3, latencies[count * 99 // 100] * 1e3
    return f"| {name} | {connections} | {count / took:,.0f} | {p50:.2f} | {p99:.2f} | {cpu / count * 1e6:.0f} |"


def main() -> None:
    """Start the free upstream, measure each client in a process of its own, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--url", default="", help="measure one client here, against this upstream")
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if given.url:
        print(uvloop.run(measure(given.clients, given.url, given.connections, given.seconds)))
        return
    free = [sys.executable, "-m", "tests.support.upstream"]
    with subprocess.Popen(free, stdout=subprocess.PIPE, text=True) as upstream:
        try:
            os.sched_setaffinity(upstream.pid, {cores[-1]})
            os.sched_setaffinity(0, {cores[0]})
            assert upstream.stdout is not None
            url = f"http://127.0.0.1:{upstream.stdout.readline().strip()}/mcp"
            print(
                "| client | connections | requests/s | p50 ms | p99 ms | CPU us/request |\n|---|---|---|---|---|---|"
            )
            for name in given.clients.split(","):
                if name in ("aiohttp", "httpx") and importlib.util.find_spec(name) is None:
                    continue
                again = [sys.executable, "-m", "tests.bench.bench_upstream", "--url", url, "--clients", name]
                again += ["--connections", str(given.connections), "--seconds", str(given.seconds)]
                subprocess.run(again, check=True)
        finally:
            upstream.terminate()


if __name__ == "__main__":
    main()
