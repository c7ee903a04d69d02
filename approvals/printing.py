"""Tickets in a terminal: what a stranger wrote can't move the cursor, hide text or turn it round."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import Any

GRANT = "not one call: up to {uses} calls of this tool, with any arguments that fit both schemas below (`vary`)"
INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def plain(text: str) -> str:
    """The text with every control, format, bidi or unassigned character as `\\u{HEX}`, and a backslash as two."""
    return "".join(
        "\\\\" if one == "\\" else f"\\u{{{ord(one):x}}}" if unicodedata.category(one) in INVISIBLE else one
        for one in text
    )


def paragraph(text: str) -> str:
    """`plain`, but for line feeds: each goes on below, set in, where it can't be taken for a line of ours."""
    return "\n  ".join(map(plain, text.split("\n")))


def as_json(value: Any) -> str:
    """JSON in ASCII alone: safe in a terminal, and exact."""
    return json.dumps(value, indent=2, ensure_ascii=True)


def line(ticket: Mapping[str, Any]) -> str:
    """A ticket in one line."""
    requester = ticket["requester"]
    return plain(
        f"{ticket['id']}  {ticket['state']:<9}  {ticket['server']}  {ticket['method']}  {ticket['name']}  "
        f"{requester['subject']}  expires {ticket['expiresAt']}"
        + ("  outcome unknown" if any(map(_is_unknown, ticket["runs"])) else "")
    )


def _is_unknown(run: Mapping[str, Any]) -> bool:
    return run["state"] == "unknown" and not run["resolved"]


def _says(run: Mapping[str, Any]) -> str:
    """What an unknown outcome means for whoever looks at it."""
    if _is_unknown(run):
        return ": nobody knows how it ended; it is not run again until somebody looked (`resolve` with --comment)"
    return ", set aside by a person who looked" if run["resolved"] else ""


def sheet(ticket: Mapping[str, Any]) -> str:
    """A ticket in full, one member a line; or what there is of it for whoever may act and not read."""
    if "requester" not in ticket:
        return "\n".join(f"{name:<10} {plain(str(value))}" for name, value in ticket.items())
    requester = ticket["requester"]
    rows = [
        ("ticket", ticket["id"]),
        ("state", ticket["state"]),
        ("server", f"{ticket['server']} ({ticket['environment'] or '-'}) {ticket['resource']}"),
        ("call", f"{ticket['method']} {ticket['name']}"),
        *([("grant", GRANT.format(**ticket))] if "vary" in ticket else []),
        ("requester", f"{requester['issuer']}|{requester['subject']} by {requester['client'] or '-'}"),
        *([("tenant", requester["tenant"])] if "tenant" in requester else []),
        ("because", ticket["justification"] or "-"),
        ("policy", ", ".join(ticket["reasons"]) or "-"),
        ("approvers", f"{ticket['min_approvers']} of {', '.join(ticket['approvers'])}"),
        ("uses left", f"{ticket['uses_left']} of {ticket['uses']}"),
        ("created", ticket["createdAt"]),
        ("expires", ticket["expiresAt"]),
        ("tool", ticket["tool_digest"] or "-"),
        ("digest", ticket["digest"]),
        ("page", ticket["page"]),
    ]
    rows += [
        ("decision", f"{one['verb']} by {one['by']} at {one['at']}: {one['comment'] or '-'}")
        for one in ticket["decisions"]
    ]
    rows += [("run", f"{one['state']} at {one['at']} (use {one['use']}){_says(one)}") for one in ticket["runs"]]
    rows += [("earlier", f"{one['state']} at {one['at']} ({one['ticket']})") for one in ticket["earlier"]]
    shown = [f"{name:<10} {plain(str(value))}" for name, value in rows]
    for name in ("arguments", "vary", "meta"):
        if ticket.get(name):
            text = json.dumps(ticket[name], indent=2, ensure_ascii=False)
            shown += [name, *(f"  {_visible(one)}" for one in text.split("\n"))]
    if ticket["masked"]:
        shown.append(f"{'masked':<10} {plain(', '.join(ticket['masked']))}")
    return "\n".join(shown)


def _visible(text: str) -> str:
    # JSON has its own backslashes; only what could not be seen is written out here.
    return "".join(f"\\u{{{ord(one):x}}}" if unicodedata.category(one) in INVISIBLE else one for one in text)
