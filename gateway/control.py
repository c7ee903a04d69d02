"""The control plane: protected-resource metadata, approvals API and reviewer's pages, behind the same door.

Metadata answers without a token, from configuration alone (RFC 9728); everything else asks for one whose audience is
exactly the approvals resource: a server's token is nothing here, and the reverse. Framing and Host are held as on the
data plane, and every refusal is a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import orjson

from approvals.approvers import Person
from approvals.review.visitors import RECORD_SCOPE
from gateway.asgi import Asgi, Message, Receive, Scope, Send
from gateway.contract.identity import resource_metadata
from gateway.contract.passage import Identity, Reply, Server
from gateway.contract.refusals import Refusal, Refused
from gateway.door.framing import DOOR
from gateway.wires.statements import StatementKey, jwk_set

TurnAway = Callable[[Refused], Awaitable[Reply]]
"""Records a refusal and renders it."""

REFUSED_AS: Mapping[int, Refusal] = {
    400: Refusal.PARAMS_INVALID,
    403: Refusal.POLICY_DENIED,
    404: Refusal.SERVER_UNKNOWN,
    405: Refusal.METHOD_NOT_POST,
    408: Refusal.REQUEST_TIMEOUT,
    409: Refusal.APPROVAL_REFUSED,
    413: Refusal.BODY_TOO_LARGE,
    415: Refusal.CONTENT_UNSUPPORTED,
    422: Refusal.APPROVAL_REFUSED,
    429: Refusal.RATE_LIMITED,
    503: Refusal.APPROVALS_UNAVAILABLE,
}
"""The status of an answer that the approvals API made by itself -> the row under which its record stands."""

REVIEW: Final = b"/review"
METADATA_PREFIX = "/.well-known/oauth-protected-resource"


def is_control_path(raw_path: bytes) -> bool:
    """Whether a request target belongs to the control plane. Compared as it was sent: nothing is decoded."""
    return raw_path in (b"/approvals", REVIEW) or raw_path.startswith((b"/approvals/", b"/review/", b"/.well-known/"))


def metadata_documents(servers: Iterable[Server], approvals: Server) -> Mapping[str, bytes]:
    """Path -> the RFC 9728 document of every protected resource."""
    # The record's scope is for people who sign in to its pages; no challenge of the API asks for it.
    scopes = {approvals.path: (*approvals.scopes, RECORD_SCOPE)}
    return {
        f"{METADATA_PREFIX}{server.path}": orjson.dumps(
            resource_metadata(server, server.issuers, scopes.get(server.path, server.scopes))
        )
        for server in (*servers, approvals)
    }


STATEMENT_KEYS = "/.well-known/ostiary/jwks.json"
"""Where servers find the keys of the statements of who calls, if any are made: public keys, so metadata."""


def statement_documents(keys: Iterable[StatementKey]) -> Mapping[str, bytes]:
    """Path -> the key set, where there are keys."""
    found = tuple(keys)
    return {STATEMENT_KEYS: jwk_set(found)} if found else {}


METADATA_HEADERS: Mapping[str, str] = {
    "content-type": "application/json",
    "cache-control": "public, max-age=300",
}
"""Of every document: for anybody, cacheable, since nothing in it is of a caller."""


class Documents:
    """Answers `GET` of a document by itself; everything else, other methods there included, is for `rest`.

    Clients ask for these before they have a token: they are not to wait for what people need.
    """

    def __init__(self, documents: Mapping[str, bytes], rest: Asgi) -> None:
        self._documents = {path.encode(): document for path, document in documents.items()}
        self._headers = [(name.encode(), value.encode()) for name, value in METADATA_HEADERS.items()]
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        document = self._documents.get(scope["raw_path"]) if scope["method"] == "GET" else None
        if document is None:
            await self._rest(scope, receive, send)
            return
        headers = [(b"content-length", b"%d" % len(document)), *self._headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": document})


def caller_of(person: Person | None) -> Identity | None:
    """Whoever a token of the approvals API named, as records name callers."""
    if person is None:
        return None
    return Identity(person.issuer, person.subject, person.client)


def refused_as(status: int, name: str, ticket_id: str) -> Refused:
    """What the approvals API answered by itself -> the row and the detail of its record."""
    row = REFUSED_AS.get(status, Refusal.INTERNAL_ERROR)
    if name == "insufficient_scope":
        row = Refusal.SCOPE_INSUFFICIENT
    elif status == 404 and ticket_id:
        row = Refusal.APPROVAL_REFUSED  # absent, foreign or guessed: the API tells these apart as little
    return Refused(row, name)


class ControlDoor:
    """Framing and Host for an ASGI application that would not look at them itself, nor whether its client is there.

    Without it, what clients broke off would wait in line for the store: no limit of connections counts the lost, and
    whoever still waits would be told that the store is not available.
    """

    def __init__(self, app: Asgi, hosts: Iterable[str], turn_away: TurnAway) -> None:
        self._app = app
        self._hosts = frozenset(host.encode("ascii") for host in hosts)
        self._turn_away = turn_away

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it before the application sees it."""
        door = scope["extensions"].get(DOOR) if "extensions" in scope else None

        async def send_and_part(message: Message) -> None:
            # What was not read of a body is never read as the next request.
            if message["type"] == "http.response.start" and door is not None and not door.request_complete:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        refused = door.fault if door is not None else None
        hosts = [value.lower() for name, value in scope["headers"] if name == b"host"]
        if refused is None and (len(hosts) != 1 or hosts[0] not in self._hosts):
            refused = Refused(Refusal.HOST_FORBIDDEN)
        if refused is None:
            await self._admit(door, scope, receive, send_and_part)
            return
        reply = await self._turn_away(refused)
        headers = [*reply.headers, (b"content-length", b"%d" % len(reply.body)), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})

    async def _admit(self, door: Any, scope: Scope, receive: Receive, send: Send) -> None:
        if door is None:
            await self._app(scope, receive, send)
            return
        door.guest = guest = asyncio.current_task()
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not door.lost:
                raise
        finally:
            if door.guest is guest:  # the connection may be at its next request already
                door.guest = None
