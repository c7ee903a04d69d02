"""The released schemas of `server.json`, kept in the package: nothing is fetched, no pattern backtracks.

Their texts are the official ones (schemas/README.md). One of 2025-07-09 writes its members in snake_case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import orjson
from jsonschema_rs import Draft7Validator, RegexOptions, ValidationError

from gateway.contract.complaints import broken_rule, pointer
from gateway.registry.flaws import MOST, Flaw

DATES: Final = ("2025-07-09", "2025-09-16", "2025-09-29", "2025-10-11", "2025-10-17", "2025-12-11")
"""Oldest first."""

_URL: Final = "https://static.modelcontextprotocol.io/schemas/{}/server.schema.json"
_PATTERNS: Final = RegexOptions(size_limit=1 << 20, dfa_size_limit=1 << 18)
_OF_VALUES: Final = frozenset({"pattern", "minLength", "maxLength", "format", "not", "additionalProperties"})
"""Keywords that say nothing of a member's type, nor that it has to be there."""

_CAPITAL: Final = re.compile(r"([A-Z])")


@dataclass(frozen=True, slots=True)
class Release:
    """One release. `date` orders them."""

    date: str

    @property
    def url(self) -> str:
        """What `$schema` says."""
        return _URL.format(self.date)

    def spell(self, member: str) -> str:
        """A member's name in this release, from its name of today."""
        return member if self.date > DATES[0] else _CAPITAL.sub(r"_\1", member).lower()


RELEASES: Final = tuple(Release(date) for date in DATES)
NEWEST: Final = RELEASES[-1]


def release_of(document: Mapping[str, Any]) -> Release | None:
    """The release that `$schema` names; the newest where there is none, `None` for one that is not known."""
    named = document.get("$schema")
    if named is None:
        return NEWEST
    return next((release for release in RELEASES if release.url == named), None)


@cache
def schema_of(release: Release) -> dict[str, Any]:
    """The schema itself."""
    text = (files("gateway.registry") / "schemas" / f"{release.date}.json").read_bytes()
    schema: dict[str, Any] = orjson.loads(text)
    return schema


@cache
def members_of(release: Release) -> frozenset[str]:
    """The members of a record that the schema describes."""
    named = schema_of(release)["definitions"]
    parts = [named["ServerDetail"], *named["ServerDetail"].get("allOf", ()), named.get("Server", {})]
    return frozenset(name for part in parts for name in part.get("properties", ()))


@cache
def _validator(release: Release) -> Draft7Validator:
    return Draft7Validator(schema_of(release), pattern_options=_PATTERNS, validate_formats=True, offline=True)


def hold_to_schema(release: Release, document: Any) -> tuple[list[Flaw], bool]:
    """What the schema says against a document, at most `MOST` flaws; and whether all members are of their types."""
    found: dict[Flaw, None] = {}
    sound = True
    if _validator(release).is_valid(document):
        return [], True
    for error in _validator(release).iter_errors(document):
        for at, what, kind in _leaves(error):
            found[Flaw("schema", at, what)] = None
            sound = sound and kind in _OF_VALUES
        if len(found) >= MOST:
            break
    return list(found)[:MOST], sound and len(found) < MOST


def _leaves(error: ValidationError) -> Iterator[tuple[str, str, str]]:
    """An error (place, words, keyword) where it is: of alternatives, the one that was meant, as its `type` says."""
    kind = error.kind
    if kind.name != "anyOf":
        yield pointer(error.instance_path), broken_rule(error), kind.name
        return
    branches: list[list[ValidationError]] = [list(branch) for branch in getattr(kind, "context", ())]
    meant = [branch for branch in branches if not any(_is_of_type(one, error) for one in branch)]
    if len(meant) == 1:
        for one in meant[0]:
            yield from _leaves(one)
    elif not meant:
        options = [option for branch in branches for one in branch if _is_of_type(one, error) for option in _of(one)]
        yield f"{pointer(error.instance_path)}/type", f"must be one of {orjson.dumps(options).decode()}", "anyOf"
    else:
        wanted = [str(getattr(branch[0].kind, "property", "")) for branch in meant if branch]
        told = f"lacks one of {', '.join(wanted)}" if all(wanted) else broken_rule(error)
        yield pointer(error.instance_path), told, "required"


def _is_of_type(one: ValidationError, of: ValidationError) -> bool:
    return one.kind.name == "enum" and list(one.instance_path) == [*of.instance_path, "type"]


def _of(one: ValidationError) -> list[Any]:
    return list(getattr(one.kind, "options", ()))
