"""A socket to one replica, which carries one exchange at a time.

It is used again only after an answer that ended exactly where its framing says. Whether a byte of a request may have
left is known, not guessed: `Connection.ask` alone writes.
"""

from __future__ import annotations

import asyncio
import math
import socket
import sys
from collections.abc import Callable
from select import POLLERR, POLLHUP, POLLIN, poll
from ssl import SSLContext
from typing import cast

from gateway.upstream.target import UpstreamLimits
from gateway.upstream.wire import Exchange

_JOINED = 65_536
"""Up to this size a body is copied behind its head; a larger one is handed over as it is."""


def notice_the_dead(sock: socket.socket) -> None:
    """Have the kernel ask a silent replica whether it is there: one that is gone is known within 75 s.

    On a subscription nothing else would tell, for it may be silent for days.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


class Connection(asyncio.BufferedProtocol):
    """A socket to one replica. `rest` is called once an exchange ended and whenever an idle socket stirs.

    `over` is told of each exchange once, when it has ended. `context` is what its TLS began with, where there is any.
    From `ends_at` on (loop time) it begins no further exchange.

    `room` is where bytes are read into. All connections of a loop may share it: what was read is taken at once, and
    its size is the most that one read can add to what waits for a reader.
    """

    __slots__ = (
        "_alarm", "_exchange", "_poll", "_rings_at", "_room", "context", "ends_at", "idle_since", "loop",
        "over", "rest", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rest: Callable[[Connection, bool], None],
        over: Callable[[Exchange], None],
        room: memoryview,
        context: SSLContext | None = None,
    ) -> None:
        self.context = context
        self._room = room
        self.loop = loop
        self.rest = rest
        self.over = over
        self.idle_since = 0.0
        self.ends_at = math.inf
        self._exchange: Exchange | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._rings_at = 0.0
        self._poll = poll()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected (and, with TLS, the certificate verified)."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        sock = transport.get_extra_info("socket")
        notice_the_dead(sock)
        self._poll.register(sock.fileno(), POLLIN | POLLHUP | POLLERR)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Where the next read goes."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes of the replica; without an exchange nobody asked for them."""
        if self._exchange is not None:
            self._exchange.feed(self._room[:nbytes])
        else:
            self.close()

    def eof_received(self) -> bool:
        """A half-closed connection is a closed one."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._silence()
        if self._exchange is not None:
            self._exchange.lost(exc)
        else:
            self.rest(self, False)

    def ring_by(self, when: float) -> None:
        """Have the exchange look at its deadline at `when` (loop time), or before.

        One timer for all that a connection carries: one that is set already, and rings earlier, is left alone. So a
        call that is answered in time sets and cancels none.
        """
        if self._alarm is not None:
            if self._rings_at <= when:
                return
            self._alarm.cancel()
        self._rings_at = when
        self._alarm = self.loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self._exchange is not None:
            self._exchange.look_at_deadline()

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    @property
    def quiet(self) -> bool:
        """Whether the socket is open and the kernel knows of nothing that came or ended on it.

        Of a new one with TLS it says little: a server's tickets come unasked (RFC 8446, 4.6.1).
        """
        return not self.transport.is_closing() and not self._poll.poll(0)

    def ask(
        self,
        request: bytes,
        replica: str,
        limits: UpstreamLimits,
        *,
        body: bytes = b"",
        notification: bool = False,
        quiet_s: float = 0.0,
        until: float = 0.0,
        seat: int = 0,
        last: bool = False,
    ) -> Exchange:
        """Send one whole request, `body` behind its head. From here on, its bytes may have left.

        `until`: by when it is answered. `last`: the connection carries nothing after it.
        """
        if last:
            self.ends_at = 0.0
        self._exchange = exchange = Exchange(
            self,
            replica,
            limits,
            notification=notification,
            quiet_s=quiet_s or limits.quiet_s,
            until=until,
            seat=seat,
        )
        if len(body) > _JOINED:
            self.transport.writelines((request, body))
        else:
            self.transport.write(request + body)
        return exchange

    def ended(self, *, clean: bool) -> None:
        """The exchange is over. A connection that is not clean, or whose request was not read, is closed at once."""
        self._exchange = None
        if clean and not self.transport.is_closing() and self.transport.get_write_buffer_size() == 0:
            self.idle_since = self.loop.time()
            self.rest(self, True)
        else:
            self.close()

    def close(self) -> None:
        """Close the socket without waiting for anything."""
        self._silence()
        self.transport.abort()
        self.rest(self, False)
