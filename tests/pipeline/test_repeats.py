"""Calls under idempotency keys through the real corridor: sent once, told again, and never sent a second time."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from approvals.keyed import KeyedCalls
from gateway.audit.port import AuditUnavailable
from gateway.contract.passage import Reply
from gateway.contract.repeats import META_KEY
from tests.contract.asking import message
from tests.contract.sse import whatwg
from tests.contract.walked import KEY
from tests.pipeline.house import ALLOW, APPROVE, DENY, SERVER, Asked, InnerHouse, inner_house, tool, until
from tests.support.upstream import SSE_HEAD, Exchange, chunk, http, result_of

TASKS: Mapping[str, Any] = {
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}
}
ASKS: Mapping[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"roots": {}, "elicitation": {"form": {}}}}
QUESTION = {"q": {"method": "roots/list", "params": {}}}


def keyed(
    house: InnerHouse,
    key: str | None = "k-1",
    *,
    name: str = "pay",
    arguments: Mapping[str, Any] | None = None,
    id_: Any = 1,
    meta: Mapping[str, Any] | None = None,
    server: Any = SERVER,
    claims: Mapping[str, Any] | None = None,
    lines: tuple[tuple[bytes, bytes], ...] = (),
    **params: Any,
) -> Asked:
    """A call under a key, in the header."""
    body = message(params={"name": name, "arguments": dict(arguments or {"amount": 1}), **params}, id=id_)
    body["params"]["_meta"] = {**body["params"]["_meta"], **(meta or {})}
    asked = house.request(body, server, **(claims or {}))
    more = () if key is None else ((b"idempotency-key", key.encode()),)
    received = replace(asked.received, headers=(*asked.received.headers, *more, *lines))
    return replace(asked, received=received)


async def ask(house: InnerHouse, *given: Any, **more: Any) -> tuple[int, dict[str, Any], dict[bytes, bytes]]:
    """Serve a call under a key -> status, body, headers."""
    return read(await house.serve(keyed(house, *given, **more)))


def read(reply: Reply) -> tuple[int, dict[str, Any], dict[bytes, bytes]]:
    """A reply that is no stream."""
    return reply.status, orjson.loads(reply.body), dict(reply.headers)


def read_all(folder: Path) -> bytes:
    """The database's file and its log."""
    return b"".join(file.read_bytes() for file in folder.glob("desk.db*"))


def code(answer: tuple[int, dict[str, Any], Any]) -> int:
    """The error's code, 0 for a result."""
    return int(answer[1].get("error", {}).get("code", 0))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Somebody else holds the write lock of the database meanwhile; who looks is not concerned."""
    with closing(sqlite3.connect(folder / "desk.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def answering(**result: Any) -> Any:
    """A server that answers so."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(http(200, result_of(exchange.id, **result)))

    return script


async def test_a_known_outcome_is_told_again_and_nothing_is_sent(tmp_path: Path) -> None:
    """CCH-02: same result, the caller's own id and decision; header and record name the first, HMACs are alike."""
    async with inner_house(tmp_path) as house:
        house.script = answering(
            content=[{"type": "text", "text": "paid"}], structuredContent={"n": 18446744073709551615}
        )
        first = await ask(house)
        again = await ask(house, id_="other", arguments={"amount": 1})
        assert (first[0], again[0]) == (200, 200)
        assert first[1]["result"] == again[1]["result"]
        assert (first[1]["id"], again[1]["id"]) == (1, "other")
        assert len(house.forwarded) == 1
        assert b"ostiary-replay-of" not in first[2]
        assert again[2][b"ostiary-replay-of"] == first[2][b"ostiary-decision"] != again[2][b"ostiary-decision"]
        assert again[2][b"cache-control"] == b"no-store"
        ran, told = (
            [one for one in house.sink.records if one["decision_id"] == answer[2][b"ostiary-decision"].decode()]
            for answer in (first, again)
        )
        assert [one["kind"] for one in told] == ["decision", "outcome"]
        assert (ran[1]["outcome"], told[1]["outcome"]) == ("executed", "replayed")
        assert {one["replay_of"] for one in told} == {ran[0]["decision_id"]}
        assert all("replay_of" not in one for one in ran)
        assert ran[1]["result_hmac"] == told[1]["result_hmac"]
        assert len({one["idempotency_key"] for one in ran + told}) == 1
        assert b"k-1" not in orjson.dumps(house.sink.records)
        assert told[0]["policy_revision"] == "r1"


