"""A form for a tool's arguments, made of its inputSchema where that is flat, else one field of JSON.

The form is a convenience and checks little: what it gives is held to the tool's contract and to the policy in the way
of a call. A schema is a stranger's: it is read defensively and bounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from approvals.review.body import BodyRefused, parse_object

PREFIX = "arg."
WHOLE = "arguments"
MOST_PROPERTIES = 40
MOST_CHOICES = 60
_NAME = re.compile(r"[A-Za-z0-9_$.:-]{1,64}\Z")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?\Z")
_TYPES = ("string", "integer", "number", "boolean")
_NOT_FLAT = frozenset(
    ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "dependentSchemas")
)


class FieldInvalid(ValueError):  # noqa: N818 - what was typed
    """What was typed into a field is not of its kind. The text says which, for the person."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the form. `choices`: JSON texts to choose from (a boolean's, an enum's)."""

    name: str
    kind: str
    required: bool
    title: str = ""
    description: str = ""
    choices: tuple[str, ...] = ()
    long: bool = False

    @property
    def key(self) -> str:
        """Its name in the form."""
        return PREFIX + self.name


def fields_of(schema: Any) -> tuple[Field, ...] | None:
    """The fields of a flat schema, in its order; `None` where one field of JSON has to do."""
    if not isinstance(schema, Mapping) or not _NOT_FLAT.isdisjoint(schema):
        return None
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list) or len(properties) > MOST_PROPERTIES:
        return None
    if not properties and schema.get("additionalProperties") is not False:
        return None
    if any(name not in properties for name in required if isinstance(name, str)):
        return None
    made = [_field(name, one, name in required) for name, one in properties.items()]
    flat = [one for one in made if one is not None]
    return tuple(flat) if len(flat) == len(made) else None


def _field(name: str, schema: Any, required: bool) -> Field | None:
    if not isinstance(schema, Mapping) or not _NAME.match(name) or not _NOT_FLAT.isdisjoint(schema):
        return None
    kind, choices = schema.get("type"), schema.get("enum")
    title, description = schema.get("title"), schema.get("description")
    title = title[:200] if isinstance(title, str) else ""
    description = description[:1000] if isinstance(description, str) else ""
    if isinstance(choices, list):
        plain = all(isinstance(one, str | int | float | bool) for one in choices)
        if not plain or not 0 < len(choices) <= MOST_CHOICES:
            return None
        return Field(
            name, "choice", required, title, description, tuple(orjson.dumps(one).decode() for one in choices)
        )
    if kind not in _TYPES:
        return None
    if kind == "boolean":
        return Field(name, "choice", required, title, description, ("true", "false"))
    most = schema.get("maxLength")
    is_long = kind == "string" and isinstance(most, int) and most > 200
    return Field(name, kind, required, title, description, long=is_long)


def arguments_of(fields: tuple[Field, ...], typed: Mapping[str, str]) -> dict[str, Any]:
    """What was typed -> arguments; an empty field that is not required is left out. Raises `FieldInvalid`."""
    arguments: dict[str, Any] = {}
    for one in fields:
        text = typed.get(one.key, "")
        if not text and not (one.required and one.kind == "string"):
            if one.required:
                raise FieldInvalid(f"{one.name}: this has to be given")
            continue
        if one.kind == "string":
            arguments[one.name] = text
        elif one.kind == "choice":
            if text not in one.choices:
                raise FieldInvalid(f"{one.name}: none of the choices")
            arguments[one.name] = orjson.loads(text)
        else:
            arguments[one.name] = _number(one, text.strip())
    return arguments


def _number(field: Field, text: str) -> int | float:
    found = _NUMBER.match(text)
    if found is None:
        raise FieldInvalid(f"{field.name}: not a number as JSON writes it, like 12 or 0.5")
    if found[2] or found[3]:
        if field.kind == "integer":
            raise FieldInvalid(f"{field.name}: a whole number is needed")
        number = float(text)
        if number in (math.inf, -math.inf):
            raise FieldInvalid(f"{field.name}: too large a number")
        return number
    return int(text)


def arguments_in(text: str) -> dict[str, Any]:
    """The one field of JSON -> arguments. Raises `FieldInvalid`."""
    if not text.strip():
        return {}
    try:
        return parse_object(text.encode())
    except BodyRefused as fault:
        said = {
            "body_not_json": "not JSON",
            "body_not_an_object": "not a JSON object: it has to begin with { and end with }",
            "body_ambiguous": "a member stands in it twice",
            "body_too_deep": "too deep",
        }
        raise FieldInvalid(f"the arguments: {said.get(fault.name, fault.name)}") from fault
