"""Would an issuer sign people in for this gateway? Its metadata, and its answer to a request that nobody completes.

`ostiary check` asks. The request is one with `prompt=none` (OpenID Connect Core 3.1.2.1), from no browser: an issuer
that knows the client and its redirect URI sends the browser back with an error, and what it calls the error tells
whether the scopes and the resource are taken (RFC 6749 section 4.1.2.1, RFC 8707 section 2). Any other answer tells
nothing: some show a page in each case.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

import httpx

from gateway.contract.refusals import Refused
from gateway.sign_in.client import Client
from gateway.sign_in.protocol import authorization_url
from gateway.sign_in.provider import BOUNDS, ERRORS, Bounds, Provider

NOBODY_THERE = frozenset(
    {"login_required", "interaction_required", "consent_required", "account_selection_required", "access_denied"}
)
"""What is said of a request that is right, with nobody there to sign in."""


async def try_sign_in(clients: Sequence[Client], *, bounds: Bounds = BOUNDS) -> list[tuple[bool, str]]:
    """For each client: whether its issuer is in order as far as can be told, and what is (or is not) there."""
    async with httpx.AsyncClient(
        headers={"Accept-Encoding": "identity"},
        verify=httpx.create_ssl_context(),
        follow_redirects=False,
        trust_env=False,
        timeout=bounds.deadline_s,
    ) as http:
        return list(await asyncio.gather(*(_try(client, http, bounds) for client in clients)))


async def _try(client: Client, http: httpx.AsyncClient, bounds: Bounds) -> tuple[bool, str]:
    try:
        found = await Provider(client, http, bounds=bounds).endpoints()
    except Refused as refused:
        return False, refused.detail
    url = authorization_url(
        found.authorization,
        client,
        state=secrets.token_urlsafe(32),
        nonce=secrets.token_urlsafe(32),
        verifier=secrets.token_urlsafe(32),
    )
    try:
        async with asyncio.timeout(bounds.deadline_s), http.stream("GET", f"{url}&prompt=none") as answer:
            place = answer.headers.get("location", "")
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as fault:
        return False, f"{client.issuer}: the authorization endpoint: {type(fault).__name__}"
    return _judge(client, place)


def _judge(client: Client, place: str) -> tuple[bool, str]:
    """What the issuer's answer says of the client; it leads to `place` (`""`: nowhere), which is not repeated."""
    asked = f"client {client.client_id}, redirect URI {client.redirect_uri}"
    if client.resource_indicator:
        asked += f", resource {client.audience}"
    try:
        there = urlsplit(place)
    except ValueError:
        there = urlsplit("")
    if f"{there.scheme}://{there.netloc}{there.path}" != client.redirect_uri:
        return True, f"{client.issuer}: metadata in order; whether it has these registered, it does not say: {asked}"
    error = parse_qs(there.query).get("error", [""])[0]
    if not error or error in NOBODY_THERE:
        return True, f"{client.issuer}: takes {asked}"
    named = error if error in ERRORS | {"unauthorized_client"} else "something else"
    return False, f"{client.issuer}: says {named} to {asked}"
