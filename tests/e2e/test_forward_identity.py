"""A server on the official SDK that authorises per user by the gateway's statement, verified with PyJWT alone.

It has never seen an issuer of tokens: the keys are those that the gateway publishes (docs/identity.md; UPS-01, G8).
"""
# ruff: noqa: ASYNC240 - the test looks at files from outside

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import httpx2
import jwt
import uvicorn
from jwt import PyJWKClient
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.ports import free_port
from tests.support.stack import ISSUER, Stack, body, call, headers_of

HEADER = "x-caller"
ALICE, BOB = f"{ISSUER}|alice", f"{ISSUER}|bob"


@dataclass
class Notes:
    """The server's users and their notes. `issuer` and `audience` are all that it was told of the gateway."""

    issuer: str = ""
    audience: str = ""
    kept: dict[str, list[str]] = field(default_factory=lambda: {ALICE: ["hers"], BOB: ["his"]})
    heard: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    keys: PyJWKClient | None = None

    def verify(self, lines: list[str], content: bytes) -> dict[str, Any]:
        """Who calls. Raises `jwt.PyJWTError` for anything but one good statement about this very body."""
        if len(lines) != 1 or jwt.get_unverified_header(lines[0]).get("typ") != "ostiary-identity+jwt":
            raise jwt.InvalidTokenError("no statement, or another kind of token")
        if self.keys is None:
            self.keys = PyJWKClient(f"{self.issuer}/.well-known/ostiary/jwks.json")
        claims: dict[str, Any] = jwt.decode(
            lines[0], self.keys.get_signing_key_from_jwt(lines[0]), algorithms=["EdDSA"],
            audience=self.audience, issuer=self.issuer, options={"require": ["exp", "iat", "jti", "sub"]},
        )  # fmt: skip
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        if claims["mcp"]["body_sha256"] != digest:
            raise jwt.InvalidTokenError("of another request")
        return claims

    def build(self) -> ASGIApp:
        """The server, and in front of it what verifies every request, lists included."""
        server: MCPServer[Any] = MCPServer("notes", version="1.0.0", log_level="WARNING")

        def mine(context: Context[Any, Any]) -> list[str]:
            headers = context.headers or {}
            who = jwt.decode(headers[HEADER], options={"verify_signature": False})["sub"]  # verified at the door
            if who not in self.kept:
                raise ToolError("you are no user here")
            return self.kept[who]

        @server.tool()
        async def read(context: Context[Any, Any]) -> str:
            """One's own notes."""
            return ", ".join(mine(context))

        @server.tool()
        async def write(text: str, context: Context[Any, Any]) -> str:
            """One more."""
            mine(context).append(text)
            return "kept"

        return Guard(self, server.streamable_http_app(stateless_http=True))


class Guard:
    """Answers 401 to whatever brings no good statement."""

    def __init__(self, notes: Notes, app: ASGIApp) -> None:
        self._notes, self._app = notes, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        content = b""
        while True:
            message = await receive()
            content += message.get("body", b"")
            if not message.get("more_body"):
                break
        lines = [value.decode() for name, value in scope["headers"] if name == HEADER.encode()]
        try:
            claims = await asyncio.to_thread(self._notes.verify, lines, content)
        except jwt.PyJWTError:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        self._notes.heard.append(claims)
        self._notes.tokens += lines
        told = False

        async def again() -> Any:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": content, "more_body": False}

        await self._app(scope, again, send)


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """The server over HTTP -> its endpoint."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None))
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.should_exit = True
        await running


@asynccontextmanager
async def client_of(stack: Stack, who: str) -> AsyncIterator[Client]:
    """The official client with somebody's token."""
    headers = {"Authorization": f"Bearer {stack.token('notes', who)}"}
    async with httpx2.AsyncClient(headers=headers, timeout=30, trust_env=False) as http:
        transport = streamable_http_client(stack.endpoint("notes"), http_client=http)
        async with Client(transport, mode="2026-07-28") as client:
            yield client


