"""What a policy answers, and the reader that refuses everything else.

A verdict is read strictly: an undefined result, an unknown member, a wrong type is `PolicyUnavailable`,
never an allow (requirements G6). `docs/policy.md`, "The answer", has the same rules in words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class PolicyUnavailable(Exception):  # noqa: N818 - the room's own word; only the house refuses
    """No well-formed verdict could be had: engine down, too slow, undefined, malformed. The text says which."""


UNVERSIONED = "unversioned"
"""The revision of an OPA whose policy came in no bundle, or in one without a revision."""


class Effect(StrEnum):
    """What the policy wants to happen."""

    ALLOW = "allow"
    APPROVE = "approve"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class ApprovalTerms:
    """What an approval must look like: how many uses, how long (seconds), by whom, by how many.

    `grant`: the JSON Schema that a grant's arguments must fit as well; `None` where no grant may be given.
    """

    uses: int = 1
    ttl_s: int = 3600
    approvers: tuple[str, ...] = ()
    min_approvers: int = 1
    grant: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `count` calls in `window_s` seconds, counted for each combination of what `per` names (see `PER`)."""

    name: str
    per: tuple[str, ...]
    count: int
    window_s: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision. `clear` and `mask` are JSON pointers into the arguments; `visible` holds ids (list phase).

    `any_arguments`: the bundle says that it decides the same for whatever arguments, at any time.
    """

    effect: Effect
    scopes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    disclose: bool = False
    approval: ApprovalTerms | None = None
    clear: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    any_arguments: bool = False
    revision: str = ""


MAX_USES = 1_000
MAX_TTL_S = 31 * 24 * 3600
MAX_MIN_APPROVERS = 32
MAX_GRANT_BYTES = 16_384
MAX_LIMITS = 16
MAX_COUNT = 1_000_000_000
PER = ("server", "subject", "client", "tenant", "name")

_EFFECTS = {effect.value: effect for effect in Effect}

# What one text of a list must look like, and how many there may be. `\Z`, not `$`: a trailing newline is no name.
_REASON = re.compile(r"[a-z0-9_.-]{1,64}\Z")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}\Z")  # RFC 6749 section 3.3, scope-token
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)*\Z", re.DOTALL)  # RFC 6901 section 3
_APPROVER = re.compile(r"(?:user|group|scope):[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]{0,510}[^\x00-\x20\x7f])?\Z")
_ANY = re.compile(r"", re.DOTALL)


def _fail(what: str) -> PolicyUnavailable:
    return PolicyUnavailable(f"the policy's answer is malformed: {what}")


def _texts(pattern: re.Pattern[str], form: str, most: int, longest: int) -> Callable[[str, Any], tuple[str, ...]]:
    """Make the reader of a member that is an array of texts of one form."""

    def read(member: str, value: Any) -> tuple[str, ...]:
        if type(value) is not list:
            raise _fail(f"`{member}` is not an array")
        if len(value) > most:
            raise _fail(f"`{member}` has more than {most} entries")
        for entry in value:
            # Never quote the entry: it may hold what the caller sent.
            if type(entry) is not str or len(entry) > longest or pattern.match(entry) is None:
                raise _fail(f"`{member}` holds an entry that is not {form}")
        return tuple(value)

    return read


def _truth(member: str, value: Any) -> bool:
    if type(value) is not bool:
        raise _fail(f"`{member}` is not a boolean")
    return value


def _count(most: int) -> Callable[[str, Any], int]:
    """Make the reader of a member that is an integer from 1 to `most`; `true` and `1.0` are none."""

    def read(member: str, value: Any) -> int:
        if type(value) is not int or not 1 <= value <= most:
            raise _fail(f"`{member}` is not an integer from 1 to {most}")
        return value

    return read


def _effect(member: str, value: Any) -> Effect:
    effect = _EFFECTS.get(value) if type(value) is str else None
    if effect is None:
        raise _fail(f"`{member}` is not one of {', '.join(_EFFECTS)}")
    return effect


def _terms(member: str, value: Any) -> ApprovalTerms:
    if type(value) is not dict:
        raise _fail(f"`{member}` is not an object")
    terms = ApprovalTerms(**{name: _read(_TERMS, f"{member}.", name, found) for name, found in value.items()})
    if not terms.approvers:
        raise _fail(f"`{member}.approvers` is missing or empty: nobody could approve")
    return terms


def _grant(member: str, value: Any) -> Mapping[str, Any]:
    """`{"schema": {…}}` -> the schema. Whether it is one, its user finds out: by a bad one nothing is granted."""
    if type(value) is not dict or value.keys() != {"schema"} or type(value["schema"]) is not dict:
        raise _fail(f"`{member}` is not an object with the one member `schema`, an object")
    schema: dict[str, Any] = value["schema"]
    try:
        size = len(json.dumps(schema))
    except RecursionError:
        raise _fail(f"`{member}.schema` is nested too deeply") from None
    if size > MAX_GRANT_BYTES:
        raise _fail(f"`{member}.schema` has more than {MAX_GRANT_BYTES} bytes")
    return schema


def _limits(member: str, value: Any) -> tuple[Limit, ...]:
    if type(value) is not list or len(value) > MAX_LIMITS:
        raise _fail(f"`{member}` is not an array of at most {MAX_LIMITS}")
    return tuple(_limit(f"{member}.", one) for one in value)


def _limit(prefix: str, value: Any) -> Limit:
    if type(value) is not dict or value.keys() != _LIMIT.keys():
        raise _fail(f"`{prefix[:-1]}` holds an entry that is not an object with exactly {', '.join(_LIMIT)}")
    return Limit(**{name: _read(_LIMIT, prefix, name, found) for name, found in value.items()})


def _name(member: str, value: Any) -> str:
    (name,) = _texts(_REASON, "a stable name ([a-z0-9_.-]{1,64})", 1, 64)(member, [value])
    return name


def _per(member: str, value: Any) -> tuple[str, ...]:
    if type(value) is not list or not all(type(one) is str and one in PER for one in value):
        raise _fail(f"`{member}` is not an array of {', '.join(PER)}")
    return tuple(dict.fromkeys(value))


_LIMIT: dict[str, Callable[[str, Any], Any]] = {
    "name": _name,
    "per": _per,
    "count": _count(MAX_COUNT),
    "window_s": _count(MAX_TTL_S),
}
_TERMS: dict[str, Callable[[str, Any], Any]] = {
    "uses": _count(MAX_USES),
    "ttl_s": _count(MAX_TTL_S),
    "approvers": _texts(_APPROVER, "`user:…`, `group:…` or `scope:…`", 64, 518),
    "min_approvers": _count(MAX_MIN_APPROVERS),
    "grant": _grant,
}
_MEMBERS: dict[str, Callable[[str, Any], Any]] = {
    "effect": _effect,
    "scopes": _texts(_SCOPE, "a scope", 64, 256),
    "reasons": _texts(_REASON, "a stable name ([a-z0-9_.-]{1,64})", 32, 64),
    "disclose": _truth,
    "approval": _terms,
    "clear": _texts(_POINTER, "a JSON pointer", 256, 1024),
    "mask": _texts(_POINTER, "a JSON pointer", 256, 1024),
    "visible": _texts(_ANY, "an id", 100_000, 65_536),
    "limits": _limits,
    "any_arguments": _truth,
}


def _read(readers: dict[str, Callable[[str, Any], Any]], prefix: str, name: str, value: Any) -> Any:
    reader = readers.get(name)
    if reader is None:
        shown = name if _REASON.match(str(name)) else "(not a plain name)"
        raise _fail(f"unknown member `{prefix}{shown}`")
    return reader(prefix + name, value)


def read_verdict(answer: Any, revision: str) -> Verdict:
    """The engine's decoded `decision` document -> `Verdict`, or `PolicyUnavailable` saying what is wrong with it.

    `effect` must be there; other members have the defaults of `Verdict`. `approve` needs `approval` with at least
    one approver, and no other effect may have it. Texts name members, never values: values may be the caller's.
    """
    if type(answer) is not dict:
        raise _fail("it is not an object" if answer is not None else "there is none")
    if not revision:
        raise _fail("no revision judged")
    if "effect" not in answer:
        raise _fail("`effect` is missing")
    read = {name: _read(_MEMBERS, "", name, value) for name, value in answer.items()}
    if (read["effect"] is Effect.APPROVE) != ("approval" in read):
        raise _fail("`approval` belongs to the effect `approve`, and only there")
    return Verdict(**read, revision=revision)
