"""What is wrong with a configuration, for whoever has to mend it: the file and line, the key, why, and what to write.

Values are never shown: one may be a secret that was put in the wrong place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args

import yaml
from pydantic import ValidationError

from gateway.config import HEADER_NAME, SCOPE, SERVER_NAME, Group, Settings

Place = tuple[int | str, ...]

WORDS: Final = {
    "extra_forbidden": "there is no such setting",
    "missing": "is required",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "string_too_long": "must have {max_length} characters at most",
    "string_type": "must be text",
    "path_type": "must be a path",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
}
"""Kinds of mistakes that are said better than pydantic says them; in braces, what pydantic knows of the bound."""

FORMS: Final = {
    SERVER_NAME: "a server's name is lower-case letters, digits, - and _, at most 64, a letter or digit first",
    SCOPE: "a scope is visible ASCII without blanks, quotes and backslashes: one entry of the list each",
    HEADER_NAME: "must be the name of a header",
}
"""Patterns in words."""

_NAMED: Final = re.compile(r"([a-z_]+(?:\.[\w-]+)*): ")
"""How a check of several settings begins its sentence: with the one to change."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing to mend. `where`: the file and line, or the variable. `mend` may be empty."""

    where: str
    key: str
    why: str
    mend: str = ""

    def line(self) -> str:
        """For people."""
        return f"{self.where}: {self.key}: {self.why}{self.mend and f' -> {self.mend}'}"


def mistakes_in(
    error: ValidationError, file: Path, root: yaml.Node | None, others: Mapping[str, tuple[Path, yaml.Node | None]]
) -> Iterator[Mistake]:
    """Every mistake once, without those that only follow from one further in (a list without its one wrong entry).

    `others`: by name, the servers that stand in another file.
    """
    found = error.errors(include_input=False, include_url=False)
    for item in found:
        at, kind = item["loc"], item["type"]
        if kind == "too_short" and any(
            len(other["loc"]) > len(at) and other["loc"][: len(at)] == at for other in found
        ):
            continue
        mend = _mend(kind, at)
        if at[:1] == ("policy",) and len(at) > 1:
            at = (at[0], *at[2:])  # without the engine, by which pydantic tells the two kinds of settings apart
        if at[-1:] == ("[key]",):
            at = at[:-1]  # it is the name itself that is wrong
        words = _words(kind, item["msg"], item.get("ctx", {}))
        if kind == "value_error" and (named := _NAMED.match(words)):
            at, words = (*at, *named[1].split(".")), words[named.end() :]
        place = others.get(str(at[1]), (file, root)) if at[:1] == ("servers",) and len(at) > 1 else (file, root)
        yield Mistake(_where(at, *place), ".".join(map(str, at)) or "configuration", words, mend)


def _words(kind: str, text: str, bound: Mapping[str, Any]) -> str:
    """What is wrong, of a kind, pydantic's own text and what it knows of the bound."""
    if (form := FORMS.get(str(bound.get("pattern")))) is not None:
        return form
    if kind in WORDS:
        return WORDS[kind].format_map({name: _plain(value) for name, value in bound.items()})
    return text.removeprefix("Value error, ")


def _plain(bound: Any) -> Any:
    """A bound as it is written in a file: 60, not 60.0."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def line_of(root: yaml.Node | None, at: Sequence[int | str]) -> int:
    """The line, from 1, on which the setting stands, or the innermost thing around it that is there."""
    node, line = root, 1
    for part in at:
        key, node = _within(node, part)
        if key is None:
            break
        line = key.start_mark.line + 1
    return line


def _within(node: yaml.Node | None, part: int | str) -> tuple[yaml.Node | None, yaml.Node | None]:
    """(what names it, its value) of a member or an entry, or nothing."""
    if isinstance(node, yaml.MappingNode):
        return next((pair for pair in node.value if pair[0].value == str(part)), (None, None))
    if isinstance(node, yaml.SequenceNode) and str(part).isdigit() and int(part) < len(node.value):
        return node.value[int(part)], node.value[int(part)]
    return None, None


def _where(at: Place, file: Path, root: yaml.Node | None) -> str:
    """Where a setting's value is from: the variable that overrides it, or something around it, else the file."""
    given = {name.upper() for name in os.environ}
    for length in range(len(at), 0, -1):
        name = f"OSTIARY_{'__'.join(map(str, at[:length]))}".upper()
        if name in given:
            return f"the environment variable {name}"
    return f"{file}:{line_of(root, at)}"


def _mend(kind: str, at: Place) -> str:
    """What to write instead, where that is known."""
    if kind in {"float_parsing", "float_type"} and (str(at[-1]).endswith("_s") or at[-2:-1] == ("deadlines",)):
        return "seconds, without a unit: 90 for a minute and a half"
    if kind != "extra_forbidden":
        return ""
    known = _settings_beside(at)
    if nearest := get_close_matches(str(at[-1]), known, 1):
        return f"did you mean {nearest[0]}?"
    return f"here are: {', '.join(known)}" if known else ""


def _settings_beside(at: Place) -> list[str]:
    """The settings of the group in which `at` was looked for."""
    groups: list[type[Any]] = [Settings]
    for part in at[:-1]:
        fields = [one.model_fields[str(part)].annotation for one in groups if str(part) in one.model_fields]
        found = [group for kind in fields for group in _groups_in(kind)]
        # A server's name, an entry's number and an engine's name are steps within a group already found.
        groups = found or groups
    return sorted({name for one in groups for name in one.model_fields})


def _groups_in(kind: Any) -> Iterator[type[Group]]:
    if isinstance(kind, type) and issubclass(kind, Group):
        yield kind
    for one in get_args(kind):
        yield from _groups_in(one)
