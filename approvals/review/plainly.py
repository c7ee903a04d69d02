"""A stranger's text on a page: nothing of it is markup, nothing is invisible, nothing turns the rest round.

Every character that a reader could not see, or that would move others, is written out as a mark (`U+202E`); what only
looks like something else is hinted at. Only what is shown is looked at, so a megabyte costs no more than a line.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from markupsafe import Markup, escape

MOST_IN_A_LINE = 200
MOST_IN_A_TEXT = 4000
MOST_MARKS = 60
MOST_COMBINED = 2

UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
BLANK = frozenset("\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u2800\u3164\uffa0")
"""Drawn as nothing, though their category says otherwise; variation selectors and spaces are told by their ranges."""

BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
ALIKE = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU")
"""Scripts with letters that are drawn like one another's: a word that mixes them is no word."""

DRESSED = (
    "FULLWIDTH",
    "MATHEMATICAL",
    "DOUBLE-STRUCK",
    "SCRIPT",
    "BLACK-LETTER",
    "CIRCLED",
    "PARENTHESIZED",
    "SQUARED",
)
_PLAIN = re.compile(r"[\x20-\x7e]*\Z")
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True)
class Plain:
    """A text as it may stand on a page: `html`, what a reader should know of it, and whether it was cut."""

    html: Markup
    hints: tuple[str, ...] = ()
    shown: int = 0
    whole: int = 0

    @property
    def is_cut(self) -> bool:
        """Whether there is more of it."""
        return self.shown < self.whole

    def __html__(self) -> str:
        return str(self.html)


def in_a_line(text: str, most: int = MOST_IN_A_LINE) -> Plain:
    """A text on one line: names, ids, single values."""
    return _plain(text, most, lines=False)


def in_lines(text: str, most: int = MOST_IN_A_TEXT) -> Plain:
    """A text of several lines: line feeds go on below (to be shown with `white-space: pre-wrap`)."""
    return _plain(text.replace("\r\n", "\n"), most, lines=True)


def _plain(text: str, most: int, *, lines: bool) -> Plain:
    shown = text[:most]
    if _PLAIN.match(shown):
        return Plain(Markup("<bdi>%s</bdi>") % shown, (), len(shown), len(text))  # the ordinary case
    parts: list[Markup] = []
    seen: list[str] = []
    odd = _odd_letters(shown)
    marks = combined = at = 0
    while at < len(shown):
        one = shown[at]
        if lines and one == "\n":
            parts.append(Markup("\n"))
            combined, at = 0, at + 1
            continue
        combined = combined + 1 if unicodedata.combining(one) else 0
        if not (_hides(one) or combined > MOST_COMBINED):
            seen.append(one)
            parts.append(_odd(one) if at in odd else escape(one))
            at += 1
            continue
        times = len(shown[at:]) - len(shown[at:].lstrip(one))
        marks += 1
        if marks > MOST_MARKS:  # a text that is made of them tells no more by being written out
            shown = shown[:at]
            break
        parts.append(_mark(one, times))
        seen.append(" ")
        at += times
    hints = _hints("".join(seen), shown, marks, bool(odd))
    return Plain(Markup("<bdi>%s</bdi>") % Markup("").join(parts), hints, len(shown), len(text))


def _hides(one: str) -> bool:
    if " " <= one <= "~":
        return False
    category = unicodedata.category(one)
    if category in UNSEEN or one in BLANK or category == "Zs":
        return True
    return "\ufe00" <= one <= "\ufe0f" or "\U000e0100" <= one <= "\U000e01ef"


def _mark(one: str, times: int) -> Markup:
    name = unicodedata.name(one, "control character" if ord(one) < 0xA0 else "no character")
    repeated = f" \N{MULTIPLICATION SIGN}{times}" if times > 1 else ""
    return Markup('<span class="mark" title="{}">U+{:04X}{}</span>').format(name, ord(one), repeated)


def _odd_letters(text: str) -> frozenset[int]:
    """Where letters stand that are not ASCII, in words that mix scripts or are dressed up."""
    words = (found for found in _WORD.finditer(text) if _mixes(found[0]))
    return frozenset(at for found in words for at in range(*found.span()) if text[at] > "\x7f")


def _odd(one: str) -> Markup:
    return Markup('<span class="odd" title="{}">{}</span>').format(unicodedata.name(one, "a letter"), one)


def _hints(seen: str, shown: str, marks: int, odd: bool) -> tuple[str, ...]:
    hints = []
    if not BIDI.isdisjoint(shown):
        hints.append("holds characters that turn text round; they are written out here and do nothing")
    elif marks:
        hints.append("holds invisible or unusual characters; they are written out here")
    if any(unicodedata.bidirectional(one) in ("R", "AL") for one in seen):
        hints.append("holds text that is read from right to left")
    if odd:
        hints.append("holds a word of letters that only look alike (of several scripts, or dressed up)")
    return tuple(hints)


def _mixes(word: str) -> bool:
    if word.isascii():
        return False
    names = [unicodedata.name(one, "") for one in word]
    scripts = {script for name in names for script in ALIKE if name.startswith(script)}
    return len(scripts) > 1 or any(name.startswith(DRESSED) for name in names)
