"""Answers on the wire: streams as they come, the client's pace, its going away, and the comment on quiet streams."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from gateway.contract.passage import Received, Reply
from gateway.edge import Beat
from tests.edge.door import LIMITS, StubCorridor, head, open_door, post, relay
from tests.support.http_raw import RawClient

EVENTS = ((b"content-type", b"text/event-stream"),)
EVENT = b'data: {"jsonrpc":"2.0"}\n\n'


def streaming(
    make: Callable[[], AsyncIterator[bytes]], headers: tuple[tuple[bytes, bytes], ...] = EVENTS
) -> StubCorridor:
    """A corridor that answers with a stream."""

    async def script(_: Received, __: bytes) -> Reply:
        return Reply(200, headers, chunks=make())

    return StubCorridor(script)


def wait_until(condition: Callable[[], bool], limit_s: float = 10.0) -> float:
    """Seconds until `condition` holds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s, "it never came"
        time.sleep(0.001)
    return time.monotonic() - began


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_events_leave_as_they_come(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """The first event is out before the last is in, and the connection lives on after the end."""
    read = threading.Event()

    async def in_steps() -> AsyncIterator[bytes]:
        yield EVENT
        while not read.is_set():  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0.005)
        yield EVENT

    with (
        open_door(corridor=streaming(in_steps), new_loop=new_loop) as door,
        RawClient(door.address) as client,
    ):
        for _ in range(2):
            read.clear()
            answer = client.send(post()).read_head()
            assert (answer.status, answer.closes) == (200, False)
            assert client.read_chunk() == EVENT
            read.set()
            assert client.read_chunk() == EVENT
            assert client.read_chunk() == b""


def test_a_quiet_event_stream_says_that_it_is_open() -> None:
    """A comment after each quiet stretch, between events, and none once the stream has ended."""
    quiet = LIMITS.quiet_s
    with (
        open_door(corridor=streaming(lambda: relay(EVENT, EVENT, every_s=2.5 * quiet))) as door,
        RawClient(door.address) as client,
    ):
        began = time.monotonic()
        client.send(post()).read_head()
        chunks = []
        while chunk := client.read_chunk():
            chunks.append(chunk)
        first = chunks.index(EVENT)
        comments = [*chunks[:first], *chunks[first + 1 : -1]]
        assert chunks[-1] == EVENT
        assert min(first, len(chunks) - first - 2) >= 1, "one before each event"
        assert set(comments) == {b": keep-alive\n\n"}
        assert len(comments) <= (time.monotonic() - began) / quiet, "and none before it was quiet for so long"
        time.sleep(1.5 * quiet)
        assert client.send(post()).read_head().status == 200


async def test_a_client_that_does_not_read_is_told_once_that_its_stream_is_open() -> None:
    """A comment that waits for room is not joined by others, and is given up when the stream ends."""
    taken: list[object] = []

    async def send(message: object) -> None:
        taken.append(message)
        await asyncio.Event().wait()

    beat = Beat(send, 0.02)
    await asyncio.sleep(0.2)
    await beat.stop()
    assert len(taken) == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_busy_event_stream_carries_no_comments() -> None:
    """Events that come in time need no comment."""
    with (
        open_door(
            dataclasses.replace(LIMITS, quiet_s=1.0), streaming(lambda: relay(*[EVENT] * 13, every_s=0.1))
        ) as door,
        RawClient(door.address) as client,
    ):
        assert client.ask(post()).body == EVENT * 13


def test_a_json_stream_carries_no_comments() -> None:
    """A comment is a thing of event streams; in JSON it would be a fault."""
    json = ((b"content-type", b"application/json"),)
    corridor = streaming(lambda: relay(b"{", b"}", every_s=2 * LIMITS.quiet_s), json)
    with open_door(corridor=corridor) as door, RawClient(door.address) as client:
        assert client.ask(post()).body == b"{}"


