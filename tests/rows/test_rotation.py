"""Keys rotate under what callers hold of open conversations: states, tasks, sessions; one process after the other."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from typing import Any

import pytest

from tests.rows.conftest import furnish, opened, served, settings_of
from tests.rows.stage import House, Server, Stage, listed
from tests.rows.test_legacy import begin, older, plain
from tests.rows.test_tasks import capable
from tests.rows.test_upstream import ASKED, DONE, eliciting, rpc
from tests.support.stack import Stack, body
from tests.support.upstream import Exchange, http

DATA = {"tools": {"read": {"effect": "read"}, "long": {"effect": "read"}}}
TASK = {"taskId": "own", "status": "working", "createdAt": "c", "lastUpdatedAt": "u", "ttlMs": None}


async def server(exchange: Exchange) -> None:
    """Ask first, make a task of what takes long, and tell of it."""
    message = json.loads(exchange.seen.body)
    params = message["params"]
    told: dict[str, Any]
    if message["method"] == "tasks/get":
        told = TASK if params["taskId"] == "own" else {}
    elif params["name"] == "long":
        told = {"resultType": "task", **TASK}
    else:
        told = DONE if params.get("requestState") == ASKED["requestState"] else ASKED
    await exchange.send(http(200, json.dumps(rpc(exchange.id, result=told)).encode()))


@dataclass(frozen=True)
class Holding:
    """What a caller has in hand."""

    state: str
    task: str
    session: str


def hold(house: House) -> Holding:
    """A question that waits for its answer, a task at work, and a session of an older client."""
    asked = house.ask(house.good(eliciting())).json()["result"]
    made = house.ask(house.good(capable(body("tools/call", {"name": "long", "arguments": {}}, 7)))).json()["result"]
    return Holding(asked["requestState"], made["taskId"], begin(house))


def told(house: House, holding: Holding) -> list[tuple[int, int]]:
    """What comes of going on with each: HTTP status and error code (0: a result)."""
    answer = {"name": {"action": "accept", "content": {}}}
    asks = [
        house.good(eliciting(requestState=holding.state, inputResponses=answer)),
        house.good(capable(body("tasks/get", {"taskId": holding.task}, 7))),
        older(house, plain("tools/list"), session=holding.session),
    ]
    found = [house.ask(ask) for ask in asks]
    return [(one.status, one.json().get("error", {}).get("code", 0)) for one in found]


def test_keys_rotate_without_breaking_open_conversations(
    stage: Stage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The first key seals, all open; with its key goes what it sealed, and no server hears of that."""
    first, second = (base64.urlsafe_b64encode(os.urandom(32)).decode() for _ in range(2))
    tools = listed(read={}, long={})
    behind = {"plain": [Server(tools, script=server)], "old": [Server(tools)]}
    stack = Stack(tmp_path_factory.mktemp("rotation"), {}, data=DATA)
    held: dict[str, Holding] = {}
    with opened(stage, (one for replicas in behind.values() for one in replicas)):
        furnish(stack, settings_of(behind, old={"legacy_clients": True}))
        house = House(stage, stack, behind)
        with house.http:
            for keys in (first, f"{second},{first}", second):
                stack.secrets["OSTIARY_SEAL_KEYS"] = keys
                with served(stage, stack):
                    held[keys] = hold(house)
                    lost = keys == second
                    for sealed_under, holding in held.items():
                        before = len(house.forwarded())
                        if lost and sealed_under == first:
                            assert told(house, holding) == [(400, -32602), (400, -32602), (404, -32600)]
                            assert len(house.forwarded()) == before
                        else:
                            assert told(house, holding) == [(200, 0)] * 3
                            assert len(house.forwarded()) == before + 3
