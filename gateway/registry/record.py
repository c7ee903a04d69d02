"""A `server.json` read strictly: its text is bounded and has one reading, and what it says is a value of its own.

`Published` is what somebody wrote into a registry, and nothing else: what a server says of itself is live.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.contract.fingerprint import digest_definition
from gateway.contract.strict_json import NotStrict, read_strictly
from gateway.registry.flaws import Flaw
from gateway.registry.releases import Release, hold_to_schema, release_of

LARGEST: Final = 131_072
"""Bytes of one record. Usual ones have a few thousand."""

MOST_VALUES: Final = 5_000
"""Members and items in one record: what is wrong with more of them would take too long to tell."""

PUBLISHER: Final = "io.modelcontextprotocol.registry/publisher-provided"
OFFICIAL: Final = "io.modelcontextprotocol.registry/official"
OFFERS: Final = "ostiary.offers"
"""Below `PUBLISHER`: `{capabilities: [names], tools: {name: digest}}`, what the publisher says that is offered."""


class RecordUnusable(ValueError):  # noqa: N818 - what was found
    """Not a record that anything can be compared with. `flaws` say why."""

    def __init__(self, flaws: list[Flaw]) -> None:
        first = flaws[0]
        super().__init__(f"{first.pointer or '/'}: {first.what}" + (f" ({len(flaws)} flaws)" if flaws[1:] else ""))
        self.flaws = flaws


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a record says that the server is. `url` may be a template; `choices` are those of its variables."""

    kind: str
    url: str
    choices: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Published:
    """What a record says. `digest` is SHA-256 (hex) of its RFC 8785 form; empty texts are not said.

    `capabilities` and `tools` (name -> digest) are `None` where the publisher says nothing of them.
    """

    name: str
    version: str
    title: str
    description: str
    remotes: tuple[Remote, ...]
    digest: str
    document: Mapping[str, Any]
    capabilities: frozenset[str] | None = None
    tools: Mapping[str, str] | None = None


def read_text(text: bytes) -> dict[str, Any]:
    """The object that a text is. Raises `RecordUnusable`."""
    if len(text) > LARGEST:
        raise RecordUnusable([Flaw("json", "", f"has more than {LARGEST} bytes")])
    try:
        document = read_strictly(text)
    except NotStrict as error:
        raise RecordUnusable([Flaw("json", "", f"is not JSON with one reading: {error}")]) from None
    if not isinstance(document, dict):
        raise RecordUnusable([Flaw("json", "", "is no object")])
    bound(document)
    return document


def bound(document: Mapping[str, Any]) -> None:
    """Raise `RecordUnusable` for one with too many values, wherever it was read from."""
    waiting: list[Any] = [document]
    values = 0
    while waiting:
        node = waiting.pop()
        if isinstance(node, (dict, list)):
            values += len(node)
            waiting += node.values() if isinstance(node, dict) else node
        if values > MOST_VALUES:
            raise RecordUnusable([Flaw("json", "", f"has more than {MOST_VALUES} values")])


def known_release(document: Mapping[str, Any]) -> Release:
    """The release that a record is held to. Raises `RecordUnusable` for one that is not known."""
    release = release_of(document)
    if release is None:
        raise RecordUnusable([Flaw("schema-unknown", "/$schema", "is no released schema of server.json")])
    return release


def read_record(text: bytes) -> Published:
    """A text -> what it says. Raises `RecordUnusable`."""
    return published(read_text(text))


def published(document: Mapping[str, Any]) -> Published:
    """A document -> what it says. Raises `RecordUnusable` where its schema says no."""
    flaws, _ = hold_to_schema(known_release(document), document)
    if flaws:
        raise RecordUnusable(flaws)
    capabilities, tools = _offers(document)
    return Published(
        name=document["name"],
        version=document["version"],
        title=title if isinstance(title := document.get("title", ""), str) else "",
        description=document.get("description", ""),
        remotes=tuple(_remote(one) for one in document.get("remotes", ())),
        digest=digest_definition(document),
        document=document,
        capabilities=capabilities,
        tools=tools,
    )


def _remote(remote: Mapping[str, Any]) -> Remote:
    declared = remote.get("variables") or {}
    choices = {
        name: tuple(one for one in (variable.get("choices") or ()) if isinstance(one, str))
        for name, variable in (declared.items() if isinstance(declared, dict) else ())
        if isinstance(variable, dict)
    }
    return Remote(remote["type"], remote["url"], choices)


def _offers(document: Mapping[str, Any]) -> tuple[frozenset[str] | None, Mapping[str, str] | None]:
    """Capabilities and tools as the publisher says them, each where it is of its form."""
    said = document.get("_meta", {}).get(PUBLISHER, {}).get(OFFERS)
    if not isinstance(said, dict):
        return None, None
    names, tools = said.get("capabilities"), said.get("tools")
    return (
        frozenset(names) if isinstance(names, list) and all(isinstance(one, str) for one in names) else None,
        tools if isinstance(tools, dict) and all(isinstance(one, str) for one in tools.values()) else None,
    )
