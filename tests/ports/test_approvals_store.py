"""The store at rest and in trouble: it tells nothing, and where it fails nothing runs (APR-13, AUD-02)."""

# ruff: noqa: ASYNC240 - a test may touch files on its own loop

from __future__ import annotations

import asyncio
import dataclasses
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import event, text

from approvals.ledger import Ledger
from approvals.revisions import newest
from approvals.store import Store
from approvals.ticket import Claimed, Run, StoreUnavailable, TicketUnknown
from tests.support.approvals import ALICE, BOB, KEY, TERMS, Bench, bench, contents, effect, person

NEW = bytes(range(32, 64))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the database is."""
    return tmp_path / "approvals.db"


@pytest.fixture
async def it(file: Path) -> AsyncIterator[Bench]:
    """A desk with little patience."""
    async with bench(file, limit_s=0.8) as made:
        yield made


def sql(file: Path, text: str, *values: object) -> list[Any]:
    """Behind the store's back."""
    connection = sqlite3.connect(file, isolation_level=None)
    try:
        return connection.execute(text, values).fetchall()
    finally:
        connection.close()


def copy_ticket(file: Path) -> None:
    """The same row under another id."""
    names = [row[1] for row in sql(file, "PRAGMA table_info(tickets)") if row[1] != "id"]
    sql(file, f"INSERT INTO tickets (id, {', '.join(names)}) SELECT 'copy', {', '.join(names)} FROM tickets")


async def nothing_runs(it: Bench) -> None:
    """A use is neither had nor hung on to: `StoreUnavailable`, within the limit; and operators are told."""
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await it.settle()
    assert time.monotonic() - began < 2.0
    assert not it.store.healthy


async def test_secrets_are_not_in_the_file(it: Bench, file: Path) -> None:
    """Arguments, bound metadata, justification, comments and approvers' claims are at rest only as ciphertext."""
    asked = dataclasses.replace(effect({"pin": "canary-argument"}), shown_meta={"m": "canary-meta"})
    who = person("canary-approver", groups=["payers", "canary-group"])
    await it.desk.request(
        ALICE, asked, TERMS, reasons=(), mask=(), justification="canary-justification"
    )  # fmt: skip
    held = await it.held(asked)
    shown = await it.desk.act("approve", who, held.ticket.id, comment="canary-comment")
    for canary in ("argument", "meta", "justification", "comment", "approver"):
        assert f"canary-{canary}" in str(shown)
    kept = contents(file)
    assert held.ticket.id.encode() in kept
    assert b"canary" not in kept
    assert asked.digest.encode() not in kept
    assert bytes.fromhex(asked.digest) not in kept


async def test_the_file_is_its_owners_alone(it: Bench, file: Path) -> None:
    """Database, log and index: mode 0600, whatever the umask."""
    await it.held()
    assert {one.stat().st_mode & 0o777 for one in file.parent.iterdir()} == {0o600}


async def test_commits_are_durable(it: Bench) -> None:
    """WAL and synchronous=FULL, on each connection."""

    async def look(ledger: Ledger) -> list[Any]:
        names = ("journal_mode", "synchronous", "foreign_keys")
        return [(await ledger.connection.execute(text(f"PRAGMA {name}"))).scalar_one() for name in names]

    looks = await asyncio.gather(*(it.store.read(look) for _ in range(4)), it.store.write(look))
    assert looks == [["wal", 2, 1]] * 5


async def test_keys_rotate(file: Path) -> None:
    """A ticket of the old key is found, shown and used while that key is listed; live ones need it at start."""
    async with bench(file) as it:
        ticket_id = await it.approved()
    async with bench(file, keys=[NEW, KEY]) as it:
        assert (await it.desk.show(BOB, ticket_id))["arguments"]
        await it.claimed()
    with pytest.raises(StoreUnavailable, match="keys"):
        await Store(f"sqlite:///{file}", [NEW]).start()


async def test_a_file_that_is_no_database_is_told_in_one_line(file: Path) -> None:
    """Whoever starts the gateway reads which file and what is wrong with it, and no library's address."""
    file.write_bytes(b"no database, and long enough to have had a header" * 3)
    with pytest.raises(StoreUnavailable) as told:
        await Store(f"sqlite:///{file}", [KEY]).start()
    assert str(told.value) == f"{file}: file is not a database"


async def test_a_denial_is_not_forgotten_with_its_key(file: Path) -> None:
    """A denial that still holds is found by its key alone: a start without that key is refused, later it is not."""
    async with bench(file) as it:
        held = await it.held()
        await it.desk.act("deny", BOB, held.ticket.id)
        over = held.ticket.expires_at
    with pytest.raises(StoreUnavailable, match="keys"):
        await Store(f"sqlite:///{file}", [NEW], clock=lambda: over - 1).start()
    async with bench(file, keys=[NEW, KEY]) as it:
        assert (await it.held()).why == "denied"
    later = Store(f"sqlite:///{file}", [NEW], clock=lambda: over)
    await later.start()
    await later.close()


