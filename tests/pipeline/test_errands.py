"""A held call as a task, through the whole corridor: who starts it, what runs once, what its owner reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest

from approvals.errand import Errand
from gateway.contract.passage import Reply
from gateway.upstream.port import UpstreamUnreachable
from policies.verdict import ApprovalTerms, Effect, Verdict
from tests.contract.asking import message
from tests.pipeline.house import ALLOW, APPROVE, DENY, InnerHouse, inner_house, tool, until
from tests.pipeline.test_tasks import CAPABLE, about, call, read
from tests.support.approvals import ALICE, BOB
from tests.support.upstream import SSE_HEAD, Exchange, chunk, http, result_of

EXTENSION = orjson.loads((Path(__file__).parents[1] / "vectors" / "tasks-extension.schema.json").read_bytes())
FORM = {"type": "object", "properties": {"n": {"type": "integer"}}}
QUESTION = {"method": "elicitation/create", "params": {"mode": "form", "message": "?", "requestedSchema": FORM}}
PAID = {"content": [{"type": "text", "text": "paid"}]}


def gated(question: Mapping[str, Any]) -> Verdict:
    """Calls of `pay` need a person; what an approved call is asked does not."""
    request = question["request"]
    return APPROVE if request["method"] == "tools/call" and not request["approved"] else ALLOW


async def pays(exchange: Exchange) -> None:
    """A server that pays."""
    await exchange.send(http(200, result_of(exchange.id, **PAID)))


@asynccontextmanager
async def house_of_errands(folder: Path, judge: Any = gated, script: Any = pays) -> AsyncIterator[InnerHouse]:
    """A house whose `pay` waits for a person."""
    async with inner_house(folder, judge) as house:
        house.script = script
        yield house


def fits(name: str, result: Mapping[str, Any]) -> None:
    """The result has the extension's own form."""
    jsonschema_rs.validator_for({**EXTENSION, "$ref": f"#/$defs/{name}"}).validate(result)


async def hold(house: InnerHouse, body: Mapping[str, Any] | None = None) -> tuple[str, str]:
    """Have alice's call held as a task -> her id of it, and the ticket's."""
    reply = await house.serve(house.request(body or call()))
    assert reply.status == 200, reply.body
    result = read(reply)["result"]
    fits("CreateTaskResult", result)
    assert result["status"] == "working"
    ticket = house.sink.of("refusal")[-1]["ticket"]
    assert "statusMessage" in result
    return result["taskId"], ticket


async def poll(house: InnerHouse, handle: str, **claims: Any) -> dict[str, Any]:
    """Alice's `tasks/get`."""
    reply = await house.serve(house.request(about(handle), **claims))
    assert reply.status == 200, reply.body
    result: dict[str, Any] = read(reply)["result"]
    fits("GetTaskResult", result)
    assert result["taskId"] == handle
    return result


async def follow(house: InnerHouse, handle: str) -> dict[str, Any]:
    """Poll until something else than `working` is told."""
    async with asyncio.timeout(10):
        while (told := await poll(house, handle))["status"] == "working":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return told


async def refused(house: InnerHouse, body: Mapping[str, Any], **claims: Any) -> tuple[int, dict[str, Any]]:
    """A request that is refused -> its status and error."""
    reply = await house.serve(house.request(body, **claims))
    error: dict[str, Any] = read(reply)["error"]
    return reply.status, error


async def test_a_held_call_is_a_task_that_runs_once_it_is_approved(tmp_path: Path) -> None:
    """`working` while it waits, then the call's own result, the same at every poll; it ran once."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        assert (await poll(house, handle))["status"] == "working"
        assert not house.forwarded
        await house.desk.act("approve", BOB, ticket)
        told = await follow(house, handle)
        assert (told["status"], told["result"]["content"]) == ("completed", PAID["content"])
        assert await poll(house, handle) == told
        assert len(house.forwarded) == 1
        assert (await house.ticket(ticket))["state"] == "used"


async def test_the_run_has_its_own_two_records_and_all_share_the_task(tmp_path: Path) -> None:
    """A decision before the call and an outcome after it, of `tools/call`, by the poll's caller, under the ticket."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        await follow(house, handle)
        (decision,) = house.sink.of("decision")
        (outcome,) = [one for one in house.sink.of("outcome") if one["outcome"] == "executed"]
        assert decision["method"] == outcome["method"] == "tools/call"
        assert decision["decision_id"] == outcome["decision_id"]
        assert decision["actor"]["subject"] == "alice"
        assert decision["ticket"] == outcome["ticket"] == ticket
        tags = {one["task"] for one in house.sink.records}
        assert len(tags) == 1
        assert None not in tags
        held = house.sink.of("refusal")[0]
        assert (held["reasons"][0], held["challenge"], held["status"]) == ("approval_required", "task", 200)


