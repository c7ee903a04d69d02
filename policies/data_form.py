"""The form of the shipped rules' `data.json`: what is no member, of no use, or can never hold, each with its place.

The rules themselves are strict, and deny what they can't read (bundle/mcp/authz/authz.rego); here it is told before a
caller is denied. Everything is looked at from the data alone; docs/policy.md explains each member.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from policies.forms import (
    At,
    Check,
    Fault,
    among,
    clean_then,
    each_of,
    is_number,
    is_text,
    list_of,
    matches,
    object_of,
    one_that,
    rows_of,
    up_to,
)
from policies.verdict import MAX_COUNT, MAX_MIN_APPROVERS, MAX_TTL_S, MAX_USES

SECTIONS: Final = ("tools", "prompts", "resources", "methods")
CALLED: Final = ("tools", "prompts")
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)*\Z", re.DOTALL)
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}\Z")
_NAME = re.compile(r"[a-z0-9_.-]{1,64}\Z")
_CLOCK = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]\Z|24:00\Z")
_PATH = re.compile(r"[A-Za-z0-9._~/ @+=,()-]*\Z")


def find_faults(data: Any) -> Iterator[Fault]:
    """All that is wrong with a `data.json` by itself; each mistake once, where it was made."""
    yield from object_of({"servers": each_of(_server)})(At(), data)


_text = one_that(is_text, "a text")
_truth = one_that(lambda value: isinstance(value, bool), "true or false")
_number = one_that(is_number, "a number")
_texts = list_of(is_text, "texts", least=1)
_scopes = list_of(matches(_SCOPE), "one scope each (no blank within)")
_pointers = list_of(matches(_POINTER), "JSON pointers, each beginning with /")


def _usable_window(at: At, window: dict[str, Any]) -> Iterator[Fault]:
    first, last = window.get("first_day", "0001-01-01"), window.get("last_day", "9999-12-31")
    if last < first:
        yield (at / "last_day").fault("is before first_day: the window is never open", "put a later day")
    if window.get("from", "00:00") == window.get("until", "24:00"):
        yield at.fault("begins when it ends: the window is never open", "leave both out for the whole day")


def _is_day(value: Any) -> bool:
    try:
        return isinstance(value, str) and len(value) == 10 and bool(date.fromisoformat(value))
    except ValueError:
        return False


def _is_zone(value: Any) -> bool:
    """Whether the engines know the zone; where this machine has no zones to look it up, any name may be one."""
    return isinstance(value, str) and (_has_zone(value) or not _has_zone("Europe/Berlin"))


def _has_zone(name: str) -> bool:
    try:
        return bool(ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False


_window = clean_then(
    object_of(
        {
            "description": _text,
            "days": list_of(lambda day: day in DAYS, f"days, of {' '.join(DAYS)}", least=1),
            "from": one_that(matches(_CLOCK), "HH:MM"),
            "until": one_that(matches(_CLOCK), "HH:MM"),
            "first_day": one_that(_is_day, "YYYY-MM-DD"),
            "last_day": one_that(_is_day, "YYYY-MM-DD"),
            "zone": one_that(_is_zone, "a time zone's name (Europe/Berlin)"),
        }
    ),
    _usable_window,
)


_budget = object_of(
    {
        "description": _text,
        "count": up_to(MAX_COUNT),
        "window_s": up_to(MAX_TTL_S),
        "per": among("subject", "client", "tenant", "all"),
    },
    ("count", "window_s"),
)


def _budgets(at: At, value: Any) -> Iterator[Fault]:
    yield from each_of(_budget)(at, value)
    for name in value if isinstance(value, dict) else ():
        if not _NAME.match(name):
            yield (at / name).fault("is no budget's name", "use a-z, 0-9, _ . - only, at most 64 of them")


def _usable_rule(at: At, rule: dict[str, Any]) -> Iterator[Fault]:
    if rule.get("at_least", 0) > rule.get("at_most", rule.get("at_least", 0)):
        yield (at / "at_least").fault("is above at_most: no number fits", "swap them")
    for place, prefix in enumerate(rule.get("within", ())):
        parts = prefix.removeprefix("/").removesuffix("/").split("/")
        if not prefix.endswith("/"):
            yield (at / "within" / place).fault("does not end with /: nothing lies in it", f"write {prefix + '/'!r}")
        elif not _PATH.match(prefix) or (prefix != "/" and any(part.strip(". ") == "" for part in parts)):
            yield (at / "within" / place).fault(
                "is no plain path: no path that is accepted lies in it", "write it out"
            )
    texts = {"within", "sql"} & rule.keys()
    if texts and {"at_least", "at_most"} & rule.keys():
        yield at.fault("wants a number that is a text: nothing fits", f"leave out {' and '.join(sorted(texts))}")


_rule = clean_then(
    object_of(
        {
            "description": _text,
            "optional": _truth,
            "each": _truth,
            "one_of": list_of(lambda _: True, "values", least=1),
            "within": list_of(is_text, "folders", least=1),
            "sql": among("read_only"),
            "at_least": _number,
            "at_most": _number,
        }
    ),
    _usable_rule,
)


def _arguments(at: At, value: Any) -> Iterator[Fault]:
    yield from each_of(_rule)(at, value)
    for pointer in value if isinstance(value, dict) else ():
        if not pointer.startswith("/") or not _POINTER.match(pointer):
            yield (at / pointer).fault("is no JSON pointer to an argument", f"write {'/' + pointer.lstrip('/')!r}")


_step = object_of(
    {
        "argument": one_that(lambda one: matches(_POINTER)(one) and one != "", "a JSON pointer: /amount"),
        "above": _number,
        "min_approvers": up_to(MAX_MIN_APPROVERS),
    },
    ("argument", "above", "min_approvers"),
)
_grant = object_of(
    {
        "schema": one_that(lambda schema: isinstance(schema, dict), "a JSON Schema, an object"),
        "uses": up_to(MAX_USES),
        "ttl_s": up_to(MAX_TTL_S),
    },
    ("schema", "uses", "ttl_s"),
)


def _usable_approval(at: At, approval: dict[str, Any]) -> Iterator[Fault]:
    if approval.get("needed", True) is False:
        for name in approval.keys() - {"needed"}:
            yield (at / name).fault("is never read: needed is false", f"leave out {name!r}, or needed")
        return
    if not approval.get("approvers"):
        yield at.fault("names nobody who may approve: what it gates is denied", "add 'approvers'")
        return
    least = approval.get("min_approvers", 1)
    for place, step in enumerate(approval.get("steps", ())):
        if step["min_approvers"] <= least:
            yield (at / "steps" / place).fault(
                f"needs no more than min_approvers, {least}: it changes nothing", "raise it"
            )
    people = set(approval["approvers"])
    if all(one.startswith("user:") for one in people) and least > len(people):
        yield (at / "min_approvers").fault(
            f"is more than the {len(people)} who may approve", "lower it, or name more"
        )


_approval = clean_then(
    object_of(
        {
            "needed": _truth,
            "approvers": list_of(matches(re.compile(r"(?:user|group|scope):.")), "user:…, group:… or scope:…"),
            "min_approvers": up_to(MAX_MIN_APPROVERS),
            "uses": up_to(MAX_USES),
            "ttl_s": up_to(MAX_TTL_S),
            "answers": among("covered", "again"),
            "grant": _grant,
            "steps": rows_of(_step, "steps"),
        }
    ),
    _usable_approval,
)

_both: dict[str, Check] = {
    "description": _text,
    "scopes": _scopes,
    "environments": _texts,
    "tenants": _texts,
    "hours": rows_of(_window, "windows", least=1),
}
_plain: dict[str, Check] = _both | {
    "effect": among("read", "write"),
    "approval": _approval,
    "clear": _pointers,
    "mask": _pointers,
    "disclose": _truth,
}
_called: dict[str, Check] = _plain | {"arguments": _arguments, "budgets": _budgets}


def _usable_entry(section: str) -> Check:
    def check(at: At, entry: dict[str, Any]) -> Iterator[Fault]:
        effect = entry.get("effect", "write" if section == "tools" else "read")
        approval = entry.get("approval")
        if effect == "write" and approval is None:
            yield at.fault(
                "changes something and does not say whether a person approves it: it is denied",
                'add "approval", or {"needed": false} to it, or "effect": "read"',
            )
        if section == "methods" and approval is not None and approval.get("needed", True):
            yield (at / "approval").fault("can't be: a method has no approval, and is denied", "leave it out")
        rules = entry.get("arguments", {})
        for place, step in enumerate((approval or {}).get("steps", ())):
            most = rules.get(step["argument"], {}).get("at_most")
            if most is not None and step["above"] >= most:
                where = at / "approval" / "steps" / place
                yield where.fault(f"never applies: the argument is at most {most}", "lower above, or leave it out")

    return check


def _entry(section: str) -> Check:
    check = clean_then(object_of(_called if section in CALLED else _plain), _usable_entry(section))

    def closed_or(at: At, value: Any) -> Iterator[Fault]:
        if value is not False:
            yield from check(at, value)

    return closed_or


_server = object_of(_both | {"budgets": _budgets} | {section: each_of(_entry(section)) for section in SECTIONS})
