"""Sessions: they name a person anew with every request, and end when they should, on every replica."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from starlette.responses import JSONResponse

from approvals.ledger import Ledger
from approvals.schema import visits
from approvals.visits import MOST_OF_ONE
from tests.edge.signing_in import AUDIENCE, Guest, Scene, signing_in
from tests.support.issuer import signing_key

NAME = "ostiary-8080"


@pytest.fixture(params=["sqlite", "postgresql"])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    """One provider, two replicas on one database of each kind."""
    url = f"sqlite:///{tmp_path / 'desk.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").create()
    async with signing_in(url, replicas=2) as scene:
        yield scene


async def signed_in(scene: Scene, who: str = "bob") -> tuple[Guest, dict[str, Any]]:
    """A browser with a session, and whom the pages see."""
    scene.oidc.who = who
    guest = await scene.browser()
    assert (await guest.sign_in()).status_code == 303
    me = await guest.me()
    assert me is not None
    return guest, me


async def rows(scene: Scene) -> list[Any]:
    """The whole table."""

    async def work(ledger: Ledger) -> list[Any]:
        return list((await ledger.connection.execute(select(visits))).all())

    return await scene.store.read(work)


async def test_any_replica_serves_a_session(scene: Scene) -> None:
    """What one replica began, the other knows; a sign-in on its way may end at the other, too."""
    guest, me = await signed_in(scene)
    guest.at = 1
    assert await guest.me() == me
    roaming = await scene.browser()
    back = await roaming.back(await roaming.begin())
    roaming.at = 1
    assert (await roaming.get(back)).status_code == 303
    roaming.at = 0
    assert await roaming.me() is not None


async def test_a_session_is_never_taken_over(scene: Scene) -> None:
    """Fixation: a cookie that was planted, or that is from before, never becomes a session; a new sign-in has a new
    one, and ends the browser's earlier one."""
    guest = await scene.browser()
    guest.http.cookies.set(NAME, "planted-by-somebody", domain="127.0.0.1", path="/")
    assert await guest.me() is None
    assert (await guest.sign_in()).status_code == 303
    first = guest.cookies()[NAME]
    assert first != "planted-by-somebody"
    thief = await scene.browser()
    thief.http.cookies.set(NAME, "planted-by-somebody")
    assert await thief.me() is None
    assert (await guest.sign_in()).status_code == 303
    second = guest.cookies()[NAME]
    assert second != first
    assert await guest.me() is not None
    thief.http.cookies.set(NAME, first)
    assert await thief.me() is None
    assert len(await rows(scene)) == 1


@pytest.mark.parametrize("cookie", ["", "x", "x" * 5000, "\u00e9", "..%2f", "' OR 1=1 --"])
async def test_a_made_up_session_is_none(scene: Scene, cookie: str) -> None:
    """Whatever stands in the cookie: nobody."""
    await signed_in(scene)
    async with httpx.AsyncClient(trust_env=False) as plain:
        lines = [(b"cookie", f"{NAME}={cookie}".encode())]
        assert (await plain.get(f"{scene.replicas[0].url}/me", headers=lines)).json() is None


async def test_two_cookies_of_the_name_are_none(scene: Scene) -> None:
    """A neighbour that plants a second one gains nothing: which of the two is ours can't be known."""
    guest, _ = await signed_in(scene)
    mine = guest.cookies()[NAME]
    url = f"{scene.replicas[0].url}/me"
    async with httpx.AsyncClient(trust_env=False) as plain:
        assert (await plain.get(url, headers={"cookie": f"a=b; {NAME}={mine}"})).json() is not None
        assert (await plain.get(url, headers={"cookie": f"{NAME}=x; {NAME}={mine}"})).json() is None
        both = [(b"cookie", f"{NAME}={mine}".encode()), (b"cookie", f"{NAME}=x".encode())]
        assert (await plain.get(url, headers=both)).json() is None


