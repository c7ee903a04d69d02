"""The control plane put together: metadata, approvals API, reviewer's pages, and where people sign in to them.

Each part is closed by the stack that it is opened on, and what people do here stands in the house's one record.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from approvals.desk import Desk
from approvals.review.pages import Room
from approvals.store import Store
from gateway.audit.place import Place
from gateway.audit.port import AuditSink
from gateway.contract.identity import Implications
from gateway.control import ControlDoor, add_metadata, metadata_documents, statement_documents, switch
from gateway.foresight import Foresight
from gateway.origins import origin_of
from gateway.pipeline import Corridor
from gateway.plan import Plan
from gateway.reception import Reception
from gateway.review_audit.room import AuditPages
from gateway.sign_in.room import SignIn
from gateway.tokens import Tokens

APPROVAL_BODY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Behind:
    """What of the house stands behind the control plane."""

    plan: Plan
    corridor: Corridor
    desk: Desk
    store: Store
    tokens: Tokens
    implications: Implications
    sink: AuditSink


def open_control(behind: Behind, opened: AsyncExitStack) -> ControlDoor:
    """The control plane behind its door."""
    plan, desk = behind.plan, behind.desk
    origin = plan.settings.base_url
    foresight = Foresight(behind.corridor, plan.servers)
    reception = Reception(behind.corridor, plan.approvals)
    api = reception.approvals_api(desk, foresight, min(plan.door.body_bytes, APPROVAL_BODY_BYTES))
    documents = metadata_documents(plan.servers.values(), plan.approvals)
    add_metadata(api, {**documents, **statement_documents(plan.statement_keys)})
    sign_in = _open_sign_in(behind, reception, opened)
    visitors = None if sign_in is None else sign_in.visitors
    pages = reception.review_pages(desk, foresight, visitors, origin)
    if sign_in is not None:
        sign_in.add_to(pages)
        _open_audit_pages(behind, Room(desk, visitors, origin_of(origin)), opened).add_to(pages)
    return ControlDoor(switch(pages, api), plan.hosts, reception.turn_away)


def _open_audit_pages(behind: Behind, room: Room, opened: AsyncExitStack) -> AuditPages:
    """The record's pages, which read it where this gateway writes it."""
    plan, audit = behind.plan, behind.plan.settings.audit
    chosen = audit.checkpoints
    place = Place(audit.file, plan.audit_database, chosen.file if chosen else None)
    key = plan.settings.secret(chosen.key_env, "audit.checkpoints.key_env") if chosen else ""
    pages = AuditPages(room, place, behind.sink, key=key)
    opened.push_async_callback(pages.close)
    return pages


def _open_sign_in(behind: Behind, reception: Reception, opened: AsyncExitStack) -> SignIn | None:
    """Where people sign in, if they do."""
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
