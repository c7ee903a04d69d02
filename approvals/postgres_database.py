"""PostgreSQL: one server for many gateways.

Writes run at READ COMMITTED: every transition is one `UPDATE` whose `WHERE` has all its conditions, and PostgreSQL
judges it by the row as it is committed once its lock is had; nothing has to be repeated, and no record is written for
a transaction that was. What is decided from several rows is done alone (`Ledger.alone`, `Ledger.hold`). Looks run at
REPEATABLE READ, READ ONLY: one snapshot. (https://www.postgresql.org/docs/current/transaction-iso.html)
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg
from sqlalchemy import Connection, Dialect, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncTransaction, create_async_engine
from sqlalchemy.pool import NullPool

from approvals.database import MIGRATE_S
from approvals.remote_clock import RemoteClock
from approvals.revisions import Standing
from approvals.ticket import StoreUnavailable
from approvals.transaction import Both, Frequent, Given, Transaction

T = TypeVar("T")

READERS = 4
WRITERS = 4
RECYCLE_S = 1800.0
"""A connection's age after which it is made anew: a server may have got another address, or a role a password."""
IDLE_S = 5.0
"""How long a gateway that stands still may keep what it has locked: its record's patience and the store's limit."""
MIGRATING = 0x6F737469617279
"""The advisory lock of whoever migrates ("ostiary")."""

BRISK_S = 0.05
"""How long a transaction that several share waits for a row that somebody holds: then each goes alone."""

_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"
_NOW_BRISK = f"{_NOW}, set_config('lock_timeout', '{int(BRISK_S * 1000)}', true)"
_REPEATABLE = ("40001", "40P01")  # serialization_failure, deadlock_detected
_HELD = "55P03"  # lock_not_available
_READ_ONLY = "25006"
_LOST = re.compile(r"08|57P0")  # connection exceptions, and a server that goes down or comes up


class _Open:
    """A transaction that has begun."""

    def __init__(self, connection: AsyncConnection, driver: Any) -> None:
        self._connection = connection
        self._driver = driver
        self.execute = connection.execute
        self.run_sync = connection.run_sync

    @property
    def dialect(self) -> Dialect:
        """PostgreSQL's."""
        return self._connection.dialect

    async def rows(self, asked: Frequent, given: Given, /) -> Sequence[Any]:
        """From the driver, which prepares it once for each connection."""
        ready = asked.ready(self._connection.dialect, given)
        return [ready.row(row) for row in await self._driver.fetch(ready.text, *ready.values(given))]

    async def touched(self, asked: Frequent, given: Given, /) -> int:
        """Likewise; the server says so in the words `UPDATE 1`."""
        ready = asked.ready(self._connection.dialect, given)
        return int((await self._driver.execute(ready.text, *ready.values(given))).rpartition(" ")[2])

    async def moved(self, asked: Both, given: Given, /) -> bool:
        """In one statement."""
        return bool(await self.rows(asked.at_once, given))


