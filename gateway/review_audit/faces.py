"""A record as a page shows it: every member a text whatever it holds, what was redacted with the reason why.

Nothing of a record is trusted: its file may have been written by anybody. Texts leave as they are and are made plain
by the templates (approvals/review/plainly.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from gateway.audit.story import Record, reason_of
from gateway.contract.chain import read_line

_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")
MOST_LEAVES: Final = 100
_FACTS: Final[Mapping[str, str]] = {
    "server": "Server",
    "resource": "Resource",
    "environment": "Environment",
    "replica": "Replica",
    "method": "Method",
    "name": "Name",
    "verdict": "The policy said",
    "policy_revision": "Policy revision",
    "status": "HTTP status",
    "code": "Error code",
    "latency_ms": "Took, ms",
    "outcome": "Outcome",
    "request_id": "Request id",
    "trace_id": "Trace",
    "upstream_revision": "Server's revision",
    "legacy": "Client's revision",
    "quirks": "Tolerated",
    "challenge": "Told by",
    "leg": "Leg",
    "idempotency_key": "Idempotency key",
    "replay_of": "Outcome of",
    "task": "Task",
}
_MOVES: Final[Mapping[str, str]] = {
    "request": "asked for",
    "approve": "approved",
    "deny": "denied",
    "revoke": "revoked",
    "withdraw": "withdrawn",
    "justify": "justified",
    "resolve": "looked into",
    "expire": "expired",
}
_LOOKS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("allowed", "approved", "executed", "answered", "replayed"), "good"),
    **dict.fromkeys(("held", "asked for", "input_required", "task"), "wait"),
    **dict.fromkeys(("refused", "denied", "revoked", "failed", "unknown", "rpc_error", "tool_error"), "bad"),
}
"""What happened -> how it is coloured."""


@dataclass(frozen=True, slots=True)
class Line:
    """A record in the timeline. `what` happened is one or two words, `look` how they are coloured.

    `facts` are an administrator's act's, as (name, value).
    """

    time: str
    kind: str
    what: str
    look: str
    who: str
    issuer: str
    method: str
    name: str
    server: str
    reasons: Sequence[str]
    decision: str
    ticket: str
    count: int
    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One argument in the record: its pointer, what is known of it, its value (None: not in clear), and why so."""

    pointer: str
    known: str
    value: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Link:
    """A record's place in its chain. `fault` says what is wrong with its own content (`""`: it matches its hash)."""

    kind: str
    writer: str
    seq: str
    hash: str
    prev: str
    fault: str
    raw: str


def text(record: Record, name: str) -> str:
    """A member as a text, `""` where there is nothing."""
    return _text(record.get(name))


def when(moment: str) -> str:
    """A record's time if it is one, else `""`."""
    try:
        datetime.fromisoformat(moment)
    except ValueError:
        return ""
    return moment


def _text(value: Any) -> str:
    if value is None or value == []:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(map(_text, value[:64]))
    return orjson.dumps(value).decode()


def line_of(record: Record) -> Line:
    """-> what the timeline shows."""
    actor = record.get("actor")
    whom = actor if isinstance(actor, dict) else {}
    who, issuer = _text(whom.get("subject")), _text(whom.get("issuer"))
    if not issuer and "|" in who:  # whoever did something with a session: their issuer's URL holds no bar
        issuer, _, who = who.partition("|")
    what = _what(record)
    facts = record.get("facts")
    reasons = record.get("reasons")
    count = record.get("count")
    return Line(
        time=when(text(record, "time")),
        kind=text(record, "kind"),
        what=what,
        look=_LOOKS.get(what, "off"),
        who=who,
        issuer=issuer,
        method=text(record, "method"),
        name=text(record, "name"),
        server=text(record, "server"),
        reasons=[_text(one) for one in reasons[:16]] if isinstance(reasons, list) else [],
        decision=_id(record, "decision_id"),
        ticket=_id(record, "ticket"),
        count=count if type(count) is int else 1,
        facts=[(str(name), _text(value)) for name, value in list(facts.items())[:24]]
        if isinstance(facts, dict)
        else [],
    )


def _id(record: Record, name: str) -> str:
    """An id that an address may hold, else `""`."""
    told = text(record, name)
    return told if _ID.fullmatch(told) else ""


def _what(record: Record) -> str:
    match record.get("kind"):
        case "decision":
            return "approved" if record.get("verdict") == "approve" else "allowed"
        case "refusal":
            return "held" if reason_of(record) == "approval_required" else "refused"
        case "outcome":
            return text(record, "outcome")
        case "approval":
            moved = text(record, "transition")
            return _MOVES.get(moved, moved)
        case _:
            return text(record, "act")


def facts_of(records: Sequence[Record]) -> list[tuple[str, str]]:
    """(label, text) of one request's records: of each member what was last said of it."""
    told: dict[str, str] = {}
    for record in records:
        told |= {name: value for name in _FACTS if (value := text(record, name))}
    return [(label, told[name]) for name, label in _FACTS.items() if name in told]


def leaves_of(records: Sequence[Record]) -> list[Leaf] | None:
    """What the record holds of the request's arguments, and why not more; None where it holds nothing of them."""
    shape = next((record["arguments"] for record in records if isinstance(record.get("arguments"), dict)), None)
    if shape is None:
        return None
    return [_leaf(str(pointer), leaf) for pointer, leaf in list(shape.items())[:MOST_LEAVES]]


def _leaf(pointer: str, leaf: Any) -> Leaf:
    told = leaf if isinstance(leaf, dict) else {}
    size = told.get("size")
    unit = {"string": "characters", "object": "members", "array": "items"}.get(str(told.get("type")), "")
    known = (
        f"{_text(told.get('type'))}, {_text(size)} {unit}".strip() if size is not None else _text(told.get("type"))
    )
    masked = told.get("masked")
    if masked:
        why = f"the policy shows it; what looks like a secret was masked ({_text(masked)})"
    elif "value" in told:
        why = "the policy names it as clear"
    elif not pointer:
        why = "too many values to list: one keyed HMAC for all of them"
    elif told.get("type") == "null":
        why = "there is nothing to hide"
    else:
        why = "shape only: the policy does not name it as clear, or masks it"
    if "/#" in pointer:
        why += "; a name behind # is declared by no schema, so it is a caller's data and a keyed HMAC stands for it"
    return Leaf(pointer, known, _text(told["value"]) if "value" in told else None, why)


def link_of(record: Record, line: bytes | None) -> Link:
    """-> where it stands, its own content judged anew. What is around it is for `ostiary audit verify`."""
    raw = b"" if line is None else line
    fault = read_line(raw)[1] if raw else "its line is not here"
    names = ("kind", "writer", "seq", "hash", "prev")
    kind, writer, seq, digest, prev = (text(record, name) for name in names)
    return Link(kind, writer, seq, digest, prev, fault, raw.decode("utf-8", "replace").rstrip("\n"))
