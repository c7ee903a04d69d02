"""FRM-09 and FRM-10: what a client may cost in bytes and in time, measured in a server process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import statistics
import threading
import time
import zlib
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pytest

from gateway.door.framing import DoorLimits
from tests.edge.door import BODY, LIMITS, OpenDoor, head, open_door, post
from tests.support.http_raw import Address, Answer, RawClient

KIB, MIB = 1024, 1024 * 1024


def test_the_default_limits_are_those_of_the_requirements() -> None:
    """Heads end within 15 s, bodies within 30 s, whatever tests shorten."""
    limits = DoorLimits()
    assert limits.head_s <= 15 - 1
    assert limits.body_s <= 30 - 1
    assert (limits.head_bytes, limits.head_lines, limits.body_bytes) == (64 * KIB, 100, 4 * MIB)


@pytest.mark.parametrize("lines", [100 - 5, 100 - 4, 5000])
def test_header_lines_are_counted(door: OpenDoor, lines: int) -> None:
    """FRM-09: 100 lines pass, 101 and 5,000 are 431."""
    with RawClient(door.address) as client:
        answer = client.ask(post(*[b"X-%d: y" % n for n in range(lines)]))
        assert answer.status == (200 if lines <= 95 else 431)
        assert answer.closes == (answer.status == 431)
    assert door.reasons() == ([] if lines <= 95 else ["head_too_large"])


@pytest.mark.parametrize(("size", "status"), [(60 * KIB, 200), (64 * KIB, 431), (MIB, 431)])
def test_a_head_has_a_size(door: OpenDoor, size: int, status: int) -> None:
    """FRM-09: a header line of 60 KiB passes, beyond 64 KiB in all it is 431, and a megabyte is not kept."""
    with RawClient(door.address) as client:
        assert client.ask(post(b"X: " + b"y" * size)).status == status
    with RawClient(door.address) as client:
        assert client.ask(post()).status == 200


def test_an_endless_request_line_is_cut(door: OpenDoor) -> None:
    """FRM-09: a target without an end is too large as well."""
    with RawClient(door.address) as client:
        assert client.ask(b"POST /" + b"a" * MIB).status == 431


def chunked(data: bytes, size: int) -> Iterator[bytes]:
    """`data` as chunks of `size`, with their framing."""
    for at in range(0, len(data), size):
        part = data[at : at + size]
        yield b"%x\r\n%b\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


SMALL = dataclasses.replace(LIMITS, body_bytes=100_000, body_s=5.0)


@pytest.mark.parametrize("size", [100_000, 100_001])
def test_a_body_has_a_size(size: int) -> None:
    """FRM-09: the limit itself passes and one byte more is 413, by length and by chunks alike."""
    body = b"x" * size
    with open_door(SMALL) as door:
        with RawClient(door.address) as client:
            assert client.ask(post(body=body)).status == (200 if size == 100_000 else 413)
        with RawClient(door.address) as client:
            client.send(head(b"Transfer-Encoding: chunked") + b"\r\n\r\n")
            answer = client.send(b"".join(chunked(body, 7000))).read_answer()
            assert answer.status == (200 if size == 100_000 else 413)
            assert answer.closes == (answer.status == 413)
        assert [len(one) for _, one in door.corridor.served] == ([100_000] * 2 if size == 100_000 else [])


def test_chunk_framing_has_a_size() -> None:
    """FRM-09: extensions and trailers are no body, but they end too."""
    with open_door(SMALL) as door:
        for tail in (b"1;" + b"a" * 400_000, b"0\r\nX: " + b"a" * 400_000):
            with RawClient(door.address) as client:
                answer = client.ask(head(b"Transfer-Encoding: chunked") + b"\r\n\r\n" + tail)
                assert (answer.status, answer.closes) == (413, True)
        assert door.reasons() == ["body_too_large"] * 2


def test_a_body_shorter_than_its_length_is_late() -> None:
    """FRM-09, FRM-10: a lying length waits for what never comes, and ends in 408."""
    with open_door() as door, RawClient(door.address) as client:
        began = time.monotonic()
        answer = client.ask(head(b"Content-Length: 1000") + b"\r\n\r\n" + BODY)
        assert (answer.status, answer.closes) == (408, True)
        assert LIMITS.body_s - 0.1 < time.monotonic() - began < LIMITS.body_s + 1
        assert client.rest() == b""
        assert door.reasons() == ["request_timeout"]
        assert door.corridor.served == []


# Slow clients


def slow_head(address: Address) -> float:
    """One byte of a head at a time -> seconds until it ended."""
    with RawClient(address, timeout_s=60) as client:
        began = time.monotonic()
        assert client.drip(post() * 10, 0.1), "never cut off"
        client.rest()
        return time.monotonic() - began


def slow_body(address: Address) -> float:
    """One byte of a body at a time -> seconds until it ended."""
    with RawClient(address, timeout_s=60) as client:
        began = time.monotonic()
        client.send(head(b"Content-Length: 4000") + b"\r\n\r\n")
        assert client.drip(b"x" * 4000, 0.1), "never cut off"
        client.rest()
        return time.monotonic() - began


def slow_chunks(address: Address) -> float:
    """One byte of a chunk extension at a time -> seconds until it ended."""
    with RawClient(address, timeout_s=60) as client:
        began = time.monotonic()
        client.send(head(b"Transfer-Encoding: chunked") + b"\r\n\r\n1;")
        assert client.drip(b"x" * 4000, 0.1), "never cut off"
        client.rest()
        return time.monotonic() - began


def silent(address: Address) -> float:
    """A connection and then nothing -> seconds until it ended."""
    with RawClient(address, timeout_s=60) as client:
        began = time.monotonic()
        assert client.rest() == b"", "nothing was asked, nothing is answered"
        return time.monotonic() - began


def silent_body(address: Address) -> float:
    """A head and then nothing -> seconds until it ended."""
    with RawClient(address, timeout_s=60) as client:
        began = time.monotonic()
        assert client.ask(head(b"Content-Length: 10") + b"\r\n\r\n").status == 408
        return time.monotonic() - began


def silent_rest(address: Address) -> float:
    """A good request and then one byte a second of the next head -> seconds until that ended."""
    with RawClient(address, timeout_s=60) as client:
        assert client.ask(post()).status == 200
        began = time.monotonic()
        assert client.drip(post() * 10, 0.1), "never cut off"
        client.rest()
        return time.monotonic() - began


@pytest.mark.parametrize("attack", [slow_head, slow_body, slow_chunks, silent, silent_body, silent_rest])
def test_a_slow_client_is_cut_off(attack: object) -> None:
    """FRM-10: every kind of slowness has a deadline, and none of them can be pushed back by one more byte."""
    assert callable(attack)
    with open_door() as door:
        limit = LIMITS.body_s if attack in {slow_body, slow_chunks, silent_body} else LIMITS.head_s
        assert limit - 0.1 < attack(door.address) < limit + 1.5
        expected = [] if attack is silent else ["request_timeout"]
        assert door.reasons() == expected
        assert door.corridor.served == [] or attack is silent_rest


def test_an_idle_connection_is_closed() -> None:
    """A connection that rests after an answer is closed without a word."""
    with open_door() as door, RawClient(door.address) as client:
        assert client.ask(post()).status == 200
        assert LIMITS.idle_s - 0.2 < client.closed_within(LIMITS.idle_s + 2) < LIMITS.idle_s + 1.5
        assert client.rest() == b""
        assert door.reasons() == []


def test_one_connection_too_many_is_turned_away() -> None:
    """Memory is bounded by the number of connections as well: 503 that says when to come again."""
    with open_door(dataclasses.replace(LIMITS, connections=3)) as door, contextlib.ExitStack() as stack:
        held = [stack.enter_context(RawClient(door.address)) for _ in range(3)]
        for client in held:
            assert client.ask(post()).status == 200
        with RawClient(door.address) as client:
            answer = client.ask(post())
            assert (answer.status, answer.closes, answer.values("retry-after")) == (503, True, ["1"])
        assert door.reasons() == ["overloaded"]
        held[0].close()
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            with RawClient(door.address) as client:
                if client.ask(post()).status == 200:
                    return
        pytest.fail("the place of a connection that ended was not given free")


def good_latencies(address: Address, count: int) -> list[float]:
    """Seconds for each of `count` good requests on one connection."""
    taken = []
    with RawClient(address, timeout_s=10) as client:
        for _ in range(count):
            began = time.perf_counter()
            assert client.ask(post()).status == 200
            taken.append(time.perf_counter() - began)
    return taken


@pytest.mark.parametrize("slow", [50, pytest.param(1000, marks=pytest.mark.soak)])
def test_slow_connections_do_not_hurt_good_ones(slow: int) -> None:
    """FRM-10: a crowd that drips heads and bodies is cut off in time, and good traffic's p99 at most doubles."""
    limits = dataclasses.replace(LIMITS, head_s=3.0, body_s=4.0) if slow == 50 else DoorLimits()
    count = 400 if slow == 50 else 3000
    with served_elsewhere(limits) as (address, _):
        calm = statistics.quantiles(good_latencies(address, count), n=100)[98]
        crowd = [RawClient(address, timeout_s=60) for _ in range(slow)]
        began = time.monotonic()
        for at, client in enumerate(crowd):
            client.send(
                head() if at % 3 == 0 else head(b"Content-Length: 4000") + b"\r\n\r\n" if at % 3 == 1 else b""
            )
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(1.0):
                for at, client in enumerate(crowd):
                    if at % 3 != 2:
                        client.send(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            crowded = statistics.quantiles(good_latencies(address, count), n=100)[98]
            for at, client in enumerate(crowd):
                with contextlib.suppress(ConnectionError):
                    client.rest()
                ended = time.monotonic() - began
                assert ended < (limits.body_s if at % 3 == 1 or at else limits.head_s) + 5
        finally:
            stop.set()
            dripping.join()
            for client in crowd:
                client.close()
        # Beneath a few milliseconds, a shared machine's noise is larger than what is measured.
        assert crowded <= max(2 * calm, 0.02)


# Memory, in a process of its own


def _serve(pipe: Pipe, limits: DoorLimits) -> None:
    with open_door(limits) as door:
        pipe.send(door.address)
        while pipe.recv() == "memory":
            pipe.send((_rss(), _peak()))


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * KIB
    raise LookupError(field)


def _rss() -> int:
    return _status("VmRSS:")


def _peak() -> int:
    return _status("VmHWM:")


@dataclasses.dataclass
class Memory:
    """The memory of a served door's process, in bytes."""

    pipe: Pipe

    def peak(self) -> int:
        """The most that was ever resident."""
        self.pipe.send("memory")
        _, peak = self.pipe.recv()
        assert isinstance(peak, int)
        return peak


@contextlib.contextmanager
def served_elsewhere(limits: DoorLimits) -> Iterator[tuple[Address, Memory]]:
    """A door in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs, limits), daemon=True)
    process.start()
    try:
        assert ours.poll(30), "the server did not start"
        yield ours.recv(), Memory(ours)
    finally:
        ours.send("stop")
        process.join(15)
        if process.is_alive():
            process.kill()


def test_memory_is_bounded_by_the_limits() -> None:
    """FRM-08, FRM-09: bombs, lying lengths, endless chunks, long heads: the process grows by less than 8 MiB."""
    packer = zlib.compressobj(1, wbits=31)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(200)) + packer.flush()
    assert len(bomb) < MIB
    endless = head(b"Transfer-Encoding: chunked") + b"\r\n\r\n"
    attacks = {
        "a coded bomb": (post(b"Content-Encoding: gzip", body=bomb), 415),
        "an honest length": (head(b"Content-Length: 50000000") + b"\r\n\r\n" + b"x" * 20 * MIB, 413),
        "endless chunks": (endless + b"".join(chunked(b"x" * 20 * MIB, 60_000)), 413),
        "5,000 lines": (post(*[b"X-%d: y" % n for n in range(5000)]), 431),
        "a long line": (post(b"X: " + b"y" * 20 * MIB), 431),
        "a body before its token": (post(body=b"x" * 20 * MIB).replace(b"good", b"evil", 1), 401),
    }
    with served_elsewhere(dataclasses.replace(LIMITS, body_bytes=MIB, linger_s=0.2)) as (address, memory):
        for _ in range(50):
            _ask(address, post())
        before = memory.peak()
        for name, (data, status) in attacks.items():
            answer = _ask(address, data)
            assert answer.status == status, name
            assert memory.peak() - before < 8 * MIB, name
        assert _ask(address, post()).status == 200


def _ask(address: Address, data: bytes) -> Answer:
    with RawClient(address, timeout_s=20) as client:
        return client.ask(data)
