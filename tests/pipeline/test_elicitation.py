"""A held call whose client opens pages: asked once, kept for the decision, run by the same corridor or refused.

What the caller brings back is a state that waits and a word about the page. Neither is an authority: the call runs by
its effect, once, and nothing of the gateway's own question reaches a server or a digest.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest

from approvals.ticket import StoreUnavailable
from gateway.elicitation import LATE_S, QUESTION
from gateway.holding import DECLINED
from gateway.legs import SAID
from gateway.seals import Seals
from policies.verdict import ApprovalTerms, Verdict
from tests.contract.asking import META, message
from tests.contract.walked import KEY
from tests.pipeline.house import ALLOW, APPROVE, DENY, SERVER, Asked, InnerHouse, inner_house, tool, until
from tests.pipeline.test_legs import YES, Asker, shipped
from tests.support.approvals import ALICE, BOB, PAGE
from tests.support.upstream import Exchange, http, result_of

SCHEMA = json.loads((Path(__file__).parents[1] / "vectors/mcp-2026-07-28.schema.json").read_text())
CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
OPENS = {**META, "io.modelcontextprotocol/clientCapabilities": CAPABILITIES}
ACCEPT = {QUESTION: {"action": "accept"}}
SOON_S = 20.0


def ask(house: InnerHouse, meta: Any = OPENS, claims: Mapping[str, Any] | None = None, **params: Any) -> Asked:
    """A call of `pay` by a client that opens pages; `params` are more members, or other ones."""
    given = {"name": "pay", "arguments": {"amount": 1}, **params}
    return house.request(message(id="x", meta=meta, params=given), **(claims or {}))


async def told(house: InnerHouse, asked: Asked) -> tuple[int, dict[str, Any]]:
    """Status, and result or error."""
    reply = await house.serve(asked)
    answer = orjson.loads(reply.body)
    assert answer["id"] == "x"
    return reply.status, answer.get("result") or answer["error"]


async def sent_to_a_page(house: InnerHouse, asked: Asked | None = None) -> tuple[str, str]:
    """The first answer of a held call -> its ticket and the state."""
    status, result = await told(house, ask(house) if asked is None else asked)
    assert (status, result["resultType"]) == (200, "input_required"), result
    url = result["inputRequests"][QUESTION]["params"]["url"]
    return str(url).rpartition("/")[2], str(result["requestState"])


def back(house: InnerHouse, state: str, answers: Any = ACCEPT, **more: Any) -> Asked:
    """The call again, as a client retries it: with the state, and what its user said of the page."""
    responses = {} if answers is None else {"inputResponses": answers}
    return ask(house, **{"requestState": state, **responses, **more})


@dataclass
class Waiting:
    """A retry that is being kept."""

    house: InnerHouse
    task: asyncio.Task[tuple[int, dict[str, Any]]]

    async def end(self) -> tuple[int, dict[str, Any]]:
        """What it is answered, within a moment of what happened."""
        return await asyncio.wait_for(self.task, SOON_S)


async def waits(house: InnerHouse, asked: Asked) -> Waiting:
    """A retry that was not answered at once."""
    before = house.corridor.holding.waiting
    task = asyncio.create_task(told(house, asked))
    await until(lambda: house.corridor.holding.waiting == before + 1 or task.done(), SOON_S)
    assert not task.done(), task.result()
    return Waiting(house, task)


def never_reached_a_server(house: InnerHouse) -> None:
    """Nothing was forwarded."""
    assert house.forwarded == []


async def test_the_first_answer_is_a_page_to_open_and_comes_at_once(tmp_path: Path) -> None:
    """The official schema's `InputRequiredResult` with one URL-mode elicitation; 200, and the record says why not."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        began = time.monotonic()
        status, result = await told(house, ask(house))
        assert time.monotonic() - began < SOON_S
        assert status == 200
        jsonschema_rs.validate({**SCHEMA, "$ref": "#/$defs/InputRequiredResult"}, result)
        (question,) = result["inputRequests"].values()
        assert question["method"] == "elicitation/create"
        ticket = result["inputRequests"][QUESTION]["params"]["url"].rpartition("/")[2]
        assert question["params"]["mode"] == "url"
        assert question["params"]["url"] == f"{PAGE}/{ticket}"
        ends = (await house.ticket(ticket))["expiresAt"]
        said = question["params"]["message"]
        for word in ("pay", "server main", "group payers", f"{ends[:10]} {ends[11:16]} UTC"):
            assert word in said
        assert "amount" not in said
        assert set(result) == {"resultType", "inputRequests", "requestState"}
        (record,) = house.sink.of("refusal")
        assert record["reasons"][:2] == ["approval_required", "pending"]
        assert (record["status"], record["code"], record["challenge"]) == (200, 40303, "elicitation")
        assert record["ticket"] == ticket
        assert house.moves == ["request"]
        never_reached_a_server(house)


