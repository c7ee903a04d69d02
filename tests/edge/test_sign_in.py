"""Sign-in held to its specifications: each attack after the good sign-in that it differs from by one thing.

OpenID Connect Core 3.1, RFC 7636, RFC 8707, RFC 9207, and the attacks of RFC 9700 section 4.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx
import pytest
from starlette.responses import JSONResponse, Response

from approvals.ticket import StoreUnavailable
from gateway.audit.port import AuditUnavailable
from gateway.contract.refusals import Refusal
from gateway.sign_in.cookies import Cookie
from gateway.sign_in.flights import AT_ONCE, safe_place
from tests.edge.signing_in import AUDIENCE, PUBLIC, Guest, Scene, signing_in
from tests.support.issuer import signing_key
from tests.support.oidc import changed, unsigned


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """One provider, one replica."""
    async with signing_in(f"sqlite:///{tmp_path / 'desk.db'}") as scene:
        yield scene


def refused(scene: Scene, answer: httpx.Response, refusal: Refusal = Refusal.SIGN_IN_REFUSED) -> None:
    """No session, the row's status, and a plain page that repeats nothing."""
    assert answer.status_code == refusal.value.status, answer.text
    assert scene.replicas[0].refused[-1].refusal is refusal
    assert f"decision-{len(scene.replicas[0].refused)}" in answer.text
    assert scene.why() not in answer.text
    assert "planted" not in answer.text
    cookies = answer.headers.get_list("set-cookie")
    assert not [line for line in cookies if line.startswith("ostiary-8080=")]


async def nobody(guest: Guest) -> None:
    assert await guest.me() is None


async def good(scene: Scene) -> Guest:
    """The positive twin: a browser that signs in as Bob."""
    guest = await scene.browser()
    answer = await guest.sign_in()
    assert answer.status_code == 303, (answer.text, scene.replicas[0].refused)
    me = await guest.me()
    assert me is not None
    assert me["by"] == f"{scene.oidc.url}|bob"
    return guest


async def test_a_person_signs_in(scene: Scene) -> None:
    """What is asked of the issuer, what it is given, who the pages see, and what is recorded."""
    guest = await scene.browser()
    there = await guest.begin("/review/tickets/T1?as=list")
    asked = {name: values[0] for name, values in parse_qs(urlsplit(there).query).items()}
    assert asked.keys() == {
        "tenant", "response_type", "client_id", "redirect_uri", "scope", "state", "nonce", "code_challenge",
        "code_challenge_method", "resource",
    }  # fmt: skip
    assert asked["resource"] == AUDIENCE
    assert asked["redirect_uri"] == f"{PUBLIC}/review/callback"
    assert len({asked["state"], asked["nonce"], asked["code_challenge"]}) == 3
    assert min(len(asked[name]) for name in ("state", "nonce", "code_challenge")) >= 43
    answer = await guest.get(await guest.back(there))
    assert (answer.status_code, answer.headers["location"]) == (303, "/review/tickets/T1?as=list")
    form = scene.oidc.asked[-1]
    assert (form["grant_type"], form["resource"]) == ("authorization_code", AUDIENCE)
    assert len(form["code_verifier"]) >= 43
    me = await guest.me()
    assert me is not None
    assert (me["by"], me["groups"], me["name"]) == (f"{scene.oidc.url}|bob", ["payers"], "Bob B.")
    assert me["scopes"] == ["approvals:decide", "approvals:read", "approvals:request"]
    assert me["ends_at"] == pytest.approx(scene.clock() + 3600, abs=60)
    (record,) = scene.replicas[0].sink.of("admin")
    assert (record["act"], record["by"]) == ("signed_in", f"{scene.oidc.url}|bob")
    assert record["decision_id"] == answer.headers["ostiary-decision"]
    assert not [value for value in (*guest.cookies().values(), form["code"], "eyJ") if value in json.dumps(record)]