async def test_one_live_ticket_per_effect_is_the_databases_own_rule(it: Bench, file: Path) -> None:
    """Even a writer that asks nobody can't open a second one."""
    await it.held()
    with pytest.raises(sqlite3.IntegrityError):
        copy_ticket(file)


async def test_who_can_only_write_the_database_approves_nothing(it: Bench, file: Path) -> None:
    """A state set by hand, an approval copied from another ticket: without the key no person is behind it."""
    first = await it.approved(effect({"amount": 1}))
    held = await it.held(effect({"amount": 2}))
    sql(file, "UPDATE tickets SET state = 'approved' WHERE id = ?", held.ticket.id)
    assert (await it.held(effect({"amount": 2}))).ticket.id != held.ticket.id
    third = await it.held(effect({"amount": 3}))
    sql(file, "UPDATE tickets SET state = 'approved' WHERE id = ?", third.ticket.id)
    sql(file, "INSERT INTO decisions SELECT 'copy', ?, verb, at, sealed FROM decisions", third.ticket.id)
    with pytest.raises(StoreUnavailable):
        await it.settle(effect({"amount": 3}))
    assert isinstance(await it.settle(effect({"amount": 1})), Claimed)
    assert first


async def test_an_approval_cannot_be_filed_under_another_effect(it: Bench, file: Path) -> None:
    """What a ticket is for is sealed with it: exchanged lookups find no approval."""
    await it.approved(effect({"amount": 1}))
    other = await it.held(effect({"amount": 9}))
    wanted = sql(file, "SELECT lookup FROM tickets WHERE id = ?", other.ticket.id)[0][0]
    sql(file, "UPDATE tickets SET lookup = 'x' WHERE id = ?", other.ticket.id)
    sql(file, "UPDATE tickets SET lookup = ? WHERE state = 'approved'", wanted)
    with pytest.raises(StoreUnavailable):
        await it.settle(effect({"amount": 9}))


@pytest.mark.parametrize(
    "change", ["tool_digest = 'tool-2'", "expires_at = expires_at + 10", "created_at = created_at + 10", "uses = 9"]
)
async def test_what_was_approved_cannot_be_changed_in_the_database(it: Bench, file: Path, change: str) -> None:
    """The tool's definition, the time and the uses that people said yes to are sealed with the effect."""
    ticket_id = await it.approved()
    sql(file, f"UPDATE tickets SET {change}")
    for asked in (effect(), effect(tool_digest="tool-2")):
        with pytest.raises(StoreUnavailable):
            await it.settle(asked)
    with pytest.raises(StoreUnavailable):
        await it.desk.show(BOB, ticket_id)


async def test_a_decision_copied_within_its_ticket_is_not_a_second_person(it: Bench, file: Path) -> None:
    """A quorum of two is not filled by one row twice."""
    terms = dataclasses.replace(TERMS, min_approvers=2)
    held = await it.held(terms=terms)
    await it.desk.act("approve", BOB, held.ticket.id)
    sql(file, "INSERT INTO decisions SELECT 'copy', ticket_id, verb, at, sealed FROM decisions")
    sql(file, "UPDATE tickets SET state = 'approved'")
    with pytest.raises(StoreUnavailable):
        await it.settle(terms=terms)


async def test_a_ticket_of_before_tickets_named_their_tenant_still_counts(it: Bench, file: Path) -> None:
    """An approval outlives the gateway's update: what is new in a ticket may be absent from an older one."""
    bob = replace(BOB, tenant="acme")
    ticket_id = await it.approved(effect(tenant="acme"), by=bob)
    assert (await it.desk.show(bob, ticket_id))["requester"]["tenant"] == "acme"
    ((sealed,),) = sql(file, "SELECT bond FROM tickets")
    bond = orjson.loads(it.store.vault.open(sealed, ticket_id, "bond"))
    assert bond.pop("tenant") == "acme"
    sql(file, "UPDATE tickets SET bond = ?", it.store.vault.seal(orjson.dumps(bond), ticket_id, "bond"))
    assert "tenant" not in (await it.desk.show(bob, ticket_id))["requester"]
    assert (await it.claimed(effect(tenant="acme"))).ticket_id == ticket_id


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another process holds the write lock."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.close()


