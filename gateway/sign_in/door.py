"""The three places of a sign-in below `/review`: where it begins, where the issuer sends the browser back, its end.

Invariant: a session is made only for a browser that began the sign-in itself, for an answer that names the issuer it
was begun with, and for an ID token and an access token of the same person that were verified now; and not before the
record of it is durable. The redirect URI and the audience are configuration's, never a request's.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from approvals.desk import StoreUnavailable
from approvals.review.visitors import SIGN_IN, SIGN_OUT
from gateway.audit.port import AuditSink, AuditUnavailable
from gateway.contract.passage import Identity
from gateway.contract.record import admin_record
from gateway.contract.refusals import Refusal, Refused
from gateway.delivery import translate
from gateway.sign_in.client import CALLBACK
from gateway.sign_in.cookies import Cookie
from gateway.sign_in.flights import HOME, Flight, Flights, in_time, safe_place
from gateway.sign_in.pages import DEFECT, HEADERS, WITH_FORM, WORDS, farewell, page
from gateway.sign_in.protocol import authorization_url, check_id_token
from gateway.sign_in.provider import ERRORS, Granted, Provider
from gateway.sign_in.visitors import Session, Visitors
from gateway.tokens import Tokens

FORM_BYTES = 4096
FORM_S = 10.0
MOST_CHARACTERS = 4096
MOST_FAREWELLS = 100
ANSWERS = ("code", "state", "iss", "error")

WriteOff = Callable[[Refused], str]
"""Records a refusal -> its decision id."""

Handle = Callable[[Request], Awaitable[Response]]


class SignInDoor:
    """The sign-in as routes. `providers` by issuer, the first one is asked where nobody chose another."""

    def __init__(
        self,
        *,
        providers: Mapping[str, Provider],
        visitors: Visitors,
        flights: Flights,
        tokens: Tokens,
        sink: AuditSink,
        write_off: WriteOff,
        session_cookie: Cookie,
        session_s: float,
        leeway_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._providers = providers
        self._visitors = visitors
        self._flights = flights
        self._tokens = tokens
        self._sink = sink
        self._write_off = write_off
        self._session_cookie = session_cookie
        self._session_s = session_s
        self._leeway_s = leeway_s
        self._clock = clock
        self._farewells: set[asyncio.Task[bool]] = set()

    def add_to(self, app: FastAPI) -> None:
        """The routes, beside those that `app` has."""
        for path, verb, handle in (
            (SIGN_IN, "GET", self._begin),
            (CALLBACK, "GET", self._land),
            (SIGN_OUT, "GET", self._ask_to_leave),
            (SIGN_OUT, "POST", self._leave),
        ):
            app.add_api_route(path, self._guarded(handle), methods=[verb], include_in_schema=False)

    async def close(self) -> None:
        """Let what is still said to issuers be said, within its deadline."""
        if self._farewells:
            await asyncio.wait(set(self._farewells))
        await self._visitors.close()

    def _guarded(self, handle: Handle) -> Handle:
        async def guarded(request: Request) -> Response:
            try:
                answer = await handle(request)
            except (Refused, StoreUnavailable, AuditUnavailable) as fault:
                answer = self._refuse(fault if isinstance(fault, Refused) else translate(fault))
                if ended := getattr(request.state, "flight_ended", ""):
                    answer.headers.append("set-cookie", ended)
            for name, value in HEADERS.items():
                answer.headers.setdefault(name, value)
            answer.headers.setdefault("ostiary-decision", secrets.token_hex(16))
            return answer

        return guarded

    def _refuse(self, refused: Refused) -> Response:
        decision_id, row = self._write_off(refused), refused.refusal.value
        title, text = WORDS.get(refused.refusal, DEFECT)
        answer = _html(page(title, text, [(SIGN_IN, "Sign in again")], decision_id), row.status)
        answer.headers["ostiary-decision"] = decision_id
        if row.retry_after_s:
            answer.headers["retry-after"] = str(row.retry_after_s)
        return answer

    async def _begin(self, request: Request) -> Response:
        """Send the browser to the issuer."""
        asked = _only(request, ("next", "issuer"))
        place = safe_place(asked.get("next", HOME))
        if "issuer" not in asked and len(self._providers) > 1:
            links = [(f"{SIGN_IN}?{urlencode({'issuer': name, 'next': place})}", name) for name in self._providers]
            return _html(page("Sign in", "Which issuer knows you?", links), 200)
        provider = self._providers.get(asked.get("issuer", next(iter(self._providers))))
        if provider is None:
            raise Refused(Refusal.SIGN_IN_REFUSED, "nobody signs in by this issuer")
        found = await provider.endpoints()
        flight, cookie = self._flights.begin(request, provider.client.issuer, place, self._clock())
        there = authorization_url(
            found.authorization, provider.client, state=flight.state, nonce=flight.nonce, verifier=flight.verifier
        )
        return _redirect(there, cookie)

    async def _land(self, request: Request) -> Response:
        """The issuer's answer, in the browser's hands."""
        flight, provider, code = await self._read_answer(request)
        granted = await provider.redeem(code, flight.verifier)
        identity, name = await self._verify(provider, flight, granted)
        by = f"{identity.issuer}|{identity.subject}"
        facts = {"issuer": identity.issuer, "client": provider.client.client_id, "session_s": int(self._session_s)}
        decision_id = secrets.token_hex(16)
        await self._sink.append(admin_record("signed_in", by, facts, decision_id=decision_id))
        secret = await self._visitors.begin(request, identity, granted, name)
        session = self._session_cookie.write(secret, self._session_s)
        answer = _redirect(flight.place, session, request.state.flight_ended)
        answer.headers["ostiary-decision"] = decision_id
        return answer

    async def _read_answer(self, request: Request) -> tuple[Flight, Provider, str]:
        """The flight that this answer ends, and the code that it brings; nothing was asked of anybody before."""
        # Only the sign-in whose state is named ends by it: anybody can send a browser to this place.
        state = _only(request, ("state",), others=True).get("state", "")
        flight, request.state.flight_ended = self._flights.end(request, state)
        in_time(flight, self._clock())
        answer = _only(request, ANSWERS, others=True)
        provider = self._providers.get(flight.issuer)
        if provider is None:
            raise Refused(Refusal.SIGN_IN_REFUSED, "nobody signs in by this issuer")
        # RFC 9207, before anything else is believed: with several issuers each has to say that it is the one.
        named = answer.get("iss")
        if named is None and (len(self._providers) > 1 or (await provider.endpoints()).says_who):
            raise Refused(Refusal.SIGN_IN_REFUSED, "the answer does not say whose it is (iss)")
        if named is not None and named != flight.issuer:
            raise Refused(Refusal.SIGN_IN_REFUSED, "the answer is another issuer's (iss)")
        if "error" in answer:
            error = answer["error"] if answer["error"] in ERRORS else "another error"
            raise Refused(Refusal.SIGN_IN_REFUSED, f"the issuer says {error}")
        if not answer.get("code"):
            raise Refused(Refusal.SIGN_IN_REFUSED, "the answer brings no code")
        return flight, provider, answer["code"]

    async def _verify(self, provider: Provider, flight: Flight, granted: Granted) -> tuple[Identity, str]:
        """Who signed in, and what they are called: by the ID token and the access token, which must agree."""
        with _as_refused("ID token"):
            signed, claims = await self._tokens.issuers.read_signed(granted.id_token, flight.issuer)
        check_id_token(
            signed.header,
            claims,
            provider.client,
            nonce=flight.nonce,
            access_token=granted.access_token,
            now=self._clock(),
            leeway_s=self._leeway_s,
        )
        with _as_refused("access token"):
            identity = await self._visitors.identify(granted.access_token)
        if (identity.issuer, identity.subject) != (flight.issuer, claims.get("sub")):
            raise Refused(Refusal.SIGN_IN_REFUSED, "ID token and access token are of different people")
        return identity, _name_in(claims)

    async def _ask_to_leave(self, request: Request) -> Response:
        """The page that ends a session, or all of this person's."""
        session = await self._visitors.find(request)
        if session is None:
            return self._left(request)
        answer = _html(farewell(session.kept.name or session.entry.subject, SIGN_OUT, session.kept.form_key), 200)
        answer.headers["content-security-policy"] = WITH_FORM
        return answer

    async def _leave(self, request: Request) -> Response:
        """End the session; with `everywhere`, all of this person's."""
        form = await _read_form(request)
        session = await self._visitors.find(request)
        if session is None:
            return self._left(request)
        given = form.get("form_key", "").encode("utf-8", "surrogatepass")
        if not secrets.compare_digest(session.kept.form_key.encode(), given):
            raise Refused(Refusal.SIGN_IN_REFUSED, "the form is not of this session")
        ended = await self._visitors.end(session, everywhere="everywhere" in form)
        entry = session.entry
        facts = {"sessions": ended, "everywhere": "everywhere" in form}
        self._sink.note(admin_record("signed_out", f"{entry.issuer}|{entry.subject}", facts))
        self._forget_at_issuer(session)
        return self._left(request)

    def _forget_at_issuer(self, session: Session) -> None:
        """The session is over already; that its issuer hears of it is a courtesy that nobody waits for."""
        provider = self._providers.get(session.entry.issuer)
        if provider is not None and session.kept.refresh_token and len(self._farewells) < MOST_FAREWELLS:
            farewell = asyncio.create_task(provider.revoke(session.kept.refresh_token), name="farewell to an issuer")
            self._farewells.add(farewell)
            farewell.add_done_callback(self._farewells.discard)

    def _left(self, request: Request) -> Response:
        answer = _html(page("You are signed out", "This browser's session is over.", [(SIGN_IN, "Sign in")]), 200)
        # Another site's form comes without the cookie, though the browser has it: that must not take it away.
        if self._session_cookie.is_in(request):
            answer.headers.append("set-cookie", self._session_cookie.clear())
        return answer


