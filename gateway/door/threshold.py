"""TLS in front of the door: accept, look at the first bytes, shake hands within bounds, then the door's protocol.

Invariant: who has not shown within `HANDSHAKE_S` that it speaks TLS is gone, at most `COMING` of them are waited for,
and a slow one never keeps a quick one out: where there is no room, the oldest goes. Plain HTTP costs one byte looked
at, is told so, and is recorded as any refusal of the door.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

import structlog
import uvicorn

from gateway.contract.refusals import Refusal, Refused
from gateway.door.connection import OnRefused, Peer, render_refusal
from gateway.door.quiet import QuietServer

HANDSHAKE_S: Final = 5.0
"""From the connection to the end of its handshake; its head has time of its own after that."""
COMING: Final = 1024
"""Connections whose handshake has not ended, in one worker."""
SHUTDOWN_S: Final = 2.0
"""How long a client may take to say goodbye."""
LAST_S: Final = 1.0
"""How long a handshake may go on once the listener is closed."""
CLOSED_EVERY_S: Final = 0.05
AT_ONCE: Final = 64
"""Connections that are accepted in one turn of the loop."""
PAUSE_S: Final = 0.5
"""After the system had no descriptor left."""
MOST_HELLO: Final = 16_384
"""Of a greeting; an ordinary one has at most 2 KiB. The library makes room for 128 KiB once so many are announced."""
_HELLO_HEAD: Final = 9
"""The record's header (type, version, length), the message's type and length (RFC 8446, 5.1 and 4)."""
_CLIENT_HELLO: Final = b"\x16"
_IS_SPOKEN: Final = "This port speaks TLS: use https://."


class Secured(Protocol):
    """Whose certificate is shown: the context for the next handshake."""

    @property
    def context(self) -> ssl.SSLContext:
        """The one in force."""
        ...


class Coming:
    """A connection whose handshake has not ended. `peer` is `None` where the system does not say."""

    __slots__ = ("awaited", "peer", "shaking", "sock", "until")

    def __init__(self, sock: socket.socket, peer: Peer, until: float) -> None:
        self.sock = sock
        self.peer = peer
        self.until = until
        self.awaited = False
        """Whether the rest of its greeting's head is waited for."""
        self.shaking: asyncio.Task[None] | None = None


