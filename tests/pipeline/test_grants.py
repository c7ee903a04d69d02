"""A call under a grant, through the whole corridor: what is asked, what is sent, and what is not covered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from approvals.approvers import Person
from approvals.ticket import Unapprovable
from gateway.contract.refusals import Refusal, Refused
from gateway.foresight import Foresight
from gateway.grants import KEPT_BYTES, Grants
from policies.verdict import ApprovalTerms, Effect, PolicyUnavailable, Verdict
from tests.contract.asking import message
from tests.pipeline.house import ALLOW, APPROVE, DENY, SERVER, InnerHouse, inner_house
from tests.pipeline.test_legs import ELICITS, YES, Asker
from tests.support.approvals import BOB, ISSUER, SCOPES

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "number", "maximum": 100}, "s": {"type": "string"}, "at": {"format": "date"}},
}
BOUNDS: dict[str, Any] = {"properties": {"n": {"maximum": 50}}}
TERMS = ApprovalTerms(uses=3, approvers=("group:payers",), grant=BOUNDS)
GRANT = Verdict(Effect.APPROVE, reasons=("grant",), approval=TERMS, revision="r1")


def judge(question: Mapping[str, Any]) -> Verdict:
    """Holds every call, and gives grants."""
    return GRANT if "grant" in question["request"] else APPROVE


def alice(client: str = "cid") -> Person:
    """Whoever calls, at the counter, with the token of the same program."""
    return Person(ISSUER, "alice", client, SCOPES, frozenset(), {})


async def grant(house: InnerHouse, schema: Mapping[str, Any] = SCHEMA, **more: Any) -> str:
    """An approved grant of `pay`."""
    person = alice()
    foresight = Foresight(house.corridor, {SERVER.path: SERVER})
    effect, terms, reasons, mask = await foresight.plan(person, "main", "tools/call", "pay", {}, vary=schema)
    shown, opened = await house.desk.request(person, effect, terms, reasons=reasons, mask=mask, **more)
    assert opened
    await house.desk.act("approve", BOB, shown["id"])
    return str(shown["id"])


async def pay(house: InnerHouse, arguments: Mapping[str, Any], **more: Any) -> tuple[int, dict[str, Any]]:
    """A call of alice's, by her program."""
    asked = house.ask("pay", arguments, **more)
    body = orjson.loads(asked.raw)
    reply = await house.serve(house.request(body, client_id="cid"))
    return reply.status, orjson.loads(reply.body)


async def test_calls_within_the_schema_run_and_are_sent_as_judged(tmp_path: Path) -> None:
    """Each consumes one use, goes out in the canonical text, and was judged itself, alone and under the grant."""
    async with inner_house(tmp_path, judge) as house:
        ticket = await grant(house)
        house.policy.questions.clear()
        for arguments in ({"s": "b", "n": 1.0}, {"n": 50}, {"at": "2026-07-28", "n": 7}):
            status, body = await pay(house, arguments)
            assert status == 200, body
        sent = [orjson.loads(one)["params"]["arguments"] for one in house.forwarded]
        assert sent == [{"n": 1, "s": "b"}, {"n": 50}, {"at": "2026-07-28", "n": 7}]
        assert b'"arguments":{"n":1,"s":"b"}' in house.forwarded[0]
        asked = [(one["request"]["arguments"], one["request"].get("grant")) for one in house.policy.questions]
        assert asked[:2] == [({"s": "b", "n": 1.0}, None), ({"s": "b", "n": 1.0}, {"schema": SCHEMA})]
        shown = await house.ticket(ticket)
        assert (shown["state"], shown["uses_left"]) == ("used", 0)
        assert [one["ticket"] for one in house.sink.of("decision")] == [ticket] * 3
        assert (await pay(house, {"n": 2}))[0] == 403


