"""Two bundles compared: their files, their data, and what they decide about cases made from what both name.

The data's differences are complete. The cases are not: they go through every server, tool, prompt and resource that
either bundle's data names, each environment and tenant in it and one that is not, first calls, answers in an approved
call, grants and lists, callers with every scope and with none; arguments and claims are empty. What rules make of
those is for recorded decisions (`ostiary policy replay`) and the shadow to tell.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

import orjson

from policies.bundles import Bundle, load_bundle
from policies.embedded import EmbeddedPolicy
from policies.port import Policy
from policies.shadow import tell_apart
from policies.verdict import PolicyUnavailable, Verdict

AT_ONCE: Final = 64
MOST_CASES: Final = 100_000
MOST_SHOWN: Final = 300
ELSE: Final = "(another)"
SECTIONS: Final = {
    "tools": ("tools/call", "tool"),
    "prompts": ("prompts/get", "prompt"),
    "resources": ("resources/read", "resource"),
}
LISTS: Final = {"tools": "tools/list", "prompts": "prompts/list", "resources": "resources/list"}


@dataclass(frozen=True, slots=True, order=True)
class Turn:
    """Cases that are judged otherwise in the same way: effects and first reasons; `how`: both values of a member."""

    server: str
    method: str
    name: str
    difference: str
    before: str
    after: str
    how: str = ""


@dataclass(slots=True)
class Comparison:
    """`files`: rules' files that differ; `data`: a line a place; `turns` in cases; `cut`: not all were made."""

    revisions: tuple[str, str]
    files: list[str]
    data: list[str]
    cases: int = 0
    cut: bool = False
    turns: Counter[Turn] = field(default_factory=Counter)

    @property
    def differs(self) -> bool:
        """Whether anything does but the revision."""
        return bool(self.files or self.data or self.turns)


def compare_texts(old: Bundle, new: Bundle) -> Comparison:
    """What differs in the files, tests left out."""
    before, after = ({module.name: module.text for module in bundle.modules} for bundle in (old, new))
    files = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    data = list(_differences("", *(_data(bundle) for bundle in (old, new))))
    return Comparison((old.revision, new.revision), files, data)


async def compare(old: Path, new: Path, deadline_s: float) -> Comparison:
    """Both bundles at their folders, compared. Raises `PolicyUnavailable` where one can't be loaded."""
    bundles = [await asyncio.to_thread(load_bundle, path) for path in (old, new)]
    told = compare_texts(*bundles)
    engines = [EmbeddedPolicy(path, deadline_s=deadline_s) for path in (old, new)]
    try:
        for engine in engines:
            await engine.start()
        await compare_verdicts(told, make_cases(*bundles), *engines)
    finally:
        for engine in engines:
            await engine.close()
    return told


async def compare_verdicts(told: Comparison, cases: Iterable[Mapping[str, Any]], old: Policy, new: Policy) -> None:
    """Put every case to both, and count into `told` what they judge otherwise."""
    waiting = iter(cases)
    while batch := list(islice(waiting, AT_ONCE)):
        if told.cases >= MOST_CASES:
            told.cut = True
            return
        told.cases += len(batch)
        questions = [orjson.dumps(case) for case in batch]
        found = await asyncio.gather(*(_judge(policy, one) for one in questions for policy in (old, new)))
        for case, before, after in zip(batch, found[::2], found[1::2], strict=True):
            if difference := _difference(before, after):
                request, how = case["request"], tell_values(before, after, difference)
                name = request["name"] or "".join(str(task["tool"]) for task in request["tasks"])
                turn = (
                    case["server"]["name"],
                    request["method"],
                    name,
                    difference,
                    _brief(before),
                    _brief(after),
                    how,
                )
                told.turns[Turn(*turn)] += 1


async def _judge(policy: Policy, question: bytes) -> Verdict | None:
    try:
        return await policy.judge(question)
    except PolicyUnavailable:
        return None


def _difference(before: Verdict | None, after: Verdict | None) -> str:
    if before is None or after is None:
        return "" if before is after else "failed"
    return tell_apart(before, after)


