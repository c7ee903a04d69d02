"""What a caller may see of a list: one policy question per page, the upstream's order, and never a shared cache.

What is listed is what the policy would not deny (contract.md section 4). `nextCursor` survives filtering. No result
that was judged for one caller may be kept for another (rule G8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gateway.contract.envelope import fold
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.resources import Reach

MEMBERS: Mapping[str, tuple[str, str]] = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}
"""List method -> (the result's member, the item's member that identifies it)."""

MOST_ITEMS = 5000
"""Of one whole listing of tools, prompts or templates: more is none, and so is one page with more."""


def candidates_of(method: str, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of one page as the policy is asked about them: what the list says of each, and its `id`.

    Raises `Refused(UPSTREAM_INVALID)` where the page is not a list of identified objects, or has a second one under a
    name that a lenient client takes for the list's.
    """
    member, key = MEMBERS[method]
    if any(name != member and fold(name) == fold(member) for name in result):
        raise Refused(Refusal.UPSTREAM_INVALID, f"{method}: a variant of result.{member}")
    items = result.get(member)
    if not isinstance(items, list):
        raise Refused(Refusal.UPSTREAM_INVALID, f"{method}: result.{member} is not an array")
    if len(items) > MOST_ITEMS and method != "resources/list":  # nothing of it could be called
        raise Refused(Refusal.UPSTREAM_INVALID, f"{method}: more than {MOST_ITEMS} items")
    candidates = []
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get(key), str):
            raise Refused(Refusal.UPSTREAM_INVALID, f"{method}: an item of result.{member} has no {key}")
        candidates.append({**item, "id": item[key]})
    return candidates


def out_of_reach(reach: Reach | None, method: str, candidates: Iterable[Mapping[str, Any]]) -> set[str]:
    """The ids of candidates that lie outside the server's prefixes: no list shows them, whoever asks."""
    if reach is None:
        return set()
    return {candidate["id"] for candidate in candidates if not reach.admits_item(method, candidate)}


def named_twice(candidates: Sequence[Mapping[str, Any]]) -> set[str]:
    """The ids that one page gives to several items: which of them would be called can't be told."""
    if len({candidate["id"] for candidate in candidates}) == len(candidates):
        return set()
    counted = Counter(candidate["id"] for candidate in candidates)
    return {name for name, count in counted.items() if count > 1}


def check_contents(reach: Reach | None, result: Mapping[str, Any]) -> None:
    """Hold what was read to the server's prefixes; a server may answer with parts of what was asked for.

    Raises `Refused(UPSTREAM_INVALID)` where any content says that it is of a resource outside, or can't be told to be
    inside.
    """
    if reach is None:
        return
    contents = result.get("contents")
    if not isinstance(contents, list) or any(name != "contents" and fold(name) == "contents" for name in result):
        raise Refused(Refusal.UPSTREAM_INVALID, "resources/read: no result.contents, or a variant of it")
    for content in contents:
        uri = content.get("uri") if isinstance(content, dict) else None
        if not isinstance(uri, str) or any(name != "uri" and fold(name) == "uri" for name in content):
            raise Refused(Refusal.UPSTREAM_INVALID, "resources/read: a content without its uri, or with a variant")
        if not reach.admits(uri):
            raise Refused(Refusal.UPSTREAM_INVALID, "resources/read: a content of a resource out of reach")


def keep_visible(method: str, result: Mapping[str, Any], visible: Collection[str]) -> dict[str, Any]:
    """The page with only the visible items, as private to this caller. The upstream's order is kept."""
    member, key = MEMBERS[method]
    return keep_private({**result, member: [item for item in result[member] if item[key] in visible]})


def is_shared(result: Mapping[str, Any]) -> bool:
    """Whether a result says that a cache may give it to other callers."""
    return bool(result.get("cacheScope", "private") != "private")


def keep_private(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result as one for this caller alone: another may not be allowed to have it."""
    return {**result, "cacheScope": "private"}
