"""Sessions at servers of earlier revisions: who has one where, how it begins, and how it ends.

A session may hold what one caller did in it (a subscription, a log level, a resource that a tool made), so it
belongs to one principal at one replica, and to nobody else (rule G8). None is told to a caller, written to a log, or
needed: a call says all that it is, and who has no session any more gets another. Bounded; what idles is ended.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from gateway.contract.passage import Call, Envelope, Identity
from gateway.contract.past import Welcome, introduction, read_session_id, read_welcome
from gateway.contract.refusals import Refused
from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import UpstreamFault, UpstreamInvalid, UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.replicas import Replica
from gateway.upstream.request import CLIENT_INFO, request_tail
from gateway.upstream.whole import result_of
from gateway.upstream.wire import Exchange

Who = tuple[str, ...]
"""A principal: issuer, subject, tenant and client; empty for the house itself."""

_Key = tuple[str, str, Who]
_Place = tuple[str, str]
_JSON = ((b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream"))


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds of one worker's sessions (counts, seconds, bytes).

    `sessions`: at all servers together. `idle_s`: after which one is ended; below the half hour of common servers.
    `welcome_bytes`: of an answer to `initialize`. `rest_s`: after the first, second, ... failure in a row at one
    replica. `errands`: what one server is told and nobody waits for; `errands_at_once`: of those.
    """

    sessions: int = 1024
    idle_s: float = 300.0
    initialize_s: float = 10.0
    welcome_bytes: int = 262_144
    rest_s: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    errands: int = 1024
    errands_at_once: int = 16
    errand_s: float = 2.0


@dataclass(eq=False, slots=True)
class Session:
    """One principal's session at one replica. `id` is empty at a server that keeps none."""

    key: _Key
    replica: Replica
    id: bytes
    version: str
    uses: int = 0
    used_at: float = 0.0
    retired: bool = False

    @property
    def lines(self) -> bytes:
        """The header lines that each request in it carries."""
        version = b"mcp-protocol-version: %b\r\n" % self.version.encode()
        return version + (b"mcp-session-id: %b\r\n" % self.id if self.id else b"")


