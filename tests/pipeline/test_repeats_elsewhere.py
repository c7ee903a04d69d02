"""Idempotency keys where calls come another way: held for a person, as tasks, by older clients, within budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.contract.passage import Received, Server
from gateway.contract.refusals import Refused
from gateway.contract.repeats import META_KEY, read_key
from gateway.elicitation import QUESTION
from gateway.rehearsal.decide import Halting, Overheard, Request, decide
from gateway.repeats import Repeats
from policies.port import Policy
from policies.verdict import Limit
from tests.contract.asking import message
from tests.pipeline.house import ALLOW, APPROVE, Asked, InnerHouse, inner_house
from tests.pipeline.test_elicitation import ACCEPT, OPENS
from tests.pipeline.test_errands import follow, gated, pays
from tests.pipeline.test_legacy import begin, older
from tests.pipeline.test_tasks import CAPABLE
from tests.support.approvals import BOB
from tests.support.upstream import Exchange, http, result_of

HERE = Server("s", "/s/mcp", "https://gw/s/mcp", "https://gw/.well-known/x")


def with_line(asked: Asked, key: str = "k-1") -> Asked:
    """The same under a key."""
    lines = (*asked.received.headers, (b"idempotency-key", key.encode()))
    return replace(asked, received=replace(asked.received, headers=lines))


async def answer(house: InnerHouse, asked: Asked) -> tuple[dict[str, Any], dict[bytes, bytes]]:
    """Body and headers."""
    reply = await house.serve(asked)
    return orjson.loads(reply.body), dict(reply.headers)


def paying(house: InnerHouse, meta: Any, **params: Any) -> Asked:
    """A call of `pay` by a client that declares so much."""
    return with_line(house.request(message(meta=meta, params={"name": "pay", "arguments": {"amount": 1}, **params})))


async def test_a_held_call_that_is_a_task_carries_its_key_into_its_run(tmp_path: Path) -> None:
    """While it waits: the same task, and nothing is stored. Its run takes the key: a repetition gets its result, and
    no second ticket; in the database the key stands nowhere in clear, the stored call included."""
    async with inner_house(tmp_path, gated) as house:
        house.script = pays
        first, _ = await answer(house, with_line(paying_as_task(house), "planted-key"))
        again, _ = await answer(house, with_line(paying_as_task(house), "planted-key"))
        assert first["result"]["taskId"] == again["result"]["taskId"]
        rows = house.corridor.repeats.rows
        assert rows is not None
        await rows.measure()
        assert rows.count == 0
        await house.desk.act("approve", BOB, house.sink.of("refusal")[-1]["ticket"])
        told = await follow(house, first["result"]["taskId"])
        assert told["status"] == "completed"
        replay, headers = await answer(house, with_line(paying_as_task(house), "planted-key"))
        assert replay["result"]["content"] == told["result"]["content"]
        ran = next(
            one for one in house.sink.of("outcome") if one["outcome"] == "executed" and one["method"] == "tools/call"
        )
        assert headers[b"ostiary-replay-of"].decode() == ran["decision_id"]
        assert len(house.forwarded) == 1
        assert b"planted-key" not in read_all(tmp_path)
        assert b"planted-key" not in orjson.dumps(house.sink.records)


def paying_as_task(house: InnerHouse) -> Asked:
    return house.request(message(meta=CAPABLE, params={"name": "pay", "arguments": {"amount": 1}}))


def read_all(folder: Path) -> bytes:
    """The database's file and its log."""
    return b"".join(file.read_bytes() for file in folder.glob("desk.db*"))


async def test_a_task_whose_key_was_used_otherwise_fails_with_that(tmp_path: Path) -> None:
    """Its approval is not consumed, nothing is sent, and its owner reads why."""
    verdicts = [APPROVE]
    async with inner_house(
        tmp_path, lambda q: verdicts[0] if q["request"]["method"] == "tools/call" else ALLOW
    ) as house:
        house.script = pays
        first, _ = await answer(house, with_line(paying_as_task(house)))
        ticket = house.sink.of("refusal")[-1]["ticket"]
        verdicts[0] = ALLOW
        other = house.request(message(params={"name": "pay", "arguments": {"amount": 2}}))
        assert "result" in (await answer(house, with_line(other)))[0]
        verdicts[0] = APPROVE
        await house.desk.act("approve", BOB, ticket)
        told = await follow(house, first["result"]["taskId"])
        assert (told["status"], told["error"]["code"]) == ("failed", 40901)
        assert (await house.ticket(ticket))["uses_left"] == 1
        assert len(house.forwarded) == 1


