"""Held calls under attack: states and ids where they do not belong, storms, oversized answers, what is left."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.contract.asking import message
from tests.pipeline.house import SERVER
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
