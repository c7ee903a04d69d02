"""The signature layer against real cryptography, real vectors and hostile texts (JWT-02, JWT-03, G5)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import gateway.signatures
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.strict_json import NotStrict
from gateway.signatures import (
    ALGORITHMS,
    KEYS_PER_SET,
    Key,
    check_signature,
    read_compact,
    read_key,
    read_key_set,
    strict_object,
)
from tests.support.issuer import ALGORITHMS as PYJWT
from tests.support.issuer import SigningKey, b64, private_key, signing_key

GOOD_HEADER = b'{"alg":"ES256","kid":"ES256-0"}'
WYCHEPROOF = Path(__file__).parent.parent / "vectors" / "wycheproof"


def vectors(file: str) -> list[Any]:
    """(key set, vector) of every case in a Wycheproof file."""
    groups = json.loads((WYCHEPROOF / file).read_text())["testGroups"]
    cases = []
    for group in groups:
        key = group.get("public") or group["private"]
        keys = key.get("keys", [key])
        for case in group["tests"]:
            cases.append(pytest.param(keys, case, id=f"{case['tcId']}-{case['comment']}"))
    return cases


def verify(token: str, keys: tuple[Key, ...]) -> bytes:
    """As the room does it: read, take the one key that fits by id and algorithm, check. Gives the payload."""
    signed = read_compact(token.encode())
    fitting = [key for key in keys if key.kid == signed.kid and signed.alg in key.algorithms]
    if len(fitting) != 1:
        raise Refused(Refusal.TOKEN_INVALID, "not exactly one fitting key")
    check_signature(signed, fitting[0])
    return signed.payload


def key_set(*jwks: Any) -> tuple[Key, ...]:
    return read_key_set(json.dumps({"keys": jwks}).encode())


def test_headers_are_remembered_within_bounds() -> None:
    """What strangers write into a header takes bounded room, and a header that is refused is refused again."""
    remembered = gateway.signatures._read_short_header
    remembered.cache_clear()
    rest = f".{b64(b'{}')}.{b64(b'x')}".encode()
    for nth in range(1000):
        assert read_compact(b64(b'{"alg":"ES256","kid":"%d"}' % nth).encode() + rest).kid == str(nth)
    for _ in range(2):
        assert read_compact(b64(b'{"alg":"ES256","x":"%b"}' % (b"y" * 500)).encode() + rest).kid is None
        with pytest.raises(Refused):
            read_compact(b64(b'{"alg":"ES256","crit":[]}').encode() + rest)
    seen = remembered.cache_info()
    assert (seen.currsize, seen.hits) == (64, 0)


SIGNATURES = vectors("json_web_signature_test.json")
KEYS = vectors("json_web_key_test.json")
# RFC 7520's examples as Wycheproof has them: the key says PS256 (or ES521, which is no algorithm), the token PS384
# (ES512). A key serves its own algorithm only, so these are refused as they are and verify with the key put right.
KEY_SAYS_ANOTHER_ALGORITHM = {346: "PS384", 347: "ES512", 350: "PS384", 351: "ES512"}


@pytest.mark.parametrize(("keys", "case"), [p for p in SIGNATURES if p.values[1]["result"] == "invalid"])
def test_jwt_02_invalid_wycheproof_signatures_are_refused(keys: list[Any], case: dict[str, Any]) -> None:
    """Each of the 355 invalid vectors is refused, HMAC's included."""
    with pytest.raises(Refused) as refused:
        verify(case["jws"], key_set(*keys))
    assert refused.value.refusal is Refusal.TOKEN_INVALID


@pytest.mark.parametrize(("keys", "case"), [p for p in SIGNATURES if p.values[1]["result"] == "valid"])
def test_jwt_02_valid_wycheproof_signatures_verify(keys: list[Any], case: dict[str, Any]) -> None:
    """Valid vectors of supported algorithms verify; of HMAC's, none."""
    if keys[0]["kty"] == "oct":
        with pytest.raises(Refused):
            verify(case["jws"], key_set(*keys))
        return
    if case["tcId"] in KEY_SAYS_ANOTHER_ALGORITHM:
        with pytest.raises(Refused):
            verify(case["jws"], key_set(*keys))
        keys = [{**keys[0], "alg": KEY_SAYS_ANOTHER_ALGORITHM[case["tcId"]]}]
    verify(case["jws"], key_set(*keys))