async def test_what_is_sent_is_what_was_approved_with_nothing_of_the_poll(tmp_path: Path) -> None:
    """The stored arguments and mirrored headers; the poll's token goes no further than ours."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house, call(arguments={"amount": 7, "to": "ä"}))
        await house.desk.act("approve", BOB, ticket)
        await follow(house, handle)
        seen = house.upstream.seen[-1]
        assert orjson.loads(seen.body)["params"]["arguments"] == {"amount": 7, "to": "ä"}
        assert (seen.values("mcp-method"), seen.values("mcp-name")) == (["tools/call"], ["pay"])
        assert not seen.values("authorization")


async def test_the_run_goes_on_when_the_poll_that_started_it_goes_away(tmp_path: Path) -> None:
    """The call is not the poll's: a client that hangs up has lost nothing."""
    gate = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await gate.wait()
        await pays(exchange)

    async with house_of_errands(tmp_path, script=slow) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        polling = asyncio.create_task(house.serve(house.request(about(handle))))
        await until(lambda: len(house.forwarded) == 1)
        polling.cancel()
        await asyncio.wait({polling})
        assert (await poll(house, handle))["status"] == "working"
        gate.set()
        assert (await follow(house, handle))["status"] == "completed"
        assert len(house.forwarded) == 1


async def test_many_polls_at_once_start_it_once(tmp_path: Path) -> None:
    """Whoever takes the lease runs it; all read the same end."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        await asyncio.gather(*(poll(house, handle) for _ in range(20)))
        assert (await follow(house, handle))["status"] == "completed"
        assert len(house.forwarded) == 1


async def test_repeating_the_held_call_gives_the_same_task(tmp_path: Path) -> None:
    """One call, one task, one ticket: before the approval and while it runs."""
    gate = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await gate.wait()
        await pays(exchange)

    async with house_of_errands(tmp_path, script=slow) as house:
        handle, ticket = await hold(house)
        assert await hold(house) == (handle, ticket)
        await house.desk.act("approve", BOB, ticket)
        await poll(house, handle)
        await until(lambda: len(house.forwarded) == 1)
        again = read(await house.serve(house.request(call())))["result"]
        assert (again["taskId"], again["status"]) == (handle, "working")
        gate.set()
        await follow(house, handle)
        assert house.moves.count("request") == 1


async def test_an_ordinary_repetition_may_use_the_approval_and_the_task_says_so(tmp_path: Path) -> None:
    """Whichever comes first runs the call, once; the other ends truthfully."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        status, error = await refused(house, message(params={"name": "pay", "arguments": {}}))
        assert (status, error["data"]["ticket"]["id"]) == (403, ticket)
        await house.desk.act("approve", BOB, ticket)
        assert (await house.call("pay", {}))[0] == 200
        told = await poll(house, handle)
        assert (told["status"], told["error"]["code"]) == ("failed", 40304)
        assert told["error"]["data"]["why"] == "used"
        assert len(house.forwarded) == 1


