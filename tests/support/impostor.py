"""A small server in OPA's place that misbehaves on command, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

PROVENANCE = b'"provenance":{"version":"1","bundles":{"b":{"revision":"r1"}}}'
ALLOW = b'{"result":{"effect":"allow"},' + PROVENANCE + b"}"

Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]


def head(length: int, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    """A response's head."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}\r\n".encode()


def says(body: bytes, status: str = "200 OK", kind: str = "application/json", more: str = "") -> Behaviour:
    """Answers with this."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head(len(body), status, kind, more) + body)

    return answer


async def hangs(_: asyncio.StreamWriter) -> None:
    """Takes the question and says nothing."""
    await asyncio.sleep(3600)


async def cuts(writer: asyncio.StreamWriter) -> None:
    """Half a body, then the end."""
    writer.write(head(len(ALLOW)) + ALLOW[:-5])
    await writer.drain()
    writer.close()


async def drips(writer: asyncio.StreamWriter) -> None:
    """A byte now and then, for ever."""
    writer.write(head(100_000))
    while True:
        writer.write(b" ")
        await asyncio.sleep(0.05)


async def hangs_up(writer: asyncio.StreamWriter) -> None:
    """Ends the connection in place of an answer."""
    writer.close()


async def floods(writer: asyncio.StreamWriter) -> None:
    """A body without end."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    while True:
        writer.write(chunk)
        await writer.drain()


@dataclass
class Impostor:
    """Answers every question by `behaviour`; `heard` are the request lines and heads, in order.

    `at`: the port to take, any free one by default.
    """

    behaviour: Behaviour
    context: ssl.SSLContext | None = None
    at: int = 0
    heard: list[bytes] = field(default_factory=list)
    connections: int = 0
    most: int = 0
    _open: int = 0
    _serving: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """As `policy.url` has it."""
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.at, ssl=self.context)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open += 1
        self.most = max(self.most, self._open)
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    lines = await reader.readuntil(b"\r\n\r\n")
                    length = next(
                        int(line.split(b":")[1])
                        for line in lines.split(b"\r\n")
                        if line.lower().startswith(b"content-length")
                    )
                    await reader.readexactly(length)
                    self.heard.append(lines)
                    await self.behaviour(writer)
                    await writer.drain()
        except asyncio.CancelledError:
            pass  # a behaviour that never ends, at the end of the test
        finally:
            self._open -= 1
            self._serving.discard(task)
            writer.close()
