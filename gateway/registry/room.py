"""What a local administrator's registry commands work on: records, the lock, the file of servers.

The order of an acceptance is that of the house: prepared, recorded durably, then put in place, the lock last.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gateway.contract.printable import printable
from gateway.pins import file as files
from gateway.registry.admission import Look, accept, look
from gateway.registry.client import RegistryClient
from gateway.registry.lock import MAX_BYTES, LockUnreadable, load_lock, read_lock, write_lock
from gateway.registry.stanzas import write_stanzas
from gateway.registry.watching import Examiner, Subject

CHUNK: Final = 20
"""Servers in one record, which has at most 16 KiB."""

Act = Callable[[str, str, Mapping[str, Any]], Awaitable[None]]
"""Writes an act down, by whom, with its facts; durable when it returns."""


class MovedOn(Exception):  # noqa: N818 - what happened
    """What is there now is not what was shown."""


class Unfit(Exception):  # noqa: N818 - what it is
    """With what was to be admitted the configuration could not be read."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where what was admitted lies, and by what it is judged. `taken`: servers of the configuration's own.

    `unfit`: why the configuration could not be read with such a text as its file of servers; empty where it could.
    """

    lock: Path
    servers: Path | None
    private: bool
    publisher: str
    taken: frozenset[str]
    read: Callable[[Path], dict[str, Any]]
    unfit: Callable[[bytes], str]


@dataclass(frozen=True, slots=True)
class RegistryRoom:
    """All of it. `client` is `None` where no registry is configured, `act` where nothing is accepted."""

    subjects: tuple[Subject, ...]
    examiner: Examiner
    client: Callable[[], RegistryClient] | None
    shelf: Shelf
    act: Act | None = None

    async def look(self, names: Collection[str], since: str = "") -> Look:
        """What the registry lists beside the lock. Raises `RegistryFault` subclasses, `OSError`, `LockUnreadable`."""
        if self.client is None:
            raise RuntimeError("no registry is configured")
        lock = await asyncio.to_thread(load_lock, self.shelf.lock)
        async with self.client() as client:
            entries = await client.entries(since)
            listed = {entry.name for entry in entries}
            for name in sorted(({*names} or {*lock}) - listed if not since else ()):
                # A list leaves deleted ones out: only by its name does a registry say that it is one.
                if (entry := await client.entry(name, "latest")) is not None:
                    entries.append(entry)
        shelf = self.shelf
        return await asyncio.to_thread(
            look, entries, lock, names, private=shelf.private, whole=not since, publisher=shelf.publisher
        )

    async def accept(self, shown: Look, named: str = "") -> None:
        """Admit what was looked at: the lock, then the file of servers.

        Raises `MovedOn`, `Unfit`, `OSError`, `LockUnreadable` and what the record raises.
        """
        shelf = self.shelf
        if self.act is None or shelf.servers is None:
            raise RuntimeError("opened for looking only")
        by = f"local:{os.getuid()}@{socket.gethostname()}"
        found = shown.open
        with files.held(shelf.lock) as target:
            lock = load_lock(target)
            for one in found:
                if lock.get(one.name) != one.before:
                    raise MovedOn(f"{one.name}: somebody else accepted it meanwhile")
            at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            after = accept(lock, found, by, at, shelf.taken, named)
            text = write_lock(after)
            if len(text) > MAX_BYTES:
                raise LockUnreadable(f"would be larger than {MAX_BYTES} bytes")
            await asyncio.to_thread(read_lock, text)
            stanzas = write_stanzas(after, shelf.read(shelf.servers))
            # A worker that replaces another reads it: it must be good before it is there.
            if why := await asyncio.to_thread(shelf.unfit, stanzas):
                raise Unfit(why)
            servers = shelf.servers.resolve()
            with files.prepared(target, text) as beside, files.prepared(servers, stanzas) as beside_servers:
                for start in range(0, len(found), CHUNK):
                    part = [
                        [printable(one.name, 256), one.state, *one.digests] for one in found[start : start + CHUNK]
                    ]
                    await self.act("registry_admitted", by, {"seen": shown.seen, "of": len(found), "records": part})
                # Whoever dies between the two leaves a file that the lock does not hold: nothing starts, and the same
                # acceptance again puts it right.
                files.put_in_place(beside_servers, servers)
                files.put_in_place(beside, target)


@dataclass(frozen=True, slots=True)
class RegistryDoor:
    """How the house lets a local administrator in (`ctx.obj`): `open(config_file, recorded)`.

    It raises `ClickException` where the configuration or the record can't be opened.
    """

    open: Callable[[Path, bool], AbstractAsyncContextManager[RegistryRoom]]


def subjects_named(subjects: Sequence[Subject], names: Collection[str]) -> list[Subject]:
    """The subjects of these servers; all where none is named. Raises `KeyError` for a server without a record."""
    if not names:
        return list(subjects)
    known = {one.server.name: one for one in subjects}
    return [known[name] for name in names]
