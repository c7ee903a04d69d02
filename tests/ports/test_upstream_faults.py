"""Broken and hostile servers (rows UPS-02, UPS-07, UPS-08): a fault each, never a made-up answer, sent once."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.contract.stream import ResponseStream
from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import Answer, UpstreamFault, UpstreamInvalid, UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.ring import ServerRules
from gateway.upstream.target import Fixed, UpstreamLimits, UpstreamTarget, check_replica_url
from tests.support.upstream import (
    SERVER,
    SSE_HEAD,
    Exchange,
    Script,
    ScriptedUpstream,
    a_call,
    an_admitted,
    answer,
    chunk,
    eventually,
    http,
    result_of,
)

LIMITS = UpstreamLimits(answer_s=0.5, quiet_s=0.5, result_bytes=2_000_000)
GOOD = result_of(1)
EVENT = b"data: " + GOOD + b"\n\n"


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as upstream:
        yield upstream


def _upstream(*scripted: ScriptedUpstream, limits: UpstreamLimits = LIMITS) -> HttpUpstream:
    replicas = tuple(check_replica_url(each.url) for each in scripted)
    return HttpUpstream({SERVER.name: UpstreamTarget(replicas)}, limits)


async def _call(upstream: HttpUpstream) -> bytes:
    found = await upstream.forward(an_admitted())
    try:
        return b"".join([piece async for piece in found.chunks()])
    finally:
        await found.close()


def _says(*pieces: bytes, then: str = "wait") -> Script:
    """A script that sends these bytes, then closes, resets, half-closes or waits."""

    async def script(exchange: Exchange) -> None:
        for piece in pieces:
            await exchange.send(piece)
        if then == "close":
            exchange.writer.close()
        elif then == "reset":
            await asyncio.sleep(0.05)
            exchange.reset()
        elif then == "half":
            exchange.writer.write_eof()
            await exchange.gone()
        else:
            await exchange.gone()

    return script


def _head(*lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([status, *lines, "", ""]).encode("latin-1")


JSON, SSE, CHUNKED = "Content-Type: application/json", "Content-Type: text/event-stream", "Transfer-Encoding: chunked"
LENGTH = f"Content-Length: {len(GOOD)}"

FAULTS: dict[str, tuple[Script, type[UpstreamFault]]] = {
    "closed after the request": (_says(then="close"), UpstreamUnreachable),
    "reset after the request": (_says(then="reset"), UpstreamUnreachable),
    "half-closed after the request": (_says(then="half"), UpstreamUnreachable),
    "half a head": (_says(b"HTTP/1.1 200 OK\r\nContent-", then="close"), UpstreamUnreachable),
    "headers never come": (_says(), UpstreamTimeout),
    "half a head and then nothing": (_says(b"HTTP/1.1 200 OK\r\n"), UpstreamTimeout),
    "a body that stands still": (_says(http(200, GOOD)[:-5]), UpstreamTimeout),
    "a stream that stands still": (_says(SSE_HEAD, chunk(b"data: 1\n\n")), UpstreamTimeout),
    "reset in mid-stream": (_says(SSE_HEAD, chunk(b"data: 1\n\n"), then="reset"), UpstreamInvalid),
    "truncated chunked": (_says(SSE_HEAD, chunk(EVENT), then="close"), UpstreamInvalid),
    "truncated chunk": (_says(SSE_HEAD, chunk(EVENT)[:-9], then="half"), UpstreamInvalid),
    "truncated length": (_says(http(200, GOOD)[:-1], then="close"), UpstreamInvalid),
    "reset before the end of an unframed body": (_says(_head(JSON), GOOD, then="reset"), UpstreamInvalid),
    "bad chunk size": (_says(_head(JSON, CHUNKED), b"zz\r\n"), UpstreamInvalid),
    "chunk with bare LF": (_says(_head(JSON, CHUNKED), b"2\n{}\n0\n\n"), UpstreamInvalid),
    "101": (_says(_head("Upgrade: h2c", "Connection: upgrade", status="HTTP/1.1 101 S")), UpstreamInvalid),
    "50 interim answers": (_says(_head("Link: x", status="HTTP/1.1 103 E") * 50, http(200, GOOD)), UpstreamInvalid),
    "status 999": (_says(http(999, GOOD)), UpstreamInvalid),
    "status 99": (_says(http(99, GOOD)), UpstreamInvalid),
    "302": (_says(http(302, extra="Location: http://169.254.169.254/\r\n")), UpstreamInvalid),
    "307": (_says(http(307, GOOD, extra="Location: http://169.254.169.254/\r\n")), UpstreamInvalid),
    "201": (_says(http(201, GOOD)), UpstreamInvalid),
    "202 to a request": (_says(http(202)), UpstreamInvalid),
    "204": (_says(_head(status="HTTP/1.1 204 N")), UpstreamInvalid),
    "401": (_says(http(401, b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}')), UpstreamInvalid),
    "407": (_says(http(407, b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}')), UpstreamInvalid),
    "500 with a page": (_says(http(500, b"<html>", kind="text/html")), UpstreamInvalid),
    "500 with a result": (_says(http(500, GOOD)), UpstreamInvalid),
    "500 with malformed JSON": (_says(http(500, b"{")), UpstreamInvalid),
    "500 without a body": (_says(http(500, kind="")), UpstreamInvalid),
    "400 for another": (
        _says(http(400, b'{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"x"}}')),
        UpstreamInvalid,
    ),
    "400 with a stream": (_says(http(400, EVENT, kind="text/event-stream")), UpstreamInvalid),
    "no media type": (_says(http(200, GOOD, kind="")), UpstreamInvalid),
    "wrong media type": (_says(http(200, GOOD, kind="text/html")), UpstreamInvalid),
    "almost the media type": (_says(http(200, GOOD, kind="application/json-seq")), UpstreamInvalid),
    "other charset": (_says(http(200, GOOD, kind="application/json; charset=utf-16")), UpstreamInvalid),
    "two media types": (_says(http(200, GOOD, extra="content-type: text/event-stream\r\n")), UpstreamInvalid),
    "gzip": (_says(http(200, gzip.compress(GOOD), extra="Content-Encoding: gzip\r\n")), UpstreamInvalid),
    "br": (_says(http(200, GOOD, extra="content-encoding: br\r\n")), UpstreamInvalid),
    "gzip and identity": (_says(http(200, GOOD, extra="Content-Encoding: gzip, identity\r\n")), UpstreamInvalid),
    "two codings": (
        _says(http(200, GOOD, extra="Content-Encoding: identity\r\nContent-Encoding: gzip\r\n")),
        UpstreamInvalid,
    ),
    "gzip as transfer coding": (_says(_head(JSON, "Transfer-Encoding: gzip, chunked"), chunk(GOOD)), UpstreamInvalid),
    "length and chunked": (_says(_head(JSON, LENGTH, CHUNKED), chunk(GOOD), chunk(b"")), UpstreamInvalid),
    "chunked and length": (_says(_head(JSON, CHUNKED, LENGTH), chunk(GOOD), chunk(b"")), UpstreamInvalid),
    "two lengths": (_says(_head(JSON, LENGTH, "Content-Length: 3"), GOOD), UpstreamInvalid),
    "the same length twice": (_says(_head(JSON, LENGTH, LENGTH), GOOD), UpstreamInvalid),
    "signed length": (_says(_head(JSON, "Content-Length: +5"), GOOD), UpstreamInvalid),
    "chunked in HTTP/1.0": (_says(_head(JSON, CHUNKED, status="HTTP/1.0 200 OK"), chunk(GOOD)), UpstreamInvalid),
    "HTTP/2.0 in clear": (_says(_head(JSON, LENGTH, status="HTTP/2.0 200 OK"), GOOD), UpstreamInvalid),
    "HTTP/0.9": (_says(GOOD, then="close"), UpstreamInvalid),
    "folded field": (_says(_head("X: a", " b", JSON, LENGTH), GOOD), UpstreamInvalid),
    "space before the colon": (_says(_head(JSON, "Content-Length : 5"), GOOD), UpstreamInvalid),
    "bare LF": (_says(_head(JSON, LENGTH).replace(b"\r\n", b"\n"), GOOD), UpstreamInvalid),
    "NUL in a field": (_says(_head("X: a\0b", JSON, LENGTH), GOOD), UpstreamInvalid),
    "5,000 fields": (_says(_head(*["X: y"] * 5000, JSON, LENGTH), GOOD), UpstreamInvalid),
    "101 fields": (_says(_head(*["X: y"] * 99, JSON, LENGTH), GOOD), UpstreamInvalid),
    "a field of 1 MB": (_says(_head("X: " + "y" * 1_000_000, JSON, LENGTH), GOOD), UpstreamInvalid),
    "a field of 70 KB": (_says(_head("X: " + "y" * 70_000, JSON, LENGTH), GOOD), UpstreamInvalid),
    "an answer that is too large": (_says(http(200, b"[" + b" " * 2_000_001)), UpstreamInvalid),
    "chunked, and too large": (_says(_head(JSON, CHUNKED), chunk(b" " * 900_000) * 3), UpstreamInvalid),
}


WELL_FRAMED = {"500 with a result", "500 with malformed JSON", "400 for another"}
"""Here only the text is wrong: the connection ended where its framing says and may serve the next request."""


@pytest.mark.parametrize("name", FAULTS)
async def test_a_broken_answer_is_a_fault_and_its_request_was_sent_once(
    scripted: ScriptedUpstream, name: str
) -> None:
    """The right fault, `sent`, the connection closed within a second, one request seen; the next good call works."""
    script, expected = FAULTS[name]
    upstream = _upstream(scripted)
    assert await _call(upstream) == GOOD
    scripted.script = script
    with pytest.raises(expected) as caught:
        await asyncio.wait_for(_call(upstream), 2)
    assert type(caught.value) is expected
    assert caught.value.sent is True
    assert caught.value.replica == scripted.url
    assert len(scripted.seen) == 2, "a tools/call is sent once only"
    if name not in WELL_FRAMED:
        await eventually(lambda: scripted.open == 0)
    scripted.script = answer
    assert await _call(upstream) == GOOD
    await upstream.close()


def _drips(first: bytes, rest: bytes) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.send(first)
        for byte in rest:
            await exchange.send(bytes([byte]))
            await asyncio.sleep(0.05)

    return script


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (b"", _head("X: " + "y" * 500, JSON, LENGTH) + GOOD),
        (b"", _head(status="HTTP/1.1 100 C") * 5 + http(200, GOOD)),
        (_head(JSON, LENGTH), GOOD),
        (_head(JSON, CHUNKED), chunk(GOOD)),
    ],
)
async def test_an_answer_that_drips_in_has_one_deadline(
    scripted: ScriptedUpstream, first: bytes, rest: bytes
) -> None:
    """A byte now and then buys a head or a JSON body no more time."""
    scripted.script = _drips(first, rest)
    upstream = _upstream(scripted)
    with pytest.raises(UpstreamTimeout):
        await asyncio.wait_for(_call(upstream), 2)
    await eventually(lambda: scripted.open == 0)
    await upstream.close()


async def test_no_second_replica_is_tried_once_a_byte_was_sent() -> None:
    """Whatever happens after the request left, the other replica does not get it as well."""
    for name in ("closed after the request", "reset after the request", "headers never come", "500 with a page"):
        script = FAULTS[name][0]
        async with ScriptedUpstream(script) as one, ScriptedUpstream(script) as two:
            upstream = _upstream(one, two)
            with pytest.raises(UpstreamFault) as caught:
                await _call(upstream)
            assert caught.value.sent is True
            assert len(one.seen) + len(two.seen) == 1
            await upstream.close()


async def test_a_used_connection_that_breaks_is_not_a_reason_to_send_again(scripted: ScriptedUpstream) -> None:
    """The server took the second request on a kept connection and closed: it may have run, so it is not repeated."""

    async def once(exchange: Exchange) -> None:
        if exchange.nth == 1:
            await answer(exchange)
        else:
            exchange.reset()

    scripted.script = once
    upstream = _upstream(scripted)
    assert await _call(upstream) == GOOD
    with pytest.raises(UpstreamUnreachable) as caught:
        await _call(upstream)
    assert caught.value.sent is True
    assert (len(scripted.seen), scripted.connections) == (2, 1)
    await upstream.close()


ACCEPTED: dict[str, tuple[bytes, str]] = {
    "identity named": (http(200, GOOD, extra="Content-Encoding: identity\r\n"), "wait"),
    "a few interim answers": (_head("Link: x", status="HTTP/1.1 103 E") * 3 + http(200, GOOD), "wait"),
    "continue": (_head(status="HTTP/1.1 100 C") + http(200, GOOD), "wait"),
    "ended by the end": (_head(JSON) + GOOD, "close"),
    "HTTP/1.0": (_head(JSON, LENGTH, status="HTTP/1.0 200 OK") + GOOD, "close"),
    "trailers": (_head(JSON, CHUNKED) + chunk(GOOD) + b"0\r\nContent-Encoding: gzip\r\n\r\n", "wait"),
    "chunk extensions": (_head(JSON, CHUNKED) + b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD), "wait"),
    "hostile fields": (
        http(200, GOOD, extra="Set-Cookie: a=b\r\nMcp-Session-Id: s\r\nWWW-Authenticate: x\r\nServer: y\r\n"),
        "wait",
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("size", [1, 100_000])
async def test_what_http_allows_is_accepted(scripted: ScriptedUpstream, name: str, size: int) -> None:
    """The twin of the faults: legal, if unusual, answers pass, however they are cut."""
    wire, then = ACCEPTED[name]
    scripted.script = _says(*(wire[at : at + size] for at in range(0, len(wire), size)), then=then)
    upstream = _upstream(scripted)
    assert await _call(upstream) == GOOD
    await upstream.close()


async def test_bytes_after_an_answer_are_nobodys_answer(scripted: ScriptedUpstream) -> None:
    """A second answer behind the first, at once or later, is never read as the next caller's (rule G8)."""

    async def twice(exchange: Exchange) -> None:
        await exchange.send(http(200, GOOD) + http(200, result_of(1, smuggled=True)))

    async def later(exchange: Exchange) -> None:
        await exchange.send(http(200, GOOD))
        await asyncio.sleep(0.02)
        await exchange.send(http(200, result_of(1, smuggled=True)))

    for script in (twice, later):
        scripted.script = script
        upstream = _upstream(scripted)
        for _ in range(3):
            assert await _call(upstream) == GOOD
            await asyncio.sleep(0.05)
        await upstream.close()
    assert scripted.connections == len(scripted.seen) == 6


