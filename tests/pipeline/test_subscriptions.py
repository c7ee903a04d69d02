"""Subscriptions through the real corridor: what rooms make of them, and how they end."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, cast

import orjson

from gateway.config import Limits
from gateway.contract.passage import Admitted, Identity, Reply
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.subscription import SUBSCRIPTION_ID, Rewrite
from gateway.relay import Relay
from gateway.streams import LOOK_S, Streams
from gateway.turnstile import Turnstile
from tests.contract.asking import message
from tests.contract.sse import whatwg
from tests.pipeline.house import DENY, Asked, InnerHouse, inner_house, until
from tests.support.upstream import SSE_HEAD, Exchange, chunk, http, result_of

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


async def hold(exchange: Exchange) -> None:
    """A server whose subscription is acknowledged, and then silent until somebody leaves."""
    await exchange.send(SSE_HEAD + events(ACK))
    await exchange.gone(30)


async def opened(house: InnerHouse) -> AsyncGenerator[bytes]:
    """A subscription whose acknowledgement was read."""
    chunks = cast("AsyncGenerator[bytes]", chunks_of(await house.serve(listening(house))))
    assert relayed([await anext(chunks)])[0] == ACK
    return chunks


async def ended_after(house: InnerHouse, chunks: AsyncGenerator[bytes], why: str) -> None:
    """Nothing follows the graceful result."""
    assert [piece async for piece in chunks] == []
    await chunks.aclose()
    await until(lambda: house.upstream.open == 0)
    assert [(one["outcome"], one["reasons"]) for one in house.sink.of("outcome")] == [("executed", [why])]
    assert house.corridor.delivery.streams.subscriptions == 0


async def test_a_subscription_ends_when_its_token_expires(tmp_path: Path) -> None:
    """JWT-13: by the wall clock, so that a clock that was set is believed; not a moment before."""
    async with inner_house(tmp_path) as house:
        house.script = hold
        now = time.time()
        house.corridor.delivery.streams = Streams(clock=lambda: now)
        chunks = await opened(house)
        waiting = asyncio.ensure_future(anext(chunks))
        identity = cast("Relay", chunks).identity
        now = identity.expires_at - 1
        await asyncio.sleep(2.1 * LOOK_S)
        assert not waiting.done()
        now = identity.expires_at
        assert relayed([await asyncio.wait_for(waiting, 10)]) == [RESULT]
        await ended_after(house, chunks, "token_expired")


async def test_nothing_is_delivered_after_the_end(tmp_path: Path) -> None:
    """What the server had sent, and a slow client had not taken when its time was up, is not delivered any more."""

    async def busy(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + events(ACK))
        while not exchange.writer.is_closing():
            await exchange.send(events(TOOLS))
            await asyncio.sleep(0.001)

    async with inner_house(tmp_path) as house:
        house.script = busy
        chunks = await opened(house)
        assert relayed([await anext(chunks)])
        await asyncio.sleep(0.05)  # more is on its way, and nobody asks for it
        house.corridor.delivery.streams.drain()
        assert relayed([await anext(chunks)]) == [RESULT]
        await ended_after(house, chunks, "draining")


async def test_a_worker_that_stops_ends_its_subscriptions_and_takes_no_more(tmp_path: Path) -> None:
    """OPS-01: each open one gets its result; a new one is sent elsewhere; a call still goes through."""
    async with inner_house(tmp_path) as house:
        house.script = hold
        chunks = await opened(house)
        house.corridor.delivery.streams.drain()
        house.corridor.delivery.streams.drain()
        assert relayed([await anext(chunks)]) == [RESULT]
        await ended_after(house, chunks, "draining")
        refused = await house.serve(listening(house))
        assert (refused.status, dict(refused.headers)[b"retry-after"]) == (503, b"1")
        house.script = None
        assert (await house.call())[0] == 200


async def test_one_that_was_on_its_way_when_the_worker_stopped_ends_too(tmp_path: Path) -> None:
    """A subscription between its decision and its server's answer has no second life."""
    begun = asyncio.Event()
    go = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        begun.set()
        await go.wait()
        await hold(exchange)

    async with inner_house(tmp_path) as house:
        house.script = slow
        serving = asyncio.ensure_future(house.serve(listening(house)))
        await begun.wait()
        house.corridor.delivery.streams.drain()
        go.set()
        chunks = cast("AsyncGenerator[bytes]", chunks_of(await serving))
        nothing = {**ACK, "params": {"_meta": SUBSCRIBED, "notifications": {}}}
        assert relayed([await anext(chunks)]) == [nothing, RESULT]
        await ended_after(house, chunks, "draining")


