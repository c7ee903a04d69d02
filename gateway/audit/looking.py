"""A look into the record, newest first, that ends: after so many records, so many bytes or so much time.

Whoever looks is told what ended it and the place to go on from: for each writer the number of the last record that
was read. A window of time is found without reading what is newer. Nothing here is async: a look is a thread's work.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, NamedTuple

from gateway.audit.seeking import seq_in, time_in
from gateway.audit.trail import Chain

SLACK_S: Final = 300.0
"""How far a clock may have been set back for a record still to be found in its window."""

_STRAY: Final = 32
"""So many records in a row are older than the window before a chain is left: one of a wrong time hides no others."""

_CURSOR: Final = re.compile(r"[0-9]{1,6}-[0-9]{1,16}(?:\.[0-9]{1,6}-[0-9]{1,16}){0,255}")

Wanted = Callable[[bytes], Mapping[str, Any] | None]
"""A line -> its record, if it is asked for."""

Places = Mapping[int, int]
"""Writer -> the number of the last record that was read of it."""


class Ended(Enum):
    """What ended a look: the window was read, enough was found, or it took all that a look may take."""

    WINDOW = "window"
    ENOUGH = "enough"
    BOUND = "bound"


class Budget:
    """What may be read: `left` bytes until `seconds` from now. One budget may serve several looks.

    The thread that reads lets others run at every turn: an event loop in the same process goes on.
    """

    def __init__(self, left: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._left = left
        self._clock: Final = clock
        self._end: Final = clock() + seconds
        self._lines = 0
        self.is_spent = False

    def spend(self, count: int) -> None:
        """So many bytes were read."""
        self._left -= count
        self._lines += 1
        if self._left <= 0:
            self.is_spent = True
        elif self._lines % 32 == 0:
            time.sleep(0)
            self.is_spent = self._clock() >= self._end


@dataclass(frozen=True, slots=True)
class Found:
    """`lines` and `records` side by side, newest first. `reached` is the time of the last record that was read.

    `unread` says of each writer that could not be read why.
    """

    lines: Sequence[bytes]
    records: Sequence[Mapping[str, Any]]
    ended: Ended
    places: Places
    reached: str
    unread: Sequence[str]


class _Line(NamedTuple):
    time: str
    writer: int
    line: bytes


def look(
    chains: Sequence[Chain],
    wanted: Wanted,
    budget: Budget,
    *,
    since: str,
    until: str,
    limit: int,
    places: Places | None = None,
    at_once: bool = False,
) -> Found:
    """What is wanted of the records from `since` on and before `until`, at most `limit`, on from `places`.

    `at_once` ends it with the last one that is wanted; else it is known whether there are more.

    The window bounds what is read, to `SLACK_S`; it is `wanted` that holds each record to it. Never raises for what
    the record holds; a chain that can't be read is named.
    """
    unread: list[str] = []
    begun = dict(places or {})
    readers = [_read(chain, begun, since, until, unread) for chain in chains]
    lines: list[bytes] = []
    records: list[Mapping[str, Any]] = []
    last: dict[int, bytes] = {}
    reached, ended = "", Ended.WINDOW
    try:
        for one in heapq.merge(*readers, key=lambda line: line.time, reverse=True):
            if (record := wanted(one.line)) is not None:
                if len(records) >= limit:
                    ended = Ended.ENOUGH
                    break
                lines.append(one.line)
                records.append(record)
            last[one.writer], reached = one.line, one.time
            if at_once and len(records) >= limit:
                ended = Ended.ENOUGH
                break
            budget.spend(len(one.line))
            if budget.is_spent:
                ended = Ended.BOUND
                break
    finally:
        for reader in readers:
            reader.close()
    begun |= {writer: seq for writer, line in last.items() if (seq := seq_in(line))}
    return Found(lines, records, ended, begun, reached, unread)


def _read(chain: Chain, places: Places, since: str, until: str, unread: list[str]) -> Generator[_Line, None, None]:
    """The chain's lines within the window, newest first; one that says no time has that of the one after it."""
    writer = chain.writer or 0
    place, latest, earliest = places.get(writer), shifted(until, SLACK_S), shifted(since, -SLACK_S)
    at, older = until, 0

    def is_newer(line: bytes) -> bool:
        return seq_in(line) >= place if place is not None else time_in(line) >= latest

    try:
        for line in chain.back(is_newer):
            at = time_in(line) or at
            older = older + 1 if at < earliest else 0
            if older > _STRAY:
                return
            yield _Line(at, writer, line)
    except OSError as error:
        unread.append(f"writer {writer}: {error.strerror or error}")


def shifted(moment: str, seconds: float) -> str:
    """A time as the record writes it, so many seconds later. The earliest and the latest there are stay."""
    try:
        then = datetime.fromisoformat(moment) + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        return moment
    return then.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write_cursor(places: Places) -> str:
    """Places as a text for an address: `0-1234.1-88`."""
    return ".".join(f"{writer}-{seq}" for writer, seq in sorted(places.items()))


def read_cursor(text: str) -> dict[int, int]:
    """The places of such a text. Raises `ValueError`."""
    if not text:
        return {}
    if not _CURSOR.fullmatch(text):
        raise ValueError("no place in the record")
    return {int(writer): int(seq) for writer, seq in (one.split("-") for one in text.split("."))}
