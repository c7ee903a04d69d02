"""Who read the record is itself recorded: what they asked for, and how often, in few records.

The first look at something is written at once; the same again within `FOLD_S` is counted and written as one when that
time is over. Nothing waits for the disk: an auditor can look while it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.contract.record import admin_record
from gateway.contract.secret_shapes import conceal

FOLD_S: Final = 600.0
MOST: Final = 500
"""Looks that are remembered; the oldest is written when there are more."""

Note = Callable[[Mapping[str, Any]], None]
Key = tuple[str, str, tuple[tuple[str, str], ...]]


def without_secrets(asked: Mapping[str, str]) -> dict[str, str]:
    """Filters as a record may hold them: what was pasted into a field by mistake is not written down."""
    return {name: conceal(value)[0] for name, value in asked.items()}


class Readings:
    """Looks at the record. `note` is the sink's."""

    def __init__(self, note: Note, fold_s: float = FOLD_S) -> None:
        self._note: Final = note
        self._fold_s: Final = fold_s
        self._again: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    def tell(self, by: str, page: str, asked: Mapping[str, str]) -> None:
        """Somebody looked at `page` with these filters."""
        key = (by, page, tuple(sorted(asked.items())))
        if key in self._again:
            self._again[key] += 1
            return
        if len(self._again) >= MOST:
            self._end(next(iter(self._again)))
        self._write(key, 1)
        self._again[key] = 0
        self._timers[key] = asyncio.get_running_loop().call_later(self._fold_s, self._end, key)

    def _end(self, key: Key) -> None:
        self._timers.pop(key).cancel()
        if times := self._again.pop(key):
            self._write(key, times)

    def _write(self, key: Key, times: int) -> None:
        by, page, asked = key
        self._note(admin_record("record_read", by, {"page": page, **without_secrets(dict(asked))}) | {"count": times})

    def close(self) -> None:
        """Write what was only counted."""
        for key in list(self._again):
            self._end(key)
