"""Older clients in the corridor: the same question for the policy, sessions that end, and nothing left running."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.legacy import Session
from gateway.contract.passage import Envelope, Identity, Received, Reply, Server
from gateway.contract.quirks import Quirk
from gateway.contract.refusals import Refusal, Refused
from gateway.sessions import LONGEST, Sessions
from tests.contract.asking import message
from tests.pipeline.house import ALLOW, APPROVE, SERVER, Asked, InnerHouse, inner_house, tool
from tests.support.upstream import SSE_HEAD, Exchange, chunk, http, result_of

OLDER = replace(SERVER, legacy_clients=True, quirks=frozenset({Quirk.ACCEPT_JSON_ONLY}))
OLD = "2025-11-25"
KEYS = (b"k" * 32, b"l" * 32)
ALICE = Identity("https://i", "alice")
HERE = Server("s", "/s/mcp", "https://gw/s/mcp", "https://gw/.well-known/x")
ENVELOPE = Envelope(b"{}", 7, "ping", {}, {})
AGREED = Session(OLD, {})


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[InnerHouse]:
    """A corridor whose server answers `server/discover` with tools."""

    async def answer(exchange: Exchange) -> None:
        found = result_of(exchange.id, supportedVersions=["2026-07-28"], capabilities={"tools": {}}, tools=[])
        await exchange.send(http(200, found))

    async with inner_house(tmp_path) as opened:
        opened.script = answer
        yield opened


def older(house: InnerHouse, method: str, params: Mapping[str, Any], **lines: str) -> Asked:
    """A request as an older client sends it."""
    token = house.issuer.mint(SERVER.resource, scope="mcp:use")
    head = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream", **lines}
    headers = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in head.items())
    body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": dict(params)})
    return Asked(Received(OLDER, "POST", OLDER.path, headers), body, OLDER)


def value(reply: Reply, name: bytes) -> str:
    """A header of a reply."""
    return dict(reply.headers)[name].decode()


async def begin(house: InnerHouse) -> dict[str, str]:
    """The two lines that every request of a new conversation repeats."""
    info = {"name": "n", "version": "1"}
    params = {"protocolVersion": OLD, "capabilities": {"sampling": {}}, "clientInfo": info}
    reply = await house.serve(older(house, "initialize", params))
    assert reply.status == 200, reply
    return {"mcp_session_id": value(reply, b"mcp-session-id"), "mcp_protocol_version": OLD}


def asked_of(house: InnerHouse) -> list[dict[str, Any]]:
    """What the policy was asked, but for the times of two tokens."""
    for question in house.policy.questions:
        question["subject"]["claims"] = question["subject"]["claims"].keys() - {"iat", "exp"}
    return list(house.policy.questions)


async def test_the_policy_is_asked_the_very_same_question(house: InnerHouse) -> None:
    """Nothing of how a call came is part of the question, so no rule can be passed by coming the older way."""
    session = await begin(house)
    for method, params in (
        ("tools/call", {"name": "pay", "arguments": {"amount": 1.5, "to": ["\u00e9", None]}}),
        ("tools/list", {"cursor": "c"}),
        ("resources/read", {"uri": "a://b"}),
    ):
        house.policy.questions.clear()
        await house.serve(house.request(message(method, params=params)))
        newer = asked_of(house)
        house.policy.questions.clear()
        await house.serve(older(house, method, params, **session))
        assert asked_of(house) == newer
        assert newer[0]["request"]["method"] == method


async def test_a_ticket_is_of_the_effect_in_either_era(house: InnerHouse) -> None:
    """Held as an older call, approved, run as a newer one: it is one effect, and it runs once."""
    house.policy.judge_by = lambda question: APPROVE if question["request"]["kind"] == "tool" else ALLOW
    session = await begin(house)
    params = {"name": "pay", "arguments": {"amount": 5}}
    forwarded = len(house.forwarded)
    ticket = await house.approve(older(house, "tools/call", params, **session))
    assert len(house.forwarded) == forwarded
    assert (await house.serve(house.request(message("tools/call", params=params)))).status == 200
    held = orjson.loads((await house.serve(older(house, "tools/call", params, **session))).body)["error"]
    assert (held["code"], held["data"]["ticket"]["id"] != ticket) == (40303, True)
    assert len(house.forwarded) == forwarded + 1


async def test_a_session_ends_and_can_be_begun_anew(house: InnerHouse) -> None:
    """After its time it is as unknown as a made-up one; what the client does then works."""
    clock = house.corridor.clock
    house.corridor.clock = lambda: clock() - 43_201.0
    session = await begin(house)
    assert (await house.serve(older(house, "ping", {}, **session))).status == 200
    house.corridor.clock = clock
    reply = await house.serve(older(house, "ping", {}, **session))
    assert reply.status == 404
    assert house.sink.records[-1]["detail"] == "session: expired"
    assert (await house.serve(older(house, "ping", {}, **await begin(house)))).status == 200


def refused(
    sessions: Sessions, text: str, now: float = 0.0, identity: Identity = ALICE, server: Server = HERE
) -> str:
    """Unknown -> the record's detail."""
    with pytest.raises(Refused) as caught:
        sessions.resume(text.encode(), identity, server, ENVELOPE, now)
    assert (caught.value.refusal, caught.value.request_id) == (Refusal.SESSION_UNKNOWN, 7)
    return caught.value.detail


