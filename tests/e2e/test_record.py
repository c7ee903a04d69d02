"""The record of a whole gateway: rotated, kept elsewhere, searched, killed at, and whole in the end."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.audit.segments import list_chains, segments_of
from tests.support.postgres import Postgres
from tests.support.stack import Stack, call
from tests.support.upstream import Exchange, ScriptedUpstream, http, result_of

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "write")]


async def _answer(exchange: Exchange) -> None:
    asked = json.loads(exchange.seen.body)
    listed = asked["method"] == "tools/list"
    result: dict[str, Any] = (
        {"tools": TOOLS, "ttlMs": 60_000, "cacheScope": "public"} if listed else {"isError": False}
    )
    await exchange.send(http(200, result_of(asked["id"], **result)))


@pytest.fixture
async def replica() -> AsyncIterator[str]:
    upstream = ScriptedUpstream(_answer)
    await upstream.start()
    yield f"http://127.0.0.1:{upstream.port}/mcp"
    await upstream.stop()


def a_stack(folder: Path, replica: str, workers: int, **audit: Any) -> Stack:
    (folder / "elsewhere").mkdir()
    settings = {
        "file": "audit.jsonl",
        "rotate_bytes": 65_536,
        "checkpoints": {"file": "elsewhere/checkpoints", "every_s": 1},
        **audit,
    }
    stack = Stack(folder, {"files": [replica]}, workers=workers, changes={"audit": settings})
    stack.secrets["OSTIARY_CHECKPOINT_KEY"] = base64.urlsafe_b64encode(os.urandom(32)).decode()
    return stack


async def ostiary(stack: Stack, *words: str) -> tuple[int, str]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli", *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={**os.environ, **stack.secrets},
    )  # fmt: skip
    output, _ = await child.communicate()
    assert child.returncode is not None
    return child.returncode, output.decode()


async def _write(stack: Stack, until: float, client: httpx.AsyncClient, seen: list[str]) -> None:
    token = stack.token("files")
    while time.monotonic() < until:
        try:
            answer = await stack.post("files", call("read", {"n": len(seen)}), token, client)
        except httpx.TransportError:
            continue  # its worker was killed
        if answer.status_code == 200:
            seen.append(answer.headers["ostiary-decision"])


async def _wrote_and_verifies(stack: Stack, seconds: float, kills: int) -> None:
    """Write on many connections, kill workers meanwhile, stop; every chain is whole and every answer is in one."""
    chance = random.Random(f"{stack.port}")
    seen: list[str] = []
    async with stack, httpx.AsyncClient(trust_env=False, timeout=30) as client:
        until = time.monotonic() + seconds
        writers = [asyncio.create_task(_write(stack, until, client, seen)) for _ in range(4 * stack.workers)]
        for _ in range(kills):
            await asyncio.sleep(seconds / (kills + 1))
            os.kill(chance.choice(await stack.worker_pids()), signal.SIGKILL)
        await asyncio.gather(*writers)
        await stack.until_ready(90)  # whoever replaced a dead worker has closed what that one left open
        assert any(segments_of(slot) for _, slot in list_chains(stack.folder / "audit.jsonl"))
        code, told = await ostiary(stack, "audit", "verify", "--config", str(stack.config))
        assert code == 0, told
    code, told = await ostiary(stack, "audit", "verify", "--config", str(stack.config))
    assert code == 0, told
    assert "signed by" in told
    code, told = await ostiary(
        stack, "audit", "search", "--config", str(stack.config), "--kind", "decision", "-n", "0", "--json"
    )
    assert code == 0
    decided = [json.loads(line)["decision_id"] for line in told.splitlines()]
    assert len(decided) == len(set(decided))
    assert len(seen) > 100
    assert set(seen) <= set(decided)
    code, told = await ostiary(
        stack, "audit", "search", "--config", str(stack.config), "--kind", "outcome", "-n", "0", "--json"
    )
    ends = [json.loads(line)["decision_id"] for line in told.splitlines()]
    assert set(ends) == set(decided), "each decision has its end, also those whose writer was killed"


async def test_a_gateway_that_rotates_and_is_killed_at_keeps_a_whole_record(tmp_path: Path, replica: str) -> None:
    """AUD-06, AUD-07: two workers write, one is killed; all chains verify against what was kept elsewhere."""
    await _wrote_and_verifies(a_stack(tmp_path, replica, 2), 6, 1)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_eight_workers_write_for_a_minute(tmp_path: Path, replica: str) -> None:
    """AUD-06: eight workers, a minute, six deaths; then every chain is whole and no answer is without its record."""
    await _wrote_and_verifies(a_stack(tmp_path, replica, 8, rotate_bytes=1_000_000), 60, 6)


async def test_old_files_go_while_the_gateway_runs(tmp_path: Path, replica: str) -> None:
    """Retention by the settings alone: files go, `verify --config` says from where on the chain is whole."""
    stack = a_stack(tmp_path, replica, 1, keep_s=1)
    slot = tmp_path / "audit.jsonl"
    async with stack, httpx.AsyncClient(trust_env=False, timeout=30) as client:
        end = time.monotonic() + 60
        while not (segments_of(slot) and segments_of(slot)[0][0] > 1):
            assert time.monotonic() < end, stack.log()
            await _write(stack, time.monotonic() + 0.5, client, [])
    code, told = await ostiary(stack, "audit", "verify", "--config", str(stack.config))
    assert code == 0, told
    assert "where a checkpoint begins" in told
    code, told = await ostiary(stack, "audit", "verify", "--file", str(slot))
    assert (code, "[head_cut]" in told) == (1, True)


async def test_a_gateway_on_a_database_stops_with_it_and_comes_back(tmp_path: Path, replica: str) -> None:
    """AUD-07: PostgreSQL gone: 503 within 2 s and nothing forwarded; back: served again, every record whole."""
    server = Postgres()
    await asyncio.to_thread(server.start)
    try:
        stack = a_stack(tmp_path, replica, 2, rotate_bytes=0, database_env="AUDIT_DATABASE")
        stack.secrets["AUDIT_DATABASE"] = server.create()
        async with stack, httpx.AsyncClient(trust_env=False, timeout=30) as client:
            seen: list[str] = []
            await _write(stack, time.monotonic() + 1, client, seen)
            assert seen
            await asyncio.to_thread(server.kill)
            token = stack.token("files")
            for _ in range(4):
                began = time.monotonic()
                answer = await stack.post("files", call("read", {}), token, client)
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, 50304)
                assert time.monotonic() - began < 2.0
            await asyncio.to_thread(server.start)
            end = time.monotonic() + 20
            while (await stack.post("files", call("read", {}), token, client)).status_code != 200:
                assert time.monotonic() < end
                await asyncio.sleep(0.1)
            assert server.password not in stack.log()
        code, told = await ostiary(stack, "audit", "verify", "--config", str(stack.config))
        assert (code, told.count("whole,")) == (0, 2), told
        code, told = await ostiary(
            stack, "audit", "search", "--config", str(stack.config), "--kind", "decision", "-n", "0", "--json"
        )
        decided = {json.loads(line)["decision_id"] for line in told.splitlines()}
        assert set(seen) <= decided
        assert not (tmp_path / "audit.jsonl").exists()
    finally:
        await asyncio.to_thread(server.remove)
