"""OPS-01: servers behind the gateway that are restarted as docs/operations.md says, the official SDK on uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.upstream.health import PROBES, HealthRules
from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import UpstreamFault
from gateway.upstream.probes import Probes
from gateway.upstream.ring import ServerRules
from gateway.upstream.target import UpstreamTarget, check_replica_url
from tests.support.ports import free_port
from tests.support.processes import eventually
from tests.support.replicas import RoundRobin
from tests.support.stack import body, call, headers_of
from tests.support.upstream import SERVER, an_admitted

CALLERS = 8
EVERY_S = 0.08
PROBE_S = 0.1
CONNECTION_S = 0.5
LEAVE_S = 2.0
"""Several times `PROBES` probes here, and several times `CONNECTION_S`: for a machine that is busy with more."""


@dataclass
class Traffic:
    """Calls through one upstream until `done`. `made`: what was answered; `lost`: what was not, and why."""

    upstream: HttpUpstream
    numbers: itertools.count[int]
    made: list[int] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def call_on(self) -> None:
        """One client."""
        while not self.done.is_set():
            number = next(self.numbers)
            message = call("note", {"n": number}, number)
            headers = tuple((name.lower().encode(), value.encode()) for name, value in headers_of(message).items())
            try:
                answer = await self.upstream.forward(an_admitted(headers=headers, body=json.dumps(message).encode()))
                told = b"".join([piece async for piece in answer.chunks()])
            except UpstreamFault as fault:
                self.lost.append(f"{number}: {fault} (sent: {fault.sent})")
            else:
                assert answer.status == 200, told
                self.made.append(number)
            await asyncio.sleep(EVERY_S)


@contextlib.asynccontextmanager
async def server(file: Path, name: str, *leave_s: str) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    """One, as a process -> its port, and itself. It listens by then."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.sdk_server", str(port), str(file), name, *leave_s
    )
    try:
        while process.returncode is None:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            await asyncio.sleep(0.05)
        yield port, process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def under_calls(numbers: itertools.count[int], rules: ServerRules, *ports: int) -> AsyncIterator[Traffic]:
    """Calls to replicas at these ports."""
    target = UpstreamTarget(tuple(check_replica_url(f"http://127.0.0.1:{port}/mcp") for port in ports))
    upstream = HttpUpstream({SERVER.name: target}, None, {SERVER.name: rules})
    probes, traffic = Probes(upstream), Traffic(upstream, numbers)
    probes.start()
    clients = [asyncio.create_task(traffic.call_on()) for _ in range(CALLERS)]
    try:
        yield traffic
    finally:
        traffic.done.set()
        await asyncio.gather(*clients)
        await probes.close()
        await upstream.close()


async def subscribe(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A subscription that nobody ends; uvicorn would wait for it."""
    content = json.dumps(
        message := body("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    ).encode()
    lines = {"Host": f"127.0.0.1:{port}", **headers_of(message), "Content-Length": len(content)}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /mcp HTTP/1.1\r\n" + head.encode() + b"\r\n" + content)
    await reader.readuntil(b"notifications/subscriptions/acknowledged")
    return reader, writer


@pytest.mark.timeout(120)
async def test_a_server_that_leaves_as_the_page_says_loses_no_call(tmp_path: Path) -> None:
    """OPS-01: neither one run by deploy/leaving.py behind the gateway's probe, nor an unmodified one that its address
    has no longer named for more than `load.connection_s` before its SIGTERM."""
    book, numbers = tmp_path / "book", itertools.count(1)

    def calls_of(name: str) -> int:
        return book.read_text().count(f"{name} ") if book.exists() else 0

    async with contextlib.AsyncExitStack() as stack:
        (stays, _), (leaves, leaving), (plain, unmodified) = await asyncio.gather(
            *[
                stack.enter_async_context(server(book, *words))
                for words in (("stays", str(LEAVE_S)), ("leaves", str(LEAVE_S)), ("plain",))
            ]
        )
        service = RoundRobin([plain, stays])
        address = free_port()
        await service.start(address)
        stack.push_async_callback(service.close)
        probed = await stack.enter_async_context(
            under_calls(numbers, ServerRules(HealthRules(probe="/ready", probe_s=PROBE_S)), leaves, stays)
        )
        behind = await stack.enter_async_context(
            under_calls(numbers, ServerRules(connection_s=CONNECTION_S), address)
        )
        await eventually("all are called", lambda: min(map(calls_of, ("stays", "leaves", "plain"))) > CALLERS, 60)

        async def leave() -> None:
            leaving.terminate()
            assert await asyncio.wait_for(leaving.wait(), 60) == 0

        async def leave_unmodified() -> None:
            service.forget(plain)
            await asyncio.sleep(LEAVE_S * 0.75)  # its preStop
            calls = calls_of("plain")
            await asyncio.sleep(LEAVE_S * 0.25)
            assert calls_of("plain") == calls, "it was still called when it was told to end"
            unmodified.terminate()
            await asyncio.wait_for(unmodified.wait(), 60)

        subscribed = [await subscribe(port) for port in (leaves, plain)]
        before = calls_of("leaves")
        await asyncio.gather(leave(), leave_unmodified())
        for reader, writer in subscribed:
            await reader.read()
            writer.close()
        assert calls_of("leaves") > before, "nobody called it when it was told to end"
        for traffic in (probed, behind):
            answered = len(traffic.made)
            await eventually("the other one serves both", lambda: len(traffic.made) > answered, 60)  # noqa: B023
    assert not probed.lost
    assert not behind.lost
    made = Counter(int(line.split()[1]) for line in book.read_text().splitlines())
    assert max(made.values()) == 1
    assert set(made) == {*probed.made, *behind.made}
    assert PROBES * PROBE_S * 2 < LEAVE_S