def _brief(verdict: Verdict | None) -> str:
    return "none" if verdict is None else f"{verdict.effect.value} ({(*verdict.reasons, '-')[0]})"


def tell_values(before: Verdict | None, after: Verdict | None, difference: str) -> str:
    """Both values of the member that differs; nothing where the effect does, or one has no verdict."""
    if "_to_" in difference or difference == "failed":
        return ""
    return " -> ".join(_shown(orjson.loads(orjson.dumps(getattr(one, difference)))) for one in (before, after))


# ------------------------------------------------------------------ cases


def make_cases(old: Bundle, new: Bundle) -> Iterator[dict[str, Any]]:
    """Questions about all that the data of either names, and about something else, server by server."""
    both = [_data(bundle).get("servers") for bundle in (old, new)]
    servers: list[Mapping[str, Any]] = [one for one in both if isinstance(one, Mapping)]
    scopes = sorted({scope for one in servers for scope in _gathered(one, "scopes")})
    for name in (*sorted({name for one in servers for name in one}), ELSE):
        known = [one[name] for one in servers if isinstance(one.get(name), Mapping)]
        environments = (*sorted({text for one in known for text in _gathered(one, "environments")}), ELSE)
        tenants = (*sorted({text for one in known for text in _gathered(one, "tenants")}), ELSE)
        for environment, tenant, held in product(environments, tenants, (scopes, [])):
            subject = {"issuer": "", "id": ELSE, "client_id": "", "tenant": tenant, "scopes": held, "claims": {}}
            server = {"name": name, "resource": "", "environment": environment}
            for request in _requests(known):
                yield {"phase": "call", "server": server, "subject": subject, "request": request, "tool": None}
            for section, method in LISTS.items():
                offered = [{"id": id_} for id_ in _names(known, section)]
                asked = {"phase": "list", "server": server, "subject": subject, "request": _request(method, "list")}
                yield {**asked, "tool": None, "candidates": offered}


def _requests(known: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for section, (method, kind) in SECTIONS.items():
        for name in _names(known, section):
            yield _request(method, kind, name)
            yield _request(method, kind, name) | {"leg": 1, "approved": True, "input_responses": {}}
            if kind == "tool":
                yield _request(method, kind, name) | {"grant": {"schema": {}}}
                yield _request("tasks/update", "task") | {"tasks": [{"id": ELSE, "tool": name, "approved": False}]}
    for method in ("server/discover", *_names(known, "methods")):
        yield _request(method, "other")


def _request(method: str, kind: str, name: str | None = None) -> dict[str, Any]:
    return {
        "method": method, "kind": kind, "name": name, "arguments": {}, "input_responses": None, "tasks": [], "leg": 0,
        "approved": False,
    }  # fmt: skip


def _names(known: list[Mapping[str, Any]], section: str) -> list[str]:
    found = {name for one in known if isinstance(one.get(section), Mapping) for name in one[section]}
    return [*sorted(found), ELSE]


def _gathered(data: Any, member: str) -> set[str]:
    """Every text in a list under `member`, wherever in the data."""
    found: set[str] = set()
    waiting = [data]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            texts = one.get(member)
            found.update(text for text in texts if isinstance(text, str)) if isinstance(texts, list) else None
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
    return found


# ------------------------------------------------------------------ data


def _data(bundle: Bundle) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bundle.data)["mcp"]["authz"]
    return found


_ABSENT: Final = object()


def _differences(place: str, old: Any, new: Any) -> Iterator[str]:
    """`/pointer: before -> after`, at the smallest objects that differ; lists are told whole."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted(old.keys() | new.keys()):
            step = name.replace("~", "~0").replace("/", "~1")
            yield from _differences(f"{place}/{step}", old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif type(old) is not type(new) or old != new:
        yield f"{place or '/'}: {_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    text = "(absent)" if value is _ABSENT else json.dumps(value)  # ASCII: names that look alike are told apart
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
