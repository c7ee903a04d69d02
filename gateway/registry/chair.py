"""Which of a host's workers checks: whoever holds the lock of a file, until its process ends, and then another.

Workers come and go while the gateway serves (a crash, a reload), so no number of theirs says who it is.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Chair:
    """One worker's try at it. Where no file can be made or locked nobody is kept from checking: each worker does."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._held: int | None = None
        self.mine = False

    def take(self) -> bool:
        """Whether it is this worker's now. Not on the loop: it opens a file."""
        if self.mine:
            return True
        try:
            held = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            self.mine = True
            return True
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            return False
        except OSError:  # the file system knows no locks
            os.close(held)
            self.mine = True
            return True
        self._held, self.mine = held, True
        return True

    def leave(self) -> None:
        """It is anybody's."""
        self.mine = False
        if self._held is not None:
            os.close(self._held)
            self._held = None
