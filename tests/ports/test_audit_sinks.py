"""One contract over both sinks, a file and PostgreSQL: durable, chained, fenced, back by itself (AUD-06, AUD-07)."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from click.testing import CliRunner, Result

from gateway.audit.commands import audit
from gateway.audit.commits import GroupCommit
from gateway.audit.jsonl import JsonlSettings, JsonlSink
from gateway.audit.place import Place
from gateway.audit.port import AuditUnavailable
from gateway.audit.postgres import PostgresSettings, PostgresSink, close_orphans
from gateway.audit.segments import slot_path
from gateway.audit.tables import LOCKS, VERSION, connect, make_tables
from gateway.contract.chain import verify_chain
from tests.contract.walked import turned_away
from tests.ports.test_audit import decision, outcome
from tests.ports.test_audit_flood import note
from tests.support.postgres import Postgres


class Room(Protocol):
    """Where a sink's records lie."""

    def sink(self, **changed: Any) -> GroupCommit: ...

    def lines(self, writer: int = 0) -> list[bytes]: ...


class FileRoom:
    def __init__(self, file: Path) -> None:
        self.file = file

    def sink(self, **changed: Any) -> GroupCommit:
        return JsonlSink(JsonlSettings(self.file, **{"deadline_s": 20.0, **changed}))

    def lines(self, writer: int = 0) -> list[bytes]:
        return slot_path(self.file, writer).read_bytes().splitlines(keepends=True)


class TableRoom:
    def __init__(self, server: Postgres) -> None:
        self.server = server
        self.url = server.create()

    @property
    def database(self) -> str:
        return self.url.rpartition("/")[2]

    def sink(self, **changed: Any) -> GroupCommit:
        return PostgresSink(PostgresSettings(self.url, **{"deadline_s": 20.0, **changed}))

    def lines(self, writer: int = 0) -> list[bytes]:
        told = self.server.sql(
            f"SELECT encode(line, 'hex') FROM ostiary_audit WHERE writer = {writer} ORDER BY seq", self.database
        )
        return [bytes.fromhex(line) for line in told.split()]


@pytest.fixture(params=["file", "postgresql"])
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Room:
    if request.param == "file":
        return FileRoom(tmp_path / "audit.jsonl")
    return TableRoom(request.getfixturevalue("postgres"))


async def opened(room: Room, **changed: Any) -> GroupCommit:
    sink = room.sink(**changed)
    await sink.start()
    return sink


def records(room: Room, writer: int = 0) -> list[dict[str, Any]]:
    """The writer's records, once its chain is whole."""
    lines = room.lines(writer)
    assert verify_chain(lines, writer=writer).fault is None
    return [json.loads(line) for line in lines]


def decided(room: Room, writer: int = 0) -> list[str]:
    return [record["decision_id"][-2:] for record in records(room, writer) if record["kind"] == "decision"]