def test_jwt_02_wycheproof_is_whole() -> None:
    """The counts that the requirement names: nothing is skipped by a filter that matches nothing."""
    results = [p.values[1]["result"] for p in SIGNATURES]
    assert (results.count("invalid"), results.count("valid"), len(KEYS)) == (355, 46, 26)


@pytest.mark.parametrize(("keys", "case"), KEYS)
def test_wycheproof_key_sets(keys: list[Any], case: dict[str, Any]) -> None:
    """Key sets with wrong use, curve, type, point, size, exponent, ROCA or doubled ids are refused."""
    good = case["result"] == "valid" and keys[0]["kty"] != "oct"
    if good:
        verify(case["jws"], key_set(*keys))
    else:
        with pytest.raises(Refused):
            verify(case["jws"], key_set(*keys))


@pytest.mark.parametrize("alg", sorted(set(ALGORITHMS) - {"Ed25519"}))
def test_every_algorithm_verifies_its_own_and_no_other(alg: str) -> None:
    """A key verifies what was signed for its algorithm; with one bit changed, or under another name, it does not."""
    key = signing_key(alg)
    token = key.sign(json.dumps({"alg": alg, "kid": key.kid}).encode(), b"{}")
    assert verify(token, key_set(key.jwk())) == b"{}"
    assert verify(token, key_set(key.jwk(alg=None))) == b"{}"
    head, payload, signature = token.split(".")
    for position in (0, len(signature) // 2):
        flipped = "A" if signature[position] != "A" else "B"
        with pytest.raises(Refused):
            verify(f"{head}.{payload}.{signature[:position]}{flipped}{signature[position + 1 :]}", key_set(key.jwk()))
    for other in set(ALGORITHMS) - {alg, "Ed25519"}:
        renamed = key.sign(json.dumps({"alg": other, "kid": key.kid}).encode(), b"{}")
        with pytest.raises(Refused):
            verify(renamed, key_set(key.jwk()))


def test_ed25519_by_its_rfc_9864_name() -> None:
    """`Ed25519` is EdDSA over Ed25519 under a name that says so; a key that says one verifies only that one."""
    key = signing_key("EdDSA")
    token = key.sign(b'{"alg":"Ed25519","kid":"EdDSA-0"}', b"{}")
    verify(token, key_set(key.jwk(alg="Ed25519")))
    with pytest.raises(Refused):
        verify(token, key_set(key.jwk(alg="EdDSA")))


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE"])
def test_jwt_02_none_in_any_case(alg: str) -> None:
    """CVE-2015-9235 and kin: `none` is no algorithm in any spelling, with a signature or without."""
    key = signing_key()
    verify(key.sign(GOOD_HEADER, b"{}"), key_set(key.jwk()))
    header = json.dumps({"alg": alg, "kid": key.kid}).encode()
    for token in (f"{b64(header)}.{b64(b'{}')}.", f"{b64(header)}.{b64(b'{}')}", key.sign(header, b"{}")):
        with pytest.raises(Refused):
            verify(token, key_set(key.jwk()))


@pytest.mark.parametrize("alg", ["ES256", "RS256"])
@pytest.mark.parametrize("form", ["pem", "der", "jwk"])
def test_jwt_02_hmac_with_the_public_key(alg: str, form: str) -> None:
    """CVE-2016-10555: HS256 keyed with the public key in whatever spelling is refused."""
    key = signing_key(alg)
    public: Any = key.private.public_key()
    spellings: dict[str, Callable[[], bytes]] = {
        "pem": lambda: public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "der": lambda: public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "jwk": lambda: json.dumps(key.jwk()).encode(),
    }
    secret = spellings[form]()
    text = f"{b64(json.dumps({'alg': 'HS256', 'kid': key.kid}).encode())}.{b64(b'{}')}"
    token = f"{text}.{b64(PYJWT['HS256'].sign(text.encode(), secret))}"
    with pytest.raises(Refused):
        verify(token, key_set(key.jwk()))


P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@pytest.mark.parametrize("value", [0, P256_ORDER, 1, P256_ORDER - 1, 2**256 - 1])
def test_jwt_02_psychic_signatures(value: int) -> None:
    """CVE-2022-21449: r = s = 0 (or n, or their neighbours) is no signature."""
    key = signing_key()
    text = f"{b64(GOOD_HEADER)}.{b64(b'{}')}"
    with pytest.raises(Refused):
        verify(f"{text}.{b64(value.to_bytes(32, 'big') * 2)}", key_set(key.jwk()))


@pytest.mark.parametrize(
    "more",
    [
        '"crit":["exp"]',
        '"crit":[]',
        '"crit":null',
        '"crit":"exp"',
        '"b64":false',
        '"b64":true',
        '"b64":false,"crit":["b64"]',
    ],
)
def test_jwt_02_extensions_that_are_not_understood(more: str) -> None:
    """RFC 7515 section 4.1.11: an extension that is not understood is refused, and so is a malformed list of them."""
    key = signing_key()
    verify(key.sign(GOOD_HEADER, b"{}"), key_set(key.jwk()))
    with pytest.raises(Refused):
        verify(key.sign(f'{{"alg":"ES256","kid":"ES256-0",{more}}}'.encode(), b"{}"), key_set(key.jwk()))


@pytest.mark.parametrize("member", ["jwk", "jku", "x5u", "x5c"])
def test_jwt_03_a_key_in_the_token_is_no_key(member: str) -> None:
    """CVE-2018-0114: the key that a token brings along, or points to, is never used."""
    own, foreign = signing_key(), SigningKey("ES256-0", "ES256", private_key("ES256", 9))
    value = {"jwk": foreign.jwk(), "x5c": [b64(b"der")]}.get(member, "http://127.0.0.1:9/keys")
    header = json.dumps({"alg": "ES256", "kid": own.kid, member: value}).encode()
    with pytest.raises(Refused):
        verify(foreign.sign(header, b"{}"), key_set(own.jwk()))
    assert verify(own.sign(header, b"{}"), key_set(own.jwk())) == b"{}"


@pytest.mark.parametrize("kid", ['["ES256-0"]', "{}", "7", "true", "null", '""'])
def test_jwt_03_key_ids_of_another_type(kid: str) -> None:
    """A key id is a text or absent."""
    key = signing_key()
    with pytest.raises(Refused):
        read_compact(key.sign(f'{{"alg":"ES256","kid":{kid}}}'.encode(), b"{}").encode())


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t + "=",
        lambda t: t + ".",
        lambda t: t + ".e30",
        lambda t: "." + t,
        lambda t: " " + t,
        lambda t: t + "\n",
        lambda t: t.replace(".", "..", 1),
        lambda t: t.replace(".", "=.", 1),
        lambda t: t[:-2] + "+/",
        lambda t: t.replace(".", "\x00.", 1),
        lambda t: t.rsplit(".", 1)[0],
        lambda t: t.rsplit(".", 1)[0] + ".",
        lambda t: "." + t.split(".", 1)[1],
        lambda t: '{"payload":"' + t + '"}',
        lambda t: t.replace("e", "\uff45", 1),
        lambda t: t[:-1] + chr(ord(t[-1]) + 1),
        lambda t: t + "A" * 9000,
    ],
)
def test_g5_a_token_has_one_spelling(change: Any) -> None:
    """Unpadded canonical base64url in three parts within 8 KiB; every other text is another text, and refused."""
    key = signing_key()
    token = key.sign(GOOD_HEADER, b"{}")
    read_compact(token.encode())
    assert token[-1] in "AQgw", "the last of 86 characters carries two bits"
    with pytest.raises(Refused):
        read_compact(change(token).encode())


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":1}',
        b'{"a":{"b":1,"b":2}}',
        b'{"a":[{"b":1,"\\u0062":2}]}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e400}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":1}{}',
        b'{"a":1}x',
        b"{'a':1}",
        b'{"a":01}',
        b'{"a":1,}',
        b'{"a":1/**/}',
        b'["a"]',
        b'"a"',
        b"null",
        b"",
        b'{"a":' * 70 + b"1" + b"}" * 70,
        b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}",
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_strict_json_refuses_second_readings(text: bytes) -> None:
    """Duplicate members at any depth, numbers that are none, broken texts, deep nesting, anything but one object."""
    with pytest.raises(NotStrict):
        strict_object(text)