class Threshold:
    """Accepts for one server. To uvicorn it is what it knows of its listeners: `close` and `wait_closed`."""

    def __init__(
        self,
        secured: Secured,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        on_refused: OnRefused,
        count: Callable[[str], None],
        served: Callable[[], int] = lambda: 0,
    ) -> None:
        """`count` is told what became of each, `served` tells how many are behind the door."""
        self._secured = secured
        self._served = served
        self._make_protocol = make_protocol
        self._on_refused = on_refused
        self._count = count
        self._coming: dict[Coming, None] = {}  # the oldest first
        self._shaking: set[asyncio.Task[None]] = set()
        self._listener: socket.socket
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        self.closed = False

    def open(self, listener: socket.socket) -> None:
        """Accept from now on."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more. Who is coming has `LAST_S` to shake hands: it may be about to send what nobody repeats."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._listener)
        if self._pause is not None:
            self._pause.cancel()
        self._loop.call_later(LAST_S, self._drop_all)

    def _drop_all(self) -> None:
        for coming in tuple(self._coming):
            self._drop(coming, "late")

    async def wait_closed(self) -> None:
        """Until nobody is coming any more, and who came last is served."""
        while self._coming or self._shaking or self._served():  # noqa: ASYNC110 - uvicorn's set tells nobody
            await asyncio.sleep(CLOSED_EVERY_S)

    @property
    def coming(self) -> int:
        """How many have not shaken hands yet."""
        return len(self._coming)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor is left: the backlog keeps who comes now
                structlog.get_logger("threshold").error("not_accepted", error=error.strerror)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(PAUSE_S, self._loop.add_reader, self._listener, self._accept)
                return
            sock.setblocking(False)
            if len(self._coming) >= COMING:
                self._drop(next(iter(self._coming)), "displaced")
            peer = (str(address[0]), int(address[1])) if address else None
            coming = Coming(sock, peer, self._loop.time() + HANDSHAKE_S)
            self._coming[coming] = None
            self._loop.add_reader(sock, self._look, coming)
            if self._timer is None:
                self._timer = self._loop.call_at(coming.until, self._expire)

    def _expire(self) -> None:
        """Whoever has said nothing in time. Handshakes that have begun end by their own clock, the same one."""
        now = self._loop.time()
        for coming in [one for one in self._coming if one.shaking is None and one.until <= now]:
            self._drop(coming, "late")
        left = [one.until for one in self._coming if one.shaking is None]
        self._timer = self._loop.call_at(left[0], self._expire) if left else None

    def _look(self, coming: Coming) -> None:
        """The first byte says what is spoken, the next ones how much of it. They are left where they are."""
        try:
            first = coming.sock.recv(_HELLO_HEAD, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if first.startswith(_CLIENT_HELLO):
            self._greet(coming, first)
        elif first[:1].isalpha():  # a method of HTTP
            self._answer_plainly(coming)
            self._drop(coming, "plain")
        else:
            self._drop(coming, "failed" if first else "gone")

    def _greet(self, coming: Coming, head: bytes) -> None:
        """Shake hands, once it is seen that the greeting is none that memory is to be emptied with."""
        if len(head) < _HELLO_HEAD:
            if coming.awaited:
                self._drop(coming, "gone")  # that was all
            else:
                coming.awaited = True
                coming.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _HELLO_HEAD)
        elif head[5] != 1 or int.from_bytes(head[3:5]) < 4 or int.from_bytes(head[6:9]) > MOST_HELLO:
            self._drop(coming, "failed")
        else:
            if coming.awaited:
                coming.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            self._loop.remove_reader(coming.sock)
            coming.shaking = task = self._loop.create_task(self._shake(coming))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)

    def _answer_plainly(self, coming: Coming) -> None:
        refused = Refused(Refusal.REQUEST_MALFORMED, "plain HTTP where TLS is spoken", message=_IS_SPOKEN)
        reply = render_refusal(refused, self._on_refused(refused.refusal.reason, refused.detail, coming.peer))
        with contextlib.suppress(OSError):
            coming.sock.recv(65_536)  # what is left unread would make the system reset the connection
            coming.sock.send(reply)
            coming.sock.shutdown(socket.SHUT_WR)

    async def _shake(self, coming: Coming) -> None:
        result = "completed"
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                coming.sock,
                ssl=self._secured.context,
                ssl_handshake_timeout=max(0.1, coming.until - self._loop.time()),
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except ssl.SSLError:
            result = "failed"
        except ConnectionAbortedError:  # how the loop says that it took too long
            result = "late"
        except OSError:
            result = "gone"
        finally:
            there = coming in self._coming
            self._coming.pop(coming, None)
        if there:
            self._count(result)

    def _drop(self, coming: Coming, result: str) -> None:
        """It is not waited for any longer."""
        self._count(result)
        del self._coming[coming]
        if coming.shaking is None:
            self._loop.remove_reader(coming.sock)
            coming.sock.close()
        else:
            coming.shaking.cancel()
            with contextlib.suppress(OSError):
                coming.sock.shutdown(socket.SHUT_RDWR)  # it is the transport's, which closes it


def make_server(
    config: uvicorn.Config, secured: Secured | None, *, on_refused: OnRefused, count: Callable[[str], None]
) -> QuietServer:
    """uvicorn, over TLS where there is a certificate to show."""
    return QuietServer(config) if secured is None else TlsServer(config, secured, on_refused=on_refused, count=count)


class TlsServer(QuietServer):
    """uvicorn behind a threshold instead of a listener of its own."""

    def __init__(
        self, config: uvicorn.Config, secured: Secured, *, on_refused: OnRefused, count: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._threshold = Threshold(
            secured,
            self._make_protocol,
            on_refused=on_refused,
            count=count,
            served=lambda: len(self.server_state.connections),
        )

    def _make_protocol(self) -> asyncio.BaseProtocol:
        kind = self.config.http_protocol_class
        protocol: asyncio.BaseProtocol = kind(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on these sockets (one), over TLS."""
        await super().startup(sockets=[])
        for listener in sockets or []:
            self._threshold.open(listener)
        self.servers = [self._threshold]  # type: ignore[list-item]  # of which only closing is asked