async def test_without_a_key_every_call_is_sent(tmp_path: Path) -> None:
    """The twin of all rules here: what has no key, or another one, runs."""
    async with inner_house(tmp_path) as house:
        for key in (None, None, "a", "b"):
            assert (await ask(house, key))[0] == 200
        assert len(house.forwarded) == 4
        assert sum("idempotency_key" in one for one in house.sink.records) == 4


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (http(200, result_of(1, content=[], isError=True)), "tool_error"),
        (http(200, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32050000,"message":"no","data":[1.50]}}'), "rpc_error"),
        (http(400, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"bad"}}'), "rpc_error"),
    ],
    ids=["tool_error", "rpc_error", "rpc_error with a status"],
)
async def test_errors_that_a_server_gave_are_known(tmp_path: Path, answer: bytes, word: str) -> None:
    """A tool's error and a server's error are told again, with the status they had."""
    async with inner_house(tmp_path) as house:

        async def script(exchange: Exchange) -> None:
            await exchange.send(answer)

        house.script = script
        first, again = await ask(house), await ask(house)
        assert (first[0], first[1]) == (again[0], again[1])
        assert len(house.forwarded) == 1
        outcomes = [one["outcome"] for one in house.sink.of("outcome")]
        assert outcomes == [word, "replayed"]
        assert house.sink.records[-1]["code"] == house.sink.of("outcome")[0]["code"]


BINDINGS: Mapping[str, tuple[Mapping[str, Any], int]] = {
    "argument": ({"arguments": {"amount": 2}}, 40901),
    "argument's type": ({"arguments": {"amount": "1"}}, 40901),
    "argument's presence": ({"arguments": {"amount": 1, "note": None}}, 40901),
    "no arguments": ({"arguments": {"other": 1}}, 40901),
    "name": ({"name": "secret"}, 40901),
    "inputs": ({"inputResponses": {}}, 40901),
    "own _meta": ({"meta": {"example.com/x": 1}}, 40901),
    "parameter's header": ({"lines": ((b"mcp-param-region", b"eu"),)}, 40901),
    "subject": ({"claims": {"sub": "bob"}}, 0),
    "client": ({"claims": {"client_id": "another"}}, 0),
    "tenant": ({"claims": {"tid": "t2"}}, 0),
    "server": ({"server": replace(SERVER, resource="https://gw.example/other/mcp")}, 0),
    "environment": ({"server": replace(SERVER, environment="test")}, 0),
    "key": ({"key": "K-0"}, 0),
}
"""What differs from the first call -> 40901: it is another request under the same key; 0: the key is another's."""


async def test_each_bound_fact_makes_it_another_call(tmp_path: Path) -> None:
    """CCH-02: changed in one thing, a request never gets the outcome: it conflicts, or it is a call of its own."""
    async with inner_house(tmp_path, tenant_claim="tid") as house:
        for number, (what, (changes, expected)) in enumerate(BINDINGS.items()):
            whose = {"key": f"k-{number}", "claims": {"tid": "t1"}}
            first = await ask(house, **whose)
            assert code(first) == 0
            before = len(house.forwarded)
            more = {**whose, **changes, "claims": {"tid": "t1", **changes.get("claims", {})}}
            other = await ask(house, **more)
            assert code(other) == expected, (what, other)
            assert b"ostiary-replay-of" not in other[2], what
            assert len(house.forwarded) == before + (not expected), what
            if expected:
                refusal = house.sink.of("refusal")[-1]
                assert refusal["reasons"][0] == "idempotency_conflict"
                assert refusal["replay_of"] == first[2][b"ostiary-decision"].decode()
                assert "replayOf" not in other[1]["error"]["data"]
            again = await ask(house, **whose)
            assert again[2][b"ostiary-replay-of"] == first[2][b"ostiary-decision"], what


