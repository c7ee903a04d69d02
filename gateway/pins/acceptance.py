"""What deviates from the pins, looked at and accepted: the acts behind `ostiary pins show` and `accept`.

Accepted is exactly what was shown: a look is a value with a digest of its own, and what moved since, on a server or
in the file, is refused. The order is that of the house: prepared, recorded durably, then put in place, so that no pin
is in force of which the record does not say who accepted it, and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gateway.catalog import Catalog
from gateway.contract.passage import Server
from gateway.contract.pins import (
    Deviation,
    Mode,
    Pinned,
    accept,
    check_pins,
    deviations,
    read_pins,
    seen_digest,
    write_pins,
)
from gateway.pins import file as files
from gateway.upstream.port import UpstreamFault

CHUNK: Final = 20
"""Tools in one record, which has at most 16 KiB."""

Record = Callable[[str, str, Mapping[str, Any]], Awaitable[None]]
"""Writes an act down, by whom, with its facts; durable when it returns."""


class Unknown(Exception):  # noqa: N818 - what it is
    """A server that is not configured, or a tool that is neither pinned nor offered."""


class MovedOn(Exception):  # noqa: N818 - what happened
    """What is there now is not what was shown."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """One server beside its pins: `known` are all tools that are pinned or offered, `kept` how many are as accepted.

    `fault` is why it could not be asked; then nothing else is known.
    """

    server: str
    mode: Mode
    known: frozenset[str] = frozenset()
    kept: int = 0
    found: tuple[Deviation, ...] = ()
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """What was shown."""

    shelves: tuple[Shelf, ...]

    @property
    def found(self) -> list[Deviation]:
        """All deviations, in the order in which they are shown."""
        return [one for shelf in self.shelves for one in shelf.found]

    @property
    def seen(self) -> str:
        """The digest of exactly this."""
        return seen_digest(self.found)

    @property
    def complete(self) -> bool:
        """Whether every server could be asked."""
        return not any(shelf.fault for shelf in self.shelves)


class Acceptance:
    """The file of pins beside what servers offer. `record` is `None` where nothing can be accepted."""

    def __init__(
        self,
        file: Path,
        modes: Mapping[str, Mode],
        servers: Mapping[str, Server],
        catalog: Catalog,
        record: Record | None = None,
    ) -> None:
        self._file = file
        self._modes = modes
        self._servers = servers
        self._catalog = catalog
        self._record = record

    def pinned(self) -> Pinned:
        """The pins as they lie there; none where there is no file. Raises `OSError` and `PinsUnreadable`."""
        text = files.read(self._file)
        return {} if text is None else read_pins(text)

    async def look(self, servers: Sequence[str] = (), tools: Sequence[str] = ()) -> Look:
        """The deviations of these servers (default: all that are held to pins), or of these tools of theirs alone.

        Raises `Unknown`, `OSError` and `PinsUnreadable`.
        """
        names = sorted(servers) or sorted(name for name, mode in self._modes.items() if mode != "off")
        pinned = await asyncio.to_thread(self.pinned)
        if strange := [name for name in names if name not in self._servers]:
            raise Unknown(f"servers: there is no {strange[0]!r}")
        chosen = [self._servers[name] for name in names]
        look = Look(tuple(await asyncio.gather(*(self._shelf(server, pinned, tools) for server in chosen))))
        known = {name for shelf in look.shelves for name in shelf.known}
        if look.complete and (strange := [name for name in tools if name not in known]):
            raise Unknown(f"no server has, and no pin is of, a tool {strange[0]!r}")
        return look

    async def _shelf(self, server: Server, pinned: Pinned, tools: Sequence[str]) -> Shelf:
        mode = self._modes.get(server.name, "off")
        try:
            offered = await self._catalog.whole(server)
        except UpstreamFault as fault:
            return Shelf(server.name, mode, fault=f"{type(fault).__name__}: {fault.detail}")
        pins = pinned.get(server.name, {})
        found = deviations(server.name, pins, offered)
        known = frozenset({*pins, *offered})
        kept = len(offered) - sum(one.now is not None for one in found)
        return Shelf(server.name, mode, known, kept, tuple(one for one in found if not tools or one.tool in tools))

    async def accept(self, look: Look, by: str) -> None:
        """Pin what was looked at. Raises `MovedOn`, `OSError`, `PinsUnreadable` and what the record raises."""
        if self._record is None:
            raise RuntimeError("opened for looking only")
        found = look.found
        with files.held(self._file) as target:
            pinned = self.pinned()
            for one in found:
                pin = pinned.get(one.server, {}).get(one.tool)
                if (pin.digest if pin else "") != one.digests[0]:
                    raise MovedOn(f"{one.server}/{one.tool}: somebody else accepted it meanwhile")
            at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            text = write_pins(accept(pinned, found, by, at))
            await asyncio.to_thread(check_pins, text)
            with files.prepared(target, text) as beside:
                for start in range(0, len(found), CHUNK):
                    part = [[one.server, one.tool, *one.digests] for one in found[start : start + CHUNK]]
                    await self._record("pins_accepted", by, {"seen": look.seen, "of": len(found), "tools": part})
                files.put_in_place(beside, target)
