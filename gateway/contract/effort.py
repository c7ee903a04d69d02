"""How much work a schema can make of a document, bounded before anything is validated.

A validator can't be interrupted, and a caller chooses the document: a few references make 2^n evaluations of one
value, or as many for each level that a document is deep. So a schema's work on one value is counted ahead, for each
level, and a document is measured against it. One unit of work is a few dozen nanoseconds of the validator's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from gateway.contract.dialects import REFERENCES, find_reference
from gateway.contract.schemas import IN_PLACE, Schema, Unusable, subschemas

LEVELS: Final = 65
"""Levels that a document can have (`strict_json.MAX_DEPTH`, and the one above)."""

ENDLESS: Final = 10**12
"""Work that no document may make."""

MAX_NODES: Final = 5_000
_MAX_CLOSURE: Final = 100_000
_MAX_STEPS: Final = 50_000
_UNEVALUATED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_AGAIN: Final = 3
"""How often a validator looks at a schema's parts where it must know what they evaluated."""

_REACHES: Final[Mapping[str, tuple[str, str]]] = {
    "properties": ("property", "named"),
    "patternProperties": ("property", "each"),
    "propertyNames": ("property", "each"),
    "additionalProperties": ("property", "other"),
    "unevaluatedProperties": ("property", "each"),
    "prefixItems": ("item", "named"),
    "items": ("item", "other"),
    "contains": ("item", "each"),
    "unevaluatedItems": ("item", "each"),
}
"""Which values inside of a value a keyword's schema may judge: the one of that name, all, or those without a name."""

Weights = tuple[int, ...]


@dataclass(slots=True)
class _Node:
    """One schema: its own work on a value, and where it leads. Targets are numbers of nodes."""

    work: int
    same: list[tuple[int, int]] = field(default_factory=list)
    named: dict[tuple[str, str], int] = field(default_factory=dict)
    other: dict[str, list[int]] = field(default_factory=lambda: {"property": [], "item": []})
    each: dict[str, list[int]] = field(default_factory=lambda: {"property": [], "item": []})
    leads: bool = False


