"""What stands between the suite and the gateway adds one line to each request and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from tests.conformance.shim import Shim
from tests.support.processes import eventually

LINE = b"Authorization: Bearer the-token\r\n"
HEAD = b"POST /x HTTP/1.1\r\nHost: a:1\r\nmcp-NAME:   two  words \r\nX: 1\r\nX: 2\r\n"
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n"
PLAIN = b"3\r\nabc\r\n0\r\n\r\n"
TRAILED = b"3;n=v\r\na\r\n\r\n0\r\nT: x\r\n\r\n"


@dataclass
class Listener:
    """Takes down all that arrives, and answers with whatever a test writes."""

    heard: bytearray = field(default_factory=bytearray)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                self.heard += piece
        self.ended.set()
        writer.close()


Ends = tuple[Listener, asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    """Who listens behind a shim, and a connection to the shim."""
    listener = Listener()
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0)
    async with Shim(server.sockets[0].getsockname()[1], "the-token") as shim:
        host, port = shim.authority.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        yield listener, reader, writer
        writer.close()
    server.close()


async def test_requests_arrive_byte_for_byte_with_one_line_more(ends: Ends) -> None:
    """Order, case, spaces, doubled lines, bodies, chunks and trailers stay; each request gets its line."""
    listener, _, writer = ends
    sized = (HEAD, b"content-length: 5\r\n\r\n", b"\r\n\r\n!")
    asked = [sized, (HEAD, CHUNKS, PLAIN), (HEAD, CHUNKS, TRAILED), (b"GET / HTTP/1.1\r\n", b"\r\n", b""), sized]
    expected = b"".join(head + rest[:-2] + LINE + b"\r\n" + body for head, rest, body in asked)
    sent = b"".join(b"".join(parts) for parts in asked)
    for at in range(0, len(sent), 7):  # in pieces that end anywhere
        writer.write(sent[at : at + 7])
        await writer.drain()
    await eventually("all has arrived", lambda: len(listener.heard) >= len(expected))
    assert bytes(listener.heard) == expected


async def test_what_comes_back_is_passed_on_at_once_and_untouched(ends: Ends) -> None:
    """A stream's event is there before the next one is sent."""
    listener, reader, writer = ends
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await eventually("the request has arrived", lambda: listener.heard.endswith(b"\r\n\r\n"))
    for event in (b"HTTP/1.1 200 OK\r\nX:  y \r\n\r\n", b"data: 1\n\n", b"\x00\xff"):
        listener.writers[0].write(event)
        async with asyncio.timeout(20):
            assert await reader.readexactly(len(event)) == event


async def test_each_side_learns_that_the_other_has_gone(ends: Ends) -> None:
    """A client that closes its stream is seen by the gateway; a gateway that closes, by its client."""
    listener, reader, writer = ends
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await eventually("the request has arrived", lambda: listener.heard.endswith(b"\r\n\r\n"))
    writer.close()
    async with asyncio.timeout(20):
        await listener.ended.wait()
        assert await reader.read() == b""