class Sessions:
    """All sessions of one worker. `versions` says which revision each such server is offered."""

    def __init__(self, http: HttpUpstream, versions: Mapping[str, str], limits: SessionLimits | None = None) -> None:
        self._http = http
        self._versions = versions
        self._limits = limits or SessionLimits()
        self._kept: OrderedDict[_Key, Session] = OrderedDict()
        self._ending: set[Session] = set()  # no longer kept, and yet a call runs in it
        self._opening: dict[_Key, asyncio.Task[None]] = {}
        self._welcomes: dict[_Place, Welcome] = {}
        self._rests: dict[_Place, tuple[int, float]] = {}
        self._errands: dict[str, set[asyncio.Task[None]]] = {server: set() for server in versions}
        self._turns = {server: asyncio.Semaphore(self._limits.errands_at_once) for server in versions}
        self._sweep: asyncio.TimerHandle | None = None
        self._nonce = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._log = structlog.get_logger("upstream")
        self.opened = 0
        self.lost = 0

    def counts(self) -> dict[str, int]:
        """For metrics: server -> sessions that are kept at it."""
        found = dict.fromkeys(self._versions, 0)
        for server, _, _ in self._kept:
            found[server] += 1
        return found

    def new_id(self) -> str:
        """An id for a request. In a session, no two requests may share one, whatever ids their callers chose."""
        return f"ostiary-{self._nonce}-{next(self._numbers)}"

    def question(self, method: str, params: Mapping[str, Any]) -> Call:
        """The house's own request, as an earlier revision has it; `envelope.raw` is its body."""
        request_id = self.new_id()
        body = orjson.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return Call(Envelope(body, request_id, method, params, {}), "inquiry", method, None, params, {})

    def ask_in(self, session: Session, call: Call) -> Coroutine[Any, Any, Exchange]:
        """The sending of a question of the house in a session."""
        body = call.envelope.raw
        own = session.lines + self.state(session.key, body, str(call.envelope.id), call.method)
        return self._http.send(session.replica, request_tail(_JSON, body, own))

    def state(self, key: _Key, body: bytes, request_id: str, method: str) -> bytes:
        """The line that tells the server whose session it is, where it is told of its callers at all."""
        stating = self._http.stating_to(key[0])
        if stating is None:
            return b""
        who = None
        if key[2]:
            issuer, subject, tenant, client_id = key[2]
            who = Identity(issuer, subject, client_id, tenant)
        return stating.of_question(body, request_id, method, who=who)

    def welcome_of(self, session: Session) -> Welcome:
        """What the session's replica said when one was last opened there."""
        return self._welcomes[session.key[:2]]

    async def enter(self, server: str, replica: Replica, who: Who) -> tuple[Session, bool]:
        """A principal's session at a replica, to be left again, and whether it has only just been opened.

        Whoever waits for the same one shares its opening. Raises `UpstreamFault` subclasses with `sent` false.
        """
        key = (server, replica.address.url, who)
        fresh = False
        while (session := self._kept.get(key)) is None:
            opening = self._opening.get(key) or self._begin(key, replica)
            try:
                await asyncio.shield(opening)
            except UpstreamFault as fault:
                raise type(fault)(f"session: {fault.detail}", sent=False, replica=fault.replica) from fault
            fresh = True
        self._kept.move_to_end(key)
        session.uses += 1
        return session, fresh

    def leave(self, session: Session) -> None:
        """The request that entered it is over."""
        session.uses -= 1
        session.used_at = asyncio.get_running_loop().time()
        if not session.uses:
            self._ending.discard(session)
            if session.retired:
                self._farewell(session)

    def lose(self, session: Session) -> None:
        """The server does not know it any more."""
        if self._kept.get(session.key) is session:
            del self._kept[session.key]
            if session.uses:
                self._ending.add(session)
            self.lost += 1
            self._log.info("upstream_session_lost", server=session.key[0], replica=session.key[1])

    def retire(self, session: Session) -> None:
        """The server may not know it any more: nobody enters it again, and the last request in it ends it."""
        if self._kept.get(session.key) is session:
            self.lose(session)
            session.retired = True
            if not session.uses:
                self._farewell(session)

    def call_off(self, session: Session, request_id: str) -> None:
        """Tell the server that nobody waits for a request any more: to it, a closed connection says nothing."""
        told = self._tell(session, "notifications/cancelled", {"requestId": request_id})
        self._run_errand(session.key[0], told)

    async def close(self) -> None:
        """End every session at its server, as far as servers answer soon."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for task in self._opening.values():
            task.cancel()
        for session in list(self._kept.values()):
            self._end(session)
        left = set(self._opening.values()).union(*self._errands.values())
        if left:
            _, late = await asyncio.wait(left, timeout=self._limits.errand_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _begin(self, key: _Key, replica: Replica) -> asyncio.Task[None]:
        now = asyncio.get_running_loop().time()
        _, until = self._rests.get(key[:2], (0, 0.0))
        if now < until:
            raise UpstreamUnreachable("session: none could be opened a moment ago", sent=False, replica=key[1])
        if len(self._kept) + len(self._opening) >= self._limits.sessions:
            idle = next((one for one in self._kept.values() if not one.uses), None)
            if idle is None:
                raise UpstreamUnreachable("session: all are in use", sent=False, replica=key[1])
            self._end(idle)
        task = self._opening[key] = asyncio.create_task(self._open(key, replica), name="session")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _open(self, key: _Key, replica: Replica) -> None:
        place = key[:2]
        try:
            async with asyncio.timeout(self._limits.initialize_s):
                session = await self._introduce(key, replica)
            self._forget_namesake(session)
        except TimeoutError:
            fault: UpstreamFault = UpstreamTimeout("initialize took too long", sent=True, replica=place[1])
        except UpstreamFault as found:
            fault = found
        else:
            self._rests.pop(place, None)
            self._keep(session)
            return
        finally:
            del self._opening[key]
        if fault.sent:
            failures = self._rests.get(place, (0, 0.0))[0] + 1
            longest = self._limits.rest_s[min(failures, len(self._limits.rest_s)) - 1]
            rest = longest * random.uniform(0.5, 1.0)  # noqa: S311 - so that workers do not return together
            self._rests[place] = failures, asyncio.get_running_loop().time() + rest
            self._log.warning("upstream_session_refused", server=place[0], replica=place[1], detail=fault.detail)
        raise fault

    async def _introduce(self, key: _Key, replica: Replica) -> Session:
        """`initialize`, then `notifications/initialized`. Raises `UpstreamFault` subclasses."""
        limits, http = self._limits, self._http
        call = self.question("initialize", introduction(self._versions[key[0]], CLIENT_INFO))
        own = self.state(key, call.envelope.raw, str(call.envelope.id), call.method)
        sending = http.send(replica, request_tail(_JSON, call.envelope.raw, own))
        exchange, guarded = await http.ask(call, sending, limits.initialize_s)
        result = result_of(call, exchange, guarded)
        try:
            session_id = read_session_id(exchange.values(b"mcp-session-id"))
            if len(guarded.raw) > limits.welcome_bytes:
                raise UpstreamInvalid("initialize: the answer is too large", sent=True, replica=key[1])
            welcome = read_welcome(result)
        except Refused as refused:
            raise UpstreamInvalid(refused.detail, sent=True, replica=key[1]) from None
        session = Session(key, replica, session_id, welcome.version)
        await self._tell(session, "notifications/initialized", {})
        self._welcomes[key[:2]] = welcome
        return session

    def _forget_namesake(self, session: Session) -> None:
        """An id that the server gave away anew is nobody else's. Raises `UpstreamInvalid` while another uses it."""
        for other in (*self._kept.values(), *self._ending) if session.id else ():
            if other.id == session.id and other.key[0] == session.key[0]:
                other.retired = False  # to end it would end this one
                if other.key[2] == session.key[2]:
                    continue  # the same principal's, given up or at another replica
                if other.uses:
                    raise UpstreamInvalid("initialize: a session that another has", sent=True, replica=session.key[1])
                self.lose(other)

    def _keep(self, session: Session) -> None:
        loop = asyncio.get_running_loop()
        session.used_at = loop.time()
        self._kept[session.key] = session
        self.opened += 1
        if self._sweep is None:
            self._sweep = loop.call_later(self._limits.idle_s / 4, self._sweep_idle)

    def _sweep_idle(self) -> None:
        """End what has idled for too long; look again while there is any."""
        loop = asyncio.get_running_loop()
        self._sweep = None
        before = loop.time() - self._limits.idle_s
        for session in [one for one in self._kept.values() if not one.uses and one.used_at <= before]:
            self._end(session)
        if self._kept:
            self._sweep = loop.call_later(self._limits.idle_s / 4, self._sweep_idle)

    def _end(self, session: Session) -> None:
        del self._kept[session.key]
        self._farewell(session)

    def _farewell(self, session: Session) -> None:
        if session.id:
            self._run_errand(session.key[0], self._delete(session))

    async def _delete(self, session: Session) -> None:
        own = session.lines + self.state(session.key, b"", self.new_id(), "DELETE")
        await _drain(await self._http.send(session.replica, request_tail((), b"", own), verb=b"DELETE"))

    async def _tell(self, session: Session, method: str, params: Mapping[str, Any]) -> None:
        """A notification. One that is answered with any 2xx was taken."""
        message = {"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})}
        body = orjson.dumps(message)
        own = session.lines + self.state(session.key, body, self.new_id(), method)
        tail = request_tail(_JSON, body, own)
        try:
            exchange = await self._http.send(session.replica, tail, notification=True)
            await _drain(exchange)
        except UpstreamFault as fault:
            if fault.status // 100 != 2:
                raise
            return
        if exchange.status != 202:
            raise UpstreamInvalid(f"{method}: status {exchange.status}", sent=True, replica=session.key[1])

    def _run_errand(self, server: str, errand: Coroutine[Any, Any, None]) -> None:
        """Something that the server should hear and that nobody waits for; one that hangs is in no other's way."""
        errands = self._errands[server]
        if len(errands) >= self._limits.errands:
            errand.close()
            return
        task = asyncio.create_task(self._try(self._turns[server], errand), name="errand")
        errands.add(task)
        task.add_done_callback(errands.discard)

    async def _try(self, turns: asyncio.Semaphore, errand: Coroutine[Any, Any, None]) -> None:
        try:
            async with turns, asyncio.timeout(self._limits.errand_s):
                await errand
        except (UpstreamFault, TimeoutError):
            pass  # the server ends by itself what it keeps for nobody
        finally:
            errand.close()


async def _drain(exchange: Exchange) -> None:
    async for _ in exchange.chunks():
        pass