async def test_the_retry_is_kept_and_runs_once_somebody_said_yes(tmp_path: Path) -> None:
    """One ticket, one request, one run; the server gets the call as it was held, in canonical text, and no more."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, state = await sent_to_a_page(house, ask(house, arguments={"b": 1, "a": 2.0}))
        waiting = await waits(house, back(house, state, arguments={"b": 1, "a": 2.0}))
        await house.desk.act("approve", BOB, ticket)
        status, result = await waiting.end()
        assert (status, result["resultType"]) == (200, "complete")
        assert house.moves == ["request", "approve", "claim", "sent", "executed"]
        (sent,) = house.forwarded
        assert b'"arguments":{"a":2,"b":1}' in sent
        assert not {"requestState", "inputResponses"} & orjson.loads(sent)["params"].keys()
        assert QUESTION.encode() not in sent
        assert (await house.ticket(ticket))["state"] == "used"
        asked = [one["request"] for one in house.policy.questions]
        assert {(one["leg"], one["approved"], one["input_responses"]) for one in asked} == {(0, False, None)}
        decision, outcome = house.sink.of("decision")[0], house.sink.of("outcome")[0]
        assert decision["ticket"] == outcome["ticket"] == ticket
        assert "leg" not in decision


async def test_who_comes_back_after_the_yes_does_not_wait(tmp_path: Path) -> None:
    """The decision may be there before the client is."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, state = await sent_to_a_page(house)
        await house.desk.act("approve", BOB, ticket)
        status, result = await asyncio.wait_for(told(house, back(house, state)), SOON_S)
        assert (status, result["resultType"]) == (200, "complete")


