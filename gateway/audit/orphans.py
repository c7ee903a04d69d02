"""Files of writers that are not started any more: what they left open gets its end.

A writer's own start closes what its earlier life left open. A gateway with fewer workers than before has fewer
writers, so one of those that it has looks after the other files. A file that a process holds is left alone.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

from gateway.audit.jsonl import JsonlSettings, JsonlSink
from gateway.audit.port import AuditUnavailable
from gateway.audit.segments import segments_of, slot_path
from gateway.audit.slot import MAX_WRITERS, SlotTaken
from gateway.contract.chain import MAX_LINE

_MOST: Final = 64
"""Files that one look goes through at most: they are opened one after the other."""


async def close_orphans(file: Path) -> list[int]:
    """End what dead writers of `file` left open -> the writers whose chains were continued for it.

    Raises `AuditUnavailable` where a chain can't be continued; the others have been looked after by then.
    """
    closed: list[int] = []
    faults: list[str] = []
    for writer in await asyncio.to_thread(_find_unfinished, file):
        sink = JsonlSink(JsonlSettings(file, writer=writer))
        try:
            await sink.start()
        except SlotTaken:
            continue  # at work
        except AuditUnavailable as fault:
            faults.append(str(fault))
            continue
        await sink.close()
        closed.append(writer)
    if faults:
        raise AuditUnavailable("; ".join(faults))
    return closed


def _find_unfinished(file: Path) -> list[int]:
    """The writers whose last record is not that of an orderly end: dead ones, and those at work."""
    found = []
    for writer in range(MAX_WRITERS):
        path = slot_path(file, writer)
        if not path.exists():
            if writer:
                break
            continue
        if not _ended_orderly(path):
            found.append(writer)
    return found[:_MOST]


def _ended_orderly(path: Path) -> bool:
    with path.open("rb") as tail:
        tail.seek(max(0, path.stat().st_size - MAX_LINE - 1))
        lines = tail.read().splitlines(keepends=True)
    if not lines:
        return not segments_of(path)  # nothing was ever written, or nothing yet since the last rotation
    try:
        last = json.loads(lines[-1])
    except ValueError:
        return False
    return lines[-1].endswith(b"\n") and last.get("act") == "stopped" and not last["facts"]["open"]