async def test_the_table_opens_nothing(scene: Scene) -> None:
    """Neither cookie nor tokens stand in the database; a row that is moved to another session does not open."""
    guest, me = await signed_in(scene)
    cookie = guest.cookies()[NAME]
    table = str(await rows(scene))
    assert f"{scene.oidc.url}" in table
    for secret in (cookie, me["form_key"], *scene.oidc.refresh, "eyJhbGciOi", "Bob B."):
        assert secret not in table
    other, _ = await signed_in(scene, "carol")
    mine, hers = sorted(await rows(scene), key=lambda row: row.subject)

    async def swap(ledger: Ledger) -> None:
        await ledger.connection.execute(visits.update().where(visits.c.id == hers.id).values(sealed=mine.sealed))

    await scene.store.write(swap)
    assert await other.me() is None
    assert await guest.me() is not None


async def test_a_session_ends_in_time(tmp_path: Path) -> None:
    """By its whole length, however busy it is, and by the time without a request."""
    async with signing_in(f"sqlite:///{tmp_path / 'desk.db'}", session_s=3600, idle_s=600) as scene:
        scene.oidc.lives_s = 7200
        busy, _ = await signed_in(scene)
        idle, _ = await signed_in(scene)
        for _ in range(6):
            scene.clock.ahead += 590
            assert await busy.me() is not None
        assert await idle.me() is None
        scene.clock.ahead = 3599
        assert await busy.me() is not None
        scene.clock.ahead = 3601
        assert await busy.me() is None
        await signed_in(scene)
        assert len(await rows(scene)) == 1  # ended ones are not kept


async def test_an_open_page_keeps_no_session_alive(tmp_path: Path) -> None:
    """What its script asks is answered while the session lasts, and is nothing that a person did."""
    async with signing_in(f"sqlite:///{tmp_path / 'desk.db'}", session_s=3600, idle_s=600) as scene:
        scene.oidc.lives_s = 7200
        open_page, _ = await signed_in(scene)
        for _ in range(2):
            scene.clock.ahead += 290
            assert (await open_page.get("/me?by=itself")).text != "null"
        scene.clock.ahead += 290
        assert (await open_page.get("/me?by=itself")).text == "null"


async def test_a_session_ends_with_its_token(scene: Scene) -> None:
    """Without a refresh token the access token's end is the session's, on every replica."""
    scene.oidc.refreshes = False
    guest, _ = await signed_in(scene)
    scene.clock.ahead = 299 + 29  # the leeway is for clocks that differ
    assert await guest.me() is not None
    scene.clock.ahead = 301 + 30
    assert await guest.me() is None
    guest.at = 1
    assert await guest.me() is None
    assert await rows(scene) == []


async def test_a_token_is_renewed_and_its_word_counts(scene: Scene) -> None:
    """A role that was taken away is gone with the next token: what the pages see is what the token says now."""
    guest, before = await signed_in(scene)
    assert before["groups"] == ["payers"]
    scene.oidc.groups, scene.oidc.scope = (), "approvals:read"
    first = set(scene.oidc.refresh)
    scene.clock.ahead = 290
    after = await guest.me()
    assert after is not None
    assert (after["groups"], after["scopes"]) == ([], ["approvals:read"])
    assert after["form_key"] == before["form_key"]
    assert after["ends_at"] == before["ends_at"]
    form = scene.oidc.asked[-1]
    assert (form["grant_type"], form["resource"]) == ("refresh_token", AUDIENCE)
    assert first.isdisjoint(scene.oidc.refresh)
    scene.clock.ahead = 580
    assert await guest.me() is not None  # by the refresh token that came with the last one
    assert len(scene.oidc.refresh) == 1


