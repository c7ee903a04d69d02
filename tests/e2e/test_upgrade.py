"""Upgrades at noon: a gateway that stops, is restarted or takes other settings while its clients go on calling."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.processes import eventually
from tests.support.stack import Stack, call
from tests.support.upstream import Exchange, ScriptedUpstream, http, result_of

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "write")]
DRAIN_S = 2.0


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
