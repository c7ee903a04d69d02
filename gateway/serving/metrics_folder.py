"""Where the workers count: a private folder that ends with its supervisor, or with the next one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from gateway.serving.listener import CannotServe

MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own is made below it


class MetricsFolder:
    """A private folder for the workers' counters, in memory where there is such a place: a disk may stand still.

    Its lock says that its supervisor lives. What a killed one left behind is removed by the next.
    """

    def __init__(self) -> None:
        for parent in (MEMORY, Path(tempfile.gettempdir())):
            with contextlib.suppress(OSError):
                draft = Path(tempfile.mkdtemp(prefix=".ostiary-", dir=parent))
                self._lock = os.open(draft / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                # Under its name only once it is locked: nobody takes it for one that was left behind.
                self.path = draft.rename(parent / f"ostiary-metrics-{draft.name.removeprefix('.ostiary-')}")
                self._remove_left_behind(parent)
                return
        raise CannotServe("no folder for the metrics can be made: neither /dev/shm nor TMPDIR can be written to")

    @staticmethod
    def _remove_left_behind(parent: Path) -> None:
        for folder in parent.glob("ostiary-metrics-*"):
            with contextlib.suppress(OSError):
                fd = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    if os.fstat(fd).st_uid == os.getuid():
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(fd)

    def remove(self) -> None:
        """The end of the supervisor."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
