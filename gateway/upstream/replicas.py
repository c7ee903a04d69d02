"""One replica: connections that wait to be used again, what runs on them, and how each request ended.

A name is looked up apart from everything else (lookups.py), and each address that it stands for is judged before a
connection is made to that very address: a resolver that hangs keeps nobody else, and one that lies leads nowhere.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.lookups import Lookups
from gateway.upstream.connection import Connection
from gateway.upstream.health import Health, HealthRules
from gateway.upstream.port import UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.target import ReplicaAddress, ReplicaRefused, Secured, UpstreamLimits, check_address
from gateway.upstream.wire import Exchange, GivenUp
from gateway.vigil import Vigil
from gateway.wires.pem import tell

if TYPE_CHECKING:
    from gateway.upstream.ring import Ring

PROBE: Final = -1
"""An exchange that asks how the replica is: what it says is the probe's to judge, and no fault of a call."""

FREE: Final = 0
"""An exchange that takes no place: the house's own questions, and subscriptions, which may last for days.

Nor does its end move anybody's health: an old server that answers each `ping` and no call would never be out.
"""

SEATED: Final = 1
"""One that takes a place of those that calls have."""

TRIAL: Final = 2
"""The same at a replica that is out: its end says whether it is well again."""

ADDRESSES: Final = 3
"""Addresses of one name that are tried."""

SWEEP_S: Final = 0.1
"""Between two looks for connections that have idled for too long."""

VIGIL_S: Final = 0.0001
"""How long the loop stays awake while one call, the only one here, waits for the begin of its answer."""

SHORTER: Final = 0.2
"""By which share a connection's life may be shorter, so that those which began together do not end together."""

RESULTS: Final = ("answered", "status_5xx", "timeout", "broken", "given_up", "refused")
"""How a request to a replica can end: the last one is that it took no connection."""


