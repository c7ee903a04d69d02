"""What people come for: the approvals API, the reviewer's pages, and where they sign in to them.

API and pages belong to the leaf room, which knows nothing of tokens, corridor or chain; here it is told who somebody
is, what a call would need, and where a refusal is written down. FastAPI, templates and OAuth are loaded with this
module: a sixth of a second and 20 MB, which a gateway that nobody visits does not spend (receiving.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from fastapi import FastAPI, Request, Response

from approvals.approvers import Person
from approvals.desk import StoreUnavailable, TooManyTickets
from approvals.review.api import approvals_api, caller
from approvals.review.app import review_pages
from approvals.review.asking import Told
from approvals.review.pages import Room
from approvals.review.visitors import Visitors
from gateway.asgi import Asgi, Receive, Scope, Send
from gateway.audit.place import Place
from gateway.contract.refusals import Refused
from gateway.contract.reply import challenge
from gateway.control import METADATA_HEADERS, REVIEW
from gateway.delivery import TRANSLATED, translate
from gateway.foresight import Foresight, person_of
from gateway.origins import origin_of
from gateway.reception import Behind, Reception
from gateway.review_audit.room import AuditPages
from gateway.sign_in.room import SignIn

APPROVAL_BODY_BYTES: Final = 1 << 20
HOUSE_WORDS = tuple(word for word in TRANSLATED if word not in {StoreUnavailable, TooManyTickets})
"""What the approvals API leaves to the house to refuse; its own words it renders itself."""
TOLD_HEADERS = (b"ostiary-decision", b"retry-after")


def open_parlour(reception: Reception, documents: Mapping[str, bytes], opened: AsyncExitStack) -> Asgi:
    """Everything behind the control plane's door; each part is closed by the stack that it is opened on."""
    behind = reception.behind
    foresight = Foresight(behind.corridor, behind.plan.servers)
    api = _open_api(reception, foresight)
    _add_metadata(api, documents)
    sign_in = _open_sign_in(reception, opened)
    visitors = None if sign_in is None else sign_in.visitors
    pages = _open_pages(reception, foresight, visitors)
    if sign_in is not None:
        sign_in.add_to(pages)
        _open_audit_pages(behind, visitors, opened).add_to(pages)

    async def chosen(scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["raw_path"] == REVIEW or scope["raw_path"].startswith(REVIEW + b"/")
        await (pages if is_page else api)(scope, receive, send)

    return chosen


def _add_metadata(app: FastAPI, documents: Mapping[str, bytes]) -> None:
    """Who asks for a document by another method, or spells its path otherwise, gets `app`'s answer."""

    def publish(path: str, document: bytes) -> None:
        @app.get(path, include_in_schema=False)
        async def metadata() -> Response:
            return Response(document, headers=METADATA_HEADERS)

    for path, document in documents.items():
        publish(path, document)


def _open_api(reception: Reception, foresight: Foresight) -> FastAPI:
    """The approvals API with the house behind it: its tokens, its policy, its refusals and its record."""
    behind = reception.behind
    resource = behind.plan.approvals

    async def authenticate(headers: Sequence[tuple[bytes, bytes]]) -> Person:
        identity = await behind.tokens.identify(
            [value for name, value in headers if name == b"authorization"],
            resource=resource.resource,
            issuers=resource.issuers,
            alone=True,
        )
        return person_of(identity, behind.implications)

    async def refuse(request: Request, error: Exception) -> Response:
        refused = error if isinstance(error, Refused) else translate(error)
        reply = await reception.turn_away(refused, caller(request))
        headers = {name.decode(): value.decode() for name, value in reply.headers}
        return Response(reply.body, reply.status, headers)

    return approvals_api(
        behind.desk,
        authenticate,
        foresight.plan,
        refuse=dict.fromkeys((Refused, *HOUSE_WORDS), refuse),
        challenge=lambda scopes: challenge("insufficient_scope", scopes, resource).decode(),
        tell=reception.write_down,
        body_bytes=min(behind.plan.door.body_bytes, APPROVAL_BODY_BYTES),
    )


def _open_pages(reception: Reception, foresight: Foresight, visitors: Visitors | None) -> FastAPI:
    """The reviewer's pages with the same house behind them; without `visitors` nobody can sign in to them."""

    async def explain(request: Request, error: Exception) -> Told:
        refused = error if isinstance(error, Refused) else translate(error)
        reply = await reception.turn_away(refused, caller(request))
        kept = {name.decode(): value.decode() for name, value in reply.headers if name in TOLD_HEADERS}
        row = refused.refusal.value
        return Told(max(row.status, 400), refused.message or row.sentence, kept)

    return review_pages(
        reception.behind.desk,
        visitors,
        foresight,
        origin=origin_of(reception.behind.plan.settings.base_url),
        words=(Refused, *HOUSE_WORDS),
        explain=explain,
        tell=reception.write_down,
    )


def _open_audit_pages(behind: Behind, visitors: Visitors | None, opened: AsyncExitStack) -> AuditPages:
    """The record's pages, which read it where this gateway writes it."""
    plan, audit = behind.plan, behind.plan.settings.audit
    chosen = audit.checkpoints
    place = Place(audit.file, plan.audit_database, chosen.file if chosen else None)
    key = plan.settings.secret(chosen.key_env, "audit.checkpoints.key_env") if chosen else ""
    room = Room(behind.desk, visitors, origin_of(plan.settings.base_url))
    pages = AuditPages(room, place, behind.sink, key=key)
    opened.push_async_callback(pages.close)
    return pages


def _open_sign_in(reception: Reception, opened: AsyncExitStack) -> SignIn | None:
    """Where people sign in, if they do."""
    behind = reception.behind
    plan, settings = behind.plan, behind.plan.settings
    if settings.sign_in is None:
        return None
    room = SignIn(
        plan.sign_in,
        plan.approvals,
        store=behind.store,
        tokens=behind.tokens,
        implications=behind.implications,
        sink=behind.sink,
        write_off=reception.write_off,
        keys=plan.seal_keys,
        public_url=settings.base_url,
        session_s=settings.sign_in.session_s,
        idle_s=settings.sign_in.idle_s,
        leeway_s=settings.identity.leeway_s,
    )
    opened.push_async_callback(room.close)
    return room
