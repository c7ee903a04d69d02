"""Tokens over HTTP: challenges, metadata, audiences, scopes, changing keys (JWT-01 to 06, 09, 12; must-show 4)."""

from __future__ import annotations

import hmac
import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.contract.refusals import Refusal
from tests.rows.asking import Ask, tool
from tests.rows.proof import NO_ID, passes, refused
from tests.rows.stage import SECOND, House
from tests.support.http_raw import Answer
from tests.support.issuer import SigningKey, b64, signing_key

PARAMETER = re.compile(r'([a-z_]+)="([^"]*)"')
GRANTED = "mcp:use files:read"


def challenge(answer: Answer) -> dict[str, str]:
    """The one challenge of an answer, read."""
    (line,) = answer.values("www-authenticate")
    scheme, _, rest = line.partition(" ")
    assert scheme == "Bearer"
    found = PARAMETER.findall(rest)
    assert ", ".join(f'{name}="{value}"' for name, value in found) == rest
    return dict(found)


def minted(house: House, audience: Any, **claims: Any) -> str:
    """A token that is good but for what is said here."""
    return house.plant(house.stack.issuer.mint(audience, **{"sub": "alice", "scope": GRANTED, **claims}))


def bearing(house: House, token: str) -> Ask:
    """The good call with another token."""
    return house.good(token=token)


def test_without_a_token_the_challenge_says_where_to_get_one(house: House) -> None:
    """JWT-01: resource_metadata and scope, and no error because none was made."""
    answer = refused(house, house.good().line(b"Authorization"), Refusal.TOKEN_MISSING, request_id=NO_ID)
    assert challenge(answer) == {
        "resource_metadata": f"{house.stack.url}/.well-known/oauth-protected-resource/plain/mcp",
        "scope": "mcp:use",
    }


def test_a_token_that_is_not_accepted_is_called_invalid(house: House) -> None:
    """JWT-01: an expired one; `error="invalid_token"` beside the metadata and the scope."""
    now = int(time.time())
    expired = minted(house, house.stack.endpoint("plain"), iat=now - 900, exp=now - 300)
    answer = refused(house, bearing(house, expired), Refusal.TOKEN_INVALID, request_id=NO_ID)
    assert challenge(answer) == {
        "error": "invalid_token",
        "resource_metadata": f"{house.stack.url}/.well-known/oauth-protected-resource/plain/mcp",
        "scope": "mcp:use",
    }


def test_a_token_in_the_query_is_none_and_is_never_written_down(house: House) -> None:
    """JWT-01: only the Authorization header carries a token; every house check looks for the value afterwards."""
    token = house.token()
    ask = house.good().line(b"Authorization")
    asked = Ask(b"/plain/mcp?access_token=" + token.encode(), ask.lines, ask.body)
    assert {part.encode() for part in token.split(".")[1:]} <= house.secrets
    refused(house, asked, Refusal.TOKEN_MISSING, request_id=NO_ID)