@pytest.mark.parametrize(
    "text", [b'{"a":1}', b' {"a" : 1.50 }\n', b'{"\\u0061":"\\u00e9"}', b'{"a":[{"b":1},{"b":2}]}']
)
def test_strict_json_reads_what_issuers_write(text: bytes) -> None:
    """White space, escapes and equal names in different objects are one reading."""
    assert strict_object(text) == json.loads(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"use": "enc"},
        {"use": "SIG"},
        {"use": ["sig"]},
        {"key_ops": ["sign"]},
        {"key_ops": "verify"},
        {"key_ops": []},
        {"alg": "HS256"},
        {"alg": "none"},
        {"alg": ["ES256"]},
        {"alg": "ES384"},
        {"kty": "RSA"},
        {"kty": "oct", "k": "AAAA"},
        {"kty": None},
        {"crv": "P-384"},
        {"crv": "secp256k1"},
        {"crv": None},
        {"x": "AAAA"},
        {"x": 7},
        {"y": None},
        {"d": "AAAA"},
        {"kid": 7},
        {"kid": ["a"]},
    ],
)
def test_keys_that_can_not_verify_are_left_out(changes: dict[str, Any]) -> None:
    """Symmetric, private, malformed keys and those for something else are ignored; their neighbours stay."""
    key, neighbour = signing_key(), signing_key("ES256", 1)
    assert read_key(key.jwk()) is not None
    assert read_key(key.jwk(use=None, key_ops=["sign", "verify"])) is not None
    assert [k.kid for k in key_set(key.jwk(**changes), neighbour.jwk())] == ["ES256-1"]


