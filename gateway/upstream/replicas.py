"""The replicas of one server: connections that wait to be used again, plain round robin, passive health.

There is no affinity: each call goes to the next replica that takes connections. One that refuses is passed over for
a while that doubles with each failure; after it, one call at a time tries it again. With all of them cooling, all are
tried.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl

from gateway.upstream.port import UpstreamUnreachable
from gateway.upstream.target import ReplicaAddress, ReplicaRefused, UpstreamLimits, check_address
from gateway.upstream.wire import Connection

COOLING_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""How long a replica is passed over after its first, second, ... refused connection in a row."""


class Replica:
    """One replica: its address, the start of each request to it, its idle and open connections, its health."""

    __slots__ = ("_idle", "_limits", "_open", "_room", "_sweep", "_tls", "address", "failures", "prefix", "until")

    def __init__(
        self, address: ReplicaAddress, prefix: bytes, tls: ssl.SSLContext | None, limits: UpstreamLimits
    ) -> None:
        self.address = address
        self.prefix = prefix
        self.failures = 0
        self.until = 0.0
        self._tls = tls
        self._limits = limits
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._room = memoryview(bytearray(limits.buffer_bytes))
        self._sweep: asyncio.TimerHandle | None = None

    def take(self) -> Connection | None:
        """The connection that was used last and on which nothing has happened since, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.loop.time() - connection.idle_since < self._limits.idle_s and connection.quiet:
                return connection
            connection.close()
        return None

    async def connect(self) -> Connection:
        """A new connection. Raises `UpstreamUnreachable` (nothing was sent), and lets the replica cool down."""
        if len(self._open) >= self._limits.connections:
            raise self._unreachable("too many connections are open")
        loop = asyncio.get_running_loop()
        address = self.address
        try:
            async with asyncio.timeout(self._limits.connect_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, self._rest, self._room),
                    address.host,
                    address.port,
                    ssl=self._tls if address.secure else None,
                    server_hostname=address.host.rstrip(".") if address.secure else None,
                )
        except TimeoutError:
            self._failed(loop.time())
            raise self._unreachable("no connection in time") from None
        except OSError as error:
            self._failed(loop.time())
            raise self._unreachable(f"no connection: {type(error).__name__}") from None
        self._open.add(connection)
        peer = str(connection.transport.get_extra_info("peername")[0]).partition("%")[0]
        try:
            check_address(ipaddress.ip_address(peer), loopback=address.on_loopback)
        except ReplicaRefused as refused:
            connection.close()
            raise self._unreachable(str(refused)) from None
        self.failures = 0
        return connection

    def attempt(self, now: float) -> None:
        """A replica in trouble is about to be tried: nobody else tries it meanwhile."""
        if self.failures:
            self.until = now + COOLING_S[min(self.failures, len(COOLING_S)) - 1]

    def close(self) -> None:
        """Close every connection at once."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in tuple(self._open):
            connection.close()

    def _failed(self, now: float) -> None:
        self.failures += 1
        self.attempt(now)

    def _unreachable(self, detail: str) -> UpstreamUnreachable:
        return UpstreamUnreachable(detail, sent=False, replica=self.address.url)

    def _rest(self, connection: Connection, clean: bool) -> None:
        """A connection's exchange is over (`clean`: it can carry another), or the connection itself is."""
        if clean and len(self._idle) < self._limits.idle_connections and connection in self._open:
            self._idle.append(connection)
            if self._sweep is None:
                self._sweep = connection.loop.call_later(self._limits.idle_s, self._sweep_idle)
        elif clean:
            connection.close()
        elif connection in self._open:
            self._open.discard(connection)
            if connection in self._idle:
                self._idle.remove(connection)

    def _sweep_idle(self) -> None:
        """Close what has idled for too long; look again while something idles."""
        self._sweep = None
        if not self._idle:
            return
        loop = self._idle[0].loop
        before = loop.time() - self._limits.idle_s
        for connection in [idle for idle in self._idle if idle.idle_since <= before]:
            connection.close()
        if self._idle:
            self._sweep = loop.call_later(self._limits.idle_s, self._sweep_idle)


class Ring:
    """All replicas of one server, in turn."""

    __slots__ = ("_turn", "replicas")

    def __init__(self, replicas: tuple[Replica, ...]) -> None:
        self.replicas = replicas
        self._turn = 0

    def order(self, now: float) -> list[Replica]:
        """Whom to try, in which order: the next of those that answer, the others of them, then those that cool."""
        self._turn += 1
        ready = [replica for replica in self.replicas if not replica.failures or replica.until <= now]
        first = self._turn % len(ready) if ready else 0
        turn = ready[first:] + ready[:first]
        if len(ready) == len(self.replicas):
            return turn
        return turn + sorted((r for r in self.replicas if r not in ready), key=lambda replica: replica.until)

    def close(self) -> None:
        """Close every connection at once."""
        for replica in self.replicas:
            replica.close()
