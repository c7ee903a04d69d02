"""What the system says of processes, for tests that look whether any is left behind. Linux."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path


def parents() -> dict[int, int]:
    """Process id -> its parent's, for all that live; one that has ended and waits to be reaped is none."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    found[int(folder.name)] = int(parent)
    return found


def descendants(pid: int) -> set[int]:
    """All living processes that `pid` started, at any depth."""
    table, found, ring = parents(), set[int](), {pid}
    while ring:
        ring = {child for child, parent in table.items() if parent in ring} - found
        found |= ring
    return found


def figures_of(pid: int) -> Path | None:
    """Where a worker counts: the folder of the figures that it has in its memory; none of another process."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return next((Path(line.split(maxsplit=5)[5]).parent for line in lines if "/ostiary-metrics-" in line), None)


def living(pids: Iterable[int]) -> set[int]:
    """Those of `pids` that live."""
    return set(pids) & parents().keys()


async def eventually(what: str, holds: Callable[[], bool | Awaitable[bool]], deadline_s: float = 20.0) -> float:
    """Wait until `holds` -> seconds that it took. `AssertionError` naming `what` where it does not come true."""
    began = time.monotonic()
    while True:
        held = holds()
        if held if isinstance(held, bool) else await held:
            return time.monotonic() - began
        if time.monotonic() - began > deadline_s:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        await asyncio.sleep(0.03)
