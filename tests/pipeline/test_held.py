"""Held calls under attack: states and ids where they do not belong, storms, oversized answers, what is left."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.contract.asking import message
from tests.pipeline.house import APPROVE, SERVER, inner_house, until
from tests.pipeline.test_elicitation import OPENS, ask, back, sent_to_a_page
from tests.pipeline.test_errands import (
    PAID,
    QUESTION,
    follow,
    hold,
    house_of_errands,
    pays,
    poll,
    refused,
)
from tests.pipeline.test_tasks import CAPABLE, about, call, read
from tests.support.approvals import BOB
from tests.support.upstream import Exchange, http

DECLARED = "io.modelcontextprotocol/clientCapabilities"
BOTH: dict[str, Any] = {
    **CAPABLE,
    DECLARED: {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {"form": {}, "url": {}}},
}
"""What a client declares that can open pages and follow tasks."""


def asking(**question: Any) -> Any:
    """A server that asks before it pays."""

    async def asks(exchange: Exchange) -> None:
        if "inputResponses" in orjson.loads(exchange.seen.body)["params"]:
            await pays(exchange)
            return
        told = {"resultType": "input_required", "inputRequests": {"q": QUESTION}, **question}
        await exchange.send(http(200, orjson.dumps({"jsonrpc": "2.0", "id": exchange.id, "result": told})))

    return asks


async def test_a_run_that_is_held_anew_is_told_as_the_error_whatever_the_setting_is_by_then(tmp_path: Path) -> None:
    """Nobody stands at a run to open a page: its task fails with 40303 and is never `completed` with a question."""
    async with house_of_errands(tmp_path) as house:
        by_task, by_page = replace(SERVER, challenge="task"), replace(SERVER, challenge="elicitation")
        body = message(params={"name": "pay", "arguments": {}}, meta=BOTH)
        held = read(await house.serve(house.request(body, by_task)))["result"]
        assert held["resultType"] == "task"
        await house.desk.act("approve", BOB, house.sink.of("refusal")[-1]["ticket"])
        house.tools[0] = {**house.tools[0], "description": "another"}
        house.later(60)
        async with asyncio.timeout(10):
            while True:
                told = read(await house.serve(house.request(about(held["taskId"]), by_page)))["result"]
                if told["status"] != "working":
                    break
        assert (told["status"], told["error"]["code"]) == ("failed", 40303), told
        assert house.moves.count("request") == 2
        assert not house.forwarded


@pytest.mark.parametrize("kind", ["result", "error", "question"])
async def test_whatever_comes_back_is_kept_up_to_the_bound_and_no_further(tmp_path: Path, kind: str) -> None:
    """`held_result_bytes` bounds errors and questions like results: the task fails and says what became of it."""
    long = "x" * 40_000
    asks = {"mode": "form", "message": long, "requestedSchema": {"type": "object", "properties": {}}}
    answers: dict[str, dict[str, Any]] = {
        "result": {"result": {"content": [{"type": "text", "text": long}]}},
        "error": {"error": {"code": -32000, "message": long}},
        "question": {
            "result": {
                "resultType": "input_required",
                "inputRequests": {"q": {"method": "elicitation/create", "params": asks}},
            }
        },
    }

    async def answers_long(exchange: Exchange) -> None:
        await exchange.send(http(200, orjson.dumps({"jsonrpc": "2.0", "id": exchange.id, **answers[kind]})))

    async with house_of_errands(tmp_path, script=answers_long) as house:
        for bound, ends in (
            (80_000, {"result": "completed", "error": "failed", "question": "input_required"}[kind]),
            (20_000, "failed"),
        ):
            house.corridor.errands.runs.result_bytes = bound
            handle, ticket = await hold(house, call(arguments={"bound": bound}))
            await house.desk.act("approve", BOB, ticket)
            told = await follow(house, handle)
            assert told["status"] == ends
            assert (long in str(told)) == (bound == 80_000)
        assert (told["error"]["code"], "too large" in told["error"]["message"]) == (50202, True)
        assert len(house.forwarded) == 2


async def test_only_the_client_that_made_the_call_answers_its_questions(tmp_path: Path) -> None:
    """What another client of the same user answers is refused, and reaches no server; the question stays open."""
    async with house_of_errands(tmp_path, script=asking()) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        asked = await follow(house, handle)
        answers = {next(iter(asked["inputRequests"])): {"action": "accept", "content": {"n": 1}}}
        update = about(handle, "tasks/update", inputResponses=answers)
        status, error = await refused(house, update, client_id="another")
        assert (status, error["code"]) == (403, 40304)
        assert (await poll(house, handle))["inputRequests"] == asked["inputRequests"]
        assert len(house.forwarded) == 1
        assert read(await house.serve(house.request(update)))["result"] == {"resultType": "complete"}
        assert (await follow(house, handle))["result"]["content"] == PAID["content"]
        assert len(house.forwarded) == 2


async def test_states_and_ids_of_one_kind_open_nothing_of_another(tmp_path: Path) -> None:
    """A task's id is no state and a state no id, of whichever seal; the ticket's id is neither: each is refused."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        _, state = await sent_to_a_page(house, ask(house, arguments={"amount": 2}))
        for text in (handle, ticket, f"{state}A", state[:-1], state.swapcase()):
            status, error = await refused(house, call_with(text))
            assert (status, error["code"]) == (400, -32602), text
        for text in (state, ticket, f"{handle}=", f"{handle}A", handle[:-1], handle.swapcase(), f" {handle}"):
            for method in ("tasks/get", "tasks/cancel"):
                status, error = await refused(house, about(text, method))
                assert (status, error["code"]) in {(400, -32602), (400, -32020)}, text
        assert (await house.ticket(ticket))["state"] == "pending"
        assert (await poll(house, handle))["status"] == "working"
        assert not house.forwarded


