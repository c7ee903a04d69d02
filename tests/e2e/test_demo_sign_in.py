"""The development issuer's sign-in is strict where a real one is, so that what works with it works elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from starlette.testclient import TestClient

from gateway.demo.issuer import Mint, build_issuer
from gateway.demo.loopback import pick_port
from gateway.demo.people import PEOPLE
from gateway.demo.sign_in import MOST, SignIns

ISSUER = "http://127.0.0.1:8100"
BACK = "http://127.0.0.1:8080/review/callback"
RESOURCE = "http://127.0.0.1:8080/approvals"
VERIFIER = secrets.token_urlsafe(32)
ASKED = {
    "response_type": "code",
    "client_id": "pages",
    "redirect_uri": BACK,
    "scope": "openid approvals:read approvals:decide",
    "state": "s1",
    "nonce": "n1",
    "code_challenge": base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode(),
    "code_challenge_method": "S256",
    "resource": RESOURCE,
}


@pytest.fixture
def issuer() -> Iterator[TestClient]:
    """An issuer that knows one client."""
    app = build_issuer(Mint(ISSUER), SignIns(ISSUER, {"pages": BACK, "others": BACK + "2"}))
    with TestClient(app, base_url=ISSUER, follow_redirects=False) as http:
        yield http


def picked(issuer: TestClient, person: str, **change: str) -> dict[str, str]:
    """Ask, pick somebody -> the answer's members."""
    page = issuer.get("/authorize", params=ASKED | change)
    assert page.status_code == 200, page.text
    found = re.search(r'name="handle" value="([^"]+)"', page.text)
    assert found is not None
    answer = issuer.post("/authorize", data={"handle": unescape(found[1]), "person": person})
    assert answer.status_code == 303
    there = answer.headers["location"]
    assert there.startswith(f"{BACK}?")
    return {name: values[0] for name, values in parse_qs(urlsplit(there).query).items()}


def token(issuer: TestClient, **form: str) -> Any:
    return issuer.post("/token", data=form)


def code_form(code: str, **change: str) -> dict[str, str]:
    return {
        "grant_type": "authorization_code", "client_id": "pages", "code": code, "redirect_uri": BACK,
        "code_verifier": VERIFIER, "resource": RESOURCE,
    } | change  # fmt: skip


@pytest.mark.parametrize("person", PEOPLE)
def test_whoever_is_picked_gets_what_they_may_have(issuer: TestClient, person: str) -> None:
    """The answer names its issuer; the ID token is the client's, the access token the resource's, with the scopes
    that were asked for and that the person has."""
    answer = picked(issuer, person)
    assert (answer["state"], answer["iss"]) == ("s1", ISSUER)
    given = token(issuer, **code_form(answer["code"])).json()
    identity = jwt.decode(given["id_token"], options={"verify_signature": False})
    assert (identity["aud"], identity["sub"], identity["nonce"]) == ("pages", person, "n1")
    access = jwt.decode(given["access_token"], options={"verify_signature": False})
    assert (access["aud"], access["sub"], access["client_id"]) == (RESOURCE, person, "pages")
    wanted = [scope for scope in ("approvals:read", "approvals:decide") if scope in PEOPLE[person].scopes]
    assert access["scope"].split() == wanted
    assert access["groups"] == list(PEOPLE[person].groups)
    assert jwt.get_unverified_header(given["access_token"])["typ"] == "at+jwt"


def test_its_metadata_says_what_it_does(issuer: TestClient) -> None:
    """PKCE by S256 alone, public clients, and that its answers name it (RFC 9207)."""
    described = issuer.get("/.well-known/openid-configuration").json()
    assert described["authorization_response_iss_parameter_supported"] is True
    assert described["code_challenge_methods_supported"] == ["S256"]
    assert described["token_endpoint_auth_methods_supported"] == ["none"]


@pytest.mark.parametrize(
    "change",
    [
        {"client_id": "unknown"}, {"redirect_uri": "http://127.0.0.1:8080/elsewhere"}, {"redirect_uri": BACK + "/"},
        {"redirect_uri": BACK + "2"}, {"response_type": "token"}, {"scope": "approvals:read"},
        {"code_challenge_method": "plain"}, {"code_challenge": ""}, {"resource": ""}, {"resource": "x"},
    ],
)  # fmt: skip
def test_what_is_asked_wrongly_is_answered_to_nobody(issuer: TestClient, change: Mapping[str, str]) -> None:
    """A page says why, and the browser is sent nowhere."""
    assert issuer.get("/authorize", params=ASKED).status_code == 200
    answer = issuer.get("/authorize", params={**ASKED, **change})
    assert answer.status_code == 400
    assert "location" not in answer.headers
    assert "<form" not in answer.text


