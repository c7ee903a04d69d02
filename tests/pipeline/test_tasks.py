"""Tasks through the corridor: an owner for every task, whatever its server checks (contract.md section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.contract.passage import Reply
from policies.verdict import Verdict
from tests.contract.asking import TASKS_META, message
from tests.pipeline.house import ALLOW, APPROVE, DENY, SERVER, InnerHouse, inner_house
from tests.support.upstream import SSE_HEAD, Exchange, chunk, http, result_of

OWN_ID = "task 1/\u00fc"
"""The server's id of its task: one that no header carries as it is."""

STATE: Mapping[str, Any] = {
    "taskId": OWN_ID,
    "status": "working",
    "createdAt": "2026-07-28T10:00:00Z",
    "lastUpdatedAt": "2026-07-28T10:00:00Z",
    "ttlMs": 60_000,
}
CAPABLE = {
    **TASKS_META,
    "io.modelcontextprotocol/clientCapabilities": {
        **TASKS_META["io.modelcontextprotocol/clientCapabilities"],
        "elicitation": {},
    },
}
ASKED = {"q": {"method": "elicitation/create", "params": {"mode": "form", "message": "?"}}}

SUBSCRIPTION = {"io.modelcontextprotocol/subscriptionId": 1}


async def careless(exchange: Exchange) -> None:
    """A server that runs tools as tasks and checks nothing."""
    asked = orjson.loads(exchange.seen.body)
    match asked["method"]:
        case "tools/call":
            told: dict[str, Any] = {**STATE, "resultType": "task"}
        case "tasks/get":
            told = {**STATE, "status": "completed", "result": {"content": [{"type": "text", "text": "paid"}]}}
        case "subscriptions/listen":
            told = {"_meta": SUBSCRIPTION}
        case _:
            told = {}
    await exchange.send(http(200, orjson.dumps({"jsonrpc": "2.0", "id": exchange.id, "result": told})))


def about(handle: str, method: str = "tasks/get", **params: Any) -> dict[str, Any]:
    """A request about a task."""
    return message(method, params={"taskId": handle, **params}, meta=CAPABLE)


