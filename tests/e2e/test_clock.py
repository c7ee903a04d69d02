"""The host's clock steps by an hour and back under a gateway that runs (OPS-06): real processes under libfaketime."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.support.processes import eventually
from tests.support.stack import Stack, call
from tests.support.upstream import Exchange, ScriptedUpstream, http, result_of

HOUR_S = 3600
LIBRARY = "/usr/$LIB/faketime/libfaketimeMT.so.1"  # the loader knows $LIB
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "write")]
WRITE = call("write", {"n": 1})


@dataclass
class Clocked:
    """A gateway, the file that says how far off its clock is, and what its server ran."""

    stack: Stack
    offset: Path
    executed: list[str] = field(default_factory=list)
    now_s: int = 0

    def step(self, to_s: int) -> None:
        """The clock goes to so many seconds before or after the right time, at once."""
        coming = self.offset.with_name("coming")
        coming.write_text(f"{to_s:+d}\n")
        coming.replace(self.offset)
        self.now_s = to_s

    def token(self, server: str = "files", off_s: int | None = None, **more: Any) -> str:
        """One that is good by a clock that is so far off, the gateway's own unless it is said."""
        at = int(time.time()) + (self.now_s if off_s is None else off_s)
        return self.stack.token(server, iat=at, exp=at + 300, **more)

    async def ask(self, message: dict[str, Any], token: str = "") -> tuple[int, Any]:
        """(status, the error's code, or None)."""
        answer = await self.stack.post("files", message, token or self.token())
        return answer.status_code, answer.json().get("error", {}).get("code")

    async def approved(self) -> str:
        """A ticket for the write that Bob has said yes to."""
        held = await self.stack.post("files", WRITE, self.token())
        ticket = str(held.json()["error"]["data"]["ticket"]["id"])
        at = int(time.time()) + self.now_s
        bob = {"Authorization": f"Bearer {self.stack.person('bob', iat=at, exp=at + 300)}"}
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:  # the first visitor opens the API
            url = f"{self.stack.url}/approvals/{ticket}/approve"
            given = await client.post(url, json={"comment": "fine"}, headers=bob)
        assert given.status_code == 200, given.text
        return ticket


@pytest.fixture
async def clocked(tmp_path: Path) -> AsyncIterator[Clocked]:
    """Its clock is right so far."""
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not here: apt-get install faketime")

    async def answer(exchange: Exchange) -> None:
        asked = json.loads(exchange.seen.body)
        if asked["method"] == "tools/call":
            it.executed.append(asked["params"]["name"])
            await exchange.send(http(200, result_of(asked["id"], isError=False)))
        else:
            listed = result_of(asked["id"], tools=TOOLS, ttlMs=60_000, cacheScope="public")
            await exchange.send(http(200, listed))

    offset = tmp_path / "offset"
    environment = {
        "LD_PRELOAD": LIBRARY,
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
    upstream = ScriptedUpstream(answer)
    await upstream.start()
    folder = tmp_path / "gateway"
    folder.mkdir()
    stack = Stack(folder, {"files": [f"http://127.0.0.1:{upstream.port}/mcp"]}, environment=environment)
    it = Clocked(stack, offset)
    it.step(0)
    async with stack:
        yield it
    await upstream.stop()


async def test_a_clock_that_steps_lets_nothing_through_and_stops_nothing(clocked: Clocked) -> None:
    """OPS-06: an hour ahead, an hour behind, right again: tokens and approvals of another time are refused, those of
    the time are served within 5 s, no worker is lost, no approval runs twice, and the record is whole."""
    right = clocked.token()
    assert await clocked.ask(call(), right) == (200, None)
    await clocked.approved()

    clocked.step(HOUR_S)
    assert (await clocked.ask(call(), right))[0] == 401, "it expired by this clock"
    await eventually("calls of this hour are served", served(clocked), 5)
    assert await clocked.ask(WRITE) == (403, 40303), "the approval is an hour old"
    assert "write" not in clocked.executed

    clocked.step(-HOUR_S)
    assert (await clocked.ask(call(), right))[0] == 401, "it is not good yet by this clock"
    await eventually("calls of the hour before are served", served(clocked), 5)

    clocked.step(0)
    await eventually("the first caller is served again", served(clocked, right), 5)
    await clocked.approved()
    assert await clocked.ask(WRITE) == (200, None)
    assert (await clocked.ask(WRITE))[0] == 403
    assert clocked.executed.count("write") == 1
    told = [json.loads(line)["event"] for line in clocked.stack.log().splitlines() if line.startswith("{")]
    assert not {"worker_died", "worker_hangs", "defect", "task_broke"} & set(told)
    config = str(clocked.stack.config)
    done = CliRunner().invoke(main, ["audit", "verify", "--config", config], env=clocked.stack.secrets)
    assert done.exit_code == 0, done.output


def served(clocked: Clocked, token: str = "") -> Any:
    """Whether a harmless call is, by a token of the time unless one is given."""

    async def holds() -> bool:
        return (await clocked.ask(call(), token))[0] == 200

    return holds
