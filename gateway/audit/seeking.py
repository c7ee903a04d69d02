"""Where in a file of records to begin: found in a few reads, however long the file is.

The lines of one writer are in order of their numbers, and but for a clock that was set back of their times; nothing
of them is trusted: lines that say neither end no search.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Final

from gateway.contract.chain import MAX_LINE

_SEQ: Final = b',"seq":'
_TIME: Final = b',"time":"'
# A line is canonical: what follows these members holds no others, so the last of their names is the record's own.
_MOMENT: Final = re.compile(rb"2[0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")
_DIGITS: Final = re.compile(rb"[1-9][0-9]{0,15}(?=[,}])")


def seq_in(line: bytes) -> int:
    """The record's number without parsing the line, 0 where it says none."""
    at = line.rfind(_SEQ)
    found = _DIGITS.match(line, at + len(_SEQ)) if at >= 0 else None
    return int(found[0]) if found else 0


def time_in(line: bytes) -> str:
    """The record's time without parsing the line, `""` where it says none."""
    at = line.rfind(_TIME)
    found = _MOMENT.match(line, at + len(_TIME)) if at >= 0 else None
    return found[0].decode("ascii") if found else ""


def end_of_older(fd: int, is_newer: Callable[[bytes], bool]) -> int:
    """The offset of the first line that is newer (the file's end if none is), by halving. Raises `OSError`."""
    low, high = 0, os.fstat(fd).st_size
    end = high
    while low < high:
        middle = (low + high) // 2
        start = _line_start(fd, middle)
        line = b"" if start is None or start >= high else os.pread(fd, MAX_LINE, start).partition(b"\n")[0]
        if start is None or start >= high:
            high = middle
        elif is_newer(line):
            end, high = start, middle
        else:
            low = start + len(line) + 1
    return end


def _line_start(fd: int, offset: int) -> int | None:
    """Where the first line begins that begins at `offset` or later; None if that is too far on."""
    if not offset:
        return 0
    block = os.pread(fd, MAX_LINE + 1, offset - 1)
    at = block.find(b"\n")
    return None if at < 0 else offset + at
