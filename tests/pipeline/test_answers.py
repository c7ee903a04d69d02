"""What leaves of an answer: filtered by an explicit allow alone, for nobody else's cache (rules G6, G8; CCH-02)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

import gateway.audit.port
import gateway.upstream.port
import policies.verdict
from approvals.desk import NotHeld, StoreUnavailable, TooManyTickets
from gateway.delivery import TRANSLATED, translate
from gateway.upstream.port import UpstreamFault
from policies.verdict import Effect, Verdict
from tests.contract.asking import message
from tests.pipeline.house import ALLOW, APPROVE, DENY, InnerHouse, inner_house
from tests.support.upstream import SSE_HEAD, Exchange, chunk, http, result_of


async def answer_of(house: InnerHouse, body: Mapping[str, Any]) -> dict[str, Any]:
    """The result that the caller gets, whole or as the last event of a stream."""
    reply = await house.serve(house.request(body))
    text = reply.body
    if reply.chunks is not None:
        text = b"".join([piece async for piece in reply.chunks]).rpartition(b"data: ")[2]
    assert reply.status == 200
    result: dict[str, Any] = orjson.loads(text)["result"]
    return result


@pytest.mark.parametrize("verdict", [ALLOW, DENY, APPROVE])
async def test_a_list_shows_nothing_without_an_allow(tmp_path: Path, verdict: Verdict) -> None:
    """A policy that changed between the request and its answer denies the list, whatever it says is visible."""
    shown = replace(verdict, visible=("pay",))

    def judge(question: Mapping[str, Any]) -> Verdict:
        return shown if question["phase"] == "list" else ALLOW

    async with inner_house(tmp_path, judge) as house:

        async def listing(exchange: Exchange) -> None:
            await exchange.send(http(200, result_of(exchange.id, tools=house.tools, cacheScope="public")))

        house.script = listing
        result = await answer_of(house, message("tools/list"))
        names = ["pay"] if verdict.effect is Effect.ALLOW else []
        assert [item["name"] for item in result["tools"]] == names
        assert result["cacheScope"] == "private"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("scope", ["private", "public", "Public"])
async def test_what_one_caller_reads_is_not_for_others_caches(tmp_path: Path, scope: str, streamed: bool) -> None:
    """A shared cache behind the gateway would serve it to callers whom the policy denies it."""
    async with inner_house(tmp_path) as house:

        async def contents(exchange: Exchange) -> None:
            text = result_of(exchange.id, contents=[{"uri": "demo://a", "text": "t"}], cacheScope=scope, ttlMs=5)
            if streamed:
                await exchange.send(SSE_HEAD + chunk(b"data: " + text + b"\n\n") + chunk(b""))
            else:
                await exchange.send(http(200, text))

        house.script = contents
        result = await answer_of(house, message("resources/read", params={"uri": "demo://a"}))
        assert result["cacheScope"] == "private"
        assert (result["ttlMs"], result["contents"][0]["text"]) == (5, "t")


@pytest.mark.parametrize("scope", ["private", "public"])
async def test_a_sealed_state_is_not_for_others_caches(tmp_path: Path, scope: str) -> None:
    """A question carries its caller's own seal, whatever its server says of caches."""
    async with inner_house(tmp_path) as house:

        async def asks(exchange: Exchange) -> None:
            text = result_of(exchange.id, resultType="input_required", requestState="s", cacheScope=scope, ttlMs=5)
            await exchange.send(http(200, text))

        house.script = asks
        result = await answer_of(house, message("resources/read", params={"uri": "demo://a"}))
        assert result["requestState"] != "s"
        assert (result["cacheScope"], result["ttlMs"]) == ("private", 5)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_defect_after_the_answer_came_is_refused_and_recorded_as_one(tmp_path: Path, streamed: bool) -> None:
    """Whole or streamed: the caller gets an error with its id, the record `unknown`, and operators the defect."""

    def judge(question: Mapping[str, Any]) -> Verdict:
        if question["phase"] == "list":
            raise ZeroDivisionError("of a caller's data")
        return ALLOW

    async with inner_house(tmp_path, judge) as house:

        async def listing(exchange: Exchange) -> None:
            text = result_of(exchange.id, tools=house.tools)
            await exchange.send(SSE_HEAD + chunk(b"data: " + text + b"\n\n") if streamed else http(200, text))

        house.script = listing
        reply = await house.serve(house.request(message("tools/list", id="mine")))
        text = reply.body
        if reply.chunks is not None:
            text = b"".join([piece async for piece in reply.chunks]).removeprefix(b"data: ")
        told = orjson.loads(text)
        assert (told["id"], told["error"]["code"]) == ("mine", -32603)
        assert b"caller" not in text
        assert [type(error) for error in house.watcher.defects] == [ZeroDivisionError]
        (outcome,) = house.sink.of("outcome")
        assert (outcome["outcome"], outcome["reasons"], outcome["code"]) == ("unknown", ["internal_error"], -32603)


