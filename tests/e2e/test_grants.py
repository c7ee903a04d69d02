"""A grant from the shell to the server: asked for, shown, approved, used by calls that differ; and an unknown end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.support.stack import ISSUER, Stack, call
from tests.support.upstream import Exchange, ScriptedUpstream, http, result_of

TOOL = {"name": "pay", "inputSchema": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer", "minimum": 1}}, "required": ["amount"]}
PAY = {
    "effect": "write",
    "approval": {
        "approvers": [f"user:{ISSUER}|bob"],
        "ttl_s": 600,
        "grant": {"schema": {"properties": {"amount": {"maximum": 50}}}, "uses": 3, "ttl_s": 900},
    },
}


async def ostiary(stack: Stack, *words: str, token: str, given: bytes = b"") -> tuple[int, str, str]:
    """The command -> exit code, output, errors."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli", "approvals", *words, "--url", stack.url,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OSTIARY_TOKEN": token},
    )  # fmt: skip
    out, errors = await asyncio.wait_for(process.communicate(given), 60)
    return process.returncode or 0, out.decode(), errors.decode()


async def act(stack: Stack, ticket: str, verb: str, subject: str = "bob", **body: Any) -> httpx.Response:
    """A person's act over the API."""
    headers = {"Authorization": f"Bearer {stack.person(subject)}"}
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        return await client.post(f"{stack.url}/approvals/{ticket}/{verb}", json=body, headers=headers)


async def test_a_grant_from_the_shell(tmp_path: Path) -> None:
    """`request --vary --wait` ends with the approval; three calls run, others are held; an unknown end stays so."""
    hang = False
    ran: list[Any] = []

    async def play(exchange: Exchange) -> None:
        asked = json.loads(exchange.seen.body)
        if asked["method"] == "tools/list":
            await exchange.send(http(200, result_of(exchange.id, tools=[TOOL], ttlMs=60_000, cacheScope="public")))
            return
        ran.append(asked["params"]["arguments"])
        if hang:
            exchange.reset()
            return
        await exchange.send(http(200, result_of(exchange.id)))

    async with (
        ScriptedUpstream(play) as server,
        Stack(tmp_path, {"bank": [server.url]}, data={"tools": {"pay": PAY}}) as stack,
    ):
        alice = stack.person("alice")
        schema = tmp_path / "schema.json"
        schema.write_text(json.dumps(SCHEMA))
        asking = ("request", "--server", "bank", "--tool", "pay", "--justification", "the weekly run")
        code, out, _ = await ostiary(stack, *asking, "--vary", str(schema), token=alice)
        assert code == 0, out
        assert "up to 3 calls of this tool" in out
        assert '"minimum": 1' in out
        assert "A person decides this at" in out
        waiting = asyncio.create_task(
            ostiary(stack, *asking, "--vary", "-", "--wait", "--json", token=alice, given=schema.read_bytes())
        )
        async with httpx.AsyncClient(trust_env=False) as client:
            headers = {"Authorization": f"Bearer {stack.person()}"}
            (ticket,) = (await client.get(f"{stack.url}/approvals", headers=headers)).json()["tickets"]
        assert ticket["vary"] == {"schema": SCHEMA, "bounds": {"properties": {"amount": {"maximum": 50}}}}
        approved = await act(stack, ticket["id"], "approve", seen=ticket["digest"])
        assert approved.status_code == 200, approved.text
        code, out, errors = await waiting
        assert (code, json.loads(out)["state"], json.loads(out)["id"]) == (0, "approved", ticket["id"]), errors
        for amount, status in ((1, 200), (51, 403), (0, 403), (50, 200)):
            answer = await stack.post("bank", call("pay", {"amount": amount}))
            assert answer.status_code == status, answer.text
        hang = True
        lost = await stack.post("bank", call("pay", {"amount": 7}))
        assert lost.status_code == 502
        hang = False
        again = (await stack.post("bank", call("pay", {"amount": 7}))).json()["error"]
        assert (again["code"], again["data"]["why"]) == (40304, "unknown")
        assert ran == [{"amount": 1}, {"amount": 50}, {"amount": 7}]
        async with httpx.AsyncClient(trust_env=False) as client:
            runs = (await client.get(f"{stack.url}/approvals/{ticket['id']}", headers=headers)).json()["runs"]
        assert [one["state"] for one in runs] == ["executed", "executed", "unknown"]
        for who in (alice, stack.person()):  # both are told, wherever they look
            code, out, _ = await ostiary(stack, "show", ticket["id"], token=who)
            assert code == 0
            assert "nobody knows how it ended" in out
            assert all(f"(use {one['use']})" in out for one in runs)
            code, out, _ = await ostiary(stack, "list", token=who)
            assert [line for line in out.splitlines() if ticket["id"] in line and "outcome unknown" in line]
        assert (await act(stack, ticket["id"], "resolve", "alice", comment="x")).status_code == 403
        assert (await act(stack, ticket["id"], "resolve")).status_code == 400
        code, out, _ = await ostiary(
            stack, "resolve", ticket["id"], "--comment", "it was paid", token=stack.person()
        )  # fmt: skip
        assert code == 0, out
        assert "set aside" in out
        after = (await stack.post("bank", call("pay", {"amount": 7}))).json()["error"]
        assert (after["code"], after["data"]["ticket"]["id"] != ticket["id"]) == (40303, True)
        assert len(ran) == 3
        told = [one for one in stack.records() if one["kind"] == "approval" and one["ticket"] == ticket["id"]]
        assert [one["transition"] for one in told][-2:] == ["unknown", "resolve"]
