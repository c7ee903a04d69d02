"""The lock: which records of a registry somebody admitted, whole and with their digests (`registry.lock`).

Its text is stable, sorted and in ASCII, for review in version control, like that of the pins. What the registry says
today changes nothing of it: only `ostiary registry import --accept` does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gateway.contract.fingerprint import digest_definition
from gateway.contract.strict_json import NotStrict, read_strictly
from gateway.registry.record import RecordUnusable, published

VERSION: Final = 1
MAX_BYTES: Final = 16_777_216
_ENTRY: Final = frozenset({"accepted_at", "accepted_by", "digest", "record", "server", "status", "version"})


@dataclass(frozen=True, slots=True)
class Locked:
    """A record that somebody admitted. `server`: the name under which the gateway fronts it.

    `accepted_at` is UTC (ISO 8601), `accepted_by` is `local:UID@HOST`.
    """

    server: str
    version: str
    status: str
    record: Mapping[str, Any]
    digest: str
    accepted_by: str
    accepted_at: str


Lock = Mapping[str, Locked]
"""Name in the registry -> what was admitted of it."""


class LockUnreadable(ValueError):  # noqa: N818 - what was found
    """Not a lock. Nothing is taken from a text that is not all right."""


def read_lock(text: bytes) -> dict[str, Locked]:
    """The lock of a file's text. Raises `LockUnreadable`."""
    try:
        document = read_strictly(text)
    except NotStrict as error:
        raise LockUnreadable(f"not JSON with one reading: {error}") from None
    if not isinstance(document, dict) or document.keys() != {"version", "servers"}:
        raise LockUnreadable("must be an object with `version` and `servers`, and nothing else")
    if type(document["version"]) is not int or document["version"] != VERSION:
        raise LockUnreadable(f"version must be {VERSION}")
    if not isinstance(document["servers"], dict):
        raise LockUnreadable("servers must be an object")
    lock = {name: _admitted(name, entry) for name, entry in document["servers"].items()}
    if len({one.server for one in lock.values()}) != len(lock):
        raise LockUnreadable("two records have the same server")
    return lock


def write_lock(lock: Lock) -> bytes:
    """The text: sorted, one member a line, ASCII, the same for the same lock."""
    document = {"version": VERSION, "servers": {name: asdict(one) for name, one in lock.items()}}
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=True).encode() + b"\n"


def load_lock(file: Path) -> dict[str, Locked]:
    """The lock that lies there; empty where there is no file. Raises `OSError` and `LockUnreadable`."""
    text = lock_text(file)
    return {} if text is None else read_lock(text)


def lock_text(file: Path) -> bytes | None:
    """What lies there, `None` where there is no file. Raises `OSError` and `LockUnreadable`."""
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(text) > MAX_BYTES:
        raise LockUnreadable(f"larger than {MAX_BYTES} bytes")
    return text


def _admitted(name: str, entry: Any) -> Locked:
    if not isinstance(entry, dict) or entry.keys() != _ENTRY or not isinstance(entry["record"], dict):
        raise LockUnreadable(f"{name}: must have a record, {', '.join(sorted(_ENTRY - {'record'}))}")
    if not all(isinstance(entry[key], str) for key in _ENTRY - {"record"}):
        raise LockUnreadable(f"{name}: all but the record must be strings")
    record = entry["record"]
    if (record.get("name"), record.get("version")) != (name, entry["version"]):
        raise LockUnreadable(f"{name}: the record is another one's")
    if digest_definition(record) != entry["digest"]:
        raise LockUnreadable(f"{name}: the digest is not that of the record")
    try:
        published(record)
    except RecordUnusable as error:
        raise LockUnreadable(f"{name}: {error}") from None
    return Locked(**entry)