@pytest.mark.parametrize("verb", ["deny", "withdraw", "revoke"])
async def test_what_is_not_approved_fails_with_the_refusal(tmp_path: Path, verb: str) -> None:
    """Denied, withdrawn or revoked: `failed`, with 40304, the reason and the ticket; the same at every poll."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        if verb == "revoke":
            await house.desk.act("approve", BOB, ticket)
        await house.desk.act(verb, ALICE if verb == "withdraw" else BOB, ticket)
        told = await poll(house, handle)
        assert (told["status"], told["error"]["code"]) == ("failed", 40304)
        assert told["error"]["data"]["ticket"]["id"] == ticket
        assert await poll(house, handle) == told
        assert not house.forwarded


async def test_an_expired_ticket_fails_its_task(tmp_path: Path) -> None:
    """Expiry is a denial, for a task as well; and no poll opens another ticket."""

    def brief(question: Mapping[str, Any]) -> Verdict:
        verdict = gated(question)
        terms = ApprovalTerms(approvers=("group:payers",), ttl_s=1)
        return verdict if verdict.effect is Effect.ALLOW else Verdict(Effect.APPROVE, approval=terms, revision="r1")

    async with house_of_errands(tmp_path, brief) as house:
        handle, _ = await hold(house)
        assert (await poll(house, handle))["status"] == "working"
        told = await follow(house, handle)
        assert (told["status"], told["error"]["data"]["why"]) == ("failed", "expired")
        assert house.moves.count("request") == 1


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_held_call_of_somebody_else_is_no_task(tmp_path: Path, method: str) -> None:
    """Another subject's request is `task_unknown`, in the words of an id that nobody ever had; nothing happens."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        params: dict[str, Any] = {"inputResponses": {}} if method == "tasks/update" else {}
        status, error = await refused(house, about(handle, method, **params), sub="mallory")
        guess_status, guess = await refused(house, about("made-up", method, **params))
        assert (status, error["code"], error["message"]) == (guess_status, guess["code"], guess["message"])
        assert (await house.ticket(ticket))["state"] == "pending"
        assert (await poll(house, handle))["status"] == "working"


async def test_another_client_of_the_same_user_reads_it_and_starts_nothing(tmp_path: Path) -> None:
    """The approval is one client's: another one's poll consumes nothing and asks for nothing."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        assert (await poll(house, handle, client_id="another"))["status"] == "working"
        assert not house.forwarded
        assert house.moves.count("request") == 1
        assert (await follow(house, handle))["status"] == "completed"


async def test_the_policy_of_the_moment_decides_at_the_poll_and_at_the_run(tmp_path: Path) -> None:
    """A poll that is denied is refused like any; a call that is denied by now fails, whatever a person said."""
    closed: set[str] = set()

    def judge(question: Mapping[str, Any]) -> Verdict:
        return DENY if question["request"]["method"] in closed else gated(question)

    async with house_of_errands(tmp_path, judge) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        closed.add("tasks/get")
        assert (await refused(house, about(handle)))[0] == 403
        closed.clear()
        closed.add("tools/call")
        told = await follow(house, handle)
        assert (told["status"], told["error"]["code"]) == ("failed", 40302)
        assert not house.forwarded
        held = next(one["request"] for one in reversed(house.policy.questions) if one["request"]["kind"] == "task")
        assert held["tasks"] == [{"id": handle, "tool": "pay", "approved": False, "held": True}]


async def test_a_scope_that_the_run_needs_is_asked_of_the_poll(tmp_path: Path) -> None:
    """The poll that can't start the call is told which scopes it takes; with them the next one does."""

    def judge(question: Mapping[str, Any]) -> Verdict:
        verdict = gated(question)
        if verdict.effect is Effect.ALLOW:
            return verdict
        return Verdict(Effect.APPROVE, ("pay:big",), ("large",), approval=verdict.approval, revision="r1")

    async with house_of_errands(tmp_path, judge) as house:
        reply = await house.serve(house.request(call(), scope="mcp:use pay:big"))
        handle = read(reply)["result"]["taskId"]
        await house.desk.act("approve", BOB, house.sink.of("refusal")[-1]["ticket"])
        status, error = await refused(house, about(handle))
        assert (status, error["code"], error["data"]["requiredScopes"]) == (403, 40301, ["pay:big"])
        assert not house.forwarded
        async with asyncio.timeout(10):
            while (await poll(house, handle, scope="mcp:use pay:big"))["status"] == "working":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert len(house.forwarded) == 1


async def test_a_servers_error_and_a_tools_error_end_the_task_as_what_they_are(tmp_path: Path) -> None:
    """A JSON-RPC error is `failed`; a result that says `isError` is `completed`."""
    answers = [
        {"error": {"code": -32602, "message": "no such account"}},
        {"result": {"content": [], "isError": True}},
    ]

    async def fails(exchange: Exchange) -> None:
        await exchange.send(http(200, orjson.dumps({"jsonrpc": "2.0", "id": exchange.id, **answers.pop(0)})))

    async with house_of_errands(tmp_path, script=fails) as house:
        for status, member in (("failed", "error"), ("completed", "result")):
            handle, ticket = await hold(house)
            await house.desk.act("approve", BOB, ticket)
            told = await follow(house, handle)
            assert (told["status"], member in told) == (status, True)
        assert told["result"]["isError"] is True