PORTS = (policies.verdict, gateway.audit.port, gateway.upstream.port)
WORDS: set[type[Exception]] = {
    word
    for port in PORTS
    for word in vars(port).values()
    if isinstance(word, type) and issubclass(word, Exception) and word.__module__ == port.__name__
} | {NotHeld, StoreUnavailable, TooManyTickets}


@pytest.mark.parametrize("word", sorted(WORDS - {UpstreamFault}, key=repr))
def test_every_rooms_word_has_its_refusal(word: type[Exception]) -> None:
    """No fault of a room is taken for a defect of the house, and its text stays with the house."""
    error = word("why", sent=False) if issubclass(word, UpstreamFault) else word("why")
    refused = translate(error)
    assert refused.refusal is TRANSLATED[word]
    assert (refused.detail, refused.data, refused.message) == (str(error), {}, None)


def test_the_rooms_words_are_looked_for() -> None:
    """The ports' modules are where the words are defined."""
    assert len(WORDS) == 1 + len(TRANSLATED)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_discovery_is_what_both_sides_serve(tmp_path: Path, streamed: bool) -> None:
    """Through the whole corridor; no version in common is the revision's own error, and the outcome stays unknown."""
    async with inner_house(tmp_path) as house:
        said = {"supportedVersions": ["2026-07-28", "v9"], "capabilities": {"tools": {}, "acme": {}}, "ttlMs": 9}

        async def discover(exchange: Exchange) -> None:
            text = result_of(exchange.id, **said, cacheScope="public")
            await exchange.send(SSE_HEAD + chunk(b"data: " + text + b"\n\n") if streamed else http(200, text))

        house.script = discover
        result = await answer_of(house, message("server/discover"))
        both: dict[str, Any] = {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
        assert (result["supportedVersions"], result["capabilities"]) == (["2026-07-28"], both)
        assert (result["ttlMs"], result["cacheScope"]) == (9, "private")
        said["supportedVersions"] = ["v9"]
        reply = await house.serve(house.request(message("server/discover", id="mine")))
        text = reply.body
        if reply.chunks is not None:
            text = b"".join([piece async for piece in reply.chunks]).removeprefix(b"data: ")
        told = orjson.loads(text)
        assert (told["id"], told["error"]["code"]) == ("mine", -32022)
        assert told["error"]["data"] == {"supported": [], "requested": "2026-07-28"}
        assert reply.status == (200 if streamed else 400)
        assert house.sink.of("outcome")[-1]["reasons"] == ["version_unsupported"]


async def test_a_calls_stream_may_end_by_itself_and_what_is_not_the_callers_is_counted(tmp_path: Path) -> None:
    """What only subscriptions carry is dropped; once the response was there, the server's connection is not cut."""
    read, over, cut = asyncio.Event(), asyncio.Event(), True
    async with inner_house(tmp_path) as house:

        async def stream(exchange: Exchange) -> None:
            nonlocal cut
            news = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
            await exchange.send(SSE_HEAD + chunk(b"data: %b\n\ndata: %b\n\n" % (news, result_of(exchange.id))))
            await read.wait()
            try:
                await exchange.gone(0.2)
            except TimeoutError:
                cut = False
            over.set()

        house.script = stream
        chunks: Any = (await house.serve(house.ask())).chunks
        text = b"".join([piece async for piece in chunks])
        await chunks.aclose()
        read.set()
        async with asyncio.timeout(10):
            await over.wait()
        assert (b"list_changed" in text, b'"result"' in text, cut) == (False, True, False)
        assert house.corridor.delivery.streams.dropped == 1


async def test_a_stream_without_a_response_is_an_error_that_says_so_in_the_record(tmp_path: Path) -> None:
    """No clean end is made up: an error with the caller's id, outcome `unknown`, and why."""
    async with inner_house(tmp_path) as house:

        async def stream(exchange: Exchange) -> None:
            await exchange.send(SSE_HEAD + chunk(b": on its way\n\n") + chunk(b""))

        house.script = stream
        chunks: Any = (await house.serve(house.ask())).chunks
        last = [piece async for piece in chunks][-1]
        await chunks.aclose()
        told = orjson.loads(last.removeprefix(b"data: "))
        assert (told["id"], told["error"]["code"]) == (1, 50202)
        (end,) = house.sink.of("outcome")
        assert (end["outcome"], end["detail"]) == ("unknown", "the stream ended without a response")
