"""The approvals' JSON API (docs/approvals.md): who someone is comes from the house, what they may do from the desk.

Nothing is read before the token is verified and its scope is there. Every answer is `no-store`; errors are
`{"error": NAME, "message": TEXT}` with stable names, and the same for a ticket that is absent, foreign or made up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import orjson
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from approvals.acts import ACTS, METHODS, READ, REQUEST
from approvals.approvers import Person
from approvals.counter import MOST_CHARACTERS, require
from approvals.desk import Desk
from approvals.review.body import BodyRefused, only, read_object, text
from approvals.ticket import (
    ActInvalid,
    Asked,
    MovedOn,
    NotAllowed,
    State,
    StoreUnavailable,
    Terms,
    TicketUnknown,
    TooManyTickets,
    Unapprovable,
)

Headers = Sequence[tuple[bytes, bytes]]
Authenticate = Callable[[Headers], Awaitable[Person]]
"""The request's header lines -> the person; raises the house's own refusals (see `refuse`)."""

Planned = tuple[Asked, Terms, Sequence[str], Sequence[str]]


class Plan(Protocol):
    """What a call would need by the policy, or, with `vary`, a grant of the tool. Raises likewise."""

    def __call__(
        self,
        person: Person,
        server_name: str,
        method: str,
        name: str,
        arguments: Mapping[str, Any],
        /,
        *,
        vary: Mapping[str, Any] | None = None,
    ) -> Awaitable[Planned]:
        """-> effect, terms, reasons, mask."""
        ...


Handler = Callable[[Request, Exception], Response | Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A request that this API refused: whose (None: nobody's yet), what of which ticket they wanted, and why not."""

    person: Person | None
    verb: str
    ticket_id: str
    status: int
    name: str


Tell = Callable[[TurnedAway], Mapping[str, str]]
"""Writes a refusal of this API down -> headers for its answer. Must not wait."""

ACT_BYTES = 64 * 1024
KEPT: Mapping[str, str] = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

MESSAGES: Mapping[str, str] = {
    "insufficient_scope": "The token lacks a scope that this needs.",
    "own_request": "Whoever asks for an approval does not decide it.",
    "not_an_approver": "You are not among those who may decide this ticket.",
    "not_your_request": "Only whoever asked may do this.",
    "not_found": "There is no such ticket.",
    "moved_on": "The ticket is no longer as it was; look at it again.",
    "comment_required": "Say in a comment what you found out: it stands in the place of an outcome.",
    "unapprovable": "It needs no approval, the policy gives no such grant, or nobody could approve it.",
    "vary_invalid": "vary is a JSON Schema in the place of the arguments, for tools/call.",
    "too_many_tickets": "You opened too many tickets in the last hour.",
    "approvals_unavailable": "The approval store is not available; nothing was done. Try again.",
    "internal_error": "The gateway failed; nothing more is known here.",
}


