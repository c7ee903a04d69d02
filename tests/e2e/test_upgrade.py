"""Upgrades at noon: a gateway that stops, is restarted or takes other settings while its clients go on calling."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.processes import eventually
from tests.support.stack import Stack, call
from tests.support.upstream import Exchange, ScriptedUpstream, http, result_of

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "write")]
DRAIN_S = 2.0
CALLS = 'ostiary_requests_total{method="tools/call",reason="executed"'


async def answer(exchange: Exchange) -> None:
    """An MCP server that does what it is told at once."""
    asked = json.loads(exchange.seen.body)
    listed = {"tools": TOOLS, "ttlMs": 60_000, "cacheScope": "public"}
    await exchange.send(http(200, result_of(asked["id"], **(listed if asked["method"] == "tools/list" else {}))))


@pytest.fixture
async def replica() -> AsyncIterator[str]:
    """The server's URL."""
    upstream = ScriptedUpstream(answer)
    await upstream.start()
    yield f"http://127.0.0.1:{upstream.port}/mcp"
    await upstream.stop()


async def test_traffic_that_still_arrives_is_served(tmp_path: Path, replica: str) -> None:
    """OPS-01, as an orchestrator does it: readiness goes first, whoever still comes or rests on a kept connection is
    served and told that it is the last time, and after `limits.drain_s` newcomers are refused, never cut off."""
    stack = Stack(tmp_path, {"files": [replica]}, workers=2, changes={"limits": {"drain_s": DRAIN_S}})
    async with stack, httpx.AsyncClient(trust_env=False, timeout=30) as kept:
        assert (await stack.post("files", call(), client=kept)).status_code == 200
        assert stack.process is not None
        began = time.monotonic()
        stack.process.send_signal(signal.SIGTERM)
        async with httpx.AsyncClient(trust_env=False) as operator:

            async def not_ready() -> bool:
                return (await operator.get(f"{stack.admin}/readyz")).status_code == 503

            assert await eventually("it is not ready", not_ready) < DRAIN_S / 2

        async def until_refused(number: int) -> list[tuple[int, str]]:
            answers: list[tuple[int, str]] = []
            token = stack.token("files", f"agent-{number}")
            while True:
                try:
                    answered = await stack.post("files", call(), token)
                except httpx.ConnectError:
                    assert time.monotonic() - began >= DRAIN_S, "while traffic may come, nobody is turned away"
                    return answers
                answers.append((answered.status_code, answered.headers.get("connection", "")))
                await asyncio.sleep(0.02)

        served = await asyncio.gather(*[until_refused(number) for number in range(4)])
        assert {status for answers in served for status, _ in answers} == {200}
        assert {answers[-1] for answers in served} == {(200, "close")}, "the workers have heard of it by then"
        assert await stack.stop() == 0


async def test_a_terminal_does_not_wait(tmp_path: Path, replica: str) -> None:
    """SIGINT, also after SIGTERM: the same end, without waiting for traffic."""
    stack = Stack(tmp_path, {"files": [replica]}, changes={"limits": {"drain_s": 20, "grace_s": 40}})
    async with stack, httpx.AsyncClient(trust_env=False, timeout=30) as kept:
        assert (await stack.post("files", call(), client=kept)).status_code == 200
        assert stack.process is not None
        began = time.monotonic()
        stack.process.send_signal(signal.SIGTERM)

        async def is_told() -> bool:
            told = await stack.post("files", call(), client=kept)
            return bool(told.headers.get("connection") == "close")

        await eventually("it leaves", is_told)
        assert await stack.stop(signal.SIGINT) == 0
        assert time.monotonic() - began < 15


async def readiness(stack: Stack) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False) as client:
        return dict((await client.get(f"{stack.admin}/readyz")).json())


async def metrics(stack: Stack) -> dict[str, float]:
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"{stack.admin}/metrics")).text
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {series: float(value) for series, _, value in lines}