@pytest.mark.parametrize("jwk", [None, 7, "key", [], {}, {"kty": "EC"}, {"kty": ["EC"]}, {"keys": []}])
def test_what_is_no_key_is_left_out(jwk: Any) -> None:
    """Any JSON value may stand in a set; what is no key of a known kind is none."""
    assert key_set(jwk) == ()


def test_weak_rsa_keys_are_left_out() -> None:
    """Below 2048 bits a modulus can be factored, above 8192 verifying is a burden, and a small e is trouble."""
    assert key_set(signing_key("RS256").jwk())
    assert key_set(signing_key("RS256", 1, bits=1024).jwk()) == ()
    for exponent in (1, 2, 3, 65536, 2**33 + 1):
        encoded = b64(exponent.to_bytes(5, "big").lstrip(b"\0"))
        assert key_set(signing_key("RS256").jwk(e=encoded)) == (), exponent
    assert key_set(signing_key("RS256").jwk(n=b64(b"\xff" * 1025))) == ()


def test_an_rsa_key_without_alg_serves_all_rsa_algorithms() -> None:
    """Where the issuer pins nothing, type and curve decide; the issuer's own pin is in its settings."""
    (key,) = key_set(signing_key("RS256").jwk(alg=None))
    assert key.algorithms == {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}


@pytest.mark.parametrize(
    "document",
    [b"", b"[]", b"{}", b'{"keys":{}}', b'{"keys":null}', b'{"keys":[],"keys":[]}', b"<html>"],
)
def test_what_is_no_set_is_an_error(document: bytes) -> None:
    """A broken document must not look like a set whose keys were all withdrawn."""
    assert read_key_set(b'{"keys":[]}') == ()
    with pytest.raises(ValueError, match=r"."):
        read_key_set(document)


def test_a_set_is_bounded() -> None:
    """The number of keys is bounded, so that one document can't hold the CPU; the same key twice is one key."""
    jwk = signing_key().jwk()
    assert len(key_set(*[jwk] * KEYS_PER_SET)) == 1
    with pytest.raises(ValueError, match="at most"):
        key_set(*[jwk] * (KEYS_PER_SET + 1))
