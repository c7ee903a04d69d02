"""`ostiary check` on the records that were published of servers: files are read and judged, nobody is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.config import Settings
from gateway.inspecting.finding import Finding
from gateway.registry.record import LARGEST
from gateway.registry.validation import validate

MOST: Final = 10
"""Flaws of one record that are told here; `ostiary registry validate` tells all."""


def look_at_published(settings: Settings) -> list[Finding]:
    """Every server that has a record."""
    return [
        finding
        for name, server in sorted(settings.servers.items())
        if server.registry is not None
        for finding in _look(settings, name, server.registry.record, server.registry.file)
    ]


def _look(settings: Settings, name: str, source: str, file: Path | None) -> Iterator[Finding]:
    if file is None:
        yield Finding("published", True, f"{name}: {source}, which `ostiary registry drift` asks the registry for")
        return
    try:
        with file.open("rb") as stream:
            text = stream.read(LARGEST + 1)
    except OSError as error:
        mend = "" if file.suffix == ".json" else "a file, or NAME@VERSION of the registry"
        yield Finding("published", False, f"servers.{name}.registry.record: {file}: {error.strerror}", mend=mend)
        return
    registry = settings.registry
    flaws = [one for one in validate(text, registry.publisher, private=registry.private_addresses) if not one.note]
    for one in flaws[:MOST]:
        yield Finding("published", False, f"{one.what} [{one.rule}]", f"{file}#{one.pointer}", one.mend)
    if not flaws:
        yield Finding("published", True, f"{name}: {file} is a good record")
