"""Who signed this text? One strict reading of a compact JWS, of a JWK set, and the check of one against the other.

Invariant: a token has one spelling (RFC 7515 compact form, canonical base64url, JSON without a second reading), and a
key verifies only the algorithm that it is made for (RFC 8725 section 3.1). Nothing in a token leads to a key: `jwk`,
`jku`, `x5u` and `x5c` are never read. PyJWT and cryptography do the arithmetic. No clock, no I/O.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NoReturn

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import Algorithm, get_default_algorithms
from jwt.exceptions import PyJWTError

from gateway.contract.refusals import Refusal, Refused
from gateway.contract.strict_json import NotStrict, read_strictly

TOKEN_BYTES = 8192
"""The longest token that is looked at."""
KEYS_PER_SET = 128
NOT_SIGNED = "the signature does not verify"
RSA_BITS = range(2048, 8193)

_COMPACT = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]*)\.([A-Za-z0-9_-]+)")
_PLAIN_ALPHABET = bytes.maketrans(b"-_", b"+/")
_SHORT_HEADER = 512
"""The longest header that is remembered as it was read, in base64url: strangers choose what is."""
_PRIVATE_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})


@dataclass(frozen=True, slots=True)
class Method:
    """How an algorithm's name is verified: the key type and curve that it needs, and PyJWT's implementation."""

    kty: str
    crv: str | None
    check: Algorithm


_PYJWT = get_default_algorithms()

ALGORITHMS: dict[str, Method] = {
    "ES256": Method("EC", "P-256", _PYJWT["ES256"]),
    "ES384": Method("EC", "P-384", _PYJWT["ES384"]),
    "ES512": Method("EC", "P-521", _PYJWT["ES512"]),
    "EdDSA": Method("OKP", "Ed25519", _PYJWT["EdDSA"]),
    "Ed25519": Method("OKP", "Ed25519", _PYJWT["EdDSA"]),  # RFC 9864's name of the same signature
    "RS256": Method("RSA", None, _PYJWT["RS256"]),
    "RS384": Method("RSA", None, _PYJWT["RS384"]),
    "RS512": Method("RSA", None, _PYJWT["RS512"]),
    "PS256": Method("RSA", None, _PYJWT["PS256"]),
    "PS384": Method("RSA", None, _PYJWT["PS384"]),
    "PS512": Method("RSA", None, _PYJWT["PS512"]),
}
"""Every algorithm that can be configured. None is symmetric, and `none` is no algorithm."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A compact JWS in its parts, read but not verified. `signing_input` is the text that the signature covers."""

    header: dict[str, Any]
    payload: bytes
    signing_input: bytes
    signature: bytes
    alg: str
    kid: str | None


@dataclass(slots=True, eq=False)
class Key:
    """A public key of one issuer. `mark` tells keys apart: two with the same mark are the same key.

    `retired` becomes true when the key leaves its set: what was verified with it counts no longer.
    """

    kid: str | None
    algorithms: frozenset[str]
    public: Any
    mark: tuple[Any, ...]
    retired: bool = field(default=False)


def invalid(detail: str) -> NoReturn:
    """Refuse the token. `detail` is a fixed sentence of ours, never text out of the token."""
    raise Refused(Refusal.TOKEN_INVALID, detail)


def strict_object(document: bytes) -> dict[str, Any]:
    """JSON text with exactly one reading -> object. Raises ValueError for every other text."""
    value = read_strictly(document)
    if not isinstance(value, dict):
        raise NotStrict("not a JSON object")
    return value


def _decode(part: bytes, name: str) -> bytes:
    """A part of `_COMPACT` -> its bytes. Raises `Refused(TOKEN_INVALID)` unless it is the one spelling of them."""
    padded = part.translate(_PLAIN_ALPHABET) + b"=" * (-len(part) % 4)
    try:
        value = binascii.a2b_base64(padded, strict_mode=True)
    except binascii.Error:
        invalid(f"the {name} is not base64url")
    if binascii.b2a_base64(value, newline=False) != padded:
        invalid(f"the {name} is not canonical base64url")
    return value


def _read_header(part: bytes) -> tuple[dict[str, Any], str, str | None]:
    """The first part -> the header, its `alg` and `kid`. Raises `Refused(TOKEN_INVALID)`."""
    try:
        header = strict_object(_decode(part, "header"))
    except NotStrict:
        invalid("the header is not one strict JSON object")
    if "crit" in header or "b64" in header:
        invalid("the header asks for an extension")
    alg, kid = header.get("alg"), header.get("kid")
    if not isinstance(alg, str):
        invalid("the header names no algorithm")
    if "kid" in header and (not isinstance(kid, str) or not kid):
        invalid("the key id is not a string")
    return header, alg, kid