def call_with(state: str) -> dict[str, Any]:
    """The call of `ask`, with something as its state."""
    return message(id="x", meta=OPENS, params={"name": "pay", "arguments": {"amount": 2}, "requestState": state})


@pytest.mark.parametrize("order", list(itertools.permutations(("task", "page", "repeat"))))
async def test_a_task_a_kept_retry_and_a_repetition_share_one_use(tmp_path: Path, order: tuple[str, ...]) -> None:
    """Whichever comes first runs the call; the others are told so; one ticket, one request, one execution."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house, call(arguments={"amount": 1}))
        body = message(id="x", meta=OPENS, params={"name": "pay", "arguments": {"amount": 1}})
        same, state = await sent_to_a_page(house, house.request(body))
        assert same == ticket, "the way in which a client is told binds nothing"
        await house.desk.act("approve", BOB, ticket)
        ways = {
            "task": lambda: house.request(about(handle)),
            "page": lambda: back(house, state),
            "repeat": lambda: house.request(message(params={"name": "pay", "arguments": {"amount": 1}})),
        }
        replies = await asyncio.gather(*(house.serve(ways[one]()) for one in order for _ in range(4)))
        assert {reply.status for reply in replies} <= {200, 403}
        told = await follow(house, handle)
        assert (told["status"] == "completed") or told["error"]["data"]["why"] == "used", told
        assert len(house.forwarded) == 1
        assert (house.moves.count("claim"), house.moves.count("request"), house.moves.count("executed")) == (1, 1, 1)
        late = [await house.serve(ways[one]()) for one in ("page", "task")]
        assert [reply.status for reply in late] == [403, 200]
        assert len(house.forwarded) == 1
        decided = [one for one in house.sink.of("decision") if one["ticket"] == ticket]
        ended = [one for one in house.sink.of("outcome") if one["decision_id"] == decided[0]["decision_id"]]
        assert (len(decided), len(ended)) == (1, 1), "one decision and its one outcome"
        ids = [one["decision_id"] for one in house.sink.of("refusal")]
        assert len(ids) == len(set(ids)), "one record a refusal"


async def test_a_storm_of_polls_at_the_moment_of_the_yes_runs_it_once(tmp_path: Path) -> None:
    """100 polls and a person's yes among them: one execution, each poll answered and recorded once."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        before = len(house.sink.of("outcome"))
        polls = [asyncio.create_task(house.serve(house.request(about(handle)))) for _ in range(50)]
        yes = asyncio.create_task(house.desk.act("approve", BOB, ticket))
        polls += [asyncio.create_task(house.serve(house.request(about(handle)))) for _ in range(50)]
        replies = await asyncio.gather(*polls)
        await yes
        assert {reply.status for reply in replies} == {200}
        assert (await follow(house, handle))["status"] == "completed"
        assert len(house.forwarded) == 1
        of_polls = [one for one in house.sink.of("outcome")[before:] if one["method"] == "tasks/get"]
        assert len({one["decision_id"] for one in of_polls}) == len(of_polls) >= 100