def test_a_session_is_its_owners_for_its_time() -> None:
    """Issuer, subject, server and resource are bound; the last second counts, the next does not."""
    sessions = Sessions(KEYS, 60.0)
    text = sessions.begin(AGREED, ALICE, HERE, 1000.0)
    assert sessions.resume(text.encode(), ALICE, HERE, ENVELOPE, 1059.9) == AGREED
    assert refused(sessions, text, 1060.0) == "session: expired"
    for identity in (
        replace(ALICE, subject="bob"),
        replace(ALICE, issuer="https://j"),
        Identity("https://", "ialice"),
    ):
        refused(sessions, text, identity=identity)
    for server in (replace(HERE, name="t"), replace(HERE, resource="https://gw/t/mcp")):
        refused(sessions, text, server=server)
    assert sessions.begin(AGREED, ALICE, HERE, 1000.0) != text
    assert len(text) < LONGEST // 4
    assert set(text) <= {chr(code) for code in range(0x21, 0x7F)}


def test_keys_rotate_under_sessions() -> None:
    """The first key seals, all open, and a key that is gone takes its sessions along; no other seal is a session."""
    old, both, new = Sessions(KEYS[:1]), Sessions(KEYS[::-1]), Sessions(KEYS[1:])
    text = old.begin(AGREED, ALICE, HERE, 0.0)
    assert both.resume(text.encode(), ALICE, HERE, ENVELOPE, 1.0) == AGREED
    refused(new, text)
    assert new.resume(both.begin(AGREED, ALICE, HERE, 0.0).encode(), ALICE, HERE, ENVELOPE, 1.0) == AGREED


@given(st.data())
def test_no_changed_session_is_taken(data: st.DataObject) -> None:
    """One bit of it, anything made up, anything endless: unknown, and never a defect."""
    sessions = Sessions(KEYS)
    text = sessions.begin(AGREED, ALICE, HERE, 0.0)
    raw = bytearray(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    at = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[at // 8] ^= 1 << at % 8
    refused(sessions, base64.urlsafe_b64encode(bytes(raw)).rstrip(b"=").decode())
    made_up = data.draw(st.text(max_size=2 * LONGEST))
    if made_up != text:
        refused(sessions, made_up)


async def test_who_leaves_while_a_stream_is_read_for_him_ends_it(house: InnerHouse) -> None:
    """A client that reads JSON alone goes away: the server sees it at once, and the record says so."""
    gone: list[float] = []
    begun = asyncio.Event()

    async def stream(exchange: Exchange) -> None:
        note = b'data: {"jsonrpc":"2.0","method":"com.example/notifications/note","params":{}}\n\n'
        await exchange.send(SSE_HEAD + chunk(note))
        begun.set()
        gone.append(await exchange.gone())

    house.script = stream
    asked = house.ask()
    received = asked.received
    lines = tuple((name, b"application/json" if name == b"accept" else what) for name, what in received.headers)
    asked = Asked(replace(received, server=OLDER, headers=lines), asked.raw, OLDER)
    serving = asyncio.create_task(house.serve(asked))
    async with asyncio.timeout(10):
        await begun.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        await house.corridor.delivery.drain()
        while not gone:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert [record["outcome"] for record in house.sink.of("outcome")] == ["cancelled"]
    assert house.corridor.delivery.streams.calls == house.corridor.in_flight == 0


async def test_a_quirk_is_tolerated_without_older_clients(house: InnerHouse) -> None:
    """Each is switched on by itself: JSON alone for who asks for it, and an `initialize` is refused as ever."""
    odd = replace(OLDER, legacy_clients=False)

    async def stream(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + chunk(b"data: " + result_of(exchange.id) + b"\n\n") + chunk(b""))

    house.script = stream
    asked = house.ask()
    lines = [(name, b"application/json" if name == b"accept" else what) for name, what in asked.received.headers]
    reply = await house.serve(Asked(replace(asked.received, server=odd, headers=tuple(lines)), asked.raw, odd))
    assert (reply.status, reply.chunks, "result" in orjson.loads(reply.body)) == (200, None, True)
    assert house.sink.of("outcome")[-1]["quirks"] == ["accept_json_only"]
    info = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}}
    early = older(house, "initialize", info)
    refused_one = await house.serve(Asked(replace(early.received, server=odd), early.raw, odd))
    assert (refused_one.status, house.sink.records[-1]["reasons"]) == (400, ["header_mismatch"])


