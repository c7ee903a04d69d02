"""Refusals of unknown callers beyond a rate are written together: one record for many, with `count`.

Invariant: each refusal is counted in exactly one record, and a flood of strangers writes a bounded number of records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_OWN_ONLY = ("request_id", "trace_id", "name", "arguments", "arguments_hmac", "method", "detail")
_MAX_FOLDS: Final = 256


class Flood:
    """Counts refusals per second of the loop's clock; `beyond` it they are folded by server and reasons."""

    def __init__(self, beyond: int) -> None:
        self._beyond: Final = beyond
        self._window = 0.0
        self._in_window = 0
        self._folds: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.folded = 0
        self.begins = False

    def takes(self, record: Mapping[str, Any], now: float) -> bool:
        """Whether the record was folded. `begins` says that `unfold` must be called within a second."""
        if now - self._window >= 1.0:
            self._window, self._in_window = now, 0
        self._in_window += 1
        if self._in_window <= self._beyond:
            return False
        key = (record.get("server"), *record.get("reasons", ()))
        if key not in self._folds and len(self._folds) >= _MAX_FOLDS:
            key = ()
        self.begins = not self._folds
        self.folded += 1
        fold = self._folds.get(key)
        if fold is None:
            self._folds[key] = {**record, **dict.fromkeys(_OWN_ONLY), "count": 1}
        else:
            fold["count"] += 1
        return True

    def unfold(self) -> list[dict[str, Any]]:
        """The folded records, each with its count; the next one starts anew."""
        folds, self._folds = self._folds, {}
        return list(folds.values())