async def test_no_two_sign_ins_share_anything(scene: Scene) -> None:
    """State, nonce, verifier and the cookie are new each time."""
    seen: list[str] = []
    guest = await scene.browser()
    for _ in range(3):
        query = dict(parse_qsl(urlsplit(await guest.begin()).query))
        seen += [query["state"], query["nonce"], query["code_challenge"]]
    seen += guest.flights().values()
    assert len(set(seen)) == len(seen) == 12


# What comes back in the browser's hands


def without(name: str) -> Callable[[str], str]:
    return lambda back: rewritten(back, {name: None})


def instead(**members: str) -> Callable[[str], str]:
    return lambda back: rewritten(back, members)


def rewritten(back: str, change: dict[str, Any]) -> str:
    """The callback with other members."""
    return f"/review/callback?{urlencode(changed(dict(parse_qsl(urlsplit(back).query)), change))}"


ANSWERS: dict[str, tuple[Callable[[str], str], str]] = {
    "another state": (instead(state="planted-state"), "state"),
    "no state": (without("state"), "state"),
    "an empty state": (lambda back: rewritten(back, {"state": None}) + "&state=", "state"),
    "two states": (lambda back: f"{back}&state=x", "more than one state"),
    "two codes": (lambda back: f"{back}&code=x", "more than one code"),
    "no code": (without("code"), "no code"),
    "another code": (instead(code="planted-code"), "the code was not taken: invalid_grant"),
    "a very long code": (instead(code="c" * 5000), "very long"),
    "no issuer": (without("iss"), "iss"),
    "another issuer": (instead(iss="https://planted.example"), "another issuer's"),
    "nearly the issuer": (lambda back: back.replace("iss=http", "iss=HTTP"), "another issuer's"),
    "an error": (instead(error="access_denied", error_description="planted"), "the issuer says access_denied"),
    "a strange error": (instead(error="planted<script>"), "the issuer says another error"),
    "an error of another issuer": (
        lambda back: rewritten(back, {"error": "access_denied", "iss": "https://planted.example", "code": None}),
        "another issuer's",
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_that_differs_in_one_thing_signs_nobody_in(scene: Scene, name: str) -> None:
    """CSRF, injection, mix-up: the browser's answer is held to the sign-in that this very browser began."""
    await good(scene)
    change, why = ANSWERS[name]
    guest = await scene.browser()
    back = await guest.back(await guest.begin())
    before = len(scene.oidc.asked)
    refused(scene, await guest.get(change(back)))
    assert why in scene.why()
    assert len(scene.oidc.asked) == before + (name == "another code")
    await nobody(guest)
    if "state" in name:
        # Anybody can send this browser here: whoever can't name the state has not ended the sign-in.
        assert (await guest.get(back)).status_code == 303
    else:
        # A sign-in is tried once: what was refused has ended it.
        refused(scene, await guest.get(back))


async def test_a_code_is_used_once(scene: Scene) -> None:
    """The same answer a second time, in the same browser or with its cookie put back, is worth nothing."""
    guest = await scene.browser()
    back = await guest.back(await guest.begin())
    ((name, flight),) = guest.flights().items()
    assert (await guest.get(back)).status_code == 303
    refused(scene, await guest.get(back))
    assert scene.why() == "no sign-in was begun in this browser"
    thief = await scene.browser()
    thief.http.cookies.set(name, flight)
    refused(scene, await thief.get(back))
    assert "invalid_grant" in scene.why()
    await nobody(thief)


async def test_nobody_is_signed_in_as_somebody_else_by_a_link(scene: Scene) -> None:
    """Login CSRF: an attacker's own answer, opened in another browser, makes no session there, with or without a
    sign-in that the victim has on its way."""
    await good(scene)
    attacker, victim = await scene.browser(), await scene.browser()
    back = await attacker.back(await attacker.begin())
    refused(scene, await victim.get(back))
    await nobody(victim)
    await victim.begin()
    refused(scene, await victim.get(back))
    assert "state" in scene.why()
    await nobody(victim)


async def test_each_tab_has_a_sign_in_of_its_own(scene: Scene) -> None:
    """Tabs that were opened together each come back to their own page, in any order; a foreign link to the callback
    or to the sign-in ends none of them; and the form that a tab shows is still its person's after the next tab's."""
    guest = await scene.browser()
    places = [f"/review/tickets/T{number}" for number in range(3)]
    backs = [await guest.back(await guest.begin(place)) for place in places]
    assert len(guest.flights()) == 3
    refused(scene, await guest.get("/review/callback?code=planted&state=planted"))
    refused(scene, await guest.get("/review/callback"))
    keys = set()
    for back, place in reversed(list(zip(backs, places, strict=True))):
        answer = await guest.get(back)
        assert (answer.status_code, answer.headers["location"]) == (303, place)
        me = await guest.me()
        assert me is not None
        keys.add(me["form_key"])
    assert guest.flights() == {}
    assert len(keys) == 1
    scene.oidc.who = "carol"
    assert (await guest.sign_in()).status_code == 303
    me = await guest.me()
    assert me is not None
    assert me["form_key"] not in keys


async def test_a_browser_has_so_many_sign_ins_on_their_way(scene: Scene) -> None:
    """However often it begins: the heads of its requests stay small, and the newest goes on."""
    guest = await scene.browser()
    backs = []
    for _ in range(AT_ONCE):
        scene.clock.ahead += 1
        backs.append(await guest.back(await guest.begin()))
    assert len(guest.flights()) == AT_ONCE
    newest = await guest.back(await guest.begin("/review/mine"))
    assert len(guest.flights()) == AT_ONCE
    refused(scene, await guest.get(backs[0]))
    assert (await guest.get(newest)).headers["location"] == "/review/mine"
    assert (await guest.get(backs[1])).status_code == 303
    scene.clock.ahead += 601
    late = await guest.back(await guest.begin())
    assert len(guest.flights()) <= AT_ONCE
    assert (await guest.get(late)).status_code == 303


async def test_a_sign_in_has_ten_minutes(scene: Scene) -> None:
    """What was begun too long ago is begun anew."""
    guest = await scene.browser()
    back = await guest.back(await guest.begin())
    scene.clock.ahead = 599
    assert (await guest.get(back)).status_code == 303
    late = await scene.browser()
    back = await late.back(await late.begin())
    scene.clock.ahead += 601
    refused(scene, await late.get(back))
    assert scene.why() == "the sign-in took too long"


@pytest.mark.parametrize("cookie", ["", "x", "x" * 5000, "AAAA.BBBB", "\u00e9"])
async def test_a_made_up_flight_is_none(scene: Scene, cookie: str) -> None:
    """The cookie of a sign-in opens under our key, in one spelling, or not at all."""
    await good(scene)
    guest = await scene.browser()
    back = await guest.back(await guest.begin())
    url = scene.replicas[0].url + back
    made_up = f"{next(iter(guest.flights()))}={cookie}".encode()
    async with httpx.AsyncClient(trust_env=False) as plain:
        refused(scene, await plain.get(url, headers=[(b"cookie", made_up)]))


# What the issuer gives

TOKENS: dict[str, tuple[dict[str, Any], str]] = {
    "no ID token": ({"id_token": ""}, "ID token"),
    "no token at all": ({"id_token": "planted"}, "ID token"),
    "another nonce": ({"id_claims": {"nonce": "planted"}}, "nonce"),
    "no nonce": ({"id_claims": {"nonce": None}}, "nonce"),
    "another client's": ({"id_claims": {"aud": "another-client"}}, "aud"),
    "another client's as well": ({"id_claims": {"aud": ["pages", "another-client"], "azp": "pages"}}, "others"),
    "no audience": ({"id_claims": {"aud": None}}, "aud"),
    "another authorized party": ({"id_claims": {"azp": "another-client"}}, "azp"),
    "another issuer's": ({"id_claims": {"iss": "https://planted.example"}}, "another issuer's"),
    "expired": ({"id_claims": {"exp": 1_700_000_000}}, "exp"),
    "without an end": ({"id_claims": {"exp": None}}, "exp"),
    "an end that is no number": ({"id_claims": {"exp": "soon"}}, "exp"),
    "an end that is true": ({"id_claims": {"exp": True}}, "no number"),
    "of the future": ({"id_claims": {"iat": 4_000_000_000}}, "iat"),
    "without a beginning": ({"id_claims": {"iat": None}}, "iat"),
    "of nobody": ({"id_claims": {"sub": None}}, "sub"),
    "of somebody else": ({"id_claims": {"sub": "mallory"}}, "different people"),
    "of another access token": ({"id_claims": {"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"}}, "at_hash"),
    "by another key": ({"id_key": signing_key(number=7, kid="ES256-0")}, "signature"),
    "by an unknown key": ({"id_key": signing_key(number=7)}, "no key"),
    "by another algorithm": ({"id_key": signing_key("ES384", kid="ES256-0")}, "algorithm"),
    "an access token": ({"id_header": {"typ": "at+jwt"}}, "another kind"),
    "access for another audience": ({"access_claims": {"aud": f"{PUBLIC}/payments/mcp"}}, "access token"),
    "access for others as well": ({"access_claims": {"aud": [AUDIENCE, "https://x.example"]}}, "other audiences"),
    "expired access": ({"access_claims": {"exp": 1_700_000_000, "iat": 1_699_999_000}}, "access token"),
    "access of another type": ({"access_header": {"typ": "JWT"}}, "access token"),
    "access of somebody else": ({"access_claims": {"sub": "mallory"}}, "different people"),
    "access of a bound token": ({"access_claims": {"cnf": {"jkt": "x"}}}, "access token"),
}


@pytest.mark.parametrize("name", TOKENS)
async def test_a_token_that_differs_in_one_thing_signs_nobody_in(scene: Scene, name: str) -> None:
    """The ID token is for this client, this sign-in and this person; the access token is what the API takes."""
    await good(scene)
    knobs, why = TOKENS[name]
    for knob, value in knobs.items():
        setattr(scene.oidc, knob, value)
    guest = await scene.browser()
    refused(scene, await guest.sign_in())
    assert why in scene.why()
    await nobody(guest)
    assert len(scene.replicas[0].sink.of("admin")) == 1  # the good one's


async def test_an_unsigned_id_token_is_none(scene: Scene) -> None:
    """`alg` `none` is no algorithm, whatever the claims say."""
    await good(scene)
    guest = await scene.browser()
    back = await guest.back(await guest.begin())
    (code,) = scene.oidc.codes
    nonce = scene.oidc.codes[code].form["nonce"]
    claims = {**scene.oidc.issuer.claims("pages"), "sub": "bob", "nonce": nonce}
    for token in (unsigned(claims), f"{unsigned(claims)}AAAA"):
        scene.oidc.id_token = token
        refused(scene, await guest.get(back))
        back = await guest.back(await guest.begin())


ODD = {
    "no json": Response(b"planted", media_type="application/json"),
    "a list": JSONResponse([1]),
    "a member twice": Response(b'{"access_token": "a", "access_token": "b"}'),
    "a redirection": Response(status_code=307, headers={"location": "http://127.0.0.1:1/token"}),
    "a server's error": JSONResponse({"error": "planted"}, 500),
    "too much": Response(b" " * 300_000 + b"{}"),
    "compressed": Response(b"{}", headers={"content-encoding": "gzip"}),
    "not this client": JSONResponse({"error": "invalid_client"}, 401),
}


@pytest.mark.parametrize("name", ODD)
async def test_an_issuer_that_answers_oddly_is_not_available(scene: Scene, name: str) -> None:
    """What can't be read, is too large or leads elsewhere is the issuer's trouble: 503, and nobody is signed in."""
    await good(scene)
    scene.oidc.token_answer = ODD[name]
    guest = await scene.browser()
    answer = await guest.sign_in()
    refused(scene, answer, Refusal.SIGN_IN_UNAVAILABLE)
    assert answer.headers["retry-after"] == "5"
    await nobody(guest)


NOT_GIVEN = {
    "no access token": {"token_type": "Bearer", "id_token": "x"},
    "another kind": {"access_token": "x", "token_type": "DPoP", "id_token": "x"},
    "a number": {"access_token": 7, "token_type": "Bearer", "id_token": "x"},
    "a huge one": {"access_token": "x" * 9000, "token_type": "Bearer", "id_token": "x"},
    "a strange one": {"access_token": "é", "token_type": "Bearer", "id_token": "x"},
}


@pytest.mark.parametrize("name", NOT_GIVEN)
async def test_what_is_no_bearer_token_is_not_taken(scene: Scene, name: str) -> None:
    """RFC 6749 section 5.1: a type that is not known here is not treated as one that is."""
    await good(scene)
    scene.oidc.token_answer = JSONResponse(NOT_GIVEN[name])
    refused(scene, await (await scene.browser()).sign_in())


# The issuer's metadata, and an issuer that is away

METADATA: dict[str, dict[str, Any]] = {
    "another issuer's": {"issuer": "https://planted.example"},
    "nearly this issuer's": {"issuer": "/"},
    "no issuer": {"issuer": None},
    "no authorization endpoint": {"authorization_endpoint": None},
    "an authorization endpoint in the clear": {"authorization_endpoint": "http://idp.example/authorize"},
    "a script": {"authorization_endpoint": "javascript:alert(1)"},
    "no token endpoint": {"token_endpoint": None},
    "a token endpoint in the clear": {"token_endpoint": "http://idp.example/token"},
    "a token endpoint with a password": {"token_endpoint": "https://a:b@idp.example/token"},
    "plain PKCE": {"code_challenge_methods_supported": ["plain"]},
}


@pytest.mark.parametrize("name", METADATA)
async def test_metadata_that_is_not_safe_is_not_used(scene: Scene, name: str) -> None:
    """The issuer is compared to the letter, its endpoints are https or this machine, and PKCE is S256."""
    change = METADATA[name]
    scene.oidc.metadata = {"issuer": scene.oidc.url + "/"} if change == {"issuer": "/"} else change
    guest = await scene.browser()
    answer = await guest.get("/review/sign-in")
    refused(scene, answer, Refusal.SIGN_IN_UNAVAILABLE)
    scene.oidc.metadata = {}
    await good(scene)


async def test_an_issuer_may_say_nothing_of_pkce_and_of_itself(scene: Scene) -> None:
    """Not every issuer lists its PKCE methods or names itself in answers; a name that is there is compared."""
    scene.oidc.metadata = {
        "code_challenge_methods_supported": None, "authorization_response_iss_parameter_supported": None
    }  # fmt: skip
    scene.oidc.answer = {"iss": None}
    await good(scene)
    scene.oidc.answer = {"iss": "https://planted.example"}
    refused(scene, await (await scene.browser()).sign_in())


async def test_a_slow_issuer_is_given_up(tmp_path: Path) -> None:
    """Metadata and token endpoint have a deadline; whoever waits gets a page, and signs in once it answers."""
    async with signing_in(f"sqlite:///{tmp_path / 'desk.db'}", deadline_s=0.5) as scene:
        scene.oidc.gate = asyncio.Event()
        guest = await scene.browser()
        loop = asyncio.get_running_loop()
        began = loop.time()
        refused(scene, await guest.get("/review/sign-in"), Refusal.SIGN_IN_UNAVAILABLE)
        assert "too long" in scene.why()
        assert loop.time() - began < 10
        scene.oidc.gate.set()
        back = await guest.back(await guest.begin())
        scene.oidc.gate.clear()
        refused(scene, await guest.get(back), Refusal.SIGN_IN_UNAVAILABLE)
        scene.oidc.gate.set()
        await good(scene)


async def test_one_look_at_the_metadata_is_everybodys(scene: Scene) -> None:
    """A crowd at the door is one question to the issuer."""
    guests = [await scene.browser() for _ in range(10)]
    await asyncio.gather(*(guest.begin() for guest in guests))
    assert scene.oidc.looks == 1


# Where it leads afterwards

SAFE = ["/review", "/review/", "/review/tickets/abc", "/review?state=pending&page=2", "/review/tickets/a%20b?x=%2F"]
UNSAFE = [
    "", "/", "/approvals", "/reviewer", "/review.evil", "/review@evil.example", "//evil.example", "///evil.example",
    "/review//evil.example", "https://evil.example/review", "https:/evil.example", "/\\evil.example",
    "/review/\\evil.example", "\\\\evil.example", "/review/..//evil.example", "/review/../approvals",
    "/review\r\nSet-Cookie: a=b", "/review/\t/evil", "/review\x00", "javascript:alert(1)", "/review#//evil.example",
    "/review/\u2044\u2044evil.example", "/review/" + "a" * 2000, "/review/sign-in", "/review/sign-in?next=/review",
    "/review/callback?code=x", "/review/sign-out",
    "/review/%73ign-in", "/review/%2e%2e/approvals", "/review/%2Fsign-in", "/review/sign-in%2f", " /review",
    "/review ", "/Review", "/review/\ud800",
]  # fmt: skip


@pytest.mark.parametrize("place", SAFE)
def test_a_page_of_ours_is_kept(place: str) -> None:
    """Whoever was sent to sign in comes back to where they were."""
    assert safe_place(place) == place


@pytest.mark.parametrize("place", UNSAFE, ids=range(len(UNSAFE)))
def test_no_other_place_is(place: str) -> None:
    """No open redirect, no header injection, no loop: what is not plainly a page of ours is the front page."""
    assert safe_place("/review/x") == "/review/x"
    assert safe_place(place) == "/review"


@pytest.mark.parametrize("place", ["//evil.example", "https://evil.example/review", "/review/\\evil.example"])
async def test_a_sign_in_never_leads_elsewhere(scene: Scene, place: str) -> None:
    """The same on the wire."""
    guest = await scene.browser()
    answer = await guest.sign_in(place)
    assert (answer.status_code, answer.headers["location"]) == (303, "/review")


async def test_what_is_asked_twice_or_is_not_known_is_refused(scene: Scene) -> None:
    """The door's own query has one reading."""
    guest = await scene.browser()
    assert (await guest.get("/review/sign-in?next=/review")).status_code == 303
    for query in ("next=/review&next=/review/x", "redirect_uri=https://evil.example", "issuer=https://evil.example"):
        refused(scene, await guest.get(f"/review/sign-in?{query}"))


# Several issuers


async def test_people_choose_their_issuer(tmp_path: Path) -> None:
    """With several, a page asks which; each signs in its own people, by its own keys."""
    async with signing_in(f"sqlite:///{tmp_path / 'desk.db'}", both=True) as scene:
        guest = await scene.browser()
        page = await guest.get("/review/sign-in?next=/review/tickets/abc")
        assert page.status_code == 200
        for one in (scene.oidc, scene.other):
            assert one.url in page.text
            chooser = await scene.browser()
            answer = await chooser.sign_in("/review/tickets/abc", issuer=one.url)
            assert answer.headers["location"] == "/review/tickets/abc"
            me = await chooser.me()
            assert me is not None
            assert me["by"] == f"{one.url}|bob"


async def test_two_issuers_are_not_mixed_up(tmp_path: Path) -> None:
    """RFC 9700 section 4.4: an answer of the one never ends a sign-in at the other, and no code of the honest one is
    given to the other. With several issuers an answer has to say whose it is, whatever the metadata says."""
    async with signing_in(f"sqlite:///{tmp_path / 'desk.db'}", both=True) as scene:
        for one in (scene.oidc, scene.other):
            answer = await (await scene.browser()).sign_in(issuer=one.url)
            assert answer.status_code == 303
        before = len(scene.other.asked)
        victim = await scene.browser()
        there = await victim.begin(
            issuer=scene.other.url
        )  # the attacker's issuer sends the browser on to the honest one
        back = await victim.back(there.replace(scene.other.url, scene.oidc.url, 1))
        refused(scene, await victim.get(back))
        assert "another issuer's" in scene.why()
        there = await victim.begin(issuer=scene.other.url)
        back = await victim.back(there.replace(scene.other.url, scene.oidc.url, 1))
        refused(scene, await victim.get(rewritten(back, {"iss": None})))
        assert "does not say whose" in scene.why()
        assert len(scene.other.asked) == before
        await nobody(victim)
        scene.other.metadata = {"authorization_response_iss_parameter_supported": None}
        scene.other.answer = {"iss": None}
        refused(scene, await (await scene.browser()).sign_in(issuer=scene.other.url))


async def test_an_issuers_people_are_its_own(tmp_path: Path) -> None:
    """An ID token of one issuer with an access token of the other is nobody's."""
    async with signing_in(f"sqlite:///{tmp_path / 'desk.db'}", both=True) as scene:
        guest = await scene.browser()
        assert (await guest.sign_in(issuer=scene.other.url)).status_code == 303
        scene.other.access_claims = {"iss": scene.oidc.url}
        scene.other.issuer.keys.append(scene.oidc.issuer.keys[0])
        plain_mint = scene.other.issuer.mint

        def mint(audience: Any, **more: Any) -> str:
            if audience == AUDIENCE:
                more["key"] = scene.oidc.issuer.keys[0]
            return plain_mint(audience, **more)

        scene.other.issuer.mint = mint  # type: ignore[method-assign]
        scene.other.id_claims = {"at_hash": None}
        refused(scene, await (await scene.browser()).sign_in(issuer=scene.other.url))
        assert "different people" in scene.why()


# The gateway as a client


@pytest.mark.parametrize("secret", ["simple", "s:e c%r+e/t=é"])
async def test_a_confidential_client_proves_itself(tmp_path: Path, secret: str) -> None:
    """RFC 6749 section 2.3.1: id and secret are encoded like a form's values before they are joined; a wrong one is
    the gateway's trouble and not the person's."""
    async with signing_in(f"sqlite:///{tmp_path / 'desk.db'}", secret=secret) as scene:
        await good(scene)
        assert "client_secret" not in scene.oidc.asked[-1]
        scene.oidc.secret = "another"
        refused(scene, await (await scene.browser()).sign_in(), Refusal.SIGN_IN_UNAVAILABLE)
        assert "as its client" in scene.why()


# What else may be away


async def test_nobody_is_signed_in_without_a_record(scene: Scene) -> None:
    """The record is durable first: without it there is no session, and no cookie."""
    await good(scene)
    scene.replicas[0].sink.broken = AuditUnavailable("the disk is full")
    guest = await scene.browser()
    refused(scene, await guest.sign_in(), Refusal.AUDIT_UNAVAILABLE)
    await nobody(guest)
    scene.replicas[0].sink.broken = None
    await good(scene)


async def test_nobody_is_signed_in_without_the_store(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that can't be kept is none: 503."""
    await good(scene)

    async def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(scene.store, "write", away)
    refused(scene, await (await scene.browser()).sign_in(), Refusal.APPROVALS_UNAVAILABLE)


# Cookies


def test_cookies_are_held_as_tightly_as_the_scheme_allows() -> None:
    """Over https the prefix `__Host-` and `Secure`; everywhere `HttpOnly`, `SameSite=Lax`, all paths, no domain."""
    cookie = Cookie.of("https://gw.example", "ostiary")
    assert cookie.write("v", 60) == "__Host-ostiary=v; Max-Age=60; Path=/; HttpOnly; SameSite=Lax; Secure"
    assert cookie.clear() == "__Host-ostiary=; Max-Age=0; Path=/; HttpOnly; SameSite=Lax; Secure"
    local = Cookie.of("http://127.0.0.1:8080", "ostiary")
    assert local.write("v", 60) == "ostiary-8080=v; Max-Age=60; Path=/; HttpOnly; SameSite=Lax"


async def test_every_answer_says_that_nobody_keeps_or_frames_it(scene: Scene) -> None:
    """Redirections and pages alike: not stored, not framed, no referrer with a code in it, no script."""
    guest = await scene.browser()
    there = await guest.get("/review/sign-in")
    landed = await guest.get(await guest.back(there.headers["location"]))
    me = await guest.me()
    assert me is not None
    for answer in (there, landed, await guest.get("/review/callback"), await guest.sign_out(me["form_key"])):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
        assert answer.headers["ostiary-decision"]
    for line in landed.headers.get_list("set-cookie"):
        assert line.endswith("; Path=/; HttpOnly; SameSite=Lax")
