"""Log lines: one JSON object each, escaped, never in a call's way, none lost at exit (rows AUD-02, AUD-04)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway import logs
from gateway.logs import Outlet, RequestLog, set_up_logs


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe: (reading end, writing end)."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    yield readable, writable
    os.close(readable)
    os.close(writable)


def read(fd: int) -> bytes:
    found = b""
    while True:
        try:
            data = os.read(fd, 1 << 20)
        except BlockingIOError:
            return found
        if not data:
            return found
        found += data


@pytest.fixture
def lines(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """structlog and the standard library, set up to write into a pipe; calling it reads the events."""
    monkeypatch.setattr(logs, "_outlet", Outlet(pipe[1]))
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    set_up_logs()
    yield lambda: [json.loads(line) for line in read(pipe[0]).splitlines()]
    structlog.reset_defaults()
    root.handlers[:], root.level = before


async def test_one_turns_lines_leave_in_one_write(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said in one turn of the loop costs one write, in order, and is out in the next turn."""
    writes: list[bytes] = []
    real = os.write

    def write(fd: int, data: bytes) -> int:
        writes.append(data)
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    outlet = Outlet(pipe[1])
    for n in range(20):
        outlet.add(b"%d" % n)
    assert writes == []
    await asyncio.sleep(0)
    assert writes == [b"".join(b"%d\n" % n for n in range(20))]


async def test_a_threads_line_leaves_with_the_turn_that_is_under_way(pipe: tuple[int, int]) -> None:
    """A line of another thread waits for no loop that has ended, and for a running one no longer than its turn."""
    outlet = Outlet(pipe[1])

    def say_at_the_end_of_a_loop() -> None:
        loop = asyncio.new_event_loop()
        loop.call_soon(loop.stop)
        loop.call_soon(outlet.add, b"one")
        loop.run_forever()  # and never again: the turn that was to write the line does not come
        loop.close()

    await asyncio.to_thread(say_at_the_end_of_a_loop)
    assert read(pipe[0]) == b""
    await asyncio.to_thread(outlet.add, b"two")
    assert read(pipe[0]) == b"one\ntwo\n"
    outlet.add(b"three")
    await asyncio.to_thread(outlet.add, b"four")
    await asyncio.sleep(0)
    assert read(pipe[0]) == b"three\nfour\n"


async def test_a_stalled_reader_costs_lines_and_never_time(pipe: tuple[int, int]) -> None:
    """Nobody reads: adding never waits, memory stays bounded, the loss is counted, and told once there is room."""
    outlet = Outlet(pipe[1], max_waiting=200_000)
    line = b"x" * 999
    began = time.monotonic()
    for n in range(1000):
        outlet.add(line)
        if n % 100 == 0:
            await asyncio.sleep(0)
    assert time.monotonic() - began < 2
    lost = outlet.lost
    assert 500 < lost < 900
    out = b""
    for _ in range(200):
        await asyncio.sleep(0.02)
        out += read(pipe[0])
        if b"log_lines_lost" in out:
            break
    found = out.splitlines()
    assert json.loads(found.pop())["lost"] == lost
    assert found == [line] * (1000 - lost), "what was not lost is whole and in order"


async def test_a_reader_that_is_gone_breaks_nothing() -> None:
    """A broken pipe is counted; no call sees it."""
    readable, writable = os.pipe()
    outlet = Outlet(writable)
    os.close(readable)
    outlet.add(b"one")
    await asyncio.sleep(0)
    assert outlet.lost == 1
    os.close(writable)


def test_a_line_longer_than_the_pipe_takes_at_once_comes_whole(pipe: tuple[int, int]) -> None:
    """Long lines go in pieces; without a loop they go at once."""
    outlet = Outlet(pipe[1])
    outlet.add(b"y" * 20_000)
    assert read(pipe[0]) == b"y" * 20_000 + b"\n"


