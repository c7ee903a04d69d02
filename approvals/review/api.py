"""The approvals' JSON API (docs/approvals.md): who someone is comes from the house, what they may do from the desk.

Nothing is read before the token is verified and its scope is there. Every answer is `no-store`; errors are
`{"error": NAME, "message": TEXT}` with stable names, and the same for a ticket that is absent, foreign or made up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from approvals.approvers import Person
from approvals.counter import ACTS, MOST_CHARACTERS, READ, REQUEST, require
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
Plan = Callable[[Person, str, str, str, Mapping[str, Any]], Awaitable[Planned]]
"""(person, server, method, name, arguments) -> effect, terms, reasons, mask, by the policy. Raises likewise."""

Handler = Callable[[Request, Exception], Response | Awaitable[Response]]

METHODS = ("tools/call", "resources/read", "prompts/get")
ACT_BYTES = 64 * 1024

MESSAGES: Mapping[str, str] = {
    "insufficient_scope": "The token lacks a scope that this needs.",
    "own_request": "Whoever asks for an approval does not decide it.",
    "not_an_approver": "You are not among those who may decide this ticket.",
    "not_your_request": "Only whoever asked may do this.",
    "not_found": "There is no such ticket.",
    "moved_on": "The ticket is no longer as it was; look at it again.",
    "unapprovable": "Nobody could approve this call under the policy's terms.",
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
    body_bytes: int = 1024 * 1024,
) -> FastAPI:
    """The ASGI application that answers under `/approvals`.

    `refuse` renders exceptions of the house (refusals, an audit that cannot be written); `challenge` makes the
    `WWW-Authenticate` of a 403 from the scopes that were needed; `body_bytes` bounds a request for an approval.
    """
    api = FastAPI(title="Ostiary approvals", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

    async def person_of(request: Request, scope: str) -> Person:
        person = await authenticate(request.scope["headers"])
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
        only(body, "server", "method", "name", "arguments", "justification")
        method, arguments = text(body, "method", 64), body.get("arguments", {})
        if method not in METHODS:
            raise BodyRefused(400, "method_invalid")
        if not isinstance(arguments, dict):
            raise BodyRefused(400, "arguments_invalid")
        justification = text(body, "justification", MOST_CHARACTERS, default="")
        server, name = text(body, "server", 256), text(body, "name", 8192)
        effect, terms, reasons, mask = await plan(person, server, method, name, arguments)
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

    for fault, handler in {**_handlers(challenge), **(refuse or {})}.items():
        api.add_exception_handler(fault, handler)
    return api


def answer(status: int, content: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer that nobody keeps."""
    kept = {"cache-control": "no-store", "x-content-type-options": "nosniff", **(headers or {})}
    return Response(orjson.dumps(content), status, kept, media_type="application/json")


def no(status: int, name: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """An error answer: its stable name, a sentence, and what else the caller may know."""
    return answer(status, {"error": name, "message": MESSAGES.get(name, name.replace("_", " ")), **more}, headers)


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


def _handlers(challenge: Callable[[tuple[str, ...]], str] | None) -> dict[type[Exception], Handler]:
    def not_allowed(_: Request, fault: Exception) -> Response:
        assert isinstance(fault, NotAllowed)  # noqa: S101 - what it is registered for
        if not fault.scopes:
            return no(403, fault.why)
        scope = " ".join(fault.scopes)
        line = challenge(fault.scopes) if challenge else f'Bearer error="insufficient_scope", scope="{scope}"'
        return no(403, fault.why, {"www-authenticate": line}, scope=scope)

    def unroutable(_: Request, fault: Exception) -> Response:
        status = fault.status_code if isinstance(fault, HTTPException) else 404
        headers = getattr(fault, "headers", None)
        return no(status, HTTPStatus(status).phrase.lower().replace(" ", "_"), headers)

    def body_refused(_: Request, fault: Exception) -> Response:
        assert isinstance(fault, BodyRefused)  # noqa: S101 - what it is registered for
        # What was not read is not taken for the next request.
        return no(fault.status, fault.name, {"connection": "close"} if fault.status in (408, 413) else None)

    def too_many(_: Request, fault: Exception) -> Response:
        return no(429, "too_many_tickets", {"retry-after": str(getattr(fault, "retry_after_s", 60))})

    return {
        NotAllowed: not_allowed,
        TicketUnknown: lambda _, __: no(404, "not_found"),
        MovedOn: lambda _, fault: no(409, "moved_on", why=getattr(fault, "why", "")),
        ActInvalid: lambda _, fault: no(400, str(fault)),
        Unapprovable: lambda _, __: no(422, "unapprovable"),
        TooManyTickets: too_many,
        StoreUnavailable: lambda _, __: no(503, "approvals_unavailable", {"retry-after": "5"}),
        BodyRefused: body_refused,
        HTTPException: unroutable,
        Exception: lambda _, __: no(500, "internal_error"),
    }