class Replica:
    """One replica: its address, the start of each request to it, its connections, its health and what it runs.

    `name` is how metrics and the log call it. `running`: calls that have a place here.
    """

    __slots__ = (
        "_chance", "_idle", "_limits", "_lookups", "_open", "_room", "_sweep", "_tls", "_vigil", "address",
        "ejections", "health", "name", "prefix", "results", "ring", "running",
    )  # fmt: skip

    ring: Ring

    def __init__(
        self,
        address: ReplicaAddress,
        prefix: bytes,
        tls: Secured | None,
        limits: UpstreamLimits,
        *,
        rules: HealthRules | None = None,
        lookups: Lookups | None = None,
        name: str = "",
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.address = address
        self.prefix = prefix
        self.name = name or address.authority
        self.health = Health(rules or HealthRules())
        self.running = 0
        self._vigil = Vigil(VIGIL_S)
        self.results = dict.fromkeys(RESULTS, 0)
        self.ejections = dict.fromkeys(("refused", "faults", "probe"), 0)
        self._chance = chance
        self._lookups = lookups or Lookups()
        self._tls = tls if address.secure else None
        self._limits = limits
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._room = memoryview(bytearray(limits.read_bytes))
        self._sweep: asyncio.TimerHandle | None = None

    def take(self) -> Connection | None:
        """The connection that was used last and on which nothing has happened since, if there is one.

        One that began with other certificates than those that are in force is none, nor is one whose time is over.
        """
        context = None if self._tls is None else self._tls.context
        while self._idle:
            connection = self._idle.pop()
            if connection.context is not context:
                connection.close()
                continue
            now = connection.loop.time()
            if now - connection.idle_since < self._limits.idle_s and now < connection.ends_at and connection.quiet:
                return connection
            connection.close()
        return None

    def vigil_over(self, seat: int) -> Vigil | None:
        """What keeps the loop awake until the answer to a call begins, where it is the only one here."""
        return self._vigil if seat > FREE and self.running == 1 else None

    async def connect(self, until: float = 0.0) -> Connection:
        """A new connection, by `until` if that is sooner than its own time, which is then the call's fault.

        Raises `UpstreamUnreachable` (nothing was sent), and the replica is out; or `UpstreamTimeout`.
        """
        if len(self._open) >= self._limits.connections:
            raise self._unreachable("too many connections are open")
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._limits.connect_s
        short = 0.0 < until < ends
        try:
            async with asyncio.timeout_at(until if short else ends):
                connection = await self._reach(loop)
        except TimeoutError:
            if short:
                raise UpstreamTimeout("no time was left", sent=False, replica=self.address.url) from None
            raise self._refused("no connection in time") from None
        except ReplicaRefused as refused:
            raise self._refused(str(refused)) from None
        except (OSError, UnicodeError) as error:
            raise self._refused(f"no connection: {tell(error) if self._tls else type(error).__name__}") from None
        if self._tls is None and not connection.quiet:
            connection.close()
            raise self._refused("the connection ended as soon as it was made")
        self._open.add(connection)
        if lasts_s := self.ring.rules.connection_s:
            connection.ends_at = loop.time() + lasts_s * (1.0 - SHORTER * self._chance())
        if self.health.out:
            self.ring.connected(self, loop.time())
        return connection

    async def _reach(self, loop: asyncio.AbstractEventLoop) -> Connection:
        """To the first address that takes one; each has its part of the time, so that none keeps it all."""
        host, port = self.address.host, self.address.port
        context = None if self._tls is None else self._tls.context
        addresses = await self._addresses()
        until = loop.time() + self._limits.connect_s
        for left in range(len(addresses), 0, -1):
            try:
                now = loop.time()
                async with asyncio.timeout_at(now + (until - now) / left):
                    _, connection = await loop.create_connection(
                        lambda: Connection(loop, self._rest, self._over, self._room, context),
                        addresses[-left],
                        port,
                        ssl=context,
                        server_hostname=None if context is None else host.rstrip("."),
                    )
                    return connection
            except OSError:  # a timeout is one as well
                if left == 1:
                    raise
        raise OSError("no address")

    async def _addresses(self) -> list[str]:
        """The addresses that the host stands for, each judged. Raises `ReplicaRefused`, `OSError`, `UnicodeError`."""
        host, port = self.address.host, self.address.port
        try:
            found = [str(ipaddress.ip_address(host))]
        except ValueError:
            named = await self._lookups.find(host, port)
            found = list(dict.fromkeys(str(one[4][0]).partition("%")[0] for one in named))[:ADDRESSES]
        for one in found:
            check_address(ipaddress.ip_address(one), loopback=self.address.on_loopback)
        return found

    def leave(self) -> None:
        """A call has left its place without a request."""
        self.health.end_trial()
        self.ring.leave(self)

    def close(self) -> None:
        """Close every connection at once."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in tuple(self._open):
            connection.close()

    def _refused(self, detail: str) -> UpstreamUnreachable:
        self.results["refused"] += 1
        self.ring.refused(self, asyncio.get_running_loop().time())
        return self._unreachable(detail)

    def _unreachable(self, detail: str) -> UpstreamUnreachable:
        return UpstreamUnreachable(detail, sent=False, replica=self.address.url)

    def _over(self, exchange: Exchange) -> None:
        """A request to this replica has ended, one way or the other."""
        seat = exchange.seat
        try:
            if exchange.complete and exchange.status < 500:  # nearly always
                if seat != PROBE:
                    self.results["answered"] += 1
                    if seat > FREE and (self.health.faults or self.health.out):
                        self.ring.answered(self, exchange.loop_time(), tried=seat == TRIAL)
            elif seat != PROBE:
                self._judge(exchange)
        finally:  # a defect above costs no place
            if seat > FREE:
                self.ring.leave(self)

    def _judge(self, exchange: Exchange) -> None:
        """What a request that did not simply end well says of this replica."""
        fault, now = exchange.fault, exchange.loop_time()
        counts, tried = exchange.seat > FREE, exchange.seat == TRIAL
        if fault is None and exchange.status < 500:  # the response was read, and then the stream did not end
            self.results["answered"] += 1
            if counts:
                self.ring.answered(self, now, tried=tried)
        elif isinstance(fault, GivenUp):
            self.results["given_up"] += 1
            if tried:
                self.health.end_trial()
        else:
            status = exchange.status if fault is None else fault.status
            result = "timeout" if isinstance(fault, UpstreamTimeout) else "broken"
            self.results["status_5xx" if status >= 500 else result] += 1
            if counts and not 400 <= status < 500:  # that one took the request for a bad one
                self.ring.faulted(self, now, tried=tried)

    def _rest(self, connection: Connection, clean: bool) -> None:
        """A connection's exchange is over (`clean`: it can carry another), or the connection itself is."""
        goes_on = clean and connection in self._open and connection.loop.time() < connection.ends_at
        if goes_on and len(self._idle) < self._limits.idle_connections:
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
        """Close what has idled for too long, as soon as it has: a server that leaves may wait for its clients."""
        self._sweep = None
        if not self._idle:
            return
        loop = self._idle[0].loop
        before = loop.time() - self._limits.idle_s
        for connection in [idle for idle in self._idle if idle.idle_since <= before]:
            connection.close()
        if self._idle:  # the first one has idled for longest
            left = self._idle[0].idle_since - before
            self._sweep = loop.call_later(max(left, SWEEP_S), self._sweep_idle)
