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

MOST_WORK: Final = 1_000_000
"""Units of work that one document may make: about 40 ms at the worst."""

TEXT: Final = 64

FEW: Final = 256
"""Values that are walked through in less time than a large text is looked at."""

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


@dataclass(frozen=True, slots=True)
class Weights:
    """What a schema costs: units of work on a value, by its depth, and on each `TEXT` characters of a text."""

    values: tuple[int, ...]
    text: int
    deep: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "deep", max(self.values[1:]))

    def exceed(self, document: Any, text: bytes) -> bool:
        """Whether the work on a document is more than `MOST_WORK`. `text` is JSON text in which it stands.

        The dearest way to know is to walk through a document of many values, and comes last.
        """
        texts = self.values[0] + self.text * (len(text) // TEXT)
        if texts + self.deep * len(text) <= MOST_WORK:
            return False
        # Every value but the first follows a comma or an opening bracket: one look at each byte of a large text.
        if not has_few_values(document) and (
            texts + self.deep * (len(text) - len(text.translate(None, b",[{"))) <= MOST_WORK
        ):
            return False
        return self.of(document) > MOST_WORK

    def of(self, document: Any) -> int:
        """The work on this document."""
        counts, characters = measure(document)
        padded = zip(counts, (*self.values, *[ENDLESS] * len(counts)), strict=False)
        return sum(count * weight for count, weight in padded) + self.text * (characters // TEXT)


@dataclass(slots=True)
class _Node:
    """One schema: its own work on a value and its text, and where it leads. Targets are numbers of nodes."""

    work: int
    text: int
    same: list[tuple[int, int]] = field(default_factory=list)
    named: dict[tuple[str, str], int] = field(default_factory=dict)
    other: dict[str, list[int]] = field(default_factory=lambda: {"property": [], "item": []})
    each: dict[str, list[int]] = field(default_factory=lambda: {"property": [], "item": []})
    leads: bool = False


class Effort:
    """A valid schema, spelled as 2020-12, as a graph. Raises `Unusable` where it leads nowhere or in a circle."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schemas: list[dict[str, Any]] = []
        self._nodes: list[_Node] = []
        self._number: dict[int, int] = {}
        self._anchors: dict[str, Any] = {}
        self._children: set[int] = {0}
        self._add(schema)
        for number, found in enumerate(self.schemas):
            self._lead(number, found, schema)
        self._closures: dict[int, dict[int, int]] = {}
        self._close()

    def _add(self, schema: dict[str, Any]) -> None:
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
            self._nodes.append(_Node(_work_on_value(found), _work_on_text(found)))
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := found.get(keyword), str):
                    if name in self._anchors:
                        raise Unusable("an anchor stands twice")
                    self._anchors[name] = found
            waiting += [inner for _, _, inner in subschemas(found) if isinstance(inner, dict)]

    def _lead(self, number: int, schema: Schema, root: Schema) -> None:
        """Follow everything that a schema says to the schemas it leads to."""
        node = self._nodes[number]
        times = _AGAIN if _UNEVALUATED & schema.keys() else 1
        for keyword in REFERENCES:
            if keyword in schema:
                target = find_reference(root, self._anchors, schema[keyword])
                if isinstance(target, dict):
                    if id(target) not in self._number:
                        raise Unusable(f"a reference to where no schema stands: {schema[keyword][:128]!r}")
                    node.same.append((self._number[id(target)], times))
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
        """The most work on one value, and for the characters of one text, by how deep the value lies."""
        size = range(len(self._nodes))
        works = [self._total(number, "work") for number in size]
        texts = [self._total(number, "text") for number in size]
        flat = [not any(self._nodes[inner].leads for inner in self._closures[number]) for number in size]
        known: dict[frozenset[tuple[int, int]], list[dict[int, int]]] = {}
        values: list[int] = []
        heaviest_text = steps = 0
        level: list[dict[int, int]] = [{0: 1}]
        while len(values) < LEVELS:
            heaviest = 0
            following: dict[frozenset[tuple[int, int]], list[dict[int, int]]] = {}
            for state in level:
                heaviest = max(heaviest, sum(works[number] * count for number, count in state.items()))
                heaviest_text = max(heaviest_text, sum(texts[number] * count for number, count in state.items()))
                if all(flat[number] for number in state):
                    continue
                judging = self._judging(state)
                key = frozenset(judging.items())
                if key not in known:
                    known[key] = list(self._below(judging))
                    steps += len(judging) * len(known[key])
                following[key] = known[key]
            values.append(heaviest)
            if steps > _MAX_STEPS or heaviest >= ENDLESS:
                return Weights((*values, *[ENDLESS] * (LEVELS - len(values))), ENDLESS)
            level = [below for belows in following.values() for below in belows]
        return Weights(tuple(values), heaviest_text)

    def _total(self, number: int, what: str) -> int:
        closure = self._closures[number].items()
        return min(sum(int(getattr(self._nodes[inner], what)) * count for inner, count in closure), ENDLESS)

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


def _work_on_value(schema: Schema) -> int:
    """The work of one schema on one value, without what it leads to."""
    work = 1
    for keyword, share in (("required", 1), ("properties", 8), ("patternProperties", 1), ("dependentSchemas", 1)):
        if isinstance(value := schema.get(keyword), (dict, list)):
            work += len(value) // share
    if isinstance(wanted := schema.get("dependentRequired"), dict):
        work += sum(1 + len(names) for names in wanted.values() if isinstance(names, list))
    if "enum" in schema:
        work += len(orjson.dumps(schema["enum"])) // 1024
    if "multipleOf" in schema:  # exact arithmetic, which takes microseconds where numbers are extreme
        work += 250 if type(schema["multipleOf"]) is int else 500 if schema["multipleOf"] > 1e-30 else 2000
    return work + (16 if schema.get("uniqueItems") is True else 0)


def _work_on_text(schema: Schema) -> int:
    """The work on each `TEXT` characters of a text, or of the names in an object."""
    patterns = len(schema.get("patternProperties", ())) + len(schema.keys() & {"pattern", "propertyNames"})
    return 8 * patterns + len(schema.keys() & {"minLength", "maxLength"})


def has_few_values(document: Any) -> bool:
    """Whether it is no more than `FEW` values; where there are more, it is not looked at any further."""
    found, waiting = 1, [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (dict, list)):
            found += len(value)
            if found > FEW:
                return False
            waiting += value.values() if isinstance(value, dict) else value
    return True


def measure(document: Any) -> tuple[list[int], int]:
    """How many values lie at each depth of a document, and how many characters its texts and names have."""
    counts: list[int] = []
    characters = 0
    level = [document]
    while level:
        counts.append(len(level))
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
                characters += sum(map(len, value))
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str):
                characters += len(value)
        level = below
    return counts, characters
