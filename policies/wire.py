"""Questions to one HTTP server: a whole body there, a whole body back, one deadline for all of it.

On llhttp (httptools) and the loop's transports, as the gateway's own way to its servers is, because a general client
cost more than the rest of a call (docs/policy-engine.md, "The OPA adapter"). A connection carries one question at a
time, and the next one only after an answer that ended exactly where its framing says. Whoever answers was configured:
nothing is redirected, resolved anew from an answer, or taken from the environment.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
from typing import Any, Final
from urllib.parse import urlsplit

from policies.exchange import Connection, Posed, unreachable
from policies.verdict import PolicyUnavailable

_IDLE_S: Final = 15.0  # after this long a connection is not used again
_RESOLVED_S: Final = 5.0  # as long as this an address is believed
_ADDRESSES: Final = 3  # of one name that are tried
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


class Wire:
    """Up to `connections` sockets to the server at `url` (scheme, host, port); more questions wait for one.

    Each question has `deadline_s`, waiting and connecting included; an answer has at most `most` bytes.
    """

    def __init__(
        self,
        url: str,
        path: str,
        *,
        token: str | None,
        context: ssl.SSLContext | None,
        connections: int,
        deadline_s: float,
        most: int,
    ) -> None:
        """Raises `PolicyUnavailable` for a token that no header can carry."""
        if token is not None and _TOKEN.fullmatch(token) is None:
            raise PolicyUnavailable("the token for OPA is not visible ASCII")
        parts = urlsplit(url)
        host = parts.hostname or ""
        self._host = host
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._context = context
        shown = f"[{host}]" if ":" in host else host
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: {shown}" if parts.port is None else f"Host: {shown}:{parts.port}",
            "Content-Type: application/json",
            "Accept: application/json",
            "Accept-Encoding: identity",
            *([] if token is None else [f"Authorization: Bearer {token}"]),
        ]
        self._head = "".join(f"{line}\r\n" for line in lines).encode()
        self._connections = connections
        self._deadline_s = deadline_s
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._asked: dict[Posed, None] = {}  # in order of their deadlines, for each has the same time
        self._waiting: dict[Posed, None] = {}
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._reaching: set[asyncio.Task[None]] = set()
        self._lookup: asyncio.Task[list[Any]] | None = None
        self._believed = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def asked(self) -> int:
        """Questions on their way, those that wait included."""
        return len(self._asked)

    async def post(self, *body: bytes) -> bytes:
        """A request's body, in parts -> the answer's. Raises `PolicyUnavailable`.

        A question whose connection ended before a byte of the answer is asked once more: to ask changes nothing.
        """
        if self._closed:
            raise PolicyUnavailable("the policy engine is closed")
        loop = self._loop
        length = b"Content-Length: %d\r\n\r\n" % sum(map(len, body))
        posed = Posed(b"".join((self._head, length, *body)), loop.create_future(), loop.time() + self._deadline_s)
        self._asked[posed] = None
        if self._alarm is None:
            self._alarm = loop.call_at(posed.until, self._ring)
        self.send(posed)
        try:
            return await posed.answer
        finally:
            del self._asked[posed]
            if posed.connection is not None:
                posed.connection.close()  # what is left of the answer is nobody's
            elif self._waiting:
                self._waiting.pop(posed, None)

    def send(self, posed: Posed) -> None:
        """On the connection that was used last and on which nothing has happened since, else on the next free one."""
        while self._idle:
            connection = self._idle.pop()
            if self._loop.time() - connection.idle_since < _IDLE_S and connection.quiet:
                connection.carry(posed)
                return
            connection.close()
        self._waiting[posed] = None
        self._fill()

    async def close(self) -> None:
        """Refuse what is asked, and close every connection."""
        self._closed = True
        for timer in (self._alarm, self._sweep):
            if timer is not None:
                timer.cancel()
        self._alarm = self._sweep = None
        for posed in self._asked:
            posed.fail(PolicyUnavailable("the policy engine was closed"))
        self._waiting.clear()
        for task in self._reaching:
            task.cancel()
        if self._lookup is not None:
            self._lookup.cancel()
        for connection in tuple(self._open):
            connection.close()
        await asyncio.sleep(0)  # the transports close in the loop's next turn

    # What a connection calls.

    def rest(self, connection: Connection, *, fresh: bool = False) -> None:
        """It is free. One that is not fresh is looked at first: what nobody asked for is no answer to the next."""
        if self._closed or not (fresh or connection.quiet):
            connection.close()
        elif (posed := self._first()) is not None:
            connection.carry(posed)
        else:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
            if self._sweep is None:
                self._sweep = self._loop.call_later(_IDLE_S, self._sweep_idle)

    def gone(self, connection: Connection) -> None:
        """It is closed. Safe to call twice."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._fill()

    def _first(self) -> Posed | None:
        """Whichever question has waited for longest, and still waits."""
        while self._waiting:
            posed = next(iter(self._waiting))
            del self._waiting[posed]
            if not posed.answer.done():
                return posed
        return None

    # Deadlines and age.

    def _ring(self) -> None:
        """One timer for all that is asked: a question that is answered in time sets and cancels none."""
        self._alarm = None
        now = self._loop.time()
        for posed in self._asked:
            if posed.until > now:
                self._alarm = self._loop.call_at(posed.until, self._ring)
                return
            self._waiting.pop(posed, None)
            posed.fail(PolicyUnavailable(f"OPA's answer took longer than {self._deadline_s:g} s"))

    def _sweep_idle(self) -> None:
        self._sweep = None
        before = self._loop.time() - _IDLE_S
        for connection in [idle for idle in self._idle if idle.idle_since <= before]:
            connection.close()
        if self._idle:  # the first one has idled for longest
            self._sweep = self._loop.call_later(max(self._idle[0].idle_since - before, 0.1), self._sweep_idle)

    # New connections.

    def _fill(self) -> None:
        """A connection for each question that waits for one, as far as there may be more."""
        free = self._connections - len(self._open) - len(self._reaching)
        for _ in range(min(free, len(self._waiting) - len(self._reaching))):
            task = self._loop.create_task(self._reach())
            self._reaching.add(task)
            task.add_done_callback(self._reached)

    def _reached(self, task: asyncio.Task[None]) -> None:
        self._reaching.discard(task)
        self._fill()

    async def _reach(self) -> None:
        """One more connection, for whichever question waits; where there is none to be had, one question fails."""
        try:
            async with asyncio.timeout(self._deadline_s):
                connection = await self._connect()
        except (OSError, ValueError) as error:
            if (posed := self._first()) is not None:
                posed.fail(unreachable(error))
            return
        self._open.add(connection)
        self.rest(connection, fresh=True)

    async def _connect(self) -> Connection:
        """To the first address that takes it; each has its part of the time, so that none keeps it all."""
        addresses = await self._addresses()
        for left in range(len(addresses), 0, -1):
            connection = Connection(self, self._most)
            try:
                async with asyncio.timeout(self._deadline_s / len(addresses)):
                    await self._loop.create_connection(
                        lambda connection=connection: connection,
                        addresses[-left],
                        self._port,
                        ssl=self._context,
                        server_hostname=None if self._context is None else self._host,
                    )
            except BaseException as error:
                connection.close()  # it may have been made when the time was over
                if left == 1 or not isinstance(error, OSError):  # a timeout is one
                    raise
            else:
                return connection
        raise OSError("the name has no address")

    async def _addresses(self) -> list[str]:
        """What the host stands for. One look-up at a time, whoever waits for it and however long it hangs."""
        try:
            return [str(ipaddress.ip_address(self._host))]
        except ValueError:
            pass
        known = self._lookup
        if known is None or (known.done() and (known.exception() or self._loop.time() > self._believed)):
            known = self._lookup = self._loop.create_task(self._look_up())
            known.add_done_callback(lambda done: done.cancelled() or done.exception())
        found = await asyncio.shield(known)
        return list(dict.fromkeys(str(one[4][0]) for one in found))[:_ADDRESSES]

    async def _look_up(self) -> list[Any]:
        found = await self._loop.getaddrinfo(self._host, self._port, type=1)
        self._believed = self._loop.time() + _RESOLVED_S
        return list(found)