async def until(sink: GroupCommit, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not sink.healthy or sink.lag:
        assert time.monotonic() < end, sink.fault
        await asyncio.sleep(0.02)


async def test_what_is_acknowledged_is_there(room: Room) -> None:
    """AUD-07: when `append` returns another connection, or reader, finds the record; the chain is whole."""
    sink = await opened(room)
    await sink.append(decision(1))
    assert decided(room) == ["01"]
    sink.note(outcome(1))
    await sink.close()
    assert [record["kind"] for record in records(room)] == ["admin", "decision", "outcome", "admin"]
    assert [record["seq"] for record in records(room)] == [1, 2, 3, 4]


@pytest.mark.parametrize("harm", ["DISABLE TRIGGER ostiary_audit_only_grows", "DISABLE TRIGGER ALL"])
async def test_tables_that_can_be_changed_are_not_written_to(postgres: Postgres, harm: str) -> None:
    """AUD-05: whoever switched off what keeps the record from changes has to switch it on before the next start."""
    room = TableRoom(postgres)
    await (await opened(room)).close()
    postgres.sql(f"ALTER TABLE ostiary_audit {harm}", room.database)
    before = room.lines()
    with pytest.raises(AuditUnavailable, match="ostiary_audit can be changed"):
        await opened(room)
    assert room.lines() == before
    postgres.sql("ALTER TABLE ostiary_audit ENABLE TRIGGER ALL", room.database)
    await (await opened(room)).close()
    assert len(records(room)) > len(before)


async def test_callers_of_one_moment_share_a_commit(room: Room) -> None:
    """Group commit: fifty callers of one turn of the loop wait for one commit, in order."""
    sink = await opened(room)
    before = sink.commits
    await asyncio.gather(*(sink.append(decision(n)) for n in range(50)))
    assert sink.commits == before + 1
    await sink.close()
    assert decided(room) == [f"{n:02x}" for n in range(50)]


async def test_a_next_life_goes_on_and_ends_what_was_open(room: Room) -> None:
    """seq and prev go on over restarts; a decision without an end is `unknown`, once."""
    for n in range(3):
        sink = await opened(room)
        assert sink.writer == 0
        await sink.append(decision(n))
        await sink.close()
    ends = [record["decision_id"][-1] for record in records(room) if record["outcome"] == "unknown"]
    assert ends == ["0", "1"]


async def test_two_at_once_are_two_writers(room: Room) -> None:
    """AUD-06: a writer that lives is never shared; one that ended is claimed again."""
    first, second = await opened(room), await opened(room)
    assert (first.writer, second.writer) == (0, 1)
    with pytest.raises(AuditUnavailable, match="taken"):
        await opened(room, writer=0)
    await asyncio.gather(*(sink.append(decision(n)) for n in range(40) for sink in (first, second)))
    await first.close()
    again = await opened(room)
    assert again.writer == 0
    for sink in (second, again):
        await sink.close()
    assert decided(room, 0) == decided(room, 1) == [f"{n:02x}" for n in range(40)]


async def test_parallel_writers_give_whole_chains(room: Room) -> None:
    """AUD-06: four writers, a thousand records: every chain is whole, every record is there once."""
    sinks = [await opened(room) for _ in range(4)]

    async def call(n: int) -> None:
        await sinks[n % 4].append(decision(n))
        sinks[n % 4].note(outcome(n))

    for start in range(0, 500, 100):
        await asyncio.gather(*(call(n) for n in range(start, start + 100)))
    for sink in sinks:
        await sink.close()
    told = [record for writer in range(4) for record in records(room, writer)]
    for kind in ("decision", "outcome"):
        ids = [record["decision_id"] for record in told if record["kind"] == kind]
        assert sorted(ids) == [f"{n:032x}" for n in range(500)]


async def test_a_start_reads_back_to_the_last_mark(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long life is not read whole: marks name what is open, and what they name is closed all the same."""
    monkeypatch.setattr("gateway.audit.commits.MARK_EVERY", 50)
    sink = await opened(room)
    await sink.append(decision(255))
    for n in range(100):
        await sink.append(decision(n))
        sink.note(outcome(n))
    await sink.close()
    assert len([record for record in records(room) if record.get("act") == "mark"]) >= 2
    await (await opened(room)).close()
    assert [r["decision_id"][-2:] for r in records(room) if r["outcome"] == "unknown"] == ["ff"]


async def test_strangers_share_records_and_notes_are_bounded(room: Room) -> None:
    """The same bounds, whatever the record lies in."""
    sink = await opened(room, folded_beyond=20)
    for n in range(300):
        note(sink, turned_away(decision_id=f"{n:032x}"))
    await sink.close()
    found = [record for record in records(room) if record["kind"] == "refusal"]
    assert sum(record["count"] for record in found) == 300
    assert len(found) < 40


@pytest.fixture
def shared(postgres: Postgres) -> TableRoom:
    """A database on the process's server: the test may cut its connections, and those only."""
    return TableRoom(postgres)


@pytest.fixture(scope="module")
def mortal() -> Iterator[Postgres]:
    """A server that tests of this module may kill, stop and halt; each leaves it at work."""
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def own(mortal: Postgres) -> TableRoom:
    """A database on a server that may be killed."""
    return TableRoom(mortal)


async def refused(sink: GroupCommit, n: int) -> float:
    began = time.perf_counter()
    with pytest.raises(AuditUnavailable):
        await sink.append(decision(n))
    return time.perf_counter() - began


@pytest.mark.parametrize("how", ["killed", "stopped", "hung"])
async def test_a_database_that_goes_away_refuses_in_time_and_comes_back(own: TableRoom, how: str) -> None:
    """AUD-07: within 2 s nobody is told yes, later ones at once; when it is back service is, and nothing is lost."""
    sink = await opened(own, deadline_s=1.5)
    await sink.append(decision(1))
    server = own.server
    await asyncio.to_thread({"killed": server.kill, "stopped": server.stop, "hung": server.pause}[how])
    times = await asyncio.gather(*(refused(sink, n) for n in range(2, 20)))
    assert max(times) < 2.0
    assert not sink.healthy
    assert await refused(sink, 20) < 0.1
    sink.note(outcome(1))
    await asyncio.sleep(1)
    assert not sink.healthy
    await asyncio.to_thread(server.resume if how == "hung" else server.start)
    await until(sink)
    await sink.append(decision(0xAA))
    await sink.close()
    told = records(own)
    assert decided(own)[0] == "01"
    assert decided(own)[-1] == "aa"
    assert len(decided(own)) == len(set(decided(own)))
    assert {record.get("act") for record in told} >= {"audit_unavailable", "audit_recovered", "stopped"}
    assert [record["kind"] for record in told].count("outcome") == 1
    assert await asyncio.wait_for(_claims_again(own), 30)


async def _claims_again(own: TableRoom) -> bool:
    sink = await opened(own)
    await sink.close()
    return sink.writer == 0 and bool(records(own))


async def test_a_read_only_database_refuses_and_comes_back(shared: TableRoom) -> None:
    """AUD-07: a server that says no is an outage with its shared words, and is asked again."""
    sink = await opened(shared, deadline_s=1.5)
    await sink.append(decision(1))
    shared.server.sql(f'ALTER DATABASE "{shared.database}" SET default_transaction_read_only = on')
    shared.server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{shared.database}'")
    assert await refused(sink, 2) < 2.0
    assert await refused(sink, 3) < 0.1
    assert "25006" in sink.fault
    shared.server.sql(f'ALTER DATABASE "{shared.database}" RESET default_transaction_read_only')
    shared.server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{shared.database}'")
    await until(sink)
    await sink.append(decision(4))
    await sink.close()
    assert decided(shared) == ["01", "04"]


async def test_a_full_disk_of_the_database_is_told_in_its_words(shared: TableRoom) -> None:
    """AUD-07: what has no room (class 53) is refused at once and named, and written once there is room again."""
    sink = await opened(shared, deadline_s=1.5)
    await sink.append(decision(1))
    shared.server.sql(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION"
        " ''could not extend file: No space left on device'' USING ERRCODE = ''disk_full''; END';"
        " CREATE TRIGGER full_disk BEFORE INSERT ON ostiary_audit FOR EACH STATEMENT EXECUTE FUNCTION full_disk()",
        shared.database,
    )
    await refused(sink, 2)
    assert "53100: could not extend file: No space left on device" in sink.fault
    shared.server.sql("DROP TRIGGER full_disk ON ostiary_audit", shared.database)
    await until(sink)
    await sink.append(decision(3))
    await sink.close()
    assert decided(shared) == ["01", "03"]
    told = [one for one in records(shared) if one.get("act") == "audit_unavailable"]
    assert "53100" in told[0]["facts"]["why"]


async def test_a_lost_answer_is_no_second_record(shared: TableRoom) -> None:
    """Connections cut again and again, in the middle of commits: every record is there once, in one chain."""
    sink = await opened(shared)
    cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{shared.database}'"

    async def cut_them() -> None:
        for _ in range(8):
            await asyncio.sleep(0.1)
            await asyncio.to_thread(shared.server.sql, cut)

    cutting = asyncio.create_task(cut_them())
    n = 0
    while not cutting.done():
        await sink.append(decision(n % 256))
        n += 1
    await sink.close()
    assert decided(shared) == [f"{k % 256:02x}" for k in range(n)]


async def test_a_writer_that_was_taken_over_writes_no_more(postgres: Postgres) -> None:
    """AUD-06: a later claim fences an earlier one off, also where it still has its connection."""
    room = TableRoom(postgres)
    sink = await opened(room)
    await sink.append(decision(1))
    room.server.sql("UPDATE ostiary_audit_writers SET fence = fence + 1 WHERE writer = 0", room.database)
    with pytest.raises(AuditUnavailable, match="another process has become writer 0"):
        await sink.append(decision(2))
    assert not sink.healthy
    await sink.close()
    assert decided(room) == ["01"]


async def test_a_writer_that_died_is_claimed_by_the_next(shared: TableRoom) -> None:
    """Its lock goes with its connection; the claim waits whether it comes back, then closes what was open."""
    dead = await opened(shared)
    await dead.append(decision(7))
    vars(dead._scribe)["_task"].cancel()
    shared.server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{shared.database}'")
    began = time.monotonic()
    sink = await opened(shared)
    assert time.monotonic() - began >= 2
    assert sink.writer == 0
    await sink.close()
    assert [r["decision_id"][-1] for r in records(shared) if r["outcome"] == "unknown"] == ["7"]


async def test_the_record_only_grows(postgres: Postgres) -> None:
    """AUD-05: neither the gateway's role nor the owner changes, removes or empties; the role can't even try."""
    room = TableRoom(postgres)
    sink = await opened(room)
    await sink.append(decision(1))
    await sink.close()
    role = f"writer_{room.database}"
    postgres.sql(
        f"CREATE ROLE {role} LOGIN PASSWORD 'secret';"
        f"GRANT SELECT, INSERT ON ostiary_audit TO {role};"
        f"GRANT SELECT, INSERT, UPDATE ON ostiary_audit_writers TO {role};"
        f"GRANT SELECT ON ostiary_audit_version TO {role}",
        room.database,
    )
    limited = PostgresSink(PostgresSettings(postgres.url_of(room.database, role, "secret"), 20.0))
    await limited.start()
    await limited.append(decision(2))
    await limited.close()
    assert decided(room) == ["01", "02"]
    attempts = ("UPDATE ostiary_audit SET line = ''", "DELETE FROM ostiary_audit", "TRUNCATE ostiary_audit")
    for attempt in attempts:
        with pytest.raises(RuntimeError, match="the record only grows"):
            postgres.sql(attempt, room.database)
        with pytest.raises(RuntimeError, match="permission denied"):
            postgres.sql(f"SET ROLE {role}; {attempt}", room.database)
    assert decided(room) == ["01", "02"]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://x:hunter2@127.0.0.1:1/x", "ConnectionRefusedError"),
        ("postgresql://x:hun#ter2@127.0.0.1:1/x", "URL can't be read"),
    ],
)
async def test_a_database_that_is_not_there_is_named_without_its_password(url: str, why: str) -> None:
    """A start says where it did not get to, and nothing secret."""
    with pytest.raises(AuditUnavailable, match=why) as caught:
        await PostgresSink(PostgresSettings(url)).start()
    assert "hunter2" not in str(caught.value)
    assert "ter2" not in str(caught.value)


