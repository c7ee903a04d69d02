"""A file system of a test's own, which can be filled up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