async def test_at_the_end_of_its_time_a_retry_gets_the_state_alone(tmp_path: Path) -> None:
    """No second question, no second request; with state alone and again with an answer it goes on waiting."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, state = await sent_to_a_page(house)
        house.corridor.holding.hold_s = 0.1
        for answers in (ACCEPT, None, ACCEPT):
            began = time.monotonic()
            status, result = await told(house, back(house, state, answers))
            assert time.monotonic() - began >= 0.09
            assert status == 200
            jsonschema_rs.validate({**SCHEMA, "$ref": "#/$defs/InputRequiredResult"}, result)
            assert set(result) == {"resultType", "requestState"}
            state = result["requestState"]
        assert house.moves == ["request"]
        kept = house.sink.of("refusal")
        assert [(one["reasons"][0], one["ticket"], one["challenge"]) for one in kept] == [
            ("approval_required", ticket, "elicitation")
        ] * 4
        await house.desk.act("approve", BOB, ticket)
        assert (await told(house, back(house, state, None)))[1]["resultType"] == "complete"


async def deny(house: InnerHouse, ticket: str) -> None:
    await house.desk.act("deny", BOB, ticket)


async def withdraw(house: InnerHouse, ticket: str) -> None:
    await house.desk.act("withdraw", ALICE, ticket)


async def revoke(house: InnerHouse, ticket: str) -> None:
    await house.desk.act("approve", BOB, ticket)
    await house.desk.act("revoke", BOB, ticket)


async def expire(house: InnerHouse, _: str) -> None:
    house.desk._clock = house.desk._watch._clock = lambda: time.time() + 4000


@pytest.mark.parametrize(
    ("end", "state"), [(deny, "denied"), (withdraw, "withdrawn"), (revoke, "revoked"), (expire, "expired")]
)
@pytest.mark.parametrize("late", [False, True], ids=["while it waits", "before it comes"])
async def test_a_wait_that_ends_without_a_yes_is_a_clear_refusal(
    tmp_path: Path, end: Callable[[InnerHouse, str], Any], state: str, late: bool
) -> None:
    """403 with 40304 and why, in words; nothing runs, and no new ticket is opened in its place."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, text = await sent_to_a_page(house)
        if late:
            await end(house, ticket)
            status, error = await asyncio.wait_for(told(house, back(house, text)), SOON_S)
        elif end is revoke:  # whoever waits for the yes would run by it
            await house.desk.act("approve", BOB, ticket)
            await house.desk.act("revoke", BOB, ticket)
            status, error = await told(house, back(house, text))
        else:
            waiting = await waits(house, back(house, text))
            await end(house, ticket)
            status, error = await waiting.end()
        assert (status, error["code"], error["data"]["why"]) == (403, 40304, state)
        assert error["message"] == SAID[state]
        assert (error["data"]["ticket"]["id"], error["data"]["ticket"]["state"]) == (ticket, state)
        record = house.sink.of("refusal")[-1]
        assert (record["reasons"][0], record["ticket"]) == ("approval_refused", ticket)
        assert house.moves.count("request") == 1
        never_reached_a_server(house)


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("approved", [False, True])
async def test_a_question_that_was_declined_ends_the_loop_and_withdraws_nothing(
    tmp_path: Path, action: str, approved: bool
) -> None:
    """40303 at once, and the call is not run even where it could be: its user said no. The ticket is as it was."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, state = await sent_to_a_page(house)
        if approved:
            await house.desk.act("approve", BOB, ticket)
        status, error = await asyncio.wait_for(
            told(house, back(house, state, {QUESTION: {"action": action}})), SOON_S
        )
        assert (status, error["code"]) == (403, 40303)
        assert error["message"] == DECLINED.format(page=f"{PAGE}/{ticket}")
        assert error["data"]["ticket"]["state"] == ("approved" if approved else "pending")
        record = house.sink.of("refusal")[-1]
        assert (record["ticket"], record["detail"]) == (ticket, f"elicitation: {action}")
        never_reached_a_server(house)
        if not approved:
            await house.desk.act("approve", BOB, ticket)
        assert (await told(house, ask(house)))[1]["resultType"] == "complete", "the identical call still runs"
        assert house.moves.count("request") == 1


@pytest.mark.parametrize(
    "answer", [None, "accept", [], {}, {"action": None}, {"action": "Accept"}, {"action": ["x"]}]
)
async def test_an_answer_that_is_none_is_refused(tmp_path: Path, answer: Any) -> None:
    """-32602 and nothing happens: no word of the user's is guessed."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, state = await sent_to_a_page(house)
        await house.desk.act("approve", BOB, ticket)
        status, error = await told(house, back(house, state, {QUESTION: answer}))
        assert (status, error["code"]) == (400, -32602)
        never_reached_a_server(house)


