"""Servers that break, lie or dawdle, streams, cancellation, input that is asked for (rows UPS-02, 03, 05, 08, 09)."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from gateway.contract.refusals import Refusal
from tests.contract.sse import whatwg
from tests.rows.asking import tool
from tests.rows.proof import passes, refused
from tests.rows.stage import House, is_own, listing
from tests.rows.test_served import events
from tests.support.http_raw import RawClient
from tests.support.upstream import SSE_HEAD, Exchange, Script, chunk, http, result_of

Make = Callable[[Exchange], bytes]
Then = Callable[[Exchange], Awaitable[None]]
INVALID, UNREACHABLE, LATE = Refusal.UPSTREAM_INVALID, Refusal.UPSTREAM_UNREACHABLE, Refusal.UPSTREAM_TIMEOUT


def whole(make: Make | bytes) -> Script:
    """Answer with these bytes, then close."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(make if isinstance(make, bytes) else make(exchange))
        exchange.writer.close()

    return script


def body(make: Callable[[Any], Any]) -> Script:
    """Answer 200 with this JSON value, made from the request's id."""
    return whole(lambda exchange: http(200, orjson.dumps(make(exchange.id))))


def rpc(request_id: Any, **members: Any) -> dict[str, Any]:
    """A JSON-RPC response."""
    return {"jsonrpc": "2.0", "id": request_id, **members}


DONE = {"resultType": "complete", "content": []}
POISON = "planted-in-a-wrong-answer"
RAW = POISON.encode()
QUESTION = {"method": "elicitation/create", "params": {"message": POISON, "requestedSchema": {"type": "object"}}}
ASKS = {"resultType": "input_required", "inputRequests": {"q": QUESTION}}


async def _reset(exchange: Exchange) -> None:
    exchange.reset()


async def _close(exchange: Exchange) -> None:
    exchange.writer.close()


async def _nothing(exchange: Exchange) -> None:
    await exchange.gone(30)