async def test_a_calls_stream_outlives_its_token_and_the_stop(tmp_path: Path) -> None:
    """A call was authorised when it began; only its own answer ends it."""
    go = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD)
        await go.wait()
        await exchange.send(chunk(b"data: " + result_of(exchange.id) + b"\n\n") + chunk(b""))

    async with inner_house(tmp_path) as house:
        house.script = slow
        streams = house.corridor.delivery.streams = Streams(clock=lambda: math.inf)
        chunks = cast("AsyncGenerator[bytes]", chunks_of(await house.serve(house.ask())))
        assert (streams.calls, streams.subscriptions) == (1, 0)
        streams.drain()
        reading = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(1.5 * LOOK_S)
        assert not reading.done()
        go.set()
        assert "result" in relayed([await reading])[0]
        await chunks.aclose()
        assert streams.calls == 0


async def test_places_are_bounded_in_all_and_by_subject(tmp_path: Path) -> None:
    """One subscription too many is refused before its server hears of it; one that ended makes room."""
    async with inner_house(tmp_path) as house:
        house.script = hold
        for bounds, status, reason in (((2, 9), 503, "overloaded"), ((9, 2), 429, "rate_limited")):
            house.corridor.delivery.streams = streams = Streams(*bounds)
            kept = [await opened(house) for _ in range(2)]
            asked = len(house.forwarded)
            refused = await house.serve(listening(house))
            assert (refused.status, b"retry-after" in dict(refused.headers)) == (status, True)
            assert house.sink.of("refusal")[-1]["reasons"] == [reason]
            assert len(house.forwarded) == asked
            await kept.pop().aclose()
            kept.append(await opened(house))
            for chunks in kept:
                await chunks.aclose()
            assert streams.subscriptions == 0


async def test_no_subject_takes_what_others_need(tmp_path: Path) -> None:
    """As it is shipped, it takes a crowd to fill a worker; and who has all of their own leaves everybody else's."""
    limits = Limits()
    assert 10 * limits.subscriptions_per_subject <= limits.subscriptions
    async with inner_house(tmp_path) as house:
        house.script = hold
        house.corridor.delivery.streams = streams = Streams(20, 2)
        kept = [await opened(house) for _ in range(2)]
        assert [(await house.serve(listening(house))).status for _ in range(10)] == [429] * 10
        body = message("subscriptions/listen", params={"notifications": {"toolsListChanged": True}}, id=7)
        others = [await house.serve(house.request(body, sub=f"one-of-{number}")) for number in range(18)]
        assert [reply.status for reply in others] == [200] * 18
        assert streams.subscriptions == 20
        for chunks in (*kept, *[cast("AsyncGenerator[bytes]", reply.chunks) for reply in others]):
            await chunks.aclose()


async def test_many_at_once_do_not_pass_the_bound(tmp_path: Path) -> None:
    """A place is taken before the server is asked, and given back when it does not answer."""

    async def refuse(exchange: Exchange) -> None:
        await exchange.send(http(500, b"no"))

    async with inner_house(tmp_path) as house:
        house.corridor.delivery.streams = streams = Streams(2)
        house.script = hold
        replies = await asyncio.gather(*[house.serve(listening(house)) for _ in range(8)])
        assert sorted(reply.status for reply in replies) == [200, 200] + [503] * 6
        for reply in replies:
            if reply.chunks is not None:
                await cast("AsyncGenerator[bytes]", reply.chunks).aclose()
        house.script = refuse
        assert [(await house.serve(listening(house))).status for _ in range(3)] == [502] * 3
        assert streams.subscriptions == 0