async def test_an_answer_before_the_request_was_read_ends_the_connection(scripted: ScriptedUpstream) -> None:
    """An early answer counts, but a connection with half a request on it carries no other one."""
    release = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(http(400, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"too large"}}'))
        await writer.drain()
        await release.wait()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1024)
    port = server.sockets[0].getsockname()[1]
    target = UpstreamTarget((check_replica_url(f"http://127.0.0.1:{port}/mcp"),))
    upstream = HttpUpstream({SERVER.name: target}, LIMITS)
    found = await upstream.forward(an_admitted(body=b"x" * 20_000_000))
    assert found.status == 400
    server.close()
    with pytest.raises(UpstreamUnreachable) as caught:
        await upstream.forward(an_admitted())
    assert caught.value.sent is False, "the half-written connection was used again"
    release.set()
    await asyncio.sleep(0.05)
    await upstream.close()


async def _relay(found: Answer) -> str:
    """Read a stream as the gateway does, keeping nothing; the fault that it ended with."""
    stream = ResponseStream(a_call())
    async for piece in found.chunks():
        stream.feed(piece)
        if stream.fault:
            break
    await found.close()
    return stream.fault


def _peak_kib(*, from_now: bool = False) -> int:
    """The most memory that this process has held since the last call with `from_now`."""
    if from_now:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


