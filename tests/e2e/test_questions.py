"""The page of a reviewer's ten questions, run as it stands against the record of a real gateway.

And what goes with it: the same record at an OpenTelemetry receiver, and the words of a refusal out of a built wheel.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tests.e2e.test_record import TOOLS, a_stack, ostiary
from tests.support.otlp import Receiver
from tests.support.stack import Stack, call
from tests.support.upstream import Exchange, ScriptedUpstream, http, result_of

PAGE = (Path(__file__).parents[2] / "docs/questions.md").read_text()
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
ROOT = Path(__file__).parents[2]


def test_the_page_has_ten_questions_of_one_command_each() -> None:
    """Ten, in order, one `sh` block with one line each."""
    assert [section.partition(".")[0] for section in SECTIONS] == [str(n) for n in range(1, 11)]
    for section in SECTIONS:
        (block,) = re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)
        assert len(block.splitlines()) == 1, section
        assert block.startswith("ostiary ")


def command(number: int) -> str:
    found = re.search(r"```sh\nostiary (.*)\n```", SECTIONS[number - 1])
    assert found is not None
    return found[1]


@dataclass
class Told:
    """A record with something in it to ask for."""

    stack: Stack
    receiver: Receiver
    denied: str
    ticket: str
    ran: str
    lost: str

    async def ask(self, number: int, *more: str, writes: bool = False) -> tuple[int, str]:
        """The page's command, its placeholders replaced."""
        today = datetime.now(UTC).date()
        words = {
            "ostiary.yaml": str(self.stack.config),
            "TICKET": self.ticket,
            "ID": self.ran if writes else self.denied,
            "2026-11-24": (today - timedelta(days=1)).isoformat(),
            "2026-11-25": (today + timedelta(days=1)).isoformat(),
            "OLD": str(self.stack.folder / "bundle"),
            "NEW": str(self.stack.folder / "newer"),
            "incident.jsonl": str(self.stack.folder / "incident.jsonl"),
        }
        asked = [words.get(word, word) for word in shlex.split(command(number))]
        return await ostiary(self.stack, *asked, *more)


async def _answer(exchange: Exchange) -> None:
    asked = json.loads(exchange.seen.body)
    if asked["params"].get("arguments", {}).get("lose"):
        exchange.reset()
        return
    listed = asked["method"] == "tools/list"
    tools = [*TOOLS, {"name": "drop", "inputSchema": {"type": "object"}}]
    result = {"tools": tools, "ttlMs": 60_000, "cacheScope": "public"} if listed else {"isError": False}
    await exchange.send(http(200, result_of(asked["id"], **result)))


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Told]:
    upstream, receiver = ScriptedUpstream(_answer), Receiver()
    await upstream.start()
    stack = a_stack(tmp_path, f"http://127.0.0.1:{upstream.port}/mcp", 1, otlp={"endpoint": receiver.url})
    try:
        async with stack, httpx.AsyncClient(trust_env=False, timeout=30) as client:
            token = stack.token("files")
            denied = await stack.post("files", call("drop"), token, client)
            assert denied.status_code == 403, denied.text
            held = await stack.post("files", call("write", {"path": "/a"}), token, client)
            ticket = held.json()["error"]["data"]["ticket"]["id"]
            given = await client.post(
                f"{stack.url}/approvals/{ticket}/approve",
                json={"comment": "fine"},
                headers={"Authorization": f"Bearer {stack.person()}"},
            )
            assert given.status_code == 200, given.text
            ran = await stack.post("files", call("write", {"path": "/a"}), token, client)
            assert ran.status_code == 200, ran.text
            lost = await stack.post("files", call("read", {"lose": True}), token, client)
            assert lost.status_code >= 500
            for n in range(8):
                assert (await stack.post("files", call("read", {"n": n}), token, client)).status_code == 200
        newer = shutil.copytree(tmp_path / "bundle", tmp_path / "newer")
        data = json.loads((newer / "mcp/authz/data.json").read_text())
        data["servers"]["files"]["tools"]["drop"] = {"effect": "write", "scopes": ["files:drop"]}
        (newer / "mcp/authz/data.json").write_text(json.dumps(data))
        ids = [answer.headers["ostiary-decision"] for answer in (denied, ran, lost)]
        yield Told(stack, receiver, ids[0], ticket, ids[1], ids[2])
    finally:
        await upstream.stop()
        receiver.server.shutdown()
        receiver.server.server_close()


