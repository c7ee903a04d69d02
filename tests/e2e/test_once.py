"""Two gateways, one PostgreSQL, one key: sent once, whoever is asked, however many ask at once, whoever dies when.

The server behind counts what it executes, so the truth does not come from a gateway. kill -9 ends a gateway's worker
at each step of a call under a key; its repetition goes to the other gateway, then to the restarted one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.support.postgres import Postgres
from tests.support.processes import descendants
from tests.support.stack import Stack, call
from tests.support.upstream import Exchange, ScriptedUpstream, http, result_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

DYING = Path(__file__).parent / "dying"
AT_ONCE, BURST = 16, 120
NOT_TAKEN = "before the key is taken"
NEVER_SENT = ("after the key is taken", "after the decision is durable")
SENT = ("while the server works", "after the answer's head", "before the outcome is kept")
KEPT = "after the outcome is kept"
OFTEN = ("after the key is taken", "while the server works", "before the outcome is kept")
"""The steps that are tried with every change; each death makes the supervisor wait longer before the next start."""
STEPS = [
    step if step in OFTEN else pytest.param(step, marks=pytest.mark.soak)
    for step in (NOT_TAKEN, *NEVER_SENT, *SENT, KEPT)
]
PATIENCE_S = 60.0


@dataclass
class Counting:
    """An MCP server that counts what it executes; it kills `victims` when a call has arrived, if there are any."""

    executed: Counter[int] = field(default_factory=Counter)
    victims: Sequence[int] = ()
    gate: asyncio.Event | None = None

    async def answer(self, exchange: Exchange) -> None:
        """One request."""
        asked = json.loads(exchange.seen.body)
        if asked["method"] != "tools/call":
            listed = [{"name": "read", "inputSchema": {"type": "object"}}]
            await exchange.send(http(200, result_of(asked["id"], tools=listed, ttlMs=60_000, cacheScope="public")))
            return
        number = asked["params"]["arguments"]["n"]
        self.executed[number] += 1
        victims, self.victims = self.victims, ()
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        if self.gate is not None:
            await self.gate.wait()
        content = [{"type": "text", "text": f"planted-result-{number}"}]
        await exchange.send(http(200, result_of(asked["id"], content=content)))


@dataclass
class Pair:
    """Both gateways, alike but for ports and records, with the order that a worker of the first may find."""

    one: Stack
    two: Stack
    server: Counting
    order: Path
    http: httpx.AsyncClient
    database: str
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def ask(self, which: Stack, key: str, number: int, subject: str = "alice") -> httpx.Response | None:
        """A call under a key; `None` where the connection broke without an answer."""
        token = self.one.token("main", subject)
        headers = {"Idempotency-Key": key} if key else {}
        with contextlib.suppress(httpx.TransportError):
            return await which.post("main", call("read", {"n": number}), token, self.http, **headers)
        return None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """Both running."""
    order, database = tmp_path_factory.mktemp("dying") / "step", postgres.create()
    server = Counting()
    async with ScriptedUpstream(server.answer) as upstream, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        environment = {"ONCE_DATABASE": database}
        one = Stack(tmp_path_factory.mktemp("one"), {"main": [upstream.url]})
        one.environment = {
            **environment,
            "PYTHONPATH": f"{DYING}:{os.environ.get('PYTHONPATH', '')}",
            "DYING_AT": str(order),
        }
        one.changes = {
            "approvals": {"database_env": "ONCE_DATABASE"},
            "limits": {
                "concurrent": 4 * AT_ONCE,
                "concurrent_per_subject": AT_ONCE,
                "requests_per_subject": 0.5,
                "burst_per_subject": BURST,
            },
        }
        two = Stack(tmp_path_factory.mktemp("two"), one.servers, issuer=one.issuer, secrets=one.secrets)
        two.environment = environment
        two.changes = {**one.changes, "public_url": one.url, "allowed_hosts": [f"127.0.0.1:{two.port}"]}
        async with one, two:
            yield Pair(one, two, server, order, client, database)


def told(answer: httpx.Response | None) -> tuple[int, int]:
    """Status and error code (0: a result)."""
    assert answer is not None
    return answer.status_code, int(answer.json().get("error", {}).get("code", 0))


async def test_of_two_gateways_one_sends(pair: Pair) -> None:
    """The same key at both at once: one execution; the others learn that it runs, and then what came of it."""
    for _ in range(4):
        number, key, pair.server.gate = next(pair.numbers), secrets.token_hex(16), asyncio.Event()
        asking = [asyncio.ensure_future(pair.ask((pair.one, pair.two)[n % 2], key, number)) for n in range(10)]
        while sum(one.done() for one in asking) < 9:
            waiting = [one for one in asking if not one.done()]
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
            assert done, "more than one is being sent"
        pair.server.gate.set()
        answers = await asyncio.gather(*asking)
        assert Counter(told(one) for one in answers) == {(200, 0): 1, (409, 40902): 9}
        pair.server.gate = None
        (first,) = [one for one in answers if told(one) == (200, 0)]
        for which in (pair.one, pair.two):
            again = await pair.ask(which, key, number)
            assert told(again) == (200, 0)
            assert again is not None
            assert first is not None
            assert again.headers["ostiary-replay-of"] == first.headers["ostiary-decision"]
            assert again.json()["result"] == first.json()["result"]
            assert told(await pair.ask(which, key, number + 1_000_000)) == (409, 40901)
        assert pair.server.executed[number] == 1


async def die(pair: Pair, step: str, key: str, number: int, subject: str) -> None:
    """Ask the first gateway, whose worker dies at this step; wait until it is there again."""
    before = await pair.one.worker_pids()
    if step == "while the server works":
        pair.server.victims = before
    else:
        pair.order.write_text(step)
    answer = await pair.ask(pair.one, key, number, subject)
    assert answer is None or step == KEPT
    end = time.monotonic() + PATIENCE_S
    while pair.order.exists() or pair.server.victims or set(await pair.one.worker_pids()) & set(before):
        assert time.monotonic() < end, f"{step} was not reached"
        await asyncio.sleep(0.1)
    await pair.one.until_ready()


@pytest.mark.parametrize("step", STEPS)
async def test_whoever_dies_when_nothing_is_sent_twice(pair: Pair, step: str) -> None:
    """Killed before the key is taken, the repetition runs; from then until its outcome is kept it is unknown at both
    gateways and stays so; kept, it is told again. Never two executions."""
    number, key, subject = next(pair.numbers), secrets.token_hex(16), f"user-{secrets.token_hex(4)}"
    await die(pair, step, key, number, subject)
    expected = {NOT_TAKEN: (200, 0), KEPT: (200, 0)}.get(step, (409, 40904))
    for which in (pair.two, pair.one, pair.two):
        answer = await pair.ask(which, key, number, subject)
        assert told(answer) == expected, step
    assert pair.server.executed[number] == (0 if step in NEVER_SENT else 1)
    assert answer is not None
    assert ("ostiary-replay-of" in answer.headers) == (expected == (200, 0))


async def test_a_subject_that_is_too_fast_is_told_when_to_come_again(pair: Pair) -> None:
    """OPS-04: beyond its burst 429 with `Retry-After`, at once and before anything is sent; nobody else notices."""
    before = sum(pair.server.executed.values())
    eager, number = f"eager-{secrets.token_hex(4)}", next(pair.numbers)
    answers = []
    for _ in range(4 * BURST):
        answers.append(await pair.ask(pair.one, "", number, eager))
        if told(answers[-1]) != (200, 0):
            break
    slow = answers[-1]
    assert told(slow) == (429, 42901)
    assert slow is not None
    assert 1 <= int(slow.headers["retry-after"]) <= 2
    assert len(answers) > BURST
    assert sum(pair.server.executed.values()) == before + len(answers) - 1
    assert told(await pair.ask(pair.one, "", number, "patient")) == (200, 0)
    assert told(await pair.ask(pair.two, "", number, eager)) == (200, 0)


@pytest.mark.parametrize("lasts_s", [1.5, pytest.param(60.0, marks=pytest.mark.soak)])
async def test_one_subject_that_never_stops_disturbs_nobody(pair: Pair, lasts_s: float) -> None:
    """OPS-04: three times what one subject may have at once, again and again: served or told 429 with `Retry-After`.
    Whoever else calls meanwhile is served each time, health answers, and memory does not grow with it."""
    end, before, number = time.monotonic() + lasts_s, _memory(pair.one), next(pair.numbers)
    eager, patient = (f"{how}-{secrets.token_hex(4)}" for how in ("eager", "patient"))
    seen: Counter[tuple[int, bool]] = Counter()

    async def hammer() -> None:
        while time.monotonic() < end:
            answer = await pair.ask(pair.one, "", number, eager)
            assert answer is not None
            seen[answer.status_code, "retry-after" in answer.headers] += 1

    hammering = [asyncio.ensure_future(hammer()) for _ in range(3 * AT_ONCE)]
    served = 0
    while time.monotonic() < end:
        assert told(await pair.ask(pair.one, "", number, patient)) == (200, 0)
        assert (await pair.http.get(f"{pair.one.admin}/readyz")).status_code == 200
        served += 1
        await asyncio.sleep(lasts_s / 100)
    await asyncio.gather(*hammering)
    assert seen.keys() == {(200, False), (429, True)}
    assert served > 0
    assert _memory(pair.one) - before < 48 << 20


def _memory(stack: Stack) -> int:
    """Resident bytes of a gateway and all that belongs to it."""
    assert stack.process is not None
    pids = [stack.process.pid, *descendants(stack.process.pid)]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE")
