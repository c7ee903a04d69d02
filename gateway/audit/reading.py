"""The record in PostgreSQL as a reader meets it: the same lines, fetched in steps over one connection.

For commands, which have no loop of their own: every method blocks. Raises `OSError` where the database fails.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import asyncpg

from gateway.audit.port import AuditUnavailable
from gateway.audit.resuming import state_before
from gateway.audit.segments import MAX_WRITERS, all_writers
from gateway.audit.tables import FAULTS, connect, explain, name_of
from gateway.contract.chain import MAX_LINE

T = TypeVar("T")
_STEP: Final = 1000
_LIMIT_S: Final = 60.0
_MOST: Final = 2 * MAX_WRITERS
# From one writer to the next by the primary key, instead of over all records.
_WRITERS: Final = """
WITH RECURSIVE known AS (
    (SELECT writer FROM ostiary_audit WHERE writer >= 0 ORDER BY writer LIMIT 1)
    UNION ALL
    SELECT (SELECT min(writer) FROM ostiary_audit WHERE writer > known.writer)
    FROM known WHERE known.writer IS NOT NULL
)
(SELECT writer FROM known WHERE writer IS NOT NULL LIMIT $1)
UNION ALL (SELECT writer FROM ostiary_audit WHERE writer < 0 ORDER BY writer LIMIT 1)
"""
_LINE: Final = f"substr(line, 1, {MAX_LINE + 2}) AS line"
"""Whoever may insert could insert a line of any length: it is named as too long, and not read."""

_ONE: Final = f"SELECT {_LINE} FROM ostiary_audit WHERE writer = $1 AND seq = $2"  # noqa: S608


class Tables:
    """The tables of `url`, opened with the first question."""

    def __init__(self, url: str) -> None:
        self._url: Final = url
        self.name: Final = name_of(url)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: asyncpg.Connection | None = None

    def writers(self) -> list[int]:
        """Whoever wrote, and whoever is missing in the row before them; at most `_MOST` that can't be ours."""
        rows = self._ask(_WRITERS, _MOST)
        return all_writers([row["writer"] for row in rows]) if rows else []

    def lines(
        self, writer: int, *, newest_first: bool = False, after: int = 0, before: int = 2**62
    ) -> Iterator[bytes]:
        """The writer's lines, of records beyond `after` and, newest first, below `before`."""
        at: int | None = None
        while True:
            if newest_first:
                clause, order, edge = "seq < $2 AND seq > $4", "DESC", before if at is None else at
            else:
                clause, order, edge = "seq > $2 AND $4 >= 0", "ASC", after if at is None else at
            where = f"writer = $1 AND {clause} ORDER BY seq {order} LIMIT $3"
            rows = self._ask(f"SELECT seq, {_LINE} FROM ostiary_audit WHERE {where}", writer, edge, _STEP, after)  # noqa: S608
            for row in rows:
                yield row["line"]
            if len(rows) < _STEP:
                return
            at = rows[-1]["seq"]

    def back(self, writer: int, is_newer: Callable[[bytes], bool]) -> Iterator[bytes]:
        """The writer's lines before the first one that is newer, the last one first; found by the primary key."""
        rows = self._ask("SELECT min(seq) AS first, max(seq) AS last FROM ostiary_audit WHERE writer = $1", writer)
        low, high = rows[0]["first"] or 1, (rows[0]["last"] or 0) + 1
        while low < high:
            middle = (low + high) // 2
            line = self._ask(_ONE, writer, middle)
            if line and not is_newer(line[0]["line"]):
                low = middle + 1
            else:
                high = middle
        return self.lines(writer, newest_first=True, before=high)

    def close(self) -> None:
        """Leave."""
        if self._connection is not None and self._loop is not None:
            with contextlib.suppress(*FAULTS):
                self._loop.run_until_complete(self._connection.close(timeout=2))
            self._connection = None
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _ask(self, question: str, *words: Any) -> list[asyncpg.Record]:
        return self._run(self._fetch(question, *words))

    async def _fetch(self, question: str, *words: Any) -> list[asyncpg.Record]:
        if self._connection is None:
            self._connection = await connect(self._url, 5.0)
        found: list[asyncpg.Record] = await self._connection.fetch(question, *words, timeout=_LIMIT_S)
        return found

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            return self._loop.run_until_complete(work)
        except asyncpg.UndefinedTableError:
            raise OSError(f"{self.name}: there is no record in this database") from None
        except FAULTS as fault:
            raise OSError(f"{self.name}: {explain(fault)}") from fault
        except AuditUnavailable as fault:
            raise OSError(f"{self.name}: {fault}") from fault


class TableFollower:
    """One writer's last lines, then what is appended; see `tail.Follower`."""

    def __init__(self, tables: Tables, writer: int) -> None:
        self._tables: Final = tables
        self._writer: Final = writer
        self._seen = 0

    def last(self, count: int) -> list[bytes]:
        """The last `count` lines."""
        lines: list[bytes] = []
        newest = self._tables.lines(self._writer, newest_first=True)
        for line in newest:
            if len(lines) >= max(count, 1):
                break
            lines.append(line)
        if lines:
            self._note(lines[0])
        return lines[::-1][-count:] if count else []

    def new(self) -> list[bytes]:
        """The lines since the last time."""
        lines = list(self._tables.lines(self._writer, after=self._seen))
        if lines:
            self._note(lines[-1])
        return lines

    def close(self) -> None:
        """The tables are closed by whoever opened them."""

    def _note(self, line: bytes) -> None:
        self._seen = state_before(line)[0] + 1