async def test_answers_to_other_questions_are_nobodys(tmp_path: Path) -> None:
    """A client may bring more than was asked for; none of it is forwarded, digested or judged."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, state = await sent_to_a_page(house)
        await house.desk.act("approve", BOB, ticket)
        status, result = await told(house, back(house, state, {**YES, **ACCEPT, "inputResponses": {"x": 1}}))
        assert (status, result["resultType"]) == (200, "complete")
        assert "inputResponses" not in orjson.loads(house.forwarded[0])["params"]
        assert {one["request"]["input_responses"] is None for one in house.policy.questions} == {True}


async def test_a_state_that_waits_belongs_to_its_caller_and_call(tmp_path: Path) -> None:
    """Other arguments, tool, subject, program, bound `_meta`, a changed or missing character: -32602, no effect."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, state = await sent_to_a_page(house)
        await house.desk.act("approve", BOB, ticket)
        moves = list(house.moves)
        others = {
            "other arguments": back(house, state, arguments={"amount": 2}),
            "another tool": back(house, state, name="secret"),
            "another subject": back(house, state, claims={"sub": "mallory"}),
            "another program": back(house, state, claims={"client_id": "other"}),
            "more bound _meta": back(house, state, meta={**OPENS, "example.com/dry-run": False}),
            "a changed character": back(house, state[:-1] + ("A" if state[-1] != "A" else "B")),
            "a part of it": back(house, state[:40]),
        }
        for named, other in others.items():
            status, error = await told(house, other)
            assert (status, error["code"]) == (400, -32602), named
        assert house.moves == moves
        never_reached_a_server(house)
        assert (await told(house, back(house, state)))[1]["resultType"] == "complete"


async def test_a_state_is_no_second_use(tmp_path: Path) -> None:
    """After the run the same state is refused as used: nothing runs, no ticket is opened, whoever repeats it."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, state = await sent_to_a_page(house)
        await house.desk.act("approve", BOB, ticket)
        assert (await told(house, back(house, state)))[1]["resultType"] == "complete"
        for _ in range(3):
            status, error = await told(house, back(house, state))
            assert (status, error["code"], error["data"]["why"]) == (403, 40304, "used")
        assert house.moves.count("request") == 1
        assert len(house.forwarded) == 1


async def test_of_many_who_wait_for_one_ticket_one_runs(tmp_path: Path) -> None:
    """APR-02: the same retry eight times over and the plain call beside it: one run, the others are told why not."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, state = await sent_to_a_page(house)
        waiting = [await waits(house, back(house, state)) for _ in range(8)]
        await house.desk.act("approve", BOB, ticket)
        ends = [await one.end() for one in waiting]
        assert sum(status == 200 for status, _ in ends) == 1
        assert {error["code"] for status, error in ends if status != 200} == {40304}
        assert {error["data"]["why"] for status, error in ends if status != 200} <= {"in_flight", "used"}
        assert len(house.forwarded) == 1
        assert house.moves.count("request") == 1


async def test_the_policy_of_after_the_wait_decides(tmp_path: Path) -> None:
    """A deny overrides the approval that was waited for; the ticket keeps its use."""
    verdict = [APPROVE]
    async with inner_house(tmp_path, lambda _: verdict[0]) as house:
        ticket, state = await sent_to_a_page(house)
        waiting = await waits(house, back(house, state))
        verdict[0] = DENY
        await house.desk.act("approve", BOB, ticket)
        status, error = await waiting.end()
        assert (status, error["code"]) == (403, 40302)
        never_reached_a_server(house)
        assert (await house.ticket(ticket))["uses_left"] == 1


async def test_a_call_that_needs_no_approval_any_more_goes_out_as_it_was_held(tmp_path: Path) -> None:
    """An allow after the wait forwards the call without a trace of question or state, and consumes nothing."""
    verdict = [APPROVE]
    async with inner_house(tmp_path, lambda _: verdict[0]) as house:
        ticket, state = await sent_to_a_page(house)
        house.corridor.holding.hold_s = 0
        verdict[0] = ALLOW
        assert (await told(house, back(house, state)))[1]["resultType"] == "complete"
        (sent,) = house.forwarded
        assert set(orjson.loads(sent)["params"]) == {"name", "arguments", "_meta"}
        assert (await house.ticket(ticket))["state"] == "pending"