# All tokens of a key begin with the same text.
_read_short_header = lru_cache(maxsize=64)(_read_header)


def read_compact(token: bytes) -> Signed:
    """A token's text -> its parts. Raises `Refused(TOKEN_INVALID)` for every other spelling and every header that
    asks for something that is not done here: an extension (`crit`), an unencoded payload (`b64`). The header is
    shared by all tokens that have it: it is only ever read."""
    if len(token) > TOKEN_BYTES:
        invalid("the token is too long")
    parts = _COMPACT.fullmatch(token)
    if parts is None:
        invalid("the token is not three parts of base64url")
    text = parts[1]
    header, alg, kid = _read_short_header(text) if len(text) <= _SHORT_HEADER else _read_header(text)
    payload, signature = _decode(parts[2], "payload"), _decode(parts[3], "signature")
    return Signed(header, payload, token[: parts.end(2)], signature, alg, kid)


def check_signature(signed: Signed, key: Key) -> None:
    """Raises `Refused(TOKEN_INVALID)` unless `key` is made for the token's algorithm and its signature verifies."""
    if signed.alg not in key.algorithms:
        invalid("the key is not made for this algorithm")
    if ALGORITHMS[signed.alg].check.verify(signed.signing_input, key.public, signed.signature) is not True:
        invalid(NOT_SIGNED)


def read_key_set(document: bytes) -> tuple[Key, ...]:
    """RFC 7517 set -> the keys that can verify. Raises ValueError when it is no JWK set, or has too many keys.

    A key that can't be used here is left out, as the RFC wants: symmetric, private, weak, malformed, for encryption,
    or of an unknown kind.
    """
    keys = strict_object(document).get("keys")
    if not isinstance(keys, list) or len(keys) > KEYS_PER_SET:
        raise ValueError(f"not a JWK set of at most {KEYS_PER_SET} keys")
    return tuple(_distinct(key for jwk in keys if (key := read_key(jwk)) is not None))


def _distinct(keys: Iterable[Key]) -> Iterable[Key]:
    return {key.mark: key for key in keys}.values()


def read_key(jwk: Any) -> Key | None:
    """One JWK -> a key with all the algorithms it may verify, or None where it may verify none."""
    if not isinstance(jwk, dict) or not _PRIVATE_MEMBERS.isdisjoint(jwk):
        return None
    kid, use, operations, alg = (jwk.get(name) for name in ("kid", "use", "key_ops", "alg"))
    if kid is not None and (not isinstance(kid, str) or not kid):
        return None
    if use not in (None, "sig") or (operations is not None and not _can_verify(operations)):
        return None
    fitting = {
        name: method
        for name, method in ALGORITHMS.items()
        if method.kty == jwk.get("kty") and method.crv in (None, jwk.get("crv")) and alg in (None, name)
    }
    if not fitting:
        return None
    try:
        public = next(iter(fitting.values())).check.from_jwk(jwk)
    except (PyJWTError, ValueError, TypeError):
        return None
    if isinstance(public, RSAPublicKey) and not _strong(public):
        return None
    algorithms = frozenset(fitting)
    material = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return Key(kid, algorithms, public, (kid, algorithms, material))


def _can_verify(operations: Any) -> bool:
    return isinstance(operations, list) and "verify" in operations


def _strong(key: RSAPublicKey) -> bool:
    """Size within bounds, an exponent as FIPS 186-5 wants it (and no larger than 32 bits), not a ROCA key."""
    numbers = key.public_numbers()
    exponent_is_good = numbers.e % 2 == 1 and 65537 <= numbers.e < 2**32
    return key.key_size in RSA_BITS and exponent_is_good and not _is_roca(numbers.n)


# CVE-2017-15361: moduli of the broken generator are powers of 65537 modulo each of these primes; others almost never.
_ROCA_PRIMES = (11, 13, 17, 19, 37, 53, 61, 71, 73, 79, 97, 103, 107, 109, 127, 151, 157)
_ROCA_POWERS = {prime: frozenset(pow(65537, k, prime) for k in range(prime)) for prime in _ROCA_PRIMES}


def _is_roca(modulus: int) -> bool:
    return all(modulus % prime in powers for prime, powers in _ROCA_POWERS.items())
