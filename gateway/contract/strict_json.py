"""JSON text with exactly one reading, or none at all (RFC 8259; contract.md section 2, rule G3).

Two readers of an accepted text, strict or lenient, first-wins or last-wins, see the same value: no name twice in an
object, no number that a 64-bit reader would change, nothing that only some readers take. A text that orjson writes
again, but for the white space, proves this by the round trip; every other is read a second time, its names counted.
Long strings are left out of both, unless they are names: all readers have the same of one that orjson took.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import orjson

MAX_DEPTH = 64
"""Levels of arrays and objects. Readers differ in how many they can take, and ours must not run out of stack."""

MAX_VALUES = 100_000
"""Array items and object members in one text: bounds the memory (about 10 MB) and the time that reading can take."""

_LONG = 512
"""Bytes of a string that is left out of the proofs: to write or to count it costs more than to find its end."""

_QUOTES = 24
"""Quotes that are looked at in any text to find long strings, besides one for each 2 KiB."""

_NEAR = 4096
"""Bytes before and behind the one long string that a text is about."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_SPACE = b" \t\r\n"
_BEHIND_VALUES = (b",", b"]", b"}")
_BACKSLASH = 0x5C
_ALL_BUT_PUNCTUATION = bytes(byte for byte in range(256) if byte not in b",[{")
_DIGITS = bytes(0x30 if byte in b"0123456789" else 0x20 for byte in range(256))
_NON_ZERO = re.compile(r"-?[0.]*[1-9]")


class NotStrict(ValueError):  # noqa: N818 - what was found, in one word
    """Not one strict JSON text. `document` is what could be read of it all the same, or `None`."""

    def __init__(self, why: str, document: Any = None) -> None:
        super().__init__(why)
        self.document = document


class TwoReadings(NotStrict):
    """Well-formed, but readers differ: a name stands twice in an object. `twice` are the outermost object's."""

    def __init__(self, why: str, document: Any, twice: frozenset[str]) -> None:
        super().__init__(why, document)
        self.twice = twice


def read_strictly(text: bytes) -> Any:
    """The one value that `text` holds. Raises `NotStrict` or its subclass `TwoReadings`."""
    bare = (_leave_out_the_one_amid(text) or _leave_out_long_strings(text)) if len(text) > 2 * _LONG else text
    brackets = _count_brackets(bare)
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise NotStrict(str(error)) from None
    if brackets > MAX_DEPTH:  # with fewer, no text is too deep
        _bound_depth(document)
    compact = orjson.dumps(document if bare is text else orjson.loads(bare))
    if compact != bare and not _same_but_for_space(bare, compact):
        _read_again(bare, document)
    return document


def _same_but_for_space(text: bytes, compact: bytes) -> bool:
    """Whether a valid text is the one that its value was written as, white space aside (in strings too).

    That is proof enough: white space parts no two tokens that touching would make one, so both have as many members
    in each object, and the same digits in each number; and what was written of a value has no name twice.
    """
    return text.translate(None, _SPACE) == compact.translate(None, _SPACE)


def _leave_out_the_one_amid(text: bytes) -> bytes | None:
    """The same at a few glances, where a text is about one long string, in which its middle stands; else `None`.

    Without a backslash before it, quotes come in pairs: behind an even number of them, the next begins a string.
    """
    middle = len(text) // 2
    opening, end = text.rfind(b'"', 0, middle), text.find(b'"', middle)
    if (
        end - opening > _LONG
        and 0 <= opening < _NEAR > len(text) - end
        and text[end - 1] != _BACKSLASH
        and text.startswith(_BEHIND_VALUES, end + 1)
        and text.find(b"\\", 0, opening) < 0
        and not text.count(b'"', 0, opening) % 2
    ):
        return text[: opening + 1] + text[end:]
    return None


def _leave_out_long_strings(text: bytes) -> bytes:
    """The same JSON with `""` for the long strings in it, or for those with few quotes before them; never for a name.

    In a text that is no JSON, up to the first byte that makes it none: nothing behind that is read.
    """
    find, last, left = text.find, len(text) - _LONG, _QUOTES + len(text) // 2048
    kept: list[bytes] = []
    start, opening = 0, find(b'"')
    while 0 <= opening < last:
        quote = opening
        while True:
            before, quote, left = quote + 1, find(b'"', quote + 1), left - 1
            if quote < 0 or not left:
                return b"".join([*kept, text[start:]]) if kept else text
            if text[quote - 1] != _BACKSLASH or not _is_escaped(text[before:quote]):
                break
        if quote - opening > _LONG and text[quote + 1 : quote + 64].lstrip(_SPACE)[:1] in _BEHIND_VALUES:
            kept.append(text[start : opening + 1])
            start = quote
        opening = find(b'"', quote + 1)
    return b"".join([*kept, text[start:]]) if kept else text


def _is_escaped(before: bytes) -> bool:
    """Whether what stands in a string before a quote makes that quote a part of it."""
    return bool((len(before) - len(before.rstrip(b"\\"))) % 2)


def _count_brackets(text: bytes) -> int:
    """The opening brackets of a text, in strings or not. Raises `NotStrict` for more than `MAX_VALUES` values.

    Every value but the first follows one, or a comma; strings are taken out only if it matters.
    `translate` looks once at each byte, in less time than one `count` takes.
    """
    if len(text) < 2 * MAX_VALUES:
        return len(text) - len(text.translate(None, b"[{"))
    kept = text.translate(None, _ALL_BUT_PUNCTUATION)
    if len(kept) > MAX_VALUES and len(_STRING.sub(b"", text).translate(None, _ALL_BUT_PUNCTUATION)) > MAX_VALUES:
        raise NotStrict(f"more than {MAX_VALUES} values")
    return kept.count(b"[") + kept.count(b"{")


def _bound_depth(document: Any) -> None:
    """Walk level by level. Raises `NotStrict` where there are too many."""
    level = [document] if isinstance(document, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise NotStrict(f"more than {MAX_DEPTH} levels", document)


def _read_again(text: bytes, document: Any) -> None:
    """A second, slower reader that sees every name and every number as it was written."""
    ambiguous = False
    twice: frozenset[str] = frozenset()

    def count(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal ambiguous, twice
        members = dict(pairs)
        twice = frozenset()  # objects end from the inside out, so the last one to set it is the outermost
        if len(members) != len(pairs):
            ambiguous = True
            twice = frozenset(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        return members

    # The exact readers of numbers are slow, so they are asked only where a number could need them; to search for that
    # with regular expressions would take longer than to read.
    integer = _integer if b"0" * 19 in text.translate(_DIGITS) else int
    number = _float if b"e-" in text or b"E-" in text or b"0" * 300 in text else float
    try:
        json.JSONDecoder(object_pairs_hook=count, parse_int=integer, parse_float=number).decode(text.decode())
    except ValueError as error:
        raise NotStrict(str(error), document) from None
    if ambiguous:
        raise TwoReadings("a name stands twice in an object", document, twice)


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (number := int(digits)) < 2**64:
        raise ValueError("an integer beyond 64 bits")
    return number


def _float(digits: str) -> float:
    number = float(digits)
    if number == 0 and _NON_ZERO.match(digits):
        raise ValueError("a number too small for a double")
    return number
