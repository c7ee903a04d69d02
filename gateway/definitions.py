"""What follows from a tool's definition, found out once for each: bindings, contract, or why it can't be used.

A tool whose definition contradicts itself is left out, with a warning, and the others stay (contract.md section 3):
out of the catalogue, so that a call of it is answered like one of a tool that does not exist, and out of every list.
Memory is bounded whatever servers list.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from gateway.contract.arguments import Contract, Mode
from gateway.contract.bindings import Binding, read_bindings
from gateway.contract.fingerprint import digest_definition, spelling
from gateway.contract.passage import Tool
from gateway.contract.schemas import Unusable
from gateway.pins.keeper import Pins

NOTHING: Mapping[str, Any] = {}
KEPT = 10_000
"""Definitions, of all servers together, that are remembered; the one that was asked for longest ago goes first."""

COMPILED_BYTES = 16_777_216
"""Schemas, in bytes of their text, that stay compiled. A server of fifty tools has about a hundred thousand."""

LARGEST = 1_048_576
"""Of a definition that can be used, in bytes: reading it, and its digest alone, take Python up to a second."""

SAID = 16
"""Tools of one page that are warned of in a line each, which counts the others."""

TURN = 32
"""After so many known definitions the event loop gets a turn. New ones are read in a thread: a large schema takes
Python a quarter of a second."""


@dataclass(frozen=True, slots=True)
class ArgumentRules:
    """How strictly a server's tools are held to their schemas: all of them, and single ones by name."""

    default: Mode = "declared"
    tools: Mapping[str, Mode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a definition says. `fault` is why it can't be used; then there is nothing else."""

    fault: str = ""
    digest: str = ""
    bindings: tuple[Binding, ...] = ()
    contract: Contract | None = None


@dataclass(slots=True)
class Definitions:
    """All that was read of servers' definitions. One per worker and event loop, shared by catalogue and lists.

    `rules` are by server's name; a server without any is held to `declared`.
    """

    rules: Mapping[str, ArgumentRules] = field(default_factory=dict)
    pins: Pins = field(default_factory=Pins)
    compiled_bytes: int = COMPILED_BYTES
    _known: OrderedDict[tuple[str, bytes], Reading] = field(default_factory=OrderedDict)
    _compiled: OrderedDict[tuple[str, bytes], Contract] = field(default_factory=OrderedDict)
    _weight: int = 0

    async def read(self, server: str, items: Sequence[Mapping[str, Any]]) -> list[Tool | None]:
        """A page of a server's `tools/list` -> its tools, in order; `None` for one that can't be used.

        Every item has a `name` that is a string.
        """
        tools: list[Tool | None] = []
        faults: list[tuple[str, str]] = []
        for number, item in enumerate(items, 1):
            if number % TURN == 0:
                await asyncio.sleep(0)
            tools.append(
                await self._read(server, item, faults) if isinstance(item.get("inputSchema"), dict) else None
            )
        for name, fault in faults[:SAID]:
            log = structlog.get_logger("definitions")
            log.warning(
                "tool_left_out", server=server, tool=name[:128], reason=fault, more=max(len(faults) - SAID, 0)
            )
        self.pins.met(server, [tool for tool in tools if tool is not None])
        return tools

    async def offered(self, server: str, items: Sequence[Mapping[str, Any]]) -> list[Tool | None]:
        """Like `read`, and `None` for what is quarantined as well: what can't be called is not shown."""
        return [None if tool is None or tool.quarantine else tool for tool in await self.read(server, items)]

    async def _read(self, server: str, item: Mapping[str, Any], faults: list[tuple[str, str]]) -> Tool | None:
        """`faults` gets what nobody was warned of yet."""
        text = spelling(item)
        key = (server, hashlib.sha256(text).digest())
        reading = self._known.get(key)
        if reading is None:
            fault = f"larger than {LARGEST} bytes" if len(text) > LARGEST else ""
            found = await asyncio.to_thread(self._find_out, server, item, fault)
            reading = self._remember(key, found)
            if found.fault and reading is found:
                faults.append((item["name"], found.fault))
        else:
            self._known.move_to_end(key)
            if key in self._compiled:
                self._compiled.move_to_end(key)
        if reading.fault:
            return None
        annotations = item.get("annotations")
        tool = Tool(
            name=item["name"],
            digest=reading.digest,
            annotations=annotations if isinstance(annotations, dict) else NOTHING,
            definition=item,
            bindings=reading.bindings,
            contract=reading.contract,
        )
        return self.pins.judge(server, tool)

    def _find_out(self, server: str, item: Mapping[str, Any], fault: str) -> Reading:
        schema, name = item["inputSchema"], item["name"]
        rules = self.rules.get(server, ArgumentRules())
        mode = rules.tools.get(name, rules.default)
        try:
            if fault:
                raise Unusable(fault)
            bindings = read_bindings(schema)
            contract = None if mode == "off" else Contract(schema, strict=mode == "strict")
            return Reading("", digest_definition(item), bindings, contract)
        except Unusable as found:
            return Reading(fault=str(found) or "unusable")

    def _remember(self, key: tuple[str, bytes], reading: Reading) -> Reading:
        if key in self._known:  # somebody else read the same meanwhile
            return self._known[key]
        self._known[key] = reading
        if len(self._known) > KEPT:
            self._forget(self._known.popitem(last=False)[0])
        if reading.contract is not None:
            self._compiled[key] = reading.contract
            self._weight += reading.contract.weight
            while self._weight > self.compiled_bytes:
                self._forget(next(iter(self._compiled)))
        return reading

    def _forget(self, key: tuple[str, bytes]) -> None:
        """The tools that are in use keep their contract, which from now on is compiled for each call."""
        contract = self._compiled.pop(key, None)
        if contract is not None:
            self._weight -= contract.weight
            contract.rest()
