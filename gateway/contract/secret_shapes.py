"""What looks like a secret, or like a person's data, wherever it stands: masked even in what a policy clears.

A net under the rules, no rule: it knows the common shapes (AUD-02), not every secret. Linear in the text's length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_LONGEST: Final = 4096
_WORD: Final = re.compile(r"\S{1,4096}\Z")

_SHAPES: Final[Mapping[str, re.Pattern[str]]] = {
    "key": re.compile(
        r"-----BEGIN [A-Z0-9 ]{0,40}KEY[A-Z ]{0,16}-----(?s:.*?)(?:-----END [A-Z0-9 ]{0,40}KEY[A-Z ]{0,16}-----|\Z)"
    ),
    "token": re.compile(r"eyJ[\w-]{8,}(?:\.[\w-]*)*|(?i:\b(?:bearer|basic|dpop)\s+)[\w.~+/=-]{12,}"),
    # Prefixes that their issuers publish so that they can be found.
    "api key": re.compile(
        r"(?<![A-Za-z0-9])(?:"
        r"sk-[\w-]{16,}|(?:sk|rk|pk)_(?:live|test)_\w{16,}|gh[opsur]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
        r"|xox[abeoprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|npm_\w{30,}"
        r"|pypi-[\w-]{30,}|hf_\w{30,}|SG\.[\w-]{16,}\.[\w-]{16,}|dop_v1_[0-9a-f]{40,}"
        r")"
    ),
    # In a URL; ours stands there as its HMAC.
    "password": re.compile(r"(?<=://)(?!hmac:[0-9a-f]{32}@)[^\s/@:]{0,256}:[^\s/@]{1,256}(?=@)"),
    "e-mail address": re.compile(r"[\w.+%-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"),
    "card number": re.compile(r"(?<![\w.-])[0-9](?:[ -]?[0-9]){12,18}(?![\w-])"),
}


def conceal(text: str) -> tuple[str, tuple[str, ...]]:
    """The text with `[NAME removed]` for what has such a shape, and the names, in the order of the table.

    A longer text than 4096 characters loses the word at its cut: half a secret has no shape.
    """
    if len(text) > _LONGEST:
        text = _WORD.sub("", text[:_LONGEST])
    found: list[str] = []
    for name, shape in _SHAPES.items():
        hidden = shape.sub(lambda match, name=name: _hide(name, match[0]), text)  # type: ignore[misc]
        if hidden != text:
            found.append(name)
            text = hidden
    return text, tuple(found)


def _hide(name: str, match: str) -> str:
    return match if name == "card number" and not is_card_number(match) else f"[{name} removed]"


def is_card_number(text: str) -> bool:
    """13 to 19 digits, spaces and hyphens left out, whose last one is the Luhn check digit of the others."""
    digits = [int(char) for char in text if char not in " -"]
    if not 13 <= len(digits) <= 19 or len(set(digits)) == 1:
        return False
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
