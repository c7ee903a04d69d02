"""The configuration's JSON Schema (2020-12), for editors: what a file may hold, and what the page of settings says.

The settings' own types are the schema, the page's rows its descriptions: nothing is written twice.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin

from pydantic import BaseModel

from gateway.config import Settings

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_HERE: Final = Path(__file__).parents[1]
_PLACES: Final = (_HERE / "configuration.md", _HERE.parent / "docs" / "configuration.md")
"""In an installed package, and in a checkout."""

Field = tuple[str, str]
"""A group's name and one of its settings."""


def settings_schema() -> dict[str, Any]:
    """The schema of a whole file. A secret never stands in one: settings that end in `_env` name variables."""
    schema: dict[str, Any] = {"$schema": DIALECT, **Settings.model_json_schema()}
    schema["title"] = "Ostiary"
    groups = {Settings.__name__: schema, **schema["$defs"]}
    for (group, name), told in _descriptions().items():
        groups[group]["properties"][name]["description"] = told
    for group in groups.values():
        # The library repeats names in capitals, and defaults of whole groups that each setting has for itself.
        for found in group.get("properties", {}).values():
            found.pop("title", None)
            if "$ref" in found:
                found.pop("default", None)
    return schema


def _descriptions() -> dict[Field, str]:
    """What the page says of each group's settings; of one that stands in several places, what it says first."""
    told: dict[Field, str] = {}
    rows = rows_of_page()
    for path, group, name in walk(Settings):
        if (row := rows.get(path)) is not None:
            told.setdefault((group, name), row)
    return told


@cache
def rows_of_page() -> Mapping[str, str]:
    """A setting's path as the page writes it -> its unit and meaning. Empty where the page is not there."""
    page = next((path.read_text("utf-8") for path in _PLACES if path.is_file()), "")
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in page.splitlines()]
    found = [row for row in rows if len(row) == 6 and re.match(r"`[a-z]", row[0])]
    return {row[0].strip("`"): f"{_plain(row[5])} ({_plain(row[1])})" for row in found}


def walk(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, group, setting) of every setting: `[]` for entries of a list, `NAME` for those of a map of groups."""
    for name, field in model.model_fields.items():
        steps, groups = _within(field.annotation)
        if not groups:
            yield f"{prefix}{name}", model.__name__, name
        for group in groups:
            yield from walk(group, f"{prefix}{name}{steps}.")


def _within(kind: Any) -> tuple[str, list[type[BaseModel]]]:
    """(how an entry is named, the groups) of a setting's type; no groups for a plain value."""
    while getattr(kind, "__metadata__", None):
        kind = get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "", [kind]
    if get_origin(kind) not in (Union, types.UnionType, dict, tuple):
        return "", []
    step = ".NAME" if get_origin(kind) is dict else "[]" if get_origin(kind) is tuple else ""
    found = [_within(one) for one in get_args(kind)]
    groups = [group for _, ones in found for group in ones]
    return (step + next((steps for steps, ones in found if ones), ""), groups) if groups else ("", [])


def _plain(text: str) -> str:
    """A cell without the marks of Markdown; links are left as their words."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("*", "")
