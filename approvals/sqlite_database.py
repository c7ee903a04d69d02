"""SQLite: one file that the workers of one host share, in WAL mode with `synchronous=FULL`.

One transaction writes at a time; it has the write lock from its beginning, so that nothing it has read can change.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from approvals.database import MIGRATE_S
from approvals.revisions import Standing
from approvals.ticket import StoreUnavailable

BUSY_S = 1.5
READERS = 4


class SqliteDatabase:
    """`url`: `sqlite:///FILE`; `limit_s`: what a transaction may take in all."""

    readers = READERS
    writers = 1
    faults: tuple[type[Exception], ...] = (SQLAlchemyError, sqlite3.Error, OSError)

    def __init__(self, url: str, limit_s: float) -> None:
        self._path = _file_of(make_url(url))
        self.name = str(self._path)
        self.engine = _engine(self._path, min(BUSY_S, limit_s * 0.75))
        self._file: tuple[int, int] | None = None

    async def prepare(self) -> None:
        """Make the file where there is none; it must be one that can do write-ahead logging."""
        self._file = await asyncio.to_thread(_make, self._path)
        for attempt in range(20):  # switching to WAL can meet another worker that does the same
            try:
                async with self.engine.connect() as connection:
                    mode = (await connection.exec_driver_sql("PRAGMA journal_mode")).scalar_one()
                    if mode != "wal":
                        raise StoreUnavailable(f"{self._path}: the file system cannot do write-ahead logging")
            except SQLAlchemyError:
                if attempt == 19:
                    raise
                await asyncio.sleep(0.05)
            else:
                return

    @asynccontextmanager
    async def transaction(self, *, write: bool) -> AsyncIterator[AsyncConnection]:
        """`BEGIN IMMEDIATE` to write, `BEGIN` to look: a snapshot."""
        if write:
            self._same_file()
        async with self.engine.connect() as connection:
            await connection.execution_options(ostiary_write=write)
            async with connection.begin():
                yield connection

    def now(self) -> float:
        """The host's clock: all who share a file are on one host."""
        return time.time()

    async def migrate(self, step: Callable[[Connection], Standing], *, write: bool) -> Standing:
        """Under the write lock."""
        if not write and not await asyncio.to_thread(self._path.exists):
            return Standing("")
        engine = _engine(self._path, MIGRATE_S)
        try:
            async with engine.connect() as connection:
                await connection.execution_options(ostiary_write=write)
                async with connection.begin():
                    return await connection.run_sync(step)
        finally:
            await engine.dispose()

    def is_repeatable(self, fault: Exception) -> bool:  # noqa: ARG002 - the port's
        """Never: with the write lock from the beginning nobody comes between."""
        return False

    def explain(self, fault: Exception) -> str:
        """SQLite's own words."""
        return str(getattr(fault, "orig", None) or fault)

    async def close(self) -> None:
        """Close the connections."""
        await self.engine.dispose()

    def _same_file(self) -> None:
        # SQLite goes on writing to a file that was removed or replaced under it, where nobody else would see it.
        found = self._path.stat()
        if (found.st_dev, found.st_ino) != self._file:
            raise StoreUnavailable(f"{self._path} was replaced")


def _file_of(url: URL) -> Path:
    if not url.database or url.database == ":memory:" or url.query:
        raise ValueError("approvals.database: a file is needed that all workers share: sqlite:///FILE")
    return Path(url.database).absolute()


def _make(path: Path) -> tuple[int, int]:
    """Create the file for its owner alone where there is none (its log inherits the mode) -> (device, inode)."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    found = path.stat()
    return (found.st_dev, found.st_ino)


def _engine(path: Path, busy_s: float) -> AsyncEngine:
    # `mode=rw`: a connection never makes a new, empty file where ours is gone.
    url = URL.create("sqlite+aiosqlite", database=path.as_uri(), query={"mode": "rw", "uri": "true"})
    engine = create_async_engine(
        url,
        pool_size=READERS + 1,
        max_overflow=0,
        hide_parameters=True,  # an error's text goes to logs and records
        connect_args={"isolation_level": None, "timeout": busy_s},
    )

    @event.listens_for(engine.sync_engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            f"busy_timeout={int(busy_s * 1000)}",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _began(connection: Connection) -> None:
        # A plain BEGIN takes the write lock only at the first write: two that have read could then both decide.
        write = connection.get_execution_options().get("ostiary_write", False)
        # Straight to the driver: one hop to its thread instead of three.
        driver: Any = connection.connection.driver_connection
        await_only(driver.execute("BEGIN IMMEDIATE" if write else "BEGIN"))

    return engine