def events(stack: Stack, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in stack.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


def writers(stack: Stack) -> list[Path]:
    """The audit files of all that there ever were."""
    return [
        file for file in stack.folder.glob("audit.jsonl*") if file.suffix[1:].isdigit() or file.suffix == ".jsonl"
    ]


def all_records(stack: Stack) -> list[dict[str, Any]]:
    """What all of them wrote; a line that is being written is left out."""
    lines = [line for file in writers(stack) for line in file.read_bytes().splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def acts(stack: Stack, act: str) -> list[dict[str, Any]]:
    return [record["facts"] for record in all_records(stack) if record.get("act") == act]


def change(stack: Stack, edit: Callable[[dict[str, Any]], object]) -> str:
    """Edit the configuration as a person would -> its digest."""
    document = yaml.safe_load(stack.config.read_text())
    edit(document)
    stack.config.write_text(yaml.safe_dump(document, sort_keys=False))
    return hashlib.sha256(stack.config.read_bytes()).hexdigest()


async def reloaded(stack: Stack, event: str, times: int = 1) -> dict[str, Any]:
    """Wait until a reload has ended as `event` for the `times`-th time, and is written down -> the log's line."""
    await eventually(event, lambda: len(events(stack, event)) >= times, 120)
    await eventually(f"{event} is recorded", lambda: len(acts(stack, event)) >= times, 60)
    return events(stack, event)[times - 1]


def hang_up(stack: Stack) -> None:
    assert stack.process is not None
    stack.process.send_signal(signal.SIGHUP)


async def test_another_configuration_is_taken_without_a_dropped_request(tmp_path: Path, replica: str) -> None:
    """SIGHUP under load: no request fails, subscriptions end gracefully, every worker runs on the new text, of which
    readiness, metrics, log and record tell the digest; no counter goes back, and no audit file is left open."""
    stack = Stack(tmp_path, {"files": [replica]}, workers=2, changes={"limits": {"drain_s": 1}})
    async with stack, httpx.AsyncClient(trust_env=False, timeout=30) as kept:
        before = (await readiness(stack))["configuration"]["digest"]
        assert before == hashlib.sha256(stack.config.read_bytes()).hexdigest()
        pids = set(await stack.worker_pids())
        assert (await stack.post("more", call(), stack.token("more"))).status_code == 404
        token, done, statuses = stack.token("files"), asyncio.Event(), list[int]()

        async def keep_calling(client: httpx.AsyncClient | None) -> None:
            while not done.is_set():
                statuses.append((await stack.post("files", call(), token, client)).status_code)

        calling = [asyncio.create_task(keep_calling(client)) for client in (None, None, kept, kept)]
        await eventually("calls are served", lambda: len(statuses) > 4)
        after = change(stack, lambda document: document["servers"].update(more=more_of(document)))
        hang_up(stack)
        taken = await reloaded(stack, "configuration_taken")
        counted = sum(value for series, value in (await metrics(stack)).items() if series.startswith(CALLS))
        done.set()
        await asyncio.gather(*calling)
        assert set(statuses) == {200}
        assert counted >= len(statuses) - 20
        assert (taken["digest"], taken["before"]) == (after, before)
        shown = await readiness(stack)
        assert shown["configuration"] == {"digest": after, "current": True, "state": "idle", "why": ""}
        assert [worker["configuration"] for worker in shown["workers"]] == [after, after]
        assert {worker["loaded"] for worker in shown["workers"]} == {shown["loaded"]["digest"]}
        assert shown["loaded"]["parts"]["configuration"] == after
        assert not pids & set(await stack.worker_pids())
        figures = await metrics(stack)
        assert figures["ostiary_configuration_current"] == 1
        assert figures['ostiary_configuration_reloads_total{result="taken"}'] == 1
        assert figures[f'ostiary_configuration_info{{digest="{after}"}}'] == 2
        assert figures["ostiary_worker_restarts_total"] == 0
        answered = await stack.post("more", call(), stack.token("more"))
        assert answered.status_code == 403, "there is such a server now; the policy does not know it"
        assert sorted(one["configuration"] for one in acts(stack, "started") if "configuration" in one) == sorted(
            [before, before, after, after]
        )
        assert await stack.stop() == 0
    assert len(writers(stack)) == 3, "one more than workers, however often"
    assert {json.loads(file.read_text().splitlines()[-1])["act"] for file in writers(stack)} == {"stopped"}


def more_of(document: dict[str, Any]) -> dict[str, Any]:
    """A second server like the first one."""
    return {**document["servers"]["files"], "path": "/more/mcp"}


async def test_a_bad_configuration_changes_nothing_and_says_so(tmp_path: Path, replica: str) -> None:
    """What can't be used is refused, with file, line, key and mend in log, record and readiness; all else goes on."""
    async with Stack(tmp_path, {"files": [replica]}) as stack:
        pids = await stack.worker_pids()
        digest = change(stack, lambda one: one.update(listen={"port": 1}, audit={"file": "other.jsonl"}))
        hang_up(stack)
        refused = await reloaded(stack, "configuration_refused")
        first, second = refused["mistakes"].splitlines()
        where = re.escape(str(stack.config))
        assert re.fullmatch(
            where + r":\d+: listen\.port: can't change .* -> put the old value back, or restart", first
        )
        assert re.match(where + r":\d+: audit\.file: can't change", second)
        assert refused["digest"] == digest
        shown = await readiness(stack)
        assert shown["ready"]
        assert (shown["configuration"]["current"], shown["configuration"]["why"]) == (False, first)
        figures = await metrics(stack)
        assert figures["ostiary_configuration_current"] == 0
        assert figures['ostiary_configuration_reloads_total{result="refused"}'] == 1
        assert [one["digest"] for one in acts(stack, "configuration_refused")] == [digest]
        assert await stack.worker_pids() == pids
        assert (await stack.post("files", call())).status_code == 200
