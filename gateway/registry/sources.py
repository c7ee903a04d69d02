"""Where the record of a server comes from: a file, a URL of the command line, or one version in the private registry.

A source gives what was published, and what the registry says of it, and nothing else. None of them is ever a URL that
a record names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.registry.asking import RegistryFault
from gateway.registry.client import RegistryClient, fetch_record
from gateway.registry.listing import Entry, Unreadable, read_entry
from gateway.registry.record import LARGEST, Published, RecordUnusable, published, read_record


class NoRecord(Exception):  # noqa: N818 - what there is
    """The record could not be had, or is none. The text says which, and why."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The ways to records. `client` makes one to the private registry; `None` where none is configured."""

    client: Callable[[], RegistryClient] | None = None

    async def find(self, source: str, file: Path | None) -> Published:
        """The record of a setting: its file, or `NAME@VERSION`. Raises `NoRecord`."""
        if file is not None:
            return await asyncio.to_thread(record_in, file)
        name, _, version = source.partition("@")
        if self.client is None:
            raise NoRecord(f"{source}: registry.url is not set")
        try:
            # A client reads every authority's certificate: not on the loop.
            async with await asyncio.to_thread(self.client) as client:
                entry = await client.entry(name, version)
        except RegistryFault as fault:
            raise NoRecord(f"{source}: the registry {fault}") from None
        if entry is None or entry.status == "deleted":
            raise NoRecord(f"{source}: the registry has no such record" + (" any more" if entry else ""))
        return await asyncio.to_thread(of_entry, entry, source)


def record_in(file: Path) -> Published:
    """The record in a file. Raises `NoRecord`."""
    try:
        with file.open("rb") as stream:
            return read_record(stream.read(LARGEST + 1))
    except OSError as error:
        raise NoRecord(f"{file}: {error.strerror}") from None
    except RecordUnusable as error:
        raise NoRecord(f"{file}: {error}") from None


async def record_at(url: str) -> Published:
    """The record at a URL that the operator named, alone or as a registry answers with it. Raises `NoRecord`."""
    try:
        value: Any = await fetch_record(url)
        entry = read_entry(value)
    except RegistryFault as fault:
        raise NoRecord(f"{url}: it {fault}") from None
    except Unreadable as error:
        raise NoRecord(f"{url}: {error}") from None
    return of_entry(entry, url)


def of_entry(entry: Entry, source: str) -> Published:
    """What an entry's record says. Raises `NoRecord`."""
    try:
        if entry.fault:
            raise NoRecord(f"{source}: {entry.fault}")
        return published(entry.document)
    except RecordUnusable as error:
        raise NoRecord(f"{source}: {error}") from None
