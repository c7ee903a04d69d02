"""The way to the newest revision: one chain, applied once, on both databases; what is not known is left alone."""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from click.testing import CliRunner
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from approvals.clerks import LocalDoor
from approvals.commands import approvals
from approvals.database import migrate
from approvals.revisions import FIRST, FOLDER, Standing, bring_up, chain, known, look, newest
from approvals.schema import metadata
from approvals.store import Store
from approvals.ticket import StoreUnavailable
from tests.support.approvals import KEY, bench, contents
from tests.support.postgres import Postgres


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the database is."""
    return tmp_path / "approvals.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, file: Path) -> Callable[[], str]:
    """Makes empty databases -> SQLAlchemy's URL of each."""
    if request.param == "sqlite":
        return lambda: f"sqlite:///{file}{secrets.token_hex(4)}"
    server: Postgres = request.getfixturevalue("postgres")
    return lambda: asyncpg_url(server.create())


def asyncpg_url(url: str) -> str:
    """As SQLAlchemy writes it."""
    return url.replace("postgresql://", "postgresql+asyncpg://")


async def on(url: str, work: Callable[[Connection], Any]) -> Any:
    """Do this in one transaction of an engine of its own."""
    if url.startswith("sqlite:"):
        with create_engine(url, poolclass=NullPool).begin() as plain:
            return work(plain)
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


OLD_TICKET = {
    **dict.fromkeys(("issuer", "subject", "client", "server", "resource", "environment", "method", "name"), "x"),
    **dict.fromkeys(("lookup", "key_id", "tool_digest"), "x"),
    **dict.fromkeys(("reasons", "approvers", "mask"), "[]"),
    **dict.fromkeys(("version", "min_approvers", "uses", "uses_left", "created_at", "expires_at", "weight"), 1),
    **dict.fromkeys(("bond", "shown"), b""),
    "id": "old",
    "state": "used",
}


def before_the_chain(connection: Connection) -> None:
    """As a database was made before there were revisions: the first one's tables, a ticket, and the version 2."""
    command.upgrade(chain(connection), FIRST)
    connection.exec_driver_sql("DROP TABLE alembic_version")
    connection.exec_driver_sql("CREATE TABLE schema_version (version INTEGER NOT NULL PRIMARY KEY)")
    connection.exec_driver_sql("INSERT INTO schema_version VALUES (2)")
    names, values = ", ".join(OLD_TICKET), ", ".join(f":{name}" for name in OLD_TICKET)
    connection.execute(text(f"INSERT INTO tickets ({names}) VALUES ({values})"), OLD_TICKET)


def structure(connection: Connection) -> dict[str, Any]:
    """All that the database says of its tables but their names' order."""
    found = inspect(connection)
    return {
        name: (
            [{**column, "type": str(column["type"])} for column in found.get_columns(name)],
            found.get_pk_constraint(name)["constrained_columns"],
            sorted(found.get_foreign_keys(name), key=str),
            sorted(str(_plain(index)) for index in found.get_indexes(name)),
        )
        for name in found.get_table_names()
        if name != "alembic_version"
    }


def _plain(one: Any) -> Any:
    """Conditions of partial indexes as text."""
    if isinstance(one, dict):
        return {key: _plain(value) for key, value in one.items()}
    return one if isinstance(one, str | int | list | None) else str(one)


async def test_the_chain_ends_at_what_the_program_says(empty: Callable[[], str]) -> None:
    """Migrated from nothing, a database has exactly the tables, columns, keys and indexes of `schema.py`."""
    migrated, made = empty(), empty()

    def difference(connection: Connection) -> list[Any]:
        return list(compare_metadata(MigrationContext.configure(connection), metadata))

    await on(migrated, bring_up)
    await on(made, metadata.create_all)
    assert await on(migrated, difference) == []
    assert await on(migrated, structure) == await on(made, structure)


def test_the_chain_is_one_line() -> None:
    """Each revision is a number and follows the number before it; the first one is where the line began."""
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    line = [(one.revision, one.down_revision) for one in ScriptDirectory.from_config(config).walk_revisions()][::-1]
    assert [revision for revision, _ in line] == list(known())
    assert line[0] == (FIRST, None)
    assert all(down == before for (_, down), (before, _) in zip(line[1:], line, strict=False))
    assert all(int(after) == int(before) + 1 for before, after in zip(known(), known()[1:], strict=False))


async def test_what_fails_half_way_leaves_nothing(postgres: Postgres) -> None:
    """All revisions are one transaction: a fault after the last leaves no table behind, and it can be repeated."""
    url = asyncpg_url(postgres.create())

    def fail(connection: Connection) -> None:
        bring_up(connection)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await on(url, fail)
    assert await on(url, structure) == {}
    await on(url, bring_up)
    assert "tickets" in await on(url, structure)


