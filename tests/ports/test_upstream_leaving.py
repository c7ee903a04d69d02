"""Servers that end while they are called (OPS-01): what is the gateway's part in that no call is lost to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from gateway.upstream import wire
from gateway.upstream.connection import Connection
from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import UpstreamUnreachable
from gateway.upstream.replicas import SHORTER, Replica
from gateway.upstream.ring import ServerRules
from gateway.upstream.target import UpstreamLimits, UpstreamTarget, check_replica_url
from tests.support.upstream import (
    SERVER,
    SSE_HEAD,
    Exchange,
    ScriptedUpstream,
    a_subscription,
    an_admitted,
    answer,
    chunk,
    eventually,
    result_of,
)


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as upstream:
        yield upstream


def upstream_of(*urls: str, connection_s: float = 0.0) -> HttpUpstream:
    """An upstream whose connections get that old."""
    target = UpstreamTarget(tuple(check_replica_url(url) for url in urls))
    return HttpUpstream({SERVER.name: target}, None, {SERVER.name: ServerRules(connection_s=connection_s)})


def first_of(upstream: HttpUpstream) -> Replica:
    """Its first replica."""
    return upstream.rings[SERVER.name].replicas[0]


async def ask(upstream: HttpUpstream) -> bytes:
    """One call's answer."""
    found = await upstream.forward(an_admitted())
    return b"".join([piece async for piece in found.chunks()])


def listening() -> tuple[socket.socket, str]:
    """A socket that takes connections, and whose owner does nothing yet."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"


async def test_nothing_else_runs_between_the_look_at_a_connection_and_its_request() -> None:
    """A connection that was seen to be open has the request before its server can close it, on either loop."""
    listener, url = listening()
    upstream = upstream_of(url)
    connection = await first_of(upstream).connect()
    server, _ = listener.accept()
    with listener, server:
        assert connection.quiet
        exchange = connection.ask(b"POST ...", url, UpstreamLimits())
        assert server.recv(100, socket.MSG_DONTWAIT) == b"POST ..."
        exchange.abort()
    await upstream.close()


async def test_a_connection_that_ended_before_it_was_used_costs_no_call(
    scripted: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stops resets whom only its system let in: not a byte has left, and another replica is asked."""
    listener, url = listening()
    upstream = upstream_of(url, scripted.url)
    replica, reach = first_of(upstream), Replica._reach

    async def let_in(one: Replica, loop: asyncio.AbstractEventLoop) -> Connection:
        connection = await reach(one, loop)
        if one is replica:
            listener.close()
        return connection

    monkeypatch.setattr(Replica, "_reach", let_in)
    for _ in range(2):
        assert await ask(upstream) == result_of(1)
    assert listener.fileno() == -1
    assert replica.results["refused"] == 1
    assert len(scripted.seen) == 2
    await upstream.close()


async def test_a_connection_that_ended_before_it_was_used_is_no_sent_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no other replica, the fault says that nothing was sent: an approval's use is given back."""
    listener, url = listening()
    upstream = upstream_of(url)
    reach = Replica._reach

    async def let_in(one: Replica, loop: asyncio.AbstractEventLoop) -> Connection:
        connection = await reach(one, loop)
        listener.close()
        return connection

    monkeypatch.setattr(Replica, "_reach", let_in)
    with pytest.raises(UpstreamUnreachable) as caught:
        await ask(upstream)
    assert caught.value.sent is False
    await upstream.close()


async def test_a_connection_that_is_always_in_use_is_let_go_as_well(scripted: ScriptedUpstream) -> None:
    """What an address stands for is found anew within `connection_s`: a process that it no longer names is left."""
    steady = upstream_of(scripted.url)
    for _ in range(20):
        await ask(steady)
    assert scripted.connections == 1
    await steady.close()
    upstream = upstream_of(scripted.url, connection_s=0.05)
    before = scripted.connections
    loop = asyncio.get_running_loop()
    while scripted.connections < before + 3:
        began = loop.time()
        await ask(upstream)
        for connection in first_of(upstream)._idle:
            assert began <= connection.ends_at <= loop.time() + 0.05
    await eventually(lambda: scripted.open <= 1)
    await upstream.close()


async def test_connections_that_began_together_do_not_end_together() -> None:
    """Up to a fifth of the time is chance's: no server gets all of its connections anew at one moment."""
    listener, url = listening()
    upstream = upstream_of(url, connection_s=100.0)
    with listener:
        clock = asyncio.get_running_loop().time
        left = [(await first_of(upstream).connect()).ends_at - clock() for _ in range(30)]
    assert len(set(left)) == 30
    late = 10.0  # of a machine that is busy with other things
    assert 100.0 * (1 - SHORTER) - late <= min(left) < 95.0 < max(left) + late
    assert max(left) <= 100.0
    await upstream.close()


async def test_a_call_may_last_longer_than_its_connection_would_be_used(scripted: ScriptedUpstream) -> None:
    """The age of a connection ends no call: it only begins none."""
    late = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await late.wait()
        await answer(exchange)

    scripted.script = slow
    upstream = upstream_of(scripted.url, connection_s=0.01)
    calling = asyncio.create_task(ask(upstream))
    await eventually(lambda: len(scripted.seen) == 1)
    (connection,) = first_of(upstream)._open
    await eventually(lambda: asyncio.get_running_loop().time() > connection.ends_at)
    late.set()
    assert await calling == result_of(1)
    await eventually(lambda: scripted.open == 0)
    await upstream.close()


@pytest.mark.parametrize("ahead", [False, True], ids=["new", "kept"])
async def test_a_subscription_is_its_connections_last(scripted: ScriptedUpstream, ahead: bool) -> None:
    """A server that leaves ends its subscriptions and closes, which their heads could not say: no call may have been
    sent on such a connection, for it is lost."""
    served = asyncio.Event()

    async def leaves(exchange: Exchange) -> None:
        if b"subscriptions/listen" not in exchange.seen.body:
            served.set()
            await answer(exchange)
            return
        await exchange.send(SSE_HEAD + chunk(b"data: 1\n\n") + chunk(b""))
        exchange.writer.transport.pause_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(served.wait(), 1)
        exchange.writer.close()

    scripted.script = leaves
    upstream = upstream_of(scripted.url)
    if ahead:
        await ask(upstream)
        served.clear()
    found = await upstream.forward(an_admitted(a_subscription({"toolsListChanged": True})))
    assert [piece async for piece in found.chunks()] == [b"data: 1\n\n"]
    assert await ask(upstream) == result_of(1)
    assert scripted.connections == 2
    await upstream.close()


@pytest.mark.parametrize("released", [False, True], ids=["read to its end", "released"])
async def test_a_long_stream_is_its_connections_last(
    scripted: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    """A server may have been told to end since the head was sent, and closes behind the answer unsaid. A stream that
    was short leaves its connection to others."""
    read = asyncio.Event()

    async def streams(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        await read.wait()
        await exchange.send(chunk(b""))

    async def call(upstream: HttpUpstream) -> None:
        read.clear()
        found = await upstream.forward(an_admitted())
        async for _ in found.chunks():
            if released:
                found.release()
            read.set()
        await eventually(lambda: scripted.open == len(first_of(upstream)._idle))

    scripted.script = streams
    upstream = upstream_of(scripted.url)
    for long_s, connections in ((3600.0, 1), (0.0, 2)):
        monkeypatch.setattr(wire, "LONG_S", long_s)
        for _ in range(2):
            await call(upstream)
        assert scripted.connections == connections, long_s
    await upstream.close()
