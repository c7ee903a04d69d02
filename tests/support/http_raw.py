"""A client that sends exactly the bytes it is given and reads what comes back, on a plain socket.

Blocking, for hostile input: no library stands between a test and the wire. Every read has a time limit.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from dataclasses import dataclass, field
from typing import Any, Self

import orjson

Address = tuple[str, int]


@dataclass(frozen=True)
class Answer:
    """One response. Header names in lower case; `interim` are the 1xx statuses that came before it."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    interim: tuple[int, ...] = ()

    def values(self, name: str) -> list[str]:
        """All values of the header `name` (lower case)."""
        return [value for key, value in self.headers if key == name]

    @property
    def closes(self) -> bool:
        """Whether the answer says that the connection ends with it."""
        return "close" in self.values("connection")

    def json(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)


@dataclass
class RawClient:
    """One connection. `timeout_s` bounds each read; `TimeoutError` when nothing comes, `EOFError` at an early end."""

    address: Address
    timeout_s: float = 5.0
    tls: ssl.SSLContext | None = None
    _buffer: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.socket = socket.create_connection(self.address, self.timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is not None:
            self.socket = self.tls.wrap_socket(self.socket, server_hostname=self.address[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Go away."""
        self.socket.close()

    def send(self, data: bytes) -> Self:
        """Put bytes on the wire; that the other side has closed meanwhile is not an error here."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)
        return self

    def drip(self, data: bytes, every_s: float) -> bool:
        """Send a byte at a time until the other side answers or closes -> whether it did before the end of `data`."""
        self.socket.settimeout(every_s)
        try:
            for at in range(len(data)):
                try:
                    self.socket.sendall(data[at : at + 1])
                    more = self.socket.recv(65536)
                except TimeoutError:
                    continue
                except (BrokenPipeError, ConnectionResetError):
                    return True
                self._buffer += more
                return True
            return False
        finally:
            self.socket.settimeout(self.timeout_s)

    def _more(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise EOFError(bytes(self._buffer))
        self._buffer += data

    def _until(self, mark: bytes) -> bytes:
        while (at := self._buffer.find(mark)) < 0:
            self._more()
        return self._take(at + len(mark))

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def read_head(self) -> Answer:
        """The status line and headers of the next final response; its body is not read."""
        interim = []
        while True:
            head = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            status = int(head[0].split(" ")[1])
            if status >= 200:
                break
            interim.append(status)
        headers = []
        for line in head[1:-2]:
            name, _, value = line.partition(":")
            headers.append((name.lower(), value.strip()))
        return Answer(status, tuple(headers), b"", tuple(interim))

    def read_chunk(self) -> bytes:
        """The next chunk of a chunked body; empty at its end."""
        size = int(self._until(b"\r\n").split(b";")[0], 16)
        chunk = self._take(size)
        self._take(2)
        return chunk

    def read_answer(self, *, to_head: bool = False) -> Answer:
        """The next whole response (`to_head`: to a HEAD request, so without a body)."""
        head = self.read_head()
        body = b""
        if to_head or head.status in {204, 304}:
            pass
        elif "chunked" in head.values("transfer-encoding"):
            while chunk := self.read_chunk():
                body += chunk
        elif head.values("content-length"):
            body = self._take(int(head.values("content-length")[0]))
        else:
            with contextlib.suppress(EOFError):
                while True:
                    self._more()
            body = bytes(self._buffer)
        return Answer(head.status, head.headers, body, head.interim)

    def ask(self, data: bytes) -> Answer:
        """Send a request and read its answer."""
        return self.send(data).read_answer()

    def rest(self) -> bytes:
        """All that still comes until the other side closes. `TimeoutError` when it does not close."""
        try:
            while True:
                self._more()
        except (EOFError, ConnectionResetError):
            return bytes(self._buffer)

    def closed_within(self, limit_s: float) -> float:
        """Wait for the other side to close -> seconds that it took. `TimeoutError` when it does not."""
        began = time.monotonic()
        self.socket.settimeout(limit_s)
        self.rest()
        self.socket.settimeout(self.timeout_s)
        return time.monotonic() - began
