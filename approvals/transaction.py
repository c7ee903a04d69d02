"""One transaction, as its ledger speaks to it; and statements of which the text is made once, for every gated call.

SQLAlchemy finds the text of a statement anew for each execution, and wraps its result: for what a call asks a dozen
times that costs several times what the database does with it. A `Frequent` statement is compiled once for each
database and goes to the driver itself.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from sqlalchemy import (
    Connection,
    CursorResult,
    Dialect,
    Executable,
    Insert,
    Table,
    Update,
    exists,
    literal,
    select,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ColumnElement

T = TypeVar("T")
Given = Mapping[str, Any]


class Ready(NamedTuple):
    """A statement as a driver takes it. `taken`: where each value comes from, a member of a list by its index."""

    text: str
    taken: tuple[tuple[str, int | None], ...]
    fixed: Given
    row: Callable[[Any], Any]
    """The driver's row -> a tuple whose members are named as the columns."""

    def values(self, given: Given) -> list[Any]:
        """What the driver is given, in its order."""
        all_given = {**self.fixed, **given}
        return [all_given[name] if index is None else all_given[name][index] for name, index in self.taken]


class Frequent:
    """A constant statement. Its values are texts, numbers and None, as both drivers take them without conversion."""

    def __init__(self, statement: Executable) -> None:
        self._statement: Any = statement
        self._made: dict[tuple[Any, ...], Ready] = {}

    def ready(self, dialect: Dialect, given: Given) -> Ready:
        """As the driver of this dialect takes it; one for each length of the lists given, which are short."""
        shape = (dialect.name, *[len(one) for one in given.values() if isinstance(one, list | tuple)])
        made = self._made.get(shape)
        if made is None:
            made = self._made[shape] = self._make(dialect, given)
        return made

    def _make(self, dialect: Dialect, given: Given) -> Ready:
        compiled: SQLCompiler = self._statement.compile(dialect=dialect)
        state = compiled.construct_expanded_state(dict(given))
        members = {
            one: (name, index) for name, ones in state.parameter_expansion.items() for index, one in enumerate(ones)
        }
        taken = [members.get(name, (name, None)) for name in state.positiontup or ()]
        fixed = {name: value for name, value in compiled.params.items() if name not in given}
        columns = self._statement.selected_columns.keys() if self._statement.is_select else ()
        row = namedtuple("Row", columns)._make  # type: ignore[attr-defined]
        return Ready(state.statement, tuple(taken), fixed, row)


class Both:
    """A change of one row, and what follows from it where it touched one: each is a way to the database and back.

    PostgreSQL has both in one statement; SQLite, which changes nothing in a `WITH`, is told one after the other.
    `then`: the second change, under a further condition where one is given.
    """

    def __init__(self, first: Update, then: Callable[[ColumnElement[bool] | None], Insert | Update]) -> None:
        self.first = Frequent(first)
        self.then = Frequent(then(None))
        changed = first.returning(literal(1).label("one")).cte("changed")
        follows = then(exists(select(changed.c.one))).cte("follows")
        self.at_once = Frequent(select(changed.c.one).add_cte(follows))


class Transaction(Protocol):
    """One transaction of a database. Not to be kept beyond it."""

    @property
    def dialect(self) -> Dialect:
        """SQLAlchemy's name for what is spoken."""
        ...

    async def execute(self, statement: Executable, parameters: Any = None, /) -> CursorResult[*tuple[Any, ...]]:
        """Any statement of SQLAlchemy's."""
        ...

    async def run_sync(self, work: Callable[[Connection], T], /) -> T:
        """What needs the connection as SQLAlchemy has it without asyncio."""
        ...

    async def rows(self, asked: Frequent, given: Given, /) -> Sequence[Any]:
        """What a frequent query finds."""
        ...

    async def touched(self, asked: Frequent, given: Given, /) -> int:
        """How many rows a frequent change touched."""
        ...

    async def moved(self, asked: Both, given: Given, /) -> bool:
        """Whether the first change touched a row, and so the second was made as well."""
        ...


def insert_new(connection: Transaction, table: Table, values: Given) -> Executable:
    """The statement that adds this row, and does nothing where there is one that excludes it."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - loaded by who opened this transaction

        return postgresql.insert(table).values(values).on_conflict_do_nothing()
    return sqlite.insert(table).values(values).on_conflict_do_nothing()
