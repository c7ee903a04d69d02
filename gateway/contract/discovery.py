"""What a server says of itself in `server/discover`, cut down to what this gateway serves of it.

Versions and capabilities are the intersection of the server's and the gateway's: nothing that would be refused when
it is used is announced, and nothing is added that the server did not say, but for tasks where the gateway makes some
of held calls (server/discover; schema `DiscoverResult`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from gateway.contract.envelope import Reserved
from gateway.contract.headers import VERSIONS
from gateway.contract.methods import TASKS_EXTENSION
from gateway.contract.refusals import Refusal, Refused

SERVED: Final[Mapping[str, frozenset[str]]] = {
    "tools": frozenset({"listChanged"}),
    "prompts": frozenset({"listChanged"}),
    "resources": frozenset({"listChanged", "subscribe"}),
    "completions": frozenset(),
    "logging": frozenset(),
}
"""Capability -> its flags that are served. Whatever else a server has of its own is left out."""

SERVED_EXTENSIONS: Final = frozenset({TASKS_EXTENSION})
"""Extensions that the gateway itself serves, by id; a server's configuration can name further ones."""

_STEERING: Final = Reserved(("supportedVersions", "capabilities", "ttlMs", "cacheScope"))


def intersect(
    result: Mapping[str, Any], requested: str, extensions: Collection[str], *, makes_tasks: bool = False
) -> dict[str, Any]:
    """The result for the caller, private to it. `extensions` are those that the server's configuration names;
    `makes_tasks`: a held call of this server can become a task of the gateway's.

    Raises `Refused`: VERSION_UNSUPPORTED where no version is common to both, with the `requested` one;
    UPSTREAM_INVALID for what is no result of discovery, or has a second reading.
    """
    if _STEERING.variant(result):
        raise _invalid("a variant of a reserved name")
    offered, capabilities, ttl = result.get("supportedVersions"), result.get("capabilities"), result.get("ttlMs")
    if not isinstance(offered, list) or not all(isinstance(version, str) for version in offered):
        raise _invalid("supportedVersions is not an array of strings")
    if not isinstance(capabilities, dict) or not all(isinstance(one, dict) for one in capabilities.values()):
        raise _invalid("capabilities is not an object of objects")
    versions = [version for version in VERSIONS if version in offered]
    if not versions:
        detail = "the server behind supports no version that is served here"
        raise Refused(Refusal.VERSION_UNSUPPORTED, detail, supported=[], requested=requested)
    served = _served(capabilities, SERVED_EXTENSIONS.union(extensions))
    if makes_tasks and "tools" in served:
        served["extensions"] = {TASKS_EXTENSION: {}, **served.get("extensions", {})}
    return {
        **result,
        "supportedVersions": versions,
        "capabilities": served,
        "ttlMs": ttl if type(ttl) is int and ttl >= 0 else 0,
        "cacheScope": "private",
    }


def announces(result: Mapping[str, Any], capability: str) -> bool:
    """Whether a server says that it tells of changes of the list of a capability."""
    found = result.get("capabilities")
    one = found.get(capability) if isinstance(found, dict) else None
    return isinstance(one, dict) and one.get("listChanged") is True


def _served(capabilities: Mapping[str, Mapping[str, Any]], extensions: Collection[str]) -> dict[str, Any]:
    kept: dict[str, Any] = {
        name: {flag: on for flag, on in capabilities[name].items() if flag in flags and isinstance(on, bool)}
        for name, flags in SERVED.items()
        if name in capabilities
    }
    further = {name: settings for name, settings in capabilities.get("extensions", {}).items() if name in extensions}
    return {**kept, "extensions": further} if further else kept


def _invalid(detail: str) -> Refused:
    return Refused(Refusal.UPSTREAM_INVALID, f"server/discover: {detail}")
