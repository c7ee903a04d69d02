"""Subscriptions through the real corridor: what rooms make of them, and how they end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson

from gateway.contract.passage import Admitted, Reply
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.subscription import SUBSCRIPTION_ID, Rewrite
from tests.contract.asking import message
from tests.contract.sse import whatwg
from tests.pipeline.house import Asked, InnerHouse, inner_house
from tests.support.upstream import SSE_HEAD, Exchange, chunk

SUBSCRIBED = {SUBSCRIPTION_ID: 7}
ACK = {
    "jsonrpc": "2.0",
    "method": "notifications/subscriptions/acknowledged",
    "params": {"_meta": SUBSCRIBED, "notifications": {"toolsListChanged": True}},
}
TOOLS = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": SUBSCRIBED}}
RESULT = {"jsonrpc": "2.0", "id": 7, "result": {"resultType": "complete", "_meta": SUBSCRIBED}}


def listening(house: InnerHouse, **filter_: Any) -> Asked:
    """A subscription of alice's, to changes of the tools unless said otherwise."""
    wanted = filter_ or {"toolsListChanged": True}
    return house.request(message("subscriptions/listen", params={"notifications": wanted}, id=7))


def events(*messages: Any) -> bytes:
    """Messages as chunks of an event stream."""
    return b"".join(chunk(b"data: " + orjson.dumps(one) + b"\n\n") for one in messages)


def relayed(pieces: list[bytes]) -> list[Any]:
    """What a client reads."""
    return [orjson.loads(data) for _, data, _ in whatwg(b"".join(pieces))]


def chunks_of(reply: Reply) -> AsyncIterator[bytes]:
    """The stream of a reply that is one."""
    assert reply.chunks is not None, reply.body
    return reply.chunks


async def test_a_subscription_ends_as_its_server_ends_it(tmp_path: Path) -> None:
    """Acknowledgement, notifications and result reach the caller, and the record says `executed`."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + events(ACK, TOOLS, RESULT) + chunk(b""))

    async with inner_house(tmp_path) as house:
        house.script = script
        reply = await house.serve(listening(house))
        assert relayed([piece async for piece in chunks_of(reply)]) == [ACK, TOOLS, RESULT]
        assert [record["outcome"] for record in house.sink.of("outcome")] == ["executed"]


async def test_rooms_rewrite_in_their_order(tmp_path: Path) -> None:
    """Each room sees what the one before made of a notification."""
    saw: list[str] = []

    async def counting(admitted: Admitted) -> Rewrite:
        assert admitted.call.kind == "subscription"

        def rewrite(message: dict[str, Any]) -> dict[str, Any]:
            saw.append("first")
            return {**message, "params": {**message["params"], "n": len(saw)}}

        return rewrite

    async def indifferent(_: Admitted) -> None:
        return None

    async def picky(_: Admitted) -> Rewrite:
        return lambda message: None if message["params"]["n"] == 2 else message

    async def script(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + events(ACK, TOOLS, TOOLS, RESULT) + chunk(b""))

    async with inner_house(tmp_path) as house:
        house.script = script
        house.corridor.delivery.rewriters = (counting, indifferent, picky)
        reply = await house.serve(listening(house))
        out = relayed([piece async for piece in chunks_of(reply)])
        assert [one.get("params", {}).get("n") for one in out] == [1, 3, None]
        assert saw == ["first"] * 3


async def test_a_room_may_refuse_a_subscription_of_which_nothing_was_sent(tmp_path: Path) -> None:
    """What can't be rewritten is refused before a byte goes upstream."""

    async def refusing(_: Admitted) -> Rewrite:
        raise Refused(Refusal.POLICY_DENIED, "no such task")

    async with inner_house(tmp_path) as house:
        house.corridor.delivery.rewriters = (refusing,)
        reply = await house.serve(listening(house))
        assert (reply.status, house.forwarded) == (403, [])
        assert [record["outcome"] for record in house.sink.of("outcome")] == ["failed"]
