"""Verified claims -> who calls and what they may ask for; scopes compared; the resource's metadata.

Invariant: a scope is one exact token (RFC 6749 section 3.3), nothing is derived from a claim of another shape, and
the metadata (RFC 9728) says only what configuration says. Whoever reads claims here has checked their signature, or
believes none of them before it has (`gateway.tokens`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from gateway.contract.passage import Identity, Server
from gateway.contract.refusals import Refusal, Refused

Implications = Mapping[str, frozenset[str]]
"""For each scope that others imply: all scopes that grant it, itself included."""

MEMBER_BYTES = 1024
"""The longest subject, client or tenant that is accepted, in UTF-8. With an issuer it has to fit into one entry of an
index (PostgreSQL: 2704 bytes)."""


def identity_from_claims(claims: Mapping[str, Any], tenant_claim: str = "", groups_claim: str = "groups") -> Identity:
    """Claims -> the `Identity` that they name, if they are true. Raises `Refused(TOKEN_INVALID)` for a wrong shape.

    `scope` wins over `scp`; either is a space-separated string or a list of strings. `client_id` wins over `azp`.
    A configured tenant claim must be there: its absence is no tenant of its own.
    """
    return Identity(
        issuer=_text(claims, "iss"),
        subject=_text(claims, "sub"),
        client_id=_text(claims, "client_id" if "client_id" in claims else "azp", default=""),
        tenant=_text(claims, tenant_claim) if tenant_claim else "",
        scopes=_scopes(claims.get("scope" if "scope" in claims else "scp", "")),
        groups=_groups(claims.get(groups_claim, ())),
        claims=claims,
        expires_at=read_time(claims, "exp"),
    )


def read_time(claims: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A NumericDate of the claims, in epoch seconds. A boolean is no number here, whatever Python says."""
    value = claims.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        _invalid(f"the claim {name} is missing or not a number")
    return float(value)


def read_audience(claims: Mapping[str, Any]) -> frozenset[str]:
    """Whom the token is for: a text, or a list of nothing but texts. No audience is not any audience."""
    value = claims.get("aud")
    audience = [value] if isinstance(value, str) else value
    if not isinstance(audience, list) or not all(isinstance(member, str) and member for member in audience):
        _invalid("the audience is neither a string nor a list of strings")
    return frozenset(audience)


def _invalid(detail: str) -> NoReturn:
    raise Refused(Refusal.TOKEN_INVALID, detail)


def _text(claims: Mapping[str, Any], name: str, default: str | None = None) -> str:
    if default is not None and name not in claims:
        return default
    value = claims.get(name)
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value.encode()) <= MEMBER_BYTES:
        _invalid(f"the claim {name} is missing or not a plain text")
    return value


def _scopes(value: Any) -> frozenset[str]:
    # Split at the space alone: another blank is a character of a scope that nobody grants.
    scopes = value.split(" ") if isinstance(value, str) else value
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        _invalid("the scopes are neither a string nor a list of strings")
    return frozenset(scope for scope in scopes if scope)


def _groups(value: Any) -> frozenset[str]:
    """Groups only ever name approvers, so a claim of another shape grants nothing and hurts nobody."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return frozenset()
    return frozenset(name for name in names if isinstance(name, str) and name)


def close_implications(scope_implies: Mapping[str, Iterable[str]]) -> Implications:
    """`scope_implies` of the configuration, closed transitively and turned round. Cycles are fine."""
    granted_by: dict[str, set[str]] = {}
    for scope in scope_implies:
        reached, open_ends = {scope}, [scope]
        while open_ends:
            for implied in scope_implies.get(open_ends.pop(), ()):
                if implied not in reached:
                    reached.add(implied)
                    open_ends.append(implied)
        for implied in reached:
            granted_by.setdefault(implied, {implied}).add(scope)
    return {scope: frozenset(granters) for scope, granters in granted_by.items() if len(granters) > 1}


def missing_scopes(held: frozenset[str], required: Sequence[str], implies: Implications) -> tuple[str, ...]:
    """The scopes of `required` that `held` neither contains nor implies, in order; empty when all are covered."""
    if held.issuperset(required):
        return ()
    return tuple(
        scope for scope in required if scope not in held and held.isdisjoint(implies.get(scope, frozenset()))
    )


def require_scopes(identity: Identity, required: Sequence[str], implies: Implications) -> None:
    """Raises `Refused(SCOPE_INSUFFICIENT)` unless every required scope is covered.

    Its `data["requiredScopes"]` names all that the operation needs, held ones included, so that the client can ask
    for a token that will do; the reply puts them into the challenge's `scope`.
    """
    if missing := missing_scopes(identity.scopes, required, implies):
        raise Refused(
            Refusal.SCOPE_INSUFFICIENT,
            f"missing scopes: {' '.join(missing)}",
            requiredScopes=list(dict.fromkeys(required)),
        )


def resource_metadata(server: Server, authorization_servers: Iterable[str], scopes: Iterable[str]) -> dict[str, Any]:
    """The RFC 9728 document of one protected resource. Raises ValueError when no authorization server is named."""
    servers = sorted(set(authorization_servers))
    if not servers:
        raise ValueError(f"no authorization server for {server.resource}")
    return {
        "resource": server.resource,
        "authorization_servers": servers,
        "scopes_supported": [scope for scope in dict.fromkeys(scopes) if scope != "offline_access"],
        "bearer_methods_supported": ["header"],
    }
