"""The official TypeScript client, unmodified, lists and calls through the gateway with a bearer token."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.demo.exchange import ask_api, send
from gateway.demo.stack import Stack

FOLDER = Path(__file__).parent / "typescript"

Drive = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture
def drive() -> Drive:
    """Run the client on a plan; its answer decoded."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (FOLDER / "node_modules" / "@modelcontextprotocol" / "client").is_dir():
        pytest.skip("the TypeScript client is not installed: npm ci --prefix tests/e2e/typescript")

    def run(plan: dict[str, Any]) -> dict[str, Any]:
        command = [node, "client.mjs"]
        done = subprocess.run(
            command, cwd=FOLDER, input=json.dumps(plan), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    return run


def refusal(answer: dict[str, Any]) -> dict[str, Any]:
    """The JSON-RPC error of a refused call. This client hands an HTTP 403 to its caller whole, as an HTTP error."""
    assert answer["error"]["data"]["status"] == 403, answer
    error: dict[str, Any] = json.loads(answer["error"]["data"]["text"])["error"]
    return error


@pytest.mark.parametrize("mode", ["auto", {"pin": "2026-07-28"}], ids=["auto", "pinned"])
def test_the_client_lists_calls_reads_and_prompts(stack: Stack, drive: Drive, mode: object) -> None:
    """Everything that the read-only server offers can be used through the gateway, probing or pinned."""
    said = drive(
        {
            "url": stack.house.endpoint("readonly"),
            "token": stack.mint("alice", "readonly", "mcp:use bank:read"),
            "mode": mode,
            "calls": [{"name": "get_balance", "arguments": {"account": "payroll"}}],
            "resource": "bank://accounts",
            "prompt": {"name": "account_report", "arguments": {"account": "payroll"}},
        }
    )
    assert said["connected"] is True, said
    assert said["version"] == "2026-07-28"
    assert [tool["name"] for tool in said["tools"]["result"]["tools"]] == ["get_balance", "list_transfers"]
    found = said["calls"][0]["result"]["structuredContent"]
    assert found["balance_cents"] == stack.books.balance("payroll")
    assert "supplier-acme" in said["resource"]["result"]["contents"][0]["text"]
    assert "payroll" in said["prompt"]["result"]["messages"][0]["content"]["text"]


def test_without_a_token_the_client_does_not_connect(stack: Stack, drive: Drive) -> None:
    """A token that was not made here opens nothing."""
    said = drive({"url": stack.house.endpoint("readonly"), "token": "made-up", "mode": {"pin": "2026-07-28"}})
    assert "error" in (said["connected"] if said["connected"] is not True else said["tools"]), said


def test_a_gated_call_runs_once_after_approval_by_repeating_it(stack: Stack, drive: Drive) -> None:
    """Held with 40303 and a ticket, approved by another person, run exactly once by the identical call."""
    memo = "typescript client"
    plan = {
        "url": stack.house.endpoint("payments"),
        "token": stack.mint("alice", "payments", "mcp:use bank:read payments:write"),
        "mode": {"pin": "2026-07-28"},
        "calls": [
            {
                "name": "transfer_funds",
                "arguments": {
                    "from_account": "operating",
                    "to_account": "supplier-globex",
                    "amount_cents": 777,
                    "memo": memo,
                },
            }
        ],
    }

    def moved() -> int:
        return sum(line["memo"] == memo for line in stack.books.transfers())

    held = refusal(drive(plan)["calls"][0])
    assert held["code"] == 40303
    assert moved() == 0
    ticket = held["data"]["ticket"]
    reviewer = stack.mint("bob", "approvals", "approvals:read approvals:decide")
    url = f"{stack.house.approvals_url}/{ticket['id']}/approve"
    assert send(stack.http, ask_api(url, reviewer, {"comment": "fine"})).status // 100 == 2
    assert "result" in drive(plan)["calls"][0]
    assert moved() == 1
    assert refusal(drive(plan)["calls"][0])["code"] == 40303
    assert moved() == 1