class PostgresDatabase:
    """`url`: `postgresql://USER@HOST/DATABASE?sslmode=…`, as libpq reads it; what it leaves out is taken from `PG…`.

    `limit_s`: what a transaction may take in all.
    """

    readers = READERS
    writers = WRITERS
    faults: tuple[type[Exception], ...] = (
        SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, EOFError,
    )  # fmt: skip

    def __init__(self, url: str, limit_s: float) -> None:
        self._url = url
        self._limit_s = limit_s
        self.name = _name_of(url)
        self._secrets = _secrets_in(url)
        self.now = RemoteClock()
        self.engine = self._engine(pool_size=READERS + WRITERS, max_overflow=0, pool_recycle=RECYCLE_S)

    def _engine(self, *, patience_s: float | None = None, **pool: Any) -> AsyncEngine:
        limit_s = patience_s or self._limit_s
        # Asked for once the connection stands: poolers turn away, or drop, what they do not know at its beginning.
        told = {
            "statement_timeout": _ms(limit_s),
            "lock_timeout": _ms(limit_s * 0.75),
            "idle_in_transaction_session_timeout": _ms(limit_s + IDLE_S),
        }
        settings = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in told.items())

        async def connect() -> asyncpg.Connection:
            try:
                made: asyncpg.Connection = await asyncpg.connect(
                    self._url,
                    timeout=min(self._limit_s, 2.0) * 0.75,
                    command_timeout=limit_s,
                    server_settings={"application_name": "ostiary", "TimeZone": "UTC"},
                )
            except (asyncpg.InterfaceError, OSError):  # a certificate that does not do is both OSError and ValueError
                raise
            except ValueError:  # its text may be any part of the URL
                raise StoreUnavailable("the URL can't be read: is a character of its password not escaped?") from None
            try:
                # A commit that the server may forget would be a use that may be had twice.
                if await made.fetchval(f"SELECT current_setting('synchronous_commit'), {settings}") == "off":
                    await made.execute("SET synchronous_commit = on")
            except BaseException:
                made.terminate()
                raise
            return made

        return create_async_engine(
            "postgresql+asyncpg://",
            async_creator=connect,
            isolation_level="READ COMMITTED",
            hide_parameters=True,  # an error's text goes to logs and records
            **pool,
        )

    async def prepare(self) -> None:
        """Reach it."""
        async with self.transaction(write=False):
            pass

    @asynccontextmanager
    async def transaction(self, *, write: bool, brisk: bool = False) -> AsyncIterator[Transaction]:
        """On a connection that answers."""
        connection, began, driver = await self._begin(write, brisk)
        try:
            yield _Open(connection, driver)
            await began.commit()
        except BaseException as fault:
            hangs = isinstance(fault, (TimeoutError, asyncio.CancelledError))  # and would on being told to roll back
            was_primary = _code(fault) == _READ_ONLY
            if hangs or was_primary or _is_lost(fault):
                await _drop(connection)
            elif not connection.invalidated:
                await began.rollback()
            raise
        finally:
            await connection.close()

    async def carry_out(self, work: Callable[[Transaction], Awaitable[T]], *, write: bool, brisk: bool = False) -> T:
        """The same: nothing of it blocks."""
        async with self.transaction(write=write, brisk=brisk) as opened:
            return await work(opened)

    async def _begin(self, write: bool, brisk: bool) -> tuple[AsyncConnection, AsyncTransaction, Any]:
        """A transaction that has begun, and the server's time with it.

        A connection that was cut meanwhile costs nothing: nothing was sent on it, and the question is asked once more
        on a new one.
        """
        for last in (False, True):
            connection = await self.engine.connect()
            try:
                if not write:
                    await connection.execution_options(
                        isolation_level="REPEATABLE READ", postgresql_readonly=True
                    )  # fmt: skip
                began = await connection.begin()
                sent = time.monotonic()
                told = (await connection.exec_driver_sql(_NOW_BRISK if brisk else _NOW)).one()
                self.now.hear(sent, told[0])
                raw: Any = await connection.get_raw_connection()
            except BaseException as fault:
                stale = connection.invalidated or _is_lost(fault)
                await _drop(connection)
                await connection.close()
                if last or not stale:
                    raise
            else:
                return connection, began, raw.driver_connection
        raise AssertionError("unreachable")

    async def migrate(self, step: Callable[[Connection], Standing], *, write: bool) -> Standing:
        """Under an advisory lock."""
        engine = self._engine(patience_s=MIGRATE_S, poolclass=NullPool)
        try:
            async with engine.begin() as connection:
                if write:
                    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATING})
                return await connection.run_sync(step)
        finally:
            await engine.dispose()

    def is_repeatable(self, fault: Exception) -> bool:
        """A deadlock that the server ended by this transaction."""
        return _code(fault) in _REPEATABLE

    def is_passing(self, fault: Exception) -> bool:
        """Somebody holds a row, or the two waited for each other."""
        return _code(fault) in (_HELD, *_REPEATABLE)

    def explain(self, fault: Exception) -> str:
        """The first line of what the server, the system or the driver said."""
        cause = _cause(fault)
        said = str(cause).partition("\n")[0]
        if any(secret in said for secret in self._secrets):
            said = ""
        if isinstance(cause, asyncpg.PostgresError) and said:
            return said
        return f"{type(cause).__name__}: {said}" if said else type(cause).__name__

    async def close(self) -> None:
        """Close the connections."""
        await self.engine.dispose()


def _cause(fault: BaseException) -> BaseException:
    """The driver's own exception."""
    found: BaseException | None = getattr(fault, "orig", None)
    return fault if found is None else found.__cause__ or found


def _code(fault: BaseException) -> str:
    """The server's code (SQLSTATE), or `""`."""
    return str(getattr(_cause(fault), "sqlstate", None) or "")


def _is_lost(fault: BaseException) -> bool:
    """Whether the connection went, rather than what was asked for."""
    return isinstance(_cause(fault), (ConnectionError, EOFError, asyncpg.InterfaceError)) or bool(
        _LOST.match(_code(fault))
    )


async def _drop(connection: AsyncConnection) -> None:
    """Close it without asking the server, which may not answer."""
    if connection.invalidated or connection.closed:
        return
    raw: Any = await connection.get_raw_connection()
    raw.driver_connection.terminate()
    await connection.invalidate()


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))


def _secrets_in(url: str) -> tuple[str, ...]:
    """The password, in all spellings, if one is in the URL."""
    parts = urlsplit(url)
    given = [parts.netloc.rpartition("@")[0].partition(":")[2], *parse_qs(parts.query).get("password", ())]
    return tuple({spelt for one in given for spelt in (one, unquote(one)) if spelt})


def _name_of(url: str) -> str:
    """Hosts and database of a URL, without user, password or options."""
    parts = urlsplit(url)
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