@contextmanager
def pragma(it: Bench, text: str) -> Iterator[None]:
    """A real refusal of SQLite's, in every transaction of this store."""

    def began(connection: Any) -> None:
        connection.connection.driver_connection.execute(f"PRAGMA {text}")

    engine = it.store._database.engine
    event.listen(engine, "begin", began)
    try:
        yield
    finally:
        event.remove(engine, "begin", began)


async def test_a_locked_database_runs_nothing(it: Bench, file: Path) -> None:
    """In time, and again once the lock is gone; nothing was consumed."""
    await it.approved()
    with locked(file):
        await nothing_runs(it)
    await asyncio.sleep(0.1)
    await it.claimed()
    assert it.store.healthy


async def test_what_can_be_read_hides_no_write_that_fails(it: Bench, file: Path) -> None:
    """Health is told by the last look and the last write alike, alone or shared: either that fails is enough."""

    async def nothing(ledger: Ledger) -> None:
        del ledger

    await it.approved()
    assert it.store.healthy
    with locked(file):
        for write in (it.store.write, it.store.move):
            with pytest.raises(StoreUnavailable):
                await write(nothing)
            for look in (it.store.read, it.store.look):
                await look(nothing)
                assert not it.store.healthy
    await it.store.read(nothing)
    assert not it.store.healthy, "whether it can be written again is not known"
    await it.store.write(nothing)
    assert it.store.healthy

    def fail(connection: Any) -> None:
        if not connection.get_execution_options().get("ostiary_write"):
            raise sqlite3.OperationalError("disk I/O error")

    event.listen(it.store._database.engine, "begin", fail)
    with pytest.raises(StoreUnavailable):
        await it.store.look(nothing)
    event.remove(it.store._database.engine, "begin", fail)
    await it.store.move(nothing)
    assert not it.store.healthy
    await it.store.look(nothing)
    assert it.store.healthy


async def test_looking_goes_on_while_somebody_writes(it: Bench, file: Path) -> None:
    """Losers of a race are answered without the write lock."""
    held = await it.held()
    with locked(file):
        assert (await it.held()).ticket.id == held.ticket.id
        assert await it.desk.show(BOB, held.ticket.id)


async def test_a_read_only_database_runs_nothing(it: Bench) -> None:
    """It can still be looked at."""
    ticket_id = await it.approved()
    with pragma(it, "query_only = ON"):
        await nothing_runs(it)
        assert (await it.desk.show(BOB, ticket_id))["uses_left"] == 1
        with pytest.raises(StoreUnavailable):
            await it.desk.act("revoke", BOB, ticket_id)


async def test_a_full_disk_runs_nothing(it: Bench) -> None:
    """No ticket is opened, none approved, none used."""
    held = await it.held()
    with pragma(it, "max_page_count = 1"):
        with pytest.raises(StoreUnavailable):
            await it.settle(effect({"text": "x" * 100_000}))
        with pytest.raises(StoreUnavailable):
            await it.desk.act("approve", BOB, held.ticket.id, comment="x" * 4000)
    assert (await it.desk.show(BOB, held.ticket.id))["state"] == "pending"


async def test_a_log_that_cannot_be_made_beside_the_file_is_named(file: Path) -> None:
    """A start where SQLite can't write beside its file says so: the file itself is in order."""
    async with bench(file):
        pass
    file.with_name(f"{file.name}-wal").mkdir()  # as in a folder that is read-only: nothing can be written there
    with pytest.raises(
        StoreUnavailable, match=r"approvals\.db: unable to open.*: .*approvals\.db-wal, can't be made"
    ):
        async with bench(file):
            raise AssertionError("it starts")
    file.with_name(f"{file.name}-wal").rmdir()
    async with bench(file):
        pass


@pytest.mark.parametrize("how", ["removed", "replaced", "folder"])
async def test_a_file_that_has_gone_runs_nothing(it: Bench, file: Path, how: str) -> None:
    """SQLite itself would go on writing to a file that nobody else can see."""
    await it.approved()
    if how == "folder":
        file.parent.rename(file.parent.with_name("elsewhere"))
    else:
        file.unlink()
    if how == "replaced":
        file.touch()
    await nothing_runs(it)
    assert how == "replaced" or not file.exists()


async def test_a_corrupt_file_runs_nothing(file: Path) -> None:
    """Neither at start nor later."""
    async with bench(file) as it:
        await it.approved()
    whole = file.read_bytes()
    for begin, end in ((0, 100), (100, len(whole)), (4096, len(whole))):
        file.write_bytes(whole[:begin] + os.urandom(end - begin) + whole[end:])
        with pytest.raises(StoreUnavailable):
            async with bench(file) as it:
                await it.settle()
    file.write_bytes(whole)
    async with bench(file) as it:
        await it.claimed()


