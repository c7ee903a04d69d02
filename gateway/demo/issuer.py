"""A development issuer: real ES256 tokens for pretend people. NEVER for production.

It makes its own keys when it starts and forgets them when it ends, binds to loopback only, answers loopback Host
names only, and says in every document that it is for development. It gives a token to whoever asks: that is its
purpose. Discovery follows RFC 8414 and OpenID Connect, tokens follow RFC 9068.
"""

from __future__ import annotations

import argparse
import secrets
import time
from typing import Any
from urllib.parse import parse_qsl

import jwt
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.demo.loopback import require_loopback
from gateway.demo.people import NOTICE, PEOPLE

LONGEST_S = 8 * 3600


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

    def token(self, person: str, audience: str, scope: str, lifetime_s: int = 3600) -> str:
        """An RFC 9068 access token. Raises `Unmintable` for unknown people, no audience, a lifetime out of range."""
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
            "client_id": PEOPLE[person].client_id,
            "groups": list(PEOPLE[person].groups),
            "scope": scope,
            "iat": min(now, now + lifetime_s - 1),
            "exp": now + lifetime_s,
            "jti": secrets.token_urlsafe(12),
        }
        return jwt.encode(claims, self._key, algorithm="ES256", headers={"typ": "at+jwt", "kid": self._kid})


def build_issuer(mint: Mint) -> Starlette:
    """The issuer as an ASGI application: keys, both discovery documents, and `POST /token`."""
    described = {
        "issuer": mint.issuer,
        "jwks_uri": f"{mint.issuer}/jwks",
        "token_endpoint": f"{mint.issuer}/token",
        "response_types_supported": [],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
        "service_documentation": NOTICE,
    }

    async def show_keys(_request: Request) -> JSONResponse:
        return JSONResponse(mint.keys())

    async def discover(_request: Request) -> JSONResponse:
        return JSONResponse(described)

    async def give_token(request: Request) -> JSONResponse:
        asked = dict(parse_qsl((await request.body()).decode(errors="replace")))
        try:
            lifetime_s = int(asked.get("lifetime_s", "3600"))
            token = mint.token(asked.get("person", ""), asked.get("resource", ""), asked.get("scope", ""), lifetime_s)
        except ValueError as unmintable:
            return JSONResponse({"error": "invalid_request", "error_description": str(unmintable)}, 400)
        return JSONResponse(
            {"access_token": token, "token_type": "Bearer", "expires_in": lifetime_s, "notice": NOTICE},
            headers={"Cache-Control": "no-store"},
        )

    return Starlette(
        routes=[
            Route("/jwks", show_keys),
            Route("/.well-known/openid-configuration", discover),
            Route("/.well-known/oauth-authorization-server", discover),
            Route("/token", give_token, methods=["POST"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"])],
    )


def main() -> None:
    """`python -m gateway.demo.issuer`: serve until told to stop."""
    parser = argparse.ArgumentParser(prog="gateway.demo.issuer", description=NOTICE)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    host = require_loopback(options.host)
    app = build_issuer(Mint(f"http://{host}:{options.port}"))
    uvicorn.run(app, host=host, port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