async def test_one_request_renews_for_all_replicas(scene: Scene) -> None:
    """An issuer takes a refresh token that comes twice for a stolen one: of forty requests at two replicas one brings
    it, and all are served."""
    guest, _ = await signed_in(scene)
    asked = len(scene.oidc.asked)
    scene.clock.ahead = 290
    gate = scene.oidc.gate = asyncio.Event()
    elsewhere = await scene.browser(at=1)
    elsewhere.http.cookies.set(NAME, guest.cookies()[NAME])
    crowd = [asyncio.create_task(one.me()) for one in (guest, elsewhere) for _ in range(20)]
    while len(scene.oidc.asked) == asked:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    gate.set()
    found = await asyncio.gather(*crowd)
    assert all(found)
    assert len(scene.oidc.asked) == asked + 1
    assert len(scene.oidc.refresh) == 1


async def test_a_browser_that_goes_away_does_not_lose_the_token(scene: Scene) -> None:
    """The renewal goes on without whoever asked first: the next request finds what it brought."""
    guest, _ = await signed_in(scene)
    asked = len(scene.oidc.asked)
    scene.clock.ahead = 290
    gate = scene.oidc.gate = asyncio.Event()
    going = asyncio.create_task(guest.me())
    while len(scene.oidc.asked) == asked:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    going.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await going
    gate.set()
    assert await guest.me() is not None
    assert len(scene.oidc.asked) == asked + 1


async def test_a_renewal_that_is_refused_ends_the_session(scene: Scene) -> None:
    """The issuer says no (signed out there, account closed): the visit is over, everywhere."""
    guest, _ = await signed_in(scene)
    assert await guest.me() is not None
    scene.oidc.refresh.clear()
    scene.clock.ahead = 290
    assert await guest.me() is None
    guest.at = 1
    assert await guest.me() is None
    assert await rows(scene) == []


@pytest.mark.parametrize(
    "change", [{"sub": "mallory"}, {"aud": "https://x.example"}, {"exp": 1_700_000_000, "iat": 1_699_999_000}]
)
async def test_a_renewal_that_brings_another_token_ends_the_session(scene: Scene, change: dict[str, Any]) -> None:
    """A token of somebody else, for another audience or ended is not this session's."""
    guest, _ = await signed_in(scene)
    assert await guest.me() is not None
    scene.oidc.access_claims = change
    scene.clock.ahead = 290
    assert await guest.me() is None
    scene.oidc.access_claims = {}
    assert await guest.me() is None
    assert await rows(scene) == []


async def test_an_issuer_that_is_away_ends_no_session(scene: Scene) -> None:
    """While its token is good a session goes on; then it is 503, and once the issuer is back it goes on again."""
    guest, me = await signed_in(scene)
    scene.oidc.token_answer = JSONResponse({"error": "temporarily_unavailable"}, 503)
    scene.clock.ahead = 290
    assert await guest.me() == me
    scene.clock.ahead = 301 + 30
    answer = await guest.get("/me")
    assert (answer.status_code, answer.text) == (503, "sign_in_unavailable")
    scene.oidc.token_answer = None
    guest.at = 1
    assert await guest.me() == me


async def test_a_key_that_was_retired_ends_its_sessions(scene: Scene) -> None:
    """Tokens of a key that the issuer gave up are worth nothing, remembered or not."""
    guest, _ = await signed_in(scene)
    scene.oidc.issuer.keys[:] = [signing_key(number=9)]
    for replica in scene.replicas:
        await replica.room.visitors._tokens.issuers.by_name[scene.oidc.url].keys.refresh()
    assert await guest.me() is None


