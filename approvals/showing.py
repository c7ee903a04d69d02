"""What a person is shown of a ticket: masked for everyone, as JSON, with the digest of exactly that.

The digest is keyed (a record of it confirms no guess at a value) and covers every other member, so a decision that
names it was made on what the ticket is now. Arguments leave this room towards people through here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson

from approvals.masking import masked, masked_meta, masked_vary
from approvals.ticket import Asked, State, Ticket
from approvals.vault import Vault


def iso(at: float) -> str:
    """Seconds since the epoch -> `2026-07-28T12:00:00.000Z`."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def standing(ticket: Ticket, now: float) -> Ticket:
    """The ticket as it stands at `now`: expiry needs nobody to write it down first."""
    waits = ticket.state is State.PENDING or (ticket.state is State.APPROVED and ticket.uses_left > 0)
    return replace(ticket, state=State.EXPIRED) if waits and ticket.expires_at <= now else ticket


def show(ticket: Ticket, vault: Vault, page_url: str, now: float) -> dict[str, Any]:
    """Ticket -> its JSON (docs/approvals.md). `earlier` is other tickets' history and not part of `digest`."""
    shown = _shown(ticket, page_url, now)
    return {**shown, "earlier": [_dated(one) for one in ticket.earlier], "digest": vault.stamp(_spelled(shown))}


def justifications(ticket: Ticket) -> list[str]:
    """What the requester said when asking and since then, in order: nothing of it is ever taken back."""
    added = [str(one["comment"]) for one in ticket.decisions if one["verb"] == "justify"]
    return [text for text in (ticket.justification, *added) if text]


def line(ticket: Ticket, agreed: int, now: float, *, unknown: bool = False) -> dict[str, Any]:
    """Ticket -> what a queue says of it: nothing that was sealed, so no arguments; `agreed` approvals count.

    `unknown`: nobody knows how a call of it ended, and nobody has looked into it.
    """
    ticket, asked = standing(ticket, now), ticket.asked
    return {
        "id": ticket.id,
        "state": ticket.state.value,
        "server": asked.server,
        "environment": asked.environment,
        "method": asked.method,
        "name": asked.name,
        "requester": _requester(asked),
        "grant": asked.is_grant,
        "agreed": agreed,
        "unknown": unknown,
        "min_approvers": ticket.min_approvers,
        "createdAt": iso(ticket.created_at),
        "expiresAt": iso(ticket.expires_at),
    }


def is_what_stands(ticket: Ticket, seen: str, vault: Vault, page_url: str, now: float) -> bool:
    """Whether `seen` is the digest of what this ticket shows now."""
    return vault.stamped(_spelled(_shown(ticket, page_url, now)), seen)


def _spelled(shown: Mapping[str, Any]) -> bytes:
    return orjson.dumps(shown, option=orjson.OPT_SORT_KEYS)


def _shown(ticket: Ticket, page_url: str, now: float) -> dict[str, Any]:
    ticket, asked = standing(ticket, now), ticket.asked
    arguments, met = masked(asked.arguments, ticket.mask)
    meta, met_there = masked_meta(asked.shown_meta, ticket.mask)
    return {
        "id": ticket.id,
        "state": ticket.state.value,
        "server": asked.server,
        "resource": asked.resource,
        "environment": asked.environment,
        "method": asked.method,
        "name": asked.name,
        "arguments": arguments,
        "masked": list(dict.fromkeys((*met, *met_there))),
        "meta": meta,
        "requester": _requester(asked),
        "tool": asked.tool,
        "justification": "\n\n".join(justifications(ticket)),
        "reasons": list(ticket.reasons),
        "approvers": list(ticket.approvers),
        "min_approvers": ticket.min_approvers,
        "decisions": [_dated(one) for one in ticket.decisions],
        "uses": ticket.uses,
        "uses_left": ticket.uses_left,
        "runs": [_dated(one) for one in ticket.runs],
        "tool_digest": asked.tool_digest,
        "page": f"{page_url}/{ticket.id}",
        "createdAt": iso(ticket.created_at),
        "expiresAt": iso(ticket.expires_at),
        **({"vary": masked_vary(asked.vary, ticket.mask)} if asked.vary is not None else {}),
    }


def _requester(asked: Asked) -> dict[str, str]:
    requester = {"issuer": asked.issuer, "subject": asked.subject, "client": asked.client}
    return requester | {"tenant": asked.tenant} if asked.tenant else requester


def _dated(one: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, "at": iso(one["at"])}
