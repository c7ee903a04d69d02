"""The sign-in on a real server before real providers of the tests, with a clock that is moved by hand."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response

from approvals.store import Store
from gateway.contract.passage import Server
from gateway.contract.refusals import Refused
from gateway.issuers import IssuerSettings
from gateway.sign_in.client import Client
from gateway.sign_in.provider import Bounds
from gateway.sign_in.room import SignIn
from gateway.tokens import Tokens
from tests.edge.test_approvals_api import served
from tests.pipeline.house import KeptRecord
from tests.support.approvals import KEY
from tests.support.issuer import Issuer, signing_key
from tests.support.oidc import Oidc

PUBLIC = "http://127.0.0.1:8080"
AUDIENCE = f"{PUBLIC}/approvals"


@dataclass
class Moved:
    """Seconds since the epoch, moved by hand alone: how long a test takes on a busy machine is nothing to it."""

    ahead: float = 0.0
    began: float = field(default_factory=time.time)

    def __call__(self) -> float:
        return self.began + self.ahead


@dataclass
class Replica:
    """One gateway's sign-in, served at `url`; what it refused, and what it recorded."""

    url: str
    room: SignIn
    sink: KeptRecord
    refused: list[Refused]


@dataclass
class Scene:
    """Providers, replicas on one store, and one clock for all."""

    oidc: Oidc
    other: Oidc
    replicas: list[Replica]
    clock: Moved
    store: Store
    browsers: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def browser(self, at: int = 0) -> Guest:
        """Somebody with no cookie yet."""
        client = await self.browsers.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=30))
        return Guest(self, client, at)

    def why(self, at: int = 0) -> str:
        """The detail of the last refusal."""
        return self.replicas[at].refused[-1].detail


@dataclass
class Guest:
    """A browser at one of the replicas: its cookies are those of `public_url`, wherever that leads."""

    scene: Scene
    http: httpx.AsyncClient
    at: int = 0

    async def get(self, place: str) -> httpx.Response:
        """A place of the gateway's, by its path or by its public URL."""
        return await self.http.get(self.scene.replicas[self.at].url + place.removeprefix(PUBLIC))

    async def begin(self, place: str = "/review", **more: str) -> str:
        """-> the issuer's URL with everything that is asked of it."""
        answer = await self.http.get(
            f"{self.scene.replicas[self.at].url}/review/sign-in", params={"next": place, **more}
        )
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    async def back(self, there: str) -> str:
        """At the issuer -> the callback's path and query."""
        answer = await self.http.get(there)
        assert answer.status_code == 303, answer.text
        assert answer.headers["location"].startswith(f"{PUBLIC}/review/callback?")
        return answer.headers["location"].removeprefix(PUBLIC)

    async def sign_in(self, place: str = "/review", **more: str) -> httpx.Response:
        """The whole way."""
        return await self.get(await self.back(await self.begin(place, **more)))

    async def me(self) -> dict[str, Any] | None:
        """Who the pages see, as JSON; None: nobody."""
        answer = await self.get("/me")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] | None = answer.json()
        return found

    async def sign_out(self, form_key: str, **more: str) -> httpx.Response:
        """Post the form."""
        url = f"{self.scene.replicas[self.at].url}/review/sign-out"
        return await self.http.post(url, data={"form_key": form_key, **more})

    def cookies(self) -> dict[str, str]:
        """Name -> value."""
        return {cookie.name: cookie.value or "" for cookie in self.http.cookies.jar}

    def flights(self) -> dict[str, str]:
        """The cookies of sign-ins on their way."""
        return {name: value for name, value in self.cookies().items() if name.startswith("ostiary-sign-in-")}


def pages(room: SignIn) -> FastAPI:
    """The sign-in, and one page that says who is there."""
    app = FastAPI()
    room.add_to(app)

    @app.get("/me")
    async def me(request: Request) -> Response:
        try:
            request.state.comes_by_itself = request.query_params.get("by") == "itself"
            visit = await room.visitors.visit(request)
        except Refused as refused:
            return Response(refused.refusal.reason, refused.refusal.value.status)
        if visit is None:
            return Response("null", media_type="application/json")
        person = visit.person
        found = {
            "by": person.by,
            "scopes": sorted(person.scopes),
            "groups": sorted(person.groups),
            "form_key": visit.form_key,
            "name": visit.name,
            "ends_at": visit.ends_at,
        }
        return Response(json.dumps(found), media_type="application/json")

    return app


@asynccontextmanager
async def signing_in(
    database: str, *, replicas: int = 1, both: bool = False, secret: str = "", deadline_s: float = 5.0, **times: float
) -> AsyncIterator[Scene]:
    """A scene on `database`. `both`: people choose between two issuers."""
    clock = Moved()
    oidc, other = Oidc(clock=clock, secret=secret), Oidc(Issuer(keys=[signing_key(number=1)]), clock=clock)
    async with AsyncExitStack() as open_:
        for provider in (oidc, other):
            provider.issuer.name = await open_.enter_async_context(served(provider.app()))
        clients = [client_of(one, secret) for one in ((oidc, other) if both else (oidc,))]
        made, store = [], None
        for _ in range(replicas):
            store = Store(database, [KEY])
            await store.start()
            open_.push_async_callback(store.close)
            one = replica(store, clients, (oidc, other), clock=clock, deadline_s=deadline_s, times=times)
            made.append(await open_.enter_async_context(one))
        assert store is not None
        scene = Scene(oidc, other, made, clock, store)
        async with scene.browsers:
            yield scene


def client_of(provider: Oidc, secret: str) -> Client:
    """The gateway as this provider knows it."""
    scopes = ("openid", "approvals:read", "approvals:request", "approvals:decide")
    return Client(provider.url, provider.client_id, f"{PUBLIC}/review/callback", AUDIENCE, scopes, secret)


@asynccontextmanager
async def replica(
    store: Store,
    clients: Sequence[Client],
    providers: Sequence[Oidc],
    *,
    clock: Moved,
    deadline_s: float,
    times: dict[str, float],
) -> AsyncIterator[Replica]:
    """One gateway's sign-in."""
    tokens = Tokens([IssuerSettings(one.url, jwks_uri=f"{one.url}/jwks") for one in providers], clock=clock)
    await tokens.start()
    sink = KeptRecord()
    refused: list[Refused] = []

    def write_off(why: Refused) -> str:
        refused.append(why)
        return f"decision-{len(refused)}"

    room = SignIn(
        clients,
        Server("approvals", "/approvals", AUDIENCE, "", issuers=frozenset(one.url for one in providers)),
        store=store,
        tokens=tokens,
        implications={},
        sink=sink,
        write_off=write_off,
        keys=[KEY],
        public_url=PUBLIC,
        session_s=times.get("session_s", 3600.0),
        idle_s=times.get("idle_s", 1800.0),
        leeway_s=30.0,
        bounds=Bounds(deadline_s=deadline_s, pause_s=0.0),
        clock=clock,
    )
    try:
        async with served(pages(room)) as url:
            yield Replica(url, room, sink, refused)
    finally:
        await room.close()
        await tokens.close()