@pytest.mark.parametrize("gone_at", range(0, 60, 3))
async def test_a_poller_that_leaves_at_any_step_loses_nothing(tmp_path: Path, gone_at: int) -> None:
    """Cancelled after any number of turns of the loop: the call runs once, the next poll has its result."""
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        polling = asyncio.create_task(house.serve(house.request(about(handle))))
        for _ in range(gone_at):
            await asyncio.sleep(0)
        polling.cancel()
        await asyncio.wait({polling})
        assert (await follow(house, handle))["status"] == "completed"
        await house.corridor.delivery.drain()
        assert len(house.forwarded) == 1
        assert (house.moves.count("claim"), house.moves.count("executed")) == (1, 1)
        assert not house.corridor.errands.runs.going
        assert house.corridor.in_flight == 0


@pytest.mark.parametrize("cancelled_at", range(0, 90, 5))
async def test_a_cancel_at_any_step_of_the_run_leaves_one_end(tmp_path: Path, cancelled_at: int) -> None:
    """Cancelled or completed, and what is told agrees with what ran; at most one execution, whatever follows.

    Between the ticket's withdrawal and the task's end a poll may be the one to end it: failed, because revoked.
    """
    async with house_of_errands(tmp_path) as house:
        handle, ticket = await hold(house)
        await house.desk.act("approve", BOB, ticket)
        polling = asyncio.create_task(house.serve(house.request(about(handle))))
        for _ in range(cancelled_at):
            await asyncio.sleep(0.0005)
        assert (await house.serve(house.request(about(handle, "tasks/cancel")))).status == 200
        assert (await polling).status == 200
        told = await follow(house, handle)
        await house.corridor.delivery.drain()
        if told["status"] == "failed":
            assert (told["error"]["data"]["why"], house.forwarded) == ("revoked", [])
        else:
            assert told["status"] in {"cancelled", "completed"}
        assert await follow(house, handle) == told
        assert len(house.forwarded) <= 1
        assert told["status"] != "completed" or len(house.forwarded) == 1
        runs = [run["state"] for run in (await house.ticket(ticket))["runs"]]
        assert set(runs) <= {"executed", "unknown", "failed"}
        assert not house.corridor.errands.runs.going


async def test_two_thousand_holds_that_are_dropped_leave_nothing(tmp_path: Path) -> None:
    """Opened and given up in crowds: no place, no waiter, no task of the loop, no request in flight is left."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        _, state = await sent_to_a_page(house)
        house.corridor.holding.per_subject = 250
        tasks_before = len(asyncio.all_tasks())
        request = back(house, state)
        for _ in range(8):
            crowd = [asyncio.create_task(house.serve(request)) for _ in range(250)]
            await until(lambda: house.corridor.holding.waiting == 250, 20)
            for one in crowd:
                one.cancel()
            await asyncio.wait(crowd)
        await until(lambda: len(asyncio.all_tasks()) <= tasks_before, 20)
        assert (house.corridor.holding.waiting, house.corridor.in_flight, len(house.desk._watch)) == (0, 0, 0)
        assert not house.corridor.holding._places
        gone = [one for one in house.sink.of("refusal") if one["reasons"][0] == "client_gone"]
        assert len({one["decision_id"] for one in gone}) == len(gone) == 2000