async def test_a_tool_that_changed_meanwhile_needs_another_approval(tmp_path: Path) -> None:
    """APR-10: the approval is revoked, a new ticket is opened, and its page is a new question."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, state = await sent_to_a_page(house)
        waiting = await waits(house, back(house, state))
        house.tools[0] = tool("pay", description="pays twice")
        house.later(60)
        await house.desk.act("approve", BOB, ticket)
        status, result = await waiting.end()
        assert status == 200
        new = result["inputRequests"][QUESTION]["params"]["url"].rpartition("/")[2]
        assert new != ticket
        assert (await house.ticket(ticket))["state"] == "revoked"
        never_reached_a_server(house)
        await house.desk.act("approve", BOB, new)
        assert (await told(house, back(house, result["requestState"])))[1]["resultType"] == "complete"


async def test_a_token_that_ends_during_the_wait_runs_nothing(tmp_path: Path) -> None:
    """The token is looked at again after the wait, whatever was approved meanwhile: 401."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, state = await sent_to_a_page(house)
        waiting = await waits(house, back(house, state))
        house.corridor.tokens._clock = lambda: time.time() + 100_000
        await house.desk.act("approve", BOB, ticket)
        status, error = await waiting.end()
        assert (status, error["code"]) == (401, 40102)
        never_reached_a_server(house)
        assert (await house.ticket(ticket))["uses_left"] == 1


async def test_nobody_is_kept_longer_than_its_token_lives(tmp_path: Path) -> None:
    """A token with a moment left is answered after that moment, not after the whole hold."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        _, state = await sent_to_a_page(house)
        asked = back(house, state, claims={"exp": int(time.time()) + 1})
        status, result = await asyncio.wait_for(told(house, asked), SOON_S)
        assert (status, set(result)) == (200, {"resultType", "requestState"})


async def test_so_many_of_one_subject_wait_and_no_more(tmp_path: Path) -> None:
    """Beyond its share a subject is answered at once; another subject's calls still wait; freed places are taken."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        _, state = await sent_to_a_page(house)
        _, others = await sent_to_a_page(house, ask(house, claims={"sub": "carol"}))
        holding = house.corridor.holding
        kept = [await waits(house, back(house, state)) for _ in range(holding.per_subject)]
        status, result = await asyncio.wait_for(told(house, back(house, state)), SOON_S)
        assert (status, set(result)) == (200, {"resultType", "requestState"})
        foreign = await waits(house, back(house, others, claims={"sub": "carol"}))
        holding.most = holding.waiting
        status, result = await asyncio.wait_for(told(house, back(house, others, claims={"sub": "carol"})), SOON_S)
        assert set(result) == {"resultType", "requestState"}, "the worker's own bound"
        kept[0].task.cancel()
        await until(lambda: holding.waiting == holding.per_subject)
        again = await waits(house, back(house, state))
        for one in (*kept[1:], foreign, again):
            one.task.cancel()
        await until(lambda: holding.waiting == 0)
        assert not holding._places


async def test_who_leaves_frees_everything_at_once_and_leaves_one_record(tmp_path: Path) -> None:
    """The client went away while it was kept: one refusal `client_gone` with its ticket, nobody waits."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, state = await sent_to_a_page(house)
        records = len(house.sink.records)
        waiting = await waits(house, back(house, state))
        waiting.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting.task
        assert house.corridor.holding.waiting == 0
        assert len(house.desk._watch) == 0
        assert house.corridor.in_flight == 0
        (record,) = house.sink.records[records:]
        assert (record["kind"], record["reasons"][0], record["ticket"]) == ("refusal", "client_gone", ticket)
        await house.desk.act("approve", BOB, ticket)
        assert (await told(house, ask(house)))[1]["resultType"] == "complete"


async def test_a_worker_that_stops_answers_whoever_waits(tmp_path: Path) -> None:
    """Each gets the state and goes on elsewhere; who comes now is not kept."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        _, state = await sent_to_a_page(house)
        kept = [await waits(house, back(house, state)) for _ in range(3)]
        house.desk.hurry()
        for waiting in kept:
            status, result = await waiting.end()
            assert (status, set(result)) == (200, {"resultType", "requestState"})
        status, _ = await asyncio.wait_for(told(house, back(house, state)), SOON_S)
        assert status == 200