def test_a_stream_is_not_read_ahead_of_its_client() -> None:
    """Backpressure: while the client does not read, no more is asked of upstream than the buffers hold."""
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 16_384

    with open_door(dataclasses.replace(LIMITS, stall_s=30.0), streaming(endless)) as door:
        client = RawClient(door.address)
        with client:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            client.send(post()).read_head()
            wait_until(lambda: taken > 4)
            time.sleep(0.5)
            first = taken
            time.sleep(0.5)
            assert taken == first, "upstream was read on"
            sockets = _in_kernel(client)
            assert first * 16_384 <= sockets + 64 * 1024 + 2 * 16_384
            for _ in range(3 * first):
                client.read_chunk()
            assert taken > first, "and reads on with the client"


def _in_kernel(client: RawClient) -> int:
    """What the two sockets' own buffers may hold (Linux doubles what is asked for, and autotunes the sender's)."""
    receive = client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    return receive + 4 * 1024 * 1024


def test_a_client_that_never_reads_is_cut_off() -> None:
    """A stalled client does not hold its stream for ever."""
    ended: list[float] = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65_536
        finally:
            ended.append(time.monotonic())

    limits = dataclasses.replace(LIMITS, stall_s=1.0)
    with open_door(limits, streaming(endless)) as door, RawClient(door.address) as client:
        client.send(post()).read_head()
        wait_until(lambda: bool(ended))


def test_a_client_that_reads_slowly_gets_all_of_a_large_answer() -> None:
    """Who reads on, however thin the line, is not cut for the size of the answer: it ran, and is all that tells."""
    size = 24_000_000

    async def script(_: Received, __: bytes) -> Reply:
        return Reply(200, ((b"content-type", b"application/json"),), b"x" * size)

    takes_s = 6.0  # a kernel asks for more in pieces of a megabyte or so
    limits = dataclasses.replace(LIMITS, stall_s=takes_s / 3, idle_s=60.0)
    with open_door(limits, StubCorridor(script)) as door, RawClient(door.address, 30) as client:
        client.send(post())
        began, got = time.monotonic(), 0
        while got < size:
            piece = client.socket.recv(1 << 18)
            assert piece, f"cut after {got} bytes"
            got += len(piece)
            time.sleep(max(0.0, began + takes_s * got / size - time.monotonic()))


@pytest.mark.parametrize("bounded", [False, True])
def test_what_all_slow_readers_hold_is_bounded(bounded: bool) -> None:
    """OPS-03: answers that nobody reads cost a bounded memory in all; who has read nothing for longest is cut."""
    size = 12_000_000

    async def script(_: Received, __: bytes) -> Reply:
        return Reply(200, ((b"content-type", b"application/json"),), b"x" * size)

    bound = 2 * size if bounded else 10 * size
    limits = dataclasses.replace(LIMITS, stall_s=30.0, unread_bytes=bound)
    with open_door(limits, StubCorridor(script)) as door, contextlib.ExitStack() as leaving:
        slow = []
        for _ in range(5):
            client = leaving.enter_context(RawClient(door.address))
            client.send(post())
            slow.append(client)
        time.sleep(1.2)  # two looks
        with RawClient(door.address) as neighbour:
            assert len(neighbour.ask(post()).body) == size, "who reads is not disturbed"
        whole = [_reads_all(client, size) for client in slow]
        assert whole[-1], "as long as the others are slower"
        assert not whole[0] if bounded else all(whole)


def _reads_all(client: RawClient, size: int) -> bool:
    """Whether the answer still comes whole."""
    try:
        return len(client.read_answer().body) == size
    except (EOFError, ConnectionResetError):
        return False


