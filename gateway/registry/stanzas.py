"""The file of servers that were admitted (`registry.servers`): a stanza each, which the configuration takes in.

A stanza says where the server is, which record it is of, and that its tools have to be accepted; scopes, credentials
and whatever else belongs to it are the operator's, and stay. What a stanza says and the lock does not
stops the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from gateway.registry.addresses import one_spelling
from gateway.registry.admission import urls_of
from gateway.registry.lock import Lock, Locked

HEAD: Final = """\
# Written by `ostiary registry import`. Settings of a server may be added here and stay; comments do not.
"""


def stanza(name: str, admitted: Locked, before: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one server. `before`: what its stanza says now."""
    kept = dict(before)
    urls = urls_of(admitted.record)
    kept.setdefault("path", f"/{admitted.server}/mcp")
    if not kept.get("replicas") or not set(kept["replicas"]) <= set(urls):
        kept["replicas"] = urls[:1]
    registry = kept.get("registry")
    kept["registry"] = {
        **(registry if isinstance(registry, dict) else {}), "record": f"{name}@{admitted.version}",
    }  # fmt: skip
    kept["pins"] = "enforce"
    return kept


def write_stanzas(lock: Lock, before: Mapping[str, Any]) -> bytes:
    """The file's text. `before`: its `servers` as they stand; stanzas of what is not in the lock go."""
    servers = {
        one.server: stanza(name, one, before.get(one.server) or {})
        for name, one in sorted(lock.items(), key=lambda item: item[1].server)
    }
    return (HEAD + yaml.safe_dump({"servers": servers}, sort_keys=False, allow_unicode=False)).encode()


def disagreements(servers: Mapping[str, Any], lock: Lock) -> Iterator[tuple[str, str]]:
    """(setting, what is wrong) for each admitted server that is not as the lock has it.

    `servers`: name -> settings with `replicas`, `pins` and `registry.record`, of the file of admitted servers alone.
    """
    admitted = {one.server: (name, one) for name, one in lock.items()}
    for server, settings in servers.items():
        where = f"servers.{server}"
        if server not in admitted:
            yield where, "is not in registry.lock: nobody admitted it"
            continue
        name, one = admitted[server]
        record = settings.registry.record if settings.registry else ""
        if record != f"{name}@{one.version}":
            yield f"{where}.registry.record", f"registry.lock admits {name}@{one.version}"
        known = {one_spelling(url) for url in urls_of(one.record)}
        if any(one_spelling(url) not in known for url in settings.replicas):
            yield f"{where}.replicas", "is no remote of the admitted record"
        if settings.pins != "enforce":
            yield f"{where}.pins", "must be enforce for a server that a registry brought"
