"""What a worker asks of its system: descriptors, word of dead peers, and its memory's return."""

from __future__ import annotations

import asyncio
import ctypes
import resource
import socket
import subprocess
import sys
import threading
from unittest.mock import AsyncMock, Mock

import pytest

from gateway.serving import worker
from gateway.serving.worker import (
    UNACKNOWLEDGED_S,
    WORTH_BYTES,
    Returns,
    notice_the_dead,
    use_all_descriptors,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these are Linux's")


def test_all_descriptors_that_are_granted_are_used() -> None:
    """The soft limit becomes the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        use_all_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_inherit_the_bound_for_what_is_not_acknowledged() -> None:
    """It is set once, on the listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        notice_the_dead(listener)
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                found = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert found == UNACKNOWLEDGED_S * 1000


PEAK = """
import asyncio
from gateway.serving import worker
from gateway.serving.worker import Returns, resident_bytes
worker.TRIM_EVERY_S = 0.0
async def main():
    returns = Returns()
    before = resident_bytes()
    peak = [bytes(3000) for _ in range(20_000)]
    stays = bytes(3000)
    at_peak = resident_bytes()
    del peak
    for _ in range(3):
        await returns.look()
    print(before, at_peak, resident_bytes(), len(stays))
asyncio.run(main())
"""


def test_memory_goes_back_after_a_peak() -> None:
    """What was freed below something that stays is returned to the system; not while it is in use, nor too often.

    In a process of its own: one that has had a peak before has room for another.
    """
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, check=True, timeout=60)
    before, at_peak, after, _ = map(int, done.stdout.split())
    assert at_peak > before + 4 * WORTH_BYTES
    assert after < before + 2 * WORTH_BYTES


FAULTS = """
import resource, sys
from gateway.serving.worker import keep_freed_memory, resident_bytes
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def call():
    body = [b"x" * size for size in (1_000_000, 2_000_000, 1_000_000) * 4]
    del body
if sys.argv[1] == "kept":
    keep_freed_memory()
call()
call()
begun = faults()
for _ in range(10):
    call()
print(faults() - begun)
before = resident_bytes()
large = b"x" * (17 << 20)
del large
print(resident_bytes() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library chooses for itself")
def test_large_calls_one_after_the_other_use_the_same_memory() -> None:
    """The memory of a call of a megabyte serves the next; what is beyond all that calls take goes back at once."""
    found = {}
    for kept in ("kept", "given back"):
        done = subprocess.run([sys.executable, "-c", FAULTS, kept], capture_output=True, check=True, timeout=60)
        found[kept], left = map(int, done.stdout.split())
        assert left < 1 << 20
    assert found["kept"] < found["given back"] / 10


async def test_memory_is_returned_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on while the C library tidies up."""
    monkeypatch.setattr(worker, "TRIM_EVERY_S", 0.0)
    begun, go = threading.Event(), threading.Event()

    def trim(_: int) -> None:
        begun.set()
        assert go.wait(30)

    returns = Returns()
    monkeypatch.setattr(returns, "_trim", trim)
    monkeypatch.setattr(returns, "_kept", -WORTH_BYTES)
    monkeypatch.setattr(returns, "_seen", 1 << 40)
    looking = asyncio.ensure_future(returns.look())
    async with asyncio.timeout(30):
        while not begun.is_set():  # noqa: ASYNC110 - a thread's event
            await asyncio.sleep(0.001)
        assert not looking.done()
        go.set()
        await looking


async def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no `malloc_trim`, nothing is looked at."""
    monkeypatch.setattr(worker, "TRIM_EVERY_S", 0.0)
    assert getattr(ctypes.CDLL(None), "malloc_trim", None) is None or Returns().works
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    returns = Returns()
    assert not returns.works
    await returns.look()


async def test_a_report_that_breaks_keeps_no_room_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits to be recorded is recorded as the worker ends, also where its figures can't be carried over."""
    for name in ("use_all_descriptors", "keep_freed_memory", "gc"):  # which are for the whole process
        monkeypatch.setattr(worker, name, Mock())
    house, server, pipe = Mock(drain_s=0.0), Mock(), Mock(broken=False)
    house.start, house.close = AsyncMock(), AsyncMock()
    server.serve = AsyncMock(side_effect=lambda sockets: sockets[0].close())
    house.server.return_value = server
    house.status.side_effect = OSError("no room for another series")
    listener = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(OSError, match="another series"):
        await worker.work(house, listener.detach(), pipe)
    house.start.assert_awaited_once()
    house.close.assert_awaited_once()
