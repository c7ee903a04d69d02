"""Which definition of a tool a decision rests on, and what its time tells (contract.md section 4; APR-10, AZ-05)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.contract.fingerprint import digest_definition
from gateway.foresight import Foresight
from policies.verdict import Verdict
from tests.contract.asking import message
from tests.pipeline.house import ALLOW, APPROVE, DENY, SERVER, inner_house, tool, until
from tests.support.approvals import BOB, person
from tests.support.upstream import Exchange, http, result_of


def open_pay(question: Mapping[str, Any]) -> Verdict:
    """`pay` is for everybody, everything else for nobody."""
    return ALLOW if question["request"]["name"] == "pay" else DENY


def told(body: bytes) -> Any:
    """A refusal without what differs in every reply."""
    error = orjson.loads(body)["error"]
    assert error["data"].pop("decisionId")
    return error


async def test_an_allowed_call_waits_for_no_listing_but_the_first(tmp_path: Path) -> None:
    """A fresh snapshot is enough for whom the policy allows the call."""
    async with inner_house(tmp_path, open_pay) as house:
        for _ in range(3):
            assert (await house.call())[0] == 200
            house.later(15)
        assert house.listings == 1


@pytest.mark.parametrize("age_s", [0, 6])
async def test_a_hidden_tool_is_refused_like_one_that_does_not_exist(tmp_path: Path, age_s: float) -> None:
    """The same reply after the same questions to the server: a listing that one waits for, the other waits for."""
    refusals, asked = [], []
    for number, name in enumerate(("secret", "absent")):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with inner_house(folder, open_pay) as house:
            assert (await house.call())[0] == 200
            house.later(age_s)
            house.listing_gate = asyncio.Event()
            serving = asyncio.create_task(house.serve(house.ask(name)))
            done, _ = await asyncio.wait({serving}, timeout=0.5)
            asked.append((house.listings, bool(done)))
            house.listing_gate.set()
            reply = await serving
            refusals.append((reply.status, told(reply.body)))
            assert not house.forwarded[1:]
    assert refusals[0] == refusals[1]
    assert refusals[0][0] == 403
    assert asked[0] == asked[1]


async def test_a_tool_that_is_new_is_found_before_anybody_is_refused_for_it(tmp_path: Path) -> None:
    """Whatever the policy makes of annotations: a refusal rests on the list as it is, not as it was."""
    by_annotation = lambda question: ALLOW if (question["tool"] or {}).get("annotations") else DENY  # noqa: E731
    async with inner_house(tmp_path, by_annotation) as house:
        assert (await house.call("new"))[0] == 403
        house.tools.append(tool("new", annotations={"readOnlyHint": True}))
        house.later(6)
        assert (await house.call("new"))[0] == 200


async def test_a_server_that_cant_be_listed_changes_no_denial(tmp_path: Path) -> None:
    """What was denied stays so, and says nothing of the server's state."""
    async with inner_house(tmp_path, open_pay) as house:
        assert (await house.call())[0] == 200
        house.later(6)
        house.listing_fails = True
        for name in ("secret", "absent"):
            status, body = await house.call(name)
            assert (status, body["error"]["code"]) == (403, 40302)
        assert (await house.call())[0] == 200


async def test_no_approval_is_used_on_a_definition_that_cant_be_confirmed(tmp_path: Path) -> None:
    """The listing is older than an approval may rest on and can't be had anew: nothing is claimed, nothing runs."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket = await house.approve(house.ask())
        house.later(6)
        house.listing_fails = True
        status, body = await house.call()
        assert (status, body["error"]["code"]) == (502, 50202)
        assert not house.forwarded
        assert (await house.ticket(ticket))["uses_left"] == 1
        house.later(2)
        house.listing_fails = False
        assert (await house.call())[0] == 200


async def test_a_listing_that_began_too_early_confirms_nothing(tmp_path: Path) -> None:
    """A refresh that was under way for longer than a definition may be old is followed by one of today's."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        await house.approve(house.ask())
        house.later(6)
        house.listing_gate = asyncio.Event()
        first = asyncio.create_task(house.serve(house.ask("secret")))
        await until(lambda: house.listings == 2)
        house.later(10)
        second = asyncio.create_task(house.serve())
        await asyncio.sleep(0.05)
        house.listing_gate.set()
        await asyncio.gather(first, second)
        assert house.listings == 3


async def test_an_approval_asked_for_ahead_binds_the_definition_as_it_is(tmp_path: Path) -> None:
    """The ticket that is opened before the call is found by the call, though the tool changed since the last list."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        assert (await house.call("secret"))[0] == 403
        house.tools[0] = tool("pay", description="now to anybody")
        house.later(6)
        foresight = Foresight(house.corridor, {SERVER.path: SERVER})
        asker = replace(person("alice"), client="")
        effect, terms, reasons, mask = await foresight.plan(asker, SERVER.name, "tools/call", "pay", {})
        assert effect.tool_digest == digest_definition(house.tools[0])
        ticket, _ = await house.desk.request(asker, effect, terms, reasons=reasons, mask=mask)
        await house.desk.act("approve", BOB, ticket["id"])
        assert (await house.call())[0] == 200
        assert (await house.ticket(ticket["id"]))["state"] == "used"


async def test_a_leg_that_is_judged_again_is_the_same_leg(tmp_path: Path) -> None:
    """A definition that changed meanwhile is judged with all that the seal says, not as if the call began now."""
    old: list[str] = []

    def judge(question: Mapping[str, Any]) -> Verdict:
        return DENY if old and question["tool"]["digest"] == old[0] else ALLOW

    async with inner_house(tmp_path, judge) as house:

        async def asks(exchange: Exchange) -> None:
            await exchange.send(http(200, result_of(exchange.id, resultType="input_required", requestState="s")))

        house.script = asks
        state = (await house.call())[1]["result"]["requestState"]
        old.append(house.policy.questions[-1]["tool"]["digest"])
        house.tools = [tool("pay", description="another")]
        house.later(6.0)
        del house.policy.questions[:]
        params = {"name": "pay", "arguments": {}, "requestState": state, "inputResponses": {}}
        assert (await house.serve(house.request(message(params=params)))).status == 200
        first, again = house.policy.questions
        assert first["tool"]["digest"] != again["tool"]["digest"]
        assert first["request"] == again["request"]
        assert again["request"]["leg"] == 1