async def written(room: TableRoom) -> None:
    """Two writers' chains."""
    sinks = [await opened(room) for _ in range(2)]
    for n in range(6):
        for sink in sinks:
            await sink.append(decision(n))
            sink.note(outcome(n))
    for sink in sinks:
        await sink.close()


class House:
    def __init__(self, room: TableRoom) -> None:
        self.place = Place(Path("nowhere.jsonl"), room.url)

    def audit_place(self, _: Path) -> Place:
        return self.place


async def ask(room: TableRoom, *words: str) -> Result:
    def run() -> Result:
        return CliRunner().invoke(audit, [words[0], "--config", "x", *words[1:]], obj=House(room))

    return await asyncio.to_thread(run)


async def test_the_commands_read_the_database_like_files(postgres: Postgres, tmp_path: Path) -> None:
    """`search`, `tail`, `verify`, `checkpoint`, `export`: the same filter, the same parser, the same answers."""
    room = TableRoom(postgres)
    await written(room)
    found = await ask(room, "search", "--decision", f"{3:032x}", "--json", "--oldest-first")
    assert [json.loads(line)["kind"] for line in found.output.splitlines()].count("outcome") == 2
    newest = await ask(room, "search", "-n", "3", "--json")
    assert json.loads(newest.output.splitlines()[0])["act"] == "stopped"
    assert (await ask(room, "search", "--who", "nobody")).exit_code == 1
    tail = await ask(room, "tail", "-n", "5", "--json")
    assert len(tail.output.splitlines()) == 5
    whole = await ask(room, "verify")
    assert (whole.exit_code, whole.output.count("whole, 14 records")) == (0, 2)
    kept = tmp_path / "kept"
    assert (await ask(room, "checkpoint", "--output", str(kept))).exit_code == 0
    assert (await ask(room, "verify", "--checkpoints", str(kept))).exit_code == 0
    out = tmp_path / "evidence"
    assert (await ask(room, "export", "--kind", "outcome", "--out", str(out))).exit_code == 0
    assert CliRunner().invoke(audit, ["verify", "--file", str(out)]).exit_code == 0


