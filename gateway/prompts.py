"""What a server's prompts declare, for who asks for one and for who lists them.

A prompt whose declaration contradicts itself is left out, with a warning, and the others stay: out of the catalogue,
so that a call of it is answered like one of a prompt that does not exist, and out of every list.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from gateway.contract.prompts import UNREAD, Prompt, read_prompt
from gateway.contract.schemas import Unusable

SAID = 16
"""Prompts of one page that are warned of in a line each, which counts the others."""

WARNED = 1000
"""Prompts that are remembered as warned of; the first of them goes first."""


@dataclass(slots=True)
class Prompts:
    """All servers' prompts. One per worker. `unread` are the servers that look at arguments themselves."""

    unread: frozenset[str] = frozenset()
    _warned: OrderedDict[tuple[str, str], None] = field(default_factory=OrderedDict)

    def read(self, server: str, items: Sequence[Mapping[str, Any]]) -> list[Prompt | None]:
        """A page of a server's `prompts/list` -> its prompts, in order; `None` for one that can't be used.

        Every item has a `name` that is a string.
        """
        if server in self.unread:
            return [UNREAD] * len(items)
        faults: list[tuple[str, str]] = []
        prompts = [self._read(server, item, faults) for item in items]
        for name, fault in faults[:SAID]:
            log, more = structlog.get_logger("prompts"), max(len(faults) - SAID, 0)
            log.warning("prompt_left_out", server=server, prompt=name, reason=fault, more=more)
        return prompts

    def left_out(self, server: str, items: Sequence[Mapping[str, Any]]) -> set[str]:
        """The names of a page of `prompts/list` that can't be used. Every item has a `name` that is a string."""
        found = self.read(server, items)
        return {item["name"] for item, prompt in zip(items, found, strict=True) if prompt is None}

    def _read(self, server: str, item: Mapping[str, Any], faults: list[tuple[str, str]]) -> Prompt | None:
        """`faults` gets what nobody was warned of yet."""
        try:
            return read_prompt(item)
        except Unusable as found:
            key = (server, item["name"][:128])
            if key not in self._warned:
                self._warned[key] = None
                if len(self._warned) > WARNED:
                    self._warned.popitem(last=False)
                faults.append((key[1], str(found)))
            return None