def call(name: str = "pay", arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A call by a client that can handle tasks."""
    return message(params={"name": name, "arguments": dict(arguments or {})}, meta=CAPABLE)


def read(reply: Reply) -> dict[str, Any]:
    """The body of a whole reply."""
    document: dict[str, Any] = orjson.loads(reply.body)
    return document


async def make(house: InnerHouse, body: Mapping[str, Any] | None = None) -> str:
    """Have alice's call make a task -> the id that she holds."""
    house.script = house.script or careless
    reply = await house.serve(house.request(body or call()))
    assert reply.status == 200, reply.body
    result = read(reply)["result"]
    assert result == {**STATE, "resultType": "task", "taskId": result["taskId"]}
    assert OWN_ID not in reply.body.decode()
    return str(result["taskId"])


async def test_a_task_is_polled_under_its_owners_handle(tmp_path: Path) -> None:
    """The server gets its own id, in body and header; the owner reads the handle, and the record what happened."""
    async with inner_house(tmp_path) as house:
        handle = await make(house)
        reply = await house.serve(house.request(about(handle)))
        assert read(reply)["result"] == {
            **STATE,
            "taskId": handle,
            "status": "completed",
            "result": {"content": [{"type": "text", "text": "paid"}]},
        }
        seen = house.upstream.seen[-1]
        sent = orjson.loads(seen.body)
        assert sent["params"] == {"taskId": OWN_ID, "_meta": CAPABLE}
        assert seen.values("mcp-name") == ["=?base64?dGFzayAxL8O8?="]
        assert [record["outcome"] for record in house.sink.of("outcome")] == ["task", "executed"]
        assert house.sink.of("decision")[-1]["name"] == handle
        assert OWN_ID not in orjson.dumps(house.sink.records).decode()


async def test_the_policy_is_asked_about_every_request_for_a_task(tmp_path: Path) -> None:
    """It hears the id as its owner holds it, the tool that made the task, and new input for it."""
    async with inner_house(tmp_path) as house:
        handle = await make(house)
        responses = {"q": {"action": "accept", "content": {"n": 1}}}
        for body in (
            about(handle),
            about(handle, "tasks/cancel"),
            about(handle, "tasks/update", inputResponses=responses),
        ):
            assert (await house.serve(house.request(body))).status == 200
            request = house.policy.questions[-1]["request"]
            assert (request["kind"], request["name"], request["arguments"]) == ("task", handle, {})
            assert request["tasks"] == [{"id": handle, "tool": "pay", "approved": False}]
        assert (request["input_responses"], request["leg"]) == (responses, 1)
        given = house.sink.of("decision")[-1]
        assert given["method"] == "tasks/update"
        assert len([name for name in given["arguments"] if name.startswith("/inputResponses/")]) == 2
        assert given["arguments_hmac"] != house.sink.of("decision")[-2]["arguments_hmac"]
        assert orjson.loads(house.forwarded[-1])["params"]["inputResponses"] == responses
        assert len(house.policy.questions) == 4


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_denied_request_about_an_own_task_goes_no_further(tmp_path: Path, method: str) -> None:
    """A policy may close each of the three; nothing reaches the server."""

    def judge(question: Mapping[str, Any]) -> Verdict:
        return DENY if question["request"]["method"] == method else ALLOW

    async with inner_house(tmp_path, judge) as house:
        handle = await make(house)
        params: dict[str, Any] = {"inputResponses": {}} if method == "tasks/update" else {}
        reply = await house.serve(house.request(about(handle, method, **params)))
        assert (reply.status, read(reply)["error"]["code"]) == (403, 40302)
        assert len(house.forwarded) == 1


async def test_an_approval_of_a_task_request_is_a_deny(tmp_path: Path) -> None:
    """What a person approves are calls; nobody waits for a yes to a poll."""
    async with inner_house(tmp_path, lambda asked: APPROVE if asked["request"]["tasks"] else ALLOW) as house:
        handle = await make(house)
        assert (await house.serve(house.request(about(handle)))).status == 403
        assert (len(house.forwarded), house.moves) == (1, [])


OTHER = replace(SERVER, name="other", path="/other/mcp", resource="https://gw.example/other/mcp")
THIEVES: dict[str, dict[str, Any]] = {
    "another user": {"sub": "mallory"},
    "another tenant": {"tenant": "globex"},
    "another server": {"server": OTHER},
    "the server's own id": {"handle": OWN_ID},
    "a guess": {"handle": "A" * 160},
    "an id from elsewhere": {"handle": "786512e2-9e0d-44bd-8f29-789f320fe840"},
    "an empty id": {"handle": ""},
    "a long one": {"handle": "A" * 9000},
}


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel", "subscriptions/listen"])
async def test_whatever_is_no_task_of_the_callers_looks_the_same(tmp_path: Path, method: str) -> None:
    """Another's, another tenant's, another server's, made up: one reply, nothing forwarded, the policy asked."""

    def ask(handle: str, server: Any = SERVER, **claims: Any) -> Any:
        if method == "subscriptions/listen":
            body = message(method, params={"notifications": {"taskIds": [handle]}}, meta=CAPABLE)
        else:
            body = about(handle, method, **({"inputResponses": {}} if method == "tasks/update" else {}))
        return house.request(body, server, **{"tenant": "acme", **claims})

    async with inner_house(tmp_path, tenant_claim="tenant") as house:
        house.script = careless
        made = await house.serve(house.request(call(), tenant="acme"))
        handle = read(made)["result"]["taskId"]
        assert (await house.serve(ask(handle))).status == 200, "the owner's is good"
        forwarded, replies, lengths = len(house.forwarded), [], set()
        thieves = {**THIEVES, "a changed one": {"handle": handle[:-3] + ("AAA" if handle[-3:] != "AAA" else "BBB")}}
        for name, theft in thieves.items():
            questions = len(house.policy.questions)
            reply = await house.serve(ask(**{"handle": handle, **theft}))
            document = read(reply)
            decision = document["error"]["data"].pop("decisionId")
            assert len(house.policy.questions) == questions + 1, name
            assert house.policy.questions[-1]["request"]["tasks"][0]["tool"] is None
            record = house.sink.of("refusal")[-1]
            assert (record["decision_id"], record["reasons"][0]) == (decision, "task_unknown")
            assert record["detail"].startswith("handle: "), name
            assert (record["task"], record["ticket"]) == (None, None)
            replies.append((reply.status, [name for name, _ in reply.headers], document))
            lengths.add(len(reply.body))
        assert all(reply == replies[0] for reply in replies)
        assert len(lengths) == 1
        assert replies[0][0] == 400
        assert replies[0][2]["error"] == {"code": -32602, "message": "There is no such task.", "data": {}}
        assert len(house.forwarded) == forwarded


async def test_an_expired_handle_is_that_of_no_task(tmp_path: Path) -> None:
    """A day after its task's time to live a handle opens nothing."""
    async with inner_house(tmp_path) as house:
        handle = await make(house)
        house.corridor.clock = lambda: 1e11
        reply = await house.serve(house.request(about(handle)))
        assert (reply.status, read(reply)["error"]["code"], len(house.forwarded)) == (400, -32602, 1)
        assert house.sink.of("refusal")[-1]["detail"] == "handle: expired"


async def test_an_approved_call_that_becomes_a_task_has_used_its_approval(tmp_path: Path) -> None:
    """The server took the call: the use is `executed`, a second one needs a new yes, and the task goes on."""

    def judge(question: Mapping[str, Any]) -> Verdict:
        return APPROVE if question["request"]["method"] == "tools/call" else ALLOW

    async with inner_house(tmp_path, judge) as house:
        house.script = careless
        ticket = await house.approve(house.ask())
        handle = await make(house)
        assert house.moves == ["request", "approve", "claim", "sent", "executed"]
        assert (await house.ticket(ticket))["state"] == "used"
        assert [run["state"] for run in (await house.ticket(ticket))["runs"]] == ["executed"]
        assert (house.sink.of("outcome")[-1]["outcome"], house.sink.of("outcome")[-1]["ticket"]) == ("task", ticket)
        assert (await house.serve(house.request(about(handle)))).status == 200
        assert house.policy.questions[-1]["request"]["tasks"][0]["approved"] is True
        story = [record for record in house.sink.records if record["task"]]
        assert [(one["method"], one["kind"]) for one in story] == [
            ("tools/call", "outcome"),
            ("tasks/get", "decision"),
            ("tasks/get", "outcome"),
        ]
        assert len({one["task"] for one in story}) == 1
        assert {one["ticket"] for one in story} == {ticket}
        again = await house.serve(house.ask())
        assert (again.status, read(again)["error"]["code"]) == (403, 40303)
        assert read(again)["error"]["data"]["ticket"]["id"] != ticket
        assert len(house.forwarded) == 2


async def test_an_approved_conversation_may_end_in_a_task(tmp_path: Path) -> None:
    """Asked for input first, a task then: one use, `executed`, and the task remembers the ticket."""

    def judge(question: Mapping[str, Any]) -> Verdict:
        first = question["request"]["method"] == "tools/call" and question["request"]["leg"] == 0
        return APPROVE if first else ALLOW

    async with inner_house(tmp_path, judge) as house:
        ticket = await house.approve(house.request(call()))

        async def asks(exchange: Exchange) -> None:
            await exchange.send(
                http(200, result_of(exchange.id, resultType="input_required", inputRequests=ASKED, requestState="s"))
            )

        house.script = asks
        state = read(await house.serve(house.request(call())))["result"]["requestState"]
        house.script = careless
        responses = {"q": {"action": "accept", "content": {}}}
        params = {"name": "pay", "arguments": {}, "requestState": state, "inputResponses": responses}
        made = await house.serve(house.request(message(params=params, meta=CAPABLE)))
        handle = read(made)["result"]["taskId"]
        assert [run["state"] for run in (await house.ticket(ticket))["runs"]] == ["executed"]
        assert (await house.serve(house.request(about(handle)))).status == 200
        assert house.policy.questions[-1]["request"]["tasks"] == [{"id": handle, "tool": "pay", "approved": True}]
        assert house.sink.of("decision")[-1]["ticket"] == ticket


async def test_a_server_that_tells_of_another_task_is_not_believed(tmp_path: Path) -> None:
    """502, and nothing of what it said reaches the caller."""
    async with inner_house(tmp_path) as house:
        handle = await make(house)

        async def confuse(exchange: Exchange) -> None:
            await exchange.send(http(200, result_of(exchange.id, **{**STATE, "taskId": "bobs", "content": []})))

        house.script = confuse
        reply = await house.serve(house.request(about(handle)))
        assert (reply.status, read(reply)["error"]["code"]) == (502, 50202)
        assert b"bobs" not in reply.body


async def test_a_client_that_can_not_handle_tasks_gets_none(tmp_path: Path) -> None:
    """A server must not answer it with one; the id would lead nowhere."""
    async with inner_house(tmp_path) as house:
        house.script = careless
        status, told = await house.call()
        assert (status, told["error"]["code"]) == (502, 50202)
        assert house.sink.of("outcome")[-1]["outcome"] == "unknown"


async def test_a_task_that_its_server_dropped_is_told_in_the_servers_words(tmp_path: Path) -> None:
    """An error about an own task passes as every server's error does."""
    async with inner_house(tmp_path) as house:
        handle = await make(house)

        async def gone(exchange: Exchange) -> None:
            error = {"code": -32602, "message": "Task has expired"}
            await exchange.send(http(400, orjson.dumps({"jsonrpc": "2.0", "id": exchange.id, "error": error})))

        house.script = gone
        reply = await house.serve(house.request(about(handle)))
        assert (reply.status, read(reply)["error"]["message"]) == (400, "Task has expired")
        assert house.sink.of("outcome")[-1]["outcome"] == "rpc_error"


async def streamed(house: InnerHouse, body: Mapping[str, Any], *events: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a stream that the server answers with."""

    async def play(exchange: Exchange) -> None:
        texts = [orjson.dumps({"jsonrpc": "2.0", **event}) for event in events]
        await exchange.send(SSE_HEAD + b"".join(chunk(b"data: " + text + b"\n\n") for text in texts) + chunk(b""))

    house.script = play
    reply = await house.serve(house.request(body))
    assert reply.chunks is not None, reply.body
    text = b"".join([piece async for piece in reply.chunks])
    return [orjson.loads(event.rpartition(b"data: ")[2]) for event in text.split(b"\n\n") if event]


async def test_a_task_that_a_stream_ends_with_is_sealed_as_well(tmp_path: Path) -> None:
    """An event stream is no way round the handle; other tasks' news on it are nobody's."""
    async with inner_house(tmp_path) as house:
        news = {"method": "notifications/tasks", "params": {**STATE, "taskId": "bobs"}}
        old = {"method": "notifications/tasks/status", "params": {**STATE, "taskId": "bobs"}}
        told = await streamed(house, call(), news, old, {"id": 1, "result": {**STATE, "resultType": "task"}})
        assert [event["id"] for event in told] == [1]
        handle = told[0]["result"]["taskId"]
        assert handle != OWN_ID
        house.script = careless
        assert (await house.serve(house.request(about(handle)))).status == 200


def listen(*handles: str) -> dict[str, Any]:
    """A subscription to tasks."""
    return message("subscriptions/listen", params={"notifications": {"taskIds": list(handles)}}, meta=CAPABLE)


def acknowledged(*ids: str) -> dict[str, Any]:
    """The server's word for what it will tell of."""
    params = {"notifications": {"taskIds": list(ids)}, "_meta": SUBSCRIPTION}
    return {"method": "notifications/subscriptions/acknowledged", "params": params}


def news(task_id: str = OWN_ID, **more: Any) -> dict[str, Any]:
    """A task's notification."""
    return {"method": "notifications/tasks", "params": {**STATE, "taskId": task_id, "_meta": SUBSCRIPTION, **more}}


END = {"id": 1, "result": {"resultType": "complete", "_meta": SUBSCRIPTION}}


async def test_a_subscription_speaks_of_tasks_as_their_owner_does(tmp_path: Path) -> None:
    """The server is asked for its own ids; acknowledgement and news come under handles, others' news never."""
    async with inner_house(tmp_path) as house:
        handle = await make(house)
        told = await streamed(
            house, listen(handle), acknowledged(OWN_ID), news(), news("bobs"), news(status="cancelled"), END
        )
        assert orjson.loads(house.forwarded[-1])["params"]["notifications"] == {"taskIds": [OWN_ID]}
        assert house.policy.questions[-1]["request"]["tasks"] == [{"id": handle, "tool": "pay", "approved": False}]
        assert told[0]["params"]["notifications"] == {"taskIds": [handle]}
        assert [event["params"]["taskId"] for event in told[1:3]] == [handle, handle]
        assert [event["params"]["status"] for event in told[1:3]] == ["working", "cancelled"]
        assert told[3]["id"] == 1
        assert len(told) == 4


async def test_one_foreign_task_spoils_a_subscription(tmp_path: Path) -> None:
    """A subscription to an own and to another's task is refused whole: nothing is asked of the server."""
    async with inner_house(tmp_path) as house:
        handle = await make(house)
        reply = await house.serve(house.request(listen(handle, "guess")))
        assert (reply.status, read(reply)["error"]["code"], len(house.forwarded)) == (400, -32602, 1)


@pytest.mark.parametrize(
    "events",
    [
        (acknowledged("bobs"), END),
        (acknowledged(OWN_ID, "bobs"), END),
        (acknowledged(OWN_ID), news(status="completed"), END),
        (acknowledged(OWN_ID), news(status="input_required", inputRequests={"q": {"method": "roots/list"}}), END),
    ],
    ids=["another's task", "another's beside the own", "news without its result", "a question nobody can answer"],
)
async def test_a_subscription_breaks_rather_than_tell_more(
    tmp_path: Path, events: tuple[dict[str, Any], ...]
) -> None:
    """What the extension does not allow ends the stream with an error."""
    async with inner_house(tmp_path) as house:
        handle = await make(house)
        good = await streamed(house, listen(handle), acknowledged(OWN_ID), news(), END)
        assert "result" in good[-1]
        told = await streamed(house, listen(handle), *events)
        assert told[-1]["error"]["code"] == 50202
        assert "bobs" not in str(told)
        assert OWN_ID not in str(told)
