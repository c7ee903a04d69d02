"""The store: transactions over one shared database file, bounded in time, each with a known result or none.

A transaction runs to its end in a task of its own: a caller that is cancelled or out of time leaves none half done.
`StoreUnavailable` means that nothing may run: what may have been consumed counts as consumed.
SQLite runs in WAL mode with `synchronous=FULL`; several processes share the file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, event, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from approvals.ledger import Ledger
from approvals.outbox import Outbox
from approvals.revisions import Standing, bring_up, look, must_be_migrated
from approvals.schema import tickets
from approvals.statements import LIVE
from approvals.ticket import State, StoreUnavailable
from approvals.vault import Vault

T = TypeVar("T")
Work = Callable[[Ledger], Awaitable[T]]

__all__ = ["Store", "StoreUnavailable"]

LIMIT_S = 2.0
BUSY_S = 1.5
MIGRATE_S = 120.0
"""How long a start waits for another one that migrates, and how long it may itself."""
READERS = 4
PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON")


class Store:
    """Tickets in a database. `url`: `sqlite:///FILE`; `keys`: 32 bytes each, the first seals, all open.

    `migrate`: whether `start` brings the database to the newest revision, or refuses one that is not there yet.
    """

    def __init__(
        self,
        url: str,
        keys: Sequence[bytes],
        *,
        limit_s: float = LIMIT_S,
        migrate: bool = True,
        clock: Callable[[], float] = time.time,
        outbox: Outbox | None = None,
    ) -> None:
        self.vault = Vault(keys)
        self._outbox = outbox
        self._path = _file_of(make_url(url))
        self._limit_s = limit_s
        self._migrate = migrate
        self._clock = clock
        self._engine = _engine(self._path, min(BUSY_S, limit_s * 0.75))
        self._writer = asyncio.Lock()
        self._readers = asyncio.Semaphore(READERS)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._file: tuple[int, int] | None = None
        self._healthy = False

    @property
    def healthy(self) -> bool:
        """Whether the last transaction was carried out (readiness; `degraded` otherwise)."""
        return self._healthy

    async def start(self) -> None:
        """Make the file and its tables where there are none; check version and keys. Raises `StoreUnavailable`."""
        try:
            self._file = await asyncio.to_thread(_make, self._path)
            await self._prepare()
            standing = await self.read(lambda ledger: ledger.connection.run_sync(look))
            if not standing.is_newest:
                if not self._migrate:
                    raise must_be_migrated(standing)
                await _migrate_file(self._path)
            await self.read(self._check_keys)
        except (SQLAlchemyError, sqlite3.Error, OSError) as fault:
            await self.close()
            raise StoreUnavailable(f"{self._path}: {getattr(fault, 'orig', None) or fault}") from fault
        except StoreUnavailable:
            await self.close()
            raise

    async def close(self) -> None:
        """Let what runs come to its end (bounded), then close the connections."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=self._limit_s)
        await asyncio.wait({asyncio.ensure_future(self._engine.dispose())}, timeout=self._limit_s)

    async def read(self, work: Work[T]) -> T:
        """One consistent look. Raises `StoreUnavailable`, and what `work` itself raises."""
        return await self._within(self._readers, work, write=False, limit_s=self._limit_s)

    async def write(self, work: Work[T], *, patience_s: float = 0.0) -> T:
        """One transaction under the write lock: committed when it returns, rolled back if `work` raises.

        `patience_s` is what `work` may spend besides the store's own limit (a record that it waits for). Raises
        `StoreUnavailable` if it was not, or may not have been, carried out.
        """
        return await self._within(self._writer, work, write=True, limit_s=self._limit_s + patience_s)

    async def _within(
        self, turn: asyncio.Lock | asyncio.Semaphore, work: Work[T], *, write: bool, limit_s: float
    ) -> T:
        deadline = asyncio.get_running_loop().time() + limit_s
        try:
            async with asyncio.timeout_at(deadline):
                await turn.acquire()
        except TimeoutError as fault:
            self._healthy = False
            raise StoreUnavailable("the store is busy") from fault
        task = asyncio.create_task(self._transact(work, write, deadline))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, turn))
        done, _ = await asyncio.wait({task}, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        if not done:
            self._healthy = False
            raise StoreUnavailable("the store did not answer in time; what it did is unknown")
        return task.result()

    def _ended(self, task: asyncio.Task[Any], turn: asyncio.Lock | asyncio.Semaphore) -> None:
        self._tasks.discard(task)
        turn.release()
        if not task.cancelled():
            task.exception()  # its caller may be gone; then nobody else asks for it

    async def _transact(self, work: Work[T], write: bool, deadline: float) -> T:
        loop = asyncio.get_running_loop()
        try:
            if write:
                self._same_file()
            async with self._engine.connect() as connection:
                await connection.execution_options(ostiary_write=write)
                async with connection.begin():
                    result = await work(ledger := Ledger(connection, self.vault, self._outbox))
                    if loop.time() > deadline:
                        raise StoreUnavailable("out of time; nothing was done")
        except (SQLAlchemyError, sqlite3.Error, OSError) as fault:
            self._healthy = False
            raise StoreUnavailable(f"{type(fault).__name__}: {getattr(fault, 'orig', None) or fault}") from fault
        self._healthy = True
        if self._outbox is not None and ledger.has_news:
            self._outbox.ring()
        return result

    def _same_file(self) -> None:
        # SQLite goes on writing to a file that was removed or replaced under it, where nobody else would see it.
        found = self._path.stat()
        if (found.st_dev, found.st_ino) != self._file:
            raise StoreUnavailable(f"{self._path} was replaced")

    async def _prepare(self) -> None:
        for attempt in range(20):  # switching to WAL and creating tables can meet another worker that does the same
            try:
                async with self._engine.connect() as connection:
                    mode = (await connection.exec_driver_sql("PRAGMA journal_mode")).scalar_one()
                    if mode != "wal":
                        raise StoreUnavailable(f"{self._path}: the file system cannot do write-ahead logging")
            except SQLAlchemyError:
                if attempt == 19:
                    raise
                await asyncio.sleep(0.05)
            else:
                return

    async def _check_keys(self, ledger: Ledger) -> None:
        connection = ledger.connection
        # What stands in the way of a call can be found by its key alone: a denial must not be forgotten with it.
        holds = (tickets.c.state == State.DENIED) & (tickets.c.expires_at > self._clock())
        matters = tickets.c.state.in_(LIVE) | tickets.c.running.is_not(None) | holds
        query = select(tickets.c.key_id).distinct().where(matters)
        strange = set((await connection.execute(query)).scalars()) - set(self.vault.key_ids)
        if strange:
            raise StoreUnavailable(
                f"tickets that still count are sealed by keys that are not configured: {sorted(strange)}"
            )


async def migrate(url: str, *, check: bool = False) -> Standing:
    """Bring a database to the newest revision (`check`: only look) -> the one that it had.

    Raises `RevisionRefused` (nothing was changed) or `StoreUnavailable`.
    """
    path = _file_of(make_url(url))
    try:
        if check and not path.exists():
            return Standing("")
        await asyncio.to_thread(_make, path)
        return await _migrate_file(path, look if check else bring_up)
    except (SQLAlchemyError, sqlite3.Error, OSError) as fault:
        raise StoreUnavailable(f"{path}: {getattr(fault, 'orig', None) or fault}") from fault


async def _migrate_file(path: Path, step: Callable[[Connection], Standing] = bring_up) -> Standing:
    engine = _engine(path, MIGRATE_S)
    try:
        async with engine.connect() as connection:
            await connection.execution_options(ostiary_write=step is bring_up)
            async with connection.begin():
                return await connection.run_sync(step)
    finally:
        await engine.dispose()


def _file_of(url: URL) -> Path:
    if url.get_backend_name() != "sqlite":
        raise ValueError(f"approvals.database: {url.get_backend_name()} is not supported; use sqlite:///FILE")
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
