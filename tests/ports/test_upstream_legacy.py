"""Servers that still want `initialize`, over real sockets: whose session it is, and that no call is sent twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import pytest

from gateway.contract.passage import Admitted, Identity
from gateway.contract.stream import ResponseStream
from gateway.upstream.health import HealthRules
from gateway.upstream.http import HttpUpstream
from gateway.upstream.legacy import LegacyUpstream
from gateway.upstream.port import UpstreamFault, UpstreamInvalid, UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.ring import ServerRules
from gateway.upstream.sessions import SessionLimits
from gateway.upstream.target import UpstreamLimits, UpstreamTarget, check_replica_url
from tests.support.past import TOOL, PastServer, event, rpc, stranger
from tests.support.upstream import (
    CALLER,
    HEADERS,
    SERVER,
    SSE_HEAD,
    Exchange,
    ScriptedUpstream,
    a_call,
    an_admitted,
    chunk,
    eventually,
    http,
    result_of,
)

LIMITS = UpstreamLimits(answer_s=10, quiet_s=10)
BOB = Identity("https://idp.example", "bob")
NOW = SessionLimits(rest_s=(0.0,))
"""Without a pause after a failure."""

Open = Callable[..., LegacyUpstream]


@pytest.fixture
async def past() -> PastServer:
    """What a server of an earlier revision does, and what it saw."""
    return PastServer()


@pytest.fixture
async def wire(past: PastServer) -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(past) as upstream:
        yield upstream


@pytest.fixture
async def connect() -> AsyncIterator[Open]:
    """Make an upstream for replicas of one old server; it is closed before they are."""
    made: list[LegacyUpstream] = []

    def make(
        *wires: ScriptedUpstream,
        limits: UpstreamLimits = LIMITS,
        sessions: SessionLimits | None = None,
        rules: ServerRules | None = None,
    ) -> LegacyUpstream:
        replicas = tuple(check_replica_url(wire.url) for wire in wires)
        target = UpstreamTarget(replicas, "Authorization", "Bearer gateways-own")
        past = LegacyUpstream(
            HttpUpstream({SERVER.name: target}, limits, {SERVER.name: rules or ServerRules()}),
            {SERVER.name: "2025-06-18"},
            limits,
            sessions,
        )
        made.append(past)
        return past

    yield make
    for upstream in made:
        await upstream.close()


def ask(
    request_id: str | int = 1, *, method: str = "tools/call", kind: str = "tool", who: Identity = CALLER, **meta: Any
) -> Admitted:
    return replace(an_admitted(a_call(request_id, method=method, kind=kind, meta=meta)), identity=who)


async def told(upstream: LegacyUpstream, admitted: Admitted) -> bytes:
    """The whole answer, its text as the caller's reader has it."""
    found = await upstream.forward(admitted)
    try:
        body = b"".join([piece async for piece in found.chunks()])
    finally:
        await found.close()
    if not found.streaming:
        return body
    stream = ResponseStream(admitted.call)
    stream.feed(body)
    assert stream.final is not None, stream.fault
    return stream.final.raw


async def result(upstream: LegacyUpstream, admitted: Admitted) -> dict[str, Any]:
    message = orjson.loads(await told(upstream, admitted))
    assert message["id"] == admitted.call.envelope.id
    found: dict[str, Any] = message["result"]
    return found


async def test_a_call_is_preceded_by_what_the_server_wants(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """`initialize`, `initialized`, then the call in the session; nothing modern, the caller's id back."""
    upstream = connect(wire)
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "progressToken": "p"}
    found = await result(upstream, an_admitted(a_call("theirs", meta=meta)))
    assert found["resultType"] == "complete"
    assert past.asked == [("initialize", ""), ("notifications/initialized", "s-1"), ("tools/call", "s-1")]
    introduced, _, called = wire.seen
    assert orjson.loads(introduced.body)["params"]["capabilities"] == {}
    assert introduced.values("mcp-protocol-version") == []
    assert called.values("mcp-protocol-version") == ["2025-06-18"]
    assert all(seen.values("authorization") == ["Bearer gateways-own"] for seen in wire.seen)
    assert all(not seen.values(name) for seen in wire.seen for name in ("mcp-method", "mcp-name"))
    sent = orjson.loads(called.body)
    assert sent["params"]["_meta"] == {"progressToken": "p"}
    assert sent["id"] == past.ran[0] != "theirs"


