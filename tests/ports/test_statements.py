"""The signed statement of who calls: what it says, to whom, for how long, and that nothing else could be it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
from collections.abc import Mapping
from typing import Any

import jwt
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt import PyJWKSet

from approvals.ticket import Claimed
from gateway.contract.passage import Admitted, Identity, Task
from gateway.upstream.http import HttpUpstream
from gateway.upstream.legacy import LegacyUpstream
from gateway.upstream.target import ReplicaRefused, UpstreamTarget, check_replica_url
from gateway.wires.statements import GOOD_S, TYPE, StatementKey, Stating, jwk_set, read_statement_keys
from tests.support.past import PastServer
from tests.support.upstream import SERVER, ScriptedUpstream, an_admitted

GATEWAY = "https://gw.example"
ALICE = Identity(
    "https://idp.example", "alice", "client-7", "acme", frozenset({"mcp:use", "files:read"}), expires_at=9e9
)
SEED = base64.urlsafe_b64encode(bytes(range(32))).decode()


def pem(key: Any) -> str:
    """A private key as a variable holds it."""
    form = PrivateFormat.PKCS8, NoEncryption()
    text: bytes = key.private_bytes(Encoding.PEM, *form)
    return text.decode()


KEYS: Mapping[str, str] = {
    "Ed25519 in base64url": SEED,
    "Ed25519 in PEM": pem(ed25519.Ed25519PrivateKey.generate()),
    "ES256 in PEM": pem(ec.generate_private_key(ec.SECP256R1())),
}


def stating(
    keys: tuple[StatementKey, ...] | None = None, at: float | None = None, header: str = "X-Caller"
) -> Stating:
    """Who states to `SERVER`, with a clock that stands still at `at`."""
    keys = keys or read_statement_keys(SEED, "KEY")
    if at is None:
        return Stating(header, keys, GATEWAY, SERVER.resource)
    return Stating(header, keys, GATEWAY, SERVER.resource, clock=lambda: at)


def admitted(**changes: Any) -> Admitted:
    """Alice's call."""
    return dataclasses.replace(an_admitted(), **{"identity": ALICE, **changes})


def read(line: bytes, keys: tuple[StatementKey, ...]) -> dict[str, Any]:
    """A header line -> the claims, verified as an ordinary server would with PyJWT and the published set."""
    name, _, token = line.rstrip(b"\r\n").partition(b": ")
    assert (name, line[-2:]) == (b"x-caller", b"\r\n")
    head = jwt.get_unverified_header(token.decode())
    assert head["typ"] == TYPE
    (key,) = [key for key in PyJWKSet.from_dict(orjson.loads(jwk_set(keys))).keys if key.key_id == head["kid"]]
    claims: dict[str, Any] = jwt.decode(
        token.decode(), key, algorithms=["EdDSA", "ES256"], audience=SERVER.resource, issuer=GATEWAY,
        options={"require": ["exp", "iat", "jti", "sub"]},
    )  # fmt: skip
    return claims


@pytest.mark.parametrize("kind", KEYS)
def test_a_statement_names_the_caller_the_call_and_the_server_for_a_minute(kind: str) -> None:
    """Verified by PyJWT from the published keys: who, for whom, which request, for how long; and nothing else."""
    keys = read_statement_keys(KEYS[kind], "KEY")
    call = admitted()
    claims = read(stating(keys).of_call(call, call.body), keys)
    iat = claims.pop("iat")
    assert claims.pop("exp") - iat == GOOD_S <= 60
    assert claims == {
        "iss": GATEWAY,
        "aud": SERVER.resource,
        "sub": "https://idp.example|alice",
        "sub_id": {"format": "iss_sub", "iss": "https://idp.example", "sub": "alice"},
        "client_id": "client-7",
        "tenant": "acme",
        "scope": "files:read mcp:use",
        "jti": "decision",
        "mcp": {
            "method": "tools/call",
            "name": "add",
            "body_sha256": base64.urlsafe_b64encode(hashlib.sha256(call.body).digest()).rstrip(b"=").decode(),
        },
    }


