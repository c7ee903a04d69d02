"""What is said to an issuer and how its answer is read: the parts of OAuth 2.0 and OpenID Connect that Authlib knows.

The one module that imports Authlib. Its wire is not used: requests to issuers are bounded as all others are
(provider.py), and signatures are checked by the keys of the house. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus

from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc.errors import ClaimError, JoseError

from gateway.contract.identity import read_audience
from gateway.contract.refusals import Refusal, Refused
from gateway.sign_in.client import Client

NO_HALF_HASH = frozenset({"EdDSA", "Ed25519"})
"""Algorithms whose `at_hash` has no hash that all agree on; the token endpoint's own connection binds the two."""


def authorization_url(endpoint: str, client: Client, *, state: str, nonce: str, verifier: str) -> str:
    """Where the browser goes to sign in (OpenID Connect Core 3.1.2.1, RFC 7636, RFC 8707)."""
    url: str = prepare_grant_uri(
        endpoint,
        client_id=client.client_id,
        response_type="code",
        redirect_uri=client.redirect_uri,
        scope=" ".join(client.scopes),
        state=state,
        nonce=nonce,
        code_challenge=create_s256_code_challenge(verifier),
        code_challenge_method="S256",
        **client.resource,
    )
    return url


def code_request(
    url: str, client: Client, methods: Sequence[str], *, code: str, verifier: str
) -> tuple[Mapping[str, str], str]:
    """Headers and form that redeem a code (RFC 6749 section 4.1.3)."""
    form = prepare_token_request(
        "authorization_code",
        redirect_uri=client.redirect_uri,
        code=code,
        code_verifier=verifier,
        **client.resource,
    )
    return _authenticated(url, client, methods, form)


def renewal_request(
    url: str, client: Client, methods: Sequence[str], *, refresh_token: str
) -> tuple[Mapping[str, str], str]:
    """Headers and form that renew an access token (RFC 6749 section 6): for the scopes that were granted."""
    form = prepare_token_request("refresh_token", refresh_token=refresh_token, **client.resource)
    return _authenticated(url, client, methods, form)


def revocation_request(
    url: str, client: Client, methods: Sequence[str], *, refresh_token: str
) -> tuple[Mapping[str, str], str]:
    """Headers and form that end a refresh token (RFC 7009)."""
    form = f"token={quote_plus(refresh_token)}&token_type_hint=refresh_token"
    return _authenticated(url, client, methods, form)


def check_id_token(
    header: Mapping[str, Any],
    claims: Mapping[str, Any],
    client: Client,
    *,
    nonce: str,
    access_token: str,
    now: float,
    leeway_s: float,
) -> None:
    """Whether verified claims are an ID token for this client and this sign-in (OpenID Connect Core 3.1.3.7).

    Raises `Refused(SIGN_IN_REFUSED)`. Stricter than the specification allows in two things: no other audience is
    trusted, and what says that it is another kind of token is none.
    """
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.upper().removeprefix("APPLICATION/") != "JWT":
        raise Refused(Refusal.SIGN_IN_REFUSED, "the ID token says that it is another kind of token")
    times = [claims[name] for name in ("exp", "iat", "nbf") if name in claims]
    if any(isinstance(time, bool) for time in times):  # a boolean is no number here, whatever Python says
        raise Refused(Refusal.SIGN_IN_REFUSED, "ID token: a time is no number")
    options = {
        "iss": {"essential": True, "value": client.issuer},
        "aud": {"essential": True, "value": client.client_id},
        "nonce": {"essential": bool(nonce)},
    }
    params = {"client_id": client.client_id, "nonce": nonce}
    if header.get("alg") not in NO_HALF_HASH:
        params["access_token"] = access_token
    try:
        CodeIDToken(claims, header, options, params).validate(now=int(now), leeway=int(leeway_s))
    except (JoseError, ValueError, TypeError) as fault:
        # The library's own text is not kept: it may hold what was sent.
        claim = fault.claim if isinstance(fault, ClaimError) else type(fault).__name__
        raise Refused(Refusal.SIGN_IN_REFUSED, f"the ID token's {claim} is not right") from fault
    if read_audience(claims) != {client.client_id}:
        raise Refused(Refusal.SIGN_IN_REFUSED, "the ID token is for others as well")


def _authenticated(url: str, client: Client, methods: Sequence[str], form: str) -> tuple[Mapping[str, str], str]:
    headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
    auth: Any
    if not client.secret:
        auth = ClientAuth(client.client_id, None, "none")
    elif "client_secret_post" in methods and "client_secret_basic" not in methods:
        auth = ClientAuth(client.client_id, client.secret, "client_secret_post")
    else:
        # RFC 6749 section 2.3.1: both are encoded like a form's values before they are joined.
        auth = ClientAuth(quote_plus(client.client_id), quote_plus(client.secret), "client_secret_basic")
    _, headers, body = auth.prepare("POST", url, headers, form)
    return headers, body