async def test_a_kept_session_is_asked_before_a_call_only(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """`ping` before what is sent only once; a list, which may be asked for again, goes without."""
    upstream = connect(wire)
    await told(upstream, ask())
    del past.asked[:]
    await told(upstream, ask())
    await told(upstream, ask(method="tools/list", kind="list"))
    assert past.asked == [("ping", "s-1"), ("tools/call", "s-1"), ("tools/list", "s-1")]


async def test_a_server_without_sessions_is_asked_without(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """No id, no `ping`, nothing to end."""
    past.keeps_sessions = False
    upstream = connect(wire)
    for number in range(3):
        await told(upstream, ask(number))
    await upstream.close()
    assert past.methods() == ["initialize", "notifications/initialized", *["tools/call"] * 3]
    assert {session for _, session in past.asked} == {""}


@pytest.mark.parametrize(
    "other",
    [
        replace(CALLER, subject="bob"),
        replace(CALLER, issuer="https://other.example"),
        replace(CALLER, client_id="another"),
        replace(CALLER, tenant="another"),
    ],
    ids=["subject", "issuer", "client", "tenant"],
)
async def test_no_two_principals_share_a_session(
    past: PastServer, wire: ScriptedUpstream, connect: Open, other: Identity
) -> None:
    """What one did in a session reaches no other (G8); the same principal keeps its own."""
    upstream = connect(wire)
    for who in (CALLER, other, CALLER, other):
        await told(upstream, ask(who=who))
    await upstream.inquire(SERVER, "tools/list", {})
    in_session = [session for method, session in past.asked if method in ("tools/call", "tools/list")]
    assert in_session == ["s-1", "s-2", "s-1", "s-2", "s-3"]


async def test_who_waits_for_the_same_session_shares_its_opening(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """Twenty calls at once of one principal initialize once, though one of them is given up meanwhile."""
    upstream = connect(wire)
    begun = asyncio.Event()
    go = asyncio.Event()

    async def slowly(exchange: Exchange) -> None:
        begun.set()
        await go.wait()
        await past.welcome(exchange)

    past.hooks["initialize"] = slowly
    first = asyncio.create_task(told(upstream, ask(0)))
    others = [asyncio.create_task(told(upstream, ask(number))) for number in range(1, 20)]
    await begun.wait()
    first.cancel()
    go.set()
    await asyncio.gather(*others)
    assert past.methods().count("initialize") == 1
    assert len(past.ran) == 19


async def test_equal_ids_of_concurrent_calls_are_never_mixed_up(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """Two clients of one principal both chose 1: a session tells them apart, and each gets its own answer."""
    upstream = connect(wire)
    await told(upstream, ask())
    both = asyncio.Barrier(2)

    async def together(exchange: Exchange) -> None:
        text = orjson.loads(exchange.seen.body)["params"]["_meta"]["progressToken"]
        past.ran.append(exchange.id)
        await both.wait()
        await exchange.send(http(200, rpc(exchange, {"content": text})))

    past.hooks["tools/call"] = together
    found = await asyncio.gather(*(result(upstream, ask(1, progressToken=text)) for text in ("a", "b")))
    assert [one["content"] for one in found] == ["a", "b"]
    assert len(set(past.ran)) == 3


def _copies_the_id(exchange: Exchange) -> bytes:
    return http(400, rpc(exchange, error={"code": -32000, "message": "Bad Request: No valid session ID provided"}))


@pytest.mark.parametrize(
    "lost",
    [
        lambda _: stranger(404),
        lambda _: stranger(400),
        lambda _: stranger(410),
        lambda _: stranger(404, "text/plain"),
        _copies_the_id,
    ],
    ids=["404", "400", "410", "text", "copied-id"],
)
async def test_a_lost_session_costs_no_call(
    past: PastServer, wire: ScriptedUpstream, connect: Open, lost: Callable[[Exchange], bytes]
) -> None:
    """The server forgot all sessions: a call finds out before it is sent, a list afterwards; each has one answer."""
    past.lost = lost
    upstream = connect(wire)
    await told(upstream, ask())
    past.known.clear()
    await told(upstream, ask(2))
    assert len(past.ran) == 2
    assert past.methods()[3:] == ["ping", "initialize", "notifications/initialized", "tools/call"]
    past.known.clear()
    found = await result(upstream, ask(3, method="tools/list", kind="list"))
    assert found["tools"] == [TOOL]
    assert past.methods()[7:] == ["tools/list", "initialize", "notifications/initialized", "tools/list"]
    past.known.clear()
    await upstream.inquire(SERVER, "tools/list", {})
    past.known.clear()
    assert (await upstream.inquire(SERVER, "tools/list", {}))["tools"] == [TOOL]
    assert (upstream.sessions.opened, upstream.sessions.lost) == (5, 3)


@pytest.mark.parametrize("status", [400, 404, 409, 500])
@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read", "completion/complete", "acme/x"])
async def test_a_call_that_may_have_run_is_never_sent_again(
    past: PastServer, wire: ScriptedUpstream, connect: Open, method: str, status: int
) -> None:
    """A status that looks like a lost session, to the call itself: sent, unknown, once. The next call is served."""
    upstream = connect(wire, sessions=NOW)
    asking = ask(method=method, kind="extension" if method == "acme/x" else "tool")
    await told(upstream, asking)

    async def ran_and_says_so(exchange: Exchange) -> None:
        past.ran.append(exchange.id)
        await exchange.send(stranger(status))

    past.hooks[method] = ran_and_says_so
    before = len(past.ran)
    with pytest.raises(UpstreamInvalid) as caught:
        await told(upstream, asking)
    assert caught.value.sent
    assert len(past.ran) == before + 1
    del past.hooks[method]
    await told(upstream, asking)


async def test_an_error_with_the_calls_own_id_is_an_answer(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """404 with a JSON-RPC error that names the request came from who read it: passed on, and the session stays."""
    upstream = connect(wire)
    await told(upstream, ask())
    error = {"code": -32601, "message": "no such tool"}

    async def refuse(exchange: Exchange) -> None:
        await exchange.send(http(404, rpc(exchange, error=error)))

    past.hooks["tools/call"] = past.hooks["tools/list"] = refuse
    for method, kind in (("tools/call", "tool"), ("tools/list", "list")):
        message = orjson.loads(await told(upstream, ask("x", method=method, kind=kind)))
        assert message == {"jsonrpc": "2.0", "id": "x", "error": error}
    assert upstream.sessions.lost == 0


@pytest.mark.parametrize("how", ["reset", "closed", "cut", "cut-stream", "garbage", "500"])
@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
async def test_what_breaks_is_not_sent_again(
    past: PastServer, wire: ScriptedUpstream, connect: Open, how: str, method: str
) -> None:
    """Whatever becomes of a request that arrived: one request, and a fault that says it was sent."""
    upstream = connect(wire)

    async def broken(exchange: Exchange) -> None:
        past.ran.append(exchange.id)
        if how == "reset":
            exchange.reset()
        elif how == "closed":
            exchange.writer.close()
        elif how == "cut":
            await exchange.send(http(200, rpc(exchange, {}))[:-5])
            exchange.writer.close()
        elif how == "cut-stream":
            await exchange.send(SSE_HEAD + chunk(event(rpc(exchange, {}))[:-5]))
            exchange.reset()
        else:
            await exchange.send(http(500 if how == "500" else 200, b"no"))

    past.hooks[method] = broken
    with pytest.raises(UpstreamFault) as caught:
        await told(upstream, ask(method=method, kind="list" if method == "tools/list" else "tool"))
    assert caught.value.sent
    assert len(past.ran) == 1


async def test_a_server_that_answers_each_ping_and_no_call_is_out(past: PastServer, connect: Open) -> None:
    """UPS-08: each of its calls was sent once, whatever the `ping` before it said; it comes back when it is well."""
    well = PastServer()
    async with ScriptedUpstream(past) as one, ScriptedUpstream(well) as two:
        health = HealthRules(ejected_s=0.2, slow_start_s=0)
        upstream = connect(one, two, sessions=NOW, rules=ServerRules(health))

        async def broken(exchange: Exchange) -> None:
            past.ran.append(exchange.id)
            exchange.reset()

        past.hooks["tools/call"] = broken
        faults: list[UpstreamFault] = []
        while len(past.ran) < 5:
            faults += [
                fault
                for fault in await asyncio.gather(told(upstream, ask()), return_exceptions=True)
                if isinstance(fault, UpstreamFault)
            ]
        assert len(faults) == len(past.ran) == 5
        assert all(fault.sent for fault in faults)
        for _ in range(4):
            await told(upstream, ask())
        del past.hooks["tools/call"]
        async with asyncio.timeout(10):
            while len(past.ran) == 5:
                await told(upstream, ask())
                await asyncio.sleep(0.02)


def _deaf(past: PastServer, dead: list[str], how: str) -> Callable[[Exchange], Any]:
    """A server that says in its own way that it has forgotten these sessions, and serves all others."""

    async def answer(exchange: Exchange) -> None:
        if "".join(exchange.seen.values("mcp-session-id")) not in dead:
            await past.answer(exchange, orjson.loads(exchange.seen.body)["method"])
        elif how == "hangs":
            await exchange.gone(30)
        elif how == "resets":
            exchange.reset()
        elif how.startswith("error"):
            told = rpc(exchange, error={"code": -32001, "message": "Session not found"})
            streams = how == "error-stream"
            await exchange.send(SSE_HEAD + chunk(event(told)) + chunk(b"") if streams else http(200, told))
        else:
            await exchange.send(http(int(how), b"gone", kind="text/plain"))

    return answer


@pytest.mark.parametrize(
    "how", ["401", "403", "405", "410", "422", "500", "503", "hangs", "resets", "error", "error-stream"]
)
@pytest.mark.parametrize("method", ["tools/call", "tools/list", "inquiry"])
async def test_nobody_is_locked_out_in_a_session_that_is_gone(
    past: PastServer, wire: ScriptedUpstream, connect: Open, method: str, how: str
) -> None:
    """Whatever the server answers in it, at the latest the next request has another; and no call was sent twice."""
    limits = replace(LIMITS, answer_s=1.5, inquire_s=1.5) if how == "hangs" else LIMITS
    upstream = connect(wire, limits=limits, sessions=NOW)
    asking = ask(method=method, kind="tool" if method == "tools/call" else "list")

    async def go() -> dict[str, Any]:
        if method == "inquiry":
            return dict(await upstream.inquire(SERVER, "tools/list", {}))
        return dict(orjson.loads(await told(upstream, asking)))

    await go()
    hook = _deaf(past, list(past.known), how)
    past.hooks |= dict.fromkeys(("ping", "tools/list", "tools/call"), hook)
    with contextlib.suppress(UpstreamFault):
        await go()
    assert "error" not in await go()
    assert len(past.ran) == len(set(past.ran))
    assert upstream.sessions.lost == 1


async def test_a_session_in_doubt_is_ended_after_its_last_call(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """It may be there all the same: what runs in it ends as ever, and then the server is told that it is over."""
    upstream = connect(wire, sessions=NOW)
    running = await upstream.forward(ask())
    doubted = past.known[0]
    past.hooks["ping"] = lambda exchange: exchange.send(http(503, b"{}"))
    with pytest.raises(UpstreamFault):
        await told(upstream, ask(2))
    del past.hooks["ping"]
    await told(upstream, ask(3))
    assert ("DELETE", doubted) not in past.asked
    await running.close()
    await eventually(lambda: ("DELETE", doubted) in past.asked)
    assert past.known == [past.known[0]] != [doubted]


@pytest.mark.parametrize("method", ["tools/call", "tools/list", "inquiry"])
async def test_a_server_that_keeps_sessions_since_it_was_replaced_gets_them(
    past: PastServer, wire: ScriptedUpstream, connect: Open, method: str
) -> None:
    """Spoken to without one until it asks for one: what it refused is not sent again, what comes next is served."""
    past.keeps_sessions = False
    upstream = connect(wire, sessions=NOW)
    asking = ask(method=method, kind="tool" if method == "tools/call" else "list")

    async def go() -> object:
        return await (upstream.inquire(SERVER, "tools/list", {}) if method == "inquiry" else told(upstream, asking))

    await go()
    past.keeps_sessions = True
    past.lost = lambda _: stranger(400)
    with pytest.raises(UpstreamInvalid):
        await go()
    await go()


async def test_a_list_that_is_wrong_keeps_its_session(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """That a server has no such list, or wants no such cursor, says nothing about the session."""
    upstream = connect(wire)
    for code in (-32601, -32602):

        async def wrong(exchange: Exchange, code: int = code) -> None:
            await exchange.send(http(200, rpc(exchange, error={"code": code, "message": "no"})))

        past.hooks["tools/list"] = wrong
        await told(upstream, ask(method="tools/list", kind="list"))
        with pytest.raises(UpstreamInvalid):
            await upstream.inquire(SERVER, "tools/list", {})
    assert (upstream.sessions.opened, upstream.sessions.lost) == (2, 0)


async def test_a_list_is_asked_for_twice_at_most(past: PastServer, wire: ScriptedUpstream, connect: Open) -> None:
    """A server that loses every session at once is refused after the second time."""
    upstream = connect(wire)

    async def lose(exchange: Exchange) -> None:
        await exchange.send(stranger())

    await told(upstream, ask(method="tools/list", kind="list"))
    past.hooks["tools/list"] = lose
    with pytest.raises(UpstreamInvalid):
        await told(upstream, ask(method="tools/list", kind="list"))
    with pytest.raises(UpstreamInvalid):
        await upstream.inquire(SERVER, "tools/list", {})
    assert past.methods().count("tools/list") == 5


@pytest.mark.parametrize("how", ["hangs", "breaks", "fails"])
async def test_a_session_that_can_not_be_asked_costs_no_call(
    past: PastServer, wire: ScriptedUpstream, connect: Open, how: str
) -> None:
    """Whatever happens to the `ping`, nothing of the call was sent; another replica is tried."""

    async def trouble(exchange: Exchange) -> None:
        if how == "hangs":
            await exchange.gone(30)
        elif how == "breaks":
            exchange.reset()
        else:
            await exchange.send(http(503, b"{}"))

    limits = replace(LIMITS, answer_s=1.5) if how == "hangs" else LIMITS
    upstream = connect(wire, limits=limits)
    await told(upstream, ask())
    past.hooks["ping"] = trouble
    with pytest.raises(UpstreamFault) as caught:
        await told(upstream, ask())
    assert caught.value.sent is False
    assert len(past.ran) == 1
    second = PastServer(name="t")
    async with ScriptedUpstream(second) as another:
        both = connect(wire, another, limits=limits)
        for number in range(4):
            await told(both, ask(number))
        await both.close()
        assert len(second.ran) >= 2


async def _hang(exchange: Exchange) -> None:
    await exchange.gone(30)


def _says(*lines: str, **more: Any) -> Callable[[PastServer], Callable[[Exchange], Any]]:
    return lambda past: lambda exchange: past.welcome(exchange, *lines, **more)


@pytest.mark.parametrize(
    "hook",
    [
        lambda _: _hang,
        lambda _: lambda exchange: exchange.send(http(200, rpc(exchange, error={"code": -32602, "message": "no"}))),
        lambda _: lambda exchange: exchange.send(http(200, result_of("another"))),
        lambda _: lambda exchange: exchange.send(http(400, b"no", kind="text/plain")),
        lambda _: lambda exchange: exchange.send(http(302, b"", extra="Location: http://169.254.169.254/\r\n")),
        _says(protocolVersion="2024-11-05"),
        _says(protocolVersion="2026-07-28"),
        _says(instructions="x" * 300_000),
        _says("Mcp-Session-Id: a\tb\r\n"),
        _says("Mcp-Session-Id: \x01\r\n"),
        _says(f"Mcp-Session-Id: {'a' * 10_240}\r\n"),
        _says("Mcp-Session-Id: a\r\n", "Mcp-Session-Id: b\r\n"),
    ],
    ids=[
        "hangs", "error", "another-id", "400", "redirect", "older", "modern", "too-large", "tab", "control", "10KB",
        "two-ids",
    ],
)  # fmt: skip
async def test_a_welcome_that_is_none_lets_nothing_through(
    past: PastServer, wire: ScriptedUpstream, connect: Open, hook: Callable[[PastServer], Any]
) -> None:
    """Hanging, errors, versions that were never spoken, ids that are none: nothing of the call was sent."""
    past.hooks["initialize"] = hook(past)
    patience = 1.5 if past.hooks["initialize"] is _hang else 10.0
    upstream = connect(wire, sessions=SessionLimits(initialize_s=patience, rest_s=(0.0,)))
    with pytest.raises(UpstreamFault) as caught:
        await told(upstream, ask())
    assert caught.value.sent is False
    with pytest.raises(UpstreamFault):
        await upstream.inquire(SERVER, "tools/list", {})
    assert set(past.methods()) == {"initialize"}
    del past.hooks["initialize"]
    await told(upstream, ask())
    assert len(past.ran) == 1


async def test_a_version_that_is_spoken_may_be_another_than_was_offered(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """Offered 2025-06-18, a server that answers 2025-03-26 is spoken to in that."""
    past.version = "2025-03-26"
    upstream = connect(wire)
    await told(upstream, ask())
    assert wire.seen[-1].values("mcp-protocol-version") == ["2025-03-26"]


async def test_after_a_failure_the_replica_gets_a_pause(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """Nobody initializes during it; a replica that answers serves meanwhile."""
    past.hooks["initialize"] = lambda exchange: exchange.send(http(500, b"{}"))
    upstream = connect(wire, sessions=SessionLimits(rest_s=(60.0,)))
    for who in (CALLER, CALLER, BOB):
        with pytest.raises(UpstreamFault) as caught:
            await told(upstream, ask(who=who))
        assert caught.value.sent is False
    assert past.methods() == ["initialize"]
    second = PastServer(name="t")
    async with ScriptedUpstream(second) as another:
        both = connect(wire, another, sessions=SessionLimits(rest_s=(60.0,)))
        for number in range(6):
            await told(both, ask(number))
        await both.close()
    assert past.methods() == ["initialize"] * 2
    assert len(second.ran) == 6


@pytest.mark.parametrize(("status", "taken"), [(202, True), (200, True), (204, True), (400, False), (500, False)])
async def test_initialized_is_taken_with_any_2xx(
    past: PastServer, wire: ScriptedUpstream, connect: Open, status: int, taken: bool
) -> None:
    """Many servers answer it with 200 or 204; one that refuses it has no session to offer."""
    past.hooks["notifications/initialized"] = lambda exchange: exchange.send(
        http(status, b"" if taken else b"{}", kind="" if taken else "application/json")
    )
    upstream = connect(wire)
    if taken:
        await told(upstream, ask())
    else:
        with pytest.raises(UpstreamInvalid):
            await told(upstream, ask())
    assert len(past.ran) == int(taken)


async def test_only_the_welcome_names_the_session(past: PastServer, wire: ScriptedUpstream, connect: Open) -> None:
    """Another session id on every later answer changes nothing."""
    upstream = connect(wire)

    async def mislead(exchange: Exchange) -> None:
        extra = f"Mcp-Session-Id: mallory-{len(past.asked)}\r\n"
        await exchange.send(http(200, rpc(exchange, {"content": []}), extra=extra))

    past.hooks["tools/call"] = past.hooks["ping"] = mislead
    for number in range(3):
        await told(upstream, ask(number))
    assert {session for _, session in past.asked[1:]} == {"s-1"}


async def test_an_id_that_is_given_away_anew_is_taken_from_who_had_it(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """A server that gives everybody the same id: never two at a time in it, and who has lost it initializes anew."""
    past.known.append("same")
    past.hooks["initialize"] = lambda exchange: past.welcome(exchange, "Mcp-Session-Id: same\r\n")
    upstream = connect(wire, sessions=NOW)
    await told(upstream, ask())
    await told(upstream, ask(who=BOB))
    assert upstream.sessions.counts() == {SERVER.name: 1}
    await told(upstream, ask())
    assert past.methods().count("initialize") == 3
    held = await upstream.forward(ask())
    with pytest.raises(UpstreamInvalid, match="a session that another has"):
        await told(upstream, ask(who=BOB))
    await held.close()
    await told(upstream, ask(who=BOB))


@pytest.mark.parametrize("status", [404, 503])
async def test_a_session_that_was_given_up_is_nobody_elses_while_a_call_runs_in_it(
    past: PastServer, wire: ScriptedUpstream, connect: Open, status: int
) -> None:
    """A server that gives everybody the same id: given up is not over, and what is over ends no other's session."""
    past.known.append("same")
    past.hooks["initialize"] = lambda exchange: past.welcome(exchange, "Mcp-Session-Id: same\r\n")
    upstream = connect(wire, sessions=NOW)
    running = await upstream.forward(ask())
    past.hooks["ping"] = lambda exchange: exchange.send(http(status, b"{}"))
    with contextlib.suppress(UpstreamFault):
        await told(upstream, ask(2))
    if status == 503:
        assert upstream.sessions.counts() == {SERVER.name: 0}
    with pytest.raises(UpstreamInvalid, match="a session that another has"):
        await told(upstream, ask(who=BOB))
    await told(upstream, ask(method="tools/list", kind="list"))
    await running.close()
    del past.hooks["ping"]
    await told(upstream, ask(who=BOB))
    await told(upstream, ask(who=BOB))
    assert "DELETE" not in past.methods()


async def test_no_two_that_begin_together_get_one_session(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """Two principals are welcomed with the same id at the same time: one of them has it, the other is refused."""
    past.known.append("same")
    both = asyncio.Event()

    async def same(exchange: Exchange) -> None:
        if past.methods().count("initialize") == 2:
            both.set()
        await both.wait()
        await past.welcome(exchange, "Mcp-Session-Id: same\r\n")

    past.hooks["initialize"] = same
    upstream = connect(wire, sessions=NOW)
    found = await asyncio.gather(*(upstream.forward(ask(who=who)) for who in (CALLER, BOB)), return_exceptions=True)
    answers = [one for one in found if not isinstance(one, BaseException)]
    faults = [one for one in found if isinstance(one, UpstreamFault)]
    assert (len(answers), len(faults)) == (1, 1)
    assert upstream.sessions.counts() == {SERVER.name: 1}
    for answer in answers:
        await answer.close()


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "id": 9, "method": "sampling/createMessage", "params": {}},
        {"jsonrpc": "2.0", "id": 9, "method": "elicitation/create", "params": {}},
        {"jsonrpc": "2.0", "id": 9, "method": "roots/list"},
        {"jsonrpc": "2.0", "id": 9, "method": "ping"},
        {"jsonrpc": "2.0", "id": 9, "result": {}},
    ],
    ids=lambda message: message.get("method", "another-id"),
)
async def test_what_the_server_asks_ends_the_call_and_calls_it_off(
    past: PastServer, wire: ScriptedUpstream, connect: Open, message: dict[str, Any]
) -> None:
    """A request on the stream can't be answered: a fault that was sent, and the server is told to stop."""
    upstream = connect(wire)

    async def asks(exchange: Exchange) -> None:
        past.ran.append(exchange.id)
        await exchange.send(SSE_HEAD + chunk(event(message)))
        await exchange.gone(30)

    past.hooks["tools/call"] = asks
    with pytest.raises(UpstreamInvalid) as caught:
        await told(upstream, ask())
    assert caught.value.sent
    await eventually(lambda: past.methods()[-1] == "notifications/cancelled")
    assert orjson.loads(wire.seen[-1].body)["params"] == {"requestId": past.ran[0]}
    assert len(past.ran) == 1


async def test_a_stream_that_is_closed_early_has_no_response(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """A server that expects `Last-Event-ID` gets none: the stream ends without a response, nothing is sent again."""
    upstream = connect(wire)

    async def later(exchange: Exchange) -> None:
        past.ran.append(exchange.id)
        await exchange.send(SSE_HEAD + chunk(b"id: e-0\nretry: 1\ndata: \n\n") + chunk(b""))

    past.hooks["tools/call"] = later
    found = await upstream.forward(ask())
    assert [piece async for piece in found.chunks()] == []
    await found.close()
    await eventually(lambda: past.methods()[-1] == "notifications/cancelled")
    assert past.methods().count("tools/call") == 1
    assert "GET" not in past.methods()


async def test_a_caller_that_goes_away_calls_its_call_off(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """Before the head or during the stream: the connection is closed and the server is told, once, in the session."""
    upstream = connect(wire)
    for head in (b"", SSE_HEAD):
        arrived = asyncio.Event()
        gone = asyncio.Event()

        async def slow(
            exchange: Exchange, head: bytes = head, arrived: asyncio.Event = arrived, gone: asyncio.Event = gone
        ) -> None:
            past.ran.append(exchange.id)
            await exchange.send(head)
            arrived.set()
            await exchange.gone(30)
            gone.set()

        past.hooks["tools/call"] = slow
        calling = asyncio.create_task(told(upstream, ask()))
        await arrived.wait()
        calling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await calling
        await asyncio.wait_for(gone.wait(), 5)
        await eventually(lambda: past.asked[-1] == ("notifications/cancelled", "s-1"))
        assert orjson.loads(wire.seen[-1].body)["params"] == {"requestId": past.ran[-1]}
    assert past.methods().count("notifications/cancelled") == 2


async def test_a_call_that_takes_too_long_is_called_off(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """The time is up: a timeout that was sent, and the server need not go on."""
    past.hooks["tools/call"] = _hang
    upstream = connect(wire, limits=replace(LIMITS, answer_s=0.3))
    with pytest.raises(UpstreamTimeout) as caught:
        await told(upstream, ask())
    assert caught.value.sent
    await eventually(lambda: past.methods()[-1] == "notifications/cancelled")


def _heard(server: PastServer, method: str, count: int) -> bool:
    return server.methods().count(method) == count


async def test_a_server_that_takes_nothing_is_in_no_others_way(past: PastServer, wire: ScriptedUpstream) -> None:
    """One lets notices hang, as many as may be under way: another hears of a call that is off within its second."""
    deaf = PastServer(hooks={"tools/call": _hang, "notifications/cancelled": _hang})
    past.hooks["tools/call"] = _hang
    async with ScriptedUpstream(deaf) as other:
        wires = {SERVER.name: wire, "deaf": other}
        targets = {name: UpstreamTarget((check_replica_url(one.url),)) for name, one in wires.items()}
        few = SessionLimits(errands=3, errands_at_once=2, errand_s=30.0)
        upstream = LegacyUpstream(HttpUpstream(targets, LIMITS), dict.fromkeys(targets, "2025-06-18"), LIMITS, few)
        for server, name, count, heard in ((deaf, "deaf", 6, 2), (past, SERVER.name, 1, 1)):
            asking = [replace(ask(number), server=replace(SERVER, name=name)) for number in range(count)]
            calls = [asyncio.create_task(told(upstream, one)) for one in asking]
            await eventually(partial(_heard, server, "tools/call", count))
            for one in calls:
                one.cancel()
            await asyncio.wait(calls)
            await eventually(partial(_heard, server, "notifications/cancelled", heard))
    await upstream.close()


async def test_sessions_are_bounded_and_the_oldest_goes_first(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """With room for two, a third principal ends the session that was used least recently, at the server as well."""
    upstream = connect(wire, sessions=SessionLimits(sessions=2))
    for name in ("a", "b", "a", "c"):
        await told(upstream, ask(who=Identity("https://idp.example", name)))
    await eventually(lambda: "DELETE" in past.methods())
    assert [session for method, session in past.asked if method == "DELETE"] == ["s-2"]
    assert upstream.sessions.counts() == {SERVER.name: 2}
    held = [await upstream.forward(ask(who=Identity("https://idp.example", name))) for name in ("a", "c")]
    with pytest.raises(UpstreamUnreachable, match="all are in use") as caught:
        await told(upstream, ask())
    assert caught.value.sent is False
    for answer in held:
        await answer.close()
    await told(upstream, ask())


async def test_what_idles_is_ended_and_what_runs_is_not(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """A session that nobody used for a while is deleted; one whose call still runs stays."""
    upstream = connect(wire, sessions=SessionLimits(idle_s=0.2))
    held = await upstream.forward(ask())
    await told(upstream, ask(who=BOB))
    await eventually(lambda: ("DELETE", "s-2") in past.asked)
    assert upstream.sessions.counts() == {SERVER.name: 1}
    await held.close()
    await eventually(lambda: ("DELETE", "s-1") in past.asked)
    assert past.known == []


async def test_closing_ends_every_session(past: PastServer, wire: ScriptedUpstream, connect: Open) -> None:
    """All are deleted at their server; a server that hangs holds nobody up."""
    upstream = connect(wire)
    for name in "abcde":
        await told(upstream, ask(who=Identity("https://idp.example", name)))
    await upstream.close()
    assert past.known == []
    past.hooks["DELETE"] = _hang
    other = connect(wire, sessions=SessionLimits(errand_s=0.2))
    await told(other, ask())
    async with asyncio.timeout(5):
        await other.close()


async def test_two_replicas_have_a_session_each(past: PastServer, wire: ScriptedUpstream, connect: Open) -> None:
    """Calls land anywhere and work: no session id ever reaches the replica that did not give it."""
    second = PastServer(name="t")
    async with ScriptedUpstream(second) as another:
        upstream = connect(wire, another)
        for number in range(10):
            await told(upstream, ask(number))
        assert len(past.ran) == len(second.ran) == 5
        assert {session for _, session in past.asked} == {"", "s-1"}
        assert {session for _, session in second.asked} == {"", "t-1"}
        await upstream.close()


async def test_replicas_that_number_their_sessions_alike_are_no_conflict(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """Each gives its first principal the same id: to one and the same, these are two sessions, used at once."""
    second = PastServer(name=past.name)
    async with ScriptedUpstream(second) as another:
        upstream = connect(wire, another)
        running = [await upstream.forward(ask(number)) for number in range(4)]
        assert past.known == second.known == ["s-1"]
        assert upstream.sessions.counts() == {SERVER.name: 2}
        for answer in running:
            await answer.close()


async def test_a_replica_that_is_away_is_passed_over(past: PastServer, wire: ScriptedUpstream, connect: Open) -> None:
    """Its session can't be opened, so nothing was sent: the other one serves every call."""
    gone = await ScriptedUpstream().start()
    await gone.stop()
    upstream = connect(gone, wire)
    for number in range(6):
        await told(upstream, ask(number))
    assert len(past.ran) == 6


@pytest.mark.parametrize("how", ["gone", "opens-none"])
@pytest.mark.parametrize("method", ["tools/call", "tools/list", "inquiry", "server/discover"])
async def test_a_replica_that_goes_away_costs_nothing(
    past: PastServer, wire: ScriptedUpstream, connect: Open, method: str, how: str
) -> None:
    """With sessions at both, one is gone, or has lost them and opens no other: each request is the other's."""
    second = PastServer(name="t")
    async with ScriptedUpstream(second) as another:
        upstream = connect(wire, another, sessions=NOW)
        asking = ask(method=method, kind="tool" if method == "tools/call" else "list")

        async def go() -> object:
            return await (
                upstream.inquire(SERVER, "tools/list", {}) if method == "inquiry" else told(upstream, asking)
            )

        for _ in range(4):
            await go()
        assert past.known
        assert second.known
        if how == "gone":
            await another.stop()
        else:
            second.known.clear()
            second.hooks["initialize"] = lambda exchange: exchange.send(http(503, b"{}"))
        for _ in range(6):
            await go()


async def test_a_discovery_is_what_the_server_said(past: PastServer, wire: ScriptedUpstream, connect: Open) -> None:
    """Answered without asking for it, once the session was found to be there; a server that is away has none."""
    upstream = connect(wire)
    found = await result(upstream, ask("d", method="server/discover", kind="discover"))
    assert found["supportedVersions"] == ["2026-07-28"]
    assert found["capabilities"] == {"tools": {}}
    assert found == await upstream.inquire(SERVER, "server/discover", {})
    assert "server/discover" not in past.methods()
    assert past.methods()[-1] == "ping"
    await wire.stop()
    with pytest.raises(UpstreamFault):
        await told(upstream, ask(method="server/discover", kind="discover"))
    await wire.start()


@pytest.mark.parametrize("method", ["subscriptions/listen", "tasks/get"])
async def test_what_is_new_is_answered_without_the_server(
    past: PastServer, wire: ScriptedUpstream, connect: Open, method: str
) -> None:
    """404 -32601 with the caller's id, and the server hears nothing of it."""
    found = await connect(wire).forward(ask("x", method=method, kind="subscription"))
    assert found.status == 404
    message = orjson.loads(b"".join([piece async for piece in found.chunks()]))
    assert (message["id"], message["error"]["code"]) == ("x", -32601)
    assert past.asked == []


@pytest.mark.parametrize("more", [{"request_state": "s"}, {"input_responses": {}}], ids=["state", "responses"])
async def test_an_answer_to_what_was_never_asked_is_not_sent(
    past: PastServer, wire: ScriptedUpstream, connect: Open, more: dict[str, Any]
) -> None:
    """An old server asks for no input: what claims to give it some reaches nobody."""
    admitted = ask()
    with pytest.raises(UpstreamInvalid) as caught:
        await connect(wire).forward(replace(admitted, call=replace(admitted.call, **more)))
    assert caught.value.sent is False
    assert past.asked == []


async def test_the_pages_of_a_list_are_asked_for_like_any(
    past: PastServer, wire: ScriptedUpstream, connect: Open
) -> None:
    """The catalogue's questions carry their cursor, in the house's own session, also where answers are streams."""

    async def page(exchange: Exchange) -> None:
        cursor = orjson.loads(exchange.seen.body)["params"].get("cursor")
        told = rpc(exchange, {"tools": [TOOL], **({} if cursor else {"nextCursor": "2"})})
        await exchange.send(SSE_HEAD + chunk(b"id: e-0\ndata: \n\n" + event(told)) + chunk(b""))

    past.hooks["tools/list"] = page
    upstream = connect(wire)
    assert (await upstream.inquire(SERVER, "tools/list", {}))["nextCursor"] == "2"
    assert "nextCursor" not in await upstream.inquire(SERVER, "tools/list", {"cursor": "2"})


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_lost_no_session_is_shared_and_no_call_runs_twice(
    past: PastServer, wire: ScriptedUpstream, connect: Open, seed: int
) -> None:
    """Twelve principals, sessions that vanish, resets, wrong statuses, callers that go away, little room."""
    chance = random.Random(seed)
    owners: dict[str, set[str]] = defaultdict(set)
    runs: Counter[int] = Counter()
    calls, unsent = set[int](), set[int]()

    async def carry_out(exchange: Exchange) -> None:
        session = "".join(exchange.seen.values("mcp-session-id"))
        if session not in past.known:
            return await exchange.send(past.lost(exchange))
        said = orjson.loads(exchange.seen.body)["params"]["_meta"]
        owners[session].add(said["acme/who"])
        runs[said["acme/n"]] += 1
        if chance.random() < 0.05:
            return exchange.reset()
        if chance.random() < 0.05:
            return await exchange.send(stranger(chance.choice([400, 404, 410, 500])))
        if chance.random() < 0.05:
            past.known.clear()
        await asyncio.sleep(chance.random() * 0.01)
        return await exchange.send(http(200, rpc(exchange, {"content": [], "tools": [], "who": said["acme/who"]})))

    async def forget(exchange: Exchange) -> None:
        past.known[:] = [one for one in past.known if one not in exchange.seen.values("mcp-session-id")]
        await exchange.send(http(200, kind=""))

    past.hooks |= {"tools/call": carry_out, "tools/list": carry_out, "DELETE": forget}
    upstream = connect(wire, sessions=SessionLimits(sessions=chance.choice([4, 8, 40]), rest_s=(0.0,)))

    async def one(number: int) -> None:
        await asyncio.sleep(chance.random() * 0.3)
        who, patience = f"p{number % 12}", chance.choice([30.0, 30.0, 30.0, 0.02])
        method, kind = chance.choice([("tools/list", "list"), *[("tools/call", "tool")] * 4])
        meta = {"acme/who": who, "acme/n": number}
        asking = ask(1, method=method, kind=kind, who=Identity("https://idp.example", who), **meta)
        try:
            async with asyncio.timeout(patience):
                assert (await result(upstream, asking))["who"] == who
        except UpstreamFault as fault:
            unsent.update([number] if not fault.sent else [])
        except TimeoutError:
            pass
        if method == "tools/call":
            calls.add(number)

    await asyncio.gather(*(one(number) for number in range(120)))
    assert sum(runs.values()) > 10
    assert all(runs[number] <= 1 for number in calls)
    assert not any(runs[number] for number in unsent & calls)
    assert all(len(principals) == 1 for principals in owners.values()), owners


async def test_other_servers_are_none_of_its_business() -> None:
    """A server that is not configured as an old one is spoken to in this revision."""
    async with ScriptedUpstream() as modern:
        target = UpstreamTarget((check_replica_url(modern.url),))
        upstream = LegacyUpstream(HttpUpstream({SERVER.name: target}), {"another": "2025-06-18"})
        await told(upstream, an_admitted())
        assert dict(modern.seen[0].headers)["mcp-method"] == dict(HEADERS)[b"mcp-method"].decode()
        assert len(modern.seen) == 1
        await upstream.close()