@pytest.mark.parametrize("content", [b"not a database", b"x" * 100_000])
async def test_another_file_is_not_touched(file: Path, content: bytes) -> None:
    """A path that points at something else is refused, and stays what it was."""
    file.write_bytes(content)
    with pytest.raises(StoreUnavailable):
        await Store(f"sqlite:///{file}", [KEY]).start()
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "mysql://host/db", "sqlite:///x?mode=memory", "approvals.db"]
)
async def test_a_database_that_workers_cannot_share_is_refused(url: str) -> None:
    """A ticket in one worker's memory would be no ticket for the others."""
    with pytest.raises(ValueError, match="database"):
        Store(url, [KEY])


@contextmanager
def stuck(it: Bench, verb: str) -> Iterator[threading.Event]:
    """The disk blocks at `verb` (begin, commit) in the database's own thread, until the event is set."""
    release = threading.Event()
    engine = it.store._database.engine

    def wait(connection: Any) -> None:
        if connection.get_execution_options().get("ostiary_write"):
            release.wait(30)

    event.listen(engine, verb, wait)
    try:
        yield release
    finally:
        release.set()
        event.remove(engine, verb, wait)


async def test_a_commit_whose_end_is_unknown_counts_as_consumed(it: Bench) -> None:
    """The caller is told no in time; the use may have been taken, nobody runs it, and it ends as `unknown`."""
    await it.approved()
    with stuck(it, "commit") as release:
        await nothing_runs(it)
        release.set()
        await asyncio.sleep(0.2)
    assert (await it.held()).why == "in_flight"
    await it.desk.renew()
    it.clock.now += 301
    assert (await it.held()).why == "unknown"


async def test_what_starts_too_late_is_not_done(it: Bench) -> None:
    """A transaction that gets its turn after its caller was told no is rolled back: nothing is consumed."""
    await it.approved()
    with stuck(it, "begin") as release:
        await nothing_runs(it)
        release.set()
        await asyncio.sleep(0.2)
    await it.claimed()


async def test_waiting_behind_a_stuck_disk_is_bounded(it: Bench) -> None:
    """A hundred calls behind a disk that does not answer: each is told no in time, and none is left behind."""
    for amount in range(5):
        await it.approved(effect({"amount": amount}))
    with stuck(it, "commit") as release:
        began = time.monotonic()
        first = asyncio.create_task(it.settle(effect({"amount": 0})))
        while not it.store._writers.locked():  # noqa: ASYNC110 - a turn or two of the loop
            await asyncio.sleep(0)
        settled = await asyncio.gather(
            first, *(it.settle(effect({"amount": number % 5})) for number in range(99)), return_exceptions=True
        )
        assert time.monotonic() - began < 3.0
        assert {type(one) for one in settled} == {StoreUnavailable}
        assert len(it.store._tasks) <= 5  # four that look and one that writes
        release.set()
        while it.store._tasks:  # noqa: ASYNC110 - as a test waits
            await asyncio.sleep(0.05)
    settled = [await it.settle(effect({"amount": amount})) for amount in range(5)]
    assert sum(isinstance(one, Claimed) for one in settled) >= 4


async def test_a_commit_that_fails_leaves_no_transaction_open(it: Bench) -> None:
    """Nothing is consumed, the lock is free for everybody, and the same connection serves the next call."""
    await it.approved()
    faults = [sqlite3.OperationalError("disk I/O error"), OSError("gone")]

    def fail(connection: Any) -> None:
        if connection.get_execution_options().get("ostiary_write") and faults:
            raise faults.pop()

    event.listen(it.store._database.engine, "commit", fail)
    for _ in range(2):
        await nothing_runs(it)
    assert not faults
    await it.claimed()


async def test_a_use_whose_end_could_not_be_written_is_unknown_later(it: Bench, file: Path) -> None:
    """`finish` fails, the lease lapses, and nothing runs again by itself."""
    await it.approved()
    use = await it.claimed()
    await it.desk.sent(use)
    with locked(file), pytest.raises(StoreUnavailable):
        await it.desk.finish(use, Run.EXECUTED)
    await asyncio.sleep(0.1)
    it.clock.now += 301
    assert (await it.held()).why == "unknown"


async def test_two_workers_may_start_at_once(file: Path) -> None:
    """Tables are made once, whoever comes first."""
    stores = [Store(f"sqlite:///{file}", [KEY]) for _ in range(5)]
    await asyncio.gather(*(store.start() for store in stores))
    for store in stores:
        await store.close()
    assert sql(file, "SELECT version_num FROM alembic_version") == [(newest(),)]


async def test_unknown_ids_cost_no_write(it: Bench, file: Path) -> None:
    """Guessing goes on without taking the write lock from anybody."""
    with locked(file), pytest.raises(TicketUnknown):
        await it.desk.act("approve", BOB, "A" * 24)
