"""Tasks on the wire: whoever is not their owner reads the same bytes as whoever makes an id up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.contract.refusals import Refusal
from tests.rows.asking import Ask, tool, version_of
from tests.rows.proof import passes
from tests.rows.stage import House
from tests.rows.table import CAPABILITIES_KEY, TASK_REQUESTS
from tests.support.stack import body
from tests.support.upstream import Exchange, http

CAPABLE: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


def capable(message: dict[str, Any]) -> dict[str, Any]:
    """The same of a client that can handle tasks."""
    version_of(message)[CAPABILITIES_KEY] = CAPABLE
    return message


@pytest.fixture
def own_id(house: House) -> Iterator[str]:
    """What a careless server calls the task that it makes of a call; `check` finds it wherever it shows up."""
    planted = f"planted-task-{os.urandom(8).hex()}"
    house.secrets.add(planted.encode())
    state = {"taskId": planted, "status": "working", "createdAt": "c", "lastUpdatedAt": "u", "ttlMs": None}

    async def careless(exchange: Exchange) -> None:
        method = json.loads(exchange.seen.body)["method"]
        told = {"tools/call": {"resultType": "task", **state}, "tasks/get": state}.get(method, {})
        text = json.dumps({"jsonrpc": "2.0", "id": exchange.id, "result": told}).encode()
        await exchange.send(http(200, text))

    with house.behind["odd"][0].playing(careless):
        yield planted


@pytest.mark.provokes(Refusal.TASK_UNKNOWN)
@pytest.mark.parametrize("method", TASK_REQUESTS)
def test_a_foreign_task_is_no_task(house: House, own_id: str, method: str) -> None:
    """Another user's, another server's, another issuer's namesake's, the server's own id, a guess: the same bytes."""
    made = house.ask(house.good(capable(tool("read")), "odd"))
    handle = made.json()["result"]["taskId"]

    def about(task_id: str, server: str = "odd", token: str | None = None) -> Ask:
        params = {**TASK_REQUESTS[method], "taskId": task_id}
        return house.good(capable(body(method, params, 7)), server, token)

    passes(house, about(handle))
    assert json.loads(house.forwarded("odd")[-1].body)["params"]["taskId"] == own_id
    thefts = {
        "a guess": about("1"),
        "another user": about(handle, token=house.token("odd", "mallory")),
        "another server": about(handle, "plain"),
        "another server for another user": about(handle, "other", house.token("other", "mallory")),
        "another issuer": about(
            handle,
            "second",
            house.plant(house.second.mint(house.stack.endpoint("second"), sub="alice", scope="mcp:use")),
        ),
        "the server's id": about(f"{own_id[:-1]}x"),
        "cut": about(handle[:-1]),
    }
    before = len(house.forwarded())
    replies = {}
    for name, ask in thefts.items():
        answer = house.ask(ask)
        decision = answer.values("ostiary-decision")[0]
        assert answer.body.count(decision.encode()) == 1
        head = tuple((key, "" if key in ("ostiary-decision", "date") else value) for key, value in answer.headers)
        replies[name] = answer.status, head, answer.body.replace(decision.encode(), b"")
        record = house.await_records(decision, "refusal")[0]
        assert (record["reasons"][0], record["verdict"]) == ("task_unknown", "allow"), name
    assert replies["a guess"][0] == 400
    assert all(reply == replies["a guess"] for reply in replies.values()), replies
    assert len(house.forwarded()) == before, "a server was asked"
    passes(house, about(handle))
