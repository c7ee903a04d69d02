"""What workers run on: the configuration's text as it was read at one moment, under the name of its digest.

Workers never read the file that lies there: it may have been changed since it was judged, and whoever replaces a dead
worker has to be what the others are.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Configuration:
    """Judged. `drain_s` and `grace_s` (seconds) are what the supervisor itself has to know of it."""

    text: bytes = field(repr=False)
    grace_s: float
    drain_s: float

    @property
    def digest(self) -> str:
        """SHA-256 of the text, as `sha256sum` of the file says it."""
        return digest_of(self.text)


def digest_of(text: bytes) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(text).hexdigest()


def lay_down(folder: Path, text: bytes) -> Path:
    """The text as a file of `folder` that only this user reads; written once. Raises `OSError`."""
    file = folder / _name(text)
    if not file.exists():
        draft = file.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as written:
            written.write(text)
        draft.rename(file)
    return file


def clear_away(folder: Path, keep: Iterable[bytes]) -> None:
    """Remove the texts that nobody runs on any more: they may hold a secret, and are many after many reloads."""
    names = {_name(text) for text in keep}
    with contextlib.suppress(OSError):
        for file in folder.glob("configuration-*"):
            if file.name not in names:
                file.unlink(missing_ok=True)


def _name(text: bytes) -> str:
    return f"configuration-{digest_of(text)[:32]}.yaml"