async def test_a_call_that_waited_at_a_page_is_one_call_under_its_key(tmp_path: Path) -> None:
    """The gateway's own question and its answer are no inputs of the call: with or without them it is the same."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        asked, _ = await answer(house, paying(house, OPENS))
        ticket = house.sink.of("refusal")[-1]["ticket"]
        assert asked["result"]["inputRequests"].keys() == {QUESTION}
        waits = {"requestState": asked["result"]["requestState"], "inputResponses": ACCEPT}
        waiting = asyncio.ensure_future(answer(house, paying(house, OPENS, **waits)))
        await asyncio.sleep(0)
        await house.desk.act("approve", BOB, ticket)
        ran, headers = await asyncio.wait_for(waiting, 20)
        assert "content" in ran["result"]
        for more in (waits, {"requestState": waits["requestState"]}, {}):
            again, told = await answer(house, paying(house, OPENS, **more))
            assert again["result"] == ran["result"]
            assert told[b"ostiary-replay-of"] == headers[b"ostiary-decision"]
        assert len(house.forwarded) == 1


async def test_older_clients_have_keys_in_their_own_words(tmp_path: Path) -> None:
    """The header works in their revisions, results and errors come as they were told; what they can't be given is not
    begun again; the same call of a newer client is another request."""
    async with inner_house(tmp_path) as house:

        async def script(exchange: Exchange) -> None:
            asked = orjson.loads(exchange.seen.body)
            if asked["method"] == "server/discover":
                offers = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
                await exchange.send(http(200, result_of(exchange.id, **offers)))
                return
            match asked["params"]["arguments"]["how"]:
                case "error":
                    error = {"code": -32021, "message": "lacks", "data": {"requiredCapabilities": {}}}
                    text = orjson.dumps({"jsonrpc": "2.0", "id": exchange.id, "error": error})
                case "ask":
                    text = result_of(exchange.id, resultType="input_required", requestState="s")
                case _:
                    text = result_of(exchange.id, content=[])
            await exchange.send(http(200, text))

        house.script = script
        session = await begin(house)
        before = len(house.forwarded)
        for how, code in (("result", 0), ("error", 0), ("ask", 40903)):
            given = older(house, "tools/call", {"name": "pay", "arguments": {"how": how}}, **session)
            first, _ = await answer(house, with_line(given, how))
            again, told = await answer(house, with_line(given, how))
            if code:
                assert again["error"]["code"] == code
            else:
                assert again == first
                assert b"ostiary-replay-of" in told
                assert "resultType" not in again.get("result", {})
        newer = house.request(
            message(params={"name": "pay", "arguments": {"how": "result"}}), server=given.received.server
        )
        assert (await answer(house, with_line(newer, "result")))[0]["error"]["code"] == 40901
        assert len(house.forwarded) == before + 3


async def test_a_replay_costs_no_budget(tmp_path: Path) -> None:
    """What runs counts; what is told again does not, and is told while the budget is spent."""
    limited = replace(ALLOW, limits=(Limit("daily", ("subject",), 1, 86_400),))
    async with inner_house(tmp_path, lambda _: limited) as house:
        call = house.request(message(params={"name": "pay", "arguments": {}}))
        assert "result" in (await answer(house, with_line(call)))[0]
        for _ in range(3):
            assert b"ostiary-replay-of" in (await answer(house, with_line(call)))[1]
        assert (await answer(house, with_line(call, "k-2")))[0]["error"]["code"] == 42901
        assert len(house.forwarded) == 1


async def test_a_rehearsal_reads_the_key_and_nothing_else(tmp_path: Path) -> None:
    """`ostiary decide` says what is wrong with a key; what stands under a good one is nobody's to find out by it."""
    async with inner_house(tmp_path) as house:
        call = with_line(house.request(message(params={"name": "pay", "arguments": {}})))
        await house.serve(call)
        overheard = Overheard(cast(Policy, house.policy))
        inner = house.corridor
        rooms: Mapping[str, Any] = {
            name: getattr(inner, name)
            for name in ("tokens", "catalog", "seals", "handles", "eras", "implications", "errands", "holding")
        }
        none = cast(Any, None)
        places = SimpleNamespace(streams=inner.delivery.streams, expect=lambda *_: None, spawn=None)
        delivery = cast(Any, places)
        halting = Halting(
            **rooms, policy=overheard, desk=none, challenges=none, sink=none, redactor=none, observer=none,
            delivery=delivery, repeats=Repeats(),
        )  # fmt: skip
        for key, refusal in (("k-1", None), ("not a key", "idempotency_key_invalid")):
            asked = with_line(house.request(message(params={"name": "pay", "arguments": {}})), key)
            request = Request(asked.server, asked.received.server, None, asked.received.headers, asked.raw)
            told = await decide(halting, overheard, request)
            assert (told["refusal"] or {}).get("name") == refusal
            assert told["forwarded"] == (refusal is None)
        assert len(house.forwarded) == 1


@given(st.one_of(st.none(), st.binary(max_size=300)), st.one_of(st.none(), st.text(max_size=300), st.integers()))
@example(b'"k"', "k")
@example(b"k", "k")
@example(None, "k")
@example(b'"', None)
@example(b"x" * 255, None)
@example(b'"' + b"x" * 255 + b'"', None)
def test_a_key_is_read_in_one_way_or_refused(line: bytes | None, said: Any) -> None:
    """Whatever is sent: no key, one of 1 to 255 visible characters that both places name, or a refusal."""
    received = Received(HERE, "POST", "/", () if line is None else ((b"idempotency-key", line),))
    call = cast(Any, SimpleNamespace(extra_meta={} if said is None else {META_KEY: said}))
    try:
        key = read_key(received, call)
    except Refused as refused:
        key = refused.refusal.reason
    if key == "idempotency_key_invalid":
        return
    assert len(key) in (range(1) if line is None and said is None else range(1, 256))
    assert all("!" <= one <= "~" and one not in '",;\\' for one in key)
    assert line in (None, key.encode(), b'"%b"' % key.encode())
    assert said in (None, key)


def test_the_draft_and_plain_spelling_are_one_key() -> None:
    """`k` and `"k"` (an RFC 8941 string) are the same."""
    call = cast(Any, SimpleNamespace(extra_meta={}))
    lines = [((b"idempotency-key", spelled),) for spelled in (b"k", b'"k"')]
    assert [read_key(Received(HERE, "POST", "/", line), call) for line in lines] == ["k", "k"]
    with pytest.raises(Refused):
        read_key(Received(HERE, "POST", "/", (*lines[0], *lines[0])), call)