@pytest.mark.parametrize(
    "arguments",
    [{"n": 51}, {"n": 101}, {"n": "1"}, {"x": 1}, {"n": 1, "x": 1}, {"at": "28.7.2026"}, {"s": None},
     {"s": "x" * 200_000, "n": 1, "y": 1}],
)  # fmt: skip
async def test_calls_outside_of_it_are_held(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """Beyond the schema, the bounds or a format, or with what neither names: nothing runs, no use is gone."""
    async with inner_house(tmp_path, judge) as house:
        ticket = await grant(house)
        status, body = await pay(house, arguments)
        assert (status, body["error"]["code"]) == (403, 40303)
        assert body["error"]["data"]["ticket"]["id"] != ticket
        assert not house.forwarded
        assert (await house.ticket(ticket))["uses_left"] == 3


@pytest.mark.parametrize("when", ["denied", "no_grants", "tighter", "scopes", "broken"])
async def test_the_policy_of_this_moment_overrides(tmp_path: Path, when: str) -> None:
    """A deny of the call, grants that are given no more, tighter bounds, a scope that is missing: nothing runs."""
    today = {"now": ""}
    answers: dict[str, Verdict] = {
        "no_grants": APPROVE,
        "tighter": replace(GRANT, approval=replace(TERMS, grant={"properties": {"n": {"maximum": 1}}})),
        "scopes": replace(GRANT, scopes=("grants:use",)),
        "broken": replace(GRANT, approval=replace(TERMS, grant={"type": "no such type"})),
    }

    def judge_today(question: Mapping[str, Any]) -> Verdict:
        if today["now"] == "denied" and "grant" not in question["request"]:
            return DENY
        return answers.get(today["now"], GRANT) if "grant" in question["request"] else APPROVE

    async with inner_house(tmp_path, judge_today) as house:
        ticket = await grant(house)
        today["now"] = when
        status, body = await pay(house, {"n": 2})
        assert (status, body["error"]["code"]) == (403, 40302 if when == "denied" else 40303)
        assert not house.forwarded
        today["now"] = ""
        assert (await house.ticket(ticket))["uses_left"] == 3
        status, _ = await pay(house, {"n": 3})
        assert status == 200


async def test_a_call_that_is_allowed_uses_no_grant(tmp_path: Path) -> None:
    """Where the policy lets the call through, no use is spent."""
    allowed = {"now": False}
    async with inner_house(tmp_path, lambda q: ALLOW if allowed["now"] else judge(q)) as house:
        ticket = await grant(house)
        allowed["now"] = True
        assert (await pay(house, {"n": 2}))[0] == 200
        assert (await house.ticket(ticket))["uses_left"] == 3


async def test_meta_of_the_callers_own_is_not_covered(tmp_path: Path) -> None:
    """What an approval would bind besides the arguments, nobody saw: such a call waits for its own."""
    async with inner_house(tmp_path, judge) as house:
        ticket = await grant(house)
        body = orjson.loads(house.ask("pay", {"n": 2}).raw)
        body["params"]["_meta"]["example.com/batch"] = "7"
        reply = await house.serve(house.request(body, client_id="cid"))
        assert orjson.loads(reply.body)["error"]["code"] == 40303
        assert (await house.ticket(ticket))["uses_left"] == 3


async def test_what_a_server_asks_back_is_not_covered(tmp_path: Path) -> None:
    """A call under a grant that is answered with a question used its use up; the answers need a yes of their own."""

    asker = Asker()
    async with inner_house(tmp_path, judge) as house:
        ticket = await grant(house)
        house.script = asker
        status, body = await pay(house, {"n": 2}, meta=ELICITS)
        assert status == 200, body
        assert body["result"]["resultType"] == "input_required"
        shown = await house.ticket(ticket)
        assert (shown["uses_left"], [one["state"] for one in shown["runs"]]) == (2, ["executed"])
        again = message(
            meta=ELICITS,
            params={
                "name": "pay",
                "arguments": {"n": 2},
                "requestState": body["result"]["requestState"],
                "inputResponses": YES,
            },
        )
        reply = await house.serve(house.request(again, client_id="cid"))
        held = orjson.loads(reply.body)["error"]
        assert held["code"] == 40303
        assert held["data"]["ticket"]["id"] != ticket
        await house.desk.act("approve", BOB, held["data"]["ticket"]["id"])
        assert (await house.serve(house.request(again, client_id="cid"))).status == 200


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no such type"}, {"properties": {"s": {"format": "iban"}}}, {"$ref": "https://evil.example/schema"},
        {"$schema": "https://evil.example/meta"}, {"description": "x" * 20_000}, {"$ref": "#/$defs/absent"},
        {"properties": {"s": {"pattern": "("}}},
        {"properties": {f"p{number}": {"pattern": "[^a]{1040}"} for number in range(8)}},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    ],
)  # fmt: skip
async def test_a_schema_that_can_not_be_held_to_is_refused(tmp_path: Path, schema: dict[str, Any]) -> None:
    """No network, no unknown format, nothing endless: 400 when it is asked for, before anybody is asked."""
    async with inner_house(tmp_path, judge) as house:
        foresight = Foresight(house.corridor, {SERVER.path: SERVER})
        with pytest.raises(Refused) as caught:
            await foresight.plan(alice(), "main", "tools/call", "pay", {}, vary=schema)
        assert caught.value.refusal is Refusal.PARAMS_INVALID
        assert not house.policy.questions
        assert await grant(house)