async def test_a_store_that_fails_is_not_waited_for_but_ends_no_wait(tmp_path: Path) -> None:
    """503 at once for who comes then, nothing ran; who waited waits on, and runs once it is back and approved."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, state = await sent_to_a_page(house)
        _, other = await sent_to_a_page(house, ask(house, arguments={"amount": 2}))
        waiting = await waits(house, back(house, state))
        watch = house.desk._watch
        await until(lambda: [one for one in watch._waiters if one.last is not None] != [])
        looked, failed = watch._look, 0

        async def fail(_: Any) -> Any:
            nonlocal failed
            failed += 1
            raise StoreUnavailable("gone")

        watch._look = fail  # type: ignore[method-assign, assignment]
        status, error = await asyncio.wait_for(told(house, back(house, other, arguments={"amount": 2})), SOON_S)
        assert (status, error["code"]) == (503, 50303)
        await until(lambda: failed > 1)
        never_reached_a_server(house)
        assert not waiting.task.done()
        watch._look = looked  # type: ignore[method-assign]
        await house.desk.act("approve", BOB, ticket)
        assert (await waiting.end())[1]["resultType"] == "complete"


async def test_keys_rotate_while_a_call_waits(tmp_path: Path) -> None:
    """A state under a key that is gone is refused; under one that is still listed it goes on."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, state = await sent_to_a_page(house)
        await house.desk.act("approve", BOB, ticket)
        other = bytes(range(32, 64))
        house.corridor.seals = Seals([other])
        status, error = await told(house, back(house, state))
        assert (status, error["code"]) == (400, -32602)
        house.corridor.seals = Seals([other, KEY])
        assert (await told(house, back(house, state)))[1]["resultType"] == "complete"


async def test_a_state_ends_a_while_after_its_ticket(tmp_path: Path) -> None:
    """Who comes late learns what became of the ticket; who comes much later starts anew."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        _, state = await sent_to_a_page(house)
        await expire(house, "")
        house.corridor.clock = lambda: time.time() + 4000
        status, error = await told(house, back(house, state))
        assert (status, error["data"]["why"]) == (403, "expired")
        house.corridor.clock = lambda: time.time() + 3600 + LATE_S + 10
        status, error = await told(house, back(house, state))
        assert (status, error["code"]) == (400, -32602)


async def test_the_plain_call_works_beside_and_after_every_question(tmp_path: Path) -> None:
    """Who only repeats the identical call meets the same ticket, is asked again, and runs once it is approved."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket, _ = await sent_to_a_page(house)
        assert (await sent_to_a_page(house))[0] == ticket
        status, error = await told(house, ask(house, meta=META))
        assert (status, error["code"], error["data"]["ticket"]["id"]) == (403, 40303, ticket)
        assert f"{PAGE}/{ticket}" in error["message"]
        assert house.sink.of("refusal")[-1]["challenge"] == "error"
        await house.desk.act("approve", BOB, ticket)
        assert (await told(house, ask(house)))[1]["resultType"] == "complete"
        assert house.moves.count("request") == 1


