"""What a refusal owes: one proof for every row, with its positive twin before it and a good request behind it."""

from __future__ import annotations

import json
from typing import Any, Final

from gateway.contract.refusals import Refusal
from tests.rows.asking import Ask
from tests.rows.stage import House
from tests.support.http_raw import Answer

BEFORE_POLICY: Final = frozenset(list(Refusal)[: list(Refusal).index(Refusal.CAPABILITY_MISSING)])
"""Refusals of rooms that come before the policy: it was not asked."""

NO_ID: Final = "no id"


def passes(house: House, ask: Ask | None = None) -> Answer:
    """A request that is good: served, by one server, once; recorded as a decision and an outcome."""
    ask = house.good() if ask is None else ask
    before = len(house.forwarded())
    answer = house.ask(ask)
    assert answer.status == 200, answer
    assert answer.json()["id"] == ask.message["id"]
    assert "result" in answer.json(), answer
    assert len(house.forwarded()) == before + 1
    return answer


def refused(
    house: House,
    ask: Ask,
    refusal: Refusal,
    *,
    twin: Ask | None = None,
    request_id: Any = 7,
    judged: bool = False,
    reasons: tuple[str, ...] = (),
    sent: int = 0,
) -> Answer:
    """Refused as the row says, and nothing else happened.

    `request_id` NO_ID: the reply names none. `judged`: a refusal that mostly comes before the policy came after it.
    `twin` is the request that differs only in what the row is about. `sent` is how many requests the servers see:
    0 but for what they themselves broke.
    """
    passes(house, twin)
    before, evaluations = len(house.forwarded()), house.evaluations()
    answer = house.ask(ask)
    row = refusal.value

    # The caller is told so much, and no more.
    assert (answer.status, answer.json()["error"]["code"]) == (row.status, row.code), answer
    reply = answer.json()
    assert reply.keys() <= {"jsonrpc", "id", "error"}
    assert reply.get("id", NO_ID) == request_id, reply
    decision = answer.values("ostiary-decision")[0]
    if refusal is not Refusal.VERSION_UNSUPPORTED:
        assert reply["error"]["data"]["decisionId"] == decision
    assert bool(answer.values("retry-after")) == bool(row.retry_after_s)
    assert bool(answer.values("www-authenticate")) == (row.challenge is not None)
    assert answer.values("content-type") == ["application/json"]

    # Nobody behind the refusing room was asked.
    assert len(house.forwarded()) == before + sent
    if refusal in BEFORE_POLICY:
        assert house.evaluations() == evaluations + judged

    # The next good request works; its decision is durable behind the refusal's record, so all there is is there now.
    passes(house, twin if ask.verb == b"POST" else None)
    records = house.records_of(decision)
    if sent:
        records = house.await_records(decision, "decision", "outcome")
        assert records[1]["reasons"] == [refusal.reason]
    else:
        assert [record["kind"] for record in records] == ["refusal"], records
        assert records[0]["reasons"][: 1 + len(reasons)] == [refusal.reason, *reasons]
        assert (records[0]["status"], records[0]["code"]) == (row.status, row.code)
        assert records[0]["count"] == 1
    assert not house.planted_in(house.metrics().encode())
    return answer


def detail(house: House, answer: Answer) -> str:
    """What the record says of a refusal, for who must tell two causes of one row apart."""
    return json.dumps(house.records_of(answer.values("ostiary-decision")[0]))
