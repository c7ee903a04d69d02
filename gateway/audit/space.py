"""Room on the disk, taken ahead of the records: a commit that need not find blocks is durable sooner.

The file is not longer for it, so nobody who reads it sees anything. Where the system or the file system can't do it,
or the disk is full, records are appended as they would be anyway.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

AHEAD: Final = 1 << 20
"""Bytes taken at a time: some five hundred calls."""

_KEEP_SIZE: Final = 1
"""Of `fallocate(2)`, which `os` knows only as `posix_fallocate`: that one lengthens the file."""

_take = getattr(ctypes.CDLL(None), "fallocate", None) if sys.platform == "linux" else None
if _take is not None:
    _take.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


def take_ahead(fd: int, size: int) -> int:
    """Take room behind a file of `size` bytes -> up to where there is some, or is not to be asked for again."""
    if _take is not None:
        _take(fd, _KEEP_SIZE, size, AHEAD)
    return size + AHEAD


def give_back(fd: int, size: int) -> None:
    """Free the room behind a file of `size` bytes; one of another size is left as it is. Raises `OSError`."""
    if os.fstat(fd).st_size == size:
        os.ftruncate(fd, size)
