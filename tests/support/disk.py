"""File systems of a test's own: one in memory, which can be filled up, and one that breaks as real ones do."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest


@contextmanager
def file_system(folder: Path, size: str) -> Iterator[Path]:
    """`folder` as a file system of `size` (`1m`), gone afterwards; the test is skipped where none can be mounted."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a file system can't be mounted here: {mounted.stderr.decode()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


class Ext4:
    """A journalling file system of `size` (`16m`) at `folder`, in a file behind a loop device; mounted while entered.

    The test is skipped where none can be mounted.
    """

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        self._image, self._size = folder.with_name(f"{folder.name}.img"), size

    def __enter__(self) -> Self:
        made = subprocess.run(
            ["mkfs.ext4", "-q", "-m", "0", str(self._image), self._size], capture_output=True, check=False
        )
        if made.returncode or self._mount().returncode:
            pytest.skip("a file system can't be mounted from a file here")
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["fsfreeze", "-u", str(self.folder)], capture_output=True, check=False)
        subprocess.run(["umount", str(self.folder)], check=True)
        self._image.unlink()

    def freeze(self) -> None:
        """Whoever writes waits, until `thaw()`: the disk hangs."""
        subprocess.run(["fsfreeze", "-f", str(self.folder)], check=True)

    def thaw(self) -> None:
        """It goes on where it hung."""
        subprocess.run(["fsfreeze", "-u", str(self.folder)], check=True)

    def abort(self) -> None:
        """It is read-only from now on, under whoever has files open: as after an error of a disk."""
        subprocess.run(["mount", "-o", "remount,abort", str(self.folder)], check=True)

    def mount_anew(self) -> None:
        """As an operator mends it: nobody may have files open."""
        subprocess.run(["umount", str(self.folder)], check=True)
        subprocess.run(["e2fsck", "-p", "-f", str(self._image)], capture_output=True, check=False)
        assert self._mount().returncode == 0

    def _mount(self) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["mount", "-o", "loop", str(self._image), str(self.folder)], check=False)


def fill(disk: Path) -> Path:
    """Use up all space -> the file that does."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as stream:
        try:
            for size in (65536, 4096, 512, 1):
                try:
                    while True:
                        stream.write(b"x" * size)
                except OSError:
                    continue
        except OSError:
            pass
    return filler
