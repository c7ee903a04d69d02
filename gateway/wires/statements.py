"""The signed statement of who calls, for servers that authorise per user (`forward_identity`; docs/identity.md).

A JWT of a type of its own, for one server and one request body, good for a minute: never the caller's token, and
nothing that could be used in its place. It leaves with the request and stands nowhere else. A server tells callers
apart by `sub_id` (RFC 9493) or by `sub`, which names the issuer too: two issuers may both have an `alice`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import orjson
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from jwt.algorithms import get_default_algorithms

from gateway.contract.passage import Admitted, Identity

TYPE: Final = "ostiary-identity+jwt"
GOOD_S: Final = 60
"""How long a statement is good: a request is sent at once, or it waits in a short queue."""
NAME_CHARACTERS: Final = 512
"""A longer name is left out: a header has to stay small, and the body's digest binds it as well."""
MOST_KEYS: Final = 8

_PEM: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.S)
_PYJWT: Final = get_default_algorithms()


class StatementKey:
    """A private key that signs statements: Ed25519, or ECDSA on P-256. `jwk` is its public half."""

    __slots__ = ("_algorithm", "_head", "_key", "jwk")

    def __init__(self, key: Ed25519PrivateKey | EllipticCurvePrivateKey) -> None:
        name = "EdDSA" if isinstance(key, Ed25519PrivateKey) else "ES256"
        self._algorithm: Final[Any] = _PYJWT[name]
        self._key: Final = key
        public: dict[str, Any] = self._algorithm.to_jwk(key.public_key(), as_dict=True)
        bare: dict[str, Any] = {member: public[member] for member in ("crv", "kty", "x", "y") if member in public}
        # RFC 7638: the members that matter, in this order and without spaces.
        kid = _base64(hashlib.sha256(orjson.dumps(bare, option=orjson.OPT_SORT_KEYS)).digest())
        self.jwk: Final[dict[str, Any]] = {**bare, "alg": name, "use": "sig", "kid": kid}
        self._head: Final = _base64(orjson.dumps({"alg": name, "typ": TYPE, "kid": kid})) + "."

    def __repr__(self) -> str:
        return f"StatementKey({self.jwk['kid']})"

    def sign(self, claims: dict[str, Any]) -> bytes:
        """The claims as a compact JWS."""
        signing = (self._head + _base64(orjson.dumps(claims))).encode()
        return signing + b"." + _base64(self._algorithm.sign(signing, self._key)).encode()


def read_statement_keys(text: str, variable: str) -> tuple[StatementKey, ...]:
    """The keys in a variable: PEM, one after the other, or 32 bytes in base64url each (Ed25519), with commas.

    The first signs; the others are only published. Raises `ValueError` that names the variable and never quotes it.
    """
    found: list[StatementKey] = []
    try:
        if "-----BEGIN" in text:
            if _PEM.sub("", text).strip(" \t\r\n,"):
                raise ValueError(variable)
            found += [StatementKey(_private(block)) for block in _PEM.findall(text)]
        else:
            found += [StatementKey(Ed25519PrivateKey.from_private_bytes(_seed(part))) for part in text.split(",")]
    except (ValueError, TypeError):
        form = "private keys in PEM (Ed25519 or ECDSA on P-256, without a passphrase) nor 32 bytes in base64url"
        raise ValueError(f"{variable}: holds neither {form}") from None
    kids = [key.jwk["kid"] for key in found]
    if len(set(kids)) != len(kids) or len(kids) > MOST_KEYS:
        raise ValueError(f"{variable}: holds a key twice, or more than {MOST_KEYS}")
    return tuple(found)


def jwk_set(keys: Iterable[StatementKey]) -> bytes:
    """What servers verify with (RFC 7517): each key once."""
    return orjson.dumps({"keys": list({key.jwk["kid"]: key.jwk for key in keys}.values())})


class Stating:
    """Who states something to one server: in which header, signed with `keys[0]`, as `issuer`, for `audience`."""

    __slots__ = ("_audience", "_clock", "_issuer", "_key", "_start", "header")

    def __init__(
        self,
        header: str,
        keys: Sequence[StatementKey],
        issuer: str,
        audience: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.header = header
        self._start = header.lower().encode("ascii") + b": "
        self._key = keys[0]
        self._issuer = issuer
        self._audience = audience
        self._clock = clock

    def of_call(self, admitted: Admitted, body: bytes) -> bytes:
        """The header line of an admitted call, whose body is sent as `body`. `jti` is the decision's id."""
        call, tasks = admitted.call, admitted.tasks
        name = tasks[0].id if call.kind == "task" and tasks else call.name
        ticket = "" if admitted.use is None else admitted.use.ticket_id
        return self._line(admitted.identity, body, admitted.decision_id, call.method, name, ticket)

    def of_question(
        self, body: bytes, question_id: str, method: str, name: str | None = None, *, who: Identity | None = None
    ) -> bytes:
        """The header line of a question of the house's own; `who`: the caller whose session it is about."""
        return self._line(who, body, question_id, method, name, "")

    def _line(  # noqa: PLR0917 - the two above are what others call
        self, who: Identity | None, body: bytes, jti: str, method: str, name: str | None, ticket: str
    ) -> bytes:
        now = int(self._clock())
        request = {"method": method, "body_sha256": _base64(hashlib.sha256(body).digest())}
        if name is not None and len(name) <= NAME_CHARACTERS:
            request["name"] = name
        if ticket:
            request["ticket"] = ticket
        claims: dict[str, Any] = {"iss": self._issuer, "aud": self._audience, "jti": jti, "iat": now}
        claims |= {"exp": now + GOOD_S, "mcp": request}
        if who is None:
            claims["sub"] = self._issuer  # itself; no caller's `sub` is without |
        else:
            claims["sub"] = f"{who.issuer}|{who.subject}"
            claims["sub_id"] = {"format": "iss_sub", "iss": who.issuer, "sub": who.subject}
            said = {"client_id": who.client_id, "tenant": who.tenant, "scope": " ".join(sorted(who.scopes))}
            claims |= {claim: value for claim, value in said.items() if value}
        return self._start + self._key.sign(claims) + b"\r\n"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _private(block: str) -> Ed25519PrivateKey | EllipticCurvePrivateKey:
    key = load_pem_private_key(block.encode(), password=None)
    if isinstance(key, Ed25519PrivateKey) or (
        isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP256R1)
    ):
        return key
    raise TypeError("a key of another kind")


def _seed(text: str) -> bytes:
    try:
        seed = base64.b64decode(text.strip() + "=" * (-len(text.strip()) % 4), b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("no base64url") from error
    if len(seed) != 32:
        raise ValueError("not 32 bytes")
    return seed
