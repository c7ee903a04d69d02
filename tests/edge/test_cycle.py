"""One request and its answer on a connection: what is written when, and what an application can't do to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.door.cycle import READ_AHEAD, STATUS_LINES, Cycle, Message

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Receive, Send], Awaitable[None]]


class Paper(asyncio.Transport):
    """Keeps each write apart."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Any] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """One write."""
        self.written.append(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """One write of several pieces."""
        self.written.append(list(list_of_data))

    def is_closing(self) -> bool:
        """Never."""
        return False


class Wire:
    """A connection as a cycle sees it."""

    def __init__(self) -> None:
        self.transport = Paper()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.write_paused = False
        self.default_headers = [(b"date", b"today")]
        self.ends: list[str] = []
        self.posted = 0

    def write(self, *pieces: bytes) -> None:
        """At once."""
        if len(pieces) == 1:
            self.transport.write(pieces[0])
        else:
            self.transport.writelines(pieces)

    def post(self, answer: bytes) -> None:
        """At once, too."""
        self.posted += 1
        self.transport.write(answer)

    async def drain(self) -> None:
        """Not used here."""

    def resume_reading(self) -> None:
        """It always reads."""

    def answered(self, keep_alive: bool) -> None:
        """Whole."""
        self.ends.append("kept" if keep_alive else "closed")

    def part(self) -> None:
        """Cut short."""
        self.ends.append("cut")


async def served(app: App, method: str = "POST", keep_alive: bool = True) -> Wire:
    """What `app` makes of a request that is whole."""
    wire = Wire()
    cycle = Cycle(wire, method, expects_continue=False, keep_alive=keep_alive)
    cycle.add(b"{}")
    cycle.complete()
    task = asyncio.ensure_future(app(cycle.receive, cycle.send))
    wire.tasks.add(task)
    task.add_done_callback(cycle.ended)
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert not wire.tasks
    return wire


def start(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes = b"", more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def answering(*messages: Message) -> App:
    """An application that says just this."""

    async def app(receive: Receive, send: Send) -> None:
        assert await receive() == {"type": "http.request", "body": b"{}", "more_body": False}
        for message in messages:
            await send(message)

    return app


async def test_a_whole_answer_is_one_write() -> None:
    """A head whose body's length is announced leaves together with it: one packet for the client to wait for."""
    wire = await served(answering(start((b"Content-Length", b"2"), (b"x", b"\xe4\t")), body(b"ok")))
    assert wire.transport.written == [b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\nx: \xe4\t\r\n\r\nok"]
    assert wire.posted == 1
    assert wire.ends == ["kept"]


async def test_a_large_body_is_handed_over_as_it_is() -> None:
    """No copy of it is made behind its head."""
    large = b"x" * 100_000
    wire = await served(answering(start((b"content-length", b"100000")), body(large)))
    assert len(wire.transport.written) == 1
    assert wire.transport.written[0][1] is large


async def test_the_head_of_a_stream_leaves_at_once() -> None:
    """Whoever waits for its first event knows that there is a stream; chunks are ours, whatever was named."""
    wire = await served(answering(start((b"transfer-encoding", b"gzip")), body(b"a" * 17, more=True), body()))
    head = b"HTTP/1.1 200 OK\r\ndate: today\r\ntransfer-encoding: chunked\r\n\r\n"
    assert wire.transport.written == [head, b"11\r\n" + b"a" * 17 + b"\r\n", b"0\r\n\r\n"]
    assert wire.posted == 0


async def test_the_last_answer_says_so_once() -> None:
    """`Connection: close` is said by whoever knows it first, and by nobody twice."""
    last = await served(answering(start((b"content-length", b"0")), body()), keep_alive=False)
    asked = await served(answering(start((b"content-length", b"0"), (b"connection", b"x, Close")), body()))
    for wire in (last, asked):
        assert wire.transport.written[0].lower().count(b"close") == 1
        assert wire.ends == ["closed"]


@pytest.mark.parametrize(("status", "method"), [(204, "POST"), (304, "POST"), (200, "HEAD")])
async def test_some_answers_have_no_body(status: int, method: str) -> None:
    """And no framing that would announce one; what HEAD would have got stays announced."""
    wire = await served(answering(start(status=status), body()), method)
    assert wire.transport.written == [STATUS_LINES[status] + b"date: today\r\n\r\n"]
    if method == "HEAD":
        wire = await served(answering(start((b"content-length", b"2")), body(b"ok")), method)
        assert wire.transport.written[0].endswith(b"content-length: 2\r\n\r\n")


FALSE_ANSWERS = {
    "a line in a value": [start((b"content-length", b"0"), (b"x", b"y\r\nz: 1")), body()],
    "a line feed": [start((b"content-length", b"0"), (b"x", b"y\nz: 1")), body()],
    "NUL": [start((b"x", b"\0"))],
    "a line in a name": [start((b"x: y\r\nz", b"1"))],
    "a name with a colon": [start((b"x: y", b"1"))],
    "no name": [start((b"", b"1"))],
    "two lengths": [start((b"content-length", b"3"), (b"content-length", b"2")), body(b"ok")],
    "a length with a sign": [start((b"content-length", b"+2")), body(b"ok")],
    "a length with an underscore": [start((b"content-length", b"0_2")), body(b"ok")],
    "longer than announced": [start((b"content-length", b"1")), body(b"ok")],
    "shorter than announced": [start((b"content-length", b"3")), body(b"ok")],
    "a body first": [body(b"ok")],
    "two heads": [start((b"content-length", b"0")), start((b"content-length", b"0"))],
    "another message": [{"type": "http.response.push"}],
    "nothing": [],
    "a head alone": [start((b"content-length", b"0"))],
    "a last head alone": [start((b"content-length", b"0"), (b"connection", b"close"))],
}


@pytest.mark.parametrize("messages", FALSE_ANSWERS.values(), ids=FALSE_ANSWERS.keys())
async def test_what_is_no_answer_becomes_an_error_of_ours(messages: list[Message]) -> None:
    """Nothing of it reaches the client; 500, the end of the connection, and a line in the log do."""
    with capture_logs() as lines:
        wire = await served(answering(*messages))
    (answer,) = wire.transport.written
    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert answer.endswith(b"connection: close\r\n\r\nInternal Server Error")
    assert b"z: 1" not in answer
    assert wire.ends == ["closed"]
    left = messages in ([], FALSE_ANSWERS["a head alone"], FALSE_ANSWERS["a last head alone"])
    assert [line["event"] for line in lines] == ["application_left" if left else "application_broke"]


async def test_an_answer_that_breaks_off_does_not_look_whole() -> None:
    """What has begun is cut, by an exception and by an application that just leaves."""

    async def breaking(receive: Receive, send: Send) -> None:
        await send(start())
        raise ConnectionResetError

    for app in (breaking, answering(start(), body(b"a", more=True))):
        wire = await served(app)
        assert wire.ends == ["cut"]
        assert not wire.transport.written[-1].endswith(b"0\r\n\r\n")


async def test_nothing_is_written_for_who_has_gone() -> None:
    """Whoever waits for the body is told, whoever answers goes on into the void, and neither is an error."""
    wire = Wire()
    cycle = Cycle(wire, "POST", expects_continue=False, keep_alive=True)
    waiting = asyncio.ensure_future(cycle.receive())
    await asyncio.sleep(0)
    assert not waiting.done()
    cycle.lose()
    assert await waiting == {"type": "http.disconnect"}
    await cycle.send(start())
    await cycle.send(body())
    assert wire.transport.written == []


async def test_nobody_is_asked_to_go_on_after_the_answer() -> None:
    """`100 Continue` is said to whoever waits for it, never behind what the door has answered for a broken body."""
    for refused in (False, True):
        wire = Wire()
        cycle = Cycle(wire, "POST", expects_continue=True, keep_alive=True)
        cycle.add(b"{}")
        if refused:
            cycle.lose()
        told = await cycle.receive()
        assert told["type"] == ("http.disconnect" if refused else "http.request")
        assert wire.transport.written == ([] if refused else [b"HTTP/1.1 100 Continue\r\n\r\n"])


async def test_a_body_is_received_as_it_came_and_its_client_held_back() -> None:
    """Each piece once; beyond what may wait, the connection is told so."""
    cycle = Cycle(Wire(), "POST", expects_continue=False, keep_alive=True)
    piece = b"x" * READ_AHEAD
    assert cycle.add(piece) is False
    assert cycle.add(b"y") is True
    assert await cycle.receive() == {"type": "http.request", "body": piece + b"y", "more_body": True}
    waiting = asyncio.ensure_future(cycle.receive())
    await asyncio.sleep(0)
    assert cycle.add(b"z") is False
    assert (await waiting)["body"] == b"z"
    cycle.complete()
    assert await cycle.receive() == {"type": "http.request", "body": b"", "more_body": False}
