"""What the policy masks, in whatever form a person is shown it: arguments, a grant's schemas, answers.

A schema says of a value what it has to be, often in full (`const`), and in many places. So nothing under a masked
property is shown, and of what holds one only what says nothing of values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MASK = "[masked]"

_PLAIN = frozenset({
    "$schema", "type", "required", "minProperties", "maxProperties", "minItems", "maxItems", "uniqueItems",
    "dependentRequired",
})  # fmt: skip
_LISTS = frozenset({"allOf", "anyOf", "oneOf"})
_INNER = frozenset({"not", "if", "then", "else"})
_SHARED = frozenset({"$defs", "definitions"})
"""Schemas that others refer to: of what they are said is not known here."""

Ways = list[list[str]]
"""Mask pointers as steps, from where one stands."""


def steps_of(pointer: str) -> list[str]:
    """An RFC 6901 pointer -> its steps."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def pointer_of(*steps: str) -> str:
    """Steps -> the RFC 6901 pointer."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def masked(value: Any, pointers: Sequence[str]) -> tuple[Any, list[str]]:
    """A copy with the value at each JSON pointer (RFC 6901) replaced, and the pointers that met a value."""
    met = []
    for pointer in pointers:
        value, found = _mask_one(value, steps_of(pointer))
        if found:
            met.append(pointer)
    return value, met


def masked_meta(meta: Mapping[str, Any], pointers: Sequence[str]) -> tuple[Mapping[str, Any], list[str]]:
    """Likewise what else a ticket binds: a pointer holds from its root, and in what each answer says (`content`)."""
    responses = meta.get("inputResponses")
    names = list(responses) if isinstance(responses, Mapping) else []
    inside = [pointer_of("inputResponses", name, "content") + one for name in names for one in pointers]
    shown: tuple[Mapping[str, Any], list[str]] = masked(meta, [one for one in (*pointers, *inside) if one])
    return shown


def masked_vary(vary: Mapping[str, Any], pointers: Sequence[str]) -> dict[str, Any]:
    """A grant's `{schema, bounds}` without what they say of masked arguments; `masked` says where, if anywhere."""
    if not pointers:
        return dict(vary)
    hidden: list[str] = []
    ways = [steps_of(pointer) for pointer in pointers]
    shown = {name: _schema(schema, ways, [name], hidden) for name, schema in vary.items()}
    return shown | ({"masked": hidden} if hidden else {})


def _mask_one(value: Any, steps: list[str]) -> tuple[Any, bool]:
    if not steps:
        return MASK, True
    step, rest = steps[0], steps[1:]
    if isinstance(value, Mapping) and step in value:
        inner, found = _mask_one(value[step], rest)
        return ({**value, step: inner}, True) if found else (value, False)
    is_index = step.isascii() and step.isdigit() and (step == "0" or step[0] != "0")
    if isinstance(value, list | tuple) and is_index and int(step) < len(value):
        inner, found = _mask_one(value[int(step)], rest)
        at = int(step)
        return ([*value[:at], inner, *value[at + 1 :]], True) if found else (value, False)
    return value, False


def _schema(schema: Any, ways: Ways, at: list[str], hidden: list[str]) -> Any:
    """A schema of a value, of which `ways` are masked; where something was hidden is added to `hidden`."""
    if [] in ways:
        hidden.append(pointer_of(*at))
        return MASK
    if not isinstance(schema, Mapping):
        return schema
    return {name: _keyword(name, said, ways, [*at, name], hidden) for name, said in schema.items()}


def _keyword(name: str, said: Any, ways: Ways, at: list[str], hidden: list[str]) -> Any:
    if name == "properties" and isinstance(said, Mapping):
        return {
            one: _schema(inner, [way[1:] for way in ways if way[0] == one], [*at, one], hidden)
            for one, inner in said.items()
        }
    if name == "prefixItems" and isinstance(said, list):
        inside = [[way[1:] for way in ways if way[0] == str(n)] for n in range(len(said))]
        return [_schema(one, inside[n], [*at, str(n)], hidden) for n, one in enumerate(said)]
    if name == "items" and isinstance(said, Mapping):
        return _schema(said, [way[1:] for way in ways if way[0].isdigit()], at, hidden)
    if name in _LISTS and isinstance(said, list):
        return [_schema(one, ways, [*at, str(n)], hidden) for n, one in enumerate(said)]
    if name in _INNER:
        return _schema(said, ways, at, hidden)
    if name == "dependentSchemas" and isinstance(said, Mapping):
        return {one: _schema(inner, ways, [*at, one], hidden) for one, inner in said.items()}
    is_shown = not ways or name in _PLAIN or isinstance(said, bool) or (name == "$ref" and isinstance(said, str))
    if is_shown and name not in _SHARED:
        return said
    hidden.append(pointer_of(*at))
    return MASK