async def test_who_leaves_at_whatever_moment_keeps_no_place(tmp_path: Path) -> None:
    """OPS-05: a subscription that is broken off at any of its steps leaves no place, no request and no connection."""
    async with inner_house(tmp_path) as house:
        house.script = hold
        streams = house.corridor.delivery.streams
        await (await opened(house)).aclose()
        answered = without = 0
        for steps in [*range(30)] * 8:
            serving = asyncio.ensure_future(house.serve(listening(house)))
            for _ in range(steps):
                await asyncio.sleep(0)
            serving.cancel()
            try:
                chunks = cast("AsyncGenerator[bytes]", chunks_of(await serving))
            except asyncio.CancelledError:
                without += 1
            else:
                reading = asyncio.ensure_future(anext(chunks))
                for _ in range(answered % 8):
                    await asyncio.sleep(0)
                reading.cancel()
                await asyncio.wait({reading})
                await chunks.aclose()
                answered += 1
            assert (streams.subscriptions, house.corridor.in_flight) == (0, 0)
        assert answered > 8
        assert without > 8
        await house.corridor.delivery.drain()
        await until(lambda: house.upstream.open == 0)
        ends = [record["outcome"] for record in house.sink.of("outcome")]
        assert len(ends) == len(house.sink.of("decision"))
        assert set(ends) <= {"cancelled", "failed"}


async def test_calls_that_stream_are_calls_at_once(tmp_path: Path) -> None:
    """`limits.concurrent` counts a call until its answer has ended, streamed or not; subscriptions it does not."""
    async with inner_house(tmp_path) as house:
        house.corridor.concurrent = 2
        house.script = hold
        listens = [await opened(house) for _ in range(4)]

        async def stream(exchange: Exchange) -> None:
            await exchange.send(SSE_HEAD)
            await exchange.gone(30)

        house.script = stream
        replies = [await house.serve(house.ask()) for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 503]
        for reply in replies[:2]:
            await cast("AsyncGenerator[bytes]", reply.chunks).aclose()
        house.script = None
        assert (await house.call())[0] == 200
        for chunks in listens:
            await chunks.aclose()


async def test_ten_thousand_streams_end_without_a_standstill() -> None:
    """They are ended some at a time, each once, and the loop turns in between."""
    ended: list[str] = []

    class Stream:
        identity = Identity("https://idp.example", "alice")

        def end(self, why: str) -> None:
            ended.append(why)

    streams = Streams()
    for _ in range(1000):
        streams.add(Stream())
    streams.drain()
    assert 0 < len(ended) < 1000
    await until(lambda: len(ended) == 1000)
    await asyncio.sleep(0.05)
    assert ended == ["draining"] * 1000
    streams.close()


async def test_a_stream_keeps_the_place_of_its_caller(tmp_path: Path) -> None:
    """OPS-04: a call whose answer streams counts among its subject's until the stream has ended, however it ends; a
    subscription does not; who was refused, broke off or has gone leaves nothing behind; others are served."""
    async with inner_house(tmp_path) as house:
        house.corridor.turnstile = turnstile = Turnstile(2)
        house.script = hold
        listens = [await opened(house) for _ in range(4)]
        assert turnstile.busiest == 0

        async def stream(exchange: Exchange) -> None:
            await exchange.send(SSE_HEAD)
            await exchange.gone(30)

        house.script = stream
        replies = [await house.serve(house.ask()) for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 429]
        assert turnstile.busiest == 2
        bobs = house.request(message(params={"name": "pay", "arguments": {}}), sub="bob")
        replies.append(await house.serve(bobs))
        assert replies[3].status == 200
        for reply in (*replies[:2], replies[3]):
            await cast("AsyncGenerator[bytes]", reply.chunks).aclose()
        assert turnstile.busiest == 0

        async def wait(exchange: Exchange) -> None:
            await exchange.gone(30)

        house.script = wait
        waiting = asyncio.ensure_future(house.serve(house.ask()))
        await until(lambda: turnstile.busiest == 1)
        waiting.cancel()
        await asyncio.wait({waiting})
        house.script = None
        house.policy.judge_by = lambda _: DENY
        assert [(await house.call())[0] for _ in range(4)] == [403] * 4
        assert turnstile.busiest == 0
        for chunks in listens:
            await chunks.aclose()
