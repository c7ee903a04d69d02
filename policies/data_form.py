"""The form of the shipped rules' `data.json`: what is no member, of no use, or can never hold, each with its place.

The rules themselves are strict, and deny what they can't read (bundle/mcp/authz/authz.rego); here it is told before a
caller is denied. Everything is looked at from the data alone; docs/policy.md explains each member.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from policies.verdict import MAX_COUNT, MAX_MIN_APPROVERS, MAX_TTL_S, MAX_USES

SECTIONS: Final = ("tools", "prompts", "resources", "methods")
CALLED: Final = ("tools", "prompts")
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)*\Z", re.DOTALL)
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}\Z")
_NAME = re.compile(r"[a-z0-9_.-]{1,64}\Z")
_CLOCK = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]\Z|24:00\Z")
_PATH = re.compile(r"[A-Za-z0-9._~/ @+=,()-]*\Z")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong at `pointer` (RFC 6901, into `data.json`), and how to mend it."""

    pointer: str
    what: str
    mend: str


class At:
    """A place in the data."""

    def __init__(self, *steps: str | int) -> None:
        self.steps = steps

    def __truediv__(self, step: str | int) -> At:
        return At(*self.steps, step)

    def fault(self, what: str, mend: str) -> Fault:
        """A fault here."""
        return Fault("".join("/" + str(s).replace("~", "~0").replace("/", "~1") for s in self.steps), what, mend)


Check = Callable[[At, Any], Iterator[Fault]]


def find_faults(data: Any) -> Iterator[Fault]:
    """All that is wrong with a `data.json` by itself; each mistake once, where it was made."""
    yield from _object({"servers": _each(_server)})(At(), data)


# ------------------------------------------------------------------ forms


def _object(members: Mapping[str, Check], needed: Sequence[str] = ()) -> Check:
    def check(at: At, value: Any) -> Iterator[Fault]:
        if not isinstance(value, dict):
            yield at.fault("is not an object", "write { … }")
            return
        for name, found in value.items():
            if name in members:
                yield from members[name](at / name, found)
            else:
                close = get_close_matches(name, members, 1, 0.6)
                mend = f"write {close[0]!r}" if close else f"one of {', '.join(members)}, or nothing"
                yield (at / name).fault("is no member that the rules know: what has it is denied", mend)
        for name in needed:
            if name not in value:
                yield at.fault(f"has no {name!r}", f"add {name!r}")

    return check


def _each(check: Check) -> Check:
    def each(at: At, value: Any) -> Iterator[Fault]:
        if not isinstance(value, dict):
            yield at.fault("is not an object", "write { … }")
            return
        for name, one in value.items():
            yield from check(at / name, one)

    return each


def _list(is_one: Callable[[Any], bool], form: str, *, least: int = 0) -> Check:
    def check(at: At, value: Any) -> Iterator[Fault]:
        if not isinstance(value, list):
            yield at.fault("is not a list", f"write [ … ], {form}")
            return
        if len(value) < least:
            yield at.fault("is empty, so nothing ever fits it", f"name {form}, or leave it out")
        for place, one in enumerate(value):
            if not is_one(one):
                yield (at / place).fault(f"is not {form}", f"write {form}")

    return check


def _one(is_one: Callable[[Any], bool], form: str) -> Check:
    def check(at: At, value: Any) -> Iterator[Fault]:
        if not is_one(value):
            yield at.fault(f"is not {form}", f"write {form}")

    return check


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.match(value) is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _up_to(most: int) -> Check:
    return _one(lambda value: type(value) is int and 1 <= value <= most, f"an integer from 1 to {most}")


def _among(*words: Any) -> Check:
    return _one(lambda value: any(type(value) is type(word) and value == word for word in words), f"one of {words}")


_text = _one(_is_text, "a text")
_truth = _one(lambda value: isinstance(value, bool), "true or false")
_number = _one(_is_number, "a number")
_texts = _list(_is_text, "texts", least=1)
_scopes = _list(_matches(_SCOPE), "one scope each (no blank within)")
_pointers = _list(_matches(_POINTER), "JSON pointers, each beginning with /")


# ------------------------------------------------------------------ parts


