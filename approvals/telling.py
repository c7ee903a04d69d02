"""What a webhook is told of a ticket, in whose words, and how a receiver knows that it is ours.

A message says where to look and never what the arguments are, but for those that the policy clears and nobody has
masked. Text of strangers is written so that it formats, mentions, links and hides nothing. Signed as Standard
Webhooks 1.0 has it: HMAC-SHA256 over `ID.TIMESTAMP.BODY`, one signature for each secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from approvals.masking import masked
from approvals.printing import plain
from approvals.showing import iso
from approvals.ticket import Ticket

EVENTS: Mapping[str, str] = {
    "new": "new",
    "approved": "decided",
    "denied": "decided",
    "revoked": "decided",
    "withdrawn": "decided",
    "expiring": "expiring",
}
"""What is told of a ticket, once each -> the name in a webhook's `events` that asks for it."""

HEADLINES: Mapping[str, str] = {
    "new": "An approval is asked for",
    "approved": "Approved",
    "denied": "Denied",
    "revoked": "Revoked",
    "withdrawn": "Withdrawn by its requester",
    "expiring": "Still undecided, and about to expire",
}

GRANT = ", as a grant for up to {} calls"

Format = Literal["json", "slack"]

MOST_CLEAR = 32
MOST_CLEAR_BYTES = 1024
MOST_TEXT = 256
TOO_LONG = "[too long]"
SECRET_BYTES = (24, 64)


@dataclass(frozen=True, slots=True)
class Hook:
    """A receiver. `id` names it in the store, in metrics and logs (its URL can be a secret, and is not held here)."""

    id: str
    events: frozenset[str]
    form: Format = "json"
    secrets: tuple[bytes, ...] = field(default=(), repr=False)

    def wants(self, event: str) -> bool:
        """Whether this receiver is told of an event of `EVENTS`."""
        return EVENTS[event] in self.events


def _as_it_is(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Told:
    """What all messages share: where tickets' pages lie, and what hides secrets in a text that is told."""

    page_url: str
    conceal: Callable[[str], str] = _as_it_is


def read_secrets(text: str) -> tuple[bytes, ...]:
    """Comma-separated secrets (`whsec_` and base64 of 24 to 64 bytes), the current one first. Raises `ValueError`."""
    secrets = []
    for number, part in enumerate(text.split(","), 1):
        try:
            secret = base64.b64decode(part.strip().removeprefix("whsec_"), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"secret {number} is not base64") from None
        if not SECRET_BYTES[0] <= len(secret) <= SECRET_BYTES[1]:
            raise ValueError(
                f"secret {number} has {len(secret)} bytes instead of {SECRET_BYTES[0]} to {SECRET_BYTES[1]}"
            )
        secrets.append(secret)
    return tuple(secrets)


def signed(secrets: Sequence[bytes], message_id: str, at: int, body: bytes) -> dict[str, str]:
    """The headers of one attempt at `at` (seconds since the epoch): id, timestamp, and a signature by each secret."""
    content = f"{message_id}.{at}.".encode("ascii") + body
    made = [base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode() for secret in secrets]
    headers = {"content-type": "application/json", "webhook-id": message_id, "webhook-timestamp": str(at)}
    return headers | ({"webhook-signature": " ".join(f"v1,{one}" for one in made)} if made else {})


def message(form: Format, event: str, ticket: Ticket, told: Told, now: float) -> bytes:
    """The body that tells of this event; `ticket` is as it stands after it, with its arguments."""
    return _slack(event, ticket, told) if form == "slack" else _json(event, ticket, told, now)


def concealed(value: Any, conceal: Callable[[str], str]) -> Any:
    """A value with every text in it, names as well, as `conceal` leaves it."""
    if isinstance(value, str):
        return conceal(value)
    if isinstance(value, Mapping):
        return {conceal(name): concealed(one, conceal) for name, one in value.items()}
    return [concealed(one, conceal) for one in value] if isinstance(value, list) else value


def _json(event: str, ticket: Ticket, told: Told, now: float) -> bytes:
    asked = ticket.asked
    data: dict[str, Any] = {
        "id": ticket.id,
        "state": ticket.state.value,
        "server": asked.server,
        "environment": asked.environment,
        "method": asked.method,
        "name": _name(ticket, told),
        "requester": {name: _cut(getattr(asked, name)) for name in ("issuer", "subject", "client")},
        "reasons": list(ticket.reasons),
        "uses": ticket.uses,
        "grant": asked.is_grant,
        "page": f"{told.page_url}/{ticket.id}",
        "createdAt": iso(ticket.created_at),
        "expiresAt": iso(ticket.expires_at),
        "clear": cleared(asked.arguments, ticket.clear, ticket.mask, told.conceal),
    }
    return orjson.dumps({"type": f"ticket.{event}", "timestamp": iso(now), "data": data})


def _slack(event: str, ticket: Ticket, told: Told) -> bytes:
    asked = ticket.asked
    where = _code(asked.server) + (f" ({_code(asked.environment)})" if asked.environment else "")
    by = f" by {_code(asked.client)}" if asked.client else ""
    lines = [
        f"{HEADLINES[event]}: {_code(_name(ticket, told))} on {where}"
        + (GRANT.format(ticket.uses) if asked.is_grant else ""),
        f"For {_code(asked.subject)}{by}",
        f"Why: {', '.join(map(_code, ticket.reasons)) or '-'}",
        f"Expires {iso(ticket.expires_at)}",
        f"<{_escaped(f'{told.page_url}/{ticket.id}')}>",
    ]
    return orjson.dumps({"text": "\n".join(lines), "unfurl_links": False, "unfurl_media": False})


def _code(text: str) -> str:
    """A stranger's text as a code span: in it nothing formats, mentions or links, and all that is there is seen."""
    return f"`{_escaped(plain(_cut(text)).replace('`', chr(92) + 'u{60}'))}`"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _name(ticket: Ticket, told: Told) -> str:
    """The tool's or prompt's name; a resource's URI without what can be secret in it."""
    name = ticket.asked.name
    if ticket.asked.method != "resources/read":
        return _cut(name)
    if name[:5].lower() == "data:":  # which is its own content
        return "data:…"
    path = name.split("?", 1)[0].split("#", 1)[0]
    scheme, mark, rest = path.partition("//")
    authority, slash, below = rest.partition("/")
    shown = f"{scheme}{mark}{authority.rpartition('@')[2]}{slash}{below}"
    shown = told.conceal(shown)
    return _cut(shown if path == name else f"{shown}?…")


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"


def cleared(
    arguments: Mapping[str, Any], clear: Sequence[str], mask: Sequence[str], conceal: Callable[[str], str]
) -> dict[str, Any]:
    """JSON pointer -> the value there, of the arguments that the policy clears; what it masks stays masked."""
    shown, _ = masked(arguments, mask)
    found: dict[str, Any] = {}
    for pointer in clear[:MOST_CLEAR]:
        value, there = _at(shown, pointer)
        if there:
            is_short = len(orjson.dumps(value)) <= MOST_CLEAR_BYTES
            found[pointer] = concealed(value, conceal) if is_short else TOO_LONG
    return found


def _at(value: Any, pointer: str) -> tuple[Any, bool]:
    for token in pointer.split("/")[1:]:
        step = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isascii() and step.isdigit() and str(int(step)) == step:
            if int(step) >= len(value):
                return None, False
            value = value[int(step)]
        else:
            return None, False
    return value, True
