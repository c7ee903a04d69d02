"""The record in PostgreSQL: the same chains, the same group commit; a commit is one transaction.

A writer is claimed by an advisory lock and fenced by a row: each transaction names the claim that it belongs to, so
a process that was taken for dead can't write on. A commit whose answer was lost is looked for before it is made
again: it is there once, whatever happened to the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from gateway.audit.commits import Bounds, GroupCommit
from gateway.audit.orphans import end_orderly
from gateway.audit.port import AuditUnavailable
from gateway.audit.resuming import MARKS, Left, state_before
from gateway.audit.segments import MAX_WRITERS
from gateway.audit.slot import SlotTaken
from gateway.audit.tables import FAULTS, LOCKS, connect, explain, make_tables, name_of
from gateway.contract.chain import ZERO, Chain, read_line

_CONNECT_S: Final = 1.5
_ATTEMPT_S: Final = 5.0
_AGAIN_S: Final = 0.25
_GONE_AFTER_S: Final = 2.0
"""How long the lock of a writer without an orderly end must have been free: its process may just be reconnecting."""

_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """`url`: `postgresql://…`. `writer` None: the lowest free one. The rest: see `Bounds`."""

    url: str
    deadline_s: float = 1.5
    max_notes: int = 10_000
    max_note_bytes: int = 16 * 1024 * 1024
    folded_beyond: int = 200
    writer: int | None = None


class PostgresSink(GroupCommit):
    """`AuditSink` on a database."""

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__(
            Bounds(settings.deadline_s, settings.max_notes, settings.max_note_bytes, settings.folded_beyond),
            lambda: TableScribe(settings.url, settings.writer),
            "the audit's database",
        )


@dataclass(slots=True)
class _Job:
    """A commit: its lines, the number of the first, and who is told of its end."""

    lines: Sequence[bytes]
    first: int
    then: Callable[[str], None]


class TableScribe:
    """One connection, one claimed writer; whatever it does, it does one after the other in a task of its own."""

    wants_rotation = False

    def __init__(self, url: str, only: int | None) -> None:
        self._url: Final = url
        self._name: Final = name_of(url)
        self._only: Final = only
        self.remarks: Final[deque[tuple[str, Mapping[str, Any]]]] = deque(maxlen=16)
        self._connection: asyncpg.Connection | None = None
        self._jobs: Final[asyncio.Queue[_Job]] = asyncio.Queue()
        self._writer = self._fence = -1
        self._locked = False
        self._task: asyncio.Task[None] | None = None

    async def claim(self) -> Left:
        """Make the tables where there are none, claim the lowest free writer, read where its chain ended."""
        try:
            async with asyncio.timeout(30):
                self._connection = connection = await connect(self._url, 5.0)
                await make_tables(connection)
                left = await self._claim(connection)
        except FAULTS as fault:
            await self._drop()
            raise AuditUnavailable(f"{self._name}: {explain(fault)}") from fault
        except AuditUnavailable as fault:
            await self._drop()
            raise type(fault)(f"{self._name}: {fault}") from fault
        self._locked = True
        self._task = asyncio.create_task(self._work())
        return left

    async def _claim(self, connection: asyncpg.Connection) -> Left:
        for writer in range(MAX_WRITERS) if self._only is None else (self._only,):
            if not await self._try_lock(connection, writer):
                continue
            if await connection.fetchval("SELECT claimed FROM ostiary_audit_writers WHERE writer = $1", writer):
                # It did not end orderly. Its process may live, and have lost its connection a moment ago.
                await connection.execute("SELECT pg_advisory_unlock($1, $2)", LOCKS, writer)
                await asyncio.sleep(_GONE_AFTER_S)
                if not await self._try_lock(connection, writer):
                    continue
            self._fence = await connection.fetchval(
                "INSERT INTO ostiary_audit_writers VALUES ($1, 1, true, $2) ON CONFLICT (writer) DO UPDATE"
                " SET fence = ostiary_audit_writers.fence + 1, claimed = true, owner = $2 RETURNING fence",
                writer,
                f"{os.getpid()}@{socket.gethostname()}",
            )
            self._writer = writer
            return await self._resume(connection, writer)
        raise SlotTaken("all writers are taken" if self._only is None else f"writer {self._only} is taken")

    async def _try_lock(self, connection: asyncpg.Connection, writer: int) -> bool:
        return bool(await connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", LOCKS, writer))

    async def _resume(self, connection: asyncpg.Connection, writer: int) -> Left:
        """Read the chain from its last mark on."""
        left = Left(writer)
        chain = Chain(writer)
        since = await connection.fetchval("SELECT max(seq) FROM ostiary_audit WHERE writer = $1 AND mark", writer)
        after = (since or 1) - 1
        while True:
            rows = await connection.fetch(
                "SELECT seq, line FROM ostiary_audit WHERE writer = $1 AND seq > $2 ORDER BY seq LIMIT $3",
                writer, after, _BATCH,
            )  # fmt: skip
            for row in rows:
                if row["seq"] == since and since:
                    chain.count, chain.head = state_before(row["line"])
                record = chain.read(row["line"])
                if record is None:
                    why = chain.fault.why if chain.fault else ""
                    raise AuditUnavailable(
                        f"writer {writer}, record {chain.count + 1} does not verify: {why}. The chain is not"
                        " continued; look at it with `ostiary audit verify`"
                    )
                left.follow(record)
                after = row["seq"]
            if len(rows) < _BATCH:
                break
        left.seq, left.head = chain.count, chain.head
        return left

    def write(
        self,
        lines: Sequence[bytes],
        *,
        first: int,
        mend: bool,  # noqa: ARG002 - what an unanswered commit left is looked for in any case
        rotate: bool,  # noqa: ARG002 - tables don't rotate
        then: Callable[[str], None],
    ) -> None:
        """See the protocol. Without an answer from the database it is tried on, and `then` waits: it is not known."""
        self._jobs.put_nowait(_Job(lines, first, then))

    async def close(self, timeout_s: float) -> None:
        """Give the writer up; orderly only if the database answers in time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._connection is not None and self._locked:
            with contextlib.suppress(*FAULTS):
                async with asyncio.timeout(timeout_s):
                    await self._connection.execute(
                        "UPDATE ostiary_audit_writers SET claimed = false WHERE writer = $1 AND fence = $2",
                        self._writer, self._fence,
                    )  # fmt: skip
                    await self._connection.close()
        await self._drop()

    async def _work(self) -> None:
        while True:
            # Between two commits the connection is looked after: a lost one is a lost lock, which others see.
            try:
                async with asyncio.timeout(_AGAIN_S):
                    job = await self._jobs.get()
            except TimeoutError:
                await self._look_after()
                continue
            job.then(await self._settle(job))

    async def _look_after(self) -> None:
        if self._connection is not None and self._connection.is_closed():
            await self._drop()
        with contextlib.suppress(AuditUnavailable, *FAULTS):
            async with asyncio.timeout(_ATTEMPT_S):
                await self._reach()

    async def _reach(self) -> asyncpg.Connection:
        """The connection, made anew where it was lost; the lock is taken again as soon as the lost one is gone."""
        if self._connection is None:
            self._connection = await connect(self._url, _CONNECT_S)
        if not self._locked:
            self._locked = await self._try_lock(self._connection, self._writer)
        return self._connection

    async def _settle(self, job: _Job) -> str:
        """Try until it is known: `""`, it is there; else why it is not, and surely not."""
        while True:
            try:
                async with asyncio.timeout(_ATTEMPT_S):
                    return await self._commit(await self._reach(), job)
            except AuditUnavailable as fault:
                return f"{self._name}: {fault}"
            except asyncpg.PostgresError as fault:
                if self._connection is not None and not self._connection.is_closed() and _is_refused(fault):
                    return f"{self._name}: {explain(fault)}"
                await self._drop()
            except FAULTS:
                await self._drop()
            await asyncio.sleep(_AGAIN_S)

    async def _commit(self, connection: asyncpg.Connection, job: _Job) -> str:
        async with connection.transaction():
            # The row's lock waits for a transaction of a connection that was lost, and its fence tells a later claim.
            held = await connection.execute(
                "UPDATE ostiary_audit_writers SET claimed = true WHERE writer = $1 AND fence = $2",
                self._writer, self._fence,
            )  # fmt: skip
            if held != "UPDATE 1":
                raise AuditUnavailable(f"another process has become writer {self._writer}: restart this one")
            last = await connection.fetchrow(
                "SELECT seq, line FROM ostiary_audit WHERE writer = $1 ORDER BY seq DESC LIMIT 1", self._writer
            )
            seq = last["seq"] if last else 0
            if seq == job.first + len(job.lines) - 1 and last and last["line"] == job.lines[-1]:
                return ""  # an earlier attempt's answer was lost on the way
            if seq != job.first - 1 or not _follows(job.lines[0], last["line"] if last else None):
                raise AuditUnavailable(f"writer {self._writer}'s chain was written to by somebody else")
            rows = [(self._writer, job.first + n, line.startswith(MARKS), line) for n, line in enumerate(job.lines)]
            await connection.copy_records_to_table(
                "ostiary_audit", records=rows, columns=("writer", "seq", "mark", "line")
            )
        return ""

    async def _drop(self) -> None:
        """Forget the connection; whatever it was doing is the server's."""
        connection, self._connection, self._locked = self._connection, None, False
        if connection is not None:
            connection.terminate()
            await asyncio.sleep(0)  # for the transport to close


def _follows(line: bytes, last: bytes | None) -> bool:
    head = read_line(last)[0].get("hash") if last else ZERO
    return state_before(line)[1] == head


def _is_refused(fault: asyncpg.PostgresError) -> bool:
    """Whether the server said no, a full disk (53100) included, rather than went away or came up."""
    state = fault.sqlstate or ""
    return not state.startswith(("08", "57P", "57014", "40"))


async def close_orphans(url: str) -> list[int]:
    """End what writers left open that did not end orderly and are not at work -> those writers.

    Raises `AuditUnavailable` where a chain can't be continued; the others have been looked after by then.
    """
    try:
        connection = await connect(url, 5.0)
        try:
            rows = await connection.fetch("SELECT writer FROM ostiary_audit_writers WHERE claimed ORDER BY writer")
        finally:
            await connection.close(timeout=2)
    except FAULTS as fault:
        raise AuditUnavailable(f"{name_of(url)}: {explain(fault)}") from fault
    claimed = [row["writer"] for row in rows[:64]]
    return await end_orderly(claimed, lambda writer: PostgresSink(PostgresSettings(url, writer=writer)))