async def test_a_bomb_is_never_inflated_nor_kept(scripted: ScriptedUpstream) -> None:
    """200 MB in 200 KB of gzip, one line of 40 MB, and 300,000 events: memory grows by less than 16 MiB (UPS-07)."""
    bomb = http(200, gzip.compress(bytes(200_000_000), 9), extra="Content-Encoding: gzip\r\n")
    endless = [SSE_HEAD, chunk(b"data: "), *[chunk(b"x" * 100_000)] * 400]
    many = [SSE_HEAD, *[chunk(b'data: {"jsonrpc":"2.0","method":"notifications/x"}\n\n' * 1000)] * 300]
    upstream = _upstream(scripted)
    before = _peak_kib(from_now=True)
    scripted.script = _says(bomb)
    with pytest.raises(UpstreamInvalid):
        await _call(upstream)
    for wire, why in ((endless, "an event is too large"), (many, "too many events")):
        scripted.script = _says(*wire)
        assert await _relay(await upstream.forward(an_admitted())) == why
    assert _peak_kib() - before < 16 * 1024
    await upstream.close()


async def test_a_subscription_may_be_quiet_for_longer(scripted: ScriptedUpstream) -> None:
    """A call's stream has a quiet limit, a subscription has none."""

    async def quiet(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + chunk(b": open\n\n"))
        await asyncio.sleep(0.4)
        await exchange.send(chunk(EVENT) + chunk(b""))

    scripted.script = quiet
    upstream = _upstream(scripted, limits=UpstreamLimits(quiet_s=0.1))
    with pytest.raises(UpstreamTimeout):
        await _call(upstream)
    found = await upstream.forward(an_admitted(a_call(method="subscriptions/listen", kind="subscription")))
    assert b"".join([piece async for piece in found.chunks()]).endswith(EVENT)
    await upstream.close()


