"""A session opens nothing that its token does not, decision by decision: a whole gateway, and an issuer of the tests.

The issuer's tokens live so short that every request renews them: what a person may do is what the issuer says now.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from starlette.responses import JSONResponse

from tests.edge.test_approvals_api import served
from tests.rows.stage import listed
from tests.support.oidc import Oidc
from tests.support.stack import HOLD, Stack, call, write_config
from tests.support.upstream import Exchange, ScriptedUpstream, http, result_of

SHORT_S = 15


class Site:
    """A gateway whose people sign in at `oidc`, with a server that offers `write`."""

    def __init__(self, stack: Stack, oidc: Oidc, ran: list[str]) -> None:
        self.stack = stack
        self.oidc = oidc
        self.ran = ran

    @property
    def review(self) -> str:
        return f"{self.stack.url}/review"

    async def held(self, guest: httpx.AsyncClient, **arguments: Any) -> str:
        """Alice's call, held -> its ticket's page."""
        answer = await self.ask(guest, **arguments)
        return str(answer["error"]["data"]["ticket"]["page"])

    async def ask(self, guest: httpx.AsyncClient, **arguments: Any) -> dict[str, Any]:
        """Alice's call, by her program."""
        token = self.oidc.issuer.mint(f"{self.stack.url}/main/mcp", sub="alice", scope="mcp:use files:write")
        message = call("write", arguments)
        headers = {
            "authorization": f"Bearer {token}", "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "write",
        }  # fmt: skip
        answer = await guest.post(f"{self.stack.url}/main/mcp", json=message, headers=headers)
        document: dict[str, Any] = answer.json()
        return document

    async def sign_in(self, guest: httpx.AsyncClient, who: str, place: str) -> httpx.Response:
        """The whole way, as a browser goes it -> the page."""
        self.oidc.who = who
        answer = await guest.get(place)
        for _ in range(6):
            if answer.status_code != 303:
                break
            answer = await guest.get(str(answer.request.url.join(answer.headers["location"])))
        return answer


def form_of(page: httpx.Response, button: str) -> dict[str, str]:
    """The hidden fields of the form with this button."""
    for form in re.findall(r"<form[^>]*>.*?</form>", page.text, re.DOTALL):
        if button in form:
            return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form))
    return {}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """The gateway as a process."""
    oidc = Oidc(lives_s=SHORT_S, scope="approvals:read approvals:decide", groups=("payers",))
    ran: list[str] = []

    async def play(exchange: Exchange) -> None:
        if b'"tools/list"' in exchange.seen.body:
            tools = result_of(exchange.id, tools=listed(write={}), ttlMs=60_000, cacheScope="public")
            await exchange.send(http(200, tools))
            return
        if b'"tools/call"' in exchange.seen.body:
            ran.append(exchange.seen.body.decode())
        await exchange.send(http(200, result_of(exchange.id, content=[], isError=False)))

    upstream = ScriptedUpstream(play)
    async with upstream, served(oidc.app()) as url:
        oidc.issuer.name = url
        stack = Stack(tmp_path, {"main": [upstream.url]}, issuer=oidc.issuer)
        hold = {**HOLD, "approvers": [f"group:{url}|payers"]}
        data = {"tools": {"write": {"effect": "write", "scopes": ["files:write"], "approval": hold}}}
        file = write_config(
            tmp_path, oidc.issuer, {"main": [upstream.url]}, port=stack.port, admin_port=stack.admin_port, data=data,
            sign_in={"issuer": url, "client_id": oidc.client_id},
        )  # fmt: skip
        document = yaml.safe_load(file.read_text())
        document["identity"]["leeway_s"] = 0
        file.write_text(yaml.safe_dump(document))
        try:
            await stack.launch()
            yield Site(stack, oidc, ran)
        finally:
            await stack.__aexit__(None, None, None)


async def test_a_role_that_is_gone_decides_nothing(site: Site) -> None:
    """APR-12 for people: signed in as a reviewer, no reviewer any more: the decision is refused, and nothing runs.
    The same session with the role decides."""
    async with httpx.AsyncClient(trust_env=False, timeout=30) as bob, httpx.AsyncClient(trust_env=False) as agent:
        place = await site.held(agent, n=1)
        page = await site.sign_in(bob, "bob", place)
        assert page.status_code == 200
        fields = form_of(page, "Approve")
        assert fields["form_key"]
        site.oidc.groups = ()
        refused = await bob.post(f"{place}/approve", data=fields, headers={"origin": site.stack.url})
        assert refused.status_code in {403, 404}, refused.text
        assert "error" in await site.ask(agent, n=1)
        site.oidc.groups, site.oidc.scope = ("payers",), "approvals:read"
        refused = await bob.post(f"{place}/approve", data=fields, headers={"origin": site.stack.url})
        assert refused.status_code == 403, refused.text
        assert "error" in await site.ask(agent, n=1)
        assert site.ran == []
        site.oidc.scope = "approvals:read approvals:decide"
        fields = form_of(await bob.get(place), "Approve")
        given = await bob.post(f"{place}/approve", data=fields, headers={"origin": site.stack.url})
        assert given.status_code in {200, 303}, given.text
        assert "result" in await site.ask(agent, n=1)
        assert len(site.ran) == 1


async def test_a_form_of_another_session_decides_nothing(site: Site) -> None:
    """A key that was stolen from one session opens no form of another one."""
    async with (
        httpx.AsyncClient(trust_env=False, timeout=30) as bob,
        httpx.AsyncClient(trust_env=False, timeout=30) as dora,
        httpx.AsyncClient(trust_env=False) as agent,
    ):
        place = await site.held(agent, n=2)
        mine = form_of(await site.sign_in(bob, "bob", place), "Approve")
        hers = form_of(await site.sign_in(dora, "dora", place), "Approve")
        assert mine["form_key"] != hers["form_key"]
        stolen = {**hers, "form_key": mine["form_key"]}
        refused = await dora.post(f"{place}/approve", data=stolen, headers={"origin": site.stack.url})
        assert refused.status_code in {400, 403}
        assert "error" in await site.ask(agent, n=2)
        given = await dora.post(f"{place}/approve", data=hers, headers={"origin": site.stack.url})
        assert given.status_code in {200, 303}
        assert "result" in await site.ask(agent, n=2)


async def test_an_issuer_that_is_gone_is_told_of_and_ends_no_session(site: Site) -> None:
    """Past its token's end nothing is known of a person: a page in words, 503, no decision. Once the issuer is back
    the same session goes on."""
    async with httpx.AsyncClient(trust_env=False, timeout=30) as bob, httpx.AsyncClient(trust_env=False) as agent:
        place = await site.held(agent, n=3)
        fields = form_of(await site.sign_in(bob, "bob", place), "Approve")
        site.oidc.token_answer = JSONResponse({"error": "temporarily_unavailable"}, 503)
        answer = await bob.get(place)
        async with asyncio.timeout(SHORT_S + 30):
            while answer.status_code == 200:  # by the token that is there
                await asyncio.sleep(0.5)
                answer = await bob.get(place)
        assert answer.status_code == 503
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.headers["retry-after"] == "5"
        refused = await bob.post(f"{place}/approve", data=fields, headers={"origin": site.stack.url})
        assert refused.status_code == 503
        site.oidc.token_answer = None
        assert (await bob.get(place)).status_code == 200
        given = await bob.post(f"{place}/approve", data=fields, headers={"origin": site.stack.url})
        assert given.status_code in {200, 303}
        assert "result" in await site.ask(agent, n=3)
