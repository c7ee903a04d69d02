"""Answers that leave together: in their order, soon, and each whatever becomes of the others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.contract.passage import Received, Reply
from gateway.door.post import MOST, Post
from tests.edge.door import BODY, OpenDoor, StubCorridor, open_door, post
from tests.support.http_raw import RawClient

OK = (b"content-type", b"application/json")


class Paper(asyncio.Transport):
    """Writes down on a page that all share."""

    def __init__(self, page: list[bytes], *, closing: bool = False, broken: bool = False) -> None:
        super().__init__()
        self._page, self._closing, self._broken = page, closing, broken

    def is_closing(self) -> bool:
        """As told."""
        return self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """One write."""
        if self._broken:
            raise RuntimeError("broken")
        self._page.append(bytes(data))

    def abort(self) -> None:
        """Cut."""
        self._closing = True


async def test_answers_of_one_turn_leave_at_its_end_and_in_their_order() -> None:
    """An answer waits for those that end in the same turn of the loop, and for no other turn."""
    page: list[bytes] = []
    loop, outgoing = asyncio.get_running_loop(), Post()
    for text in (b"1", b"2", b"3"):
        outgoing.add(loop, Paper(page), text)
    assert page == []
    await asyncio.sleep(0)
    assert page == [b"1", b"2", b"3"]
    outgoing.add(loop, Paper(page), b"4")
    await asyncio.sleep(0)
    assert page[3:] == [b"4"]


async def test_no_answer_waits_for_many() -> None:
    """`MOST` answers leave at once: what waits has a bound, and so has how long it does."""
    page: list[bytes] = []
    loop, outgoing = asyncio.get_running_loop(), Post()
    for _ in range(MOST):
        assert page == []
        outgoing.add(loop, Paper(page), b"answer")
    assert (len(page), len(outgoing)) == (MOST, 0)


async def test_who_has_gone_or_breaks_costs_no_other_its_answer() -> None:
    """One connection's end is nobody else's: the others' answers leave all the same."""
    page: list[bytes] = []
    loop, outgoing = asyncio.get_running_loop(), Post()
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    broken = Paper(page, broken=True)
    for transport in (Paper(page), Paper(page, closing=True), broken, Paper(page)):
        outgoing.add(loop, transport, b"answer")
    await asyncio.sleep(0)
    assert page == [b"answer", b"answer"]
    assert broken.is_closing(), "whoever is there would wait for the answer"
    assert [str(one["exception"]) for one in told] == ["broken"]


async def test_who_sends_others_answers_on_the_way_does_not_fail_by_them() -> None:
    """Whoever writes next, or is the last of `MOST`, has its own answer sent, whatever became of those before it."""
    page: list[bytes] = []
    loop, outgoing = asyncio.get_running_loop(), Post()
    loop.set_exception_handler(lambda *_: None)
    outgoing.add(loop, Paper(page, broken=True), b"answer")
    outgoing.leave(loop)
    for transport in (Paper(page, broken=True), *(Paper(page) for _ in range(MOST - 1))):
        outgoing.add(loop, transport, b"answer")
    assert (len(page), len(outgoing)) == (MOST - 1, 0)


@contextlib.contextmanager
def two_answered_in_one_turn(act: Callable[[Any], None]) -> Iterator[tuple[OpenDoor, RawClient, RawClient]]:
    """Two requests end in one turn; `act` is done to each one's connection after that and before they are written."""
    here, both = [0], asyncio.Event()
    waited: list[int] = []

    async def script(_received: Received, _body: bytes) -> Reply:
        here[0] += 1
        if here[0] == 2:
            both.set()
        await both.wait()
        if here[0] == 2:
            here[0] = 0
            asyncio.get_running_loop().call_soon(late)
        return Reply(200, (OK,), b'{"served":true}')

    def late() -> None:
        protocol: Any = opened.server.config.http
        waited.append(len(protocol.outgoing))
        for connection in list(protocol.watch.connections):
            act(connection)

    with (
        open_door(corridor=StubCorridor(script)) as opened,
        RawClient(opened.address) as one,
        RawClient(opened.address) as other,
    ):
        one.send(post())
        other.send(post())
        yield opened, one, other
    assert waited == [2]


def test_two_answers_of_one_turn_come_both_and_their_connections_go_on() -> None:
    """What waited for another is a whole answer, and the connection is served on."""
    with two_answered_in_one_turn(lambda _: None) as (opened, one, other):
        for client in (one, other):
            assert client.read_answer().json() == {"served": True}
        opened.corridor.script = None
        for client in (one, other):
            assert client.ask(post()).status == 200


@pytest.mark.parametrize("act", [lambda it: it.part(), lambda it: it.shutdown()])
def test_a_connection_that_ends_has_its_answer_before(act: Callable[[Any], None]) -> None:
    """Whatever ends a connection in an orderly way comes behind the answer that was ready for it."""
    with two_answered_in_one_turn(act) as (_, one, other):
        for client in (one, other):
            assert client.read_answer().json() == {"served": True}
            assert client.rest() == b""


def test_a_refusal_of_what_follows_comes_behind_the_answer() -> None:
    """Bytes that come before an answer is written are answered after it: no reply is taken for another's (FRM-01)."""
    with two_answered_in_one_turn(lambda it: it.data_received(b"no request\r\n\r\n")) as (_, one, other):
        for client in (one, other):
            assert client.read_answer().json() == {"served": True}
            assert client.read_answer().status == 400


def test_an_answer_for_who_is_cut_is_dropped() -> None:
    """A connection that was cut gets nothing more, and the door serves on."""
    with two_answered_in_one_turn(lambda it: it.cut()) as (opened, one, other):
        for client in (one, other):
            with pytest.raises((EOFError, ConnectionError)):
                client.read_answer()
        opened.corridor.script = None
        with RawClient(opened.address) as third:
            assert third.ask(post()).status == 200


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "half-closes"])
def test_who_only_ends_its_sending_has_its_answer(leaves: bool) -> None:
    """A client that closes its half in the turn in which its answer was made has it: the turn's end comes too late.

    Another request is under way, without which no answer waits; the loop stands still meanwhile, as in a long step.
    """
    let_go, there, halved = asyncio.Event(), threading.Event(), threading.Event()

    async def script(_received: Received, body: bytes) -> Reply:
        if body == BODY:
            there.set()
            await let_go.wait()
        else:
            there.set()
            assert halved.wait(10)
        return Reply(200, (OK,), b'{"served":true}')

    with (
        open_door(corridor=StubCorridor(script)) as opened,
        RawClient(opened.address) as one,
        RawClient(opened.address) as other,
    ):
        one.send(post())
        assert there.wait(10)
        there.clear()
        other.send(post(body=b"{}"))
        assert there.wait(10)
        if leaves:
            other.socket.shutdown(socket.SHUT_WR)
        halved.set()
        assert other.read_answer().json() == {"served": True}
        if leaves:
            assert other.rest() == b""
        opened.loop.call_soon_threadsafe(let_go.set)
        assert one.read_answer().json() == {"served": True}