async def test_closing_the_upstream_ends_what_runs(scripted: ScriptedUpstream) -> None:
    """After `close` nothing is open, and whoever waited was told."""
    scripted.script = _says(SSE_HEAD)
    upstream = _upstream(scripted, limits=UpstreamLimits())
    found = await upstream.forward(an_admitted())
    reading = asyncio.create_task(_relay(found))
    await asyncio.sleep(0.05)
    await upstream.close()
    with pytest.raises(UpstreamFault):
        await asyncio.wait_for(reading, 1)
    await asyncio.sleep(0.05)
    assert scripted.open == 0


# TLS.


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("name", ["localhost", "other.example"])
async def test_certificates_are_verified(
    certificate: Callable[[str], tuple[ssl.SSLContext, ssl.SSLContext]], name: str, trusted: bool
) -> None:
    """Over TLS only a trusted certificate for the configured name is spoken to; nothing is sent to another."""
    tls, trusting = certificate(name)
    scripted = ScriptedUpstream(tls=tls)
    async with scripted:
        replica = check_replica_url(f"https://localhost:{scripted.port}/mcp")
        target = UpstreamTarget((replica,), tls=Fixed(trusting) if trusted else None)
        upstream = HttpUpstream({SERVER.name: target}, LIMITS)
        if trusted and name == "localhost":
            for _ in range(3):
                assert await _call(upstream) == GOOD
            assert scripted.connections == 1
        else:
            with pytest.raises(UpstreamUnreachable) as caught:
                await _call(upstream)
            assert caught.value.sent is False
            assert not scripted.seen
        await upstream.close()


