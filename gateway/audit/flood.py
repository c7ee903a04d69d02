"""Refusals beyond a rate are written together: one record for many of a kind, with `count`, `first` and `last`.

Invariants: each refusal is counted in exactly one record; a flood writes a bounded number of records and takes a
bounded room. Nobody's flood touches the records of somebody who is below the rate, and what is counted together is of
one caller and one kind, unless so many flood at once that the last record says how many they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.contract.folding import Actor, Kind

STRANGERS_KINDS: Final = 256
ACTORS_KINDS: Final = 32
"""Kinds that are told apart of one caller in a second; all others of that caller share one more record."""

ALL_KINDS: Final = 1024
"""The same of all known callers together."""

ALL_TIMES: Final = 10
"""How many callers may use up their rate in a second, until all that follows is folded."""

MOST_ACTORS: Final = 4096
"""Callers whose refusals are counted apart in a second, and callers that the last record can tell apart."""

_LAST: Final = Kind(None, "", "", "", rest=("of several callers",))
_OWN_ONLY: Final = ("request_id", "trace_id", "arguments", "arguments_hmac", "latency_ms", "ticket")
_MIXED: Final = (
    "server", "resource", "environment", "status", "code", "detail", "verdict", "policy_revision", "legacy", "quirks",
    "method", "name",
)  # fmt: skip
"""What is said of none where several kinds share a record."""

Record = Mapping[str, Any]


@dataclass(slots=True)
class _Fold:
    """What was counted together. `record` is that of the first; times in seconds since the epoch."""

    record: Record
    kind: Kind
    first: float
    last: float
    count: int = 0
    reasons: dict[str, None] = field(default_factory=dict)
    actors: set[int] | None = None
    """Of the last record: whose they were, by the hash of their names."""


class Flood:
    """Counts refusals per caller and second of the loop's clock. `folded` is how many came `beyond` the rate."""

    def __init__(self, beyond: int, clock: Callable[[], float] = time.time) -> None:
        self._beyond: Final = beyond
        self._clock: Final = clock
        self._window = 0.0
        self._seen: dict[Actor | None, int] = {}
        self._written = 0
        self._folds: dict[Kind, _Fold] = {}
        self._kinds: dict[Actor | None, int] = {}
        self._known = 0
        self.folded = 0

    @property
    def waits(self) -> bool:
        """Whether there is something to unfold."""
        return bool(self._folds)

    def takes(self, kind: Kind, make: Callable[[], Record], now: float) -> bool:
        """Whether the refusal was counted in a record that others share; `make` gives its own, for the first."""
        if now - self._window >= 1.0:
            self._window, self._written = now, 0
            self._seen.clear()
        actor, seen = kind.actor, self._seen
        before = seen.get(actor, 0)
        if before < self._beyond and self._written < ALL_TIMES * self._beyond and (before or len(seen) < MOST_ACTORS):
            seen[actor] = before + 1
            self._written += 1
            return False
        self.folded += 1
        fold = self._folds.get(kind) or self._find(kind, make)
        fold.count += 1
        fold.last = self._clock()
        if not fold.kind.reason:
            fold.reasons[kind.reason] = None
            if fold.actors is not None and len(fold.actors) < MOST_ACTORS:
                fold.actors.add(hash(actor))
        return True

    def _find(self, kind: Kind, make: Callable[[], Record]) -> _Fold:
        """The fold of a kind that has none yet: its own, its caller's last, or the last of all."""
        actor = kind.actor
        kinds = self._kinds.get(actor, 0)
        if kinds >= (STRANGERS_KINDS if actor is None else ACTORS_KINDS):
            kind = Kind(actor, "", "", "")
        if actor is not None and self._known >= ALL_KINDS and kind not in self._folds:
            kind = _LAST
        fold = self._folds.get(kind)
        if fold is None:
            now = self._clock()
            fold = self._folds[kind] = _Fold(make(), kind, now, now, actors=set() if kind is _LAST else None)
            self._kinds[actor] = kinds + 1
            self._known += actor is not None
        return fold

    def unfold(self) -> list[Record]:
        """The records, one for each fold; what comes next starts anew. Of what came once it is the refusal's own."""
        folds = self._folds.values()
        self._folds, self._kinds, self._known = {}, {}, 0
        return [fold.record if fold.count == 1 else _shared(fold) for fold in folds]


def _shared(fold: _Fold) -> dict[str, Any]:
    """The record of several: without what was the first one's own, its `decision_id` aside."""
    kind = fold.kind
    record = {**fold.record, **dict.fromkeys(_OWN_ONLY)}
    if not kind.method:
        record["method"] = None
    if not kind.name:
        record["name"] = None
    if not kind.detail:
        record["detail"] = None
    if not kind.reason:
        record |= {**dict.fromkeys(_MIXED), "reasons": list(fold.reasons)[:16]}
        record.pop("upstream_revision", None)  # the first one's server's
    if fold.actors is not None:
        record |= {"actor": None, "actors": len(fold.actors)}
    return record | {"count": fold.count, "first": _moment(fold.first), "last": _moment(fold.last)}


def _moment(seconds: float) -> str:
    whole, millis = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{millis:03d}Z"