async def test_what_the_gateways_role_could_insert_is_named_and_takes_no_memory(postgres: Postgres) -> None:
    """A made-up writer's number claims no other writers, and a line of any length is too long and not read."""
    room = TableRoom(postgres)
    await written(room)
    long = "INSERT INTO ostiary_audit SELECT {}, 1, false, convert_to(repeat('x', 64 << 20), 'UTF8')"
    postgres.sql(long.format(2**31 - 1), room.database)
    postgres.sql(long.format(-7), room.database)
    tracemalloc.start()
    try:
        done = await ask(room, "verify")
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (done.exit_code, done.output.count("whole, 14 records")) == (1, 2)
    assert done.output.count("the line is longer than") == 2
    assert len(done.output.splitlines()) == 5, "two of ours, two that are not, and that there were no checkpoints"
    assert used < 16 << 20
    assert (await ask(room, "search", "-n", "1")).exit_code == 0


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("UPDATE ostiary_audit SET line = replace(encode(line, 'escape'), 'alice', 'mallo')::bytea"
         " WHERE writer = 1 AND seq = 4", "altered"),
        ("DELETE FROM ostiary_audit WHERE writer = 1 AND seq = 4", "removed"),
        ("DELETE FROM ostiary_audit WHERE writer = 1 AND seq > 10", "tail_cut"),
        ("DELETE FROM ostiary_audit WHERE writer = 1", "file_missing"),
        ("UPDATE ostiary_audit SET writer = 2 WHERE writer = 0", "swapped"),
    ],
)  # fmt: skip
async def test_a_superusers_tampering_is_named(postgres: Postgres, tmp_path: Path, change: str, kind: str) -> None:
    """AUD-05, AUD-06: whoever may switch the trigger off is found by the chain and by what a second place kept."""
    room = TableRoom(postgres)
    await written(room)
    kept = tmp_path / "kept"
    assert (await ask(room, "checkpoint", "--output", str(kept))).exit_code == 0
    postgres.sql(f"SET session_replication_role = replica; {change}", room.database)
    result = await ask(room, "verify", "--json", "--checkpoints", str(kept))
    assert result.exit_code == 1, result.output
    told = [json.loads(line) for line in result.output.splitlines()]
    assert kind in {one["first_bad"]["kind"] for one in told if one["first_bad"]}


