"""The room put together: the issuers, the sessions and the door of one gateway, and their one connection outwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import httpx
from fastapi import FastAPI

from approvals.store import Store
from approvals.visits import Visits
from gateway.audit.port import AuditSink
from gateway.contract.identity import Implications
from gateway.contract.passage import Server
from gateway.sign_in.client import Client
from gateway.sign_in.cookies import Cookie
from gateway.sign_in.door import SignInDoor, WriteOff
from gateway.sign_in.flights import Flights
from gateway.sign_in.provider import BOUNDS, Bounds, Provider
from gateway.sign_in.visitors import Visitors
from gateway.tokens import Tokens


class SignIn:
    """Where people sign in. `resource` is the approvals API as a protected resource: its tokens are asked for.

    `session_s` bounds a session as a whole, `idle_s` the time without a request in it.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        resource: Server,
        *,
        store: Store,
        tokens: Tokens,
        implications: Implications,
        sink: AuditSink,
        write_off: WriteOff,
        keys: Sequence[bytes],
        public_url: str,
        session_s: float,
        idle_s: float,
        leeway_s: float,
        bounds: Bounds = BOUNDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        # No redirects; no proxy, cookie or .netrc from the environment. SSL_CERT_FILE and SSL_CERT_DIR are honoured.
        self._http = httpx.AsyncClient(
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            verify=httpx.create_ssl_context(),
            follow_redirects=False,
            trust_env=False,
            timeout=bounds.deadline_s,
        )
        providers = {client.issuer: Provider(client, self._http, bounds=bounds) for client in clients}
        session_cookie = Cookie.of(public_url, "ostiary")
        self.visitors = Visitors(
            table=Visits(store),
            tokens=tokens,
            providers=providers,
            resource=resource,
            implications=implications,
            keys=keys,
            cookie=session_cookie,
            session_s=session_s,
            idle_s=idle_s,
            clock=clock,
        )
        self._door = SignInDoor(
            providers=providers,
            visitors=self.visitors,
            flights=Flights(keys, public_url),
            tokens=tokens,
            sink=sink,
            write_off=write_off,
            session_cookie=session_cookie,
            session_s=session_s,
            leeway_s=leeway_s,
            clock=clock,
        )

    def add_to(self, app: FastAPI) -> None:
        """Serve the sign-in's places below `/review`, beside what `app` has."""
        self._door.add_to(app)

    async def close(self) -> None:
        """Finish what issuers were asked, then part."""
        await self._door.close()
        await self._http.aclose()
