"""What a validator found wrong, in words that a model can mend its arguments by, and never with a value of them.

A complaint names the place (a JSON pointer into `arguments`) and the rule as the tool's own schema states it; the
caller reads it. For the record, whose readers are others, there is only the place in the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import orjson
from jsonschema_rs import ValidationError

MOST: Final = 20
"""Complaints in one answer."""

HARD_PATTERN: Final = "ostiary:pattern"
"""The keyword that stands in for a `pattern` that no linear engine takes. Its errors' message is the pattern."""

_LONGEST: Final = 256
_LONGEST_LINE: Final = 800
_NAMES: Final = 10

_RULES: Final[Mapping[str, Callable[[Any], str]]] = {
    "type": lambda kind: f"must be of type {' or '.join(kind.types)}",
    "required": lambda kind: f"lacks the required member {_shown(kind.property)}",
    "additionalProperties": lambda kind: f"has unknown members: {_names(kind.unexpected)}",
    "unevaluatedProperties": lambda kind: f"has unknown members: {_names(kind.unexpected)}",
    "unevaluatedItems": lambda _: "has more items than the schema describes",
    "additionalItems": lambda kind: f"must have no more than {kind.limit} items",
    "enum": lambda kind: f"must be one of {_names(kind.options)}",
    "const": lambda kind: f"must be {_shown(kind.expected_value)}",
    "minimum": lambda kind: f"must be at least {kind.limit}",
    "maximum": lambda kind: f"must be at most {kind.limit}",
    "exclusiveMinimum": lambda kind: f"must be more than {kind.limit}",
    "exclusiveMaximum": lambda kind: f"must be less than {kind.limit}",
    "multipleOf": lambda kind: f"must be a multiple of {kind.multiple_of}",
    "minLength": lambda kind: f"must have at least {kind.limit} characters",
    "maxLength": lambda kind: f"must have at most {kind.limit} characters",
    "minItems": lambda kind: f"must have at least {kind.limit} items",
    "maxItems": lambda kind: f"must have at most {kind.limit} items",
    "minProperties": lambda kind: f"must have at least {kind.limit} members",
    "maxProperties": lambda kind: f"must have at most {kind.limit} members",
    "uniqueItems": lambda _: "must not have the same item twice",
    "contains": lambda _: "lacks an item of the kind that the schema asks for",
    "pattern": lambda kind: f"must match the pattern {_shown(kind.pattern)}",
    HARD_PATTERN: lambda kind: f"must match the pattern {_shown(kind.message)}",
    "propertyNames": lambda _: "has a member whose name the schema does not allow",
    "not": lambda _: "must not be what the schema excludes",
    "falseSchema": lambda _: "must not be there",
    "anyOf": lambda kind: _alternatives(kind.context),
    "oneOf": lambda kind: _alternatives(kind.context),
}


def complain(found: Iterable[ValidationError]) -> tuple[list[str], list[str]]:
    """A validator's errors -> (a line each for the caller, a schema pointer each for the record)."""
    lines: list[str] = []
    places: list[str] = []
    for error in found:
        lines.append(_line(error.instance_path, broken_rule(error)))
        places.append(pointer(error.schema_path).replace(HARD_PATTERN, "pattern"))
    return lines, places


def pointer(path: Sequence[str | int]) -> str:
    """An RFC 6901 pointer, cut to a length that can be shown."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)[:_LONGEST]


def missing(name: str) -> str:
    """The line for a member of `arguments` that is not there."""
    return _line((), f"lacks the required member {_shown(name)}")


def unknown(names: Sequence[str]) -> str:
    """The line for members of `arguments` that nothing declares."""
    return _line((), f"has unknown members: {_names(names)}")


def mistyped(path: Sequence[str | int], kind: str) -> str:
    """The line for a member of `arguments` that is of another type."""
    return _line(path, f"must be of type {kind}")


def _line(path: Sequence[str | int], rule: str) -> str:
    line = f"{_place(path)}: {rule}."
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1] + "\u2026"


def _place(path: Sequence[str | int]) -> str:
    return _shown("arguments" + pointer(path))


def broken_rule(error: ValidationError) -> str:
    """What the schema asks for and is not so, as the end of a sentence about the place."""
    kind = error.kind
    name = kind.name
    if name == "oneOf" and type(kind).__name__.endswith("MultipleValid"):
        return "fits several of the alternatives of which it may fit only one"
    rule = _RULES.get(name)
    return rule(kind) if rule is not None else f"breaks the schema's rule {_shown(name)}"


def _alternatives(context: Sequence[Sequence[ValidationError]]) -> str:
    """One sentence for all branches: types where it is only they that differ, else that none fits, and why each."""
    if all(len(branch) == 1 and branch[0].kind.name == "type" for branch in context):
        types = dict.fromkeys(name for branch in context for name in getattr(branch[0].kind, "types", ()))
        if len({tuple(branch[0].instance_path) for branch in context}) == 1:
            return f"must be of type {' or '.join(types)}"
    firsts = [branch[0] for branch in context[:4] if branch and branch[0].kind.name not in {"anyOf", "oneOf"}]
    reasons = "; ".join(f"{_place(error.instance_path)}: {broken_rule(error)}" for error in firsts)
    return f"fits none of {len(context)} alternatives" + (f" ({reasons})" if reasons else "")


def _names(values: Sequence[Any]) -> str:
    shown = ", ".join(_shown(value) for value in values[:_NAMES])
    return f"{shown} and {len(values) - _NAMES} more" if len(values) > _NAMES else shown


def _shown(value: Any) -> str:
    """A name or a value of the schema as JSON text, on one line and not long."""
    try:
        text = orjson.dumps(value).decode()
    except (TypeError, ValueError):  # a number beyond 64 bits
        text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\u2026"
