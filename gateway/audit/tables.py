"""The record's tables in PostgreSQL: how they are made, reached and named.

`ostiary_audit` only grows: a trigger refuses everything but inserts, whoever asks, and the gateway's role needs no
other right on it (docs/audit.md, "PostgreSQL"). Lines are kept byte for byte, so they verify like those of a file.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import asyncpg

from gateway.audit.port import AuditUnavailable

VERSION: Final = 1
LOCKS: Final = 0x0571A47
"""The class of the advisory locks: writer k holds (LOCKS, k) while it lives; (LOCKS, -1) is held to make tables."""

FAULTS: Final = (
    asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, EOFError, TimeoutError
)  # fmt: skip

_MAKE: Final = """
CREATE TABLE ostiary_audit (
    writer integer NOT NULL, seq bigint NOT NULL, mark boolean NOT NULL, line bytea NOT NULL,
    PRIMARY KEY (writer, seq)
);
CREATE INDEX ostiary_audit_marks ON ostiary_audit (writer, seq) WHERE mark;
CREATE TABLE ostiary_audit_writers (
    writer integer PRIMARY KEY, fence bigint NOT NULL, claimed boolean NOT NULL, owner text NOT NULL
);
CREATE FUNCTION ostiary_audit_only_grows() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN RAISE EXCEPTION ''the record only grows'' USING ERRCODE = ''insufficient_privilege''; END';
CREATE TRIGGER ostiary_audit_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON ostiary_audit
    FOR EACH STATEMENT EXECUTE FUNCTION ostiary_audit_only_grows();
CREATE TABLE ostiary_audit_version (version integer NOT NULL);
INSERT INTO ostiary_audit_version VALUES (1);
"""

# By a look at the catalogue's rows: `to_regclass` may answer from what this connection remembers, and so not see
# tables that another writer made while this one waited for its lock.
_IS_THERE: Final = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_tables
    WHERE tablename = 'ostiary_audit_version' AND schemaname = ANY (current_schemas(false)))
"""

# Asked of the catalogue too, and with the table named as this connection finds it.
_IS_GUARDED: Final = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = 'ostiary_audit'::regclass
    AND tgname = 'ostiary_audit_only_grows' AND tgenabled IN ('O', 'A'))
"""
_UNGUARDED: Final = "ostiary_audit can be changed: its trigger ostiary_audit_only_grows is off or gone"
_OWNS: Final = "SELECT pg_has_role(relowner, 'MEMBER') FROM pg_catalog.pg_class WHERE oid = 'ostiary_audit'::regclass"
_MAY_MAKE: Final = "SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"


@dataclass(frozen=True, slots=True)
class Tables:
    """How the record's tables are. `owned`: whether this role could switch off what keeps them from changes."""

    made: bool
    owned: bool


async def connect(url: str, timeout_s: float) -> asyncpg.Connection:
    """A connection whose commits are durable when they are acknowledged. Raises `FAULTS`, `AuditUnavailable`."""
    told = {"application_name": "ostiary audit", "TimeZone": "UTC"}  # what poolers let pass at the beginning
    try:
        made: asyncpg.Connection = await asyncpg.connect(
            url, timeout=timeout_s, server_settings=told, statement_cache_size=0
        )
    except (asyncpg.InterfaceError, OSError):  # a certificate that does not do is both OSError and ValueError
        raise
    except ValueError:  # its text may be any part of the URL
        raise AuditUnavailable("the URL can't be read: is a character of its password not escaped?") from None
    try:
        await made.execute("SET idle_in_transaction_session_timeout = 10000")
        if await made.fetchval("SHOW synchronous_commit") == "off":
            await made.execute("SET synchronous_commit = on")
    except BaseException:
        made.terminate()
        raise
    return made


async def make_tables(connection: asyncpg.Connection) -> None:
    """Make the tables where there are none. Raises `FAULTS`, and `AuditUnavailable` for those that won't do."""
    if await _version(connection) is None:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1, -1)", LOCKS)
            if await _version(connection) is None:
                await connection.execute(_MAKE)
    await _check_tables(connection)


async def look_at_tables(url: str, timeout_s: float = 5.0) -> Tables:
    """How the tables are; nothing is changed. Raises `FAULTS`, and `AuditUnavailable` for those that won't do."""
    connection = await connect(url, timeout_s)
    try:
        async with asyncio.timeout(timeout_s):
            if await _version(connection) is None:
                if not await connection.fetchval(_MAY_MAKE):
                    raise AuditUnavailable("it has no tables, and this role may not make them")
                return Tables(made=False, owned=True)
            await _check_tables(connection)
            return Tables(made=True, owned=await connection.fetchval(_OWNS))
    finally:
        connection.terminate()


async def _check_tables(connection: asyncpg.Connection) -> None:
    if (found := await _version(connection)) != VERSION:
        raise AuditUnavailable(f"its tables are of version {found}; this program knows {VERSION}")
    if not await connection.fetchval(_IS_GUARDED):
        raise AuditUnavailable(_UNGUARDED)


async def _version(connection: asyncpg.Connection) -> int | None:
    if not await connection.fetchval(_IS_THERE):
        return None
    found: int | None = await connection.fetchval("SELECT max(version) FROM ostiary_audit_version")
    return found


def name_of(url: str) -> str:
    """The database's URL without what is secret in it."""
    parts = urlsplit(url)
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"


def explain(fault: BaseException) -> str:
    """Why, in words that hold no password: a server's own sentence, else the kind of the fault."""
    if isinstance(fault, asyncpg.PostgresError):
        return f"{fault.sqlstate}: {str(fault).splitlines()[0][:200] if str(fault) else type(fault).__name__}"
    return type(fault).__name__