async def test_ups_01_g8_a_server_authorises_by_who_the_gateway_says_it_is(tmp_path: Path) -> None:
    """UPS-01, G8: each caller has its own notes, whatever it says of itself; a statement is of one request, and leaks
    nowhere; the caller's token never arrives.
    """
    notes = Notes()
    async with serving(notes.build()) as endpoint:
        stack = Stack(
            tmp_path,
            {"notes": [endpoint]},
            settings={"forward_identity": {"header": "X-Caller", "key_env": "STATEMENT_KEYS"}},
            environment={"STATEMENT_KEYS": base64.urlsafe_b64encode(os.urandom(32)).decode()},
        )
        notes.issuer, notes.audience = stack.url, stack.endpoint("notes")
        async with stack:
            for who, kept in (("alice", "hers"), ("bob", "his")):
                async with client_of(stack, who) as client:
                    assert [tool.name for tool in (await client.list_tools()).tools] == ["read", "write"]
                    assert (await client.call_tool("read", {})).content[0].text == kept  # type: ignore[union-attr]
            async with client_of(stack, "carol") as client:
                assert (await client.call_tool("read", {})).is_error

            # Bob's statement, brought by Alice: dropped like every header that the contract does not know.
            his = notes.tokens[next(at for at, claims in enumerate(notes.heard) if claims["sub"] == BOB)]
            for name in ("X-Caller", "x-CALLER", "X_Caller"):
                forged: dict[str, Any] = {name: his}
                answer = await stack.post("notes", call("read", {}), **forged)
                assert answer.json()["result"]["content"][0]["text"] == "hers"
                assert notes.heard[-1]["sub"] == ALICE
                assert notes.heard[-1]["jti"] == answer.headers["ostiary-decision"]

            # Around the gateway: nothing, a token of the issuer, a statement about another body.
            message = call("read", {})
            async with httpx.AsyncClient(trust_env=False) as http:
                for lines in ({}, {"X-Caller": stack.token("notes", "bob")}, {"X-Caller": his}):
                    around = await http.post(endpoint, json=message, headers=headers_of(message) | lines)
                    assert around.status_code == 401
                published = await http.get(f"{stack.url}/.well-known/ostiary/jwks.json")
                for other in ("", "/", "/keys", "/jwks.json/"):
                    assert (await http.get(f"{stack.url}/.well-known/ostiary{other}")).status_code in (401, 404, 405)
            (key,) = published.json()["keys"]
            assert key.keys() == {"kty", "crv", "x", "alg", "use", "kid"}

            # An approved call says under which ticket it runs.
            held = await stack.post("notes", call("write", {"text": "new"}))
            ticket = held.json()["error"]["data"]["ticket"]["id"]
            async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
                await http.post(
                    f"{stack.url}/approvals/{ticket}/approve",
                    json={"comment": "fine"},
                    headers={"Authorization": f"Bearer {stack.person()}"},
                )
            ran = await stack.post("notes", call("write", {"text": "new"}))
            assert ran.json()["result"]["content"][0]["text"] == "kept"
            assert notes.kept == {ALICE: ["hers", "new"], BOB: ["his"]}
            assert notes.heard[-1]["mcp"]["ticket"] == ticket

            # The catalogue is the gateway's own question, and it says so.
            house = [claims for claims in notes.heard if claims["sub"] == stack.url]
            assert {claims["mcp"]["method"] for claims in house} >= {"tools/list"}
            assert all("sub_id" not in claims and "scope" not in claims for claims in house)
            callers = [claims for claims in notes.heard if claims["sub"] != stack.url]
            assert {claims["sub_id"]["iss"] for claims in callers} == {ISSUER}
            assert all(claims["exp"] - claims["iat"] <= 60 for claims in notes.heard)
            assert len({claims["jti"] for claims in callers}) == len(callers)

            refused = await stack.post("notes", body("tools/list"), "wrong", **forged)
            assert refused.status_code == 401
            async with httpx.AsyncClient(trust_env=False) as http:
                shown = (await http.get(f"{stack.admin}/metrics")).text + refused.text + held.text
        leaks = [file.name for file in tmp_path.rglob("*") if file.is_file() and sings(file.read_bytes(), notes)]
        assert leaks == []
        assert not sings(shown.encode(), notes)
        assert len(stack.records()) > 10
        assert sings(json.dumps(notes.tokens).encode(), notes)


def sings(data: bytes, notes: Notes) -> bool:
    """Whether the claims or the signature of any statement is in it."""
    return any(part.encode() in data for token in notes.tokens for part in token.split(".")[1:])
