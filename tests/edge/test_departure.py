"""How a worker's connections end: each with an answer that says so, or rested, and none under its client's hands."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.contract.passage import Received, Reply
from gateway.serving.departure import Departure
from gateway.serving.listener import SETTLE_S, bind, keep_out
from tests.edge.door import LIMITS, OpenDoor, StubCorridor, open_door, post
from tests.support.http_raw import RawClient

DRAIN_S = 1.0


class House:
    """Whoever is told to end what goes on."""

    drained = 0

    def drain(self) -> None:
        """Count."""
        self.drained += 1


def depart(door: OpenDoor, drain_s: float, how: Callable[[Departure], None]) -> House:
    """Let the door's server leave; it has begun when this returns."""
    house, config = House(), door.server.config
    protocol: Any = config.http
    begun = threading.Event()

    def begin() -> None:
        how(Departure(house, door.server, protocol.watch, drain_s))
        begun.set()

    door.loop.call_soon_threadsafe(begin)
    assert begun.wait(10)
    return house


@contextlib.contextmanager
def leaving(
    how: Callable[[Departure], None], drain_s: float = DRAIN_S
) -> Iterator[tuple[OpenDoor, RawClient, House]]:
    """A door that leaves, and a connection that was served once and rests."""
    with open_door(dataclasses.replace(LIMITS, idle_s=30.0)) as door, RawClient(door.address) as client:
        answer = client.ask(post())
        assert (answer.status, answer.closes) == (200, False)
        yield door, client, depart(door, drain_s, how)


def accepts(door: OpenDoor) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        probe.settimeout(5)
        return probe.connect_ex(door.address) == 0


def ended(client: RawClient) -> bool:
    """Wait for the connection's end -> whether it was an orderly one."""
    client.socket.settimeout(10)
    return client.socket.recv(1) == b""


def test_a_resting_connection_is_served_once_more_and_told_that_it_ends() -> None:
    """OPS-01: a proxy that sends on a kept connection of a gateway that stops gets an answer, `Connection: close`."""
    with leaving(Departure.leave) as (_, client, house):
        assert house.drained == 1
        answer = client.ask(post())
        assert (answer.status, answer.closes) == (200, True)
        assert ended(client)


def test_a_resting_connection_is_closed_only_after_its_rest() -> None:
    """OPS-01: a proxy that lets go of idle connections earlier (`keepalive_timeout`) never meets a closed one."""
    began = time.monotonic()
    with leaving(Departure.leave) as (_, client, _house):
        assert ended(client)
        assert DRAIN_S - 0.05 <= time.monotonic() - began < DRAIN_S + 8


def test_who_comes_while_the_gateway_leaves_is_served() -> None:
    """OPS-01: traffic that arrives after readiness went is answered, each answer the last of its connection."""
    with leaving(Departure.leave) as (door, _, _house):
        for _ in range(3):
            with RawClient(door.address) as late:
                answer = late.ask(post())
                assert (answer.status, answer.closes) == (200, True)
        until = time.monotonic() + DRAIN_S + SETTLE_S + 8
        while not door.server.should_exit:
            assert time.monotonic() < until
            time.sleep(0.02)


def test_a_retired_worker_listens_no_more_and_is_gone_with_its_last_connection() -> None:
    """Others take what comes; the worker that is replaced answers what is here, and does not wait out its time."""
    began = time.monotonic()
    with leaving(Departure.retire, drain_s=60.0) as (door, client, _house):
        assert not door.server.servers[0].is_serving()
        answer = client.ask(post())
        assert (answer.status, answer.closes) == (200, True)
        while not door.server.should_exit:
            assert time.monotonic() - began < 10
            time.sleep(0.02)


def test_at_once_means_now() -> None:
    """Where nobody is waited for, what rests is closed; a second word of the kind hastens the first."""

    def both(departure: Departure) -> None:
        departure.leave()
        departure.leave_at_once()

    for how in (Departure.leave_at_once, both):
        with leaving(how, drain_s=60.0) as (door, client, house):
            assert house.drained == 1
            assert door.server.should_exit
            assert ended(client)


def test_an_answer_that_had_begun_leaves_its_connection_to_the_next_one() -> None:
    """A stream's head said nothing of an end: its connection rests once more, and says so with the next answer."""
    go = asyncio.Event()

    async def script(_: Received, __: bytes) -> Reply:
        async def chunks() -> Any:
            yield b"data: 1\n\n"
            await go.wait()
            yield b"data: 2\n\n"

        return Reply(200, ((b"content-type", b"text/event-stream"),), chunks=chunks())

    limits = dataclasses.replace(LIMITS, idle_s=30.0)
    with open_door(limits, StubCorridor(script)) as door, RawClient(door.address) as client:
        client.send(post())
        assert not client.read_head().closes
        assert b"1" in client.read_chunk()
        depart(door, 30.0, Departure.leave)
        door.loop.call_soon_threadsafe(go.set)
        while client.read_chunk():
            pass
        door.corridor.script = None
        answer = client.ask(post())
        assert (answer.status, answer.closes) == (200, True)


def test_an_answer_that_has_not_begun_says_that_it_is_the_last() -> None:
    """A call that runs while the gateway begins to leave ends its connection in words."""
    go = asyncio.Event()

    async def script(_: Received, __: bytes) -> Reply:
        await go.wait()
        return Reply(200, ((b"content-type", b"application/json"),), b"{}")

    with open_door(corridor=StubCorridor(script)) as door, RawClient(door.address) as client:
        client.send(post())
        until = time.monotonic() + 10
        while not door.corridor.served:
            assert time.monotonic() < until
            time.sleep(0.01)
        depart(door, 30.0, Departure.leave)
        door.loop.call_soon_threadsafe(go.set)
        assert client.read_head().closes


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_newcomers_are_kept_out_before_they_can_say_anything(host: str) -> None:
    """Who is in stays in and is heard; who comes later is refused once the socket is closed, and never connected."""
    listener = bind(host, 0, "listen")
    address = listener.getsockname()[:2]
    refused: list[type[BaseException]] = []

    def come_late() -> None:
        try:
            socket.create_connection(address, timeout=20).close()
        except OSError as error:
            refused.append(type(error))

    with socket.create_connection(address) as early:
        early.sendall(b"early")
        keep_out(listener)
        late = threading.Thread(target=come_late)
        late.start()
        inside, _ = listener.accept()
        listener.settimeout(SETTLE_S)
        with pytest.raises(TimeoutError):
            listener.accept()
        listener.close()
        late.join(30)
        with inside:
            assert inside.recv(10) == b"early"
            inside.sendall(b"heard")
            assert early.recv(10) == b"heard"
    assert refused == [ConnectionRefusedError]