async def test_an_answer_in_a_stream_is_its_response_alone(tmp_path: Path) -> None:
    """Progress and log lines are for a connection that nobody holds; the result is kept."""

    async def streams(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD)
        progress = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
        await exchange.send(chunk(b"data: " + orjson.dumps(progress) + b"\n\n"))
        await exchange.send(chunk(b"data: " + result_of(exchange.id, **PAID) + b"\n\n") + b"0\r\n\r\n")

    async with house_of_errands(tmp_path, script=streams) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        assert (await follow(house, handle))["result"]["content"] == PAID["content"]


async def test_a_server_that_asks_for_input_asks_through_the_task(tmp_path: Path) -> None:
    """The same id asks, takes the answers leg by leg under keys of its own, and ends with the one result."""

    async def asks(exchange: Exchange) -> None:
        params = orjson.loads(exchange.seen.body)["params"]
        leg = int(params.get("requestState", "0"))
        if leg == 2:
            await pays(exchange)
            return
        told = {"resultType": "input_required", "inputRequests": {"q": QUESTION}, "requestState": str(leg + 1)}
        await exchange.send(http(200, orjson.dumps({"jsonrpc": "2.0", "id": exchange.id, "result": told})))

    async with house_of_errands(tmp_path, script=asks) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        keys = []
        for _ in range(2):
            told = await follow(house, handle)
            assert told["status"] == "input_required"
            (key,) = told["inputRequests"]
            assert told["inputRequests"][key] == QUESTION
            keys.append(key)
            foreign = {"made-up": {"action": "decline"}}
            await house.serve(house.request(about(handle, "tasks/update", inputResponses=foreign)))
            assert (await poll(house, handle))["status"] == "input_required"
            answers = {key: {"action": "accept", "content": {"n": 1}}}
            reply = await house.serve(house.request(about(handle, "tasks/update", inputResponses=answers)))
            assert read(reply)["result"] == {"resultType": "complete"}
            told = await follow(house, handle)
        assert told["status"] == "completed"
        assert len(set(keys)) == 2
        sent = [orjson.loads(raw)["params"] for raw in house.forwarded]
        assert [one.get("requestState") for one in sent] == [None, "1", "2"]
        assert sent[1]["inputResponses"] == {"q": {"action": "accept", "content": {"n": 1}}}
        assert [one["leg"] for one in house.sink.of("decision") if "leg" in one] == [1, 2]