def test_nothing_is_lost_at_exit(tmp_path: Path) -> None:
    """Lines of the loop's last turn, which no later turn writes, are written by the end of the process."""
    program = (
        "import asyncio\nfrom gateway.logs import RequestLog, set_up_logs\nset_up_logs()\n"
        "async def main():\n    for n in range(5000): RequestLog().write({'n': n})\n"
        "    asyncio.get_running_loop().stop()\n    await asyncio.sleep(9)\n"
        "try:\n    asyncio.run(main())\nexcept RuntimeError:\n    pass\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)
    assert [json.loads(line)["n"] for line in done.stdout.splitlines()] == list(range(5000))


def test_the_canonical_line_is_one_object_of_the_records_fields(pipe: tuple[int, int]) -> None:
    """The request's line has its own name, level and time, and the projection's fields; nothing else."""
    RequestLog(Outlet(pipe[1])).write({"decision_id": "d", "status": 200, "name": "a\\nb"})
    (line,) = read(pipe[0]).splitlines()
    found = json.loads(line)
    stamp = found.pop("timestamp")
    assert len(stamp) == len("2026-07-28T00:00:00.000000Z")
    assert found == {"event": "request", "level": "info", "decision_id": "d", "status": 200, "name": "a\\nb"}


HOSTILE = "a\r\nb\x1b[31m\u2028\u202e\x9b\ud800é"


def test_whatever_is_logged_is_one_line_of_ascii(lines: Any, pipe: tuple[int, int]) -> None:
    """AUD-04: line breaks, ANSI, separators, bidi and lone surrogates of any text are escaped."""
    structlog.get_logger("x").warning("odd", text=HOSTILE, thing=object)
    raw = read(pipe[0])
    assert raw.isascii()
    assert raw.count(b"\n") == 1
    assert b"\x1b" not in raw
    assert json.loads(raw)["text"] == HOSTILE


def test_the_standard_librarys_warnings_come_the_same_way(lines: Any) -> None:
    """uvicorn's and asyncio's warnings are events like ours; their informative chatter is not."""
    logging.getLogger("uvicorn.error").info("chatter")
    logging.getLogger("uvicorn.error").warning("Exceeded concurrency limit of %d.", 7)
    try:
        raise ValueError("canary")
    except ValueError as error:
        logging.getLogger("asyncio").error("Task failed\nfuture: <canary>", exc_info=error)  # noqa: TRY400 - as asyncio does
    structlog.get_logger("ours").info("ours")
    first, second, third = lines()
    assert (first["event"], first["level"], first["logger"]) == (
        "Exceeded concurrency limit of 7.", "warning", "uvicorn.error",
    )  # fmt: skip
    assert (second["event"], second["level"], second["error"]) == ("Task failed", "error", "ValueError")
    assert "canary" not in json.dumps(second)
    assert third["event"] == "ours"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("code: %s, reason: %s", 503, "canary"), "code: 503, reason: …"),
        (("%s while %s, again in %.2fs", ValueError("canary"), "canary", 1.5), "ValueError while …, again in 1.50s"),
        (("%(at)s of %(n)d", {"at": "canary", "n": 7}), "… of 7"),
        (("%d", "canary"), "%d"),
        (("100% sure",), "100% sure"),
    ],
)
def test_others_libraries_quote_nobody(lines: Any, given: tuple[Any, ...], told: str) -> None:
    """AUD-02: what a library fills into its message can be a receiver's words, or an address with a secret in it."""
    with contextlib.suppress(TypeError):  # a captured log formats it, too
        logging.getLogger("opentelemetry").error(*given)
    (line,) = lines()
    assert line["event"] == told


def test_an_exceptions_text_is_not_told(lines: Any) -> None:
    """AUD-02: an exception's text can hold a caller's data: its type and places are enough."""
    try:
        raise ValueError("canary")
    except ValueError as error:
        structlog.get_logger("x").error("broke", exc_info=error)
        structlog.get_logger("x").exception("broke again")
    events = lines()
    assert len(events) == 2
    for event in events:
        assert event["error"] == "ValueError"
        assert any("test_logs.py" in frame for frame in event["frames"])
        assert "canary" not in json.dumps(event)
