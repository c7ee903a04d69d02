"""A JSON object with one reading: what two readers could understand differently is refused, not chosen from."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

DEPTH = 64


class Unreadable(ValueError):  # noqa: N818 - what the text is
    """Not an object that can be read in one way; the text is a stable name."""


def read_text(text: bytes) -> dict[str, Any]:
    """JSON text -> the object. Raises `Unreadable`: `not_json`, `not_an_object`, `too_deep`, `ambiguous` (a member
    that stands twice, at any depth; a number that 64-bit readers would change).
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as fault:
        raise Unreadable("not_json") from fault
    if not isinstance(value, dict):
        raise Unreadable("not_an_object")
    if _depth_exceeds(value, DEPTH):
        raise Unreadable("too_deep")
    json.loads(text, object_pairs_hook=_once, parse_int=_integer, parse_float=_float)
    return value


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise Unreadable("ambiguous")


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (number := int(digits)) < 2**64:
        raise Unreadable("ambiguous")
    return number


def _float(digits: str) -> float:
    number = float(digits)
    if number == 0 and re.match(r"-?[0.]*[1-9]", digits):
        raise Unreadable("ambiguous")
    return number


def _depth_exceeds(value: Any, depth: int) -> bool:
    level = [value]
    while level:
        depth -= 1
        if depth < 0:
            return True
        inner: list[Any] = []
        for one in level:
            inner += one.values() if isinstance(one, dict) else one
        level = [one for one in inner if isinstance(one, dict | list)]
    return False
