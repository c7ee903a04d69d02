"""Webhooks of a real gateway: two workers, a real receiver, a held call and its approval; nothing said twice."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import httpx

from tests.ports.test_webhooks import snippet
from tests.support.stack import ISSUER, Stack, call
from tests.support.upstream import Exchange, ScriptedUpstream, answer, eventually, http, result_of

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
WRITE = {
    "effect": "write",
    "scopes": ["files:write"],
    "approval": {"approvers": [f"user:{ISSUER}|bob"]},
    "clear": ["/path"],
}
TOOL = {"name": "write", "inputSchema": {"type": "object"}}


async def play(exchange: Exchange) -> None:
    """A server with one tool."""
    asked = json.loads(exchange.seen.body)
    if asked.get("method") == "tools/list":
        await exchange.send(http(200, result_of(exchange.id, tools=[TOOL], ttlMs=60_000, cacheScope="public")))
    else:
        await answer(exchange)


async def test_a_receiver_hears_of_a_held_call_and_of_its_approval(tmp_path: Path) -> None:
    """Whichever worker took the call: each event arrives signed, once, before and after a receiver's bad minute."""
    refusing = True

    async def receive(exchange: Exchange) -> None:
        await exchange.send(http(500 if refusing else 204, extra="Retry-After: 1\r\nConnection: close\r\n"))
        exchange.writer.close()

    async with ScriptedUpstream(play) as server, ScriptedUpstream(receive) as receiver:
        hook = {"url": f"http://127.0.0.1:{receiver.port}/tickets", "secret_env": "HOOK_SECRET"}
        chat = {"url_env": "CHAT_URL", "format": "slack", "events": ["new"]}
        stack = Stack(
            tmp_path,
            {"bank": [server.url]},
            workers=2,
            data={"tools": {"write": WRITE}},
            changes={"approvals": {"database": "sqlite:///ostiary.db", "webhooks": [hook, chat]}},
            environment={"HOOK_SECRET": SECRET, "CHAT_URL": f"http://127.0.0.1:{receiver.port}/chat/canary-url"},
        )
        async with stack:
            message = call("write", {"path": "/srv/a", "text": "canary-text"})
            answers = await asyncio.gather(*[stack.post("bank", message) for _ in range(8)])
            tickets = {one.json()["error"]["data"]["ticket"]["id"] for one in answers}
            assert len(tickets) == 1
            await eventually(lambda: len(receiver.seen) >= 2)
            refusing = False
            (ticket,) = tickets
            headers = {"Authorization": f"Bearer {stack.person('bob')}"}
            async with httpx.AsyncClient(trust_env=False) as client:
                url = f"{stack.url}/approvals/{ticket}/approve"
                assert (await client.post(url, json={}, headers=headers)).status_code == 200

                def taken() -> set[tuple[str, str]]:
                    return {(seen.line.split()[1], seen.values("webhook-id")[0]) for seen in receiver.seen}

                await eventually(lambda: len(taken()) == 3, 60)
                sent = [seen for seen in receiver.seen if seen.line.startswith("POST /tickets ")]
                await eventually(
                    lambda: 'outcome="delivered"' in httpx.get(f"{stack.admin}/metrics", trust_env=False).text
                )
                metrics = (await client.get(f"{stack.admin}/metrics")).text
            bodies = {seen.values("webhook-id")[0]: json.loads(seen.body) for seen in sent}
            assert sorted(body["type"] for body in bodies.values()) == ["ticket.approved", "ticket.new"]
            assert all(body["data"]["id"] == ticket for body in bodies.values())
            assert all(body["data"]["clear"] == {"/path": "/srv/a"} for body in bodies.values())
            for seen in sent:
                given = {name.lower(): value for name, value in seen.headers}
                assert snippet()(SECRET, given, seen.body, int(given["webhook-timestamp"]))
            assert 'ostiary_webhook_attempts_total{outcome="failed"' in metrics
            everything = b"".join(seen.body for seen in receiver.seen)
        for text in (everything.decode(), metrics, stack.log()):
            assert "canary" not in text