@contextlib.contextmanager
def _as_refused(what: str) -> Iterator[None]:
    """A token that is not accepted is a sign-in that is not: the browser sent none, and can do nothing about it."""
    try:
        yield
    except Refused as refused:
        if refused.refusal is not Refusal.TOKEN_INVALID:
            raise
        raise Refused(Refusal.SIGN_IN_REFUSED, f"{what}: {refused.detail}") from refused


def _html(content: bytes, status: int) -> Response:
    return Response(content, status, media_type="text/html")


def _redirect(place: str, *cookies: str) -> Response:
    answer = Response(status_code=303, headers={"location": place})
    for cookie in cookies:
        answer.headers.append("set-cookie", cookie)
    return answer


def _only(request: Request, names: Sequence[str], *, others: bool = False) -> dict[str, str]:
    """The query's members of these names, each there once. Raises `Refused(SIGN_IN_REFUSED)`.

    `others` may be there as well, and count for nothing: an issuer adds its own (`session_state`).
    """
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in names:
            if name in given or len(value) > MOST_CHARACTERS:
                raise Refused(Refusal.SIGN_IN_REFUSED, f"the query has more than one {name}, or a very long one")
            given[name] = value
        elif not others:
            raise Refused(Refusal.SIGN_IN_REFUSED, "the query has a member that is not known here")
    return given


async def _read_form(request: Request) -> dict[str, str]:
    """A small form's members. Raises `Refused`, also where it is none, or too large, or does not come."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(Refusal.CONTENT_UNSUPPORTED, "not a form")
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_S):
            async for piece in request.stream():
                body += piece
                if len(body) > FORM_BYTES:
                    raise Refused(Refusal.BODY_TOO_LARGE)
    except TimeoutError as fault:
        raise Refused(Refusal.REQUEST_TIMEOUT) from fault
    except ClientDisconnect as fault:
        raise Refused(Refusal.CLIENT_GONE) from fault
    try:
        members = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=8)
    except ValueError as fault:
        raise Refused(Refusal.SIGN_IN_REFUSED, "the body is no small form") from fault
    if len(dict(members)) != len(members):
        raise Refused(Refusal.SIGN_IN_REFUSED, "the form has a member twice")
    return dict(members)


def _name_in(claims: Mapping[str, Any]) -> str:
    """What the issuer says that somebody is called. For the eye alone; who they are is `sub`."""
    for claim in ("name", "preferred_username", "email"):
        value = claims.get(claim)
        if isinstance(value, str) and value.strip():
            return "".join(character if character.isprintable() else " " for character in value).strip()[:64]
    return ""
