"""The upstream over real sockets: what is sent, where it goes, how answers stream, and how a request is given up."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import ClassVar

import orjson
import pytest

from gateway.contract.passage import Server
from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import Answer, UpstreamFault, UpstreamInvalid, UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.replicas import Replica
from gateway.upstream.target import NEVER_FORWARDED, UpstreamLimits, UpstreamTarget, check_replica_url
from tests.support.upstream import (
    HEADERS,
    SERVER,
    SSE_HEAD,
    Exchange,
    ScriptedUpstream,
    a_call,
    an_admitted,
    answer,
    chunk,
    eventually,
    http,
    result_of,
)


def _upstream(*urls: str, limits: UpstreamLimits | None = None, credential: bool = False) -> HttpUpstream:
    replicas = tuple(check_replica_url(url) for url in urls)
    own = ("Authorization", "Bearer gateways-own") if credential else ("", "")
    return HttpUpstream({SERVER.name: UpstreamTarget(replicas, *own)}, limits)


async def _body(found: Answer) -> bytes:
    return b"".join([piece async for piece in found.chunks()])


def _closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as upstream:
        yield upstream


async def test_what_was_admitted_is_what_is_sent(scripted: ScriptedUpstream) -> None:
    """The body byte for byte, the admitted headers, Host, the length, identity coding: nothing else."""
    upstream = _upstream(scripted.url)
    body = b'{ "jsonrpc":"2.0", "id":1,\t"method":"tools/call","params":{"name":"add"}}'
    found = await upstream.forward(an_admitted(body=body))
    assert (found.status, found.streaming, found.replica) == (200, False, scripted.url)
    assert await _body(found) == result_of(1)
    seen = scripted.seen[0]
    assert seen.line == "POST /mcp HTTP/1.1"
    assert seen.body == body
    sent = dict(seen.headers)
    assert sent == {
        **{name.decode(): value.decode() for name, value in HEADERS},
        "host": f"127.0.0.1:{scripted.port}",
        "accept-encoding": "identity",
        "content-length": str(len(body)),
    }
    assert len(seen.headers) == len(sent)
    await upstream.close()


async def test_the_callers_credentials_never_travel(scripted: ScriptedUpstream) -> None:
    """Even if admission let them through, no credential, cookie, framing or forwarding header leaves (UPS-01)."""
    upstream = _upstream(scripted.url, credential=True)
    hostile = [*sorted(NEVER_FORWARDED), b"Proxy-Authorization", b"X-Forwarded-For", b"AUTHORIZATION", b"Cookie"]
    headers = (*HEADERS, *((name, b"canary") for name in hostile), (b"mcp-param-region", b"eu"))
    await _body(await upstream.forward(an_admitted(headers=headers)))
    seen = scripted.seen[0]
    assert "canary" not in str(seen.headers)
    assert seen.values("authorization") == ["Bearer gateways-own"]
    assert seen.values("mcp-param-region") == ["eu"]
    assert seen.values("host") == [f"127.0.0.1:{scripted.port}"]
    await upstream.close()


@pytest.mark.parametrize(
    "header",
    [
        (b"mcp-param-x", b"a\r\nauthorization: Bearer evil"),
        (b"mcp-param-x", b"a\nb"),
        (b"mcp-param-x", b"a\0"),
        (b"mcp-param-x", b"\xff"),
        (b"mcp param", b"a"),
        (b"x: y\r\nz", b"a"),
        (b"", b"a"),
    ],
)
async def test_a_torn_header_is_not_sent(scripted: ScriptedUpstream, header: tuple[bytes, bytes]) -> None:
    """A field that is not exactly one line stops the request before the first byte."""
    upstream = _upstream(scripted.url)
    await _body(await upstream.forward(an_admitted(headers=(*HEADERS, (b"mcp-param-x", b"a")))))
    with pytest.raises(UpstreamInvalid) as caught:
        await upstream.forward(an_admitted(headers=(*HEADERS, header)))
    assert caught.value.sent is False
    assert len(scripted.seen) == 1
    await upstream.close()


async def test_connections_are_used_again(scripted: ScriptedUpstream) -> None:
    """Twenty calls in a row take one connection; chunked and sized answers both leave it usable."""

    async def either(exchange: Exchange) -> None:
        body = result_of(exchange.id)
        if exchange.nth % 2:
            await exchange.send(http(200, body))
        else:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: APPLICATION/json; charset=UTF-8\r\n"
            head += b"transfer-encoding: Chunked\r\n\r\n"
            await exchange.send(head + chunk(body[:9]))
            await exchange.send(chunk(body[9:]) + chunk(b""))

    scripted.script = either
    upstream = _upstream(scripted.url)
    for number in range(20):
        found = await upstream.forward(an_admitted(a_call(number)))
        assert orjson.loads(await _body(found))["id"] == number
        await found.close()
        await asyncio.sleep(0)
    assert scripted.connections == 1
    await upstream.close()


def test_a_connection_idles_for_as_long_as_it_says_and_no_longer() -> None:
    """OPS-01: a server that leaves waits until nobody uses a kept connection any more; nobody makes it wait twice."""

    class Clock:
        """A loop whose time is the test's."""

        now = 0.0
        timers: ClassVar[list[tuple[float, Callable[[], None]]]] = []

        def time(self) -> float:
            return self.now

        def call_later(self, delay: float, what: Callable[[], None]) -> object:
            self.timers.append((self.now + delay, what))
            return what

        def run(self, until: float) -> None:
            while self.timers and self.timers[0][0] <= until:
                self.now, ring = self.timers.pop(0)
                ring()
            self.now = until

    class Kept:
        """A connection at rest."""

        loop, closed, ends_at = Clock(), -1.0, math.inf

        def __init__(self, idle_since: float) -> None:
            self.idle_since = idle_since

        def close(self) -> None:
            self.closed = self.loop.now
            replica._rest(self, False)  # type: ignore[arg-type]

    replica = Replica(check_replica_url("http://127.0.0.1:1/mcp"), b"", None, UpstreamLimits(idle_s=4.0))
    several = [Kept(since) for since in (0.0, 0.5, 0.52, 3.9)]
    for one in several:
        replica._open.add(one)  # type: ignore[arg-type]
        one.loop.run(one.idle_since)
        replica._rest(one, True)  # type: ignore[arg-type]
    Kept.loop.run(60.0)
    assert not Clock.timers
    assert [one.closed for one in several] == pytest.approx([4.0, 4.5, 4.6, 7.9])