def _clean(check: Check, then: Check) -> Check:
    """`then`, only where `check` finds nothing: one mistake is told once."""

    def both(at: At, value: Any) -> Iterator[Fault]:
        found = list(check(at, value))
        yield from found or then(at, value)

    return both


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


_window = _clean(
    _object(
        {
            "description": _text,
            "days": _list(lambda day: day in DAYS, f"days, of {' '.join(DAYS)}", least=1),
            "from": _one(_matches(_CLOCK), "HH:MM"),
            "until": _one(_matches(_CLOCK), "HH:MM"),
            "first_day": _one(_is_day, "YYYY-MM-DD"),
            "last_day": _one(_is_day, "YYYY-MM-DD"),
            "zone": _one(_is_zone, "a time zone's name (Europe/Berlin)"),
        }
    ),
    _usable_window,
)


def _hours(at: At, value: Any) -> Iterator[Fault]:
    yield from _list(lambda one: isinstance(one, dict), "windows", least=1)(at, value)
    for place, one in enumerate(value if isinstance(value, list) else ()):
        if isinstance(one, dict):
            yield from _window(at / place, one)


_budget = _object(
    {
        "description": _text,
        "count": _up_to(MAX_COUNT),
        "window_s": _up_to(MAX_TTL_S),
        "per": _among("subject", "client", "tenant", "all"),
    },
    ("count", "window_s"),
)


def _budgets(at: At, value: Any) -> Iterator[Fault]:
    yield from _each(_budget)(at, value)
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


_rule = _clean(
    _object(
        {
            "description": _text,
            "optional": _truth,
            "each": _truth,
            "one_of": _list(lambda _: True, "values", least=1),
            "within": _list(_is_text, "folders", least=1),
            "sql": _among("read_only"),
            "at_least": _number,
            "at_most": _number,
        }
    ),
    _usable_rule,
)


def _arguments(at: At, value: Any) -> Iterator[Fault]:
    yield from _each(_rule)(at, value)
    for pointer in value if isinstance(value, dict) else ():
        if not pointer.startswith("/") or not _POINTER.match(pointer):
            yield (at / pointer).fault("is no JSON pointer to an argument", f"write {'/' + pointer.lstrip('/')!r}")


_step = _object(
    {
        "argument": _one(lambda one: _matches(_POINTER)(one) and one != "", "a JSON pointer: /amount"),
        "above": _number,
        "min_approvers": _up_to(MAX_MIN_APPROVERS),
    },
    ("argument", "above", "min_approvers"),
)
_grant = _object(
    {
        "schema": _one(lambda schema: isinstance(schema, dict), "a JSON Schema, an object"),
        "uses": _up_to(MAX_USES),
        "ttl_s": _up_to(MAX_TTL_S),
    },
    ("schema", "uses", "ttl_s"),
)


def _steps(at: At, value: Any) -> Iterator[Fault]:
    yield from _list(lambda one: isinstance(one, dict), "steps")(at, value)
    for place, one in enumerate(value if isinstance(value, list) else ()):
        if isinstance(one, dict):
            yield from _step(at / place, one)


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


_approval = _clean(
    _object(
        {
            "needed": _truth,
            "approvers": _list(_matches(re.compile(r"(?:user|group|scope):.")), "user:…, group:… or scope:…"),
            "min_approvers": _up_to(MAX_MIN_APPROVERS),
            "uses": _up_to(MAX_USES),
            "ttl_s": _up_to(MAX_TTL_S),
            "answers": _among("covered", "again"),
            "grant": _grant,
            "steps": _steps,
        }
    ),
    _usable_approval,
)

_both: dict[str, Check] = {
    "description": _text,
    "scopes": _scopes,
    "environments": _texts,
    "tenants": _texts,
    "hours": _hours,
}
_plain: dict[str, Check] = _both | {
    "effect": _among("read", "write"),
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
    check = _clean(_object(_called if section in CALLED else _plain), _usable_entry(section))

    def closed_or(at: At, value: Any) -> Iterator[Fault]:
        if value is not False:
            yield from check(at, value)

    return closed_or


_server = _object(_both | {"budgets": _budgets} | {section: _each(_entry(section)) for section in SECTIONS})
