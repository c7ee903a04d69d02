"""A development issuer: real ES256 tokens for pretend people. NEVER for production.

It makes its own keys when it starts and forgets them when it ends, binds to loopback only, answers loopback Host
names only, and says in every document that it is for development. It gives a token to whoever asks, by a form or by
its page to pick a person (sign_in.py): that is its purpose. Discovery follows RFC 8414 and OpenID Connect, tokens
follow RFC 9068.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import secrets
import time
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jwt
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from gateway.demo.loopback import require_loopback
from gateway.demo.people import EVERYTHING, NOTICE, PEOPLE, RECORD
from gateway.demo.picker import complaint, picker
from gateway.demo.sign_in import TOKEN_S, Asked, NotSigned, SignIns

LONGEST_S = 8 * 3600
KEPT_NOWHERE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"}


class Unmintable(ValueError):  # noqa: N818 - the request names what does not exist
    """No token can be made of what was asked; the text says why."""


class Mint:
    """One key and the tokens that it signs."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._kid = f"development-{secrets.token_hex(4)}"

    def keys(self) -> dict[str, Any]:
        """The public key as a JWK set."""
        jwk: dict[str, Any] = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return {"keys": [jwk | {"kid": self._kid, "alg": "ES256", "use": "sig"}]}

    def token(self, person: str, audience: str, scope: str, lifetime_s: int = 3600, *, client_id: str = "") -> str:
        """An RFC 9068 access token, of the person's own client unless another asked.

        Raises `Unmintable` for unknown people, no audience, a lifetime out of range.
        """
        if person not in PEOPLE:
            raise Unmintable(f"there is no {person!r} here; there are {', '.join(PEOPLE)}")
        if not audience:
            raise Unmintable("a token needs an audience: the resource that it is for")
        if not -LONGEST_S <= lifetime_s <= LONGEST_S:
            raise Unmintable(f"a token lives for {LONGEST_S} seconds at most")
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "sub": person,
            "aud": audience,
            "client_id": client_id or PEOPLE[person].client_id,
            "groups": list(PEOPLE[person].groups),
            "scope": scope,
            "iat": min(now, now + lifetime_s - 1),
            "exp": now + lifetime_s,
            "jti": secrets.token_urlsafe(12),
        }
        return self._sign(claims, "at+jwt")

    def id_token(self, asked: Asked, access_token: str, lifetime_s: int) -> str:
        """Who signed in, for the client alone (OpenID Connect Core 2)."""
        now = int(time.time())
        half = hashlib.sha256(access_token.encode("ascii")).digest()[:16]
        claims = {
            "iss": self.issuer,
            "sub": asked.person,
            "aud": asked.client,
            "iat": now,
            "exp": now + lifetime_s,
            "auth_time": now,
            "at_hash": base64.urlsafe_b64encode(half).rstrip(b"=").decode(),
            "name": PEOPLE[asked.person].name,
        }
        return self._sign(claims | ({"nonce": asked.nonce} if asked.nonce else {}), "JWT")

    def _sign(self, claims: dict[str, Any], kind: str) -> str:
        return jwt.encode(claims, self._key, algorithm="ES256", headers={"typ": kind, "kid": self._kid})


def build_issuer(mint: Mint, sign_ins: SignIns | None = None) -> Starlette:
    """The issuer as an ASGI application: keys, both discovery documents, the page to pick a person, and tokens."""
    sign_ins = sign_ins or SignIns(mint.issuer, {})
    described = {
        "issuer": mint.issuer,
        "jwks_uri": f"{mint.issuer}/jwks",
        "authorization_endpoint": f"{mint.issuer}/authorize",
        "token_endpoint": f"{mint.issuer}/token",
        "revocation_endpoint": f"{mint.issuer}/revoke",
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "authorization_response_iss_parameter_supported": True,
        "scopes_supported": ["openid", *EVERYTHING, RECORD],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
        "service_documentation": NOTICE,
    }

    async def show_keys(_request: Request) -> Response:
        return JSONResponse(mint.keys())

    async def discover(_request: Request) -> Response:
        return JSONResponse(described)

    async def authorize(request: Request) -> Response:
        try:
            if request.method == "POST":
                form = await _form(request)
                there = sign_ins.pick(form.get("handle", ""), form.get("person", ""))
                return RedirectResponse(there, 303, headers=KEPT_NOWHERE)
            handle = sign_ins.ask(dict(request.query_params))
        except NotSigned as error:
            return HTMLResponse(complaint(str(error)), 400, headers=KEPT_NOWHERE)
        asking = request.query_params["client_id"]
        return HTMLResponse(picker(handle, asking, PEOPLE.values()), headers=KEPT_NOWHERE)

    async def give_token(request: Request) -> Response:
        form = await _form(request)
        grant = form.get("grant_type", "")
        try:
            if not grant:
                lifetime_s = int(form.get("lifetime_s", "3600"))
                named = (form.get("person", ""), form.get("resource", ""), form.get("scope", ""))
                token = mint.token(*named, lifetime_s)
                given = {"access_token": token, "token_type": "Bearer", "expires_in": lifetime_s, "notice": NOTICE}
                return JSONResponse(given, headers=KEPT_NOWHERE)
            if grant not in {"authorization_code", "refresh_token"}:
                raise NotSigned("unsupported_grant_type")
            asked, refresh = sign_ins.redeem(form) if grant == "authorization_code" else sign_ins.renew(form)
        except NotSigned as error:
            return _no(error.name, str(error))
        except ValueError as unmintable:
            return _no("invalid_request", str(unmintable))
        granted, lives_s = asked.granted(), sign_ins.token_s
        token = mint.token(asked.person, asked.resource, granted, lives_s, client_id=asked.client)
        given = {"access_token": token, "token_type": "Bearer", "expires_in": lives_s, "scope": granted}
        given |= {"id_token": mint.id_token(asked, token, lives_s), "refresh_token": refresh, "notice": NOTICE}
        return JSONResponse(given, headers=KEPT_NOWHERE)

    async def revoke(request: Request) -> Response:
        sign_ins.revoke(await _form(request))
        return Response(headers=KEPT_NOWHERE)

    return Starlette(
        routes=[
            Route("/jwks", show_keys),
            Route("/.well-known/openid-configuration", discover),
            Route("/.well-known/oauth-authorization-server", discover),
            Route("/authorize", authorize, methods=["GET", "POST"]),
            Route("/token", give_token, methods=["POST"]),
            Route("/revoke", revoke, methods=["POST"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"])],
    )


async def _form(request: Request) -> dict[str, str]:
    return dict(parse_qsl((await request.body()).decode(errors="replace"), keep_blank_values=True))


def _no(name: str, text: str) -> Response:
    return JSONResponse({"error": name, "error_description": text}, 400, headers=KEPT_NOWHERE)


def main() -> None:
    """`python -m gateway.demo.issuer`: serve until told to stop."""
    parser = argparse.ArgumentParser(prog="gateway.demo.issuer", description=NOTICE)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--client", action="append", default=[], metavar="ID=REDIRECT_URI", help="who may sign in")
    parser.add_argument("--token-s", type=int, default=TOKEN_S, help="how long a signed-in person's token lives")
    options = parser.parse_args()
    host = require_loopback(options.host)
    url = f"http://{host}:{options.port}"
    clients = dict(client.split("=", 1) for client in options.client)
    for redirect_uri in clients.values():
        require_loopback(urlsplit(redirect_uri).hostname or "")
    app = build_issuer(Mint(url), SignIns(url, clients, options.token_s))
    uvicorn.run(app, host=host, port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
