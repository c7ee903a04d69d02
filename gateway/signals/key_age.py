"""How long the key that seals has been in use here: a file beside the record remembers when it was first seen.

The file holds no secret: a name that is derived from the key, and a time. Where it can't be kept, the key is as old
as the process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from gateway.notes import leave_note, read_note
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
    found = _LINE.fullmatch(read_note(path, 64))
    if found is not None and found[1] == name and int(found[2]) <= now:
        return float(found[2])
    leave_note(path, f"{name} {now}\n")
    return float(now)