async def test_a_question_is_told_only_to_a_client_that_can_answer_it(tmp_path: Path) -> None:
    """The poll must declare what it is asked for; until it does, the question waits."""

    async def asks(exchange: Exchange) -> None:
        told = {"resultType": "input_required", "inputRequests": {"q": QUESTION}}
        await exchange.send(http(200, orjson.dumps({"jsonrpc": "2.0", "id": exchange.id, "result": told})))

    async with house_of_errands(tmp_path, script=asks) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        assert (await follow(house, handle))["status"] == "input_required"
        key = "io.modelcontextprotocol/clientCapabilities"
        meta = {**CAPABLE, key: {"extensions": CAPABLE[key]["extensions"]}}
        status, error = await refused(house, message("tasks/get", params={"taskId": handle}, meta=meta))
        assert (status, error["code"]) == (400, -32021)
        assert error["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}


async def test_a_task_of_the_servers_own_goes_on_under_the_same_id(tmp_path: Path) -> None:
    """From then on its server is asked, by its own id; its owner reads one id from the first answer to the last."""
    state = {"taskId": "own", "status": "working", "createdAt": "c", "lastUpdatedAt": "u", "ttlMs": 60_000}

    async def makes(exchange: Exchange) -> None:
        method = orjson.loads(exchange.seen.body)["method"]
        done = {**state, "resultType": "complete", "status": "completed", "result": PAID}
        told = {"tools/call": {**state, "resultType": "task"}, "tasks/get": done}.get(method, {})
        await exchange.send(http(200, orjson.dumps({"jsonrpc": "2.0", "id": exchange.id, "result": told})))

    async with house_of_errands(tmp_path, script=makes) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        told = await follow(house, handle)
        assert (told["status"], told["result"]) == ("completed", PAID)
        assert [orjson.loads(raw)["method"] for raw in house.forwarded] == ["tools/call", "tasks/get"]
        assert orjson.loads(house.forwarded[-1])["params"]["taskId"] == "own"
        assert len({one["task"] for one in house.sink.records}) == 1


async def test_cancelling_withdraws_the_ticket(tmp_path: Path) -> None:
    """Nobody is asked any more, the task is `cancelled`, and the next call asks anew."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        reply = await house.serve(house.request(about(handle, "tasks/cancel")))
        assert read(reply)["result"] == {"resultType": "complete"}
        assert (await house.ticket(ticket))["state"] == "withdrawn"
        assert (await poll(house, handle))["status"] == "cancelled"
        assert (await house.serve(house.request(about(handle, "tasks/cancel")))).status == 200
        again, other = await hold(house)
        assert again != handle
        assert other != ticket


async def test_cancelling_what_runs_breaks_it_off_and_its_outcome_is_unknown(tmp_path: Path) -> None:
    """The server's request is closed; whether it ran, nobody can know, and it is not run again."""
    gone = asyncio.Event()

    async def never(exchange: Exchange) -> None:
        await exchange.gone()
        gone.set()

    async with house_of_errands(tmp_path, script=never) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        await poll(house, handle)
        await until(lambda: len(house.forwarded) == 1)
        await house.serve(house.request(about(handle, "tasks/cancel")))
        assert (await poll(house, handle))["status"] == "cancelled"
        async with asyncio.timeout(10):
            await gone.wait()
        await house.corridor.delivery.drain()
        assert house.moves[-1] == "unknown"
        assert (await poll(house, handle))["status"] == "cancelled"


async def test_a_server_that_could_not_be_reached_is_tried_again_at_the_next_poll(tmp_path: Path) -> None:
    """Not one byte left, so the use is given back, and the task waits on."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        real, failures = house.corridor.delivery.upstream.forward, [1]

        async def forward(admitted: Any) -> Any:
            if failures and failures.pop():
                raise UpstreamUnreachable("away", sent=False)
            return await real(admitted)

        house.corridor.delivery.upstream.forward = forward  # type: ignore[method-assign]
        assert (await poll(house, handle))["status"] == "working"
        assert "restore" in house.moves
        assert (await follow(house, handle))["status"] == "completed"
        assert len(house.forwarded) == 1


async def test_a_client_without_the_extension_gets_the_error_as_ever(tmp_path: Path) -> None:
    """Nobody is given a task who did not say that they can handle one."""
    async with house_of_errands(tmp_path) as house:
        status, answer = await house.call("pay", {})
        assert (status, answer["error"]["code"]) == (403, 40303)


async def test_beyond_the_bound_a_held_call_is_the_error(tmp_path: Path) -> None:
    """A requester has so many tasks and no more; their calls still wait for a person."""
    async with house_of_errands(tmp_path) as house:
        house.corridor.errands.shelf._per_subject = 2
        for amount in range(2):
            await hold(house, call(arguments={"amount": amount}))
        status, error = await refused(house, call(arguments={"amount": 3}))
        assert (status, error["code"]) == (403, 40303)
        assert error["data"]["ticket"]["state"] == "pending"


async def test_a_result_too_large_to_be_kept_is_told_as_such(tmp_path: Path) -> None:
    """The call ran, which is not hidden, and is not run again."""
    async with house_of_errands(tmp_path) as house:
        house.corridor.errands.runs.result_bytes = 16
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        told = await follow(house, handle)
        assert (told["status"], told["error"]["code"]) == ("failed", 50202)
        assert "ran" in told["error"]["message"]
        assert len(house.forwarded) == 1


async def test_what_is_kept_is_sealed_and_goes_with_its_time(tmp_path: Path) -> None:
    """Neither arguments nor result are in the database's file; after the task's time its id names nothing."""

    async def tells(exchange: Exchange) -> None:
        await exchange.send(http(200, result_of(exchange.id, content=[{"type": "text", "text": "planted-result"}])))

    async with house_of_errands(tmp_path, script=tells) as house:
        handle, ticket = await hold(house, call(arguments={"to": "planted-argument"}))
        await house.desk.act("approve", BOB, ticket)
        assert "planted-result" in str(await follow(house, handle))
        assert not [file for file in tmp_path.glob("desk.db*") if b"planted-" in file.read_bytes()]  # noqa: ASYNC240
        shelf = house.corridor.errands.shelf
        later = shelf.clock() + 100_000
        shelf.clock = lambda: later
        status, error = await refused(house, about(handle))
        assert (status, error["code"], error["message"]) == (400, -32602, "There is no such task.")
        assert await shelf.sweep() == 1


async def test_a_lease_that_lapsed_is_never_taken_up_again(tmp_path: Path) -> None:
    """What was begun and whose runner is gone fails as unknown; no poll runs it, and the row says why."""

    async def never(exchange: Exchange) -> None:
        await exchange.gone()

    async with house_of_errands(tmp_path, script=never) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        await poll(house, handle)
        await until(lambda: len(house.forwarded) == 1)
        await house.corridor.errands.shelf.reconcile("w")  # as the next worker of this name would
        told = await poll(house, handle)
        assert (told["status"], told["error"]["code"]) == ("failed", 40304)
        assert "unknown" in told["error"]["message"]
        await house.corridor.delivery.drain()
        assert await poll(house, handle) == told
        assert len(house.forwarded) == 1


async def test_a_subscription_names_held_calls_to_nobody(tmp_path: Path) -> None:
    """Their server does not know them: it is not told, and its acknowledgement is passed on as it is."""

    async def listens(exchange: Exchange) -> None:
        meta = {"io.modelcontextprotocol/subscriptionId": exchange.id}
        await exchange.send(http(200, result_of(exchange.id, _meta=meta)))

    async with house_of_errands(tmp_path, script=listens) as house:
        handle, _ = await hold(house)
        body = message("subscriptions/listen", params={"notifications": {"taskIds": [handle]}}, meta=CAPABLE)
        reply: Reply = await house.serve(house.request(body))
        assert reply.status == 200, reply.body
        assert orjson.loads(house.forwarded[-1])["params"]["notifications"]["taskIds"] == []


async def test_answers_that_need_an_approval_wait_for_it_within_the_task(tmp_path: Path) -> None:
    """A second ticket, the same task: once both are approved the leg runs, once."""

    async def asks(exchange: Exchange) -> None:
        params = orjson.loads(exchange.seen.body)["params"]
        if "inputResponses" in params:
            await pays(exchange)
            return
        told = {"resultType": "input_required", "inputRequests": {"q": QUESTION}}
        await exchange.send(http(200, orjson.dumps({"jsonrpc": "2.0", "id": exchange.id, "result": told})))

    def judge(question: Mapping[str, Any]) -> Verdict:
        return APPROVE if question["request"]["method"] == "tools/call" else ALLOW

    async with house_of_errands(tmp_path, judge, asks) as house:
        house.tools[0] = tool("pay")
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        told = await follow(house, handle)
        answers = {next(iter(told["inputRequests"])): {"action": "accept", "content": {}}}
        await house.serve(house.request(about(handle, "tasks/update", inputResponses=answers)))
        await until(lambda: house.moves.count("request") == 2)
        told = await poll(house, handle)
        assert told["status"] == "working"
        second = told["statusMessage"].rpartition("/")[2]
        assert second != ticket
        await house.desk.act("approve", BOB, second)
        assert (await follow(house, handle))["status"] == "completed"
        assert len(house.forwarded) == 2


async def test_an_approval_that_ends_while_its_call_begins_opens_no_further_ticket(tmp_path: Path) -> None:
    """Revoked after the poll saw the yes and before the run: `failed`, and nobody is asked anew for a lost cause."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        take = house.corridor.errands.shelf.take

        async def too_late(errand: Errand) -> Errand | None:
            await house.desk.act("revoke", BOB, ticket)
            return await take(errand)

        house.corridor.errands.shelf.take = too_late  # type: ignore[method-assign]
        told = await follow(house, handle)
        assert (told["status"], told["error"]["data"]["why"]) == ("failed", "revoked")
        assert house.moves.count("request") == 1
        assert not house.forwarded


async def test_a_tool_that_changed_is_asked_anew_and_the_task_names_the_new_ticket(tmp_path: Path) -> None:
    """The approval is revoked, as for any call; the task fails with what has to be approved now."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        house.tools[0] = tool("pay", description="another")
        house.later(60)
        told = await follow(house, handle)
        assert (told["status"], told["error"]["code"]) == ("failed", 40303)
        assert told["error"]["data"]["ticket"]["id"] != ticket
        assert (await house.ticket(ticket))["state"] == "revoked"
        assert not house.forwarded