async def test_who_can_not_be_asked_is_told_so(house: InnerHouse) -> None:
    """A question is undeclared by every older client: it needs the newer revision, the server did nothing wrong."""

    async def asks(exchange: Exchange) -> None:
        question = {"q": {"method": "elicitation/create", "params": {"message": "m", "requestedSchema": {}}}}
        await exchange.send(http(200, result_of(exchange.id, resultType="input_required", inputRequests=question)))

    session = await begin(house)
    house.script = asks
    params = {"name": "pay", "arguments": {}}
    newer = await house.serve(house.request(message("tools/call", params=params)))
    assert orjson.loads(newer.body)["error"]["code"] == Refusal.UPSTREAM_INVALID.value.code
    told = await house.serve(older(house, "tools/call", params, **session))
    assert orjson.loads(told.body)["error"]["code"] == Refusal.REVISION_REQUIRED.value.code
    assert house.sink.of("outcome")[-1]["reasons"] == ["revision_required"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_no_session_begins_with_an_error(house: InnerHouse, streamed: bool) -> None:
    """What the server answered to `initialize` was no, however it says so: there is nothing to go on with."""

    async def says(exchange: Exchange, text: bytes) -> None:
        if not streamed:
            await exchange.send(http(200, text))
            return
        await exchange.send(SSE_HEAD + chunk(b"data: " + text + b"\n\n") + chunk(b""))

    async def agrees(exchange: Exchange) -> None:
        told = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "ttlMs": 0, "cacheScope": "private"}
        await says(exchange, result_of(exchange.id, **told))

    async def refuses(exchange: Exchange) -> None:
        error = {"code": -32603, "message": "no"}
        await says(exchange, orjson.dumps({"jsonrpc": "2.0", "id": exchange.id, "error": error}))

    house.script = agrees
    assert await begin(house)
    house.script = refuses
    info = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": {"name": "n", "version": "1"}}
    reply = await house.serve(older(house, "initialize", info))
    assert orjson.loads(reply.body)["error"]["code"] == -32603
    assert b"mcp-session-id" not in dict(reply.headers)


async def test_headers_are_made_for_a_tool_that_binds_them(house: InnerHouse) -> None:
    """An older client knows of no such header; what no header can say is refused before anything is forwarded."""
    number = {"type": "integer", "x-mcp-header": "Count"}
    house.tools = [tool("pay", inputSchema={"type": "object", "properties": {"count": number}})]
    session = await begin(house)
    good = older(house, "tools/call", {"name": "pay", "arguments": {"count": 42}}, **session)
    assert orjson.loads((await house.serve(good)).body).keys() == {"jsonrpc", "id", "result"}
    assert house.upstream.seen[-1].values("mcp-param-count") == ["42"]
    before = len(house.forwarded)
    wide = older(house, "tools/call", {"name": "pay", "arguments": {"count": 2**53}}, **session)
    assert orjson.loads((await house.serve(wide)).body)["error"]["code"] == -32602
    assert len(house.forwarded) == before
