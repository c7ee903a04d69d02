"""What a caller may see of a list (contract.md section 4)."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.contract.listing import (
    MEMBERS,
    MOST_ITEMS,
    candidates_of,
    is_shared,
    keep_private,
    keep_visible,
    named_twice,
)
from gateway.contract.refusals import Refusal, Refused


@pytest.mark.parametrize(("method", "member", "key"), [(m, *pair) for m, pair in MEMBERS.items()])
def test_only_visible_items_stay_in_order(method: str, member: str, key: str) -> None:
    """Order is the upstream's; the cursor and unknown members survive; the page is private to its caller."""
    page: dict[str, Any] = {
        member: [{key: "c", "title": "C"}, {key: "a"}, {key: "b"}],
        "nextCursor": "n",
        "ttlMs": 5,
        "cacheScope": "public",
        "resultType": "complete",
    }
    assert [item["id"] for item in candidates_of(method, page)] == ["c", "a", "b"]
    kept = keep_visible(method, page, {"b", "c", "unknown"})
    assert kept == {**page, member: [{key: "c", "title": "C"}, {key: "b"}], "cacheScope": "private"}


def test_an_empty_page_keeps_its_cursor() -> None:
    """A page of hidden items is an empty page, and the next page can still be asked for."""
    kept = keep_visible("tools/list", {"tools": [{"name": "x"}], "nextCursor": "n"}, frozenset())
    assert kept == {"tools": [], "nextCursor": "n", "cacheScope": "private"}


@pytest.mark.parametrize("twin", ["Tools", "TOOLS", "_tools", "tool_s"])
def test_a_second_list_under_nearly_the_same_name_is_refused(twin: str) -> None:
    """A client that folds case or drops underscores would read the list that nobody filtered."""
    assert candidates_of("tools/list", {"tools": [], "prompts": []}) == []
    with pytest.raises(Refused) as caught:
        candidates_of("tools/list", {"tools": [], twin: [{"name": "secret"}]})
    assert caught.value.refusal is Refusal.UPSTREAM_INVALID


@pytest.mark.parametrize("method", MEMBERS)
def test_a_page_with_more_than_a_whole_listing_is_none(method: str) -> None:
    """No tool, prompt or template of it could be used, and reading it would cost a minute; resources need no list."""
    member, key = MEMBERS[method]
    items = [{key: f"x{number}"} for number in range(MOST_ITEMS + 1)]
    assert len(candidates_of(method, {member: items[1:]})) == MOST_ITEMS
    if method == "resources/list":
        assert len(candidates_of(method, {member: items})) == MOST_ITEMS + 1
        return
    with pytest.raises(Refused) as caught:
        candidates_of(method, {member: items})
    assert caught.value.refusal is Refusal.UPSTREAM_INVALID


@pytest.mark.parametrize(
    ("scope", "shared"), [("private", False), ("public", True), ("Public", True), (None, True), (["public"], True)]
)
def test_only_private_results_are_nobody_elses(scope: Any, shared: bool) -> None:
    """Anything but `private` counts as shared, and is made private; what says nothing is not cached at all."""
    assert is_shared({"cacheScope": scope, "contents": []}) is shared
    assert keep_private({"cacheScope": scope, "ttlMs": 5}) == {"cacheScope": "private", "ttlMs": 5}
    assert not is_shared({"contents": []})


@pytest.mark.parametrize("tools", [None, {}, "x", [1], [{}], [{"name": 1}], [{"name": "a"}, None]])
def test_what_is_no_list_is_the_upstreams_fault(tools: Any) -> None:
    """A page that can't be read item by item can't be filtered, so it is refused."""
    assert candidates_of("tools/list", {"tools": [{"name": "a"}]})
    with pytest.raises(Refused) as caught:
        candidates_of("tools/list", {"tools": tools})
    assert caught.value.refusal is Refusal.UPSTREAM_INVALID


def test_what_a_page_names_twice_is_told() -> None:
    """Two definitions under one name are nobody's, here as in the catalogue."""
    candidates = [{"id": name} for name in ("a", "b", "a", "c", "a")]
    assert named_twice(candidates) == {"a"}
    assert named_twice(candidates[1:3]) == set()