@pytest.mark.parametrize(
    ("setting", "capabilities", "opens"),
    [
        ("auto", CAPABILITIES, True),
        ("elicitation", CAPABILITIES, True),
        ("elicitation", {}, False),
        ("elicitation", {"elicitation": {}}, False),
        ("task", CAPABILITIES, False),
        ("error", CAPABILITIES, False),
    ],
)
async def test_the_servers_setting_and_the_clients_word_choose(
    tmp_path: Path, setting: str, capabilities: Any, opens: bool
) -> None:
    """A kind that was not declared is never sent; the error is there for everybody."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        asked = ask(house, meta={**META, "io.modelcontextprotocol/clientCapabilities": capabilities})
        server = replace(SERVER, challenge=setting)
        asked = replace(asked, server=server, received=replace(asked.received, server=server))
        status, answer = await told(house, asked)
        assert (status, "resultType" in answer) == ((200, True) if opens else (403, False))
        assert opens or answer["code"] == 40303


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_may_ask_for_input_after_the_wait(tmp_path: Path, stream: bool) -> None:
    """The two conversations follow each other: first our question, then the server's, each with its own state."""
    async with inner_house(tmp_path, shipped) as house:
        house.script = asker = Asker(stream=stream)
        ticket, state = await sent_to_a_page(house)
        waiting = asyncio.create_task(house.serve(back(house, state)))
        await until(lambda: house.corridor.holding.waiting == 1)
        await house.desk.act("approve", BOB, ticket)
        reply = await waiting
        text = reply.body
        if reply.chunks is not None:
            text = b"".join([piece async for piece in reply.chunks]).rpartition(b"data: ")[2]
        result = orjson.loads(text)["result"]
        assert list(result["inputRequests"]) == ["sure"]
        status, error = await told(house, back(house, state, YES))
        assert (status, error["code"], error["data"]["why"]) == (403, 40304, "waiting"), "the old state runs nothing"
        answered = await house.serve(back(house, result["requestState"], YES))
        assert answered.status == 200
        if answered.chunks is not None:
            _ = [piece async for piece in answered.chunks]
        assert asker.seen[1]["requestState"] == "own 1"
        assert asker.seen[1]["inputResponses"] == YES
        assert house.moves.count("request") == 1
        assert [run["state"] for run in (await house.ticket(ticket))["runs"]] == ["executed"]


async def test_answers_that_need_an_approval_are_kept_in_the_state(tmp_path: Path) -> None:
    """`approval.answers: "again"`: the page of the answers' ticket is opened, and the client brings nothing but the
    state: the server still gets its own state and the very answers that were approved, each once."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        house.script = asker = Asker(times=1)
        begun, state = await sent_to_a_page(house)
        await house.desk.act("approve", BOB, begun)
        _, asked = await told(house, back(house, state))
        assert list(asked["inputRequests"]) == ["sure"]
        answers, held = await sent_to_a_page(house, back(house, asked["requestState"], YES))
        assert answers != begun
        assert (await house.ticket(answers))["meta"]["inputResponses"] == YES
        record = house.sink.of("refusal")[-1]
        assert (record["ticket"], record["answers_ticket"], record["leg"]) == (begun, answers, 1)
        waiting = await waits(house, back(house, held, {**ACCEPT, "sure": {"action": "decline"}}))
        await house.desk.act("approve", BOB, answers)
        status, result = await waiting.end()
        assert (status, result["resultType"]) == (200, "complete")
        assert asker.seen[1]["requestState"] == "own 1"
        assert asker.seen[1]["inputResponses"] == YES
        decision = house.sink.of("decision")[-1]
        assert (decision["ticket"], decision["answers_ticket"], decision["leg"]) == (begun, answers, 1)
        status, error = await told(house, back(house, held))
        assert (status, error["code"], error["data"]["why"]) == (403, 40304, "continued")
        assert house.moves.count("request") == 2


async def test_answers_that_a_person_denied_leave_the_call_waiting(tmp_path: Path) -> None:
    """The refusal names the answers' ticket; other answers to the server's question may still be given."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        house.script = Asker(times=1)
        begun, state = await sent_to_a_page(house)
        await house.desk.act("approve", BOB, begun)
        _, asked = await told(house, back(house, state))
        answers, held = await sent_to_a_page(house, back(house, asked["requestState"], YES))
        await house.desk.act("deny", BOB, answers)
        status, error = await told(house, back(house, held))
        assert (status, error["data"]["why"], error["data"]["ticket"]["id"]) == (403, "denied", answers)
        assert [run["state"] for run in (await house.ticket(begun))["runs"]] == ["waiting"]
        other, _ = await sent_to_a_page(house, back(house, asked["requestState"], {"sure": {"action": "decline"}}))
        assert other not in (begun, answers)