async def _half_a_head(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
    exchange.writer.close()


async def _stuck_body(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{")
    await exchange.gone(30)


ANSWERS: dict[str, tuple[Script, Refusal]] = {
    # UPS-03: not an answer to this request
    "another id": (body(lambda i: rpc(i + 1, result={**DONE, "x": POISON})), INVALID),
    "the id as text": (body(lambda i: rpc(str(i), result={**DONE, "x": POISON})), INVALID),
    "no id": (body(lambda _: {"jsonrpc": "2.0", "result": {**DONE, "x": POISON}}), INVALID),
    "id null": (body(lambda _: rpc(None, result={**DONE, "x": POISON})), INVALID),
    "result and error": (body(lambda i: rpc(i, result=DONE, error={"code": 1, "message": POISON})), INVALID),
    "neither": (body(rpc), INVALID),
    "a request": (body(lambda i: rpc(i, method="sampling/createMessage", params={"x": POISON})), INVALID),
    "a batch": (body(lambda i: [rpc(i, result=DONE)]), INVALID),
    "a result that is a list": (body(lambda i: rpc(i, result=[POISON])), INVALID),
    "a result type from nowhere": (body(lambda i: rpc(i, result={"resultType": "else", "x": POISON})), INVALID),
    "a task": (body(lambda i: rpc(i, result={"resultType": "task", "task": {"taskId": POISON}})), INVALID),
    "input_required with nothing": (body(lambda i: rpc(i, result={"resultType": "input_required"})), INVALID),
    "input that this caller can't give": (body(lambda i: rpc(i, result=ASKS)), INVALID),
    "two ids": (whole(lambda e: http(200, b'{"id":8,' + result_of(e.id, x=POISON)[1:])), INVALID),
    "two results": (whole(lambda e: http(200, result_of(e.id)[:-1] + b',"result":{"x":"%s"}}' % RAW)), INVALID),
    "a result under a second name": (body(lambda i: rpc(i, result=DONE, Result={"x": POISON})), INVALID),
    "NaN": (whole(lambda e: http(200, result_of(e.id, x=POISON)[:-2] + b',"y":NaN}}')), INVALID),
    "half a character": (whole(lambda e: http(200, result_of(e.id, x=POISON)[:-2] + b',"y":"\\ud800"}}')), INVALID),
    "the gateway's own code": (body(lambda i: rpc(i, error={"code": 40303, "message": POISON})), INVALID),
    "a code that is forbidden": (body(lambda i: rpc(i, error={"code": -32042, "message": POISON})), INVALID),
    "two answers": (whole(lambda e: http(200, result_of(e.id) + result_of(e.id, x=POISON))), INVALID),
    # UPS-08: not an answer at all
    "malformed JSON": (whole(lambda e: http(200, result_of(e.id)[:-1])), INVALID),
    "another media type": (whole(lambda e: http(200, result_of(e.id), kind="text/html")), INVALID),
    "no media type": (whole(lambda e: http(200, result_of(e.id), kind="")), INVALID),
    "gzip": (whole(lambda e: http(200, result_of(e.id), extra="Content-Encoding: gzip\r\n")), INVALID),
    "500": (whole(http(500, POISON.encode(), kind="text/plain")), INVALID),
    "500 with a result": (whole(lambda e: http(500, result_of(e.id, x=POISON))), INVALID),
    "503 with nothing": (whole(http(503)), INVALID),
    "204": (whole(http(204)), INVALID),
    "101": (whole(http(101, extra="Upgrade: h2c\r\nConnection: upgrade\r\n")), INVALID),
    "999": (whole(lambda e: http(999, result_of(e.id))), INVALID),
    "50 interim answers": (whole(lambda e: b"HTTP/1.1 103 x\r\n\r\n" * 50 + http(200, result_of(e.id))), INVALID),
    "no HTTP": (whole(b"220 mail.example.com ESMTP\r\n"), INVALID),
    "a length that is none": (
        whole(b"HTTP/1.1 200 x\r\nContent-Type: application/json\r\nContent-Length: x\r\n\r\n{}"),
        INVALID,
    ),
    # UPS-02: another destination
    "302": (whole(http(302, extra="Location: http://169.254.169.254/latest/\r\n")), INVALID),
    "307": (whole(http(307, extra="Location: http://127.0.0.1:1/mcp\r\n")), INVALID),
    "401": (whole(http(401, extra='WWW-Authenticate: Bearer realm="x"\r\n')), INVALID),
    # UPS-08: the connection
    "a reset": (_reset, UNREACHABLE),
    "a close": (_close, UNREACHABLE),
    "half a head": (_half_a_head, UNREACHABLE),
    "a body cut short": (whole(lambda e: http(200, result_of(e.id))[:-3]), INVALID),
    "a chunked body cut short": (
        whole(
            lambda e: b"HTTP/1.1 200 x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            + chunk(result_of(e.id))
        ),
        INVALID,
    ),
    "no head in time": (_nothing, LATE),
    "no body in time": (_stuck_body, LATE),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_a_broken_answer_is_the_gateways_error_and_the_call_is_sent_once(house: House, name: str) -> None:
    """UPS-02, 03, 08: 502 or 504 with the caller's id, nothing of the foreign answer, and never a second attempt."""
    script, refusal = ANSWERS[name]
    ask = house.good(tool("read", **{"from": name}), "odd")
    passes(house, ask)
    with house.behind["odd"][0].playing(script):
        answer = refused(house, ask, refusal, twin=house.good(), sent=1)
    assert POISON.encode() not in answer.body
    assert "location" not in {name for name, _ in answer.headers}
    records = house.records_of(answer.values("ostiary-decision")[0])
    assert records[1]["outcome"] == "unknown"
    assert POISON not in json.dumps(records)
    passes(house, ask)


@pytest.mark.parametrize(
    "error",
    [
        {"code": -32602, "message": "no such path", "data": {"path": "x"}},
        {"code": -32021, "message": "ask", "data": {"requiredCapabilities": {"elicitation": {"url": {}}}}},
    ],
)
def test_an_error_of_the_servers_own_is_passed_on(house: House, error: dict[str, Any]) -> None:
    """A JSON-RPC error with the caller's id is an answer: status, code, text and data are the server's."""
    with house.behind["odd"][0].playing(whole(lambda e: http(400, orjson.dumps(rpc(e.id, error=error))))):
        answer = house.ask(house.good(server="odd"))
    assert (answer.status, answer.json()["error"]) == (400, error)
    records = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")
    assert (records[1]["outcome"], records[1]["code"]) == ("rpc_error", error["code"])


def test_a_tool_that_says_that_it_failed_is_passed_on(house: House) -> None:
    """`isError` is a result, and written down as what it is."""
    with house.behind["odd"][0].playing(body(lambda i: rpc(i, result={**DONE, "isError": True}))):
        answer = house.ask(house.good(server="odd"))
    assert answer.json()["result"]["isError"] is True
    assert (
        house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")[1]["outcome"] == "tool_error"
    )


@pytest.mark.provokes(Refusal.UPSTREAM_UNREACHABLE)
@pytest.mark.parametrize(
    "message", [tool("read"), listing("prompts/list"), listing()], ids=["call", "prompts", "tools"]
)
def test_replicas_that_refuse_connections_are_unreachable(house: House, message: dict[str, Any]) -> None:
    """UPS-08: 502 with the caller's id, whether the catalogue or the call itself finds nobody."""
    passes(house)
    answer = house.ask(house.good(message, "ghost"))
    assert (answer.status, answer.json()["error"]["code"], answer.json()["id"]) == (502, 50201, 7)
    passes(house)
    kinds = [record["kind"] for record in house.records_of(answer.values("ostiary-decision")[0])]
    assert kinds in (["refusal"], ["decision", "outcome"])


# Streams


def event(message: Any) -> bytes:
    """One event, as a chunk."""
    return chunk(b"data: " + orjson.dumps(message) + b"\n\n")


PROGRESS = {
    "jsonrpc": "2.0",
    "method": "com.example/notifications/note",
    "params": {"level": "info", "data": "on the way"},
}


def test_the_first_event_is_out_before_the_last_is_in(house: House) -> None:
    """A stream is relayed as it comes: the server sends its answer only once the client has the first event."""
    got_it = threading.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + event(PROGRESS))
        assert await asyncio.to_thread(got_it.wait, 20)
        await exchange.send(event(rpc(exchange.id, result=DONE)) + chunk(b""))

    with house.behind["odd"][0].playing(script), RawClient(house.address, 30) as client:
        head = client.send(house.good(server="odd").encode()).read_head()
        assert head.values("x-accel-buffering") == ["no"]
        assert head.values("cache-control") == ["no-store"]
        first = client.read_chunk()
        got_it.set()
        last = b"".join(iter(client.read_chunk, b""))
    assert events(first) == [PROGRESS]
    assert events(last) == [rpc(7, result=DONE)]
    records = house.await_records(head.values("ostiary-decision")[0], "decision", "outcome")
    assert records[1]["outcome"] == "executed"


def _stream(*pieces: Callable[[Any], bytes], end: bool = True, then: Then | None = None) -> Script:
    """A stream with progress and these pieces. It ends, or what is said happens in its middle."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + event(PROGRESS) + b"".join(piece(exchange.id) for piece in pieces))
        if then is not None:
            await asyncio.sleep(0.05)
            await then(exchange)
        elif end:
            await exchange.send(chunk(b""))

    return script


def _raw(before: bytes, behind: bytes = b"\n\n", **members: Any) -> Callable[[Any], bytes]:
    """A chunk that holds a response among other bytes."""
    return lambda i: chunk(before + orjson.dumps(rpc(i, **members)) + behind)


def note(method: str, **params: Any) -> dict[str, Any]:
    """A notification."""
    return {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params}


POISONED = {**DONE, "x": POISON}
STREAMS: dict[str, Script] = {
    "an end without a response": _stream(),
    "a close": _stream(then=_close),
    "a reset": _stream(then=_reset),
    "silence": _stream(then=_nothing),
    "another id": _stream(lambda i: event(rpc(i + 1, result=POISONED))),
    "the id as text": _stream(lambda i: event(rpc(str(i), result=POISONED))),
    "id null": _stream(lambda _: event(rpc(None, result=POISONED))),
    "no id": _stream(lambda _: event({"jsonrpc": "2.0", "result": POISONED})),
    "a batch": _stream(lambda i: event([rpc(i, result=POISONED)])),
    "the caller's id on a request": _stream(lambda i: event(rpc(i, method="roots/list", params={"x": POISON}))),
    "progress of another call": _stream(
        lambda _: event(note("progress", progressToken="another", progress=1, message=POISON)),
        lambda i: event(rpc(i, result=POISONED)),
    ),
    "a subscription's notification": _stream(
        lambda _: event(note("message", data=POISON, _meta={"io.modelcontextprotocol/subscriptionId": 7})),
        lambda i: event(rpc(i, result=POISONED)),
    ),
    "a request from the server": _stream(lambda _: event(rpc("s", method="roots/list", params={"x": POISON}))),
    "a response inside another event type": _stream(_raw(b"event: other\ndata: ", result=POISONED)),
    "not JSON": _stream(_raw(b"data: {", result=POISONED)),
    "half an event": _stream(_raw(b"data: ", b"", result=POISONED)),
    "a result type from nowhere": _stream(lambda i: event(rpc(i, result={"resultType": POISON}))),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_breaks_ends_in_an_error_with_the_callers_id(house: House, name: str) -> None:
    """UPS-03, UPS-08: never a clean end without a response, never a foreign result, never a second call."""
    passes(house, house.good(server="odd"))
    before = len(house.forwarded("odd"))
    with house.behind["odd"][0].playing(STREAMS[name]):
        answer = house.ask(house.good(server="odd"))
    assert answer.status == 200
    told = events(answer.body)
    assert told[0] == PROGRESS
    assert len(told) == 2
    assert (told[1]["id"], told[1]["error"]["code"] // 100) in ((7, 502), (7, 504))
    decision = answer.values("ostiary-decision")[0]
    assert told[1]["error"]["data"]["decisionId"] == decision
    assert POISON.encode() not in answer.body
    assert len(house.forwarded("odd")) == before + 1
    records = house.await_records(decision, "decision", "outcome")
    assert records[1]["outcome"] == "unknown"
    assert records[1]["reasons"][0] in {"upstream_invalid", "upstream_timeout", "upstream_unreachable"}
    passes(house)


NOTE = b'{"jsonrpc":"2.0","method":"com.example/notifications/note"}'
ODD: dict[str, bytes] = {
    "lines": b"data: " + NOTE + b"\n\n",
    "carriage returns": b"data: " + NOTE + b"\r\r",
    "both": b"data:" + NOTE + b"\r\n\r\n",
    "a field's end in its value": b"event: mess\rage\ndata: " + NOTE + b"\n\n",
    "an id and a type cut by a return": b"event: x\rid: y\rdata: " + NOTE + b"\n\n",
    "an id with a NUL": b"id: a\0b\ndata: " + NOTE + b"\n\n",
    "many lines": b"data: {\rdata: " + NOTE[1:] + b"\r\n\r",
    "marks inside": "data: {}\n\n".format(
        '{"jsonrpc":"2.0","method":"com.example/notifications/note","params":{"x":"\u2028\ufeff\u0085\u000b"}}'
    ).encode().replace(b"\x0b", b"\\u000b"),
    "a time to retry": b"retry: 1\ndata: " + NOTE + b"\n\n",
    "no data": b"event: message\nid: 7\n\n:\n\n",
}  # fmt: skip


@pytest.mark.parametrize("dripping", [False, True], ids=["at once", "in bytes"])
def test_the_client_reads_the_events_that_the_server_sent(house: House, dripping: bool) -> None:
    """UPS-05: whatever ends the lines and wherever they are cut, a WHATWG parser finds the same events in both."""
    sent: list[bytes] = []

    async def script(exchange: Exchange) -> None:
        last = b"data: " + orjson.dumps(rpc(exchange.id, result=DONE)) + b"\n\n"
        sent.append(b"\xef\xbb\xbf" + b"".join(ODD.values()) + last)
        await exchange.send(SSE_HEAD)
        pieces = [bytes((byte,)) for byte in sent[0]] if dripping else [sent[0]]
        for piece in pieces:
            await exchange.send(chunk(piece))
        await exchange.send(chunk(b""))

    with house.behind["odd"][0].playing(script):
        answer = house.ask(house.good(server="odd"))
    assert whatwg(answer.body) == whatwg(sent[0])
    assert len(whatwg(answer.body)) == len(ODD)  # one of them is no event, and the response is one
    assert "result" in json.loads(whatwg(answer.body)[-1][1])


def test_only_log_messages_that_were_asked_for_reach_the_caller(house: House) -> None:
    """MCP 2026-07-28, logging: a request names a level or gets none; the call itself is not harmed."""

    def log(level: str) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": level, "data": "x"}}

    logs = [log("debug"), log("warning"), log("alert")]
    with house.behind["odd"][0].playing(_stream(*[lambda _, one=one: event(one) for one in logs], _last)):
        quiet, loud = tool("read", path="a"), tool("read", path="a")
        loud["params"]["_meta"]["io.modelcontextprotocol/logLevel"] = "warning"
        assert events(house.ask(house.good(quiet, "odd")).body) == [PROGRESS, rpc(7, result=DONE)]
        assert events(house.ask(house.good(loud, "odd")).body) == [PROGRESS, *logs[1:], rpc(7, result=DONE)]


def _last(request_id: Any) -> bytes:
    return event(rpc(request_id, result=DONE))


def test_nothing_is_delivered_after_the_response(house: House) -> None:
    """UPS-03: of two responses only the first reaches the caller."""
    second = _stream(lambda i: event(rpc(i, result=DONE)), lambda i: event(rpc(i, result=POISONED)))
    with house.behind["odd"][0].playing(second):
        answer = house.ask(house.good(server="odd"))
    assert POISON.encode() not in answer.body
    told = events(answer.body)
    assert len(told) == 2
    assert told[1]["id"] == 7


@pytest.mark.parametrize("streaming", [False, True], ids=["before the head", "in the stream"])
def test_a_client_that_goes_away_ends_the_call(house: House, streaming: bool) -> None:
    """UPS-09: the server's side sees the close within 1 s, and the record says `cancelled`."""
    left: list[float] = []
    here = threading.Event()

    async def slow(exchange: Exchange) -> None:
        if streaming:
            await exchange.send(SSE_HEAD + event(PROGRESS))
        here.set()
        await exchange.gone(20)
        left.append(time.monotonic())

    passes(house, house.good(server="odd"))
    with house.behind["odd"][0].playing(slow):
        with RawClient(house.address, 30) as client:
            client.send(house.good(server="odd").encode())
            assert here.wait(20)
            decision = client.read_head().values("ostiary-decision")[0] if streaming else ""
            if streaming:
                client.read_chunk()
        closed = time.monotonic()
        while not left:
            assert time.monotonic() < closed + 5
            time.sleep(0.005)
    assert left[0] - closed < 1.0
    if not decision:
        passes(house)
        decision = [one for one in house.records() if one["kind"] == "decision" and one["server"] == "odd"][-1][
            "decision_id"
        ]
    records = house.await_records(decision, "decision", "outcome")
    assert records[1]["outcome"] == "cancelled"


# Input that is asked for

FORM = {"mode": "form", "message": "who?", "requestedSchema": {"type": "object"}}
ASKED: dict[str, Any] = {
    "resultType": "input_required",
    "requestState": "the server's own state",
    "inputRequests": {"name": {"method": "elicitation/create", "params": FORM}},
}
DECLARED: dict[str, Any] = {"elicitation": {"form": {}}}


def eliciting(name: str = "read", **more: Any) -> dict[str, Any]:
    """A call by a client that can be asked."""
    message = tool(name, path="a")
    message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = DECLARED
    message["params"].update(more)
    return message


async def asking_first(exchange: Exchange) -> None:
    """Ask for input; with the state brought back, be done."""
    params = json.loads(exchange.seen.body)["params"]
    result = DONE if "requestState" in params else ASKED
    await exchange.send(http(200, orjson.dumps(rpc(exchange.id, result=result))))


def test_a_state_comes_back_to_its_server_and_nobody_reads_it_on_the_way(house: House) -> None:
    """contract.md section 5: sealed for the caller, opened for the server, under a new id."""
    with house.behind["odd"][0].playing(asking_first):
        asked = house.ask(house.good(eliciting(), "odd"))
        result = asked.json()["result"]
        assert result["resultType"] == "input_required"
        assert result["inputRequests"] == ASKED["inputRequests"]
        assert ASKED["requestState"] not in asked.body.decode()
        answers = {"name": {"action": "accept", "content": {}}}
        again = eliciting(requestState=result["requestState"], inputResponses=answers)
        done = house.ask(house.good({**again, "id": "new"}, "odd"))
    assert done.json() == rpc("new", result=DONE)
    sent = json.loads(house.forwarded("odd")[-1].body)
    assert sent["params"]["requestState"] == ASKED["requestState"]
    assert sent["params"]["inputResponses"] == answers
    records = house.await_records(asked.values("ostiary-decision")[0], "decision", "outcome")
    assert records[1]["outcome"] == "input_required"


@pytest.mark.provokes(Refusal.STATE_NOT_ACCEPTED)
def test_a_state_is_accepted_from_its_owner_for_its_call_only(house: House) -> None:
    """Forged, foreign, moved elsewhere, other arguments: -32602, and no server is asked."""
    with house.behind["odd"][0].playing(asking_first), house.behind["plain"][0].playing(asking_first):
        asked = house.ask(house.good(eliciting(), "odd"))
        state = asked.json()["result"]["requestState"]
        good = eliciting(requestState=state, inputResponses={})
        assert house.ask(house.good(good, "odd")).status == 200
        before = len(house.forwarded())
        others = {
            "another subject": house.good(good, "odd", house.token("odd", "mallory")),
            "another server": house.good(good, "other"),
            "other arguments": house.good({**good, "params": {**good["params"], "arguments": {"path": "b"}}}, "odd"),
            "another tool": house.good(eliciting("Hello", requestState=state), "odd"),
            "a prompt": house.good(
                {**good, "method": "prompts/get", "params": {**good["params"], "name": "greet"}}, "odd"
            ),
        }
        for at in range(0, len(state), 9):
            flipped = state[:at] + ("A" if state[at] != "A" else "B") + state[at + 1 :]
            others[f"character {at}"] = house.good(eliciting(requestState=flipped), "odd")
        for tail in range(1, 64):
            end = state[:-tail] + ("A" if state[-tail] != "A" else "B") + (state[1 - tail :] if tail > 1 else "")
            others[f"character -{tail}"] = house.good(eliciting(requestState=end), "odd")
        for named, text in {
            "cut": state[:-1],
            "extended": state + "A",
            "padded": state + "=",
            "spaced": state + " ",
        }.items():
            others[named] = house.good(eliciting(requestState=text), "odd")
        others["answers alone to a held call"] = house.good(eliciting("write", inputResponses={}), "odd")
        for named, ask in others.items():
            answer = house.ask(ask)
            assert (answer.status, answer.json()["error"]["code"]) == (400, -32602), named
        assert len(house.forwarded()) == before
        assert house.ask(house.good(good, "odd")).status == 200, "and the owner's is still good"


def test_an_approved_call_that_is_answered_with_a_task_is_unknown(house: House) -> None:
    """What can't be guarded yet is refused: 502, the use ends as `unknown`, and the same call does not run again."""
    message = eliciting("write", arguments={"kind": "task"})
    ticket = house.approved("odd", message)
    task = {"resultType": "task", "task": {"taskId": "t"}}
    with house.behind["odd"][0].playing(body(lambda i: rpc(i, result=task))):
        answer = house.call("odd", message)
    assert (answer.status, answer.json()["error"]["code"], answer.json()["id"]) == (502, 50202, 7)
    records = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")
    assert (records[1]["outcome"], records[1]["ticket"]) == ("unknown", ticket)
    before = len(house.forwarded("odd"))
    again = house.call("odd", message)
    assert (again.status, again.json()["error"]["code"]) == (403, 40304)
    assert len(house.forwarded("odd")) == before
    assert [run["state"] for run in house.api("GET", f"/{ticket}").json()["runs"]] == ["unknown"]


def test_an_approved_call_that_is_asked_for_input_goes_on_under_its_ticket(house: House) -> None:
    """APR-09, whole gateway: approved once, asked, answered once; the retry, other answers and other arguments are
    refused; every record of it names the ticket."""
    message = eliciting("write", arguments={"kind": "input_required"})
    ticket = house.approved("odd", message)
    with house.behind["odd"][0].playing(asking_first):
        asked = house.call("odd", message)
        state = asked.json()["result"]["requestState"]
        answers = {"name": {"action": "accept", "content": {}}}
        again = eliciting("write", requestState=state, inputResponses=answers, arguments={"kind": "input_required"})
        before = len(house.forwarded("odd"))
        other = {**again, "params": {**again["params"], "arguments": {"kind": "other"}}}
        for refused, code in ((other, -32602), (message, 40304)):
            assert house.call("odd", refused).json()["error"]["code"] == code
        assert len(house.forwarded("odd")) == before
        done = house.call("odd", again)
        assert (done.status, done.json()["result"]) == (200, DONE)
        assert house.call("odd", again).json()["error"]["data"]["why"] == "continued"
    assert len(house.forwarded("odd")) == before + 1
    for answer, outcome in ((asked, "input_required"), (done, "executed")):
        records = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")
        assert (records[0]["ticket"], records[1]["ticket"], records[1]["outcome"]) == (ticket, ticket, outcome)
    assert house.api("GET", f"/{ticket}").json()["state"] == "used"


# Lists


def test_a_hidden_tool_is_not_listed_and_answers_like_an_absent_one(house: House) -> None:
    """What the policy denies is not listed; its call and that of a tool nobody offers differ in nothing but ids."""
    names = [one["name"] for one in passes(house, house.good(listing())).json()["result"]["tools"]]
    offered = [one["name"] for one in house.behind["plain"][0].tools]
    assert "hidden" in offered
    assert "hidden" not in names
    assert {"read", "narrow", "write"} <= set(names), "step-up and held tools are found"
    assert names == [name for name in offered if name in names], "the order is the server's"
    assert passes(house, house.good(listing())).json()["result"]["cacheScope"] == "private"
    hidden, absent, unlisted = (house.ask(house.good(tool(name))) for name in ("hidden", "absent", "hiddem"))
    for other in (absent, unlisted):
        assert hidden.status == other.status == 403
        one, two = hidden.json(), other.json()
        for answer in (one, two):
            answer["error"]["data"].pop("decisionId")
        assert one == two
        assert len(hidden.body) == len(other.body)
        assert [name for name, _ in hidden.headers] == [name for name, _ in other.headers]


def test_a_list_on_a_stream_is_filtered_as_well(house: House) -> None:
    """G8: an event stream is no way round the policy."""
    server = house.behind["odd"][0]

    async def stream(exchange: Exchange) -> None:
        await exchange.send(
            SSE_HEAD + event(PROGRESS) + chunk(b"data: " + server.result(exchange) + b"\n\n") + chunk(b"")
        )

    with server.playing(stream):
        answer = house.ask(house.good(listing(), "odd"))
    told = events(answer.body)
    assert told[0] == PROGRESS
    names = [one["name"] for one in told[1]["result"]["tools"]]
    assert "read" in names
    assert "hidden" not in names
    assert b"hidden" not in answer.body
    assert told[1]["result"]["cacheScope"] == "private"


def test_the_gateways_own_listing_is_its_own(house: House) -> None:
    """A catalogue's question carries the gateway's credential and nothing of any caller's."""
    passes(house)
    own = [seen for replica in house.behind["plain"] for seen in replica.wire.seen if is_own(seen)]
    assert own
    for seen in own:
        assert seen.values("authorization")[0].startswith("Bearer planted-upstream-")
        assert "alice" not in seen.body.decode()
