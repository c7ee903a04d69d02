"""Where schemas stand in a tool's `inputSchema`: the one walk that bindings, contracts and their bounds share.

Only keywords whose value is a schema are entered, so that data (`const`, `enum`, `default`, `examples`, a property
that is called like a keyword) is never taken for a schema. References are not followed here (JSON Schema 2020-12, and
the older spellings of the same).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

IN_PLACE: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
)
"""Keywords whose schemas judge the very value; those of all others judge a value inside of it, or nothing yet."""

_KEYWORDS: Final = (
    IN_PLACE
    | {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"}
    | {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "contentSchema"}
    | {"$defs", "definitions"}
)
_MAPS: Final = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
)
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})

Schema = Mapping[str, Any]


class Unusable(Exception):  # noqa: N818 - what the tool is
    """A tool's definition can't be held to what it says; the text says why, for the operator's log."""


def subschemas(schema: Schema) -> Iterator[tuple[str, str, Any]]:
    """Each schema directly inside of one: (keyword, its name or index there or `""`, the object or boolean)."""
    for keyword in schema.keys() & _KEYWORDS:
        value = schema[keyword]
        if keyword in _MAPS:
            if isinstance(value, dict):
                yield from ((keyword, name, inner) for name, inner in value.items() if _is_schema(inner))
        elif isinstance(value, list):
            if keyword in _LISTS or keyword == "items":
                yield from ((keyword, str(at), inner) for at, inner in enumerate(value) if _is_schema(inner))
        elif keyword not in _LISTS and _is_schema(value):
            yield keyword, "", value


def rebuild(schema: Schema, change: Callable[[Schema], Any]) -> dict[str, Any]:
    """A copy with each schema directly inside replaced by what `change` makes of it; booleans stay."""
    made = dict(schema)
    for keyword in schema.keys() & _KEYWORDS:
        value = schema[keyword]
        if keyword in _MAPS:
            if isinstance(value, dict):
                made[keyword] = {
                    name: change(inner) if isinstance(inner, dict) else inner for name, inner in value.items()
                }
        elif isinstance(value, list):
            if keyword in _LISTS or keyword == "items":
                made[keyword] = [change(inner) if isinstance(inner, dict) else inner for inner in value]
        elif keyword not in _LISTS and isinstance(value, dict):
            made[keyword] = change(value)
    return made


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))
