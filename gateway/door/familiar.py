"""The head that a connection showed last: one that differs in nothing but the body's length is not read anew.

Most clients send each request of a connection with the same lines, and the same token in them. The last head is
compared byte by byte, but for the digits of `Content-Length`, which are read as strictly as `read_head` does: what is
taken for familiar is what that would have read just so.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.door.framing import DoorLimits, Head

MOST_BYTES: Final = 4096
"""Of a head that is kept. With what was made of it, a connection holds on to 21 KB at most: a hundred lines of it."""

MOST_CONNECTIONS: Final = 1024
"""Beyond so many at once no head is kept: those that rest should cost little."""

PATIENCE: Final = 4
"""After so many heads in turn that were none of those kept, the connection's heads are taken to be all different."""

_LENGTH_LINE: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})(?=[ \t]*\r\n)", re.I)
_DIGITS: Final = re.compile(rb"[0-9]{1,18}(?=[ \t]*\r\n)")
_MOST_DIGITS: Final = 18


class Familiar:
    """One connection's last head."""

    __slots__ = ("_before", "_digits", "_head", "_left", "_place", "_rest")

    def __init__(self) -> None:
        self._head: Head | None = None
        self._before = self._rest = b""  # what stands before the body's length, and from there to the head's end
        self._digits = 0  # of the length
        self._place = 0  # of its line
        self._left = PATIENCE

    def recall(self, data: bytes) -> tuple[Head, int] | None:
        """What `read_head` would make of the head that `data` begins with, and where it ends; `None`: read it."""
        head, before = self._head, self._before
        if head is None or not data.startswith(before):
            return None
        if data.startswith(self._rest, len(before)):
            self._left = PATIENCE
            return head, len(before) + len(self._rest)
        digits, after = _DIGITS.match(data, len(before)), self._rest[self._digits :]
        if digits is None or not data.startswith(after, digits.end()):
            return None
        self._left = PATIENCE
        at, lines = self._place, head.headers
        told = (*lines[:at], (lines[at][0], digits[0]), *lines[at + 1 :])
        found = Head(head.method, head.path, head.query, told, int(digits[0]), head.expects_continue)
        return found, digits.end() + len(after)

    def keep(self, text: bytes, head: Head, limits: DoorLimits) -> None:
        """`text` was read as `head`, its empty line included: the next is compared with it, if that is any use."""
        self._head = None
        if not self._left or len(text) > min(MOST_BYTES, limits.head_bytes - _MOST_DIGITS):
            return
        self._left -= 1
        place = _LENGTH_LINE.search(text)
        if place is None or head.length is None or head.tamed is not None:
            return
        (begin, end), names = place.span(1), [name for name, _ in head.headers]
        self._head, self._before, self._rest = head, text[:begin], text[begin:]
        self._digits, self._place = end - begin, names.index(b"content-length")
