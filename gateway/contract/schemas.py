"""Where schemas stand in a tool's `inputSchema`: the one walk that bindings, contracts and their bounds share.

Only keywords whose value is a schema are entered, so that data (`const`, `enum`, `default`, `examples`, a property
that is called like a keyword) is never taken for a schema. References are not followed here (JSON Schema 2020-12, and
the older spellings of the same).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

SAME: Final = "same"
CHILD: Final = "child"
STORE: Final = "store"
"""What a subschema is about: the very value, a value inside of it, or nothing until a reference leads there."""

_ABOUT: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"), SAME
    ),
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties", "unevaluatedProperties"), CHILD),
    **dict.fromkeys(("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"), CHILD),
    **dict.fromkeys(("propertyNames", "contentSchema"), CHILD),
    **dict.fromkeys(("$defs", "definitions"), STORE),
}
_MAPS: Final = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
)
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})

Schema = Mapping[str, Any]


class Unusable(Exception):  # noqa: N818 - what the tool is
    """A tool's definition can't be held to what it says; the text says why, for the operator's log."""


def subschemas(schema: Schema) -> Iterator[tuple[str, str, Any]]:
    """Each schema directly inside of one: (keyword, its name or index there or `""`, the object or boolean)."""
    for keyword in schema.keys() & _ABOUT.keys():
        value = schema[keyword]
        if keyword in _MAPS:
            if isinstance(value, dict):
                yield from ((keyword, name, inner) for name, inner in value.items() if _is_schema(inner))
        elif isinstance(value, list):
            if keyword in _LISTS or keyword == "items":
                yield from ((keyword, str(at), inner) for at, inner in enumerate(value) if _is_schema(inner))
        elif keyword not in _LISTS and _is_schema(value):
            yield keyword, "", value


def about(keyword: str) -> str:
    """`SAME`, `CHILD` or `STORE` for a keyword that `subschemas` gives."""
    return _ABOUT[keyword]


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))
