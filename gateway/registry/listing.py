"""What a registry answers, read strictly: pages of entries, of the API of today and of those before it.

An entry is the publisher's record and, apart from it, what the registry says of it: its state above all. Registries
of before 2025-09-29 write both into one object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.registry.flaws import Flaw
from gateway.registry.record import LARGEST, OFFICIAL, RecordUnusable, bound

STATES: Final = ("active", "deprecated", "deleted")
_TEXT: Final = 500


class Unreadable(ValueError):  # noqa: N818 - what was found
    """Not an answer of a registry's. The text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of a server. `document` is its record alone; `fault` is why that can't be used, if so."""

    name: str
    version: str
    document: Mapping[str, Any]
    status: str = "active"
    message: str = ""
    latest: bool | None = None
    updated_at: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """Entries, and the cursor of the next page, empty on the last."""

    entries: tuple[Entry, ...]
    cursor: str


def read_page(value: Any) -> Page:
    """A list's answer. Raises `Unreadable` that says what is wrong with it."""
    if not isinstance(value, dict) or not isinstance(servers := value.get("servers"), list | None):
        raise Unreadable("its list is no object with servers")
    metadata = value.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise Unreadable("its list's metadata is no object")
    cursor = metadata.get("nextCursor", metadata.get("next_cursor")) or ""
    if not isinstance(cursor, str):
        raise Unreadable("its cursor is no text")
    return Page(tuple(read_entry(one) for one in servers or ()), cursor)


def read_entry(value: Any) -> Entry:
    """One entry, of either form. Raises `Unreadable` where its record has neither name nor version."""
    if not isinstance(value, dict):
        raise Unreadable("an entry is no object")
    record, told = (value["server"], value.get("_meta")) if "server" in value else (value, value.get("_meta"))
    if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in ("name", "version")):
        raise Unreadable("an entry's record has no name and version")
    said = (told or {}).get(OFFICIAL) if isinstance(told, dict | None) else None
    said = said if isinstance(said, dict) else {}
    document = _alone(record)
    try:
        bound(document)
        if len(orjson.dumps(document)) > LARGEST:
            raise RecordUnusable([Flaw("json", "", f"has more than {LARGEST} bytes")])
        fault = ""
    except RecordUnusable as error:
        fault, document = str(error), {}
    status = said.get("status", record.get("status", "active"))
    latest = said.get("isLatest", said.get("is_latest"))
    return Entry(
        name=record["name"][:256],
        version=record["version"][:256],
        document=document,
        status=status if status in STATES else "unknown",
        message=_short(said.get("statusMessage")),
        latest=latest if isinstance(latest, bool) else None,
        updated_at=_short(said.get("updatedAt", said.get("updated_at"))),
        fault=fault,
    )


def newest(entries: Sequence[Entry]) -> tuple[dict[str, Entry], dict[str, str]]:
    """By name, the one entry that is the newest version; and by name why there is none.

    A registry marks it. One that does not may list a single version; of several, nobody knows.
    """
    versions: dict[str, list[Entry]] = {}
    for entry in entries:
        versions.setdefault(entry.name, []).append(entry)
    found: dict[str, Entry] = {}
    faults: dict[str, str] = {}
    for name, several in versions.items():
        marked = [one for one in several if one.latest] or several
        if len(marked) == 1:
            found[name] = marked[0]
        else:
            faults[name] = f"{len(marked)} versions are listed as the newest"
    return found, faults


def _alone(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without what the registry wrote into it."""
    document = {key: one for key, one in record.items() if key != "status"}
    meta = document.get("_meta")
    if isinstance(meta, dict) and OFFICIAL in meta:
        kept = {key: one for key, one in meta.items() if key != OFFICIAL}
        document = {key: one for key, one in document.items() if key != "_meta"} | ({"_meta": kept} if kept else {})
    return document


def _short(value: Any) -> str:
    return value[:_TEXT] if isinstance(value, str) else ""
