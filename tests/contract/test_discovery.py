"""What a server says of itself is what both sides serve (server/discover; issue text "server/discover")."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.contract.discovery import announces, intersect
from gateway.contract.headers import PROTOCOL_VERSION
from gateway.contract.refusals import Refusal, Refused

TASKS, UI, OTHER = "io.modelcontextprotocol/tasks", "example.com/ui", "example.com/other"
SAID: dict[str, Any] = {
    "resultType": "complete",
    "supportedVersions": ["2027-01-01", PROTOCOL_VERSION, "2025-11-25"],
    "capabilities": {
        "tools": {"listChanged": True, "other": True},
        "prompts": {"listChanged": "yes"},
        "resources": {"subscribe": True, "listChanged": False},
        "completions": {"x": 1},
        "logging": {},
        "experimental": {"x": {}},
        "acme": {},
        "extensions": {TASKS: {"a": 1}, OTHER: {}, UI: {"b": [2]}},
    },
    "instructions": "be kind",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}},
    "ttlMs": 3_600_000,
    "cacheScope": "public",
}


def test_versions_and_capabilities_are_those_of_both() -> None:
    """What the gateway does not serve is left out, what the server did not say is not added; the rest stays."""
    found = intersect(SAID, PROTOCOL_VERSION, {UI})
    assert found == {
        **SAID,
        "supportedVersions": [PROTOCOL_VERSION],
        "capabilities": {
            "tools": {"listChanged": True},
            "prompts": {},
            "resources": {"subscribe": True, "listChanged": False},
            "completions": {},
            "logging": {},
            "extensions": {TASKS: {"a": 1}, UI: {"b": [2]}},
        },
        "cacheScope": "private",
    }
    assert intersect(found, PROTOCOL_VERSION, {UI}) == found


def test_nothing_is_invented() -> None:
    """A server that offers nothing offers nothing here; what is not said of caching is: not at all."""
    bare = {"supportedVersions": [PROTOCOL_VERSION], "capabilities": {}}
    for ttl in ({}, {"ttlMs": -1}, {"ttlMs": True}, {"ttlMs": "5"}):
        assert intersect({**bare, **ttl}, PROTOCOL_VERSION, {UI}) == {**bare, "ttlMs": 0, "cacheScope": "private"}
    assert list(intersect(SAID, PROTOCOL_VERSION, ())["capabilities"]["extensions"]) == [TASKS]
    unknown = {**bare, "capabilities": {"extensions": {OTHER: {}}}}
    assert intersect(unknown, PROTOCOL_VERSION, {UI})["capabilities"] == {}


@pytest.mark.parametrize("offered", [[], ["2025-11-25"], [PROTOCOL_VERSION + " "]])
def test_no_version_in_common_is_the_revisions_error(offered: list[str]) -> None:
    """-32022, and that there is none."""
    with pytest.raises(Refused) as caught:
        intersect({**SAID, "supportedVersions": offered}, PROTOCOL_VERSION, ())
    refused = caught.value
    assert (refused.refusal, refused.data) == (
        Refusal.VERSION_UNSUPPORTED,
        {"supported": [], "requested": PROTOCOL_VERSION},
    )


@pytest.mark.parametrize(
    "change",
    [
        {"supportedVersions": None}, {"supportedVersions": PROTOCOL_VERSION}, {"supportedVersions": [1]},
        {"capabilities": None}, {"capabilities": []}, {"capabilities": {"tools": True}}, {"Capabilities": {}},
        {"capabilities": {"extensions": []}}, {"supported_versions": ["2025-11-25"]}, {"TTLMS": 5},
    ],
)  # fmt: skip
def test_what_is_no_discovery_is_the_servers_fault(change: dict[str, Any]) -> None:
    """Nor is what another reader would read otherwise."""
    assert intersect(SAID, PROTOCOL_VERSION, ())
    with pytest.raises(Refused) as caught:
        intersect({**SAID, **change}, PROTOCOL_VERSION, ())
    assert caught.value.refusal is Refusal.UPSTREAM_INVALID


@pytest.mark.parametrize(
    "said", [{}, {"capabilities": []}, {"capabilities": {"tools": 5}}, {"capabilities": {"tools": {}}}]
)
def test_who_does_not_say_so_tells_of_no_changes(said: dict[str, Any]) -> None:
    """Only `listChanged: true`, of this very list."""
    assert announces(SAID, "tools")
    assert not announces(SAID, "resources")
    assert not announces(SAID, "prompts")
    assert not announces(said, "tools")
