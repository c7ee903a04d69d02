"""A look into the record: it begins where its window ends, reads backwards, ends at its bound, and can go on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.audit.looking import Budget, Ended, Found, look, read_cursor, shifted, write_cursor
from gateway.audit.postgres import PostgresSettings, PostgresSink
from gateway.audit.query import Query, read_record
from gateway.audit.reading import Tables
from gateway.audit.seeking import end_of_older, seq_in, time_in
from gateway.audit.segments import list_chains, open_chain
from gateway.audit.trail import Chain, ChainOfFiles, ChainOfTable
from gateway.contract.chain import ZERO, chain
from gateway.contract.record import admin_record, approval_record
from tests.contract.walked import REDACTOR, transition
from tests.ports.test_audit import decision, outcome, refusal
from tests.ports.test_audit_search import written
from tests.support.postgres import Postgres

BEGIN = datetime(2026, 11, 30, 10, tzinfo=UTC)


def moment(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def records(*seconds: float) -> list[dict[str, Any]]:
    """Decisions at these times, numbered by them."""
    return [{**decision(n), "time": moment(second)} for n, second in enumerate(seconds)]


def chains(file: Path) -> list[Chain]:
    return [ChainOfFiles(path, writer) for writer, path in list_chains(file)]


def budget(left: int = 1 << 30, clock: Callable[[], float] = lambda: 0.0) -> Budget:
    return Budget(left, 1.0, clock)


def found(of: list[Chain], since: float, until: float, *, limit: int = 1000, **more: Any) -> Found:
    query = Query(since=moment(since), until=moment(until))
    more.setdefault("budget", budget())
    return look(of, query.read, since=moment(since), until=moment(until), limit=limit, **more)


def seconds(one: Found) -> list[float]:
    return [(datetime.fromisoformat(record["time"]) - BEGIN).total_seconds() for record in one.records]


@pytest.mark.parametrize(
    "record",
    [
        decision(), outcome(), refusal(), approval_record(transition(), REDACTOR),
        admin_record("mark", facts={"seq": 9, "time": "2020-01-01T00:00:00.000Z", ',"seq":7,': ',"time":"x"'}),
    ],
    ids=lambda record: record["kind"],
)  # fmt: skip
def test_number_and_time_are_the_records_own(record: dict[str, Any]) -> None:
    """Read without parsing, whatever else in the line is called so."""
    _, line = chain(ZERO, {**record, "seq": 12, "prev": ZERO, "writer": 3, "time": moment(5)})
    assert (seq_in(line), time_in(line)) == (12, moment(5))
    assert (seq_in(b'{"a":1}\n'), time_in(b'{"a":1}\n')) == (0, "")


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.integers(0, 3000), max_size=60), edge=st.integers(-1, 61))
def test_where_to_begin_is_found_by_halving(
    tmp_path_factory: pytest.TempPathFactory, lines: list[int], edge: int
) -> None:
    """The offset is that of the first newer line, whatever their lengths; the end of the file where none is."""
    file = tmp_path_factory.mktemp("x") / "lines"
    texts = [b"%d %s\n" % (n, b"x" * length) for n, length in enumerate(lines)]
    file.write_bytes(b"".join(texts))
    fd = open_chain(file)
    try:
        offset = end_of_older(fd, lambda line: int(line.split()[0]) >= edge)
    finally:
        os.close(fd)
    assert offset == sum(len(text) for text in texts[: max(edge, 0)])


def test_a_window_is_held_to_the_millisecond(tmp_path: Path) -> None:
    """`since` is in it and `until` is not, over rotated files and writers, newest first."""
    file = tmp_path / "audit.jsonl"
    written(file, records(*range(0, 40, 2)), cut=(5, 11))
    written(file, records(*range(1, 41, 2)), writer=1, cut=(7,))
    whole = found(chains(file), 10, 30)
    assert seconds(whole) == [float(n) for n in range(29, 9, -1)]
    assert (whole.ended, whole.unread) == (Ended.WINDOW, [])


@pytest.mark.parametrize("limit", [1, 3, 7, 39])
def test_going_on_meets_each_record_once(tmp_path: Path, limit: int) -> None:
    """By count and by bytes, through the text of an address; what is written meanwhile does not come in between."""
    file = tmp_path / "audit.jsonl"
    written(file, records(*range(0, 40, 2)), cut=(5, 11))
    written(file, records(*range(1, 41, 2)), writer=1)
    for bound in ("limit", "bytes"):
        met: list[float] = []
        places, ended = "", Ended.BOUND
        while ended is not Ended.WINDOW:
            more: dict[str, Any] = {"limit": limit} if bound == "limit" else {"budget": budget(limit * 900)}
            one = found(chains(file), 0, 100, places=read_cursor(places), **more)
            places, ended = write_cursor(one.places), one.ended
            met += seconds(one)
        assert met == [float(n) for n in range(39, -1, -1)]


def test_time_ends_a_look_as_well(tmp_path: Path) -> None:
    """A slow disk is not waited for: what was read by then is there, and where to go on."""
    file = tmp_path / "audit.jsonl"
    written(file, records(*range(200)))
    ticks = iter(range(1000))
    one = found(chains(file), 0, 1000, budget=budget(clock=lambda: next(ticks) * 0.4))
    assert one.ended is Ended.BOUND
    assert 32 <= len(one.records) < 200
    assert seconds(found(chains(file), 0, 1000, places=one.places))[0] == seconds(one)[-1] - 1


def test_neither_a_clock_nor_a_stray_record_hides_others(tmp_path: Path) -> None:
    """A clock that was set back by minutes, a record of another century, lines that are none: the rest is found."""
    file = tmp_path / "audit.jsonl"
    back = records(0, 60, 120, 180, 20, 80, 140)
    back[3]["time"] = "2001-01-01T00:00:00.000Z"
    written(file, back)
    file.write_bytes(file.read_bytes() + b"no record\n")
    assert sorted(seconds(found(chains(file), 50, 150))) == [60, 80, 120, 140]


def test_shifted_times_are_written_as_the_record_does() -> None:
    """To the millisecond, in UTC; what is no time, or beyond all times, stays."""
    assert shifted(moment(0), 1.5) == moment(1.5)
    assert shifted("0001-01-01T00:00:00.000Z", -10) == "0001-01-01T00:00:00.000Z"
    assert shifted("x", 1) == "x"


@pytest.mark.parametrize("text", ["x", "0", "0-", "-1", "0-1.", "0-1,1-2", "0-1" + ".0-1" * 300, "1234567-1"])
def test_what_is_no_place_is_refused(text: str) -> None:
    """A cursor comes from an address, that is from anybody."""
    assert read_cursor("0-12.3-4") == {0: 12, 3: 4}
    with pytest.raises(ValueError, match="no place"):
        read_cursor(text)


async def test_tables_are_looked_into_like_files(postgres: Postgres, tmp_path: Path) -> None:
    """The same window, bound and way on, over PostgreSQL and over files of the same lines."""
    url = postgres.create()
    for writer in range(2):
        sink = PostgresSink(PostgresSettings(url, deadline_s=20.0, writer=writer))
        await sink.start()
        for n in range(60):
            await sink.append(decision(100 * writer + n))
        await sink.close()

    def compare() -> None:
        with closing(Tables(url)) as tables:
            of: list[Chain] = [ChainOfTable(tables, writer) for writer in tables.writers()]
            file = tmp_path / "audit.jsonl"
            for one in of:
                path = file if not one.writer else file.with_name(f"{file.name}.{one.writer}")
                path.write_bytes(b"".join(one.lines(newest_first=False)))
            times = sorted(read_record(line)["time"] for one in of for line in one.lines(newest_first=False))
            for since, until, bound in ((0, -1, 1 << 30), (20, 90, 1 << 30), (0, -1, 20_000)):
                met: list[list[bytes]] = []
                for those in (of, chains(file)):
                    window = {"since": times[since], "until": times[until]}
                    query = Query(kind="decision", **window)
                    one_look = look(those, query.read, budget(bound), limit=1000, **window)
                    rest = look(those, query.read, budget(), limit=1000, places=one_look.places, **window)
                    met.append([*one_look.lines, *rest.lines])
                assert met[0] == met[1]
                assert len(met[0]) == len(set(met[0])) > 40
                assert all(orjson.loads(line)["kind"] == "decision" for line in met[0])

    await asyncio.to_thread(compare)