async def test_a_file_is_never_left_between_two_revisions(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own drivers commit before they change a table; ours does not: a fault leaves the file empty."""
    whole = command.upgrade

    def fail(config: Config, revision: str) -> None:
        whole(config, revision)
        raise sqlite3.OperationalError("disk full")

    monkeypatch.setattr(command, "upgrade", fail)
    with pytest.raises(StoreUnavailable, match="disk full"):
        await Store(f"sqlite:///{file}", [KEY]).start()
    assert b"tickets" not in contents(file)
    monkeypatch.undo()
    async with bench(file) as it:
        await it.held()


@pytest.mark.parametrize("revision", known()[:-1])
async def test_a_gateway_of_before_can_go_on_meanwhile(empty: Callable[[], str], revision: str) -> None:
    """docs/operations.md, upgrades: what a revision finds stays as it was, and what it adds to it may be left out."""
    url = empty()
    await on(url, lambda connection: command.upgrade(chain(connection), revision))
    before = await on(url, structure)
    await on(url, bring_up)
    after = await on(url, structure)
    for name, (columns, key, foreign, _) in before.items():
        assert all(column in after[name][0] for column in columns)
        assert after[name][1:3] == (key, foreign)
        added = [column for column in after[name][0] if column not in columns]
        assert all(column["nullable"] or column["default"] for column in added), (name, added)


HANG = """
import asyncio, sys, time
from alembic import command
from approvals.database import migrate
whole = command.upgrade
def hang(config, revision):
    whole(config, revision)
    print("there", flush=True)
    time.sleep(600)
command.upgrade = hang
asyncio.run(migrate(sys.argv[1]))
"""


def die_migrating(url: str) -> None:
    """A process whose migration has made its tables, and that is killed before the commit."""
    dying = subprocess.Popen([sys.executable, "-c", HANG, url], stdout=subprocess.PIPE)
    try:
        assert dying.stdout is not None
        assert dying.stdout.readline() == b"there\n"
    finally:
        dying.kill()
        dying.communicate()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_migration_that_is_killed_was_none(kind: str, file: Path, request: pytest.FixtureRequest) -> None:
    """kill -9 after the last table and before the commit: the next start finds what was before, and migrates."""
    server: Postgres | None = request.getfixturevalue("postgres") if kind == "postgresql" else None
    url = f"sqlite:///{file}" if server is None else server.create()
    die_migrating(url)
    assert await migrate(url, check=True) == Standing("")
    async with bench(url) as it:
        await it.held()


async def test_a_database_of_before_the_chain_is_adopted(empty: Callable[[], str]) -> None:
    """Its tables stay, with what is in them; its number gives way to the chain's."""
    url = empty()
    await on(url, before_the_chain)
    assert await on(url, bring_up) == Standing(FIRST, adopted=True)
    assert await on(url, look) == Standing(newest())
    assert await on(url, lambda connection: connection.exec_driver_sql("SELECT id FROM tickets").all()) == [("old",)]
    assert "schema_version" not in await on(url, structure)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            "UPDATE alembic_version SET version_num = '9999'",
            f"the database has revision 9999, and this ostiary knows none after {newest()}: a newer one made it",
        ),
        (
            "DROP TABLE alembic_version; CREATE TABLE schema_version (version INTEGER); "
            "INSERT INTO schema_version VALUES (1)",
            "the database has schema version 1, which no migration starts from (the oldest is 2); "
            "begin with an empty database",
        ),
        (
            "DROP TABLE alembic_version",
            "the database has tickets but does not say of which revision; nothing was changed",
        ),
    ],
)
async def test_a_database_that_is_not_understood_is_refused(file: Path, change: str, told: str) -> None:
    """An older program never writes into what a newer one made, and nothing is guessed at: it stays as it is."""
    async with bench(file) as it:
        await it.held()
    connection = sqlite3.connect(file, isolation_level=None)
    connection.executescript(change)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    before = contents(file)
    with pytest.raises(StoreUnavailable, match=f"^{re.escape(told)}$"):
        await Store(f"sqlite:///{file}", [KEY]).start()
    with pytest.raises(StoreUnavailable, match=f"^{re.escape(told)}$"):
        await migrate(f"sqlite:///{file}")
    assert contents(file) == before


async def test_told_not_to_a_start_migrates_nothing(file: Path) -> None:
    """`approvals.migrate: false`: an empty or older database is refused, naming the command; after it, it serves."""
    url = f"sqlite:///{file}"
    with pytest.raises(StoreUnavailable, match="run ostiary approvals migrate --config FILE"):
        await Store(url, [KEY], migrate=False).start()
    assert b"tickets" not in contents(file)
    await migrate(url)
    store = Store(url, [KEY], migrate=False)
    await store.start()
    await store.close()


def test_a_start_that_finds_all_well_loads_no_alembic(file: Path) -> None:
    """Every worker starts: what only a migration needs costs them nothing."""
    told = (
        "import asyncio, sys; from approvals.store import Store\n"
        "async def main():\n"
        f"    store = Store('sqlite:///{file}', [bytes(32)]); await store.start(); await store.close()\n"
        "asyncio.run(main()); print('alembic' in sys.modules)"
    )
    for expected in ("True", "False"):
        done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


def asked(file: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """`ostiary approvals migrate --json` -> its exit code and what it printed."""

    def closed(_config: Path) -> Any:
        raise AssertionError("the desk is not asked")

    door = LocalDoor(closed, database=lambda _: f"sqlite:///{file}")
    done = CliRunner().invoke(approvals, ["migrate", "--config", "x", "--json", *arguments], obj=door)
    return done.exit_code, json.loads(done.stdout)


def test_the_command_says_migrates_and_says_no(file: Path) -> None:
    """`--check` only looks (1 where something is to be done); a refused database is 1, one without answer 2."""
    assert asked(file, "--check") == (1, {"state": "behind", "revision": "none", "newest": newest()})
    assert not file.exists()
    assert asked(file) == (0, {"state": "migrated", "revision": "none", "newest": newest()})
    assert asked(file) == (0, {"state": "current", "revision": newest(), "newest": newest()})
    assert asked(file, "--check")[0] == 0
    connection = sqlite3.connect(file)
    with connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    code, told = asked(file)
    assert (code, "9999" in told["error"]) == (1, True)
    file.write_bytes(b"no database, and long enough to have had a header" * 3)
    assert asked(file) == (2, {"error": f"{file}: file is not a database"})
