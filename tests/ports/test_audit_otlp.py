"""Records as OpenTelemetry logs: a real receiver decodes them; nothing waits, nothing is lost without a word."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.audit.otlp import OtlpExport
from tests.ports.test_audit import decision, opened, outcome
from tests.support.otlp import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


def until(export: OtlpExport) -> None:
    end = time.monotonic() + 20
    while export.waiting:
        assert time.monotonic() < end
        time.sleep(0.02)


async def test_every_committed_record_arrives_as_it_is(receiver: Receiver, tmp_path: Path) -> None:
    """The body is the record's line, byte for byte, with its trace; nothing goes with it that it does not say."""
    file = tmp_path / "audit.jsonl"
    export = OtlpExport(receiver.url, {"x-key": "k"})
    export.start()
    sink = await opened(file)
    sink.export = export.take
    for n in range(20):
        await sink.append({**decision(n), "trace_id": "0af7651916cd43dd8448eb211c80319c"})
        sink.note(outcome(n))
    await sink.close()
    until(export)
    export.close()
    lines = file.read_text().splitlines()[1:]  # `started` was written before
    assert [record.body.string_value for record in receiver.records] == lines
    one = receiver.records[0]
    assert one.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert {attribute.key for attribute in one.attributes} == {"ostiary.kind", "ostiary.seq", "ostiary.writer"}
    assert set(receiver.headers) == {"k"}
    assert (export.lost, export.sent) == (0, len(lines))


def test_a_receiver_that_fails_delays_nobody_and_what_has_no_room_is_counted(receiver: Receiver) -> None:
    """Bounded, counted, in order; what waited arrives once the receiver is back."""
    receiver.status = 400
    export = OtlpExport(receiver.url, {}, max_waiting=100)
    export.start()
    lines = [b'{"kind":"admin","seq":%d,"writer":0}\n' % n for n in range(1, 151)]
    began = time.perf_counter()
    for line in lines:
        export.take([line])
    assert time.perf_counter() - began < 1
    assert (export.waiting, export.lost) == (100, 50)
    receiver.status = 200
    until(export)
    export.close()
    assert [record.body.string_value.encode() + b"\n" for record in receiver.records] == lines[:100]


def test_what_waits_at_the_end_is_counted() -> None:
    """A receiver that is not there holds up the end for a moment only, and nothing is lost without a word."""
    export = OtlpExport("http://127.0.0.1:9/v1/logs", {})
    export.start()
    export.take([b'{"kind":"admin"}\n'] * 7)
    began = time.monotonic()
    export.close()
    assert time.monotonic() - began < 4
    assert export.lost == 7


def test_a_receiver_that_takes_small_bodies_gets_all_the_same(receiver: Receiver) -> None:
    """A batch that is too large for the receiver blocks none of its records, nor those behind it."""
    receiver.largest = 3000
    export = OtlpExport(receiver.url, {})
    lines = [b'{"kind":"admin","seq":%d,"text":"%b","writer":0}\n' % (n, b"x" * 900) for n in range(1, 61)]
    export.take(lines)
    export.start()
    until(export)
    export.close()
    assert [record.body.string_value.encode() + b"\n" for record in receiver.records] == lines
    assert export.lost == 0


def test_what_waits_is_bounded_in_bytes() -> None:
    """Long records don't make the queue large: beyond 16 MiB they are counted as lost."""
    export = OtlpExport("http://127.0.0.1:9/v1/logs", {})
    line = b'{"kind":"admin","text":"%b"}\n' % (b"x" * 16_000)
    for _ in range(40):
        export.take([line] * 50)
    assert export.waiting * len(line) <= 16 * 1024 * 1024
    assert export.lost == 2000 - export.waiting
    assert export.waiting > 1000


async def test_a_receiver_that_hangs_holds_up_no_record_and_no_end(receiver: Receiver, tmp_path: Path) -> None:
    """Connections stand and nothing answers: records are committed as ever, the end comes within its seconds."""
    receiver.hang = threading.Event()
    export = OtlpExport(receiver.url, {})
    export.start()
    sink = await opened(tmp_path / "audit.jsonl")
    sink.export = export.take
    began = time.monotonic()
    for n in range(50):
        await sink.append(decision(n))
    await sink.close()
    assert time.monotonic() - began < 10
    began = time.monotonic()
    export.close()
    assert time.monotonic() - began < 4
    assert export.lost == 51
    receiver.hang.set()
