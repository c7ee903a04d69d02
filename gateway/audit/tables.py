"""The record's tables in PostgreSQL: how they are made, reached and named.

`ostiary_audit` only grows: a trigger refuses everything but inserts, whoever asks, and the gateway's role needs no
other right on it (docs/audit.md, "PostgreSQL"). Lines are kept byte for byte, so they verify like those of a file.
"""

from __future__ import annotations

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
    """Make the tables where there are none. Raises `FAULTS`, and `AuditUnavailable` for those of another version."""
    if await _version(connection) is None:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1, -1)", LOCKS)
            if await _version(connection) is None:
                await connection.execute(_MAKE)
    if (found := await _version(connection)) != VERSION:
        raise AuditUnavailable(f"its tables are of version {found}; this program knows {VERSION}")


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
