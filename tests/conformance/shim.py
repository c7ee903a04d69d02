"""The one thing between the suite, which sends no token, and the gateway: a header line, added to each request.

One connection of the suite is one connection to the gateway. Request heads are passed on byte for byte with one line
more at their end; bodies are read only to know where the next head begins; what comes back is not looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

PIECE = 65536
END = b"\r\n\r\n"
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)


@dataclass
class Shim:
    """Listens on a port of its own and passes everything on to `port`, with a bearer token."""

    port: int
    token: str
    _server: asyncio.Server | None = None
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def authority(self) -> str:
        """Where it listens."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=PIECE)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        there, gateway = await asyncio.open_connection("127.0.0.1", self.port, limit=PIECE)
        ways = [asyncio.ensure_future(self._forth(reader, gateway)), asyncio.ensure_future(back(there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(task)
            for way in ways:
                way.cancel()
            for end in (writer, gateway):
                end.close()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _forth(self, reader: asyncio.StreamReader, gateway: asyncio.StreamWriter) -> None:
        """Request after request."""
        line = f"Authorization: Bearer {self.token}\r\n".encode()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(END)
                gateway.write(head[:-2] + line + b"\r\n")
                await gateway.drain()
                if length := LENGTH.search(head):
                    await copy(reader, gateway, int(length[1]))
                elif CHUNKED.search(head):
                    await copy_chunks(reader, gateway)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> None:
    """Pass `size` bytes on as they come. Raises `IncompleteReadError` when they end early."""
    while size:
        piece = await reader.read(min(size, PIECE))
        if not piece:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(piece)
        writer.write(piece)
        await writer.drain()


async def copy_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass a chunked body on, trailer and all."""
    size = 1
    while size:
        head = await reader.readuntil(b"\r\n")
        writer.write(head)
        size = int(head.split(b";")[0], 16)
        await copy(reader, writer, size + 2 if size else 0)
    line = b""
    while line != b"\r\n":
        line = await reader.readuntil(b"\r\n")
        writer.write(line)
    await writer.drain()


async def back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on whatever comes, as it comes."""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
