"""The pages as one ASGI application: their routes, and what is shown where a request can't be answered.

A ticket that is absent, foreign, malformed or guessed, and a path that is none, have the same page. Whoever is turned
away leaves a record, as at the API.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from approvals.desk import Desk
from approvals.review import look
from approvals.review.api import Tell, TurnedAway, caller, name_of
from approvals.review.asking import NOT_NEEDED, Asking, Explain, Offers
from approvals.review.body import BodyRefused
from approvals.review.forms import NotFromHere
from approvals.review.pages import NoSignIn, Pages, Room, SignInFirst, frame, sign_in
from approvals.review.sentences import BARRED, WRONG
from approvals.review.visitors import Visit, Visitors
from approvals.ticket import (
    ActInvalid,
    MovedOn,
    NotAllowed,
    StoreUnavailable,
    TicketUnknown,
    TooManyTickets,
    Unapprovable,
)

Show = Callable[[Request, Exception], Response | Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Wrong:
    """A page that says why not. `name` is stable, for the record."""

    status: int
    name: str
    title: str
    sentence: str
    headers: Mapping[str, str]


def review_pages(
    desk: Desk,
    visitors: Visitors | None,
    offers: Offers,
    *,
    origin: str,
    clock: Callable[[], float] = time.time,
    words: Iterable[type[Exception]] = (),
    explain: Explain | None = None,
    tell: Tell | None = None,
) -> FastAPI:
    """The application that answers under `/review`, but for signing in and out.

    Without `visitors` every page says that nobody can sign in. `origin` is that of `public_url`: forms come from
    there. `words` are the house's own exceptions, which `explain` puts in words; `tell` hears of every other refusal.
    """
    room = Room(desk, visitors, origin, clock)
    house = tuple(words) if explain is not None else ()
    table = [*Pages(room).table(), *Asking(room, offers, house, explain).table()]
    routes: list[BaseRoute] = [Route(path, handler, methods=[method]) for method, path, handler in table]
    routes.append(Route(look.ASSETS + "{name}", _asset, methods=["GET"]))
    handlers: dict[type[Exception], Show] = {fault: _told(say, tell) for fault, say in SAYINGS.items()}
    handlers[SignInFirst] = _sign_in_first
    if explain is not None:
        handlers |= dict.fromkeys(house, _explained(explain))
    app = FastAPI(
        title="Ostiary review", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, routes=routes
    )
    for fault, handler in handlers.items():
        app.add_exception_handler(fault, handler)
    return app


async def _asset(request: Request) -> Response:
    found = look.asset(request.url.path)
    if found is None:
        raise TicketUnknown
    return found


async def _sign_in_first(request: Request, _: Exception) -> Response:
    """To the sign-in; a form is not sent on, for its way may lead to another origin, which it may not go to."""
    if request.method in ("GET", "HEAD"):
        return sign_in(request)
    return wrong_page(None, Wrong(403, "signed_out", "You are signed out", SIGNED_OUT, {}))


SIGNED_OUT = "Your session is over, and nothing was done. Sign in and do it again."


def visit_of(request: Request) -> Visit | None:
    """Whose page it is, once they were received."""
    visit: Visit | None = getattr(request.state, "visit", None)
    return visit


def wrong_page(visit: Visit | None, wrong: Wrong) -> Response:
    """A page that says why not."""
    html = look.render("wrong", wrong=wrong, **frame(visit))
    return look.page(html, wrong.status, wrong.headers)


def _told(say: Callable[[Exception], Wrong], tell: Tell | None) -> Show:
    """The page, and nobody is turned away without a record of it."""

    async def handle(request: Request, fault: Exception) -> Response:
        wrong = say(fault)
        made: Response | None = getattr(request.state, "page", None)  # by a handler that has more to say
        response = wrong_page(visit_of(request), wrong) if made is None else made
        response.status_code = wrong.status
        if tell is not None:
            named = getattr(request.state, "verb", None) or request.path_params.get("verb")
            verb = named or ("request" if request.method == "POST" else "show")
            ticket_id = str(request.path_params.get("ticket_id", ""))
            name = name_of(wrong.name, fault)
            turned = TurnedAway(caller(request), str(verb), ticket_id, wrong.status, name)
            response.headers.update(tell(turned))
        return response

    return handle


def _explained(explain: Explain) -> Show:
    async def handle(request: Request, fault: Exception) -> Response:
        told = await explain(request, fault)
        title = "Not now" if told.status >= 500 else "This can't be done"
        return wrong_page(visit_of(request), Wrong(told.status, "", title, told.sentence, told.headers))

    return handle


NO_SUCH = Wrong(
    404, "not_found", "Nothing here", "There is no such page, or it is not for you. Ask whoever sent you here.", {}
)


def _not_allowed(fault: Exception) -> Wrong:
    why = getattr(fault, "why", "")
    sentence = BARRED.get(why, "You may not do this.")
    if scopes := " ".join(getattr(fault, "scopes", ())):
        sentence = f"{BARRED['insufficient_scope']} It would take the scope {scopes}."
    return Wrong(403, why, "You may not do this", sentence, {})


def _unroutable(fault: Exception) -> Wrong:
    status = fault.status_code if isinstance(fault, HTTPException) else 404
    if status == 404:
        return NO_SUCH
    headers = getattr(fault, "headers", None) or {}
    phrase = HTTPStatus(status).phrase
    return Wrong(status, phrase.lower().replace(" ", "_"), phrase, "This page does not take that.", headers)


def _invalid(fault: Exception) -> Wrong:
    return Wrong(400, str(fault), "That is not complete", WRONG.get(str(fault), "This page does not take that."), {})


def _body(fault: Exception) -> Wrong:
    assert isinstance(fault, BodyRefused)  # noqa: S101 - what it is registered for
    headers = {"connection": "close"} if fault.status in (408, 413) else {}
    sentence = WRONG.get(fault.name, "That was not sent by this page's form. Nothing was done.")
    return Wrong(fault.status, fault.name, "That could not be read", sentence, headers)


def _too_many(fault: Exception) -> Wrong:
    headers = {"retry-after": str(getattr(fault, "retry_after_s", 60))}
    sentence = "You opened as many requests in the last hour as one may. Try again later."
    return Wrong(429, "too_many_tickets", "Too many requests", sentence, headers)


BROKE = "The gateway failed; nothing more is known here."
FOREIGN = "This form did not come from a page of this session. Open the page again and send it from there."
NO_SIGN_IN = (
    "This gateway has no sign-in for people. Requests are decided with the command ostiary approvals, or by its API."
)
AWAY = "The approval store is away. Nothing was done. Try again in a moment."

SAYINGS: Mapping[type[Exception], Callable[[Exception], Wrong]] = {
    TicketUnknown: lambda _: NO_SUCH,
    HTTPException: _unroutable,
    NoSignIn: lambda _: Wrong(404, "no_sign_in", "Nobody can sign in here", NO_SIGN_IN, {}),
    NotAllowed: _not_allowed,
    MovedOn: lambda _: Wrong(409, "moved_on", "Nothing was done", "The request is no longer as it was.", {}),
    ActInvalid: _invalid,
    BodyRefused: _body,
    NotFromHere: lambda _: Wrong(403, "form_foreign", "Nothing was done", FOREIGN, {}),
    Unapprovable: lambda _: Wrong(422, "unapprovable", "Nobody has to approve this", NOT_NEEDED, {}),
    TooManyTickets: _too_many,
    StoreUnavailable: lambda _: Wrong(503, "approvals_unavailable", "Not now", AWAY, {"retry-after": "5"}),
    Exception: lambda _: Wrong(500, "internal_error", "Something broke", BROKE, {}),
}