async def test_answers_too_large_for_a_state_get_the_error(tmp_path: Path) -> None:
    """No state grows without bound: the client repeats the identical call, as every client can."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        house.script = Asker(times=1)
        begun, state = await sent_to_a_page(house)
        await house.desk.act("approve", BOB, begun)
        _, asked = await told(house, back(house, state))
        large = {"sure": {"action": "accept", "content": {"text": "x" * 200_000}}}
        status, error = await told(house, back(house, asked["requestState"], large))
        assert (status, error["code"]) == (403, 40303)
        assert house.sink.of("refusal")[-1]["challenge"] == "error"
        await house.desk.act("approve", BOB, error["data"]["ticket"]["id"])
        assert (await told(house, back(house, asked["requestState"], large)))[1]["resultType"] == "complete"


@pytest.mark.parametrize(
    ("method", "params", "what"),
    [
        ("resources/read", {"uri": "demo://open"}, "Reading demo://open on the server main"),
        ("prompts/get", {"name": "greet"}, "The prompt greet on the server main"),
    ],
)
async def test_prompts_and_resources_wait_alike(
    tmp_path: Path, method: str, params: dict[str, Any], what: str
) -> None:
    """All three methods whose call can be held."""

    async def answer(exchange: Exchange) -> None:
        await exchange.send(http(200, result_of(exchange.id, ttlMs=0, cacheScope="private")))

    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        house.prompts.append({"name": "greet"})
        house.script = answer

        def request(**more: Any) -> Asked:
            return house.request(message(method, id="x", meta=OPENS, params={**params, **more}))

        _, asked = await told(house, request())
        page = asked["inputRequests"][QUESTION]["params"]
        assert page["message"].startswith(what)
        waiting = await waits(house, request(requestState=asked["requestState"], inputResponses=ACCEPT))
        await house.desk.act("approve", BOB, page["url"].rpartition("/")[2])
        status, _ = await waiting.end()
        assert status == 200
        assert not {"requestState", "inputResponses"} & orjson.loads(house.forwarded[0])["params"].keys()


async def test_the_words_are_printable_and_name_the_quorum(tmp_path: Path) -> None:
    """A name with controls and direction marks shows as such; approvers are named, a quorum is said, both cut."""
    terms = ApprovalTerms(
        approvers=("scope:pay:approve", *(f"group:g{number}" for number in range(12))), min_approvers=2
    )

    def judge(_: Mapping[str, Any]) -> Verdict:
        return replace(APPROVE, approval=terms)

    async with inner_house(tmp_path, judge) as house:
        house.tools.append(tool("pay\u202e\n<b>" + "y" * 300))
        _, asked = await told(house, ask(house, name="pay\u202e\n<b>" + "y" * 300))
        said = asked["inputRequests"][QUESTION]["params"]["message"]
        assert said.isprintable()
        assert "\\u202e\\x0a<b>y" in said
        assert "2 of scope pay:approve, group g0" in said
        assert "and 5 more" in said
        assert len(said) < 1200


async def test_a_conversation_that_comes_to_need_a_person_goes_on_after_the_wait(tmp_path: Path) -> None:
    """Begun under an allow, held at its second leg: the server still gets its own state and the answers of then; a
    state whose server's own has ended meanwhile is refused."""
    needed = [False]

    def judge(question: Mapping[str, Any]) -> Verdict:
        return shipped(question) if needed[0] else ALLOW

    async with inner_house(tmp_path, judge) as house:
        house.script = asker = Asker(times=1)
        _, asked = await told(house, ask(house))
        needed[0] = True
        ticket, held = await sent_to_a_page(house, back(house, asked["requestState"], YES))
        waiting = await waits(house, back(house, held))
        await house.desk.act("approve", BOB, ticket)
        status, result = await waiting.end()
        assert (status, result["resultType"]) == (200, "complete")
        assert asker.seen[1]["requestState"] == "own 1"
        assert asker.seen[1]["inputResponses"] == YES
        decision = house.sink.of("decision")[-1]
        assert (decision["ticket"], decision["leg"]) == (ticket, 1)
        house.corridor.clock = lambda: time.time() + 3700
        status, error = await told(house, back(house, held))
        assert (status, error["code"]) == (400, -32602)
