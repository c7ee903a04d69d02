"""Certificates that are replaced while the gateway runs: looked at, judged, and taken only when they are whole.

Invariant: what can't be used changes nothing: the certificate before it stays in force, and the log, the metrics and
the record say why. Files are looked at, not waited for: notifications do not cross every kind of mount.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from gateway.beside import tell_if_broken
from gateway.wires.pem import Files, Material, Stamp, WireRefused, load

LOOK_EVERY_S: Final = 1.0
"""How often files are looked at; a change is in force once it was the same at two looks in a row."""

AGAIN_S: Final = 60.0
"""What was refused is tried again so often, for time may have mended it; it is told once."""

Journal = Callable[[str, Mapping[str, Any]], None]
"""Writes down what the house did: an act and its facts. Must not block."""


class Wire:
    """One place where certificates are shown or asked for. `context` is what the next connection begins with."""

    __slots__ = ("_again_at", "_refused", "_seen", "_taken", "files", "looks", "material")

    def __init__(self, files: Files) -> None:
        self.files = files
        self.material: Material
        self._taken: Stamp = ()
        self._seen: Stamp = ()
        self._refused = ""
        self._again_at = math.inf  # monotonic
        self.looks = 0
        """How often the files were read."""

    @property
    def context(self) -> ssl.SSLContext:
        """Of what was last taken. A connection that began with another is not used for anything new."""
        return self.material.context

    @property
    def current(self) -> bool:
        """Whether what lies there is what is in force."""
        return not self._refused

    def open(self) -> None:
        """The first look (blocking). Raises `WireRefused`."""
        self._taken = self._seen = self.files.stamp()
        self.material = load(self.files)

    def look(self) -> str | None:
        """Take what changed (blocking) -> `None`: no news; "": taken; else why it was not."""
        now = self.files.stamp()
        rested, self._seen = now == self._seen, now
        if time.monotonic() < self._again_at and (now == self._taken or not rested):
            return None
        self._taken, self._again_at = now, math.inf
        self.looks += 1
        before = self._refused
        try:
            found = load(self.files)
        except WireRefused as refused:
            if self.files.stamp() != now:
                self._taken = ()  # somebody is writing: what was read may be half of each
                return None
            self._refused = str(refused)
            self._again_at = time.monotonic() + AGAIN_S
            return None if self._refused == before else self._refused
        self.material, self._refused = found, ""
        return ""


class Wires:
    """All places of one worker, and the one clock that looks at their files."""

    def __init__(
        self,
        places: Sequence[Files],
        journal: Journal = lambda _act, _facts: None,
        count: Callable[[bool], None] = lambda _taken: None,
    ) -> None:
        self._wires = {files.setting: Wire(files) for files in places}
        self._journal = journal
        self._count = count
        self._log = structlog.get_logger("wires")
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load all, then keep looking at them. Raises `WireRefused`."""
        for wire in self._wires.values():
            await asyncio.to_thread(wire.open)
        if self._wires:
            self._looking = asyncio.create_task(self._look_on(), name="wires")
            self._looking.add_done_callback(tell_if_broken("wires"))

    async def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    def get(self, setting: str) -> Wire | None:
        """The place that a setting is about, if it is configured."""
        return self._wires.get(setting)

    def current(self) -> dict[str, float]:
        """For metrics: setting -> 1 where what lies there is what is in force."""
        looks = self._looking is not None and not self._looking.done()
        return {setting: float(wire.current and looks) for setting, wire in self._wires.items()}

    def expires_in(self) -> dict[str, float]:
        """For metrics: setting -> seconds until the certificate that is shown expires; less than 0 after that."""
        now = time.time()
        shown = ((setting, wire.material.expires_at) for setting, wire in self._wires.items())
        return {setting: at - now for setting, at in shown if at is not None}

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for setting, wire in self._wires.items():
                why = await asyncio.to_thread(wire.look)
                if why is not None:
                    self._tell(setting, wire.material, why)

    def _tell(self, setting: str, material: Material, why: str) -> None:
        """A certificate that is in force from now on, or one that is not taken."""
        self._count(not why)
        facts = {"setting": setting, "fingerprint": material.fingerprint}
        if material.expires_at is not None:
            facts["expires"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(material.expires_at))
        if why:
            self._log.error("certificate_not_replaced", **facts, why=why)
            self._journal("certificate_not_replaced", {**facts, "why": why})
        else:
            self._log.info("certificate_replaced", **facts)
            self._journal("certificate_replaced", facts)
