"""What changed between two definitions of a tool, in lines for a person: nothing hidden, nothing cut.

Whoever accepts a definition has to have seen it as the model will. So no line moves a cursor, hides a character or
turns text round, a change inside of a long line is pointed at, and characters that look like others are named.
"""

from __future__ import annotations

import difflib
import json
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK: Final = frozenset(
    chr(code)
    for first, last in (
        (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800), (0x3164, 0x3164),
        (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0100, 0xE01EF),
    )
    for code in range(first, last + 1)
)  # fmt: skip
"""Letters and marks that nobody sees: Default_Ignorable_Code_Point beyond the categories, and Braille's blank."""

_ALIGNED: Final = 400
"""Lines of two texts that are aligned; longer texts are shown whole, because aligning is quadratic."""

_POINTED_AT: Final = 60
_NAMED: Final = 12
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """One place that differs, as a JSON pointer into the definition. `None` for a side where it is not."""

    path: str
    before: str | None
    after: str | None
    """JSON text of the value, not yet made visible."""


def visible(text: str) -> str:
    """The text with everything that can't be seen as it is as `\\u{HEX}`, and a backslash as two."""
    return "".join(_shown(one) if one != "\\" else "\\\\" for one in text)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Every place that differs. Two definitions of different digests have at least one."""
    return [
        Difference(path, *(None if value is _MISSING else _text(value) for value in sides))
        for path, *sides in _walk("", before, now)
    ]


def lines(found: Difference) -> list[str]:
    """A difference for a terminal, its place first: texts line by line, other values as JSON."""
    sides = [None if text is None else orjson.loads(text) for text in (found.before, found.after)]
    where = visible(found.path) or "/"
    as_text = all(side is None or isinstance(side, str) for side in sides)
    removed, added = ([] if text is None else _rows(text, as_text) for text in (found.before, found.after))
    if found.before is None or found.after is None:
        sign = "+" if found.before is None else "-"
        return [f"{sign} {where}", *(f"  {sign} {row}" for row in (added or removed)), *_strange(found)]
    shown = [f"~ {where}", *(f"  {sign} {row}" for sign, row in _align(removed, added))]
    if len(removed) == len(added) == 1 and max(len(removed[0]), len(added[0])) > _POINTED_AT:
        shown.append(f"  @ {_point(*(row.removeprefix('| ') for row in (*removed, *added)))}")
    return [*shown, *_strange(found)]


def _walk(path: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            step = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
            yield from _walk(step, before.get(name, _MISSING), now.get(name, _MISSING))
    elif isinstance(before, list) and isinstance(now, list):
        for index in range(max(len(before), len(now))):
            left, right = (side[index] if index < len(side) else _MISSING for side in (before, now))
            yield from _walk(f"{path}/{index}", left, right)
    elif before is _MISSING or now is _MISSING or _text(before) != _text(now):
        yield path, before, now


def _text(value: Any) -> str:
    # As it is spelt: where a digest is taken of the spelling (1.0 beside 1), that is a difference too.
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _rows(text: str, as_text: bool) -> list[str]:
    """JSON text of a string as the string's lines, or of anything as JSON, member by member."""
    value = orjson.loads(text)
    if as_text and isinstance(value, str):
        return [f"| {visible(row)}" for row in value.split("\n")]
    pretty = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    return ["".join(_shown(one) for one in row) for row in pretty.split("\n")]


def _shown(one: str) -> str:
    if one == " " or ("!" <= one <= "~"):
        return one
    category = unicodedata.category(one)
    return f"\\u{{{ord(one):x}}}" if category in _INVISIBLE or category == "Zs" or one in _BLANK else one


def _align(removed: list[str], added: list[str]) -> Iterator[tuple[str, str]]:
    """(sign, line) of what went and came; of lines that stayed, one beside each change."""
    if max(len(removed), len(added)) > _ALIGNED:
        yield from (("-", row) for row in removed)
        yield from (("+", row) for row in added)
        return
    for group in difflib.SequenceMatcher(None, removed, added, autojunk=False).get_grouped_opcodes(1):
        if (first := group[0][1]) > 0:
            yield "@", f"line {first + 1}"
        for kind, start, end, came, until in group:
            if kind == "equal":
                yield from ((" ", row) for row in removed[start:end])
            else:
                yield from (("-", row) for row in removed[start:end])
                yield from (("+", row) for row in added[came:until])


def _point(old: str, new: str) -> str:
    """Which part of one long line is another."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return f'from character {start + 1}: "{old[start : len(old) - end]}" became "{new[start : len(new) - end]}"'


def _strange(found: Difference) -> list[str]:
    """Names of the characters beyond ASCII that came with this change: some look like others."""
    came = {one for one in found.after or "" if one > "~" and one not in (found.before or "")}
    if not came:
        return []
    named = [f"U+{ord(one):04X} {unicodedata.name(one, 'without a name')}" for one in sorted(came)[:_NAMED]]
    more = f" and {len(came) - _NAMED} more" if len(came) > _NAMED else ""
    return [f"  ! not ASCII: {', '.join(named)}{more}"]