async def _ask_after(first: str, then: str, waits: asyncio.Event, deadlines: dict[str, float]) -> bytes:
    """Two calls on one connection; the second is answered once `waits` is set."""

    async def script(exchange: Exchange) -> None:
        if exchange.nth == 2:
            await waits.wait()
        await answer(exchange)

    async with ScriptedUpstream(script) as scripted:
        target = UpstreamTarget((check_replica_url(scripted.url),))
        upstream = HttpUpstream({SERVER.name: target}, LIMITS, {SERVER.name: ServerRules(deadlines=deadlines)})
        try:
            for method in (first, then):
                found = await upstream.forward(an_admitted(a_call(method=method)))
                body = await found.whole()
            assert (len(scripted.seen), scripted.connections) == (2, 1)
            return body
        finally:
            await upstream.close()


async def test_a_call_has_its_own_time_after_a_shorter_one_on_its_connection() -> None:
    """UPS-02: the timer of a connection may ring for a call that is over; the next one is not given up by that."""
    rang = asyncio.Event()
    asyncio.get_running_loop().call_later(1.2, rang.set)
    assert await _ask_after("tools/call", "prompts/get", rang, {"tools/call": 1.0, "prompts/get": 30}) == GOOD


async def test_a_call_has_its_own_time_after_a_longer_one_on_its_connection() -> None:
    """UPS-02: a timer that was set for later rings in time for a call that has less."""
    with pytest.raises(UpstreamTimeout, match="no answer in time"):
        await _ask_after("prompts/get", "tools/call", asyncio.Event(), {"prompts/get": 600, "tools/call": 0.1})
