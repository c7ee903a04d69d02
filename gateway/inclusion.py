"""Servers that a registry brought: taken into the configuration from a file of their own, as they were admitted.

What stands in that file is settings like any other. What it says and `registry.lock` does not hold stops the start
(gateway/registry/stanzas.py): nobody is served something that nobody admitted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.config import ConfigError, Settings

VARIABLE: Final = "OSTIARY_REGISTRY__SERVERS"

Read = Callable[[Path], tuple[dict[str, Any], str]]
"""Reads a YAML file with one reading -> the mapping, and its text. Raises `OSError` and `ConfigError`."""


@dataclass(frozen=True, slots=True)
class Included:
    """The servers that were taken in, from which file, and its text; nothing where none is named or there yet."""

    names: frozenset[str] = frozenset()
    file: Path | None = None
    text: str = ""


def include(document: dict[str, Any], folder: Path, read: Read) -> Included:
    """Put the file's servers beside the configuration's own. Raises `ConfigError`, also for a name in both."""
    group = document.get("registry")
    given = next((text for name, text in os.environ.items() if name.upper() == VARIABLE), "")
    named = given or (group.get("servers") if isinstance(group, dict) else None)
    if not isinstance(named, str):
        return Included()
    document.setdefault("servers", {})
    file, own = folder / named, document["servers"]
    found, text = read_servers(file, read)
    if not isinstance(own, dict):
        return Included()  # which is told with all other mistakes
    if both := sorted(own.keys() & found.keys()):
        raise ConfigError(f"{file}: servers.{both[0]}: is one of the configuration's own already")
    document["servers"] = {**own, **found}
    return Included(frozenset(map(str, found)), file, text)


def read_servers(file: Path, read: Read) -> tuple[dict[str, Any], str]:
    """The `servers` of such a file, and its text; none where there is no file. Raises `ConfigError`."""
    try:
        document, text = read(file)
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    found = document.get("servers")
    if not isinstance(found, dict) or document.keys() != {"servers"}:
        raise ConfigError(f"{file}: must be a mapping of servers, below `servers`, and nothing else")
    return found, text


def hold_to_lock(settings: Settings, included: Included) -> str:
    """Raise `ConfigError` where a server from a registry is not as somebody admitted it. The files are absolute.

    -> SHA-256 of the lock's text, `""` where no server needs it or there is none.
    """
    if not included.names:
        return ""
    from gateway.registry.lock import LockUnreadable, lock_text, read_lock  # noqa: PLC0415 - for those who include
    from gateway.registry.stanzas import disagreements  # noqa: PLC0415

    file = settings.registry.lock
    try:
        text = lock_text(file)
        lock = {} if text is None else read_lock(text)
    except OSError as error:
        raise ConfigError(f"registry.lock: {file}: {error.strerror}") from error
    except LockUnreadable as error:
        raise ConfigError(f"registry.lock: {file}: {error}") from error
    servers = {name: settings.servers[name] for name in sorted(included.names)}
    if wrong := [f"{included.file}: {where}: {what}" for where, what in disagreements(servers, lock)]:
        raise ConfigError("\n".join(wrong))
    return "" if text is None else hashlib.sha256(text).hexdigest()