async def test_what_dead_writers_left_open_in_a_database_is_closed(postgres: Postgres) -> None:
    """A gateway with fewer workers than before leaves no decision without an end, here as well."""
    room = TableRoom(postgres)
    alive, dead = await opened(room), await opened(room)
    await dead.append(decision(9))
    scribe = vars(dead)["_scribe"]
    scribe._task.cancel()
    await scribe._drop()
    assert await close_orphans(room.url) == [1]
    assert await close_orphans(room.url) == []
    assert [r["decision_id"][-1] for r in records(room, 1) if r["outcome"] == "unknown"] == ["9"]
    await alive.close()


async def test_a_database_without_a_record_is_2(postgres: Postgres) -> None:
    """What can't be read is no whole record, and the URL's password is never printed."""
    room = TableRoom(postgres)
    result = await ask(room, "verify")
    assert (result.exit_code, "there is no record" in result.stderr) == (2, True)
    assert postgres.password not in result.stderr


WAITS = """
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


async def test_tables_that_another_writer_makes_meanwhile_are_found(postgres: Postgres) -> None:
    """Writers that start together on an empty database make its tables once, and whoever waited goes on with them."""
    url = postgres.create()
    first, second, watch = [await connect(url, 10) for _ in range(3)]
    waiting: asyncio.Task[None] | None = None
    try:
        async with first.transaction():
            await first.execute("SELECT pg_advisory_xact_lock($1, -1)", LOCKS)
            waiting = asyncio.create_task(make_tables(second))
            async with asyncio.timeout(30):
                while not await watch.fetchval(WAITS):  # noqa: ASYNC110 - what another process knows is asked for
                    await asyncio.sleep(0.01)
            await make_tables(first)
        async with asyncio.timeout(30):
            await waiting
        assert await second.fetchval("SELECT max(version) FROM ostiary_audit_version") == VERSION
    finally:
        if waiting is not None:
            waiting.cancel()
        for connection in (first, second, watch):
            connection.terminate()