@pytest.mark.parametrize("server", ["plain", "other", "ghost"])
def test_metadata_comes_from_configuration_alone(house: House, server: str) -> None:
    """RFC 9728 at the path of the server, without a token, without anything of the request or of what is inside."""
    path = f"/.well-known/oauth-protected-resource/{server}/mcp"
    answer = house.http.get(house.stack.url + path, headers={"X-Forwarded-Host": "evil.example.com"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    document = answer.json()
    assert document["resource"] == house.stack.endpoint(server)
    own = house.stack.issuer.name
    known = [own] if server == "plain" else sorted([own, SECOND, house.away])
    assert document["authorization_servers"] == known
    assert document["scopes_supported"] == ["mcp:use"]
    assert document["bearer_methods_supported"] == ["header"]
    assert "offline_access" not in answer.text
    for replica in (one for replicas in house.behind.values() for one in replicas):
        assert str(replica.wire.port) not in answer.text


def test_metadata_of_the_approvals_is_there_too(house: House) -> None:
    """The approvals API is a protected resource of its own."""
    document = house.http.get(f"{house.stack.url}/.well-known/oauth-protected-resource/approvals").json()
    assert document["resource"] == f"{house.stack.url}/approvals"
    assert document["scopes_supported"] == ["approvals:read", "approvals:request", "approvals:decide", "audit:read"]


@pytest.mark.parametrize(
    "path", ["", "/", "/plain", "/plain/mcp/", "/nowhere/mcp", "/../approvals", "/plain/mcp/.well-known", "x"]
)
def test_metadata_of_nothing_is_nothing(house: House, path: str) -> None:
    """G4: exact paths only; no answer tells which servers there are."""
    answer = house.http.get(f"{house.stack.url}/.well-known/oauth-protected-resource{path}")
    assert answer.status_code == 404
    assert "plain" not in answer.text


def test_metadata_checks_the_host(house: House) -> None:
    """ORG-03 holds on the control plane as well, and its refusal is a record."""
    ask = Ask(b"/.well-known/oauth-protected-resource/plain/mcp", ((b"Host", house.host.encode()),), verb=b"GET")
    assert house.ask(ask).status == 200
    answer = house.ask(ask.line(b"Host", b"evil.example.com"))
    assert answer.status == 403
    passes(house)
    (record,) = house.records_of(answer.values("ostiary-decision")[0])
    assert record["reasons"] == ["host_forbidden"]


def test_a_token_for_one_server_is_nothing_at_another(house: House) -> None:
    """Must-show 4: 401, and the other server untouched."""
    for_other = house.token("other")
    passes(house, house.good(server="other", token=for_other))
    answer = refused(house, bearing(house, for_other), Refusal.TOKEN_INVALID, request_id=NO_ID)
    assert challenge(answer)["error"] == "invalid_token"
    assert house.records_of(answer.values("ostiary-decision")[0])[0]["actor"] is None


def test_a_servers_token_is_nothing_at_the_approvals_and_the_reverse(house: House) -> None:
    """Each resource has its own audience."""
    scopes = "mcp:use files:read approvals:read approvals:request approvals:decide"
    assert house.api("GET").status_code == 200
    answer = house.api("GET", token=house.token("plain", "bob", scopes))
    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert f'{house.stack.url}/.well-known/oauth-protected-resource/approvals"' in answer.headers["www-authenticate"]
    person = house.person("bob", scopes)
    refused(house, bearing(house, person), Refusal.TOKEN_INVALID, request_id=NO_ID)


def test_the_approvals_answer_nobody_without_a_token(house: House) -> None:
    """G4: every route under /approvals, that exist or not, and each refusal is a record."""
    for verb, path in (("GET", ""), ("GET", "/" + "a" * 24), ("POST", ""), ("POST", "/" + "a" * 24 + "/approve")):
        answer = house.api(verb, path, token="")
        assert answer.status_code == 401, (verb, path)
        assert 'scope="approvals:read approvals:request approvals:decide"' in answer.headers["www-authenticate"]
        passes(house)
        (record,) = house.records_of(answer.headers["ostiary-decision"])
        assert (record["kind"], record["reasons"], record["resource"]) == (
            "refusal", ["token_missing"], f"{house.stack.url}/approvals",
        )  # fmt: skip


AUDIENCES: dict[str, Any] = {
    "missing": None,
    "another": "https://other.example.com/mcp",
    "one that contains it": "{url}/more",
    "the gateway": "{gateway}",
    "the server without its last part": "{gateway}/plain",
    "a trailing slash": "{url}/",
    "the scheme in another case": "HTTP{rest}",
    "an empty list": [],
    "a list of others": ["{url}x", "y"],
    "a list that is not all text": ["{url}", 1],
    "a text with several": "{url} {url}",
}


def filled(template: Any, house: House) -> Any:
    """An audience with this house's addresses in it."""
    if isinstance(template, list):
        return [filled(one, house) for one in template]
    url = house.stack.endpoint("plain")
    if not isinstance(template, str):
        return template
    return template.format(url=url, gateway=house.stack.url, rest=url.removeprefix("http"))


@pytest.mark.parametrize("name", AUDIENCES)
def test_the_audience_is_the_server_exactly(house: House, name: str) -> None:
    """JWT-05: 401 for all but exactly ours, alone or in a list."""
    url = house.stack.endpoint("plain")
    for good in (url, [url], ["https://x.example.com", url]):
        passes(house, bearing(house, minted(house, good)))
    bad = minted(house, filled(AUDIENCES[name], house))
    refused(house, bearing(house, bad), Refusal.TOKEN_INVALID, request_id=NO_ID)


@pytest.mark.parametrize(
    "issuer", [None, "https://idp.example.com/", "https://idp.example.com.evil.com", ["https://idp.example.com"], ""]
)
def test_the_issuer_is_one_of_the_list_exactly(house: House, issuer: Any) -> None:
    """JWT-05: trailing slash, substring, list."""
    bad = minted(house, house.stack.endpoint("plain"), iss=issuer)
    refused(house, bearing(house, bad), Refusal.TOKEN_INVALID, request_id=NO_ID)


def test_a_good_issuer_is_good_only_where_it_is_listed(house: House) -> None:
    """A server that lists its issuers accepts no other of the house's."""
    claims: dict[str, Any] = {"sub": "alice", "scope": GRANTED}
    there = house.plant(house.second.mint(house.stack.endpoint("second"), **claims))
    passes(house, house.good(server="second", token=there))
    here = house.plant(house.second.mint(house.stack.endpoint("plain"), **claims))
    refused(house, bearing(house, here), Refusal.TOKEN_INVALID, request_id=NO_ID)
    known = house.token("second")
    answer = house.ask(house.good(server="second", token=known))
    assert answer.status == 401


SCOPES: dict[str, dict[str, Any]] = {
    "missing": {"scope": None},
    "empty": {"scope": ""},
    "a longer one": {"scope": "mcp:use files:readx"},
    "one that ends alike": {"scope": "mcp:use xfiles:read"},
    "another case": {"scope": "mcp:use FILES:READ"},
    "a list of others": {"scope": ["mcp:use", "files"]},
    "a tab between": {"scope": "mcp:use\tfiles:read"},
    "joined": {"scope": "mcp:use,files:read"},
}


@pytest.mark.parametrize("name", SCOPES)
def test_a_scope_is_one_exact_token(house: House, name: str) -> None:
    """JWT-09: 403 that names all scopes that the operation needs, held ones included."""
    url = house.stack.endpoint("plain")
    for good in ("files:read mcp:use", ["mcp:use", "files:read"], "mcp:use files:admin"):
        passes(house, bearing(house, minted(house, url, scope=good)))
        passes(house, bearing(house, minted(house, url, scope=None, scp=good)))
    answer = refused(house, bearing(house, minted(house, url, **SCOPES[name])), Refusal.SCOPE_INSUFFICIENT)
    needed = ["files:read"]
    told = challenge(answer)
    assert told["error"] == "insufficient_scope"
    assert told["scope"].split() == needed
    assert told["resource_metadata"].endswith("/.well-known/oauth-protected-resource/plain/mcp")
    assert answer.json()["error"]["data"]["requiredScopes"] == needed


def test_all_scopes_that_a_call_needs_are_named_at_once(house: House) -> None:
    """contract.md section 6: one step up, not one for each scope."""
    answer = house.ask(house.good(tool("narrow")))
    assert (answer.status, answer.json()["error"]["code"]) == (403, 40301)
    assert challenge(answer)["scope"] == "files:read files:rare"


@pytest.mark.parametrize("scope", ["", "approvals:request approvals:decide", "approvals:readx"])
def test_the_approvals_api_asks_for_its_scopes(house: House, scope: str) -> None:
    """403 with the scope that this needs, and no ticket is shown."""
    assert house.api("GET", token=house.person("bob", "approvals:read")).status_code == 200
    answer = house.api("GET", token=house.person("bob", scope))
    assert (answer.status_code, answer.json()["error"]) == (403, "insufficient_scope")
    assert 'scope="approvals:read"' in answer.headers["www-authenticate"]
    assert "tickets" not in answer.text


def unsigned(house: House, alg: str) -> str:
    """A token of nobody's making that names an algorithm without a signature."""
    header = {"alg": alg, "typ": "at+jwt", "kid": house.stack.issuer.keys[0].kid}
    claims = house.stack.issuer.claims(house.stack.endpoint("plain"), sub=PRETENDED, scope=GRANTED)
    return ".".join((b64(json.dumps(header).encode()), b64(json.dumps(claims).encode()), ""))


def keyed_with_the_public_key(house: House) -> str:
    """A token that is signed with what everybody knows."""
    key = house.stack.issuer.keys[0]
    public = key.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head, payload, _ = unsigned(house, "HS256").split(".")
    return f"{head}.{payload}.{b64(hmac.digest(public, f'{head}.{payload}'.encode(), 'sha256'))}"


def pretended(header: dict[str, Any] | None = None, strange: bool = False, **claims: Any) -> Callable[[House], str]:
    """A token of this issuer's form that is wrong in what is said here."""

    def make(house: House) -> str:
        key = signing_key(number=23, kid=house.stack.issuer.keys[0].kid) if strange else None
        stated = {"sub": PRETENDED, "scope": GRANTED, **claims}
        return house.stack.issuer.mint(house.stack.endpoint("plain"), key=key, header=header, **stated)

    return make


PRETENDED = "somebody-in-particular"
FORGED: dict[str, Callable[[House], str]] = {
    "none": lambda house: unsigned(house, "none"),
    "NoNe": lambda house: unsigned(house, "NoNe"),
    "HS256 by the public key": keyed_with_the_public_key,
    "another's signature": pretended(strange=True),
    "a key of its own": pretended({"jwk": signing_key(number=23).jwk(), "kid": None}, strange=True),
    "a key from elsewhere": pretended({"jku": "http://127.0.0.1:1/keys"}, strange=True),
    "an unknown key": pretended({"kid": "../../dev/null"}, strange=True),
    "what must be understood": pretended({"crit": ["x"], "x": 1}),
    "another type": pretended({"typ": "JWT"}),
    "no end": pretended(exp=None),
    "an end in words": pretended(exp="9999999999"),
    "an end that is true": pretended(exp=True),
    "an end beyond all bounds": pretended(exp=253402300799),
    "over": pretended(iat=1, exp=2),
    "not yet": pretended(nbf=9999999999),
    "made later": pretended(iat=9999999999),
    "no subject": pretended(sub=None),
    "a subject in two lines": pretended(sub=f"{PRETENDED}\nroot"),
}


@pytest.mark.parametrize("name", FORGED)
def test_who_a_token_says_it_is_counts_only_once_it_is_verified(house: House, name: str) -> None:
    """JWT-02, JWT-03, JWT-06: 401, one record, and nobody's name in record or log but that of who was verified."""
    token = house.plant(FORGED[name](house))
    answer = refused(house, bearing(house, token), Refusal.TOKEN_INVALID, request_id=NO_ID)
    (record,) = house.records_of(answer.values("ostiary-decision")[0])
    assert record["actor"] is None
    assert PRETENDED not in json.dumps(record)
    assert PRETENDED not in house.stack.log()


def test_unknown_keys_do_no_harm(house: House) -> None:
    """JWT-04, small: 40 tokens with made-up key ids are 401 each, and good traffic goes on between them."""
    url = house.stack.endpoint("plain")
    for number in range(40):
        stranger = house.plant(house.stack.issuer.mint(url, key=signing_key(number=20, kid=f"strange-key-{number}")))
        assert house.ask(bearing(house, stranger)).status == 401
        if number % 10 == 0:
            passes(house)
    assert "strange-key-" not in house.stack.log()
    assert not [record for record in house.records() if "strange-key-" in str(record)]


def test_keys_change_with_the_file(house: House) -> None:
    """JWT-12: a new key in the file is found, one that left it verifies nothing, and rubbish takes nothing away."""
    issuer, folder, url = house.second, house.stack.folder, house.stack.endpoint("second")
    old, new = issuer.keys[0], signing_key(number=10)

    def bears(key: SigningKey) -> int:
        token = house.plant(issuer.mint(url, key=key, sub="alice", scope=GRANTED))
        return house.ask(house.good(server="second", token=token)).status

    def becomes(key: SigningKey, status: int) -> None:
        end = time.monotonic() + 60
        while bears(key) != status:
            assert time.monotonic() < end, "a changed jwks_file takes effect within 60 s"
            time.sleep(0.1)

    assert (bears(old), bears(new)) == (200, 401)
    remembered = house.plant(issuer.mint(url, key=old, sub="alice", scope=GRANTED))
    assert house.ask(house.good(server="second", token=remembered)).status == 200
    try:
        # What is read of the other issuer's file meanwhile can't be read; its keys stay as they were.
        (folder / "jwks.json").write_bytes(b"{")
        issuer.keys = [new, old]
        issuer.write(folder / "second.json")
        becomes(new, 200)
        assert bears(old) == 200
        issuer.keys = [new]
        issuer.write(folder / "second.json")
        becomes(old, 401)
        assert bears(new) == 200
        assert house.ask(house.good(server="second", token=remembered)).status == 401, "it dies with its key"
        passes(house)
        stranger = house.stack.issuer.mint(house.stack.endpoint("plain"), key=signing_key(number=21), sub="alice")
        assert house.ask(bearing(house, house.plant(stranger))).status == 401
    finally:
        house.stack.issuer.write(folder / "jwks.json")