@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_the_client_going_away_cancels_a_call(how: str, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Closing is the cancellation: what is awaited for the client is cancelled at once (UPS-09: 1 s)."""
    waiting, ended = [], []

    async def script(_: Received, __: bytes) -> Reply:
        waiting.append(1)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append(time.monotonic())
            raise
        return Reply(500, ())

    with open_door(corridor=StubCorridor(script), new_loop=new_loop) as door:
        client = RawClient(door.address)
        client.send(post())
        wait_until(lambda: bool(waiting))
        began = time.monotonic()
        _go(client, how)
        wait_until(lambda: bool(ended))
        client.close()
        assert ended[0] - began < 1.0
        wait_until(lambda: door.corridor.cancelled == 1)
        door.corridor.script = None
        with RawClient(door.address) as another:
            assert another.ask(post()).status == 200


def _go(client: RawClient, how: str) -> None:
    if how == "half-close":
        client.socket.shutdown(socket.SHUT_WR)
        return
    if how == "reset":
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()


@pytest.mark.parametrize("reading", [True, False])
def test_the_client_going_away_ends_a_stream(reading: bool) -> None:
    """The generator that reads upstream is closed at once, whether it waits for upstream or for the client."""
    begun, ended = [], []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                begun.append(1)
                yield EVENT if reading else b"x" * 65_536
                if reading:
                    await asyncio.sleep(30)
        finally:
            ended.append(time.monotonic())

    with open_door(dataclasses.replace(LIMITS, stall_s=30.0), streaming(endless)) as door:
        client = RawClient(door.address)
        client.send(post()).read_head()
        wait_until(lambda: len(begun) >= 1)
        time.sleep(0.3)
        began = time.monotonic()
        _go(client, "reset")
        wait_until(lambda: bool(ended))
        assert ended[0] - began < 1.0


def test_early_bytes_do_not_hide_that_the_client_went_away() -> None:
    """A client that sends behind its request and leaves is seen to leave."""
    waiting, ended = [], []

    async def script(_: Received, __: bytes) -> Reply:
        waiting.append(1)
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(1)
        return Reply(500, ())

    with open_door(corridor=StubCorridor(script)) as door:
        client = RawClient(door.address)
        client.send(post() + post() * 2000)
        wait_until(lambda: bool(waiting))
        client.close()
        wait_until(lambda: bool(ended))


def test_a_finished_call_is_not_cancelled() -> None:
    """A client that leaves after its answer cancels nothing."""
    with open_door() as door:
        for _ in range(20):
            with RawClient(door.address) as client:
                assert client.ask(post()).status == 200
        time.sleep(0.1)
        assert door.corridor.cancelled == 0


def test_a_client_that_leaves_inside_its_body_cancels() -> None:
    """Nothing waits for the rest of a body whose sender is gone."""
    with open_door() as door:
        client = RawClient(door.address)
        client.send(head(b"Content-Length: 100") + b"\r\n\r\n{")
        wait_until(lambda: bool(door.corridor.walked))
        client.close()
        wait_until(lambda: door.corridor.cancelled == 1)
        assert door.corridor.served == []


def test_a_stream_that_breaks_does_not_look_whole() -> None:
    """An upstream that fails in mid-stream leaves an unfinished answer, never one with an end."""

    async def broken() -> AsyncIterator[bytes]:
        yield EVENT
        raise ConnectionResetError

    with open_door(corridor=streaming(broken)) as door, RawClient(door.address) as client:
        client.send(post()).read_head()
        assert client.read_chunk() == EVENT
        assert client.rest() == b""


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_lost_connection_is_freed_at_once(how: str) -> None:
    """OPS-05: it waits for no collector, nor does what it had not sent."""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65_536

    def connections() -> int:
        return sum(type(one).__name__ in {"BoundConnection", "Cycle"} for one in gc.get_objects())

    with open_door(LIMITS, streaming(endless)) as door:
        gc.collect()
        others = connections()
        gc.disable()
        try:
            clients = [RawClient(door.address).send(post()) for _ in range(5)]
            for client in clients:
                client.read_head()
            assert connections() > others
            for client in clients:
                _go(client, how)
            wait_until(lambda: connections() <= others)
        finally:
            gc.enable()
