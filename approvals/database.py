"""The port to a database: transactions that are done whole or not at all, the time by its clock, its revision.

Two adapters: `sqlite_database.py` (a file, for the workers of one host) and `postgres_database.py` (a server, for
many gateways). What a transaction may rely on is the same in both: every compare-and-set of `ledger.py` is one
statement that sees what is committed at that moment, and whoever opens tickets for a requester does so alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from approvals.revisions import Standing, bring_up, look
from approvals.ticket import StoreUnavailable
from approvals.transaction import Transaction

T = TypeVar("T")

MIGRATE_S = 120.0
"""How long a start waits for another one that migrates, and how long it may itself."""


class Database(Protocol):
    """What the store needs of one technology."""

    engine: Any
    """SQLAlchemy's, of either kind."""
    name: str
    """As it may stand in a record: without credentials."""
    readers: int
    writers: int
    """How many transactions of a kind run at once."""
    faults: tuple[type[Exception], ...]
    """What its library raises when it can't do what was asked."""

    async def prepare(self) -> None:
        """Reach it, and make it where that means nothing but a file. Raises `faults` or `StoreUnavailable`."""
        ...

    def transaction(self, *, write: bool) -> AbstractAsyncContextManager[Transaction]:
        """One transaction: committed at the end, rolled back if something is raised. A read is one snapshot.

        Raises `faults` or `StoreUnavailable`; from the end of a write that means that its commit is unknown.
        """
        ...

    async def carry_out(self, work: Callable[[Transaction], Awaitable[T]], *, write: bool, brisk: bool = False) -> T:
        """Likewise, of a work that waits for nothing but this transaction; it may be run in another thread.

        `brisk`: a row that somebody else holds is not waited for; then `faults` are raised and nothing was done.
        """
        ...

    def now(self) -> float:
        """Seconds since the epoch by the clock that all who share this database go by."""
        ...

    async def migrate(self, step: Callable[[Connection], Standing], *, write: bool) -> Standing:
        """Do `step` alone among all who migrate; patient. Raises as `step` does, and `faults`."""
        ...

    def is_repeatable(self, fault: Exception) -> bool:
        """Whether the database itself said that this transaction was rolled back and may be tried again."""
        ...

    def is_passing(self, fault: Exception) -> bool:
        """Whether a `brisk` transaction broke by what others hold, so that whoever waits for them may have it."""
        ...

    def explain(self, fault: Exception) -> str:
        """What went wrong, in one line, without parameters or credentials."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def open_database(url: str, limit_s: float) -> Database:
    """The adapter for a URL: `sqlite:///FILE` or `postgresql://…`. Raises `ValueError` for another."""
    scheme, separator, _ = url.partition("://")
    if separator and scheme == "sqlite":
        from approvals.sqlite_database import SqliteDatabase  # noqa: PLC0415 - one driver is enough

        return SqliteDatabase(url, limit_s)
    if separator and scheme in ("postgresql", "postgres"):
        from approvals.postgres_database import PostgresDatabase  # noqa: PLC0415

        return PostgresDatabase(url, limit_s)
    raise ValueError("approvals.database: use sqlite:///FILE or postgresql://USER@HOST/DATABASE")


async def migrate(url: str, *, check: bool = False) -> Standing:
    """Bring a database to the newest revision (`check`: only look) -> the one that it had.

    Raises `RevisionRefused` (nothing was changed), `StoreUnavailable`, `ValueError`.
    """
    database = open_database(url, MIGRATE_S)
    try:
        if not check:
            await database.prepare()
        return await database.migrate(look if check else bring_up, write=not check)
    except database.faults as fault:
        raise StoreUnavailable(f"{database.name}: {database.explain(fault)}") from fault
    finally:
        await database.close()
