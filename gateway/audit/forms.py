"""A record in the forms of others: a row of a spreadsheet, an event of the Open Cybersecurity Schema Framework.

Nothing is added to what the record holds. A cell never acts as a formula; an event is OCSF 1.8.0 "API Activity"
(class 6003), with what it has no attribute for under `unmapped`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import orjson

from gateway.contract.printable import printable

OCSF_VERSION: Final = "1.8.0"
_COLUMNS: Final = (
    "time", "writer", "seq", "kind", "decision_id", "request_id", "trace_id", "server", "resource", "environment",
    "replica", "method", "name", "verdict", "policy_revision", "ticket", "status", "code", "latency_ms",
    "outcome", "transition", "by", "act", "count", "detail",
)  # fmt: skip
_SHARED: Final = ("first", "last", "actors")
"""What only the record of a flood's refusals says: when they came, and of how many callers where of several."""

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_INSIDE: Final = re.compile(r'(?<=[;,|])([ "]*)(?=[=+\-@＝＋－＠])')
"""Where a cell would begin if the spreadsheet's locale separates with something else than we do."""


def head_of_csv() -> bytes:
    """The row of the columns' names."""
    return _row([*_COLUMNS, "issuer", "subject", "client", "reasons", "arguments", "hash", *_SHARED])


def as_csv(record: Mapping[str, Any]) -> bytes:
    """The record as a row; a text that a spreadsheet would take for a formula gets an apostrophe in front."""
    cells: list[Any] = [record.get(name) for name in _COLUMNS]
    cells += [_of(record, "actor", name) for name in ("issuer", "subject", "client")]
    reasons = record.get("reasons")
    cells.append("; ".join(map(str, reasons)) if isinstance(reasons, list) else None)
    cells += [record.get("arguments"), record.get("hash"), *(record.get(name) for name in _SHARED)]
    return _row(cells)


def _row(cells: list[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\r\n").writerow(map(_cell, cells))
    return text.getvalue().encode("utf-8")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return str(value)  # a number of our own is one: it can't call anything
    text = value if isinstance(value, str) else orjson.dumps(value).decode("utf-8")
    # Spaces in front are trimmed by some programs before they look.
    shown = printable(text, 16_384)
    shown = _INSIDE.sub(r"\1'", shown)
    return f"'{shown}" if text.lstrip(" ").startswith(_FORMULA) else shown


def as_ocsf(record: Mapping[str, Any], version: str) -> bytes:
    """The record as an OCSF event, one line. `version` is the gateway's."""
    activity = _ACTIVITIES.get(str(record.get("method")), 99)
    status = _status(record)
    reasons = record.get("reasons")
    event = {
        "category_uid": 6,
        "class_uid": 6003,
        "activity_id": activity,
        **({"activity_name": _text(record, "method") or _text(record, "act") or "other"} if activity == 99 else {}),
        "type_uid": 600_300 + activity,
        "severity_id": 2 if status == 2 else 1,
        "time": _millis(record.get("time")),
        "status_id": status,
        "status_code": str(record["code"] or "") if record.get("code") else None,
        "status_detail": "; ".join(map(str, reasons)) if isinstance(reasons, list) and reasons else None,
        "message": " ".join(filter(None, (_text(record, "kind"), _text(record, "method"), _text(record, "name")))),
        "start_time": _millis(record["first"]) if record.get("first") else None,
        "end_time": _millis(record["last"]) if record.get("last") else None,
        "count": record.get("count") if isinstance(record.get("count"), int) else None,
        "duration": _whole(record.get("latency_ms")),
        "metadata": {
            "version": OCSF_VERSION,
            "product": {"name": "Ostiary", "vendor_name": "Ostiary", "version": version},
            "uid": f"{record.get('writer')}-{record.get('seq')}",
            "sequence": record.get("seq"),
            "correlation_uid": record.get("decision_id"),
            "event_code": record.get("kind"),
            "original_time": record.get("time"),
            "log_name": "audit",
        },
        "actor": _actor(record),
        "api": {
            "operation": _text(record, "method") or _text(record, "act") or str(record.get("kind")),
            "service": {"name": _text(record, "server"), "uid": _text(record, "resource")},
            "request": {"uid": str(record.get("decision_id") or f"{record.get('writer')}-{record.get('seq')}")},
            "response": {"code": record["status"]} if isinstance(record.get("status"), int) else None,
        },
        # The record holds no address of the caller: the client that acted is all that is known of where it came from.
        "src_endpoint": {"svc_name": _of(record, "actor", "client") or "unknown"},
        "dst_endpoint": {"svc_name": _text(record, "server")} if record.get("server") else None,
        "resources": [{"name": _text(record, "name"), "type": "mcp"}] if record.get("name") else None,
        "unmapped": {name: value for name, value in record.items() if name not in _MAPPED and value is not None},
    }
    return orjson.dumps(_without_nothing(event)) + b"\n"


_ACTIVITIES: Final[Mapping[str, int]] = {
    "resources/read": 2,
    "resources/list": 2,
    "resources/templates/list": 2,
    "tools/list": 2,
    "prompts/get": 2,
    "prompts/list": 2,
    "server/discover": 2,
    "tasks/get": 2,
    "tasks/update": 3,
    "tasks/cancel": 4,
}
"""Methods whose effect is known; a tool's is not, so a call is `Other`."""

_MAPPED: Final = frozenset(
    {
        *("time", "status", "code", "count", "latency_ms", "seq", "writer", "decision_id", "kind", "actor", "method"),
        *("act", "server", "resource", "name", "reasons", "first", "last"),
    }
)


def _actor(record: Mapping[str, Any]) -> dict[str, Any]:
    decision = {"allow": "Allow", "deny": "Deny", "approve": "Approval required"}.get(str(record.get("verdict")))
    revision = _text(record, "policy_revision")
    policy = {"name": "mcp.authz", "version": revision} if revision else None
    return {
        "user": {"uid": _of(record, "actor", "subject") or "unknown"},
        "app_uid": _of(record, "actor", "client"),
        "idp": {"issuer": _of(record, "actor", "issuer"), "name": _of(record, "actor", "issuer")},
        "authorizations": [{"decision": decision, "policy": policy}] if decision else None,
    }


def _status(record: Mapping[str, Any]) -> int:
    """1 success, 2 failure, 0 unknown, as OCSF counts them."""
    kind, outcome = record.get("kind"), record.get("outcome")
    if kind == "refusal" or outcome in ("tool_error", "rpc_error", "failed", "cancelled"):
        return 2
    return 0 if outcome == "unknown" or (kind == "outcome" and not outcome) else 1


def _millis(time: Any) -> int:
    try:
        return round(datetime.fromisoformat(time).timestamp() * 1000)
    except (TypeError, ValueError):
        return 0


def _whole(value: Any) -> int | None:
    """A number without its fraction; None for what OCSF's integers can't hold."""
    return round(value) if isinstance(value, (int, float)) and abs(value) < 2**53 else None


def _of(record: Mapping[str, Any], member: str, name: str) -> str | None:
    inner = record.get(member)
    found = inner.get(name) if isinstance(inner, dict) else None
    return found if isinstance(found, str) and found else None


def _text(record: Mapping[str, Any], name: str) -> str | None:
    found = record.get(name)
    return found if isinstance(found, str) and found else None


def _without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: _without_nothing(item) for name, item in value.items()}
        return {name: item for name, item in kept.items() if item is not None and item not in ({}, [])}
    return [_without_nothing(item) for item in value] if isinstance(value, list) else value