def test_an_approved_call_names_its_ticket_and_a_task_its_servers_id() -> None:
    """The ticket is there to be written down beside what was done; of a task the server hears its own id."""
    keys = read_statement_keys(SEED, "KEY")
    use = Claimed("ticket-1", "use-1")
    assert read(stating(keys).of_call(admitted(use=use), b""), keys)["mcp"]["ticket"] == "ticket-1"
    call = dataclasses.replace(an_admitted().call, kind="task", method="tasks/get", name="sealed handle")
    task = admitted(call=call, tasks=(Task("sealed handle", "own-id", "add"),))
    assert read(stating(keys).of_call(task, b""), keys)["mcp"]["name"] == "own-id"


def test_a_name_that_would_not_fit_a_header_is_left_out() -> None:
    """A long URI is bound by the body's digest alone."""
    keys = read_statement_keys(SEED, "KEY")
    call = dataclasses.replace(an_admitted().call, kind="resource", method="resources/read", name="x://" + "é" * 600)
    line = stating(keys).of_call(admitted(call=call), b"")
    assert "name" not in read(line, keys)["mcp"]
    assert len(line) < 1000


def test_the_house_states_itself() -> None:
    """Its own questions name the gateway as the subject, and nobody else."""
    keys = read_statement_keys(SEED, "KEY")
    claims = read(stating(keys).of_question(b"{}", "ostiary-1", "tools/list"), keys)
    assert (claims["sub"], claims["jti"], claims["mcp"]["method"]) == (GATEWAY, "ostiary-1", "tools/list")
    assert not {"sub_id", "client_id", "tenant", "scope"} & claims.keys()


def test_g8_two_issuers_callers_of_one_name_are_two() -> None:
    """G8: `sub` is unique over issuers; a caller whose `sub` looks like another's is not that other."""
    keys = read_statement_keys(SEED, "KEY")
    said = {
        read(stating(keys).of_call(admitted(identity=Identity(issuer, subject)), b""), keys)["sub"]
        for issuer, subject in (("https://a", "alice"), ("https://b", "alice"), ("https://a", "b|alice"))
    }
    assert len(said) == 3
    assert GATEWAY not in said


def test_it_is_good_for_a_minute_and_for_its_server_alone() -> None:
    """Another audience, another time, another type or a flipped byte verify nowhere."""
    keys = read_statement_keys(SEED, "KEY")
    old = stating(keys, at=1e9).of_call(admitted(), b"")
    with pytest.raises(jwt.ExpiredSignatureError):
        read(old, keys)
    foreign = Stating("X-Caller", keys, GATEWAY, "https://gw.example/other").of_call(admitted(), b"")
    with pytest.raises(jwt.InvalidAudienceError):
        read(foreign, keys)
    good = stating(keys).of_call(admitted(), b"")
    with pytest.raises(jwt.InvalidSignatureError):
        read(good[:-12] + (b"A" if good[-12:-11] != b"A" else b"B") + good[-11:], keys)


def test_the_first_key_signs_and_all_are_published() -> None:
    """Rotation: a key is published before it signs, and after it has signed for the last time; each once."""
    texts = list(KEYS.values())[1:]
    before, after = read_statement_keys("\n".join(texts), "K"), read_statement_keys("\n".join(reversed(texts)), "K")
    published = orjson.loads(jwk_set((*before, *after)))["keys"]
    assert {key["kid"] for key in published} == {key.jwk["kid"] for key in before}
    assert len(published) == 2
    assert all(key.keys() <= {"kty", "crv", "x", "y", "alg", "use", "kid"} for key in published)
    one, two = (stating(keys).of_call(admitted(), b"") for keys in (before, after))
    assert read(one, after)["sub"] == read(two, before)["sub"]
    kids = [jwt.get_unverified_header(line.decode().split()[1])["kid"] for line in (one, two)]
    assert kids == [before[0].jwk["kid"], after[0].jwk["kid"]]
    assert kids[0] != kids[1]


def test_a_keys_id_is_its_rfc_7638_thumbprint() -> None:
    """The id is made of the public key: two gateways with one key publish it under one name."""
    jwk = read_statement_keys(SEED, "KEY")[0].jwk
    text = f'{{"crv":"Ed25519","kty":"OKP","x":"{jwk["x"]}"}}'
    thumbprint = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    assert jwk["kid"] == thumbprint


BAD_KEYS: Mapping[str, str] = {
    "empty": ",",
    "short": base64.urlsafe_b64encode(os.urandom(31)).decode(),
    "no base64url": "hunter2!",
    "twice": f"{SEED},{SEED}",
    "RSA": pem(rsa.generate_private_key(65537, 2048)),
    "P-384": pem(ec.generate_private_key(ec.SECP384R1())),
    "text around": "hunter2\n" + KEYS["Ed25519 in PEM"],
    "cut": KEYS["Ed25519 in PEM"][:90],
}


