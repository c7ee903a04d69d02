"""Requests and answers with anything in the place of anything: one end each, no defect, a record that verifies."""

from __future__ import annotations

import copy
import random
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.contract.chain import ZERO, Chain, chain
from tests.contract.asking import message
from tests.pipeline.house import ALLOW, APPROVE, DENY, Asked, InnerHouse, inner_house
from tests.support.upstream import SSE_HEAD, Exchange, chunk, http

STRANGE: list[Any] = [
    None, True, 0, -1, 2**63, 2**64 - 1, 1.5, 1e300, "", "x", "\u2028", "=?base64?eA==?=", [], {}, [1], {"a": 1},
    "é\U0001f600", "\0", "a" * 300, {"\ue000": 1, "\U00010000": 2},
]  # fmt: skip
NAMES = ["x", "requestState", "inputResponses", "taskId", "_meta", "cursor", "traceparent", "Method", "\ue000"]
REQUESTS: dict[str, dict[str, Any]] = {
    "tools/call": {"name": "pay", "arguments": {"a": [1, {"b": 2}]}},
    "prompts/get": {"name": "p", "arguments": {}},
    "resources/read": {"uri": "u://x"},
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": "b"}},
    "subscriptions/listen": {"notifications": {"resourceSubscriptions": ["u"]}},
    "server/discover": {},
    "tools/list": {},
    "prompts/list": {},
}
FORM = {"method": "elicitation/create", "params": {"mode": "form"}}
ANSWERS: list[dict[str, Any]] = [
    {"result": {"resultType": "complete", "tools": [{"name": "pay"}], "prompts": [], "cacheScope": "public"}},
    {"result": {"resultType": "input_required", "requestState": "s", "inputRequests": {"a": FORM}}},
    {"error": {"code": -32000, "message": "m", "data": {}}},
]
PROGRESS = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}


def mutate(dice: random.Random, value: Any, share: float = 0.15) -> Any:
    """The value with some of its parts replaced, left out or joined by others."""
    if dice.random() < share:
        return copy.deepcopy(dice.choice(STRANGE))
    if isinstance(value, list):
        return [mutate(dice, item, share) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {name: mutate(dice, item, share) for name, item in value.items() if dice.random() > share / 3}
    if dice.random() < share:
        changed[dice.choice(NAMES)] = copy.deepcopy(dice.choice(STRANGE))
    return changed


async def answer_anything(dice: random.Random, exchange: Exchange) -> None:
    """Whole or as a stream, nearly right."""
    if exchange.id is None:
        await exchange.send(http(202, kind=""))
        return
    text = orjson.dumps(mutate(dice, {"jsonrpc": "2.0", "id": exchange.id, **dice.choice(ANSWERS)}, 0.05))
    if dice.random() < 0.5:
        await exchange.send(http(dice.choice([200, 200, 200, 400, 500, 302]), text))
        return
    before = orjson.dumps(mutate(dice, PROGRESS, 0.05))
    events = [b"data: " + event + b"\n\n" for event in (before, text) if event is text or dice.random() < 0.5]
    await exchange.send(SSE_HEAD + b"".join(map(chunk, events)) + chunk(b""))


async def serve(house: InnerHouse, asked: Asked) -> int:
    """Walk it to the end of its answer -> status."""
    reply = await house.serve(asked)
    if reply.chunks is not None:
        async for piece in reply.chunks:
            assert piece.endswith(b"\n\n"), "a piece of an event left"
    return reply.status


@pytest.mark.parametrize("seed", range(3))
async def test_every_request_ends_once(tmp_path: Path, seed: int) -> None:
    """Refused, or decided and ended: never both, never neither, never a defect; and the whole chain verifies."""
    dice = random.Random(seed)
    async with inner_house(tmp_path, lambda _: dice.choice([ALLOW, ALLOW, DENY, APPROVE])) as house:
        house.script = lambda exchange: answer_anything(dice, exchange)
        statuses: Counter[int] = Counter()
        for _ in range(300):
            method, params = dice.choice(list(REQUESTS.items()))
            body = message(method, params=params)
            asked = house.request(body)
            if dice.random() < 0.5:
                asked = Asked(asked.received, orjson.dumps(mutate(dice, body)))
            statuses[await serve(house, asked)] += 1
        assert statuses.keys() >= {200, 400, 403, 502}, "some kind of end was never reached"
        assert house.watcher.defects == []
        ends = {
            kind: [one["decision_id"] for one in house.sink.of(kind)] for kind in ("decision", "outcome", "refusal")
        }
        assert sorted(ends["decision"]) == sorted(ends["outcome"])
        assert len({*ends["decision"], *ends["refusal"]}) == len(ends["decision"]) + len(ends["refusal"]) == 300
        assert house.watcher.ends == 300
        verifier, head = Chain(0), ZERO
        for number, record in enumerate(house.sink.records, 1):
            linked = {**record, "seq": number, "prev": head, "writer": 0, "time": "2026-11-30T00:00:00.000Z"}
            head, line = chain(head, linked)
            assert verifier.read(line) is not None, verifier.fault
