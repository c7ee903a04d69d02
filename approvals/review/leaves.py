"""Arguments as rows that a person can read, and what differs between two of them.

A row is one leaf of the JSON value: where it is, as an RFC 6901 pointer and as steps, and what it is. Bounded in
number and depth whatever comes in; what is left out is counted, never silently missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any

import orjson

MOST_ROWS = 200
MOST_COMPARED = 5000
MOST_COUNTED = 20_000
DEPTH = 24
DEEP = "deep"

Steps = tuple[str | int, ...]
"""The way to a value: names of members, and numbers of items (so that `["x"]` is not `{"0": "x"}`)."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that is not taken apart further.

    `kind`: string, number, boolean, null, object, array (both empty), deep (either, below the depth of rows).
    """

    steps: Steps
    value: Any
    kind: str

    @property
    def pointer(self) -> str:
        """Where it is (RFC 6901)."""
        return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in self.steps)

    @property
    def text(self) -> str:
        """A string as it is, anything else as its JSON."""
        if self.kind == "string":
            return str(self.value)
        return orjson.dumps(self.value).decode()

    def equals(self, other: Leaf) -> bool:
        """Whether both are the same JSON: `1`, `1.0`, `true` and `"1"` are four values."""
        return self.kind == other.kind and self.text == other.text


class Change(StrEnum):
    """What became of a leaf since then."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Changed:
    """One leaf that differs: `then` is None where it was added, `now` where it was removed."""

    change: Change
    steps: Steps
    then: Leaf | None
    now: Leaf | None


@dataclass(frozen=True, slots=True)
class Compared:
    """All that differs, in the order of today's value (removed ones last), as far as it was compared.

    `whole` is false where a side has more leaves than are compared: then what is not listed may differ too.
    """

    changes: tuple[Changed, ...]
    same: int
    whole: bool


def leaves(value: Any, depth: int = DEPTH) -> Iterator[Leaf]:
    """Every leaf, in order, found as it is asked for. An empty object or array is one itself."""
    above: list[Iterator[tuple[Steps, Any]]] = [iter([((), value)])]
    while above:
        for steps, one in above[-1]:
            inner = _inner(one)
            if inner is None or len(steps) >= depth:
                yield Leaf(steps, one, _kind(one) if inner is None else DEEP)
            else:
                above.append(_below(steps, inner))
                break
        else:
            above.pop()


def _inner(one: Any) -> Mapping[str, Any] | Sequence[Any] | None:
    return one if isinstance(one, Mapping | list | tuple) and one else None


def _below(steps: Steps, inner: Mapping[str, Any] | Sequence[Any]) -> Iterator[tuple[Steps, Any]]:
    items: Iterable[tuple[str | int, Any]] = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
    return (((*steps, step), item) for step, item in items)


def count(value: Any) -> int:
    """How many leaves there are: exact below `MOST_COUNTED`, which stands for that many or more."""
    return sum(1 for _ in islice(leaves(value), MOST_COUNTED))


def compare(then: Any, now: Any, hidden: Collection[str] = ()) -> Compared:
    """What differs between two values; what lies at `hidden` pointers is compared by nobody."""
    before, whole_then = _some(then)
    after, whole_now = _some(now)
    changes, same = [], 0
    for steps, leaf in after.items():
        old = before.get(steps)
        if old is None:
            if whole_then:
                changes.append(Changed(Change.ADDED, steps, None, leaf))
        elif leaf.pointer not in hidden and not old.equals(leaf):
            changes.append(Changed(Change.CHANGED, steps, old, leaf))
        else:
            same += leaf.pointer not in hidden
    if whole_now:
        changes += [
            Changed(Change.REMOVED, steps, leaf, None) for steps, leaf in before.items() if steps not in after
        ]
    return Compared(tuple(changes), same, whole_then and whole_now)


def _some(value: Any) -> tuple[dict[Steps, Leaf], bool]:
    some = list(islice(leaves(value), MOST_COMPARED + 1))
    if some == [Leaf((), value, "object")]:  # no arguments at all
        return {}, True
    return {leaf.steps: leaf for leaf in some[:MOST_COMPARED]}, len(some) <= MOST_COMPARED


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    if isinstance(value, str):
        return "string"
    if isinstance(value, Mapping):
        return "object"
    return "array" if isinstance(value, list | tuple) else "number"
