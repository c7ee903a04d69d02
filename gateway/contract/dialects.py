"""A tool's `inputSchema` as JSON Schema 2020-12 and nothing else, or the reason why it can't be.

A schema names its dialect or means 2020-12. Drafts 06 and 07 and 2019-09 are rewritten where their spelling differs,
so that one validator and one bound hold for all. A reference stays inside of the document: nothing is ever fetched
(basic, "JSON Schema usage" of the revision).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from gateway.contract.schemas import Schema, Unusable, rebuild

_2020: Final = "2020-12"
_2019: Final = "2019-09"
_OLD: Final = "draft-07"
DIALECTS: Final[Mapping[str, str]] = {
    "https://json-schema.org/draft/2020-12/schema": _2020,
    "https://json-schema.org/draft/2019-09/schema": _2019,
    "http://json-schema.org/draft-07/schema": _OLD,
    "http://json-schema.org/draft-06/schema": _OLD,
}
"""`$schema` (without an empty fragment) -> which spelling it means."""

_REMARKS: Final = frozenset(
    {"$schema", "$id", "$comment", "$vocabulary", "title", "description", "default", "examples", "deprecated"}
    | {"readOnly", "writeOnly", "format", "contentMediaType", "contentEncoding", "contentSchema"}
)
"""Keywords that judge nothing. `format` is one: 2020-12 does not assert it, and what it means differs from server to
server."""

REFERENCES: Final = ("$ref", "$dynamicRef")
"""Keywords that name a schema elsewhere. Inside of one document without doubled anchors they mean the same."""


def modernise(schema: Schema, *, formats: bool = False) -> dict[str, Any]:
    """A copy of the whole schema in the spelling of 2020-12, without remarks (`formats`: `format` is none of them).

    Raises `Unusable`.
    """
    named = schema.get("$schema", next(iter(DIALECTS)))
    dialect = DIALECTS.get(named.removesuffix("#")) if isinstance(named, str) else None
    if dialect is None:
        raise Unusable(f"a dialect of JSON Schema that is not supported: {str(named)[:128]!r}")
    return _rewrite(schema, dialect, _REMARKS - {"format"} if formats else _REMARKS, root=True)


def _rewrite(schema: Schema, dialect: str, remarks: frozenset[str], *, root: bool = False) -> dict[str, Any]:
    if not root and ("$schema" in schema or isinstance(schema.get("$id"), str)):
        raise Unusable("a schema resource inside of the schema")
    if "$recursiveRef" in schema:
        raise Unusable("$recursiveRef is not supported")
    kept = schema.keys() - remarks
    if dialect is _OLD and "$ref" in schema:  # what stands beside a reference means nothing there
        kept &= {"$ref", "$defs", "definitions"}
    made = rebuild({keyword: schema[keyword] for keyword in kept}, lambda inner: _rewrite(inner, dialect, remarks))
    return made if dialect is _2020 else _respell(made)


def _respell(made: dict[str, Any]) -> dict[str, Any]:
    """Arrays' items and dependencies, as 2020-12 spells them."""
    rest = made.pop("additionalItems", None)
    if isinstance(made.get("items"), list):
        made["prefixItems"] = made.pop("items")
        if rest is not None:
            made["items"] = rest
    dependencies = made.pop("dependencies", None)
    if isinstance(dependencies, dict):
        for name, wanted in dependencies.items():
            keyword = "dependentRequired" if isinstance(wanted, list) else "dependentSchemas"
            others = made.get(keyword)
            made[keyword] = {**(others if isinstance(others, dict) else {}), name: wanted}
    return made


def find_reference(root: Schema, anchors: Mapping[str, Any], reference: Any) -> Any:
    """The schema that a `$ref` or `$dynamicRef` names: `#`, `#/a/pointer` or `#anchor`. Raises `Unusable`."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise Unusable(f"a reference that leads outside: {str(reference)[:128]!r}")
    fragment = unquote(reference[1:])
    found: Any = root
    if fragment and not fragment.startswith("/"):
        found = anchors.get(fragment)
    else:
        for token in fragment.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(name)
            elif isinstance(found, list) and name.isdecimal() and name.isascii() and len(name) < 6:
                found = found[int(name)] if int(name) < len(found) else None
            else:
                found = None
    if not isinstance(found, (dict, bool)):
        raise Unusable(f"a reference that leads nowhere: {reference[:128]!r}")
    return found
