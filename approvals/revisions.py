"""The database's revision: which one it has, whether this program may use it, and the way to the newest one.

A database is used at exactly the newest revision that this program knows. A newer one, or one whose history is not
known, is refused and left as it is. Whoever finds all well has not loaded Alembic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, column, inspect, select, table

from approvals.schema import tickets
from approvals.ticket import StoreUnavailable

if TYPE_CHECKING:
    from alembic.config import Config

FOLDER = Path(__file__).parent / "migrations"
FIRST = "0002"
COMMAND = "ostiary approvals migrate --config FILE"
_before = table("schema_version", column("version"))
"""What told the version before there was a chain; at 2 it is the chain's first revision."""
_now = table("alembic_version", column("version_num"))


class RevisionRefused(StoreUnavailable):
    """This program may neither use this database nor migrate it. The text says why."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The revision that a database has: `""` where it is empty; `adopted` where it was made before the chain."""

    revision: str
    adopted: bool = False

    @property
    def is_newest(self) -> bool:
        """Whether nothing is to be done."""
        return self.revision == newest() and not self.adopted


@cache
def known() -> tuple[str, ...]:
    """Every revision of this program, the oldest first: the numbers of the files."""
    return tuple(sorted(file.name[:4] for file in (FOLDER / "versions").glob("[0-9]*.py")))


def newest() -> str:
    """The one revision that this program uses."""
    return known()[-1]


def look(connection: Connection) -> Standing:
    """Which revision this is. Raises `RevisionRefused` for one that this program may neither use nor migrate."""
    there = set(inspect(connection).get_table_names())
    if _now.name in there:
        found = sorted(connection.execute(select(_now.c.version_num)).scalars())
        if len(found) == 1 and found[0] in known():
            return Standing(found[0])
        if found:
            raise RevisionRefused(
                f"the database has revision {', '.join(found)}, and this ostiary knows none after {newest()}: "
                "a newer one made it"
            )
    if _before.name in there:
        versions = sorted(connection.execute(select(_before.c.version)).scalars())
        if versions == [int(FIRST)]:
            return Standing(FIRST, adopted=True)
        raise RevisionRefused(
            f"the database has schema version {', '.join(map(str, versions)) or 'none'}, which no migration starts "
            f"from (the oldest is {int(FIRST)}); begin with an empty database"
        )
    if tickets.name in there:
        raise RevisionRefused("the database has tickets but does not say of which revision; nothing was changed")
    return Standing("")


def must_be_migrated(standing: Standing) -> StoreUnavailable:
    """What whoever may not migrate says of a database that is not at the newest revision."""
    has = f"has revision {standing.revision}" if standing.revision else "is empty"
    return StoreUnavailable(f"the database {has}, and this ostiary uses {newest()}: run {COMMAND}")


def bring_up(connection: Connection) -> Standing:
    """To the newest revision, within the transaction that runs (and has the lock) -> what it had before.

    Raises as `look` does. What fails is rolled back as a whole by whoever opened the transaction.
    """
    before = look(connection)
    if before.is_newest:
        return before
    from alembic import command  # noqa: PLC0415 - see above

    config = chain(connection)
    if before.adopted:
        command.stamp(config, FIRST)
        connection.exec_driver_sql(f"DROP TABLE {_before.name}")
    command.upgrade(config, "head")
    return before


def chain(connection: Connection) -> Config:
    """Alembic's way to the revisions, on this connection and within its transaction."""
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