def approvals_api(
    desk: Desk,
    authenticate: Authenticate,
    plan: Plan,
    *,
    refuse: Mapping[type[Exception], Handler] | None = None,
    challenge: Callable[[tuple[str, ...]], str] | None = None,
    tell: Tell | None = None,
    body_bytes: int = 1024 * 1024,
) -> FastAPI:
    """The ASGI application that answers under `/approvals`.

    `refuse` renders exceptions of the house (refusals, an audit that cannot be written); `challenge` makes the
    `WWW-Authenticate` of a 403 from the scopes that were needed; `tell` hears of every other refusal; `body_bytes`
    bounds a request for an approval.
    """
    api = FastAPI(title="Ostiary approvals", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

    async def person_of(request: Request, scope: str) -> Person:
        request.state.person = person = await authenticate(request.scope["headers"])
        require(person, scope)
        return person

    @api.get("/approvals")
    async def page(request: Request) -> Response:
        person = await person_of(request, READ)
        asked = _query(request)
        tickets, following = await desk.page(person, **asked)
        return answer(200, {"tickets": tickets, "next": following})

    @api.post("/approvals")
    async def ask(request: Request) -> Response:
        person = await person_of(request, REQUEST)
        body = await read_object(request, body_bytes)
        only(body, "server", "method", "name", "arguments", "justification", "vary")
        method, arguments = text(body, "method", 64), body.get("arguments", {})
        if method not in METHODS:
            raise BodyRefused(400, "method_invalid")
        if not isinstance(arguments, dict):
            raise BodyRefused(400, "arguments_invalid")
        vary = body.get("vary")
        if vary is not None and (not isinstance(vary, dict) or method != "tools/call" or arguments):
            raise BodyRefused(400, "vary_invalid")
        justification = text(body, "justification", MOST_CHARACTERS, default="")
        server, name = text(body, "server", 256), text(body, "name", 8192)
        effect, terms, reasons, mask = await plan(person, server, method, name, arguments, vary=vary)
        ticket, opened = await desk.request(
            person, effect, terms, reasons=reasons, mask=mask, justification=justification
        )  # fmt: skip
        return answer(201 if opened else 200, ticket)

    @api.get("/approvals/{ticket_id}")
    async def show(request: Request, ticket_id: str) -> Response:
        return answer(200, await desk.show(await person_of(request, READ), ticket_id))

    @api.post("/approvals/{ticket_id}/{verb}")
    async def act(request: Request, ticket_id: str, verb: str) -> Response:
        if verb not in ACTS:
            raise HTTPException(404)
        person = await person_of(request, ACTS[verb].scope)
        body = await read_object(request, ACT_BYTES)
        only(body, "comment", "seen")
        comment = text(body, "comment", MOST_CHARACTERS, default="")
        seen = text(body, "seen", 128, default="")
        return answer(200, await desk.act(verb, person, ticket_id, comment=comment, seen=seen))

    own = {fault: _told(handler, tell) for fault, handler in _handlers(challenge).items()}
    for fault, handler in {**own, **(refuse or {})}.items():
        api.add_exception_handler(fault, handler)
    return api


def caller(request: Request) -> Person | None:
    """Whose request it is, once the token was verified."""
    person: Person | None = getattr(request.state, "person", None)
    return person


def name_of(name: str, fault: Exception) -> str:
    """A refusal's name for the record, which may say more than its answer: which of its causes it was."""
    why = fault.why if isinstance(fault, (TicketUnknown, MovedOn)) else ""
    return f"{name}: {why}" if why else name


def _told(handler: OwnHandler, tell: Tell | None) -> Handler:
    """The handler, and nobody is turned away without a record of it."""

    async def handle(request: Request, fault: Exception) -> Response:  # a plain function would run in a thread
        response = handler(request, fault)
        if tell is not None:
            ticket_id = str(request.path_params.get("ticket_id", ""))
            verb = request.path_params.get("verb") or ("request" if request.method == "POST" else "show")
            name = name_of(response.name, fault)
            turned = TurnedAway(caller(request), str(verb), ticket_id, response.status_code, name)
            response.headers.update(tell(turned))
        return response

    return handle


def answer(status: int, content: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer that nobody keeps."""
    return Response(orjson.dumps(content), status, {**KEPT, **(headers or {})}, media_type="application/json")


class No(Response):
    """An error answer: its stable name, a sentence, and what else the caller may know."""

    def __init__(self, status: int, name: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        content = {"error": name, "message": MESSAGES.get(name, name.replace("_", " ")), **more}
        super().__init__(orjson.dumps(content), status, {**KEPT, **(headers or {})}, media_type="application/json")
        self.name = name


def _query(request: Request) -> dict[str, Any]:
    given = request.query_params
    if len(given) != len(given.multi_items()) or not set(given) <= {"state", "cursor", "limit"}:
        raise ActInvalid("query_invalid")
    asked: dict[str, Any] = {}
    if "state" in given:
        if given["state"] not in {state.value for state in State}:
            raise ActInvalid("state_invalid")
        asked["state"] = State(given["state"])
    if "cursor" in given:
        asked["cursor"] = given["cursor"]
    if "limit" in given:
        if not (given["limit"].isascii() and given["limit"].isdigit() and 1 <= len(given["limit"]) <= 3):
            raise ActInvalid("limit_invalid")
        asked["limit"] = int(given["limit"])
    return asked


OwnHandler = Callable[[Request, Exception], No]


def _handlers(challenge: Callable[[tuple[str, ...]], str] | None) -> dict[type[Exception], OwnHandler]:
    def not_allowed(_: Request, fault: Exception) -> No:
        assert isinstance(fault, NotAllowed)  # noqa: S101 - what it is registered for
        if not fault.scopes:
            return No(403, fault.why)
        scope = " ".join(fault.scopes)
        line = challenge(fault.scopes) if challenge else f'Bearer error="insufficient_scope", scope="{scope}"'
        return No(403, fault.why, {"www-authenticate": line}, scope=scope)

    def unroutable(_: Request, fault: Exception) -> No:
        status = fault.status_code if isinstance(fault, HTTPException) else 404
        headers = getattr(fault, "headers", None)
        return No(status, HTTPStatus(status).phrase.lower().replace(" ", "_"), headers)

    def body_refused(_: Request, fault: Exception) -> No:
        assert isinstance(fault, BodyRefused)  # noqa: S101 - what it is registered for
        # What was not read is not taken for the next request.
        return No(fault.status, fault.name, {"connection": "close"} if fault.status in (408, 413) else None)

    def too_many(_: Request, fault: Exception) -> No:
        return No(429, "too_many_tickets", {"retry-after": str(getattr(fault, "retry_after_s", 60))})

    return {
        NotAllowed: not_allowed,
        TicketUnknown: lambda _, __: No(404, "not_found"),
        MovedOn: lambda _, fault: No(409, "moved_on", why=getattr(fault, "why", "")),
        ActInvalid: lambda _, fault: No(400, str(fault)),
        Unapprovable: lambda _, __: No(422, "unapprovable"),
        TooManyTickets: too_many,
        StoreUnavailable: lambda _, __: No(503, "approvals_unavailable", {"retry-after": "5"}),
        BodyRefused: body_refused,
        HTTPException: unroutable,
        Exception: lambda _, __: No(500, "internal_error"),
    }