async def test_another_spelling_is_the_same_call(tmp_path: Path) -> None:
    """Order of members, progress tokens, what the client says of itself, and what is volatile bind nothing."""
    async with inner_house(tmp_path) as house:
        house.corridor.repeats.volatile_meta = frozenset({"example.com/at"})
        await ask(house, arguments={"a": 1, "b": [2, {"c": "ü", "d": 1.5}]}, meta={"example.com/at": 1})
        meta = {"progressToken": 7, "example.com/at": 2, "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
        again = await ask(house, arguments={"b": [2, {"d": 1.5, "c": "ü"}], "a": 1}, meta=meta)
        assert b"ostiary-replay-of" in again[2]
        assert len(house.forwarded) == 1


async def test_what_is_decided_today_counts(tmp_path: Path) -> None:
    """Token, policy and scopes come first, each time: a no now is a no, whatever came of the call before."""
    async with inner_house(tmp_path) as house:
        assert (await ask(house))[0] == 200
        assert b"ostiary-replay-of" in (await ask(house))[2]
        house.policy.judge_by = lambda _: DENY
        assert code(await ask(house)) == 40302
        house.policy.judge_by = lambda _: replace(ALLOW, scopes=("pay:much",))
        assert code(await ask(house)) == 40301
        house.policy.judge_by = lambda _: ALLOW
        expired = await house.serve(keyed(house, claims={"exp": 1}))
        assert expired.status == 401
        house.tools[:] = [tool("secret")]
        house.later(100)
        assert code(await ask(house)) == 40302
        house.tools[:] = [tool("pay"), tool("secret")]
        house.later(200)
        assert b"ostiary-replay-of" in (await ask(house))[2]
        assert len(house.forwarded) == 1
        assert len(house.policy.questions) >= 6


async def test_a_key_has_one_reading(tmp_path: Path) -> None:
    """Bare, quoted as the draft has it, or in `_meta`; both have to agree; anything else is 400 before the policy."""
    async with inner_house(tmp_path) as house:
        assert (await ask(house, "k-1"))[0] == 200
        for key, meta in (('"k-1"', None), (None, "k-1"), ("k-1", "k-1"), ('"k-1"', "k-1")):
            same = await ask(house, key, meta=None if meta is None else {META_KEY: meta})
            assert b"ostiary-replay-of" in same[2], (key, meta)
        assert len(house.forwarded) == 1
        asked = len(house.policy.questions)
        bad = ["", '""', '"', "a b", "a,b", "a;b", 'a"b', "a\\b", "ü", "x" * 256, "\x7f", "a\tb"]
        for key in bad:
            assert code(await ask(house, key)) == -32602, key
        for said in ("", 7, None, ["k"], "a b", "ü", "x" * 256, "\ud800", '"k-1"'):
            if said != "\ud800":
                assert code(await ask(house, None, meta={META_KEY: said})) == -32602, said
        assert code(await ask(house, "k-1", meta={META_KEY: "k-2"})) == -32602
        assert code(await ask(house, "k-1", lines=((b"idempotency-key", b"k-1"),))) == -32602
        assert len(house.policy.questions) == asked
        assert {one["reasons"][0] for one in house.sink.of("refusal")} == {"idempotency_key_invalid"}
        for key in ("x" * 255, "!", "~", "a:b/c=d+e", "8e03978e-40d5-43dd-bc93-6894a57f9324"):
            assert (await ask(house, key))[0] == 200, key


async def test_no_server_sees_the_key(tmp_path: Path) -> None:
    """Neither the header nor the `_meta` key travels; all else of `_meta` does, and the arguments' numbers stand."""
    async with inner_house(tmp_path) as house:
        arguments = {"n": 18446744073709551615, "f": 1e300, "s": "\u2028ü"}
        await ask(house, "seen-1", arguments=arguments, meta={META_KEY: "seen-1", "example.com/x": {"y": 1}})
        (sent,) = [one for one in house.upstream.seen if b'"amount"' in one.body or b'"n":' in one.body]
        assert b"seen-1" not in sent.body
        assert "idempotency-key" not in {name.lower() for name, _ in sent.headers}
        params = orjson.loads(sent.body)["params"]
        assert params["_meta"]["example.com/x"] == {"y": 1}
        assert params["arguments"] == arguments
        assert params["_meta"].keys() >= {"io.modelcontextprotocol/protocolVersion"}


async def test_other_methods_have_no_key(tmp_path: Path) -> None:
    """A header that a client sets on everything does nothing where nothing is run: it is neither read nor kept."""
    async with inner_house(tmp_path) as house:
        house.prompts[:] = [{"name": "greet"}]
        for _ in range(2):
            asked = house.request(message("prompts/get", params={"name": "greet"}))
            lines = (*asked.received.headers, (b"idempotency-key", b"not a key"))
            house.script = answering(messages=[])
            assert (await house.serve(replace(asked, received=replace(asked.received, headers=lines)))).status == 200
        assert len(house.forwarded) == 2
        assert all("idempotency_key" not in one for one in house.sink.records)


async def test_what_runs_is_neither_sent_nor_waited_for(tmp_path: Path) -> None:
    """In flight: 409 40902 at once, with `Retry-After`, naming the running decision; then its outcome."""
    async with inner_house(tmp_path) as house:
        go_on = asyncio.Event()

        async def script(exchange: Exchange) -> None:
            await go_on.wait()
            await exchange.send(http(200, result_of(exchange.id, content=[])))

        house.script = script
        running = asyncio.ensure_future(ask(house))
        await until(lambda: bool(house.forwarded))
        busy = await ask(house)
        assert (busy[0], code(busy)) == (409, 40902)
        assert busy[2][b"retry-after"] == b"2"
        assert code(await ask(house, arguments={"amount": 2})) == 40901
        go_on.set()
        first = await running
        assert busy[1]["error"]["data"]["replayOf"] == first[2][b"ostiary-decision"].decode()
        assert b"ostiary-replay-of" in (await ask(house))[2]
        assert len(house.forwarded) == 1


@pytest.mark.parametrize("how", ["reset", "garbage", "gone", "half a stream"])
async def test_what_may_have_run_is_unknown_and_never_sent_again(tmp_path: Path, how: str) -> None:
    """A broken answer, or a client that has gone: 409 40904 from then on, without `Retry-After`."""
    async with inner_house(tmp_path) as house:

        async def script(exchange: Exchange) -> None:
            if how == "reset":
                exchange.reset()
            elif how == "garbage":
                await exchange.send(http(200, b'{"jsonrpc":"2.0","id":"another","result":{}}'))
            elif how == "half a stream":
                await exchange.send(SSE_HEAD + chunk(b": hello\n\n") + b"0\r\n\r\n")
            else:
                await exchange.gone(30)

        house.script = script
        asked = asyncio.ensure_future(house.serve(keyed(house)))
        if how == "gone":
            await until(lambda: bool(house.forwarded))
            asked.cancel()
            await asyncio.wait({asked})
        else:
            reply = await asked
            if reply.chunks is not None:
                assert b"error" in b"".join([piece async for piece in reply.chunks])
        await house.corridor.delivery.drain()
        house.script = None
        for _ in range(2):
            unknown = await ask(house)
            assert (unknown[0], code(unknown)) == (409, 40904)
            assert b"retry-after" not in unknown[2]
        assert len(house.forwarded) == 1
        assert house.sink.of("outcome")[0]["outcome"] == ("cancelled" if how == "gone" else "unknown")
        assert (await ask(house, "k-2"))[0] == 200


async def test_what_was_never_sent_frees_its_key(tmp_path: Path) -> None:
    """Refused before, or a server that nobody reaches: the key is as if it had never been used."""
    async with inner_house(tmp_path) as house:
        house.policy.judge_by = lambda _: DENY
        assert code(await ask(house)) == 40302
        house.policy.judge_by = lambda _: ALLOW
        house.sink.broken = AuditUnavailable("full")
        assert code(await ask(house)) == 50304
        house.sink.broken = None
        house.sink.gate = asyncio.Event()
        leaving = asyncio.ensure_future(house.serve(keyed(house)))
        await asyncio.sleep(0.05)
        leaving.cancel()
        await asyncio.wait({leaving})
        await house.corridor.delivery.drain()
        house.sink.gate = None
        await house.upstream.stop()
        assert code(await ask(house)) == 50201
        await house.upstream.start()
        assert house.forwarded == []
        first = await ask(house, arguments={"amount": 2})
        assert first[0] == 200
        assert b"ostiary-replay-of" in (await ask(house, arguments={"amount": 2}))[2]


async def test_only_the_end_of_a_stream_is_kept(tmp_path: Path) -> None:
    """A streamed call: its progress goes to whoever listens then; a repetition gets the response, as one object."""
    async with inner_house(tmp_path) as house:
        progress = {
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": 5, "progress": 1},
        }

        async def script(exchange: Exchange) -> None:
            final = result_of(exchange.id, content=[{"type": "text", "text": "streamed"}])
            events = b"".join(b"data: " + one + b"\n\n" for one in (orjson.dumps(progress), final))
            await exchange.send(SSE_HEAD + chunk(events) + b"0\r\n\r\n")

        house.script = script
        reply = await house.serve(keyed(house, meta={"progressToken": 5}))
        assert reply.chunks is not None
        pieces = [piece async for piece in reply.chunks]
        told = [orjson.loads(data) for _, data, _ in whatwg(b"".join(pieces))]
        assert [one.get("method") for one in told] == ["notifications/progress", None]
        again = await ask(house, id_=9)
        assert again[2][b"content-type"] == b"application/json"
        assert again[1]["result"] == told[1]["result"]
        assert len(house.forwarded) == 1


async def test_a_client_that_leaves_after_the_answer_came_finds_it(tmp_path: Path) -> None:
    """The outcome is written down before it is told: who goes away at that moment gets it by repeating."""
    async with inner_house(tmp_path) as house:
        rows = house.corridor.repeats.rows
        assert rows is not None
        write, waiting = rows.end, asyncio.Event()
        leave = asyncio.Event()

        async def slow(*given: Any) -> bool:
            waiting.set()
            await leave.wait()
            return await write(*given)

        rows.end = slow  # type: ignore[method-assign, assignment]
        asked = asyncio.ensure_future(house.serve(keyed(house)))
        await waiting.wait()
        asked.cancel()
        await asyncio.wait({asked})
        leave.set()
        await house.corridor.delivery.drain()
        assert b"ostiary-replay-of" in (await ask(house))[2]
        assert len(house.forwarded) == 1


async def test_what_is_too_large_is_known_and_not_told(tmp_path: Path) -> None:
    """Beyond the bound: 409 40905 says the outcome, why and which decision, and nothing is sent."""
    async with inner_house(tmp_path) as house:
        house.corridor.repeats.most_bytes = 400
        house.script = answering(content=[{"type": "text", "text": "x" * 500}])
        first = await ask(house)
        assert first[0] == 200
        again = await ask(house)
        assert (again[0], code(again)) == (409, 40905)
        data = again[1]["error"]["data"]
        decision = first[2][b"ostiary-decision"].decode()
        assert (data["outcome"], data["why"], data["replayOf"]) == ("executed", "too_large", decision)
        assert house.sink.records[-1]["replay_of"] == decision
        assert b"retry-after" not in again[2]
        assert len(house.forwarded) == 1


async def test_an_approved_call_is_told_again_without_a_second_use(tmp_path: Path) -> None:
    """Held: the challenge, and nothing is stored. Run: its outcome again and again, and no ticket is opened."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        for _ in range(2):
            assert code(await ask(house)) == 40303
        rows = house.corridor.repeats.rows
        assert rows is not None
        await rows.measure()
        assert rows.count == 0
        assert code(await ask(house, None)) == 40303  # without the key it is the same effect, and ticket
        ticket = await house.approve(keyed(house, "another-key"))
        first = await ask(house)
        assert first[0] == 200
        moves = list(house.moves)
        for _ in range(2):
            again = await ask(house)
            assert again[2][b"ostiary-replay-of"] == first[2][b"ostiary-decision"]
        assert house.moves == moves
        assert len(house.forwarded) == 1
        assert len((await house.ticket(ticket))["runs"]) == 1
        assert b"amount" in house.forwarded[0]
        house.policy.judge_by = lambda _: ALLOW
        assert b"ostiary-replay-of" in (await ask(house))[2]
        house.policy.judge_by = lambda _: APPROVE
        assert code(await ask(house, "k-2")) == 40303


async def test_a_key_that_somebody_else_took_gives_the_use_back(tmp_path: Path) -> None:
    """Between the look and the taking another gateway took the key: 40902, and the approval is as it was."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket = await house.approve(keyed(house))
        rows = house.corridor.repeats.rows
        assert rows is not None
        look, take = rows.look, rows.take

        async def see_nothing(_: Any) -> None:
            return None

        rows.look = see_nothing  # type: ignore[method-assign, assignment]

        async def late(wanted: Any, decision: str) -> Any:
            await take(wanted, "f" * 32)
            return await take(wanted, decision)

        rows.take = late  # type: ignore[method-assign]
        assert code(await ask(house)) == 40902
        rows.look, rows.take = look, take  # type: ignore[method-assign]
        assert (await house.ticket(ticket))["uses_left"] == 1
        assert house.moves[-1] == "restore"
        assert house.forwarded == []


async def test_a_key_names_one_call_through_all_its_legs(tmp_path: Path) -> None:
    """Asked for input: never kept as an end. The next leg goes on under the key, each leg once; the last is told
    again; an earlier one, or the leg with other answers, is not."""
    async with inner_house(tmp_path) as house:
        states = iter(["s1", "s2"])

        async def script(exchange: Exchange) -> None:
            params = orjson.loads(exchange.seen.body)["params"]
            if params.get("requestState") == "s2":
                await exchange.send(http(200, result_of(exchange.id, content=[])))
                return
            asks = {"resultType": "input_required", "inputRequests": QUESTION, "requestState": next(states)}
            await exchange.send(http(200, result_of(exchange.id, **asks)))

        house.script = script
        roots: Mapping[str, Any] = {"q": {"roots": []}}
        one = await ask(house, meta=ASKS)
        state = one[1]["result"]["requestState"]
        waits = await ask(house, meta=ASKS)
        assert (waits[0], code(waits)) == (409, 40903)
        assert code(await ask(house, meta=ASKS, arguments={"amount": 2})) == 40901
        two = await ask(house, meta=ASKS, requestState=state, inputResponses=roots)
        assert two[1]["result"]["resultType"] == "input_required"
        assert code(await ask(house, meta=ASKS, requestState=state, inputResponses=roots)) == 40903
        assert code(await ask(house, meta=ASKS)) == 40903
        last = two[1]["result"]["requestState"]
        three = await ask(house, meta=ASKS, requestState=last, inputResponses=roots)
        assert three[1]["result"]["content"] == []
        again = await ask(house, meta=ASKS, requestState=last, inputResponses=roots)
        assert again[2][b"ostiary-replay-of"] == three[2][b"ostiary-decision"]
        other = {"q": {"roots": [{"uri": "file:///a"}]}}
        for more in ({"requestState": last, "inputResponses": other}, {"requestState": state}, {}):
            assert code(await ask(house, meta=ASKS, **more)) == 40901, more
        assert len(house.forwarded) == 3


async def test_a_leg_that_was_never_sent_waits_again(tmp_path: Path) -> None:
    """The server went away between the legs: the key still waits for the answers, and the leg can go on later."""
    async with inner_house(tmp_path) as house:
        house.script = answering(resultType="input_required", inputRequests=QUESTION, requestState="s")
        first = await ask(house, meta=ASKS)
        leg = {"requestState": first[1]["result"]["requestState"], "inputResponses": {"q": {"roots": []}}}
        await house.upstream.stop()
        assert code(await ask(house, meta=ASKS, **leg)) == 50201
        await house.upstream.start()
        assert code(await ask(house, meta=ASKS)) == 40903
        house.script = None
        assert (await ask(house, meta=ASKS, **leg))[0] == 200
        assert b"ostiary-replay-of" in (await ask(house, meta=ASKS, **leg))[2]
        assert len(house.forwarded) == 2


async def test_a_task_that_was_made_is_the_outcome(tmp_path: Path) -> None:
    """The handle is told again, and opens; a client that does not declare tasks is told that it can't be given it."""
    async with inner_house(tmp_path) as house:
        house.script = answering(
            resultType="task", taskId="t-1", status="working", createdAt="2026-01-01T00:00:00Z",
            lastUpdatedAt="2026-01-01T00:00:00Z", ttlMs=60_000,
        )  # fmt: skip
        first, again = await ask(house, meta=TASKS), await ask(house, meta=TASKS)
        assert first[1]["result"] == again[1]["result"]
        assert again[1]["result"]["taskId"] != "t-1"
        poor = await ask(house)
        assert (poor[0], code(poor)) == (409, 40905)
        assert poor[1]["error"]["data"]["why"] == "task"
        assert len(house.forwarded) == 1


async def test_the_store_that_is_away_lets_nothing_through(tmp_path: Path) -> None:
    """503 and nothing sent, before and at the taking; a call without a key does not notice."""
    async with inner_house(tmp_path, store_limit_s=0.2) as house:
        with locked(tmp_path):
            assert code(await ask(house)) == 50303
            assert (await ask(house, None))[0] == 200
        await house.corridor.delivery.drain()
        assert len(house.forwarded) == 1
        assert (await ask(house))[0] == 200
        assert len(house.forwarded) == 2


async def test_an_end_that_cannot_be_written_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller has its answer; meanwhile the key is in flight, and once the store is back the outcome is kept."""
    monkeypatch.setattr("gateway.repeats.KEEPING_S", (0.05,) * 20)
    async with inner_house(tmp_path, store_limit_s=0.2) as house:
        go_on = asyncio.Event()

        async def script(exchange: Exchange) -> None:
            await go_on.wait()
            await exchange.send(http(200, result_of(exchange.id, content=[])))

        house.script = script
        running = asyncio.ensure_future(ask(house))
        await until(lambda: bool(house.forwarded))
        with locked(tmp_path):
            go_on.set()
            assert (await running)[0] == 200
        await house.corridor.delivery.drain()
        assert b"ostiary-replay-of" in (await ask(house))[2]
        assert len(house.forwarded) == 1


async def test_room_is_bounded_and_says_so(tmp_path: Path) -> None:
    """Keys of one subject: 429; of all, or bytes: 503; both with `Retry-After`; what is known is told still."""
    async with inner_house(tmp_path) as house:

        def bound(**most: Any) -> None:
            house.corridor.repeats.rows = KeyedCalls(house.store, [KEY], owner="w", **most)

        bound(per_subject=2)
        for key in ("a", "b"):
            assert (await ask(house, key))[0] == 200
        full = await ask(house, "c")
        assert (full[0], code(full), full[2][b"retry-after"]) == (429, 42901, b"60")
        assert (await ask(house, "c", claims={"sub": "bob"}))[0] == 200
        assert b"ostiary-replay-of" in (await ask(house, "a"))[2]
        bounds: tuple[Mapping[str, int], ...] = ({"most": 3}, {"bytes_in_all": 400})
        for most in bounds:
            bound(**most)
            rows = house.corridor.repeats.rows
            assert rows is not None
            await rows.measure()
            assert rows.count == 3
            assert rows.bytes > 400
            full = await ask(house, "d", claims={"sub": "carol"})
            assert (full[0], code(full), full[2][b"retry-after"]) == (503, 50305, b"60")
            assert b"ostiary-replay-of" in (await ask(house, "a"))[2]
        assert len(house.forwarded) == 3


async def test_nothing_is_in_clear_in_the_database(tmp_path: Path) -> None:
    """Key, arguments, result and who asked: none of it stands in the file or its log, sealed or found by digests."""
    async with inner_house(tmp_path) as house:
        house.script = answering(content=[{"type": "text", "text": "planted-result"}])
        await ask(house, "planted-key", arguments={"planted": "planted-argument"}, claims={"sub": "planted-subject"})
        held = read_all(tmp_path)
        assert b"keyed_calls" in held
        for planted in (b"planted-key", b"planted-result", b"planted-argument", b"planted-subject"):
            assert planted not in held
