"""SQLite: one file that the workers of one host share, in WAL mode with `synchronous=FULL`.

One transaction writes at a time; it has the write lock from its beginning, so that nothing it has read can change.

SQLite blocks, so that it has threads of its own. The way there and back costs more than what is done there: a work
that waits for nothing else is carried out in the thread as a whole; only one that waits for the loop (for a record)
comes back to it after each statement.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, CursorResult, Dialect, Engine, Executable, QueuePool, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from approvals.database import MIGRATE_S
from approvals.revisions import Standing
from approvals.ticket import StoreUnavailable
from approvals.transaction import Both, Frequent, Given, Transaction

BUSY_S = 1.5
READERS = 4

T = TypeVar("T")


class _Here:
    """A transaction in the thread that carries out its work: nothing of it suspends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._driver: Any = connection.connection.driver_connection

    @property
    def dialect(self) -> Dialect:
        """SQLite's."""
        return self._connection.dialect

    async def execute(self, statement: Executable, parameters: Any = None, /) -> CursorResult[*tuple[Any, ...]]:
        """At once."""
        return self._connection.execute(statement, parameters)

    async def run_sync(self, work: Callable[[Connection], T], /) -> T:
        """At once."""
        return work(self._connection)

    async def rows(self, asked: Frequent, given: Given, /) -> Sequence[Any]:
        """From the driver."""
        ready = asked.ready(self._connection.dialect, given)
        return [ready.row(row) for row in self._driver.execute(ready.text, ready.values(given))]

    async def touched(self, asked: Frequent, given: Given, /) -> int:
        """From the driver."""
        ready = asked.ready(self._connection.dialect, given)
        return int(self._driver.execute(ready.text, ready.values(given)).rowcount)

    async def moved(self, asked: Both, given: Given, /) -> bool:
        """In two statements."""
        if await self.touched(asked.first, given) == 0:
            return False
        await self.touched(asked.then, given)
        return True


