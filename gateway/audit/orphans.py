"""Files of writers that are not started any more: what they left open gets its end.

A writer's own start closes what its earlier life left open. A gateway with fewer workers than before has fewer
writers, so one of those that it has looks after the other files. A file that a process holds is left alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from gateway.audit.commits import GroupCommit
from gateway.audit.jsonl import JsonlSettings, JsonlSink
from gateway.audit.port import AuditUnavailable
from gateway.audit.query import read_record
from gateway.audit.segments import MAX_WRITERS, lines_back, list_chains, open_chain, segments_of, slot_path
from gateway.audit.slot import SlotTaken

_MOST: Final = 64
"""Files that one look goes through at most: they are opened one after the other."""


async def close_orphans(file: Path) -> list[int]:
    """End what dead writers of `file` left open -> the writers whose chains were continued for it.

    Raises `AuditUnavailable` where a chain can't be continued; the others have been looked after by then.
    """
    unfinished = await asyncio.to_thread(_find_unfinished, file)
    return await end_orderly(unfinished, lambda writer: JsonlSink(JsonlSettings(file, writer=writer)))


async def end_orderly(writers: Iterable[int], sink_of: Callable[[int], GroupCommit]) -> list[int]:
    """Continue each writer's chain to an orderly end, but for those at work -> the writers that were ended.

    Raises `AuditUnavailable` where a chain can't be continued; the others have been looked after by then.
    """
    closed: list[int] = []
    faults: list[str] = []
    for writer in writers:
        sink = sink_of(writer)
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
    there = [writer for writer, path in list_chains(file) if writer < MAX_WRITERS and os.path.lexists(path)]
    return [writer for writer in there if not _ended_orderly(slot_path(file, writer))][:_MOST]


def _ended_orderly(path: Path) -> bool:
    """Whether nothing has to be done; what can't be read as a chain is for the start to tell."""
    if path.is_symlink():
        return False
    try:
        fd = open_chain(path)
        try:
            line = next(lines_back(fd), b"")
        finally:
            os.close(fd)
        if not line:
            return not segments_of(path)  # nothing was ever written, or nothing yet since the last rotation
    except OSError:
        return False
    last = read_record(line)
    facts = last.get("facts")
    return (
        line.endswith(b"\n") and last.get("act") == "stopped" and isinstance(facts, dict) and facts.get("open") == []
    )