class Effort:
    """A schema (in the spelling of 2020-12) as a graph. Raises `Unusable` where it can't be read or has no end."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schemas: list[dict[str, Any]] = []
        self._nodes: list[_Node] = []
        self._number: dict[int, int] = {}
        self._anchors: dict[str, Any] = {}
        self._children: set[int] = {0}
        self._add(schema)
        for number, found in enumerate(self.schemas):  # grows where references lead to what no keyword does
            self._lead(number, found, schema)
        self._closures: dict[int, dict[int, int]] = {}
        self._close()

    def _add(self, schema: dict[str, Any]) -> int:
        """Number a schema and all that stand in it."""
        waiting = [schema]
        while waiting:
            found = waiting.pop()
            if id(found) in self._number:
                continue
            if len(self.schemas) == MAX_NODES:
                raise Unusable(f"more than {MAX_NODES} schemas in one")
            self._number[id(found)] = len(self.schemas)
            self.schemas.append(found)
            self._nodes.append(_Node(_own_work(found)))
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := found.get(keyword), str):
                    if name in self._anchors:
                        raise Unusable("an anchor stands twice")
                    self._anchors[name] = found
            waiting += [inner for _, _, inner in subschemas(found) if isinstance(inner, dict)]
        return self._number[id(schema)]

    def _lead(self, number: int, schema: Schema, root: Schema) -> None:
        """Follow everything that a schema says to the schemas it leads to."""
        node = self._nodes[number]
        times = _AGAIN if _UNEVALUATED & schema.keys() else 1
        for keyword in REFERENCES:
            if keyword in schema:
                target = find_reference(root, self._anchors, schema[keyword])
                if isinstance(target, dict):
                    node.same.append((self._add(target), times))
        for keyword, name, inner in subschemas(schema):
            if not isinstance(inner, dict):
                continue
            target = self._number[id(inner)]
            if keyword in IN_PLACE:
                node.same.append((target, times))
            elif keyword in _REACHES:
                self._children.add(target)
                node.leads = True
                kind, which = _REACHES[keyword]
                if which == "named":
                    node.named[kind, name] = target
                else:
                    (node.each if which == "each" else node.other)[kind].append(target)

    def _close(self) -> None:
        """For each schema, how often every other one judges the same value with it. Raises `Unusable` on a circle."""
        size = 0
        under_way: set[int] = set()
        for start in range(len(self._nodes)):
            waiting = [start]
            while waiting:
                number = waiting[-1]
                if number in self._closures:
                    waiting.pop()
                    continue
                missing = [target for target, _ in self._nodes[number].same if target not in self._closures]
                if missing:
                    under_way.add(number)
                    if not under_way.isdisjoint(missing):
                        raise Unusable("a reference that leads back to itself")
                    waiting += missing
                    continue
                closure: Counter[int] = Counter({number: 1})
                for target, times in self._nodes[number].same:
                    for inner, count in self._closures[target].items():
                        closure[inner] = min(closure[inner] + times * count, ENDLESS)
                self._closures[number] = dict(closure)
                under_way.discard(number)
                size += len(closure)
                if size > _MAX_CLOSURE:
                    raise Unusable("references too intricate")
                waiting.pop()

    def weights(self) -> Weights:
        """The most work on one value that lies n levels deep or less, for each n in 0...`LEVELS` - 1."""
        nodes, closures = self._nodes, self._closures
        works = [
            min(sum(nodes[inner].work * count for inner, count in closures[number].items()), ENDLESS)
            for number in range(len(nodes))
        ]
        flat = [not any(nodes[inner].leads for inner in closures[number]) for number in range(len(nodes))]
        heaviest = steps = 0
        found: list[int] = []
        seen: set[frozenset[tuple[int, int]]] = set()
        level: list[dict[int, int]] = [{0: 1}]
        while len(found) < LEVELS:
            following: list[dict[int, int]] = []
            for state in level:
                heaviest = max(heaviest, sum(works[number] * count for number, count in state.items()))
                if all(flat[number] for number in state):
                    continue
                judging = self._judging(state)
                if (key := frozenset(judging.items())) in seen:
                    continue
                seen.add(key)
                for below in self._below(judging):
                    steps += len(judging)
                    following.append(below)
                if steps > _MAX_STEPS or heaviest >= ENDLESS:
                    return (*found, *[ENDLESS] * (LEVELS - len(found)))
            found.append(heaviest)
            level = following
        return tuple(found)

    def _judging(self, state: Mapping[int, int]) -> dict[int, int]:
        """The schemas that lead deeper among all that judge a value, and how often, from those sent to it."""
        judging: Counter[int] = Counter()
        for number, count in state.items():
            for inner, times in self._closures[number].items():
                if self._nodes[inner].leads:
                    judging[inner] = min(judging[inner] + count * times, ENDLESS)
        return judging

    def _below(self, judging: Mapping[int, int]) -> Iterator[dict[int, int]]:
        """What is sent to the values inside of a value: to each that some schema names, and to any other."""
        labels = {label for number in judging for label in self._nodes[number].named}
        for kind, name in (*labels, ("property", ""), ("item", "")):
            below: Counter[int] = Counter()
            for number, count in judging.items():
                node = self._nodes[number]
                target = node.named.get((kind, name)) if (kind, name) in labels else None
                for inner in (*([target] if target is not None else node.other[kind]), *node.each[kind]):
                    below[inner] = min(below[inner] + count, ENDLESS)
            if below:
                yield below

    def closed_schemas(self) -> Iterator[dict[str, Any]]:
        """The schemas that a value is first sent to and that, with all that judge it too, declare members."""
        for number in self._children:
            if number == 0 or any(
                not {"properties", "patternProperties"}.isdisjoint(self.schemas[inner])
                for inner in self._closures[number]
            ):
                yield self.schemas[number]


def _own_work(schema: Schema) -> int:
    """The work of one schema on one value, without what it leads to."""
    work = 1
    for keyword, share in (("required", 1), ("properties", 8), ("patternProperties", 1), ("dependentSchemas", 1)):
        if isinstance(value := schema.get(keyword), (dict, list)):
            work += len(value) // share
    if isinstance(wanted := schema.get("dependentRequired"), dict):
        work += sum(1 + len(names) for names in wanted.values() if isinstance(names, list))
    for keyword in ("enum", "const"):
        if keyword in schema:
            work += len(orjson.dumps(schema[keyword])) // 64
    return work + (16 if schema.get("uniqueItems") is True else 0) + (4 if "multipleOf" in schema else 0)


def measure(document: Any) -> tuple[int, int]:
    """The mass of a document (its values, and an eighth of the bytes of texts and names), and how deep it is."""
    mass = depth = 0
    level = [document]
    while level:
        mass += len(level)
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
                mass += sum(map(len, value)) // 8
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str):
                mass += len(value) // 8
        level = below
        depth += bool(below)
    return mass, depth
