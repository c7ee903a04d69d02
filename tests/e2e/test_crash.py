"""kill -9 at every step between the consumption of an approval and its outcome: never two executions (APR-13).

The upstream counts executions, so the truth does not come from the gateway. It kills the worker itself where the step
lies upstream; the other steps are seams that tests/e2e/dying finds from outside. After each death the supervisor
starts a new worker, the identical call is repeated, and the record must say `unknown` where nobody can know.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.demo.exchange import Answer, ask_api, ask_mcp, send
from gateway.demo.house import Ports
from gateway.demo.place import BANK
from gateway.demo.stack import Stack
from tests.support.upstream import Exchange, ScriptedUpstream, http, result_of

DYING = Path(__file__).parent / "dying"
UNUSED = ("before the use is consumed",)
NEVER_SENT = ("after the use is consumed", "after the decision is durable", "after the use is marked as sent")
SENT = (
    "while the upstream works",
    "after the upstream's reply",
    "after the answer's head",
    "before the outcome is recorded",
    "before the use is ended",
)
STEPS = (*UNUSED, *NEVER_SENT, *SENT)
NOT_TAKEN = "before the leg is taken"
LEG_STEPS = (NOT_TAKEN, "after the leg is taken", *NEVER_SENT[1:], *SENT)
NOT_BEGUN, KEPT = "before the lease is taken", "after the result is kept"
ERRAND_STEPS = (NOT_BEGUN, "after the lease is taken", *STEPS, "before the result is kept", KEPT)
NOT_RECORDED = ("after the use is consumed", "after the leg is taken")
ELICITS: dict[str, Any] = {"elicitation": {"form": {}}}
FOLLOWS: dict[str, Any] = {**ELICITS, "extensions": {"io.modelcontextprotocol/tasks": {}}}
FORM = {"mode": "form", "message": "sure?", "requestedSchema": {"type": "object", "properties": {}}}
QUESTION = {"inputRequests": {"sure": {"method": "elicitation/create", "params": FORM}}, "requestState": "its own"}
YES = {"sure": {"action": "accept", "content": {}}}
CHECKED = "transfer_checked"
"""The tool of which the policy wants the answers approved as well."""
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("get_balance", "transfer_funds", CHECKED)]
_amounts = itertools.count(1)


def _data(issuer_url: str) -> dict[str, Any]:
    data = BANK.policy_data(issuer_url)
    tools = data["servers"]["payments"]["tools"]
    transfer = tools["transfer_funds"]
    tools[CHECKED] = {**transfer, "approval": {**transfer["approval"], "answers": "again"}}
    return data


@dataclass
class DeadlyUpstream:
    """An MCP server that counts what it executes, and kills the gateway's worker when told to.

    Before a transfer of an amount that is in `asks` it wants an answer: its execution is the second leg.
    """

    executed: Counter[int] = field(default_factory=Counter)
    asks: set[int] = field(default_factory=set)
    asked: Counter[int] = field(default_factory=Counter)
    deadly: str = ""
    victim: int = 0
    url: str = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Serve in a thread with a loop of its own."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        upstream = ScriptedUpstream(self.answer)
        asyncio.run_coroutine_threadsafe(upstream.start(), loop).result(10)
        self.url = f"http://127.0.0.1:{upstream.port}"
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(upstream.stop(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()

    async def answer(self, exchange: Exchange) -> None:
        """One request: lists are answered, a transfer is executed and counted."""
        asked: dict[str, Any] = json.loads(exchange.seen.body)
        if asked["method"] != "tools/call":
            listed = result_of(asked["id"], tools=TOOLS, ttlMs=60_000, cacheScope="public")
            await exchange.send(http(200, listed))
            return
        amount, reply = asked["params"]["arguments"]["amount_cents"], result_of(asked["id"], isError=False)
        if amount in self.asks and "inputResponses" not in asked["params"]:
            self.asked[amount] += 1
            reply = result_of(asked["id"], resultType="input_required", **QUESTION)
        else:
            self.executed[amount] += 1
        if self.deadly == "while the upstream works":
            self.kill()
        await exchange.send(http(200, reply))
        if self.deadly == "after the upstream's reply":
            self.kill()

    def kill(self) -> None:
        """kill -9, once."""
        self.deadly = ""
        os.kill(self.victim, signal.SIGKILL)


@dataclass
class Scene:
    """The running gateway, the deadly upstream, and the order that a worker may find."""

    stack: Stack
    upstream: DeadlyUpstream
    order: Path
    deaths: int = 0
    checked: set[int] = field(default_factory=set)

    def call(self, amount: int, state: str = "") -> Answer | None:
        """The transfer, or with a `state` its next leg, once; `None` where the connection broke without an answer."""
        token = self.stack.mint("alice", "payments", "mcp:use bank:read payments:write")
        arguments = {"from_account": "operating", "to_account": "payroll", "amount_cents": amount}
        tool = CHECKED if amount in self.checked else "transfer_funds"
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if state:
            params |= {"requestState": state, "inputResponses": YES}
        ask = ask_mcp(self.stack.house.endpoint("payments"), token, "tools/call", params, capabilities=ELICITS)
        try:
            return send(self.stack.http, ask)
        except httpx.TransportError:
            return None

    def approve(self, amount: int, state: str = "") -> str:
        """Ask, and let Bob say yes, to the call or the answers of its next leg; the ticket's id."""
        held = self.call(amount, state)
        assert held is not None
        assert held.code == 40303, held.text
        bob = self.stack.mint("bob", "approvals", "approvals:read approvals:decide")
        url = f"{self.stack.house.approvals_url}/{held.ticket['id']}/approve"
        given = send(self.stack.http, ask_api(url, bob, {"comment": "fine"}))
        assert given.status // 100 == 2, given.text
        return str(held.ticket["id"])

    def hold(self, amount: int) -> tuple[str, str]:
        """Have the transfer held as a task, and let Bob say yes; her id of it, and the ticket's."""
        arguments = {"from_account": "operating", "to_account": "payroll", "amount_cents": amount}
        held = self.ask("tools/call", {"name": "transfer_funds", "arguments": arguments})
        assert held is not None
        assert held.document["result"]["resultType"] == "task", held.text
        again = self.call(amount)  # which is told of the ticket
        assert again is not None
        bob = self.stack.mint("bob", "approvals", "approvals:read approvals:decide")
        url = f"{self.stack.house.approvals_url}/{again.ticket['id']}/approve"
        given = send(self.stack.http, ask_api(url, bob, {"comment": "fine"}))
        assert given.status // 100 == 2, given.text
        return str(held.document["result"]["taskId"]), str(again.ticket["id"])

    def ask(self, method: str, params: dict[str, Any]) -> Answer | None:
        """A request of a client that can follow tasks; `None` where the connection broke without an answer."""
        token = self.stack.mint("alice", "payments", "mcp:use bank:read payments:write")
        ask = ask_mcp(self.stack.house.endpoint("payments"), token, method, params, capabilities=FOLLOWS)
        try:
            return send(self.stack.http, ask)
        except httpx.TransportError:
            return None

    def follow(self, handle: str) -> dict[str, Any]:
        """Poll until the task has ended -> what it tells."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            told = self.ask("tasks/get", {"taskId": handle})
            if told is not None and told.status == 200 and told.document["result"]["status"] != "working":
                result: dict[str, Any] = told.document["result"]
                return result
            time.sleep(0.05)
        pytest.fail("the task did not end")

    def begin(self, amount: int) -> tuple[str, str]:
        """Let the approved transfer be asked for an answer; the ticket's id, and the state that goes on with it."""
        self.upstream.asks.add(amount)
        ticket = self.approve(amount)
        asked = self.call(amount)
        assert asked is not None
        assert asked.document["result"]["resultType"] == "input_required", asked.text
        assert self.runs(ticket) == ["waiting"], "the question was handed out before the use waits"
        self.stack.await_records(asked.decision_id, "outcome")
        return ticket, str(asked.document["result"]["requestState"])

    def runs(self, ticket: str) -> list[str]:
        """The states of the ticket's uses."""
        return [run["state"] for run in self.ticket(ticket)["runs"]]

    def ticket(self, ticket: str) -> dict[str, Any]:
        """The ticket as Bob sees it."""
        bob = self.stack.mint("bob", "approvals", "approvals:read approvals:decide")
        return send(self.stack.http, ask_api(f"{self.stack.house.approvals_url}/{ticket}", bob)).document

    def decisions(self) -> set[str]:
        """The decisions that are recorded by now."""
        return {record["decision_id"] for record in self.stack.audit_records() if record.get("decision_id")}

    def expect_unknown(self, ticket: str, before: set[str]) -> None:
        """The one decision about this ticket since `before` has the outcome `unknown`, once."""
        records = [record for record in self.stack.audit_records() if record.get("decision_id") not in before]
        died = [record for record in records if record["kind"] == "decision" and record.get("ticket") == ticket]
        assert len(died) == 1, records
        outcomes = self.stack.await_records(died[0]["decision_id"], "outcome")
        assert [record["outcome"] for record in outcomes] == ["unknown"], outcomes

    def arm(self, step: str) -> int:
        """Let the worker die at `step`; returns its process id."""
        victim = self.stack.workers_alive()[0]
        if step in ("while the upstream works", "after the upstream's reply"):
            self.upstream.victim, self.upstream.deadly = victim, step
        else:
            self.order.write_text(step)
        return victim

    def await_successor(self, victim: int) -> None:
        """Wait until another worker is ready in the victim's place.

        The supervisor waits a little longer each time; a fresh one after every third death keeps the test quick.
        """
        self.deaths += 1
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            alive = self.stack.workers_alive()
            if alive and victim not in alive:
                break
            time.sleep(0.05)
        else:
            pytest.fail(f"no worker took the place of {victim}:\n{self.stack.parts['gateway'].tail()}")
        if self.deaths % 3 == 0:
            self.stack.restart_gateway()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One gateway with one worker that can be killed again and again."""
    order = tmp_path_factory.mktemp("dying") / "step"
    upstream = DeadlyUpstream()
    with upstream.running():
        environment = {"PYTHONPATH": str(DYING), "DYING_AT": str(order)}
        settings = {"limits": {"tickets_per_hour": 10_000}}
        place = replace(BANK, policy_data=_data)
        ports, replicas = Ports.free(0), (upstream.url,)
        with Stack(ports, replicas=replicas, settings=settings, environment=environment, place=place) as stack:
            yield Scene(stack, upstream, order)


def die_once(scene: Scene, step: str) -> None:
    """One approval, one death at `step`, one repetition of the identical call."""
    amount = next(_amounts)
    ticket = scene.approve(amount)
    victim = scene.arm(step)
    before = scene.decisions()
    scene.call(amount)
    scene.await_successor(victim)
    executed = scene.upstream.executed[amount]

    again = scene.call(amount)
    assert again is not None
    assert scene.upstream.executed[amount] <= 1, "executed twice"

    if step in UNUSED:
        assert executed == 0
        assert again.status == 200, f"the approval was lost although nothing was consumed: {again.text}"
        assert scene.upstream.executed[amount] == 1
        return
    assert executed == (1 if step in SENT else 0)
    assert scene.upstream.executed[amount] == executed, "the repeated call ran"
    if step == "after the upstream's reply" and again.code == 40303:
        return  # the worker was quicker than the kill: its outcome is known, so the effect may be asked for anew
    assert (again.status, again.code) == (403, 40304), again.text
    assert scene.runs(ticket) == ["unknown"]
    if step != "after the use is consumed":
        scene.expect_unknown(ticket, before)


def die_on_a_leg(scene: Scene, step: str, *, is_checked: bool = False) -> None:
    """One approved call that its server asks for an answer, one death at `step` of the leg that brings it.

    Where it `is_checked` the answer has a ticket of its own, which is taken together with the leg.
    """
    amount = next(_amounts)
    if is_checked:
        scene.checked.add(amount)
    ticket, state = scene.begin(amount)
    tickets = [ticket, scene.approve(amount, state)] if is_checked else [ticket]
    before = scene.decisions()
    victim = scene.arm(step)
    scene.call(amount, state)
    scene.await_successor(victim)
    executed = scene.upstream.executed[amount]

    again, bare = scene.call(amount, state), scene.call(amount)
    assert again is not None
    assert bare is not None
    assert (scene.upstream.asked[amount], scene.upstream.executed[amount] <= 1) == (1, True), "executed twice"
    runs = [scene.runs(one) for one in tickets]
    if step in (NOT_TAKEN, *UNUSED):
        assert executed == 0
        assert again.status == 200, f"the leg was lost although it was not taken: {again.text}"
        assert scene.upstream.executed[amount] == 1
        once_more = scene.call(amount, state)
        assert once_more is not None
        assert (once_more.status, once_more.code, bare.code) == (403, 40304, 40303), once_more.text
        assert scene.upstream.executed[amount] == 1, "one leg was continued twice"
        assert runs == [["executed"]] * len(tickets)
        return
    assert executed == (1 if step in SENT else 0)
    assert scene.upstream.executed[amount] == executed, "the repeated leg ran"
    assert (again.status, again.code) == (403, 40304), again.text
    if step == "after the upstream's reply" and runs[0] == ["executed"]:
        return  # the worker was quicker than the kill: its outcome is known
    assert (bare.status, bare.code) == (403, 40304), bare.text
    assert runs == [["unknown"]] * len(tickets)
    if step not in NOT_RECORDED:
        scene.expect_unknown(ticket, before)


def die_while_it_asks(scene: Scene, step: str) -> None:
    """One approved call, one death at `step` of the leg in which its server asks: it never goes on."""
    amount = next(_amounts)
    scene.upstream.asks.add(amount)
    ticket = scene.approve(amount)
    before = scene.decisions()
    victim = scene.arm(step)
    asked = scene.call(amount)
    scene.await_successor(victim)
    again = scene.call(amount)
    assert again is not None
    if step == "after the upstream's reply" and scene.runs(ticket) == ["waiting"]:
        assert (again.status, again.code, scene.upstream.asked[amount]) == (403, 40304, 1), again.text
        return  # the worker was quicker than the kill
    assert asked is None, "the question was handed out before the use waits"
    assert (again.status, again.code) == (403, 40304), again.text
    assert (scene.upstream.asked[amount], scene.upstream.executed[amount]) == (1, 0)
    assert scene.runs(ticket) == ["unknown"]
    scene.expect_unknown(ticket, before)


def die_on_an_errand(scene: Scene, step: str) -> None:
    """One held call that is a task and was approved, one death at `step` of the run that a poll begins."""
    amount = next(_amounts)
    handle, ticket = scene.hold(amount)
    victim = scene.arm(step)
    scene.ask("tasks/get", {"taskId": handle})
    scene.await_successor(victim)
    executed = scene.upstream.executed[amount]
    told = scene.follow(handle)
    assert scene.follow(handle) == told
    if step == NOT_BEGUN:
        assert (executed, told["status"], scene.upstream.executed[amount]) == (0, "completed", 1), told
        return
    assert scene.upstream.executed[amount] == executed, "a poll ran it once more"
    if step == KEPT or (step == "after the upstream's reply" and told["status"] == "completed"):
        assert (executed, told["status"]) == (1, "completed"), told
        return
    assert (told["status"], told["error"]["code"]) == ("failed", 40304), told
    assert "unknown" in told["error"]["message"]
    assert executed == (1 if step in SENT or step == "before the result is kept" else 0)
    again = scene.call(amount)
    assert again is not None
    if step in (*UNUSED, "after the lease is taken"):  # nothing was consumed: the approval is as good as ever
        assert (again.status, scene.upstream.executed[amount]) == (200, 1), again.text
        return
    assert scene.upstream.executed[amount] == executed, "the repeated call ran"
    if step == "before the result is kept" or scene.runs(ticket) == ["executed"]:
        assert again.code == 40303, again.text
        return
    assert (again.code, scene.runs(ticket)) == (40304, ["unknown"]), again.text


@pytest.mark.parametrize("step", STEPS)
def test_a_death_at_any_step_never_executes_twice(scene: Scene, step: str) -> None:
    """A crash costs a new approval at most, never a second execution, and what nobody knows is called unknown."""
    die_once(scene, step)
    verify(scene)


@pytest.mark.parametrize("step", LEG_STEPS)
def test_a_death_at_any_step_of_a_leg_never_executes_twice(scene: Scene, step: str) -> None:
    """A leg that was not taken can still be continued, once; one that was is never run again, and called unknown."""
    die_on_a_leg(scene, step)
    verify(scene)


@pytest.mark.parametrize("step", STEPS)
def test_a_death_with_approved_answers_leaves_both_uses_or_neither(scene: Scene, step: str) -> None:
    """The leg and the approval of its answers are taken, lost and called unknown together."""
    die_on_a_leg(scene, step, is_checked=True)
    verify(scene)


@pytest.mark.parametrize("step", SENT)
def test_a_death_while_the_server_asks_is_unknown_like_any_other(scene: Scene, step: str) -> None:
    """Nobody has the question, so nobody can answer it: the call is not run again by itself."""
    die_while_it_asks(scene, step)
    verify(scene)


@pytest.mark.parametrize("step", ERRAND_STEPS)
def test_a_death_at_any_step_of_a_held_calls_run_never_executes_twice(scene: Scene, step: str) -> None:
    """APR-13: what was begun is never taken up again; its task says nobody knows. A result that was kept stays."""
    die_on_an_errand(scene, step)
    verify(scene)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", ERRAND_STEPS)
def test_twenty_deaths_at_each_step_of_a_held_calls_run(scene: Scene, step: str) -> None:
    """The whole size of APR-13 for held calls that are tasks."""
    for _ in range(20):
        die_on_an_errand(scene, step)
    verify(scene)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", STEPS)
def test_twenty_deaths_at_each_step(scene: Scene, step: str) -> None:
    """The whole size of APR-13: each step, twenty times."""
    for _ in range(20):
        die_once(scene, step)
    verify(scene)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", LEG_STEPS)
def test_twenty_deaths_at_each_step_of_a_leg(scene: Scene, step: str) -> None:
    """The whole size of APR-13 for the legs of a call."""
    for _ in range(20):
        die_on_a_leg(scene, step)
    verify(scene)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", STEPS)
def test_twenty_deaths_at_each_step_with_approved_answers(scene: Scene, step: str) -> None:
    """The whole size of APR-13 for a leg whose answers have a ticket of their own."""
    for _ in range(20):
        die_on_a_leg(scene, step, is_checked=True)
    verify(scene)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", SENT)
def test_twenty_deaths_while_the_server_asks(scene: Scene, step: str) -> None:
    """The whole size of APR-13 for the leg that ends with a question."""
    for _ in range(20):
        die_while_it_asks(scene, step)
    verify(scene)


def verify(scene: Scene) -> None:
    """The chain of records holds over every death."""
    verified = scene.stack.run("audit", "verify", "--config", str(scene.stack.house.config_file))
    assert verified.returncode == 0, verified.stdout + verified.stderr
