"""Approved calls to servers of earlier revisions, through the whole corridor: what was not sent is given back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from gateway.upstream.http import HttpUpstream
from gateway.upstream.legacy import LegacyUpstream
from gateway.upstream.sessions import SessionLimits
from gateway.upstream.target import UpstreamTarget, check_replica_url
from tests.pipeline.house import ALLOW, APPROVE, SERVER, InnerHouse, inner_house, tool
from tests.support.past import PastServer, rpc, stranger
from tests.support.upstream import Exchange, http

ARGUMENTS = {"b": 1e21, "a": "é"}


@asynccontextmanager
async def old_house(folder: Path) -> AsyncIterator[tuple[InnerHouse, PastServer]]:
    """A corridor whose one server wants `initialize`, and where every call needs a person."""
    async with inner_house(folder, lambda _: APPROVE) as house:
        past = PastServer()
        past.hooks["tools/list"] = lambda exchange: exchange.send(http(200, rpc(exchange, {"tools": [tool("pay")]})))
        house.upstream.script = past
        target = UpstreamTarget((check_replica_url(house.upstream.url),))
        plain = HttpUpstream({SERVER.name: target})
        upstream = LegacyUpstream(plain, {SERVER.name: "2025-06-18"}, session_limits=SessionLimits(rest_s=(0.0,)))
        house.corridor.catalog.upstream = house.corridor.delivery.upstream = upstream
        try:
            yield house, past
        finally:
            await house.corridor.delivery.drain()
            await house.corridor.catalog.close()
            await upstream.close()


async def test_an_approval_outlives_a_server_that_can_not_be_entered(tmp_path: Path) -> None:
    """No session, nothing sent: the use is given back, and the identical call runs once without asking again."""
    async with old_house(tmp_path) as (house, past):
        asked = house.ask("pay", ARGUMENTS)
        await house.approve(asked)

        async def broken(exchange: Exchange) -> None:
            await exchange.send(http(500, b"{}"))

        past.hooks["initialize"] = broken
        reply = await house.serve(asked)
        assert (reply.status, orjson.loads(reply.body)["error"]["code"]) == (502, 50202)
        assert past.ran == []
        del past.hooks["initialize"]
        reply = await house.serve(asked)
        assert reply.status == 200
        assert reply.chunks is not None
        assert b"ran as" in b"".join([piece async for piece in reply.chunks])
        assert len(past.ran) == 1
        called = next(seen for seen in house.upstream.seen if b"tools/call" in seen.body)
        assert '"arguments":{"a":"é","b":1e+21}'.encode() in called.body


@pytest.mark.parametrize("status", [400, 404])
async def test_an_approved_call_that_may_have_run_is_unknown(tmp_path: Path, status: int) -> None:
    """The server says to the call itself that it knows no session: unknown, sent once, and not run on repetition."""
    async with old_house(tmp_path) as (house, past):
        asked = house.ask("pay", ARGUMENTS)
        await house.approve(asked)

        async def runs_and_forgets(exchange: Exchange) -> None:
            past.ran.append(exchange.id)
            past.known.clear()
            await exchange.send(stranger(status))

        past.hooks["tools/call"] = runs_and_forgets
        reply = await house.serve(asked)
        assert (reply.status, orjson.loads(reply.body)["error"]["code"]) == (502, 50202)
        await house.corridor.delivery.drain()
        assert [record["outcome"] for record in house.sink.of("outcome")] == ["unknown"]
        reply = await house.serve(asked)
        assert (reply.status, orjson.loads(reply.body)["error"]["code"]) == (403, 40304)
        assert len(past.ran) == 1


async def test_a_session_is_left_by_every_answer(tmp_path: Path) -> None:
    """Whole or refused: whoever entered it leaves it, so that idle ones can end and make room."""
    async with old_house(tmp_path) as (house, past):
        house.policy.judge_by = lambda _: ALLOW
        upstream = house.corridor.delivery.upstream
        assert isinstance(upstream, LegacyUpstream)

        async def whole(exchange: Exchange) -> None:
            await exchange.send(http(200, rpc(exchange, {"content": []})))

        async def invalid(exchange: Exchange) -> None:
            await exchange.send(http(200, rpc(exchange, {"resultType": "task"})))

        for hook, status in ((whole, 200), (invalid, 502)):
            past.hooks["tools/call"] = hook
            assert (await house.serve(house.ask("pay", ARGUMENTS))).status == status
            sessions = list(upstream.sessions._kept.values())
            assert sessions
            assert not any(session.uses for session in sessions)
