"""What a start leaves behind: the tables by which the system's loader put shared libraries together.

Symbols, relocations and what unwinding takes stand in a library's read-only parts, apart from its code. They are read
by the megabyte while it is loaded, and count as memory of this process from then on. The pages are the files' own:
whoever wants one of them after all, as code does its constants, has it from there again.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
import sys
from pathlib import Path
from typing import Final

_SMAPS: Final = Path("/proc/self/smaps")
_TABLES: Final = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) r--p [0-9a-f]+ [0-9a-f:]+ [0-9]+ +/\S+\.so\S*\n(?:[A-Z]\w+:.*\n)*?Anonymous: +0 kB$",
    re.M,
)
"""A library's part that is only read, and (`Anonymous`) the file's own throughout: what the loader has written into
one, as it does into those with addresses before it makes them read-only, would be lost."""


def tables_in(smaps: bytes) -> list[tuple[int, int]]:
    """Where they are, each from and to (proc_pid_smaps(5))."""
    return [(int(start, 16), int(end, 16)) for start, end in _TABLES.findall(smaps)]


def give_back_tables() -> None:
    """Have them counted no more (Linux). Ten milliseconds, nearly all of them the kernel's."""
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    with contextlib.suppress(OSError):  # a kernel that does not tell
        for start, end in tables_in(_SMAPS.read_bytes()):
            advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
