"""Second opinions: the same rules read off the specifications, slowly and by other means than the gateway's."""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode, b64encode
from typing import Any, NoReturn

DEPTH = 64


class Pairs(list[tuple[str, Any]]):
    """An object as it was written: every member, in order, also those that stand twice."""


def as_written(text: bytes) -> Any:
    """JSON with its objects as `Pairs`. Raises `ValueError` and `RecursionError`."""
    return json.loads(text.decode(), object_pairs_hook=Pairs)


def strict(text: bytes) -> Any:
    """The one value of a strict JSON text (contract.md section 2). Raises `ValueError` where there is none."""
    try:
        value = json.loads(
            text.decode(),
            object_pairs_hook=_once,
            parse_constant=_no_constant,
            parse_int=_within_64_bits,
            parse_float=_as_written_double,
        )
    except RecursionError:
        raise ValueError("too deep") from None
    _walk(value, 0)
    return value


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down: 1, 1.0 and true are three values, 0.0 and -0.0 two."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(same(*pair) for pair in zip(left, right, strict=True))
    return repr(left) == repr(right) if isinstance(left, float) else bool(left == right)


def header_value(value: bytes) -> str | None:
    """What a mirrored header's value stands for, or `None` if it is malformed (contract.md section 3)."""
    if not re.fullmatch(rb"[\t\x20-\x7e]*", value):
        return None
    text = value.decode("ascii")
    if not (text.startswith("=?base64?") and text.endswith("?=")):
        return text
    found = re.fullmatch(r"=\?base64\?((?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)\?=", text)
    if found is None:
        return None
    decoded = b64decode(found[1])
    try:
        return decoded.decode() if b64encode(decoded).decode() == found[1] else None
    except UnicodeDecodeError:
        return None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name stands twice")
    return dict(pairs)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _within_64_bits(digits: str) -> int:
    number = int(digits)
    if not -(2**63) <= number < 2**64:
        raise ValueError("beyond 64 bits")
    return number


def _as_written_double(digits: str) -> float:
    number = float(digits)
    if math.isinf(number) or (number == 0 and re.search("[1-9]", re.split("[eE]", digits)[0])):
        raise ValueError("not a double")
    return number


def _walk(value: Any, depth: int) -> None:
    if isinstance(value, str):
        value.encode()  # a lone surrogate has no UTF-8
    elif isinstance(value, (dict, list)):
        if depth == DEPTH:
            raise ValueError("too deep")
        for child in value:
            _walk(child, depth + 1)
            if isinstance(value, dict):
                _walk(value[child], depth + 1)
