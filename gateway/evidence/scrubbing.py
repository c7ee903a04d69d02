"""What may never be in a pack: tokens, keys and canaries are replaced by their names, and looked for once more.

Replacing is not trusted: every file is searched for every secret in the spellings that it could have taken, and what
is found keeps the file out (pack.py).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

SHORTEST: Final = 8
"""Characters. A shorter text can't be told from others, and is refused as a secret."""

CANARY: Final = re.compile(rb"canary-[0-9a-f]{32}")
"""What a planted canary looks like: none is in a pack, whosever it is."""


class TooShort(ValueError):  # noqa: N818 - says what is wrong with a secret
    """A secret that could stand anywhere by chance; the text names it."""


class Scrubber:
    """Knows every secret by a name."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._needles: dict[str, frozenset[bytes]] = {}

    def know(self, name: str, value: str) -> None:
        """Remember a secret. Raises `TooShort`."""
        if len(value) < SHORTEST:
            raise TooShort(f"{name} is shorter than {SHORTEST} characters: it can't be looked for")
        self._names[value] = name
        self._needles[name] = self._needles.get(name, frozenset()) | frozenset(_spellings(value))

    def clean(self, text: str) -> str:
        """The text with each secret replaced by `[its name]`, the longest first."""
        for value in sorted(self._names, key=len, reverse=True):
            text = text.replace(value, f"[{self._names[value]}]")
        return text

    def found(self, data: bytes) -> list[str]:
        """The names of the secrets that stand in these bytes, in any of their spellings."""
        return sorted(name for name, needles in self._needles.items() if any(needle in data for needle in needles))


def _spellings(value: str) -> Iterator[bytes]:
    raw = value.encode()
    yield raw
    yield json.dumps(value)[1:-1].encode()
    yield quote(value, safe="").encode()
    for lead in range(3):  # base64 of a text that the secret stands in, whatever comes before it
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            whole = encode(b"\0" * lead + raw)
            inner = whole[(lead * 8 + 5) // 6 : len(whole.rstrip(b"=")) - 1]
            if len(inner) >= SHORTEST:
                yield inner
    segments = value.removeprefix("Bearer ").split(".")
    if len(segments) == 3 and len(segments[2]) >= 2 * SHORTEST:
        yield segments[2].encode()  # a token's signature is what makes it one