async def test_idle_connections_are_closed(scripted: ScriptedUpstream) -> None:
    """What nobody uses for a while is closed, not kept."""
    upstream = _upstream(scripted.url, limits=UpstreamLimits(idle_s=0.1))
    await _body(await upstream.forward(an_admitted()))
    assert scripted.open == 1
    await eventually(lambda: scripted.open == 0)
    await upstream.close()


async def test_a_connection_that_the_server_closed_is_not_used_again(scripted: ScriptedUpstream) -> None:
    """A restart between two calls costs neither of them; the second is seen once."""

    async def answer_and_close(exchange: Exchange) -> None:
        await answer(exchange)
        exchange.writer.close()

    scripted.script = answer_and_close
    upstream = _upstream(scripted.url)
    for _ in range(30):
        await _body(await upstream.forward(an_admitted()))
    assert len(scripted.seen) == 30
    await upstream.close()


async def test_the_first_event_is_out_before_the_last_is_in(scripted: ScriptedUpstream) -> None:
    """Streams are relayed as they come."""
    release = asyncio.Event()

    async def two_events(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        await release.wait()
        await exchange.send(chunk(b"data: 2\n\n") + chunk(b""))

    scripted.script = two_events
    upstream = _upstream(scripted.url)
    found = await upstream.forward(an_admitted())
    assert found.streaming
    pieces = found.chunks()
    assert await asyncio.wait_for(anext(pieces), 1) == b"data: 1\n\n"
    release.set()
    assert [piece async for piece in pieces] == [b"data: 2\n\n"]
    await found.close()
    await upstream.close()


@pytest.mark.parametrize("phase", ["head", "body", "paused"])
async def test_giving_up_closes_the_upstream_request_at_once(scripted: ScriptedUpstream, phase: str) -> None:
    """The server sees the connection close within a second, whatever the request waits for (UPS-09)."""
    started = asyncio.Event()
    gone: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def slow(exchange: Exchange) -> None:
        if phase != "head":
            await exchange.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        started.set()
        if phase == "paused":
            with contextlib.suppress(ConnectionError):
                while True:
                    await exchange.send(chunk(b"data: " + b"x" * 60_000 + b"\n\n"))
            gone.set_result(0)
        else:
            gone.set_result(await exchange.gone())

    scripted.script = slow
    upstream = _upstream(scripted.url)

    async def call() -> None:
        found = await upstream.forward(an_admitted())
        async for _ in found.chunks():
            if phase == "paused":
                await asyncio.sleep(60)

    task = asyncio.create_task(call())
    await started.wait()
    await asyncio.sleep(0.1)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(gone, 1)
    assert time.monotonic() - began < 1
    assert len(scripted.seen) == 1
    await upstream.close()


async def test_closing_an_answer_aborts_it_and_can_be_repeated(scripted: ScriptedUpstream) -> None:
    """`close` ends a running answer at once; an answer that was read whole leaves its connection to others."""
    gone: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def slow(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        gone.set_result(await exchange.gone())

    scripted.script = slow
    upstream = _upstream(scripted.url)
    found = await upstream.forward(an_admitted())
    await found.close()
    await found.close()
    assert await asyncio.wait_for(gone, 1) < 1
    with pytest.raises(UpstreamFault):
        await _body(found)
    await upstream.close()


async def test_a_released_stream_leaves_its_connection_to_others(scripted: ScriptedUpstream) -> None:
    """A stream that ends by itself after its response keeps its connection; one that does not is closed."""

    async def ends_later(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        await asyncio.sleep(0.02)
        await exchange.send(chunk(b": bye\n\n") + chunk(b""))

    async def never_ends(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        await exchange.gone()

    async def goes_on(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + chunk(b"data: 1\n\n"))
        while True:
            await exchange.send(chunk(b"data: " + b"x" * 10_000 + b"\n\n"))

    upstream = _upstream(scripted.url)

    async def call() -> None:
        found = await upstream.forward(an_admitted())
        async for _ in found.chunks():
            found.release()
            break
        await found.close()

    scripted.script = ends_later
    for _ in range(3):
        await call()
        await asyncio.sleep(0.08)
    assert (scripted.connections, scripted.open) == (1, 1)
    for script, least in ((never_ends, 0.9), (goes_on, 0.0)):
        scripted.script = script
        await call()
        await asyncio.sleep(least)
        await eventually(lambda: scripted.open == 0)
    await upstream.close()


@pytest.mark.parametrize("size", [100, 65_536, 65_537, 3_000_000])
async def test_a_body_arrives_as_it_was_admitted_whatever_its_size(scripted: ScriptedUpstream, size: int) -> None:
    """What is copied behind its head and what is handed over as it is: the server reads the same bytes (G3)."""
    body = b'{"id":1,"text":"%b"}' % (b"x" * (size - len(b'{"id":1,"text":""}')))
    upstream = _upstream(scripted.url)
    for _ in range(2):  # on a connection that is made, and on one that is used again
        await _body(await upstream.forward(an_admitted(body=body)))
    assert [seen.body == body for seen in scripted.seen] == [True, True]
    assert [seen.values("content-length") for seen in scripted.seen] == [[str(size)]] * 2
    await upstream.close()


async def test_a_slow_reader_makes_the_server_wait(scripted: ScriptedUpstream) -> None:
    """Who does not read lets no more than a bounded part of the answer into memory (OPS-03); the rest comes later."""
    size = 40_000_000
    sent = 0

    async def flood(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.send(SSE_HEAD)
        piece = chunk(b":" + b"x" * 99_998 + b"\n")
        while sent < size:
            await exchange.send(piece)
            sent += 100_000
        await exchange.send(chunk(b""))

    scripted.script = flood
    upstream = _upstream(scripted.url)
    found = await upstream.forward(an_admitted())
    await asyncio.sleep(0.5)
    held = sent
    assert held < 20_000_000, "the kernel's buffers and ours hold more than they should"
    await asyncio.sleep(0.3)
    assert sent == held
    largest = total = 0
    async for piece in found.chunks():
        largest, total = max(largest, len(piece)), total + len(piece)
    assert total == size
    limits = UpstreamLimits()
    assert largest <= limits.buffer_bytes + 2 * limits.read_bytes
    await upstream.close()


def test_what_a_stream_holds_at_most_is_within_its_bound() -> None:
    """OPS-03 in figures: a quarter of the 1 MiB stays for an event that is not whole and for the allocator.

    The door holds what a stopped client did not take, and the next piece; what came behind it waits for the relay.
    """
    limits, high_water = UpstreamLimits(), 65_536
    piece, behind = limits.buffer_bytes + 2 * limits.read_bytes, limits.buffer_bytes + limits.read_bytes
    assert high_water + piece + behind <= 3 << 18


async def test_200_concurrent_calls_over_two_replicas() -> None:
    """All are answered with their own id, both replicas serve, neither more than its turn."""

    async def later(exchange: Exchange) -> None:
        await asyncio.sleep(0.02)
        await answer(exchange)

    async with ScriptedUpstream(later) as one, ScriptedUpstream(later) as two:
        upstream = _upstream(one.url, two.url)

        async def call(number: int) -> tuple[object, str]:
            found = await upstream.forward(an_admitted(a_call(number)))
            return orjson.loads(await _body(found))["id"], found.replica

        found = await asyncio.gather(*(call(number) for number in range(200)))
        assert [number for number, _ in found] == list(range(200))
        assert len(one.seen) == len(two.seen) == 100
        in_turn = [(await call(number))[1] for number in range(4)]
        assert in_turn[0] != in_turn[1]
        assert in_turn[:2] == in_turn[2:]
        await upstream.close()


async def test_a_replica_that_refuses_is_passed_over_and_comes_back() -> None:
    """While one is down, every call is answered by the other, once; when it is back, both serve again."""
    async with ScriptedUpstream() as one, ScriptedUpstream() as two:
        upstream = _upstream(one.url, two.url)
        for _ in range(4):
            await _body(await upstream.forward(an_admitted()))
        assert len(one.seen) == len(two.seen) == 2
        await one.stop()
        for _ in range(10):
            assert (await upstream.forward(an_admitted())).replica == two.url
        assert (len(one.seen), len(two.seen)) == (2, 12)
        await one.start()
        await asyncio.sleep(0.6)
        for _ in range(60):
            await _body(await upstream.forward(an_admitted()))
        assert len(one.seen) > 3, "slowly: it has just come back"
        assert len(one.seen) + len(two.seen) == 74
        await upstream.close()


async def test_with_all_replicas_down_nothing_was_sent_and_all_are_tried_again() -> None:
    """The fault says that not one byte left; the first call after the recovery is served, cooling or not."""
    async with ScriptedUpstream() as one:
        upstream = _upstream(one.url, f"http://127.0.0.1:{_closed_port()}/mcp")
        await one.stop()
        for _ in range(5):
            with pytest.raises(UpstreamUnreachable) as caught:
                await upstream.forward(an_admitted())
            assert caught.value.sent is False
            assert caught.value.replica
        await one.start()
        assert await _body(await upstream.forward(an_admitted())) == result_of(1)
        await upstream.close()


async def test_a_connect_that_hangs_is_passed_over_in_time() -> None:
    """A replica that drops packets costs its timeout and no more; nothing was sent to it."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = []
        for _ in range(4):  # fill the backlog, so that further handshakes are not answered
            other = socket.socket()
            other.setblocking(False)
            other.connect_ex(("127.0.0.1", port))
            waiting.append(other)
        async with ScriptedUpstream() as good:
            upstream = _upstream(f"http://127.0.0.1:{port}/mcp", good.url, limits=UpstreamLimits(connect_s=1.0))
            began = time.monotonic()
            for _ in range(6):
                assert (await upstream.forward(an_admitted())).replica == good.url
            assert time.monotonic() - began < 3, "it was waited for once, not at every turn"
            await upstream.close()
        for other in waiting:
            other.close()


async def test_an_unknown_server_is_unreachable() -> None:
    """No target, no call."""
    upstream = HttpUpstream({})
    with pytest.raises(UpstreamUnreachable) as caught:
        await upstream.forward(an_admitted())
    assert caught.value.sent is False


async def test_the_number_of_connections_is_bounded(scripted: ScriptedUpstream) -> None:
    """Beyond the bound, a call fails before anything is sent; after one ends, the next is served."""
    release = asyncio.Event()

    async def held(exchange: Exchange) -> None:
        await release.wait()
        await answer(exchange)

    scripted.script = held
    upstream = _upstream(scripted.url, limits=UpstreamLimits(connections=2))
    running = [asyncio.create_task(upstream.forward(an_admitted())) for _ in range(2)]
    await asyncio.sleep(0.1)
    assert len(scripted.seen) == 2
    with pytest.raises(UpstreamUnreachable) as caught:
        await upstream.forward(an_admitted())
    assert caught.value.sent is False
    release.set()
    await asyncio.gather(*running)
    assert await _body(await upstream.forward(an_admitted())) == result_of(1)
    await upstream.close()


async def test_a_notification_is_accepted_with_202(scripted: ScriptedUpstream) -> None:
    """202 without a body is the answer to a notification, and to nothing else."""

    async def accept(exchange: Exchange) -> None:
        await exchange.send(http(202, kind=""))

    scripted.script = accept
    upstream = _upstream(scripted.url)
    found = await upstream.forward(an_admitted(a_call(None, method="notifications/x", kind="extension")))
    assert (found.status, found.streaming, await _body(found)) == (202, False, b"")
    with pytest.raises(UpstreamInvalid):
        await upstream.forward(an_admitted())
    await upstream.close()


@pytest.mark.parametrize("status", [400, 403, 404, 409, 429, 500, 503])
async def test_a_json_rpc_error_with_an_error_status_is_an_answer(scripted: ScriptedUpstream, status: int) -> None:
    """The protocol's own errors come with 4xx; they are the server's answer, with its status and its text."""
    body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no", "data": [1]}})

    async def refuse(exchange: Exchange) -> None:
        await exchange.send(http(status, body))

    scripted.script = refuse
    upstream = _upstream(scripted.url)
    found = await upstream.forward(an_admitted())
    assert (found.status, found.streaming, found.replica, await _body(found)) == (status, False, scripted.url, body)
    await found.close()
    with pytest.raises(UpstreamInvalid):
        await upstream.forward(an_admitted(a_call("1")))  # the same error, but for another id
    with pytest.raises(UpstreamInvalid):
        await upstream.forward(an_admitted(a_call(None, method="notifications/x", kind="extension")))
    await upstream.close()


async def test_nothing_is_left_after_many_given_up_calls(scripted: ScriptedUpstream) -> None:
    """Connect, ask, abort: sockets, tasks and objects return to the start (OPS-05 at a small scale)."""

    async def silent(exchange: Exchange) -> None:
        await exchange.gone()

    scripted.script = silent
    upstream = _upstream(scripted.url)

    async def give_up() -> None:
        task = asyncio.create_task(upstream.forward(an_admitted()))
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for _ in range(20):
        await asyncio.gather(*(give_up() for _ in range(20)))
    await eventually(lambda: scripted.open == 0)
    await eventually(lambda: len(asyncio.all_tasks()) == 1)
    scripted.script = answer
    assert await _body(await upstream.forward(an_admitted())) == result_of(1)
    await upstream.close()


# The house's own questions.


async def test_a_question_of_the_house_is_a_proper_request(scripted: ScriptedUpstream) -> None:
    """Own id, own credential, every header and `_meta` member that the revision asks for."""
    upstream = _upstream(scripted.url, credential=True)
    result = await upstream.inquire(SERVER, "tools/list", {"cursor": "c"})
    assert result == {"resultType": "complete", "content": []}
    seen = scripted.seen[0]
    message = orjson.loads(seen.body)
    assert message["method"] == "tools/list"
    assert message["params"]["cursor"] == "c"
    meta = message["params"]["_meta"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == seen.values("mcp-protocol-version")[0] == "2026-07-28"
    assert meta["io.modelcontextprotocol/clientCapabilities"] == {}
    assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "ostiary"
    assert seen.values("mcp-method") == ["tools/list"]
    assert seen.values("mcp-name") == []
    assert seen.values("authorization") == ["Bearer gateways-own"]
    assert seen.values("content-type") == ["application/json"]
    assert {"application/json", "text/event-stream"} <= set(seen.values("accept")[0].split(", "))
    await upstream.inquire(SERVER, "resources/read", {"uri": "file:///ü"})
    assert scripted.seen[1].values("mcp-name")[0].startswith("=?base64?")
    assert orjson.loads(scripted.seen[1].body)["id"] != message["id"]
    await upstream.close()


async def test_a_question_may_be_answered_by_a_stream(scripted: ScriptedUpstream) -> None:
    """Notifications are passed by, the response counts, and nothing is waited for after it."""

    async def stream(exchange: Exchange) -> None:
        note = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}\n\n'
        await exchange.send(SSE_HEAD + chunk(note) + chunk(b"data: " + result_of(exchange.id, tools=[]) + b"\n\n"))
        await exchange.gone()

    scripted.script = stream
    upstream = _upstream(scripted.url)
    assert (await upstream.inquire(SERVER, "tools/list", {}))["tools"] == []
    await upstream.close()


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"no"}}',
        b'{"jsonrpc":"2.0","id":"other","result":{"tools":[]}}',
        b'{"jsonrpc":"2.0","id":ID,"result":{"resultType":"input_required","requestState":"x"}}',
        b'{"jsonrpc":"2.0","id":ID,"result":[]}',
        b"{",
    ],
)
@pytest.mark.parametrize("status", [200, 400])
async def test_a_question_with_no_proper_answer_is_a_fault(
    scripted: ScriptedUpstream, body: bytes, status: int
) -> None:
    """An error, another id, a request for input: none of them is a result."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(http(status, body.replace(b"ID", orjson.dumps(exchange.id))))

    scripted.script = script
    upstream = _upstream(scripted.url)
    with pytest.raises(UpstreamInvalid):
        await upstream.inquire(SERVER, "tools/list", {})
    await upstream.close()


async def test_a_question_is_answered_in_time_or_not_at_all(scripted: ScriptedUpstream) -> None:
    """The whole answer has one deadline, however alive the stream looks."""

    async def drip(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD)
        while True:
            await exchange.send(chunk(b": still here\n\n"))
            await asyncio.sleep(0.02)

    scripted.script = drip
    upstream = _upstream(scripted.url, limits=UpstreamLimits(inquire_s=0.2))
    with pytest.raises(UpstreamTimeout):
        await upstream.inquire(SERVER, "tools/list", {})
    await eventually(lambda: scripted.open == 0)
    with pytest.raises(UpstreamUnreachable):
        await upstream.inquire(Server("other", "/", "", ""), "tools/list", {})
    await upstream.close()
