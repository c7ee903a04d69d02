"""Recorded decisions, judged again by a candidate: what would change, as far as the record can tell.

The record holds no arguments but those in clear, no scopes, no claims and no tenant. So the same rebuilt question is
put to the policy that judged (the baseline) as well: only where that gives the verdict that stands in the record, a
difference is the candidate's; everywhere else what was left out of the record decided, and the answer is "unsure".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import orjson

from gateway.audit.story import policy_reasons
from gateway.rehearsal.bundles import tell_values
from policies.port import Policy
from policies.shadow import tell_apart
from policies.verdict import PolicyUnavailable, Verdict

KINDS: Final = {"tools/call": "tool", "prompts/get": "prompt", "resources/read": "resource"}
AT_ONCE: Final = 64
MOST_KINDS: Final = 1000
REST: Final = "(others)"


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """Calls that would be judged otherwise in the same way. Effects, and the first reason of each.

    `difference` is one of `policies.shadow.DIFFERENCES`; `how` both values, where the effects are the same.
    """

    server: str
    method: str
    name: str
    recorded: str
    then: str
    recorded_reason: str
    then_reason: str
    difference: str
    how: str = ""


@dataclass(slots=True)
class Replay:
    """What came of it, in records. `unsure`: what the record does not hold decided; `failed`: no verdict."""

    same: int = 0
    changed: int = 0
    unsure: int = 0
    failed: int = 0
    skipped: int = 0
    without_arguments: int = 0
    """Of those that were judged, how many had arguments that are not in the record."""
    changes: Counter[Change] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded decision as a question again. `whole`: no argument is missing in it."""

    record: Mapping[str, Any]
    question: bytes
    whole: bool


def rebuild(record: Mapping[str, Any]) -> Recorded | None:
    """A record -> its question, as far as it is known; `None` for what was not judged, or can't be asked again.

    Left out are lists (what would be shown depends on what was offered), later legs, tasks, names that the record
    shows escaped or cut, and what no sink of ours wrote.
    """
    method, name, verdict = record.get("method"), record.get("name"), record.get("verdict")
    if record.get("kind") not in ("decision", "refusal") or not isinstance(verdict, str):
        return None
    if not isinstance(method, str) or method not in KINDS or not isinstance(name, str) or record.get("leg"):
        return None
    actor, shape, reasons = record.get("actor") or {}, record.get("arguments") or {}, record.get("reasons") or []
    if "\\" in name or len(name) >= 128 or "#" in name or not isinstance(actor, Mapping):
        return None
    if not isinstance(shape, Mapping) or not isinstance(reasons, list):
        return None
    arguments, whole = _arguments(shape)
    question: dict[str, Any] = {
        "phase": "call",
        "server": {
            "name": record.get("server") or "",
            "resource": record.get("resource") or "",
            "environment": record.get("environment") or "",
        },
        "subject": {
            "issuer": actor.get("issuer") or "", "id": actor.get("subject") or "",
            "client_id": actor.get("client") or "", "tenant": "", "scopes": [], "claims": {},
        },
        "request": {
            "method": method, "kind": KINDS[method], "name": name, "arguments": arguments, "input_responses": None,
            "tasks": [], "leg": 0, "approved": False,
        },
        "tool": None,
    }  # fmt: skip
    return Recorded(record, orjson.dumps(question), whole)


def _arguments(shape: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The arguments that the record has in clear, and whether that is all of them."""
    found: dict[str, Any] = {}
    whole = True
    for pointer, leaf in shape.items():
        steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
        if not isinstance(leaf, Mapping):
            whole = False
            continue
        if not steps and leaf.get("type") == "object" and not leaf.get("size"):
            continue
        if (
            "value" not in leaf
            or "masked" in leaf
            or not steps
            or any(step.isdigit() or step.startswith("#") for step in steps)
        ):
            whole = False  # a place in a list is not told from a member of that name
            continue
        place: Any = found
        for step in steps[:-1]:
            place = place.setdefault(step, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            whole = False  # one below another that has a value: no sink writes that
            continue
        place[steps[-1]] = leaf["value"]
    return found, whole


async def replay(records: Iterable[Mapping[str, Any]], candidate: Policy, baseline: Policy | None) -> Replay:
    """Judge them again. Without a `baseline` every difference counts as the candidate's."""
    told = Replay()
    waiting = iter(records)

    def read() -> list[Mapping[str, Any]]:
        return list(islice(waiting, AT_ONCE))

    while batch := await asyncio.to_thread(read):  # files block, and a database has a loop of its own
        known = [one for record in batch if (one := rebuild(record)) is not None]
        told.skipped += len(batch) - len(known)
        for one, (now, before) in zip(known, await _judge(known, candidate, baseline), strict=True):
            _compare(told, one, now, before if baseline else None)
    return told


async def _judge(
    asked: list[Recorded], candidate: Policy, baseline: Policy | None
) -> Iterator[tuple[Verdict | None, Verdict | None]]:
    async def ask(policy: Policy | None, question: bytes) -> Verdict | None:
        try:
            return None if policy is None else await policy.judge(question)
        except PolicyUnavailable:
            return None

    now = await asyncio.gather(*(ask(candidate, one.question) for one in asked))
    before = await asyncio.gather(*(ask(baseline, one.question) for one in asked))
    return zip(now, before, strict=True)


def _tell_apart(recorded: str, before: Verdict | None, now: Verdict) -> str:
    """The record has the effect alone. Scopes, terms and the rest are compared with what the baseline gives."""
    if now.effect.value != recorded:
        return f"{recorded}_to_{now.effect.value}"
    difference = "" if before is None else tell_apart(before, now)
    return "" if difference == "reasons" else difference


def _compare(told: Replay, one: Recorded, now: Verdict | None, before: Verdict | None) -> None:
    record = one.record
    verdict = str(record["verdict"])
    told.without_arguments += not one.whole
    if before is not None and before.effect.value != verdict:
        told.unsure += 1
        return
    if now is None:
        difference = "failed"
        told.failed += 1
    elif difference := _tell_apart(verdict, before, now):
        told.changed += 1
    else:
        told.same += 1
        return
    reasons = policy_reasons(record)
    change = Change(
        str(record.get("server")), str(record["method"]), str(record["name"]), verdict,
        "none" if now is None else now.effect.value, reasons[0] if reasons else "",
        now.reasons[0] if now is not None and now.reasons else "",
        difference, tell_values(before, now, difference) if before is not None else "",
    )  # fmt: skip
    if change not in told.changes and len(told.changes) >= MOST_KINDS:
        change = Change(REST, "", "", change.recorded, change.then, "", "", difference)
    told.changes[change] += 1