@pytest.mark.parametrize(
    ("verdict", "error"),
    [
        (ALLOW, Unapprovable),
        (APPROVE, Unapprovable),
        (DENY, Refused),
        (replace(GRANT, approval=replace(TERMS, grant={"type": 7})), PolicyUnavailable),
    ],
)
async def test_a_grant_needs_the_policys_word(tmp_path: Path, verdict: Verdict, error: type[Exception]) -> None:
    """Only `approve` with bounds gives one: an ordinary approval, an allow, a deny, bounds that are none do not."""
    async with inner_house(tmp_path, lambda _: verdict) as house:
        foresight = Foresight(house.corridor, {SERVER.path: SERVER})
        with pytest.raises(error):
            await foresight.plan(alice(), "main", "tools/call", "pay", {}, vary=SCHEMA)
        house.policy.judge_by = judge
        assert await grant(house)


async def test_no_grant_of_a_tool_that_is_not_there(tmp_path: Path) -> None:
    """A tool that its server does not offer is refused like a denied one."""
    async with inner_house(tmp_path, judge) as house:
        foresight = Foresight(house.corridor, {SERVER.path: SERVER})
        with pytest.raises(Refused) as caught:
            await foresight.plan(alice(), "main", "tools/call", "absent", {}, vary=SCHEMA)
        assert caught.value.refusal is Refusal.POLICY_DENIED


async def test_a_changed_tool_ends_its_grants(tmp_path: Path) -> None:
    """APR-10, for grants: another definition needs another yes."""
    async with inner_house(tmp_path, judge) as house:
        ticket = await grant(house)
        house.tools[0] = {**house.tools[0], "description": "pays twice"}
        house.later(60)
        status, _ = await pay(house, {"n": 2})
        assert status == 403
        assert (await house.ticket(ticket))["state"] == "revoked"
        assert not house.forwarded


async def test_what_is_compiled_is_bounded_by_what_it_takes() -> None:
    """Whoever may ask for grants fills no memory with schemas: of small texts with large patterns few are kept."""
    grants = Grants()
    for number in range(40):
        pattern = f"[^a]{{{1000 + number}}}"
        contract = await grants.contract({"properties": {"s": {"pattern": pattern}}}, closed=True)
        assert contract.weight > 1 << 20  # what such a pattern can take
        assert contract is await grants.contract({"properties": {"s": {"pattern": pattern}}}, closed=True)
    assert sum(one.weight for one in grants._compiled.values()) == grants._weight <= KEPT_BYTES
    assert len(grants._compiled) > 3
    await asyncio.gather(*[grants.contract({"maximum": 1}, closed=False) for _ in range(9)])
    assert sum(one.weight for one in grants._compiled.values()) == grants._weight
