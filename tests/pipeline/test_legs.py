"""A call that a person approved, over several legs: continued once each, under its ticket, and by nobody else."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from approvals.approvers import Person
from approvals.ticket import Transition
from gateway.audit.port import AuditUnavailable
from gateway.contract.passage import Reply
from gateway.legs import ANSWERS_ALONE, SAID
from gateway.seals import Seals
from policies.verdict import ApprovalTerms, Verdict
from tests.contract.asking import META, message
from tests.contract.walked import KEY
from tests.pipeline.house import ALLOW, APPROVE, DENY, SERVER, Asked, InnerHouse, inner_house, tool
from tests.support.approvals import BOB
from tests.support.upstream import SSE_HEAD, Exchange, chunk, http, result_of

YES = {"sure": {"action": "accept", "content": {"b": 1, "a": 2.0}}}
FORM = {"mode": "form", "message": "sure?", "requestedSchema": {"type": "object"}}
ELICITS = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
OTHERS_APPROVE = replace(APPROVE, approval=ApprovalTerms(approvers=("group:auditors",)))


def shipped(question: Mapping[str, Any]) -> Verdict:
    """As the default bundle: a call needs an approval, its legs are covered by it."""
    return ALLOW if question["request"]["approved"] else APPROVE


@dataclass
class Asker:
    """A server that asks `times` times before it is done; its state is the number of the question, or none."""

    times: int = 1
    states: bool = True
    stream: bool = False
    seen: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, exchange: Exchange) -> None:
        """Ask, or be done."""
        self.seen.append(orjson.loads(exchange.seen.body)["params"])
        text = result_of(exchange.id)
        if len(self.seen) <= self.times:
            asks: dict[str, Any] = {"inputRequests": {"sure": {"method": "elicitation/create", "params": FORM}}}
            if self.states:
                asks["requestState"] = f"own {len(self.seen)}"
            text = result_of(exchange.id, resultType="input_required", **asks)
        await exchange.send(
            SSE_HEAD + chunk(b"data: " + text + b"\n\n") + chunk(b"") if self.stream else http(200, text)
        )


def first(house: InnerHouse, **arguments: Any) -> Asked:
    """The call, without anything to go on with."""
    return house.request(message(id="first", meta=ELICITS, params={"name": "pay", "arguments": arguments}))


def leg(house: InnerHouse, state: str | None, answers: Any = YES, meta: Any = ELICITS, **arguments: Any) -> Asked:
    """The call again, with answers and state, under a new id."""
    params: dict[str, Any] = {"name": "pay", "arguments": arguments, "inputResponses": answers}
    if state is not None:
        params["requestState"] = state
    return house.request(message(id="next", meta=meta, params=params))


async def text_of(reply: Reply) -> dict[str, Any]:
    """The answer, whole or the last event of a stream."""
    text = reply.body
    if reply.chunks is not None:
        text = b"".join([piece async for piece in reply.chunks]).rpartition(b"data: ")[2]
    told: dict[str, Any] = orjson.loads(text)
    return told


async def state_of(house: InnerHouse, asked: Asked) -> str:
    """The sealed state of an answer that asks for input."""
    told = await text_of(await house.serve(asked))
    assert told["result"]["resultType"] == "input_required", told
    return str(told["result"]["requestState"])


async def refused(house: InnerHouse, asked: Asked) -> tuple[int, int, str]:
    """Status, code and why (or the message) of a refusal, of which nothing was forwarded."""
    before = len(house.forwarded)
    reply = await house.serve(asked)
    error = orjson.loads(reply.body)["error"]
    assert len(house.forwarded) == before
    return reply.status, error["code"], error["data"].get("why", error["message"])


async def begun(house: InnerHouse, **arguments: Any) -> tuple[str, str]:
    """An approved call whose server has asked once -> its ticket and the sealed state."""
    ticket = await house.approve(first(house, **arguments))
    return ticket, await state_of(house, first(house, **arguments))


async def runs(house: InnerHouse, ticket: str, by: Person = BOB) -> list[str]:
    """The outcomes of a ticket's uses."""
    return [run["state"] for run in (await house.ticket(ticket, by))["runs"]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("states", [True, False])
async def test_an_approved_call_goes_on_under_its_ticket(tmp_path: Path, states: bool, stream: bool) -> None:
    """design.md: the policy sees leg and answers, the server its own state (or none) and canonical text; each leg is
    a decision and an outcome of the same ticket."""
    async with inner_house(tmp_path, shipped) as house:
        house.script = asker = Asker(states=states, stream=stream)
        ticket, state = await begun(house, b=1, a=2.0)
        assert await runs(house, ticket) == ["waiting"]
        done = await text_of(await house.serve(leg(house, state, b=1, a=2.0)))
        assert done["result"]["resultType"] == "complete"
        assert done["id"] == "next"
        assert asker.seen[1].get("requestState") == ("own 1" if states else None)
        assert b'"arguments":{"a":2,"b":1}' in house.forwarded[1]
        assert b'"inputResponses":{"sure":{"action":"accept","content":{"a":2,"b":1}}}' in house.forwarded[1]
        assert house.moves == [
            *("request", "approve", "claim", "sent", "waiting"),
            *("continue", "sent", "executed"),
        ]
        asked = [one["request"] for one in house.policy.questions if one["request"]["approved"]]
        assert [(one["leg"], one["input_responses"]) for one in asked] == [(1, YES)]
        assert [(one["outcome"], one["ticket"]) for one in house.sink.of("outcome")] == [
            ("input_required", ticket),
            ("executed", ticket),
        ]
        assert [(one["ticket"], one.get("leg")) for one in house.sink.of("decision")] == [(ticket, None), (ticket, 1)]
        assert (await house.ticket(ticket))["state"] == "used"


async def test_each_leg_is_continued_once(tmp_path: Path) -> None:
    """APR-09: an earlier state, and the last one again, are refused and say so; one `complete` result in all."""
    async with inner_house(tmp_path, shipped) as house:
        house.script = Asker(times=3)
        ticket, state = await begun(house)
        for _ in range(2):
            following = await state_of(house, leg(house, state))
            assert await refused(house, leg(house, state)) == (403, 40304, "continued")
            state = following
        legs = sorted({one["request"]["leg"] for one in house.policy.questions if one["request"]["approved"]})
        assert legs == [1, 2]
        assert (await house.serve(leg(house, state))).status == 200
        assert await refused(house, leg(house, state)) == (403, 40304, "continued")
        assert await runs(house, ticket) == ["executed"]
        assert Counter(one["outcome"] for one in house.sink.of("outcome")) == {"input_required": 3, "executed": 1}


async def test_of_a_hundred_parallel_continuations_one_runs(tmp_path: Path) -> None:
    """APR-02, APR-09: exactly one goes on; the others are refused at once, with 40304."""
    async with inner_house(tmp_path, shipped) as house:
        house.script = Asker()
        ticket, state = await begun(house)
        took: list[float] = []

        async def try_it() -> int:
            began = time.monotonic()
            reply = await house.serve(leg(house, state))
            if reply.status != 200:
                took.append(time.monotonic() - began)
                assert orjson.loads(reply.body)["error"]["code"] == 40304
            return reply.status

        statuses = Counter(await asyncio.gather(*(try_it() for _ in range(100))))
        assert statuses == {200: 1, 403: 99}
        assert len(house.forwarded) == 2
        assert await runs(house, ticket) == ["executed"]
        assert max(took) < 5


async def test_while_a_call_waits_the_same_call_neither_runs_nor_opens_a_ticket(tmp_path: Path) -> None:
    """40304 that says what is waited for; afterwards the same call is asked anew, as ever."""
    async with inner_house(tmp_path, shipped) as house:
        house.script = Asker()
        ticket, state = await begun(house)
        reply = await text_of(await house.serve(first(house)))
        assert (reply["error"]["code"], reply["error"]["message"]) == (40304, SAID["waiting"])
        assert (reply["error"]["data"]["why"], reply["error"]["data"]["ticket"]["id"]) == ("waiting", ticket)
        assert (await house.serve(leg(house, state))).status == 200
        again = await text_of(await house.serve(first(house)))
        assert again["error"]["code"] == 40303
        assert again["error"]["data"]["ticket"]["id"] != ticket
        assert house.moves.count("request") == 2


async def test_a_state_brought_by_another_or_for_another_call_does_nothing(tmp_path: Path) -> None:
    """contract.md section 5: other arguments, subject, program, bound `_meta` or a changed character: -32602,
    and the use still waits; the owner's goes on."""
    async with inner_house(tmp_path, shipped) as house:
        house.script = Asker()
        ticket, state = await begun(house, amount=1)

        def by(**claims: Any) -> Asked:
            asked = leg(house, state, amount=1)
            token = house.issuer.mint(SERVER.resource, scope="mcp:use", **claims)
            lines = [one for one in asked.received.headers if one[0] != b"authorization"]
            head = replace(asked.received, headers=(*lines, (b"authorization", f"Bearer {token}".encode())))
            return replace(asked, received=head)

        moves = list(house.moves)
        others = {
            "other arguments": leg(house, state, amount=2),
            "more arguments": leg(house, state, amount=1, more=None),
            "another subject": by(sub="mallory"),
            "another program": by(client_id="other"),
            "more bound _meta": leg(house, state, meta={**ELICITS, "example.com/dry-run": False}, amount=1),
            "a changed character": leg(house, state[:-1] + ("A" if state[-1] != "A" else "B"), amount=1),
            "nothing": leg(house, "", amount=1),
        }
        for named, other in others.items():
            assert (await refused(house, other))[:2] == (400, -32602), named
        assert house.moves == moves
        assert await runs(house, ticket) == ["waiting"]
        assert (await house.serve(by())).status == 200


async def test_keys_rotate_while_a_call_waits(tmp_path: Path) -> None:
    """The old key still opens what it sealed; once it is gone its states are refused, and nothing runs."""
    async with inner_house(tmp_path, shipped) as house:
        house.script = Asker()
        _, state = await begun(house)
        other = bytes(range(32, 64))
        house.corridor.seals = Seals([other])
        assert (await refused(house, leg(house, state)))[:2] == (400, -32602)
        house.corridor.seals = Seals([other, KEY])
        assert (await house.serve(leg(house, state))).status == 200


async def test_a_seal_ends_with_its_ticket(tmp_path: Path) -> None:
    """design.md: a gated state lives as long as its ticket, an ungated one as long as is configured."""
    terms = ApprovalTerms(approvers=("group:payers",), ttl_s=7200)
    waits = replace(APPROVE, approval=terms)
    async with inner_house(tmp_path, lambda one: ALLOW if one["request"]["approved"] else waits) as house:
        house.script = Asker(times=2)
        _, state = await begun(house)
        house.corridor.clock = lambda: time.time() + 7100
        following = await state_of(house, leg(house, state))
        house.corridor.clock = lambda: time.time() + 7201
        assert (await refused(house, leg(house, following)))[:2] == (400, -32602)


@pytest.mark.parametrize("answers", [YES, {}])
async def test_where_a_person_decides_answers_without_a_state_are_nobodys(tmp_path: Path, answers: Any) -> None:
    """The gateway gives a state with every question and a client must bring it back: 400, no ticket, nothing sent."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        house.script = Asker(states=False)
        assert await refused(house, leg(house, None, answers)) == (400, -32602, ANSWERS_ALONE)
        assert house.policy.questions[-1]["request"]["leg"] == 0
        assert house.moves == []
        assert [one["detail"] for one in house.sink.of("refusal")] == ["inputResponses without a requestState"]


@pytest.mark.parametrize("answers", [YES, {}])
async def test_where_nobody_decides_answers_without_a_state_are_the_servers_business(
    tmp_path: Path, answers: Any
) -> None:
    """The policy judges them as part of a call that begins (leg 0); the server gets what was judged."""
    async with inner_house(tmp_path, lambda _: ALLOW) as house:
        house.script = asker = Asker(states=False)
        assert (await house.serve(leg(house, None, answers))).status == 200
        question = house.policy.questions[-1]["request"]
        assert (question["leg"], question["input_responses"]) == (0, answers)
        assert [one["inputResponses"] for one in asker.seen] == [answers]


async def test_a_denial_comes_before_a_state_that_is_not_accepted(tmp_path: Path) -> None:
    """Whoever may not call learns nothing about states; the policy judges what it is sure of: leg 0."""
    async with inner_house(tmp_path, lambda _: DENY) as house:
        for state in ("made up", None):
            assert (await refused(house, leg(house, state)))[:2] == (403, 40302)
        assert {one["request"]["leg"] for one in house.policy.questions} == {0}


async def test_a_denied_leg_still_waits(tmp_path: Path) -> None:
    """The policy judges each leg with its answers: a deny refuses these, and others may follow."""

    def judge(question: Mapping[str, Any]) -> Verdict:
        asked = question["request"]
        if (asked["input_responses"] or YES)["sure"]["action"] != "accept":
            return DENY
        return shipped(question)

    async with inner_house(tmp_path, judge) as house:
        house.script = Asker()
        ticket, state = await begun(house)
        assert (await refused(house, leg(house, state, {"sure": {"action": "decline"}})))[:2] == (403, 40302)
        assert house.sink.of("refusal")[-1]["ticket"] == ticket
        assert await runs(house, ticket) == ["waiting"]
        assert (await house.serve(leg(house, state))).status == 200


async def test_a_leg_does_not_go_on_when_its_call_could_not_begin_today(tmp_path: Path) -> None:
    """A deny overrides an approval, also where the policy would allow the leg alone."""
    began = [True]

    def judge(question: Mapping[str, Any]) -> Verdict:
        return ALLOW if question["request"]["approved"] else APPROVE if began[0] else DENY

    async with inner_house(tmp_path, judge) as house:
        house.script = Asker()
        ticket, state = await begun(house)
        began[0] = False
        assert (await refused(house, leg(house, state)))[:2] == (403, 40302)
        assert await runs(house, ticket) == ["waiting"]


async def test_a_leg_needs_the_scopes_that_its_call_would_need_today(tmp_path: Path) -> None:
    """A token that could not begin the call does not go on with it either, also where the leg alone asks for less."""
    wants = replace(APPROVE, scopes=("pay:write",))
    async with inner_house(tmp_path, lambda one: ALLOW if one["request"]["approved"] else wants) as house:
        house.script = Asker()
        params: dict[str, Any] = {"name": "pay", "arguments": {}}

        def ask(scope: str, **more: Any) -> Asked:
            return house.request(message(meta=ELICITS, params={**params, **more}), scope=scope)

        ticket = await house.approve(ask("mcp:use pay:write"))
        state = await state_of(house, ask("mcp:use pay:write"))
        going_on = {"requestState": state, "inputResponses": YES}
        assert (await refused(house, ask("mcp:use", **going_on)))[0] == 403
        assert house.sink.of("refusal")[-1]["detail"] == "missing scopes: pay:write"
        assert await runs(house, ticket) == ["waiting"]
        assert (await house.serve(ask("mcp:use pay:write", **going_on))).status == 200


async def test_an_approval_belongs_to_the_tenant_that_it_was_given_in(tmp_path: Path) -> None:
    """The same person in another tenant: neither the approval nor the call that waits is theirs there."""
    async with inner_house(tmp_path, shipped, tenant_claim="tenant") as house:
        house.script = Asker()

        def ask(tenant: str, **more: Any) -> Asked:
            params = {"name": "pay", "arguments": {}, **more}
            return house.request(message(meta=ELICITS, params=params), tenant=tenant)

        colleague = replace(BOB, tenant="acme")
        ticket = await house.approve(ask("acme"), colleague)
        assert (await house.ticket(ticket, colleague))["requester"]["tenant"] == "acme"
        assert (await refused(house, ask("globex")))[:2] == (403, 40303)
        state = await state_of(house, ask("acme"))
        going_on = {"requestState": state, "inputResponses": YES}
        assert (await refused(house, ask("globex", **going_on)))[:2] == (400, -32602)
        assert await runs(house, ticket, colleague) == ["waiting"]
        assert (await house.serve(ask("acme", **going_on))).status == 200


@pytest.mark.parametrize(
    ("today", "why"),
    [
        (OTHERS_APPROVE, "approvers_changed"),
        (replace(APPROVE, approval=ApprovalTerms(approvers=("group:payers",), min_approvers=2)), "approvers_changed"),
        (replace(APPROVE, approval=ApprovalTerms(approvers=("group:payers", "user:nobody"))), ""),
        (replace(APPROVE, approval=ApprovalTerms(approvers=("nonsense",))), "approvers_changed"),
        (ALLOW, ""),
    ],
)
async def test_the_approval_of_a_leg_is_weighed_by_todays_terms(tmp_path: Path, today: Verdict, why: str) -> None:
    """At each leg all that was checked before the first one is checked again; what would no longer do is revoked."""
    terms = [APPROVE]
    async with inner_house(tmp_path, lambda one: ALLOW if one["request"]["approved"] else terms[0]) as house:
        house.script = Asker()
        ticket, state = await begun(house)
        terms[0] = today
        if not why:
            assert (await house.serve(leg(house, state))).status == 200
            return
        assert await refused(house, leg(house, state)) == (403, 40304, why)
        assert (await house.ticket(ticket))["state"] == "revoked"
        assert await runs(house, ticket) == ["abandoned"]
        assert house.moves[-2:] == ["revoke", "abandoned"]
        assert await refused(house, leg(house, state)) == (403, 40304, "revoked")


async def test_a_tool_that_changed_between_the_legs_needs_a_new_approval(tmp_path: Path) -> None:
    """APR-10: the definition is read anew for every leg; the call has to be approved again."""
    async with inner_house(tmp_path, shipped) as house:
        house.script = Asker()
        ticket, state = await begun(house)
        house.later(6)
        house.tools[0] = tool("pay", description="pays twice")
        assert await refused(house, leg(house, state)) == (403, 40304, "tool_changed")
        assert await runs(house, ticket) == ["abandoned"]
        assert (await refused(house, first(house)))[1] == 40303


async def test_nothing_goes_on_while_the_tools_definition_can_not_be_read(tmp_path: Path) -> None:
    """What a person approved is never run on a list that may be old."""
    async with inner_house(tmp_path, shipped) as house:
        house.script = Asker()
        ticket, state = await begun(house)
        house.later(6)
        house.listing_fails = True
        assert (await refused(house, leg(house, state)))[0] == 502
        assert await runs(house, ticket) == ["waiting"]
        house.listing_fails = False
        house.later(60)
        assert (await house.serve(leg(house, state))).status == 200


@pytest.mark.parametrize(
    ("who", "verb"), [("approver", "revoke"), ("requester", "revoke"), ("requester", "withdraw")]
)
async def test_a_revoked_approval_ends_the_call_that_waits(tmp_path: Path, who: str, verb: str) -> None:
    """Up to the moment of sending a revocation stops a leg; the requester may so take back a call that waits."""
    async with inner_house(tmp_path, shipped) as house:
        house.script = Asker()
        ticket, state = await begun(house)
        person = BOB if who == "approver" else replace(BOB, subject="alice", groups=frozenset())
        await house.desk.act(verb, person, ticket)
        assert await runs(house, ticket) == ["abandoned"]
        assert house.moves[-2:] == [verb, "abandoned"]
        assert await refused(house, leg(house, state)) == (403, 40304, "revoked")
        assert (await refused(house, first(house)))[1] == 40303


async def test_answers_that_need_an_approval_have_a_ticket_of_their_own(tmp_path: Path) -> None:
    """The ticket is bound to call, answers, state and leg; it runs once, together with the use that waits."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        house.script = asker = Asker(times=2)
        begun_with, state = await begun(house)
        answers = await house.approve(leg(house, state))
        assert answers != begun_with
        assert (await house.ticket(answers))["meta"]["inputResponses"] == YES
        other = {"sure": {"action": "decline"}}
        assert (await refused(house, leg(house, state, other)))[:2] == (403, 40303)
        held = house.sink.of("refusal")[-1]
        assert (held["ticket"], held["leg"]) == (begun_with, 1), "the legs of an approved call share its ticket"
        assert held["answers_ticket"] not in (None, begun_with, answers)
        assert await runs(house, begun_with) == ["waiting"]

        following = await state_of(house, leg(house, state))
        assert asker.seen[-1]["requestState"] == "own 1"
        assert await runs(house, begun_with) == ["waiting"]
        assert await runs(house, answers) == ["executed"], "what was approved there was done"
        decision = house.sink.of("decision")[-1]
        assert (decision["ticket"], decision["answers_ticket"]) == (begun_with, answers)
        opened = house.moves.count("request")
        for again in (leg(house, state), leg(house, state, other)):
            assert await refused(house, again) == (403, 40304, "continued")
        assert house.moves.count("request") == opened, "a leg that has passed opens no ticket"

        last = await house.approve(leg(house, following))
        assert (await house.serve(leg(house, following))).status == 200
        assert await runs(house, begun_with) == await runs(house, last) == ["executed"]
        assert await refused(house, leg(house, following)) == (403, 40304, "continued")


async def test_of_parallel_legs_with_approved_answers_one_runs(tmp_path: Path) -> None:
    """Both uses are taken in one transaction: nobody gets the one without the other."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        house.script = Asker()
        _, state = await begun(house)
        await house.approve(leg(house, state))
        replies = await asyncio.gather(*(house.serve(leg(house, state)) for _ in range(30)))
        assert Counter(reply.status for reply in replies) == {200: 1, 403: 29}
        assert {orjson.loads(reply.body)["error"]["code"] for reply in replies if reply.status != 200} == {40304}
        assert len(house.forwarded) == 2


async def test_a_conversation_that_began_without_an_approval_does_not_slip_past_one(tmp_path: Path) -> None:
    """The policy changed between the legs: leg 1 needs what leg 0 did not, whatever the client claims of itself."""
    needed = [False]

    def judge(question: Mapping[str, Any]) -> Verdict:
        return shipped(question) if needed[0] else ALLOW

    async with inner_house(tmp_path, judge) as house:
        house.script = Asker(times=2)
        state = await state_of(house, first(house))
        needed[0] = True
        forged = leg(house, state, {**YES, "approved": True, "leg": 0})
        assert (await refused(house, forged))[:2] == (403, 40303)
        assert (await refused(house, leg(house, state)))[:2] == (403, 40303)
        assert {one["request"]["approved"] for one in house.policy.questions} == {False}
        ticket = await house.approve(leg(house, state))
        following = await state_of(house, leg(house, state))
        assert house.policy.questions[-1]["request"]["leg"] == 1
        assert await runs(house, ticket) == ["waiting"]
        assert (await house.serve(leg(house, following))).status == 200
        legs = [one["request"]["leg"] for one in house.policy.questions if one["request"]["approved"]]
        assert legs == [2], "from the approval on it is covered, and its legs are counted on"
        assert await refused(house, leg(house, following)) == (403, 40304, "continued")


async def test_a_leg_that_needs_no_approval_any_more_still_goes_on_once(tmp_path: Path) -> None:
    """The reverse: what began under an approval stays under it, also where anyone may call it by now."""
    free = [False]
    async with inner_house(tmp_path, lambda one: ALLOW if free[0] else shipped(one)) as house:
        house.script = Asker()
        ticket, state = await begun(house)
        free[0] = True
        assert (await house.serve(leg(house, state))).status == 200
        assert await refused(house, leg(house, state)) == (403, 40304, "continued")
        assert await runs(house, ticket) == ["executed"]


async def test_states_of_two_approved_calls_are_not_mixed(tmp_path: Path) -> None:
    """The answers of one conversation were approved for it: with another's state they are another effect."""
    twice = replace(APPROVE, approval=ApprovalTerms(approvers=("group:payers",), uses=2))
    async with inner_house(tmp_path, lambda _: twice) as house:
        house.script = Asker(states=False)
        ticket, state = await begun(house)
        answers = await house.approve(leg(house, state))
        assert (await house.serve(leg(house, state))).status == 200
        house.script = Asker(states=False)
        other = await state_of(house, first(house))
        assert await runs(house, ticket) == ["executed", "waiting"]
        held = await text_of(await house.serve(leg(house, other)))
        assert held["error"]["code"] == 40303
        assert held["error"]["data"]["ticket"]["id"] != answers
        assert (await house.ticket(answers))["uses_left"] == 1


@pytest.mark.parametrize("approved_answers", [False, True])
async def test_a_leg_of_which_nothing_left_waits_again(tmp_path: Path, approved_answers: bool) -> None:
    """No record, no call, and nothing is burned: the same leg goes on once the record can be written."""
    async with inner_house(tmp_path, (lambda _: APPROVE) if approved_answers else shipped) as house:
        house.script = Asker()
        ticket, state = await begun(house)
        answers = await house.approve(leg(house, state)) if approved_answers else ""
        house.sink.broken = AuditUnavailable("full")
        assert (await refused(house, leg(house, state)))[0] == 503
        assert await runs(house, ticket) == ["waiting"]
        if answers:
            assert (await house.ticket(answers))["uses_left"] == 1
        house.sink.broken = None
        assert (await house.serve(leg(house, state))).status == 200
        assert await refused(house, leg(house, state)) == (403, 40304, "continued")


async def test_a_leg_that_was_sent_and_not_answered_is_unknown_and_not_run_again(tmp_path: Path) -> None:
    """APR-13: the client went away in the middle of a leg; its retry is refused and says why."""
    async with inner_house(tmp_path, shipped) as house:
        house.script = Asker()
        ticket, state = await begun(house)
        here = asyncio.Event()

        async def hang(exchange: Exchange) -> None:
            here.set()
            await exchange.gone(20)

        house.script = hang
        serving = asyncio.create_task(house.serve(leg(house, state)))
        await asyncio.wait_for(here.wait(), 20)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        await house.corridor.delivery.drain()
        house.script = None
        assert await runs(house, ticket) == ["unknown"]
        for again in (leg(house, state), first(house)):
            reply = await text_of(await house.serve(again))
            assert (reply["error"]["code"], reply["error"]["message"]) == (40304, SAID["unknown"])
        assert len(house.forwarded) == 2


async def test_a_retry_after_a_broken_stream_is_a_new_request_and_refused(tmp_path: Path) -> None:
    """There is nothing to resume: `Last-Event-ID` changes nothing, and an unknown outcome is never tried again."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket = await house.approve(first(house))

        async def breaks(exchange: Exchange) -> None:
            await exchange.send(SSE_HEAD + chunk(b"id: 7\ndata: \n\n"))
            exchange.writer.close()

        house.script = breaks
        told = await text_of(await house.serve(first(house)))
        assert told["error"]["code"] == 50202
        assert await runs(house, ticket) == ["unknown"]
        again = first(house)
        head = replace(again.received, headers=(*again.received.headers, (b"last-event-id", b"7")))
        for retry in (again, replace(again, received=head)):
            assert await refused(house, retry) == (403, 40304, "unknown")
        assert len(house.forwarded) == 1


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", {"name": "greet", "arguments": {"who": "bob"}}),
        ("resources/read", {"uri": "demo://accounts"}),
    ],
)
async def test_prompts_and_resources_go_on_alike(tmp_path: Path, method: str, params: dict[str, Any]) -> None:
    """All three methods that may ask for input may need an approval, and keep it over their legs."""
    async with inner_house(tmp_path, shipped) as house:
        house.script = Asker()
        house.prompts += [{"name": name, "arguments": [{"name": "who"}]} for name in ("greet", "demo://other")]
        asked = house.request(message(method, meta=ELICITS, params=params))
        ticket = await house.approve(asked)
        state = await state_of(house, asked)
        again = {**params, "requestState": state, "inputResponses": YES}
        going_on = house.request(message(method, id=2, meta=ELICITS, params=again))
        assert (await house.serve(going_on)).status == 200
        assert await refused(house, going_on) == (403, 40304, "continued")
        assert await runs(house, ticket) == ["executed"]
        other = {**again, ("uri" if "uri" in params else "name"): "demo://other"}
        moved = house.request(message(method, id=3, meta=ELICITS, params=other))
        assert (await refused(house, moved))[:2] == (400, -32602)


async def test_every_state_belongs_to_its_own_call_alone(tmp_path: Path) -> None:
    """Approved and free conversations side by side: of all pairs of a state and a call only the true ones go on."""

    def judge(question: Mapping[str, Any]) -> Verdict:
        return ALLOW if question["request"]["name"] == "secret" else shipped(question)

    async with inner_house(tmp_path, judge) as house:

        async def ask_first(exchange: Exchange) -> None:
            asks = result_of(exchange.id, resultType="input_required", requestState=f"own {len(house.forwarded)}")
            done = result_of(exchange.id)
            await exchange.send(http(200, done if b"inputResponses" in exchange.seen.body else asks))

        house.script = ask_first
        calls = [("pay", {"n": 1}), ("pay", {"n": 2}), ("secret", {"n": 1}), ("secret", {})]

        def make(call: tuple[str, dict[str, Any]], **more: Any) -> Asked:
            name, arguments = call
            return house.request(message(meta=ELICITS, params={"name": name, "arguments": arguments, **more}))

        for call in calls[:2]:
            await house.approve(make(call))
        states = [await state_of(house, make(call)) for call in calls]
        moves = list(house.moves)
        for state in states:
            for call in calls:
                if states.index(state) != calls.index(call):
                    mixed = make(call, requestState=state, inputResponses=YES)
                    assert (await refused(house, mixed))[:2] == (400, -32602)
        assert house.moves == moves
        for state, call in zip(states, calls, strict=True):
            reply = await house.serve(make(call, requestState=state, inputResponses=YES))
            assert reply.status == 200
        assert [orjson.loads(body)["params"]["requestState"] for body in house.forwarded[-4:]] == [
            "own 1", "own 2", "own 3", "own 4",
        ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("verb", ["executed", "waiting"])
async def test_what_ran_is_answered_also_where_its_end_can_not_be_recorded(
    tmp_path: Path, verb: str, stream: bool
) -> None:
    """Nobody is told that nothing was forwarded of a call that ran, and a call that waits is given its state."""
    async with inner_house(tmp_path, shipped) as house:
        house.script = Asker(times=int(verb == "waiting"), stream=stream)
        ticket = await house.approve(first(house))
        keep = house.moves.append

        async def journal(transition: Transition) -> None:
            if transition.verb == verb:
                raise AuditUnavailable("full")
            keep(transition.verb)

        house.desk._journal = journal  # the desk's own way to the record, full from one moment on
        told = await text_of(await house.serve(first(house)))
        assert told["result"]["resultType"] == ("complete" if verb == "executed" else "input_required")
        assert await runs(house, ticket) == [verb]
        assert [one["outcome"] for one in house.sink.of("outcome")] == [RAN[verb]]


RAN = {"executed": "executed", "waiting": "input_required"}
