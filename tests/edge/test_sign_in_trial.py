"""`ostiary check` before an issuer: it says what would go wrong at the first sign-in, and signs nobody in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from gateway.sign_in.client import Client
from gateway.sign_in.trial import try_sign_in
from tests.edge.test_approvals_api import served

BACK = "https://gw.example/review/callback"
RESOURCE = "https://gw.example/approvals"
GOOD = Client("", "ostiary-review", BACK, RESOURCE, ("openid",))


class Provider:
    """An issuer that knows one client, and answers `prompt=none` as it should or as it is told to."""

    url = ""
    place: str | None = None

    async def describe(self, _: Request) -> Response:
        ends = {"authorization_endpoint": f"{self.url}/authorize?tenant=1", "token_endpoint": f"{self.url}/token"}
        return JSONResponse({"issuer": self.url, **ends})

    async def authorize(self, request: Request) -> Response:
        asked = request.query_params
        assert (asked["prompt"], asked["tenant"], asked["response_type"]) == ("none", "1", "code")
        assert asked["code_challenge_method"] == "S256"
        if self.place is not None:
            return RedirectResponse(self.place, 303)
        if (asked["client_id"], asked["redirect_uri"]) != ("ostiary-review", BACK):
            return Response("planted: no such client", 400)
        error = "login_required" if asked.get("resource", RESOURCE) == RESOURCE else "invalid_target"
        return RedirectResponse(f"{BACK}?error={error}&state={asked['state']}", 303)


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    """On loopback."""
    it = Provider()
    routes = [Route("/.well-known/openid-configuration", it.describe), Route("/authorize", it.authorize)]
    async with served(Starlette(routes=routes)) as it.url:
        yield it


async def told(provider: Provider, **changes: Any) -> tuple[bool, str]:
    """The one finding of the good client, changed."""
    (found,) = await try_sign_in([replace(GOOD, issuer=provider.url, **changes)])
    return found


async def test_an_issuer_that_knows_the_gateway_is_in_order(provider: Provider) -> None:
    """It is named with everything that it takes."""
    asked = f"client ostiary-review, redirect URI {BACK}, resource {RESOURCE}"
    assert await told(provider) == (True, f"{provider.url}: takes {asked}")
    assert await try_sign_in([]) == []


async def test_a_resource_that_the_issuer_does_not_take_is_told(provider: Provider) -> None:
    """And what the error is called, if OAuth knows it; nothing else of the issuer's answer."""
    ok, words = await told(provider, audience="https://gw.example/other")
    assert not ok
    assert words.startswith(f"{provider.url}: says invalid_target to client ostiary-review")
    provider.place = f"{BACK}?error=planted%3Cscript%3E"
    ok, words = await told(provider)
    assert (ok, "says something else to" in words, "planted" in words) == (False, True, False)


@pytest.mark.parametrize(
    "place", [None, "https://idp.example/login", "http://[", f"{BACK}.planted?error=login_required"]
)
async def test_an_issuer_that_does_not_say_is_no_proof(provider: Provider, place: str | None) -> None:
    """A page of its own, or another place: the finding names what has to be registered, and is no failure."""
    provider.place = place
    ok, words = await told(provider, client_id="other") if place is None else await told(provider)
    assert ok
    assert "it does not say: client" in words
    assert BACK in words
    assert "planted" not in words


async def test_an_issuer_that_is_not_there_is_told(provider: Provider) -> None:
    """Its metadata can't be had: people could not sign in, and whoever checks knows it before they do."""
    assert (await told(provider))[0]
    ((ok, words),) = await try_sign_in([replace(GOOD, issuer=f"{provider.url}/other")])
    assert not ok
    assert words == f"{provider.url}/other: the issuer publishes no metadata"