class _There:
    """A transaction whose work stays on the loop: each statement goes to the thread by itself."""

    def __init__(self, here: _Here, run: Callable[..., Awaitable[Any]]) -> None:
        self._here = here
        self._run = run

    @property
    def dialect(self) -> Dialect:
        """SQLite's."""
        return self._here.dialect

    async def execute(self, statement: Executable, parameters: Any = None, /) -> CursorResult[*tuple[Any, ...]]:
        """In the thread."""
        return await self._go(self._here.execute(statement, parameters))

    async def run_sync(self, work: Callable[[Connection], T], /) -> T:
        """In the thread."""
        return await self._go(self._here.run_sync(work))

    async def rows(self, asked: Frequent, given: Given, /) -> Sequence[Any]:
        """In the thread."""
        return await self._go(self._here.rows(asked, given))

    async def touched(self, asked: Frequent, given: Given, /) -> int:
        """In the thread."""
        return await self._go(self._here.touched(asked, given))

    async def moved(self, asked: Both, given: Given, /) -> bool:
        """In the thread."""
        return await self._go(self._here.moved(asked, given))

    def _go(self, asking: Coroutine[Any, Any, T]) -> Awaitable[T]:
        return self._run(_run_through, asking)


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
        self._writing = ThreadPoolExecutor(1, "ostiary-approvals-write")
        self._reading = ThreadPoolExecutor(READERS, "ostiary-approvals-read")
        self._closed = False

    async def prepare(self) -> None:
        """Make the file where there is none; it must be one that can do write-ahead logging."""
        await self._in(self._writing, self._prepare)

    def _prepare(self) -> None:
        self._file = _make(self._path)
        for attempt in range(20):  # switching to WAL can meet another worker that does the same
            try:
                with self.engine.connect() as connection:
                    mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
                    if mode != "wal":
                        raise StoreUnavailable(f"{self._path}: the file system cannot do write-ahead logging")
            except SQLAlchemyError:
                if attempt == 19:
                    raise
                time.sleep(0.05)
            else:
                return

    @asynccontextmanager
    async def transaction(self, *, write: bool) -> AsyncIterator[Transaction]:
        """`BEGIN IMMEDIATE` to write, `BEGIN` to look: a snapshot."""
        thread = self._writing if write else self._reading
        connection = await self._in(thread, self._begin, write)
        try:
            yield _There(_Here(connection), partial(self._in, thread))
            await self._in(thread, connection.commit)
        finally:
            await self._in(thread, _close, connection)

    async def carry_out(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        write: bool,
        brisk: bool = False,  # noqa: ARG002
    ) -> T:
        """The same, in one turn of the thread. Whoever writes has the whole file: there is no row to wait for."""
        return await self._in(self._writing if write else self._reading, self._carry_out, work, write)

    def _carry_out(self, work: Callable[[Transaction], Awaitable[T]], write: bool) -> T:
        connection = self._begin(write)
        try:
            result = _run_through(_await(work(_Here(connection))))
            connection.commit()
        finally:
            _close(connection)
        return result

    def _begin(self, write: bool) -> Connection:
        if write:
            self._same_file()
        connection = self.engine.connect()
        try:
            connection.execution_options(ostiary_write=write).begin()
        except BaseException:
            _close(connection)
            raise
        return connection

    async def _in(self, thread: ThreadPoolExecutor, work: Callable[..., T], *given: Any) -> T:
        if self._closed:  # by whoever waited for it long enough
            raise StoreUnavailable("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(thread, work, *given)

    def now(self) -> float:
        """The host's clock: all who share a file are on one host."""
        return time.time()

    async def migrate(self, step: Callable[[Connection], Standing], *, write: bool) -> Standing:
        """Under the write lock."""
        return await self._in(self._writing, self._migrate, step, write)

    def _migrate(self, step: Callable[[Connection], Standing], write: bool) -> Standing:
        if not write and not self._path.exists():
            return Standing("")
        engine = _engine(self._path, MIGRATE_S)
        try:
            with engine.connect() as connection, connection.execution_options(ostiary_write=write).begin():
                return step(connection)
        finally:
            engine.dispose()

    def is_repeatable(self, fault: Exception) -> bool:  # noqa: ARG002 - the port's
        """Never: with the write lock from the beginning nobody comes between."""
        return False

    def is_passing(self, fault: Exception) -> bool:  # noqa: ARG002 - the port's
        """Never: its beginning is where it waits for others, brisk or not."""
        return False

    def explain(self, fault: Exception) -> str:
        """SQLite's own words, and where it looked in vain for a place to write."""
        own = getattr(fault, "orig", None) or fault
        if getattr(own, "sqlite_errorcode", None) == sqlite3.SQLITE_CANTOPEN and self._path.exists():
            return f"{own}: the file is there, but its log beside it, {self._path.name}-wal, can't be made"
        return str(own)

    async def close(self) -> None:
        """Close the connections. Whoever asks for something later, or goes on, is told so."""
        if self._closed:
            return
        await self._in(self._writing, self.engine.dispose)
        self._closed = True
        for thread in (self._writing, self._reading):
            thread.shutdown(wait=False)

    def _same_file(self) -> None:
        # SQLite goes on writing to a file that was removed or replaced under it, where nobody else would see it.
        found = self._path.stat()
        if (found.st_dev, found.st_ino) != self._file:
            raise OSError(f"{self._path} was replaced")


def _file_of(url: URL) -> Path:
    if not url.database or url.database == ":memory:" or url.query:
        raise ValueError("approvals.database: a file is needed that all workers share: sqlite:///FILE")
    return Path(url.database).absolute()


def _make(path: Path) -> tuple[int, int]:
    """Create the file for its owner alone where there is none (its log inherits the mode) -> (device, inode)."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    found = path.stat()
    return (found.st_dev, found.st_ino)


def _close(connection: Connection) -> None:
    """What was not committed is rolled back, a commit that failed too: the connection is used again."""
    try:
        if not connection.invalidated:
            connection.connection.rollback()
    finally:
        connection.close()


async def _await(work: Awaitable[T]) -> T:
    return await work


def _run_through(work: Coroutine[Any, Any, T]) -> T:
    """A coroutine that waits for nothing, run to its end where there is no loop."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    raise RuntimeError("a transaction waits for something besides its database")


def _engine(path: Path, busy_s: float) -> Engine:
    # `mode=rw`: a connection never makes a new, empty file where ours is gone.
    url = URL.create("sqlite", database=path.as_uri(), query={"mode": "rw", "uri": "true"})
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=READERS + 1,
        max_overflow=0,
        hide_parameters=True,  # an error's text goes to logs and records
        connect_args={"isolation_level": None, "timeout": busy_s, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
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

    @event.listens_for(engine, "begin")
    def _began(connection: Connection) -> None:
        # A plain BEGIN takes the write lock only at the first write: two that have read could then both decide.
        write = connection.get_execution_options().get("ostiary_write", False)
        driver: Any = connection.connection.driver_connection
        driver.execute("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine
