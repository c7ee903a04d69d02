"""PostgreSQL in trouble and in company: where it fails nothing runs, and it comes back by itself (APR-13, OPS-06)."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import certifi
import pytest
from sqlalchemy import event, text

from approvals.database import migrate
from approvals.desk import Desk
from approvals.ledger import Ledger
from approvals.remote_clock import RemoteClock
from approvals.retention import forget
from approvals.revisions import newest
from approvals.sieve import Sieve, Whose
from approvals.store import Store
from approvals.ticket import Claimed, Granted, Held, MovedOn, Run, State, StoreUnavailable, TicketUnknown
from approvals.transaction import Frequent, Ready
from tests.support.approvals import (
    ALICE,
    BOB,
    CAROL,
    ISSUER,
    KEY,
    MALLORY,
    PAGE,
    TERMS,
    Bench,
    Journal,
    bench,
    effect,
    grant_of,
    person,
)
from tests.support.postgres import Postgres

WITHIN_S = 5.0
"""OPS-06: errors end within this time of a recovery."""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server that tests of this module stop, kill and hang."""
    made = Postgres(max_connections="20")
    try:
        made.start()
        yield made
    finally:
        made.remove()


@asynccontextmanager
async def desk_on(server: Postgres, **options: Any) -> AsyncIterator[Bench]:
    """A desk on a database of its own, with an approval of `effect()`."""
    async with bench(server.create(), tickets_per_hour=10**6, **options) as it:
        await it.approved()
        yield it


async def nothing_runs(it: Bench) -> None:
    """Neither a use nor a ticket is had, and nobody is kept waiting: whatever is asked, within the limit."""
    began = time.monotonic()
    asked = [it.settle(), it.settle(effect({"amount": 7}))]
    settled = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in settled] == [StoreUnavailable] * 2, settled
    assert time.monotonic() - began < 2.5
    assert not it.store.healthy


async def serves_again(it: Bench) -> None:
    """Without being started again: the approval has its one use."""
    end = time.monotonic() + WITHIN_S
    while True:
        try:
            settled = await it.settle()
        except StoreUnavailable:
            assert time.monotonic() < end, "it did not come back"
            await asyncio.sleep(0.05)
        else:
            break
    assert isinstance(settled, Claimed)
    assert it.store.healthy
    assert (await it.held()).why == "in_flight"


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_server_that_is_down_runs_nothing_and_is_used_again(server: Postgres, how: str) -> None:
    """Told at once; when it is back the next call is served, and the use was not consumed meanwhile."""
    async with desk_on(server) as it:
        getattr(server, how)()
        try:
            await nothing_runs(it)
        finally:
            server.start()
        await serves_again(it)


async def test_a_server_that_hangs_runs_nothing_and_is_used_again(server: Postgres) -> None:
    """Connections stand and nothing answers: told in time, also to those who wait behind; nothing is left."""
    async with desk_on(server) as it:
        server.pause()
        try:
            for _ in range(2):  # with connections that hang, and then without any
                await nothing_runs(it)
            began = time.monotonic()
            settled = await asyncio.gather(*(it.settle() for _ in range(50)), return_exceptions=True)
            assert {type(one) for one in settled} == {StoreUnavailable}
            assert time.monotonic() - began < 3
            assert len(it.store._tasks) <= 8
        finally:
            server.resume()
        await serves_again(it)
        assert it.store._database.engine.pool.checkedout() == 0


async def test_a_connection_that_was_cut_costs_nobody_an_answer(server: Postgres) -> None:
    """The server was started anew between two calls: nothing was sent on the old connections; the next is served."""
    async with desk_on(server) as it:
        await asyncio.gather(*(it.store.read(lambda ledger: ledger.whole("x")) for _ in range(4)))
        server.stop()
        server.start()
        settled = await asyncio.gather(*(it.settle() for _ in range(8)))
        assert sum(isinstance(one, Claimed) for one in settled) == 1
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ostiary'")
        assert (await it.held()).why == "in_flight"


async def test_a_read_only_server_runs_nothing(server: Postgres) -> None:
    """As a standby is: it can be looked at, and once it may be written to again, it is used again."""
    async with desk_on(server) as it:
        server.sql("ALTER SYSTEM SET default_transaction_read_only = on")
        try:
            server.sql("SELECT pg_reload_conf()")
            async with asyncio.timeout(WITHIN_S):
                while server.sql("SHOW default_transaction_read_only") != "on":  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.02)
            await nothing_runs(it)
            assert (await it.desk.page(BOB))[0]
        finally:
            server.sql("ALTER SYSTEM RESET default_transaction_read_only")
            server.sql("SELECT pg_reload_conf()")
        await serves_again(it)


async def test_a_server_without_room_runs_nothing(server: Postgres) -> None:
    """All its connections are taken by others: told at once, and served when there is room."""
    url = server.create("crowded")
    async with bench(url) as it:
        await it.approved()
        await it.store._database.engine.dispose()
        server.sql("CREATE ROLE crowd LOGIN PASSWORD 'let-me-in'")
        server.sql("ALTER DATABASE crowded CONNECTION LIMIT 0")
        server.sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO crowd", "crowded")
        store = Store(server.url_of("crowded", "crowd", "let-me-in"), [KEY])
        with pytest.raises(StoreUnavailable, match="too many connections"):
            await store.start()
        server.sql("ALTER DATABASE crowded CONNECTION LIMIT -1")
        store = Store(server.url_of("crowded", "crowd", "let-me-in"), [KEY])
        await store.start()
        other = Bench(store, clock=it.clock)
        await store._database.engine.dispose()
        server.sql("ALTER DATABASE crowded CONNECTION LIMIT 0")
        await nothing_runs(other)
        server.sql("ALTER DATABASE crowded CONNECTION LIMIT -1")
        await serves_again(other)
        await store.close()


async def test_more_callers_than_connections_wait_their_turn(server: Postgres) -> None:
    """A worker has eight connections, whatever comes; two hundred calls at once are all answered."""
    async with desk_on(server) as it:
        for amount in range(20):
            await it.approved(effect({"amount": amount}))
        settled = await asyncio.gather(*(it.settle(effect({"amount": number % 20})) for number in range(200)))
        assert sum(isinstance(one, Claimed) for one in settled) == 20
        counted = server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'ostiary'")
        assert int(counted) <= 8


@pytest.mark.parametrize("kept", [True, False])
async def test_a_commit_whose_end_is_unknown_counts_as_consumed(server: Postgres, kept: bool) -> None:
    """The connection is cut as the commit is sent: whether the server has it or not, the caller is told no, once.

    Where it was kept nobody runs the use, and it ends as `unknown`; where it was not, it is there for the next call.
    """
    async with desk_on(server) as it:
        engine, faults = it.store._database.engine.sync_engine, [1]

        def cut(connection: Any) -> None:
            if faults and connection.get_isolation_level() == "READ COMMITTED":
                faults.pop()
                if kept:
                    connection.exec_driver_sql("COMMIT")
                connection.connection.driver_connection.terminate()

        event.listen(engine, "commit", cut)
        with pytest.raises(StoreUnavailable):
            await it.settle()
        assert not faults
        if not kept:
            await it.claimed()
            return
        assert (await it.held()).why == "in_flight"
        await it.desk.renew()
        it.clock.now += 301
        assert (await it.held()).why == "unknown"


async def test_a_ticket_that_somebody_holds_keeps_nobody_waiting(server: Postgres) -> None:
    """While an act waits for its record, another one is told no in time; looking goes on."""
    async with bench(url := server.create(), limit_s=0.5) as it, bench(url, clock=it.clock, limit_s=0.5) as other:
        held = await it.held()
        stands, goes_on = asyncio.Event(), asyncio.Event()

        async def journal(_: Any) -> None:
            stands.set()
            await goes_on.wait()

        it.desk._journal = journal
        acting = asyncio.create_task(it.desk.act("deny", BOB, held.ticket.id))
        await stands.wait()
        other.desk._journal = Journal()
        with pytest.raises(StoreUnavailable):
            await other.desk.act("approve", BOB, held.ticket.id)
        assert (await other.held()).why == "pending"
        goes_on.set()
        await acting
        with pytest.raises(MovedOn, match="denied"):
            await other.desk.act("approve", BOB, held.ticket.id)


async def test_an_end_that_waits_for_a_person_is_written_whole(server: Postgres) -> None:
    """Where somebody acts on a ticket while a use of it ends, the use ends, and frees the ticket as it is by then."""
    two = replace(TERMS, uses=2)
    async with bench(url := server.create(), limit_s=10) as it:
        ticket = await it.approved(terms=two)
        use = await it.claimed(terms=two)
        await it.desk.sent(use)
        connection = await asyncpg.connect(url)
        try:
            held = connection.transaction()
            await held.start()
            await connection.execute(
                "UPDATE tickets SET state = 'revoked', version = version + 1 WHERE id = $1", ticket
            )
            ending = asyncio.create_task(it.desk.finish(use, Run.EXECUTED))
            async with asyncio.timeout(WITHIN_S):
                waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                while not await connection.fetchval(waits):  # noqa: ASYNC110 - the server's
                    await asyncio.sleep(0.005)
            await held.commit()
            await ending
            found = await connection.fetch(
                "SELECT t.state, t.running, u.state FROM tickets t JOIN uses u ON u.ticket_id = t.id"
            )
        finally:
            await connection.close()
    assert [tuple(one) for one in found] == [("revoked", None, "executed")]


@pytest.mark.parametrize(("granted", "most"), [(False, 5), (True, 8)])
async def test_a_gated_call_takes_few_ways_to_its_server(
    server: Postgres, monkeypatch: pytest.MonkeyPatch, granted: bool, most: int
) -> None:
    """From the look at its approval to the end of its use a call asks its server once for each step: each way there
    and back costs more than what is done there.
    """
    ways: list[str] = []
    ready = Frequent.ready

    def counted(self: Frequent, *given: Any) -> Ready:
        ways.append((made := ready(self, *given)).text)
        return made

    async def covers(_: Any) -> Granted:
        return Granted(TERMS)

    async with bench(server.create()) as it:
        await it.approved(grant_of(effect(), {"type": "object"}) if granted else effect())
        monkeypatch.setattr(Frequent, "ready", counted)
        use = await it.claimed(covers=covers)
        await it.desk.sent(use)
        await it.desk.finish(use, Run.EXECUTED)
        assert use.by_grant is granted
        assert it.journal.verbs[-3:] == ["claim", "sent", "executed"]
        assert 0 < len(ways) <= most, ways


async def test_a_gateway_that_stands_still_keeps_nothing_locked(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends its transaction: what it had locked is free, and what it had done is not done."""
    monkeypatch.setattr("approvals.postgres_database.IDLE_S", 0.1)
    async with bench(url := server.create(), limit_s=0.5) as it:
        monkeypatch.undo()
        held = await it.held()
        async with bench(url, clock=it.clock) as other:
            stands = asyncio.Event()

            async def work(ledger: Ledger) -> None:
                filed = await ledger.whole(held.ticket.id)
                assert filed is not None
                assert await ledger.move(filed, State.DENIED, it.clock.now)
                stands.set()
                await ended.wait()
                await ledger.hold(held.ticket.id)

            ended = asyncio.Event()
            standing = asyncio.create_task(it.store.write(work, patience_s=60))
            await stands.wait()
            shown = await other.desk.act("approve", BOB, held.ticket.id)
            assert shown["state"] == "approved"
            ended.set()
            with pytest.raises(StoreUnavailable):
                await standing
            await other.claimed()


async def test_two_who_decide_at_once_both_count(server: Postgres) -> None:
    """A quorum of two, given at the same moment at two gateways: one after the other, and neither is turned away."""
    url = server.create()
    async with bench(url) as one, bench(url, clock=one.clock) as other:
        for amount in range(10):
            held = await one.held(effect({"n": amount}), terms=type(TERMS)(1, 3600, TERMS.approvers, 2))
            shown = await asyncio.gather(
                one.desk.act("approve", BOB, held.ticket.id), other.desk.act("approve", CAROL, held.ticket.id)
            )
            assert sorted(str(ticket["state"]) for ticket in shown) == ["approved", "pending"]


async def test_replicas_that_open_one_ticket_at_once_hold_one(server: Postgres) -> None:
    """Whoever comes second is told of the ticket of the first; one `request` is recorded."""
    url = server.create()
    async with bench(url) as one, bench(url, clock=one.clock) as other:
        for number in range(10):
            settled = await asyncio.gather(*(it.held(effect({"n": number})) for it in (one, other) for _ in range(5)))
            assert {held.why for held in settled} == {"pending"}
            assert len({held.ticket.id for held in settled}) == 1
        assert len(one.journal.kept) + len(other.journal.kept) == 10


async def test_the_limit_of_tickets_is_exact_over_replicas(server: Postgres) -> None:
    """A requester who asks many gateways at once has as many tickets as one may."""
    url = server.create()
    async with (
        bench(url, tickets_per_hour=5) as one,
        bench(url, clock=one.clock, tickets_per_hour=5) as other,
    ):
        asked = [it.settle(effect({"n": number})) for number in range(10) for it in (one, other)]
        await asyncio.gather(*asked, return_exceptions=True)
        assert len((await one.desk.page(BOB))[0]) == 5


async def test_a_deadlock_that_the_server_ends_is_nobodys_fault(server: Postgres) -> None:
    """The transaction that was rolled back is done once more: it had done nothing but in the database."""
    url = server.create()
    # Else the server looks for deadlocks after a second, which is half of what a store may take.
    server.sql(f"ALTER DATABASE \"{url.rpartition('/')[2]}\" SET deadlock_timeout = '50ms'")
    async with bench(url) as one, bench(url, clock=one.clock) as other:
        ids = [await one.approved(effect({"n": number})) for number in range(2)]
        both = asyncio.Barrier(2)
        met: list[str] = []

        def crossing(it: Bench, order: list[str]) -> Any:
            async def work(ledger: Ledger) -> str:
                await ledger.hold(order[0])
                if it not in seen:
                    seen.append(it)
                    await both.wait()
                await ledger.hold(order[1])
                met.append(order[0])
                return order[0]

            return work

        seen: list[Bench] = []
        done = await asyncio.gather(
            one.store.write(crossing(one, ids)), other.store.write(crossing(other, ids[::-1]))
        )
        assert sorted(done) == sorted(ids)


async def test_many_starts_migrate_once(server: Postgres) -> None:
    """Workers of several replicas that start together on an empty database: it is migrated once, and all serve."""
    url = server.create()
    stores = [Store(url, [KEY]) for _ in range(6)]
    await asyncio.gather(*(store.start() for store in stores))
    for store in stores:
        await store.close()
    assert server.sql("SELECT version_num FROM alembic_version", url.rpartition("/")[2]) == newest()


HISTORY = f"""
INSERT INTO tickets SELECT 'T' || lpad(n::text, 23, 'x'), 1, md5(n::text) || md5(n::text), key_id,
    (ARRAY['used', 'expired', 'denied', 'revoked', 'withdrawn', 'pending', 'approved'])
        [CASE WHEN n % 100 < 2 THEN 6 + n % 100 ELSE 1 + n % 5 END],
    issuer, 'u' || n % 500, client, server, resource, environment, method, name, tool_digest, reasons, approvers,
    mask, min_approvers, uses, uses_left, NULL, created_at - 60 * n, expires_at - 60 * n, bond, shown, weight, NULL
    FROM tickets, generate_series(1, 20000) n;
INSERT INTO eligible SELECT id, 'group:{ISSUER}|payers' FROM tickets WHERE id LIKE 'T%';
INSERT INTO uses SELECT id, id, 'executed', 0, 'gone', created_at, created_at, created_at, NULL, NULL
    FROM tickets WHERE state = 'used' AND id LIKE 'T%';
INSERT INTO decisions SELECT id, id, 'approve', created_at, '' FROM tickets
    WHERE state IN ('used', 'approved') AND id LIKE 'T%';
"""


async def test_a_long_history_is_looked_through_by_nobody(server: Postgres) -> None:
    """A call, an act, a look, each queue and each turn of the sweep read what they need by an index, whoever asks."""
    url = server.create()
    name = url.rpartition("/")[2]
    async with bench(url) as it:
        ticket_id = await it.approved(effect({"amount": 1}))
        for statement in (*HISTORY.split(";")[:-1], "ANALYZE", "SELECT pg_stat_reset()"):
            server.sql(statement, name)
        it.clock.now += 1
        held = await it.held()  # the newest of all: what follows in a list stays sealed
        for who in (BOB, MALLORY, person("u7", groups=["others"]), replace(BOB, tenant="red")):
            for whose in Whose:
                for sieve in (Sieve(open=True, whose=whose), Sieve(State.PENDING, whose=whose)):
                    if who is BOB or sieve.open:
                        await it.desk.queue(who, sieve, limit=1)
        await it.desk.page(BOB, limit=1)
        for _ in range(8):  # as often as PostgreSQL plans a statement by its values, and more
            await it.desk.look(BOB, held.ticket.id)
            await it.desk.show(ALICE, held.ticket.id)
            with pytest.raises(TicketUnknown):
                await it.desk.show(MALLORY, held.ticket.id)
            await it.desk.act("justify", ALICE, held.ticket.id, comment="x")
        await it.desk.act("approve", BOB, held.ticket.id)
        use = await it.claimed()
        await it.desk.sent(use)
        await it.desk.finish(use, Run.EXECUTED)
        assert await forget(it.store, 10 * 365 * 86_400) == 0
        assert (await it.desk.look(BOB, held.ticket.id)).ticket["state"] == "used"
        assert (await it.desk.show(BOB, ticket_id))["state"] == "approved"
    gone = f"SELECT 1 FROM pg_stat_activity WHERE datname = '{name}' AND application_name = 'ostiary'"
    while server.sql(gone):  # noqa: ASYNC110 - the server tells nobody
        await asyncio.sleep(0.05)
    read = dict(  # the server counts what a connection did once it is closed
        line.split("|") for line in server.sql("SELECT relname, seq_tup_read FROM pg_stat_user_tables", name).split()
    )
    assert max(int(rows) for rows in read.values()) < 1_000, read


async def test_a_role_that_may_not_change_tables_serves(server: Postgres) -> None:
    """The grants of docs/operations.md are enough to serve, and not enough to migrate."""
    url = server.create("granted")
    server.sql("CREATE ROLE ostiary LOGIN PASSWORD 'canary'")
    theirs = server.url_of("granted", "ostiary", "canary")
    with pytest.raises(StoreUnavailable, match="permission denied"):
        await Store(theirs, [KEY]).start()
    await migrate(url)
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    (grants,) = re.findall(r"```sql\n(\s+GRANT.*?)```", page, re.DOTALL)
    for statement in grants.split(";")[:-1]:
        server.sql(statement, "granted")
    async with bench(theirs) as it:
        await it.approved()
        use = await it.claimed()
        await it.desk.sent(use)
        await it.desk.finish(use, Run.EXECUTED)
        await it.desk.sweep()
    with pytest.raises(RuntimeError, match="permission denied"):
        server.sql("SET ROLE ostiary; UPDATE alembic_version SET version_num = '9999'", "granted")


async def test_the_grants_are_given_again_after_a_migration(server: Postgres) -> None:
    """docs/operations.md says so: they hold for the tables that are there, and not for one that a revision makes."""
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    assert "run them again after each `migrate`" in page
    name = server.create().rpartition("/")[2]
    server.sql("CREATE ROLE later LOGIN PASSWORD 'canary'")
    server.sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO later", name)
    await migrate(server.url_of(name))
    with pytest.raises(StoreUnavailable, match="permission denied"):
        await Store(server.url_of(name, "later", "canary"), [KEY], migrate=False).start()


async def test_a_connection_begins_as_poolers_let_it(server: Postgres) -> None:
    """The first message names what PgBouncer follows and nothing else; the limits of time hold all the same."""
    first = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4))
        first.set_result(await reader.readexactly(size - 4))
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(StoreUnavailable):
            await Store(f"postgresql://x@127.0.0.1:{port}/x?sslmode=disable", [KEY]).start()
    words = first.result()[4:].rstrip(b"\0").split(b"\0")
    assert {b"user", b"database"} <= set(words[::2])
    assert set(words[::2]) <= {b"user", b"database", b"client_encoding", b"application_name", b"TimeZone"}
    async with desk_on(server) as it:

        async def limits(ledger: Ledger) -> list[str]:
            names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit")
            return [(await ledger.connection.execute(text(f"SHOW {name}"))).scalar_one() for name in names]

        assert await it.store.write(limits) == ["2s", "1500ms", "7s", "on"]


@pytest.fixture
def over_tls(certificate: Callable[[str], Any], tmp_path: Path) -> Iterator[tuple[Postgres, str]]:
    """A server with a certificate for `localhost` that it signed itself -> it, and the URL of a fresh database."""
    certificate("localhost")
    server = Postgres()
    try:
        own = server.data / "own.pem"
        own.write_bytes((tmp_path / "cert.pem").read_bytes())
        own.chmod(0o600)
        owner = server.data.stat()
        os.chown(own, owner.st_uid, owner.st_gid)
        server.start()
        for name, value in {"ssl_cert_file": "'own.pem'", "ssl_key_file": "'own.pem'", "ssl": "on"}.items():
            server.sql(f"ALTER SYSTEM SET {name} = {value}")
        server.sql("SELECT pg_reload_conf()")
        yield server, server.create()
    finally:
        server.remove()


async def test_a_server_is_who_it_shows_to_be(over_tls: tuple[Postgres, str], tmp_path: Path) -> None:
    """docs/operations.md's `sslmode=verify-full`: another name, another authority or no TLS at all is no database."""
    server, url = over_tls
    named, ca = url.replace("127.0.0.1", "localhost"), tmp_path / "cert.pem"
    async with bench(f"{named}?sslmode=verify-full&sslrootcert={ca}") as it:
        await it.approved()
        await it.claimed()
    with pytest.raises(StoreUnavailable, match="certificate is not valid for"):
        await Store(f"{url}?sslmode=verify-full&sslrootcert={ca}", [KEY]).start()
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        await Store(f"{named}?sslmode=verify-full&sslrootcert={certifi.where()}", [KEY]).start()
    server.sql("ALTER SYSTEM SET ssl = off")
    server.sql("SELECT pg_reload_conf()")
    plain = Store(f"{named}?sslmode=verify-full&sslrootcert={ca}", [KEY])
    with pytest.raises(StoreUnavailable, match="SSL"):
        await plain.start()


async def test_what_a_backup_brings_back_is_taken_back_by_the_page(server: Postgres) -> None:
    """docs/operations.md's statement: an approval that was used after the backup runs nothing a second time."""
    url = server.create()
    async with bench(url) as it:
        await it.approved()
        clock = it.clock
    server.sql(f'CREATE DATABASE restored TEMPLATE "{url.rpartition("/")[2]}"')
    async with bench(url, clock=clock) as it:
        await it.claimed()
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    (statement,) = re.findall(r"```sql\n(UPDATE tickets.*?)```", page, re.DOTALL)
    server.sql('CREATE DATABASE untouched TEMPLATE "restored"')
    server.sql(statement, "restored")
    async with bench(server.url_of("untouched"), clock=clock) as it:
        await it.claimed()  # without the statement it would
    async with bench(server.url_of("restored"), clock=clock) as it:
        assert (await it.held()).why == "pending"


@pytest.mark.parametrize("part", ["password", "query", "odd"])
async def test_credentials_are_in_no_error(server: Postgres, part: str, caplog: pytest.LogCaptureFixture) -> None:
    """Wrong, right or unreadable: what whoever starts the gateway reads names host and database alone."""
    url = server.create()
    address = url.rpartition("@")[2]
    given = {
        "password": f"postgresql://postgres:canary-secret@{address}",
        "query": f"postgresql://postgres@{address}?password=canary-secret",
        "odd": f"postgresql://postgres:canary:canary-secret/x@{address}",
    }[part]
    store = Store(given, [KEY])
    with pytest.raises(StoreUnavailable) as told:
        await store.start()
    assert "canary" not in str(told.value) + caplog.text
    assert part == "odd" or str(told.value).startswith(f"postgresql://{address}"), told.value
    assert part == "odd" or "password authentication failed" in str(told.value)


def test_a_remote_clock_goes_on_by_this_process_alone() -> None:
    """A host's clock that steps changes nothing; a slow answer counts as the later time, a quick one is kept."""
    steady = 100.0

    def monotonic() -> float:
        return steady

    clock = RemoteClock(monotonic)
    clock.hear(steady - 0.001, 5_000.0)
    assert clock() == pytest.approx(5_000.001)
    steady += 10
    assert clock() == pytest.approx(5_010.001)
    clock.hear(steady - 1.5, 5_009.0)  # it took 1.5 s, and tells nothing new
    assert clock() == pytest.approx(5_010.001)
    clock.hear(steady - 1.5, 9_000.0)  # the server's clock was set
    assert clock() == pytest.approx(9_001.5)


async def test_gateways_with_wrong_clocks_agree(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are the server's: what one gateway an hour behind opens, another one an hour ahead approves and uses."""
    url = server.create()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    stores = [Store(url, [KEY]) for _ in range(2)]
    for store in stores:
        await store.start()
    one, other = (Desk(store, Journal(), page_url=PAGE, issuers=[ISSUER]) for store in stores)
    terms = type(TERMS)(1, 60, TERMS.approvers, 1)
    held = await one.settle(effect(), claims={}, terms=terms, reasons=(), mask=())
    assert isinstance(held, Held)
    assert abs(held.ticket.created_at - real()) < 5
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    await other.act("approve", BOB, held.ticket.id)
    assert isinstance(await other.settle(effect(), claims={}, terms=terms, reasons=(), mask=()), Claimed)
    for store in stores:
        await store.close()
