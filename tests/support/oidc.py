"""An OpenID provider of the tests: a strict one over real loopback HTTP, with a knob for each thing it may do wrong.

Codes and refresh tokens are single-use, PKCE is checked, keys are those of `Issuer`. Whoever comes to its
authorization endpoint is sent back at once as `who`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.support.issuer import Issuer, SigningKey, b64

Change = Mapping[str, Any]
"""Members to replace; `None` takes one out."""


def changed(good: Change, change: Change) -> dict[str, Any]:
    """`good` with other members."""
    return {name: value for name, value in {**good, **change}.items() if value is not None}


@dataclass
class Grant:
    """What a code or a refresh token stands for."""

    form: dict[str, str]
    who: str
    code: str


@dataclass
class Oidc:
    """One provider; `issuer.name` is its URL once it is served. Knobs stand at their good values."""

    issuer: Issuer = field(default_factory=Issuer)
    client_id: str = "pages"
    secret: str = ""
    who: str = "bob"
    groups: tuple[str, ...] = ("payers",)
    scope: str = "approvals:read approvals:request approvals:decide"
    lives_s: int = 300
    refreshes: bool = True
    metadata: Change = field(default_factory=dict)
    answer: Change = field(default_factory=dict)
    id_claims: Change = field(default_factory=dict)
    id_header: Change = field(default_factory=dict)
    id_key: SigningKey | None = None
    access_claims: Change = field(default_factory=dict)
    access_header: Change = field(default_factory=dict)
    id_token: str | None = None
    token_answer: Response | None = None
    gate: asyncio.Event | None = None
    clock: Callable[[], float] = time.time
    asked: list[dict[str, str]] = field(default_factory=list)
    looks: int = 0
    revoked: list[str] = field(default_factory=list)
    codes: dict[str, Grant] = field(default_factory=dict)
    refresh: dict[str, Grant] = field(default_factory=dict)

    def app(self) -> Starlette:
        """The provider as an application."""
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._describe),
                Route("/jwks", self._keys),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/revoke", self._revoke, methods=["POST"]),
            ]
        )

    @property
    def url(self) -> str:
        """Where it is."""
        return self.issuer.name

    async def _describe(self, _: Request) -> Response:
        self.looks += 1
        if self.gate is not None:
            await self.gate.wait()
        good = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/jwks",
            "authorization_endpoint": f"{self.url}/authorize?tenant=1",
            "token_endpoint": f"{self.url}/token",
            "revocation_endpoint": f"{self.url}/revoke",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "none"],
            "authorization_response_iss_parameter_supported": True,
        }
        return JSONResponse(changed(good, self.metadata))

    async def _keys(self, _: Request) -> Response:
        return Response(self.issuer.jwks(), media_type="application/json")

    async def _authorize(self, request: Request) -> Response:
        """Send the browser back, as a good provider does that knows who it is."""
        form = dict(request.query_params)
        assert form["tenant"] == "1"  # the endpoint's own query survives
        assert form["client_id"] == self.client_id
        assert form["response_type"] == "code"
        assert form["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self.codes[code] = Grant(form, self.who, code)
        good = {"code": code, "state": form["state"], "iss": self.url, "session_state": "of-no-concern"}
        return RedirectResponse(f"{form['redirect_uri']}?{urlencode(changed(good, self.answer))}", 303)

    async def _token(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode(), strict_parsing=True))
        self.asked.append(form)
        if self.gate is not None:
            await self.gate.wait()
        if self.token_answer is not None:
            return self.token_answer
        if not self._is_client(request, form):
            return JSONResponse({"error": "invalid_client"}, 401)
        if form["grant_type"] == "authorization_code":
            grant = self.codes.pop(form["code"], None)
            if grant is None or not self._fits(grant, form):
                return JSONResponse({"error": "invalid_grant", "error_description": "planted-description"}, 400)
        else:
            grant = self.refresh.pop(form["refresh_token"], None)
            if grant is None:
                self.refresh.clear()  # a refresh token that comes twice ends them all
                return JSONResponse({"error": "invalid_grant"}, 400)
        return JSONResponse(self.give(grant), headers={"cache-control": "no-store"})

    def give(self, grant: Grant) -> dict[str, Any]:
        """The answer of the token endpoint."""
        now = int(self.clock())
        times = {"iat": now, "exp": now + self.lives_s}
        claims = {"sub": grant.who, "client_id": self.client_id, "groups": list(self.groups), "scope": self.scope}
        access = self.issuer.mint(
            grant.form["resource"], header=self.access_header, **{**times, **claims, **self.access_claims}
        )
        half = hashlib.sha256(access.encode()).digest()[:16]
        about = {"sub": grant.who, "nonce": grant.form["nonce"], "name": "Bob B.", "at_hash": b64(half)}
        identity = self.issuer.mint(
            self.client_id,
            key=self.id_key,
            header={"typ": "JWT", **self.id_header},
            **{**times, **about, **self.id_claims},
        )
        answer = {"access_token": access, "token_type": "Bearer", "expires_in": self.lives_s}
        answer["id_token"] = identity if self.id_token is None else self.id_token
        if self.refreshes:
            answer["refresh_token"] = token = secrets.token_urlsafe(16)
            self.refresh[token] = grant
        return answer

    def _is_client(self, request: Request, form: Mapping[str, str]) -> bool:
        if not self.secret:
            return form.get("client_id") == self.client_id and "authorization" not in request.headers
        given = base64.b64decode(request.headers.get("authorization", "").removeprefix("Basic ")).decode()
        name, _, secret = given.partition(":")
        return (unquote_plus(name), unquote_plus(secret)) == (self.client_id, self.secret)

    def _fits(self, grant: Grant, form: Mapping[str, str]) -> bool:
        challenge = b64(hashlib.sha256(form["code_verifier"].encode()).digest())
        same = all(form[name] == grant.form[name] for name in ("redirect_uri", "resource") if name in grant.form)
        return same and challenge == grant.form["code_challenge"]

    async def _revoke(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode()))
        self.revoked.append(form["token"])
        self.refresh.pop(form["token"], None)
        return Response()


def unsigned(claims: Mapping[str, Any]) -> str:
    """A token of `alg` `none`."""
    return f"{b64(json.dumps({'alg': 'none', 'typ': 'JWT'}).encode())}.{b64(json.dumps(claims).encode())}."
