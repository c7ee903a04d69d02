"""The keeper of one worker: is this definition the accepted one, and who has to be told that it is not?

Invariant: under `enforce` no definition is listed or called that the file of pins does not hold, from the moment it
is read on. A file that can't be read changes nothing but the alarm: the pins that were good stay in force. Each
deviation is told once, in the log, the metrics and the record, however often it is met; memory is bounded.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from gateway.beside import tell_if_broken
from gateway.contract.passage import Tool
from gateway.contract.pins import Mode, PinsUnreadable, State, read_pins
from gateway.contract.printable import printable
from gateway.pins import file as files

LOOK_EVERY_S: Final = 1.0
"""How often the file is looked at; a change is in force at most this and the reading later."""

YOUNG_S: Final = 3.0
"""A file that changed so lately is read again even if it looks the same: clocks of file systems are coarse."""

KEPT: Final = 10_000
"""Deviations that are remembered as told, of each server."""

MOST: Final = 16
"""Tools of one kind that an alert names, so that its record stays small; it counts them all."""

Digests = Mapping[str, Mapping[str, str]]
"""Server -> tool -> digest."""

_GONE: Final = (0, 0, 0, 0)

Journal = Callable[[str, Mapping[str, Any]], None]
"""Writes down what the house did: an act and its facts. Must not block."""

Deviated = Callable[[str, str, int], None]
"""Counts deviations: server, state, how many. Must not block."""


class Pins:
    """All servers' pins. One per worker and event loop. `modes` are by server's name; one without is `off`."""

    def __init__(
        self,
        modes: Mapping[str, Mode] | None = None,
        file: Path | None = None,
        journal: Journal = lambda _act, _facts: None,
        count: Deviated = lambda _server, _state, _tools: None,
    ) -> None:
        self._modes = {server: mode for server, mode in (modes or {}).items() if mode != "off"}
        self._file = file if self._modes else None
        self._journal = journal
        self._count = count
        self._doubt: Callable[[str], None] = lambda _server: None
        self._log = structlog.get_logger("pins")
        self._digests: Digests = {}
        self._text = ""
        self._digest = ""
        self._offered: dict[str, Mapping[str, str]] = {}
        self._told: dict[str, OrderedDict[tuple[str, str, str], None]] = {}
        self._mark: files.Mark | None = None
        self._broken = ""
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the file, then keep looking at it. No file is no pin. Raises `OSError` and `PinsUnreadable`."""
        if self._file is None:
            return
        found = await asyncio.to_thread(self._read, self._file)
        if found is None:
            self._log.warning("pins_missing", file=str(self._file))
        else:
            self._take(*found)
        self._looking = asyncio.create_task(self._look_after(self._file), name="pins")
        self._looking.add_done_callback(tell_if_broken("pins"))

    async def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    def when_in_doubt(self, doubt: Callable[[str], None]) -> None:
        """Have `doubt(server)` called where a list that passes shows what nobody knew of: older ones are outdated."""
        self._doubt = doubt

    @property
    def healthy(self) -> bool:
        """Whether the file that lies there is the one in force."""
        return not self._broken and (self._looking is None or not self._looking.done())

    @property
    def digest(self) -> str:
        """SHA-256 over which definitions are accepted, not by whom or when; `""` where there is no file in force."""
        return self._digest

    def enforced(self, server: str) -> bool:
        """Whether a server's tools have to be accepted."""
        return self._modes.get(server) == "enforce"

    def in_force(self) -> object:
        """What `judge` goes by now: the very same object as before only if nothing of it changed."""
        return self._digests

    def judge(self, server: str, tool: Tool) -> Tool:
        """The tool, and what its definition is to the pins that are in force now."""
        mode = self._modes.get(server)
        if mode is None:
            return tool
        pin = self._digests.get(server, {}).get(tool.name)
        pinned = pin == tool.digest
        quarantine = "" if pinned or mode != "enforce" else State.NEW if pin is None else State.CHANGED
        if tool.pinned is pinned and tool.quarantine == quarantine:
            return tool
        return replace(tool, pinned=pinned, quarantine=quarantine)

    def met(self, server: str, tools: Sequence[Tool]) -> None:
        """Tools that a server lists: tell what deviates and was not told yet."""
        if server in self._modes and self._tell(server, {tool.name: tool.digest for tool in tools}, ()):
            self._doubt(server)

    def met_all(self, server: str, tools: Mapping[str, Tool]) -> None:
        """The whole of what a server offers: the same, and what is gone."""
        if server in self._modes:
            self._offered[server] = offered = {name: tool.digest for name, tool in tools.items()}
            self._tell(server, offered, [name for name in self._digests.get(server, {}) if name not in offered])

    def quarantined(self) -> dict[str, int]:
        """By server, how many of the tools that it offers are neither listed nor callable."""
        return {
            server: sum(self._digests.get(server, {}).get(name) != found for name, found in offered.items())
            for server, offered in self._offered.items()
            if self.enforced(server)
        }

    def _tell(self, server: str, offered: Mapping[str, str], gone: Sequence[str]) -> bool:
        """Tell what is news -> whether there was any."""
        pins = self._digests.get(server, {})
        found: dict[State, list[list[str]]] = {State.CHANGED: [], State.NEW: [], State.GONE: []}
        for name, now in [*offered.items(), *((name, "") for name in gone)]:
            before = pins.get(name, "")
            if before == now or not self._is_news(server, (name, before, now)):
                continue
            state = State.GONE if not now else State.CHANGED if before else State.NEW
            found[state].append([printable(name, 128), *(digest for digest in (before, now) if digest)])
        news = {state: tools for state, tools in found.items() if tools}
        if not news:
            return False
        for state, tools in news.items():
            self._count(server, state, len(tools))
        facts: dict[str, Any] = {
            "server": server,
            "mode": self._modes[server],
            "count": sum(map(len, news.values())),
            **{str(state): tools[:MOST] for state, tools in news.items()},
        }
        self._log.warning("definitions_deviate", **facts)
        self._journal("definitions_deviate", facts)
        return True

    def _is_news(self, server: str, key: tuple[str, str, str]) -> bool:
        told = self._told.setdefault(server, OrderedDict())
        if key in told:
            told.move_to_end(key)
            return False
        told[key] = None
        if len(told) > KEPT:
            told.popitem(last=False)
        return True

    # ------------------------------------------------------------------ the file

    async def _look_after(self, file: Path) -> None:
        """Read what changed; what can't be read twice in a row is an alarm."""
        doubted = False
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                found = await asyncio.to_thread(self._read, file)
            except (OSError, PinsUnreadable) as error:
                if isinstance(error, OSError):  # the text may be all right: nothing about the file need change then
                    self._mark = _GONE
                if doubted:
                    self._alarm(str(error), file)
                else:  # somebody may be writing it at this moment
                    self._mark = _GONE
                doubted = True
            else:
                doubted = False
                if found is not None:
                    self._take(*found)

    def _read(self, file: Path) -> tuple[Digests, str] | None:
        """Digests and the text's own, where the file may be another than the last that was read; not on the loop.

        Raises `OSError`, also for a file that is there no more, and `PinsUnreadable`.
        """
        mark = files.mark_of(file)  # before the text: what is written meanwhile has another
        if mark is None and self._mark is None:
            return None
        if mark is not None and mark == self._mark and abs(time.time() - mark[3] / 1e9) > YOUNG_S:
            return None
        self._mark = mark or _GONE
        text = files.read(file)
        if text is None:
            raise FileNotFoundError("the file is gone; its pins stay in force")
        pins = {
            server: {name: pin.digest for name, pin in tools.items()} for server, tools in read_pins(text).items()
        }
        return pins, hashlib.sha256(text).hexdigest()

    def _take(self, digests: Digests, text_digest: str) -> None:
        """These are in force from now on."""
        self._broken = ""
        if text_digest == self._text:
            return
        before, self._digests, self._text = self._digests, digests, text_digest
        self._digest = hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
        moved = [
            [
                server,
                printable(name, 128),
                before.get(server, {}).get(name, ""),
                digests.get(server, {}).get(name, ""),
            ]
            for server in sorted({*before, *digests})
            for name in sorted({*before.get(server, {}), *digests.get(server, {})})
            if before.get(server, {}).get(name) != digests.get(server, {}).get(name)
        ]
        facts = {"sha256": text_digest, "tools": sum(map(len, digests.values())), "moved": len(moved)}
        self._log.info("pins_loaded", **facts)
        # At a start all of them moved, and the file's digest says it shorter.
        self._journal("pins_loaded", facts if self._looking is None else {**facts, "which": moved[:MOST]})
        for server, offered in self._offered.items():
            self._tell(server, offered, [name for name in digests.get(server, {}) if name not in offered])

    def _alarm(self, why: str, file: Path) -> None:
        """Say once for each broken file what is wrong with it; the gauge says it all the time."""
        if why != self._broken:
            self._broken = why
            self._log.error("pins_not_read", file=str(file), why=why)
            self._journal("pins_not_read", {"why": why})
