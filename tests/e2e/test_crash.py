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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.demo.exchange import Answer, ask_api, ask_tool, send
from gateway.demo.house import Ports
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
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("get_balance", "transfer_funds")]
_amounts = itertools.count(1)


@dataclass
class DeadlyUpstream:
    """An MCP server that counts what it executes, and kills the gateway's worker when told to."""

    executed: Counter[int] = field(default_factory=Counter)
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
        self.executed[asked["params"]["arguments"]["amount_cents"]] += 1
        if self.deadly == "while the upstream works":
            self.kill()
        await exchange.send(http(200, result_of(asked["id"], isError=False)))
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

    def call(self, amount: int) -> Answer | None:
        """The transfer, once; `None` where the connection broke without an answer."""
        token = self.stack.mint("alice", "payments", "mcp:use bank:read payments:write")
        arguments = {"from_account": "operating", "to_account": "payroll", "amount_cents": amount}
        ask = ask_tool(self.stack.house.endpoint("payments"), token, "transfer_funds", arguments)
        try:
            return send(self.stack.http, ask)
        except httpx.TransportError:
            return None

    def approve(self, amount: int) -> str:
        """Ask, and let Bob say yes; the ticket's id."""
        held = self.call(amount)
        assert held is not None
        assert held.code == 40303, held.text
        bob = self.stack.mint("bob", "approvals", "approvals:read approvals:decide")
        url = f"{self.stack.house.approvals_url}/{held.ticket['id']}/approve"
        given = send(self.stack.http, ask_api(url, bob, {"comment": "fine"}))
        assert given.status // 100 == 2, given.text
        return str(held.ticket["id"])

    def ticket(self, ticket: str) -> dict[str, Any]:
        """The ticket as Bob sees it."""
        bob = self.stack.mint("bob", "approvals", "approvals:read approvals:decide")
        return send(self.stack.http, ask_api(f"{self.stack.house.approvals_url}/{ticket}", bob)).document

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
        with Stack(Ports.free(0), replicas=(upstream.url,), settings=settings, environment=environment) as stack:
            yield Scene(stack, upstream, order)


def die_once(scene: Scene, step: str) -> None:
    """One approval, one death at `step`, one repetition of the identical call."""
    amount = next(_amounts)
    ticket = scene.approve(amount)
    victim = scene.arm(step)
    before = {record["decision_id"] for record in scene.stack.audit_records() if record.get("decision_id")}
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
    runs = scene.ticket(ticket)["runs"]
    assert [run["state"] for run in runs] == ["unknown"], runs
    if step != "after the use is consumed":
        records = [record for record in scene.stack.audit_records() if record.get("decision_id") not in before]
        died = [record for record in records if record["kind"] == "decision" and record.get("ticket") == ticket]
        assert len(died) == 1, records
        outcomes = scene.stack.await_records(died[0]["decision_id"], "outcome")
        assert [record["outcome"] for record in outcomes] == ["unknown"], outcomes


@pytest.mark.parametrize("step", STEPS)
def test_a_death_at_any_step_never_executes_twice(scene: Scene, step: str) -> None:
    """A crash costs a new approval at most, never a second execution, and what nobody knows is called unknown."""
    die_once(scene, step)
    verified = scene.stack.run("audit", "verify", "--config", str(scene.stack.house.config_file))
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", STEPS)
def test_twenty_deaths_at_each_step(scene: Scene, step: str) -> None:
    """The whole size of APR-13: each step, twenty times."""
    for _ in range(20):
        die_once(scene, step)
    verified = scene.stack.run("audit", "verify", "--config", str(scene.stack.house.config_file))
    assert verified.returncode == 0, verified.stdout + verified.stderr