@pytest.mark.parametrize("bad", BAD_KEYS)
def test_ops_07_what_is_no_key_is_refused_and_never_quoted(bad: str) -> None:
    """OPS-07: the variable is named, its content is not."""
    with pytest.raises(ValueError, match=r"^KEY: holds ") as caught:
        read_statement_keys(BAD_KEYS[bad], "KEY")
    assert "hunter2" not in str(caught.value)
    assert SEED not in str(caught.value)


RESERVED = (
    "Authorization", "Cookie", "Host", "Mcp-Name", "Mcp-Param-x", "MCP-Protocol-Version", "Content-Type",
    "Connection", "Accept", "X-Forwarded-User", "Proxy-User", "Traceparent", "baggage", "Content-Digest",
    "Sec-Fetch-Site", "Via", "X-Real-IP", "X-Own", "Ostiary_Identity", "a.b", "", "a b", "é", "a:b", "TE",
)  # fmt: skip


@pytest.mark.parametrize("header", RESERVED)
def test_its_header_is_nothing_else(header: str) -> None:
    """A header that is sent, dropped or read for another reason, or in two ways, can't carry it."""
    replica = (check_replica_url("http://10.0.0.1/mcp"),)
    UpstreamTarget(replica, "X-Own", "secret", stating=stating(header="Ostiary-Identity"))
    one = stating()
    one.header = header
    with pytest.raises(ReplicaRefused, match="statement's header"):
        UpstreamTarget(replica, "X-Own", "secret", stating=one)


async def test_each_request_carries_one_and_only_where_it_is_configured() -> None:
    """Calls and the house's own questions carry exactly one line each; another server's carry none."""
    keys = read_statement_keys(SEED, "KEY")
    async with ScriptedUpstream() as server:
        replicas = (check_replica_url(server.url),)
        targets = {SERVER.name: UpstreamTarget(replicas, stating=stating(keys)), "plain": UpstreamTarget(replicas)}
        upstream = HttpUpstream(targets)
        for repeatable in (False, True):
            answer = await upstream.forward(admitted(repeatable=repeatable))
            assert b"".join([piece async for piece in answer.chunks()])
        await upstream.inquire(SERVER, "tools/list", {})
        await upstream.inquire(dataclasses.replace(SERVER, name="plain"), "tools/list", {})
        await upstream.close()
    said = [seen.values("X-Caller") for seen in server.seen]
    assert [len(lines) for lines in said] == [1, 1, 1, 0]
    found = [read(b"x-caller: " + lines[0].encode() + b"\r\n", keys) for lines in said[:3]]
    assert [claims["sub"] for claims in found] == ["https://idp.example|alice"] * 2 + [GATEWAY]
    for claims, seen in zip(found, server.seen, strict=False):
        digest = base64.urlsafe_b64encode(hashlib.sha256(seen.body).digest()).rstrip(b"=").decode()
        assert claims["mcp"]["body_sha256"] == digest


async def test_a_session_at_an_old_server_is_its_callers() -> None:
    """Whatever opens, keeps and ends a caller's session names that caller; the catalogue's is the gateway's."""
    keys = read_statement_keys(SEED, "KEY")
    old = PastServer()
    async with ScriptedUpstream(old) as server:
        target = UpstreamTarget((check_replica_url(server.url),), stating=stating(keys))
        upstream = LegacyUpstream(HttpUpstream({SERVER.name: target}), {SERVER.name: "2025-06-18"})
        for _ in range(2):
            answer = await upstream.forward(admitted())
            assert b"".join([piece async for piece in answer.chunks()])
            await answer.close()
        await upstream.inquire(SERVER, "tools/list", {})
        await upstream.close()
    sessions: dict[str, set[str]] = {}
    for seen in server.seen:
        (line,) = seen.values("X-Caller")
        claims = read(b"x-caller: " + line.encode() + b"\r\n", keys)
        sessions.setdefault("".join(seen.values("Mcp-Session-Id")), set()).add(claims["sub"])
    opened = sessions.pop("")
    assert opened == {"https://idp.example|alice", GATEWAY}
    assert sorted(map(sorted, sessions.values())) == sorted([["https://idp.example|alice"], [GATEWAY]])
