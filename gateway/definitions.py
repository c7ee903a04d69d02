"""What follows from a tool's definition, found out once for each: its header bindings, or why it can't be used.

A tool whose definition contradicts itself is left out, with a warning, and the others stay (contract.md section 3):
out of the catalogue, so that a call of it is answered like one of a tool that does not exist, and out of every list.
Memory is bounded whatever servers list.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from gateway.contract.bindings import Binding, read_bindings
from gateway.contract.fingerprint import digest_definition
from gateway.contract.passage import Tool
from gateway.contract.schemas import Unusable

NOTHING: Mapping[str, Any] = {}
KEPT = 10_000
"""Definitions, of all servers together, that are remembered; the one that was asked for longest ago goes first."""

TURN = 16
"""After so many definitions the event loop gets a turn."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a definition says. `fault` is why it can't be used; then there is nothing else."""

    fault: str = ""
    bindings: tuple[Binding, ...] = ()


@dataclass(slots=True)
class Definitions:
    """All that was read of servers' definitions. One per worker and event loop, shared by catalogue and lists."""

    _known: OrderedDict[tuple[str, str], Reading] = field(default_factory=OrderedDict)

    def read(self, server: str, item: Mapping[str, Any]) -> Tool | None:
        """One entry of a server's `tools/list` -> the tool, or `None` for one that can't be used.

        `item` has a `name` that is a string.
        """
        if not isinstance(item.get("inputSchema"), dict):
            return None
        digest = digest_definition(item)
        reading = self._reading(server, digest, item)
        if reading.fault:
            return None
        annotations = item.get("annotations")
        return Tool(
            item["name"], digest, annotations if isinstance(annotations, dict) else NOTHING, item, reading.bindings
        )

    async def left_out(self, server: str, items: Sequence[Mapping[str, Any]]) -> set[str]:
        """The names of a page of `tools/list` that can't be used. Every item has a `name` that is a string."""
        names = set()
        for number, item in enumerate(items, 1):
            if number % TURN == 0:
                await asyncio.sleep(0)
            if self.read(server, item) is None:
                names.add(item["name"])
        return names

    def _reading(self, server: str, digest: str, item: Mapping[str, Any]) -> Reading:
        key = (server, digest)
        reading = self._known.get(key)
        if reading is None:
            reading = self._known[key] = self._find_out(server, item)
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return reading

    @staticmethod
    def _find_out(server: str, item: Mapping[str, Any]) -> Reading:
        try:
            return Reading(bindings=read_bindings(item["inputSchema"]))
        except Unusable as found:
            log = structlog.get_logger("definitions")
            log.warning("tool_left_out", server=server, tool=item["name"][:128], reason=str(found))
            return Reading(fault=str(found))
