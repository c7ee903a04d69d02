"""The record as a reader meets it: every writer's lines, merged in order of time, wherever they lie.

Streaming: one line a writer is in memory. A writer's own order is kept also where its clock was set back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gateway.audit.query import Query
from gateway.audit.reading import Tables
from gateway.audit.seeking import end_of_older
from gateway.audit.segments import lines_back, lines_of, open_slot


class Chain(Protocol):
    """One writer's lines. Raises `OSError` where they can't be read."""

    @property
    def writer(self) -> int | None:
        """Whose they must be; `None`: whoever the first record names."""
        ...

    @property
    def name(self) -> str:
        """Where they lie, for people."""
        ...

    def lines(self, *, newest_first: bool) -> Iterator[bytes]:
        """All lines, newline included."""
        ...

    def back(self, is_newer: Callable[[bytes], bool]) -> Iterator[bytes]:
        """The lines before the first one that is newer, the last one first, without reading those behind it."""
        ...


@dataclass(frozen=True, slots=True)
class ChainOfFiles:
    """A slot's growing file and what was set aside before it."""

    slot: Path
    writer: int | None = None

    @property
    def name(self) -> str:
        """The slot's file."""
        return str(self.slot)

    def lines(self, *, newest_first: bool) -> Iterator[bytes]:
        """See the protocol; a line that is not finished is left out."""
        with open_slot(self.slot) as opened:
            for _, fd in opened.files(newest_first=newest_first, pass_over=True):
                for line in lines_back(fd) if newest_first else lines_of(fd):
                    if line.endswith(b"\n"):
                        yield line

    def back(self, is_newer: Callable[[bytes], bool]) -> Iterator[bytes]:
        """See the protocol."""
        with open_slot(self.slot) as opened:
            for _, fd in opened.files(newest_first=True, pass_over=True):
                for line in lines_back(fd, end_of_older(fd, is_newer)):
                    if line.endswith(b"\n"):
                        yield line


@dataclass(frozen=True, slots=True)
class ChainOfTable:
    """A writer's part of the tables."""

    tables: Tables
    writer: int | None

    @property
    def name(self) -> str:
        """The database and the writer."""
        return f"{self.tables.name} writer {self.writer}"

    def lines(self, *, newest_first: bool) -> Iterator[bytes]:
        """See the protocol."""
        return self.tables.lines(self.writer or 0, newest_first=newest_first)

    def back(self, is_newer: Callable[[bytes], bool]) -> Iterator[bytes]:
        """See the protocol."""
        return self.tables.back(self.writer or 0, is_newer)


def search(chains: Sequence[Chain], query: Query, *, newest_first: bool) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """(line, record) of all that is asked for, in order of time. Raises `OSError`."""
    found = [_found(chain, query, newest_first) for chain in chains]
    yield from heapq.merge(*found, key=lambda one: str(one[1].get("time")), reverse=newest_first)


def _found(chain: Chain, query: Query, newest_first: bool) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for line in chain.lines(newest_first=newest_first):
        record = query.read(line)
        if record is not None:
            yield line, record