def test_a_page_serves_one_pick(issuer: TestClient) -> None:
    """A handle is good once; nobody and strangers are sent back with an error that names the issuer."""
    assert picked(issuer, "") == {"error": "access_denied", "iss": ISSUER, "state": "s1"}
    assert picked(issuer, "mallory")["error"] == "access_denied"
    page = issuer.get("/authorize", params=ASKED)
    handle = unescape(re.findall(r'name="handle" value="([^"]+)"', page.text)[0])
    assert issuer.post("/authorize", data={"handle": handle, "person": "bob"}).status_code == 303
    again = issuer.post("/authorize", data={"handle": handle, "person": "bob"})
    assert again.status_code == 400
    assert issuer.post("/authorize", data={"handle": "x", "person": "bob"}).status_code == 400


@pytest.mark.parametrize(
    "change",
    [
        {"code_verifier": "x" * 43}, {"code_verifier": ""}, {"client_id": "others"}, {"redirect_uri": BACK + "2"},
        {"resource": "http://127.0.0.1:8080/payments/mcp"}, {"code": "x"},
    ],
)  # fmt: skip
def test_a_code_is_its_clients_and_good_once(issuer: TestClient, change: Mapping[str, str]) -> None:
    """The verifier, the client, the redirect URI and the resource are those of the request; a second try ends all."""
    assert token(issuer, **code_form(picked(issuer, "bob")["code"])).status_code == 200
    code = picked(issuer, "bob")["code"]
    refused = token(issuer, **{**code_form(code), **change})
    assert refused.status_code == 400
    assert refused.json()["error"] in {"invalid_grant", "invalid_target"}
    assert refused.headers["cache-control"] == "no-store"
    code = picked(issuer, "bob")["code"]
    given = token(issuer, **code_form(code)).json()
    assert token(issuer, **code_form(code)).json()["error"] == "invalid_grant"
    renewal = {"grant_type": "refresh_token", "client_id": "pages", "refresh_token": given["refresh_token"]}
    assert token(issuer, **renewal).json()["error"] == "invalid_grant"


def test_a_refresh_token_is_good_once(issuer: TestClient) -> None:
    """Each brings the next; one that comes twice ends its whole sign-in, and one that was revoked is none."""
    given = token(issuer, **code_form(picked(issuer, "bob")["code"])).json()
    renewal = {"grant_type": "refresh_token", "client_id": "pages"}
    second = token(issuer, **renewal, refresh_token=given["refresh_token"]).json()
    third = token(issuer, **renewal, refresh_token=second["refresh_token"]).json()
    assert jwt.decode(third["access_token"], options={"verify_signature": False})["sub"] == "bob"
    other = token(issuer, **code_form(picked(issuer, "dora")["code"])).json()
    assert token(issuer, **renewal, refresh_token=given["refresh_token"]).status_code == 400
    assert token(issuer, **renewal, refresh_token=third["refresh_token"]).status_code == 400
    assert issuer.post("/revoke", data={"client_id": "pages", "token": "unknown"}).status_code == 200
    kept = token(issuer, **renewal, refresh_token=other["refresh_token"]).json()
    assert issuer.post("/revoke", data={"client_id": "pages", "token": kept["refresh_token"]}).status_code == 200
    assert token(issuer, **renewal, refresh_token=kept["refresh_token"]).status_code == 400
    assert token(issuer, grant_type="password", username="bob").json()["error"] == "unsupported_grant_type"


def test_what_it_keeps_is_bounded() -> None:
    """Pages that nobody answers go, the oldest first."""
    sign_ins = SignIns(ISSUER, {"pages": BACK})
    first = sign_ins.ask(ASKED)
    for _ in range(MOST):
        sign_ins.ask(ASKED)
    assert len(sign_ins._waiting) == MOST
    assert first not in sign_ins._waiting


def test_its_clients_are_of_this_machine() -> None:
    """A redirect URI that leads elsewhere would hand codes to others: it refuses to start."""
    command = [sys.executable, "-m", "gateway.demo.issuer", "--port", str(pick_port())]
    command += ["--client", "pages=http://192.0.2.7/review/callback"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "not a loopback address" in done.stderr
