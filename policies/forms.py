"""Forms that a JSON value can have: each is a check that yields what is wrong with a value, and where.

Checks are made of checks; what they say is for whoever writes the data of the shipped rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong at `pointer` (RFC 6901, into `data.json`), and how to mend it."""

    pointer: str
    what: str
    mend: str


class At:
    """A place in the data."""

    def __init__(self, *steps: str | int) -> None:
        self.steps = steps

    def __truediv__(self, step: str | int) -> At:
        return At(*self.steps, step)

    def fault(self, what: str, mend: str) -> Fault:
        """A fault here."""
        return Fault("".join("/" + str(s).replace("~", "~0").replace("/", "~1") for s in self.steps), what, mend)


Check = Callable[[At, Any], Iterator[Fault]]
"""A place and the value there -> what is wrong with it."""


def object_of(members: Mapping[str, Check], needed: Sequence[str] = ()) -> Check:
    """An object with these members and no others; the `needed` ones have to be there."""

    def check(at: At, value: Any) -> Iterator[Fault]:
        if not isinstance(value, dict):
            yield at.fault("is not an object", "write { … }")
            return
        for name, found in value.items():
            if name in members:
                yield from members[name](at / name, found)
            else:
                close = get_close_matches(name, members, 1, 0.6)
                mend = f"write {close[0]!r}" if close else f"one of {', '.join(members)}, or nothing"
                yield (at / name).fault("is no member that the rules know: what has it is denied", mend)
        for name in needed:
            if name not in value:
                yield at.fault(f"has no {name!r}", f"add {name!r}")

    return check


def each_of(check: Check) -> Check:
    """An object of any names, each of whose values passes `check`."""

    def each(at: At, value: Any) -> Iterator[Fault]:
        if not isinstance(value, dict):
            yield at.fault("is not an object", "write { … }")
            return
        for name, one in value.items():
            yield from check(at / name, one)

    return each


def list_of(is_one: Callable[[Any], bool], form: str, *, least: int = 0) -> Check:
    """A list of at least so many, each of which `is_one`; `form` says in words of what."""

    def check(at: At, value: Any) -> Iterator[Fault]:
        if not isinstance(value, list):
            yield at.fault("is not a list", f"write [ … ], {form}")
            return
        if len(value) < least:
            yield at.fault("is empty, so nothing ever fits it", f"name {form}, or leave it out")
        for place, one in enumerate(value):
            if not is_one(one):
                yield (at / place).fault(f"is not {form}", f"write {form}")

    return check


def rows_of(check: Check, form: str, *, least: int = 0) -> Check:
    """A list of at least so many objects, each of which passes `check`; `form` says in words of what."""

    def rows(at: At, value: Any) -> Iterator[Fault]:
        yield from list_of(lambda one: isinstance(one, dict), form, least=least)(at, value)
        for place, one in enumerate(value if isinstance(value, list) else ()):
            if isinstance(one, dict):
                yield from check(at / place, one)

    return rows


def one_that(is_one: Callable[[Any], bool], form: str) -> Check:
    """A value that `is_one`; `form` says in words what that is."""

    def check(at: At, value: Any) -> Iterator[Fault]:
        if not is_one(value):
            yield at.fault(f"is not {form}", f"write {form}")

    return check


def is_text(value: Any) -> bool:
    """A string."""
    return isinstance(value, str)


def matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    """A string that `pattern` matches from its begin (and to its end, where the pattern says so)."""
    return lambda value: isinstance(value, str) and pattern.match(value) is not None


def is_number(value: Any) -> bool:
    """A number, which a truth value is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def up_to(most: int) -> Check:
    """An integer from 1 on."""
    return one_that(lambda value: type(value) is int and 1 <= value <= most, f"an integer from 1 to {most}")


def among(*words: Any) -> Check:
    """One of these values, of the same type."""
    return one_that(
        lambda value: any(type(value) is type(word) and value == word for word in words), f"one of {words}"
    )


def clean_then(check: Check, then: Check) -> Check:
    """`then`, only where `check` finds nothing: one mistake is told once."""

    def both(at: At, value: Any) -> Iterator[Fault]:
        found = list(check(at, value))
        yield from found or then(at, value)

    return both
