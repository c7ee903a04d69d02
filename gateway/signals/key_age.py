"""How long the key that seals has been in use here: a file beside the record remembers when it was first seen.

The file holds no secret: a name that is derived from the key, and a time. Where it can't be kept, the key is as old
as the process.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from gateway.sealing import derive_keys

_LINE = re.compile(r"([0-9a-f]{32}) ([0-9]{1,12})\n?")


def first_seen(keys: Sequence[bytes], record: Path, since: str | None = None) -> float:
    """When the first of `keys` was first seen by a gateway with this record, in seconds since the epoch.

    Or on the day that is said, `YYYY-MM-DD` in UTC: then nothing is looked up or kept.
    """
    if since is not None:
        return datetime.fromisoformat(since).replace(tzinfo=UTC).timestamp()
    name = derive_keys(keys[:1], "age")[0].hex()[:32]
    path, now = record.with_name(f"{record.name}.seal-key"), int(time.time())
    found = _LINE.fullmatch(_read(path))
    if found is not None and found[1] == name and int(found[2]) <= now:
        return float(found[2])
    coming = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        fd = os.open(coming, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(f"{name} {now}\n")
        coming.replace(path)
    return float(now)


def _read(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            return file.read(64).decode("ascii")
    except (OSError, UnicodeDecodeError):
        return ""