async def test_each_question_is_answered_by_its_command(told: Told) -> None:
    """The page's commands, as they stand there: each exits as told and its answer holds what was asked for."""
    code, output = await told.ask(1)
    moves = [line.split("  ")[2] for line in output.splitlines()]
    assert (code, moves[:2]) == (0, ["request", "approve"]), output
    assert "  bob  " in output.splitlines()[1]

    code, output = await told.ask(2)
    assert (code, len(output.splitlines())) == (0, 10), output
    assert told.ran in output
    assert told.denied not in output

    code, output = await told.ask(3)
    assert (code, "why: policy_denied: " in output, "policy's reasons: " in output) == (0, True, True), output

    code, output = await told.ask(4)
    assert (code, "whole, " in output, "signed by" in output) == (0, True, True), output

    code, output = await told.ask(5)
    assert (code, "drop" in output) == (1, True), output

    code, output = await told.ask(6)
    (record,) = [json.loads(line) for line in output.splitlines()]
    assert (code, record["actor"]["subject"], record["ticket"], record["outcome"]) == (
        0, "alice", told.ticket, "executed"
    )  # fmt: skip

    code, output = await told.ask(7)
    assert (code, [told.denied in line for line in output.splitlines()]) == (0, [True]), output

    code, output = await told.ask(8)
    assert (code, [told.lost in line for line in output.splitlines()]) == (0, [True]), output

    code, output = await told.ask(9)
    acts = [line.split("  ")[2] for line in output.splitlines()]
    assert (code, acts[0], acts[-1]) == (0, "started", "stopped"), output

    code, output = await told.ask(10, writes=True)
    assert (code, output) == (0, ""), output
    shown = (await ostiary(told.stack, "audit", "checkpoint", "--config", str(told.stack.config), "--show-key"))[1]
    code, output = await ostiary(
        told.stack, "audit", "verify", "--file", str(told.stack.folder / "incident.jsonl"),
        "--public-key", shown.strip(),
    )  # fmt: skip
    assert (code, "a whole export" in output, "signed by" in output) == (0, True, True), output

    await _every_record_reached_the_receiver(told)
    await _a_wheel_knows_the_words(told)


async def _every_record_reached_the_receiver(told: Told) -> None:
    """A real gateway's OpenTelemetry export: each line of the record once the gateway has ended, verbatim."""
    code, output = await ostiary(
        told.stack, "audit", "search", "--config", str(told.stack.config), "-n", "0", "--json", "--oldest-first"
    )
    assert code == 0
    exported = {record.body.string_value for record in told.receiver.records}
    assert set(output.splitlines()) == exported


async def _a_wheel_knows_the_words(told: Told) -> None:
    """What is installed has docs/refusals.md inside: `explain` from a built wheel, outside of any checkout."""
    folder = told.stack.folder / "wheel"
    built = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "installed")
    source = (
        f"import sys; sys.path.insert(0, {str(folder / 'installed')!r}); import gateway;"
        f" assert gateway.__file__.startswith({str(folder)!r}), gateway.__file__;"
        " from gateway.cli import main; main()"
    )
    told_by = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", source, "explain", told.denied, "--config", str(told.stack.config)],
        cwd=folder, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin", **told.stack.secrets},
    )  # fmt: skip
    assert told_by.returncode == 0, told_by.stderr
    assert "why: policy_denied: " in told_by.stdout
    assert "has no words for it" not in told_by.stdout
