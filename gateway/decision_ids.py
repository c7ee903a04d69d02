"""The ids of decisions: 128 random bits in hex, drawn for many requests at once.

To ask the system for randomness takes longer than all else that a request's beginning does. What was drawn stays in
this process, which is never forked once it serves: no two requests anywhere share an id.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Final

BYTES: Final = 16
AT_ONCE: Final = 64


def fresh_ids() -> Iterator[str]:
    """One id after the other, without end."""
    while True:
        drawn = secrets.token_hex(BYTES * AT_ONCE)
        for at in range(0, len(drawn), 2 * BYTES):
            yield drawn[at : at + 2 * BYTES]