async def test_signing_out_ends_the_session_on_every_replica(scene: Scene) -> None:
    """The row is gone, the cookie is cleared, the issuer forgets the refresh token, and it is recorded."""
    guest, me = await signed_in(scene)
    other, _ = await signed_in(scene)
    cookie = guest.cookies()[NAME]
    (refresh, *_) = scene.oidc.refresh
    answer = await guest.sign_out(me["form_key"])
    assert answer.status_code == 200
    assert answer.headers.get_list("set-cookie") == [f"{NAME}=; Max-Age=0; Path=/; HttpOnly; SameSite=Lax"]
    assert NAME not in guest.cookies()
    guest.at = 1
    guest.http.cookies.set(NAME, cookie)
    assert await guest.me() is None
    assert await other.me() is not None
    record = scene.replicas[0].sink.of("admin")[-1]
    assert (record["act"], record["by"]) == ("signed_out", f"{scene.oidc.url}|bob")
    assert record["facts"] == {"sessions": 1, "everywhere": False}
    async with asyncio.timeout(10):
        while scene.oidc.revoked != [refresh]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_signing_out_everywhere_ends_all_of_one_persons(scene: Scene) -> None:
    """And nobody else's."""
    first, me = await signed_in(scene)
    second, _ = await signed_in(scene)
    carol, _ = await signed_in(scene, "carol")
    assert (await first.sign_out(me["form_key"], everywhere="yes")).status_code == 200
    assert await second.me() is None
    assert await carol.me() is not None
    assert scene.replicas[0].sink.of("admin")[-1]["facts"] == {"sessions": 2, "everywhere": True}


async def test_the_page_to_sign_out_offers_both(scene: Scene) -> None:
    """Its form carries the session's key and may go to us alone; whoever has no session sees that it is over."""
    guest, me = await signed_in(scene)
    second, _ = await signed_in(scene)
    page = await guest.get("/review/sign-out")
    assert page.status_code == 200
    assert f'value="{me["form_key"]}"' in page.text
    assert "Bob B." in page.text
    assert "form-action 'self'" in page.headers["content-security-policy"]
    assert await guest.me() is not None  # a look ends nothing
    assert (await guest.sign_out(me["form_key"], everywhere="yes")).status_code == 200
    assert await second.me() is None
    assert "You are signed out" in (await guest.get("/review/sign-out")).text


async def test_nobody_is_signed_out_by_somebody_elses_form(scene: Scene) -> None:
    """CSRF: without the session's own form key, or with another session's, nothing ends."""
    guest, me = await signed_in(scene)
    _, hers = await signed_in(scene, "carol")
    for form_key in ("", "x", hers["form_key"], me["form_key"][:-1], me["form_key"] + "x", "\ud800"):
        with contextlib.suppress(UnicodeEncodeError):
            answer = await guest.sign_out(form_key)
            assert answer.status_code == 400
            assert "not of this session" in scene.why()
    url = f"{scene.replicas[0].url}/review/sign-out"
    odd: list[tuple[int, dict[str, Any]]] = [
        (415, {"content": b"x", "headers": {"content-type": "text/plain"}}),
        (415, {"json": {"form_key": me["form_key"]}}),
        (413, {"data": {"form_key": me["form_key"], "x": "y" * 5000}}),
        (400, {"data": {"form_key": [me["form_key"], me["form_key"]]}}),
    ]
    for status, more in odd:
        assert (await guest.http.post(url, **more)).status_code == status
    # A form of another site's comes without the cookie (SameSite), and a browser would let its answer take it away.
    async with httpx.AsyncClient(trust_env=False) as foreign:
        for answer in (await foreign.post(url, data={"form_key": "x"}), await foreign.get(url)):
            assert answer.status_code == 200
            assert "set-cookie" not in answer.headers
    assert await guest.me() is not None
    assert (await guest.sign_out(me["form_key"])).status_code == 200
    assert await guest.me() is None


async def test_signing_out_of_nothing_is_no_error(scene: Scene) -> None:
    """Whoever has no session any more sees that they have none."""
    guest, me = await signed_in(scene)
    assert (await guest.sign_out(me["form_key"])).status_code == 200
    assert (await guest.sign_out(me["form_key"])).status_code == 200


async def test_a_person_has_so_many_sessions_and_no_more(scene: Scene) -> None:
    """The newest stay; another person's are not touched."""
    carol, _ = await signed_in(scene, "carol")
    guests = [(await signed_in(scene))[0] for _ in range(MOST_OF_ONE + 2)]
    alive = [await guest.me() is not None for guest in guests]
    assert alive == [False] * 2 + [True] * MOST_OF_ONE
    assert await carol.me() is not None
