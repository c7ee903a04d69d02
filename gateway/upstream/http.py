"""The upstream over HTTP/1.1: each admitted call goes to one replica, once, with the gateway's own credential.

Another replica is tried only while not one byte was sent; of what admission calls repeatable, one retry may follow an
attempt that was sent, within a budget and the call's one deadline. What travels of a call is request.py's to say.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import secrets
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson

from gateway.contract.envelope import parse_envelope
from gateway.contract.guard import Guarded, guard_answer
from gateway.contract.headers import CAPABILITIES_KEY, PROTOCOL_VERSION, VERSION_KEY
from gateway.contract.passage import Admitted, Call, Server
from gateway.contract.refusals import Refused
from gateway.contract.stream import ResponseStream, StreamLimits
from gateway.lookups import Lookups
from gateway.upstream.port import (
    Answer,
    UpstreamInvalid,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from gateway.upstream.replicas import FREE, PROBE, SEATED, TRIAL, Replica
from gateway.upstream.request import CLIENT_INFO, Tail, headers_of, request_prefix, request_tail
from gateway.upstream.retries import attempt_twice
from gateway.upstream.ring import Ring, ServerRules
from gateway.upstream.target import Fixed, UpstreamLimits, UpstreamTarget
from gateway.upstream.whole import Told, Whole, read_error, result_of
from gateway.upstream.wire import Exchange
from gateway.wires.pem import system_context
from gateway.wires.statements import Stating

SILENT_S = 600.0
"""After so long without a byte a subscription of the house's own may be to a server that is gone."""
_FOR_EVER_S = 10 * 365 * 86400.0


class HttpUpstream:
    """All fronted servers, by name. One per worker and event loop; the port is `gateway.upstream.port.Upstream`."""

    def __init__(
        self,
        targets: Mapping[str, UpstreamTarget],
        limits: UpstreamLimits | None = None,
        rules: Mapping[str, ServerRules] | None = None,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`rules`: server -> how its replicas are asked; `chance` says how much of a pause is waited."""
        self._limits = limits or UpstreamLimits()
        self._chance = chance
        lookups, rules = Lookups(), rules or {}
        self.rings = {
            name: _ring(name, target, self._limits, rules.get(name, ServerRules()), lookups)
            for name, target in targets.items()
        }
        self._stating = {name: target.stating for name, target in targets.items() if target.stating is not None}
        self._numbers = itertools.count(1)
        self._nonce = secrets.token_hex(8)

    @functools.cached_property
    def _clock(self) -> Callable[[], float]:
        """The loop's time. Kept: to ask which loop runs is a call of the system each time (CPython 3.11)."""
        return asyncio.get_running_loop().time

    def has_room(self, server: str, expected: int = 0) -> bool:
        """See the port. True of a server that is not known: its fault is another."""
        ring = self.rings.get(server)
        return ring is None or ring.has_room(expected)

    async def forward(self, admitted: Admitted) -> Answer:
        """See the port. A 4xx or 5xx is an answer only if its body is a JSON-RPC error with the caller's id."""
        call, ring = admitted.call, self._ring_of(admitted.server.name)
        if call.kind == "subscription":
            exchange = await self._exchange(ring, self._tail(admitted), seat=FREE, quiet_s=_FOR_EVER_S, last=True)
        else:
            within_s = ring.rules.deadlines.get(call.method, self._limits.answer_s)
            until = self._clock() + within_s
            if admitted.repeatable:
                attempt = functools.partial(self._attempt, ring, admitted)
                return await attempt_twice(ring, attempt, until, self._chance)
            exchange = await self._exchange(
                ring,
                self._tail(admitted),
                notification=call.envelope.id is None,
                quiet_s=self._limits.quiet_s,
                until=until,
                dear=admitted.use is not None,
            )
        if exchange.status in (200, 202):
            return exchange
        return await read_error(exchange, call)

    def _tail(self, admitted: Admitted) -> Tail:
        """What is sent of an admitted call behind the prefix of its replica."""
        stating = self._stating.get(admitted.server.name)
        own = b"" if stating is None else stating.of_call(admitted, admitted.body)
        return request_tail(admitted.headers, admitted.body, own)

    def stating_to(self, server: str) -> Stating | None:
        """Who tells this server of its callers, if anybody does."""
        return self._stating.get(server)

    async def _attempt(
        self, ring: Ring, admitted: Admitted, until: float, avoid: Collection[Replica] = ()
    ) -> Exchange | Whole:
        """One attempt at a repeatable call; an answer that is no stream is read whole, because it may break."""
        tail = self._tail(admitted)
        exchange = await self._exchange(ring, tail, quiet_s=self._limits.quiet_s, until=until, avoid=avoid)
        if exchange.status not in (200, 202):
            return await read_error(exchange, admitted.call)
        if exchange.streaming:
            return exchange
        return Whole(exchange.status, exchange.replica, await exchange.whole())

    async def inquire(self, server: Server, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. The id is the gateway's own; the answer is whole within `inquire_s`, or `UpstreamTimeout`."""
        ring, clock = self._ring_of(server.name), self._clock

        async def attempt(until: float, avoid: Collection[Replica]) -> Told:
            call, body = self._question(method, params)
            tail = self._own_tail(server.name, call, body)
            sending = self._exchange(ring, tail, seat=FREE, until=until, avoid=avoid)
            # The exchange's own time is up first: it knows which replica it was.
            exchange, guarded = await self.ask(call, sending, until - clock() + 0.05)
            return Told(result_of(call, exchange, guarded), exchange.replica)

        told = await attempt_twice(ring, attempt, clock() + self._limits.inquire_s, self._chance)
        return told.result

    async def discover(self, replica: Replica, within_s: float) -> None:
        """`server/discover` to this very replica. Raises `UpstreamFault` subclasses where it is not answered."""
        call, body = self._question("server/discover", {})
        tail = self._own_tail(replica.ring.server, call, body)
        result_of(call, *await self.ask(call, self.send(replica, tail, seat=PROBE), within_s))

    async def check(self, replica: Replica, path: str) -> int:
        """GET a path of this very replica, without a credential -> the status. Raises `UpstreamFault` subclasses."""
        head = f"GET {path} HTTP/1.1\r\nhost: {replica.address.authority}\r\nconnection: close\r\n\r\n"
        connection = replica.take() or await replica.connect()
        exchange = connection.ask(head.encode("ascii"), replica.address.url, self._limits, quiet_s=1.0, seat=PROBE)
        try:
            await exchange.head()
        except UpstreamInvalid as fault:
            return fault.status  # what a health check answers need be no JSON
        exchange.abort()
        return exchange.status

    async def listen(self, server: Server, wanted: Mapping[str, bool]) -> tuple[Call, Answer]:
        """See the port."""
        call, body = self._question("subscriptions/listen", {"notifications": wanted})
        tail = self._own_tail(server.name, call, body)
        exchange = await self._exchange(self._ring_of(server.name), tail, seat=FREE, quiet_s=SILENT_S, last=True)
        if exchange.status == 200 and exchange.streaming:
            return replace(call, kind="subscription"), exchange
        exchange.abort()
        detail = f"{call.method}: no event stream, status {exchange.status}"
        raise UpstreamInvalid(detail, sent=True, replica=exchange.replica, status=exchange.status)

    async def ask(
        self, call: Call, sending: Coroutine[Any, Any, Exchange], within_s: float
    ) -> tuple[Exchange, Guarded]:
        """Send a question of the house -> the exchange, over, and the whole answer: a result or a JSON-RPC error.

        Raises `UpstreamFault` subclasses; `status` is then that of an answer that was none.
        """
        exchange: Exchange | None = None
        try:
            async with asyncio.timeout(within_s):
                exchange = await sending
                return exchange, await self._read_whole(exchange, call)
        except TimeoutError:
            raise UpstreamTimeout(f"{call.method}: no whole answer in time", sent=True) from None
        except Refused as refused:
            replica, status = (exchange.replica, exchange.status) if exchange is not None else ("", 0)
            raise UpstreamInvalid(
                f"{call.method}: {refused.detail}", sent=True, replica=replica, status=status
            ) from None
        finally:
            if exchange is not None:
                exchange.abort()

    async def close(self) -> None:
        """Close every connection at once; what still runs ends with a fault."""
        for ring in self.rings.values():
            ring.close()

    def _ring_of(self, server: str) -> Ring:
        """Raises `UpstreamUnreachable` for a server that is not known."""
        ring = self.rings.get(server)
        if ring is None:
            raise UpstreamUnreachable("no such server is configured", sent=False)
        return ring

    def replicas_of(self, server: str, *, tries: bool) -> list[Replica]:
        """Whom to try for the next request, in order (`tries`: see `Ring.order_by_health`).

        Raises `UpstreamUnreachable` for a server that is not known.
        """
        return self._ring_of(server).order_by_health(self._clock(), tries=tries)

    async def await_room(self, server: str) -> None:
        """Wait until some replica has room. Raises `UpstreamFull`."""
        ring = self._ring_of(server)
        if ring.is_full():
            ring.leave(await ring.wait(self._clock() + self._limits.answer_s))

    async def send(
        self,
        replica: Replica,
        tail: Tail,
        *,
        verb: bytes = b"POST",
        notification: bool = False,
        quiet_s: float = 0.0,
        until: float = 0.0,
        seat: int = FREE,
        last: bool = False,
    ) -> Exchange:
        """Send one request to this replica, and wait for an accepted head. Raises `UpstreamFault` subclasses.

        A `seat` is one that was taken: it is left when the request is over, whatever comes of it.
        """
        connection = replica.take()
        if connection is None:
            connected = False
            try:
                connection = await replica.connect(until)
                connected = True
            finally:
                if seat > FREE and not connected:
                    replica.leave()
        head = replica.prefix if verb == b"POST" else verb + replica.prefix[len(b"POST") :]
        exchange = connection.ask(
            head + tail[0],
            replica.address.url,
            self._limits,
            body=tail[1],
            notification=notification,
            quiet_s=quiet_s,
            until=until,
            seat=seat,
            last=last,
        )
        await exchange.head()
        return exchange

    async def send_seated(
        self, replica: Replica, tail: Tail, method: str, *, notification: bool, quiet_s: float
    ) -> Exchange:
        """The same for a caller's request to a replica that was chosen before, with a place and the method's time."""
        within_s = replica.ring.rules.deadlines.get(method, self._limits.answer_s)
        until = self._clock() + within_s
        replica.running += 1
        seat = TRIAL if replica.health.out else SEATED
        return await self.send(replica, tail, notification=notification, quiet_s=quiet_s, until=until, seat=seat)

    async def _exchange(
        self,
        ring: Ring,
        tail: Tail,
        *,
        seat: int = SEATED,
        notification: bool = False,
        quiet_s: float = 0.0,
        until: float = 0.0,
        dear: bool = False,
        avoid: Collection[Replica] = (),
        last: bool = False,
    ) -> Exchange:
        """Send one request to the first replica that takes it; another is tried only while not one byte was sent.

        `last`: the connection carries nothing after it: a server that leaves ends subscriptions, and then closes.
        """
        fault: UpstreamUnreachable | None = None
        clock = self._clock
        tried: Collection[Replica] = avoid
        while True:
            if not seat:
                order = ring.order_by_health(clock(), again=bool(tried))
                replica = next((one for one in order if one not in tried), None)
            else:
                replica = ring.take(clock(), tried, dear=dear)
                if replica is None and ring.is_full(tried):
                    replica = await ring.wait(until)
            if replica is None:
                if not avoid:
                    raise fault or UpstreamUnreachable("no replica is there", sent=False)
                tried, avoid = [one for one in tried if one not in avoid], ()
                continue
            taken = TRIAL if seat and replica.health.out else seat
            connection = replica.take()
            try:
                if connection is None:
                    return await self.send(
                        replica, tail, notification=notification, quiet_s=quiet_s, until=until, seat=taken, last=last
                    )
                exchange = connection.ask(
                    replica.prefix + tail[0],
                    replica.address.url,
                    self._limits,
                    body=tail[1],
                    notification=notification,
                    quiet_s=quiet_s,
                    until=until,
                    seat=taken,
                    last=last,
                )
                await exchange.head(replica.vigil_over(taken))
            except UpstreamUnreachable as refused:
                if refused.sent:
                    raise
                tried = [*tried, replica]
                fault = refused
            else:
                return exchange

    async def _read_whole(self, exchange: Exchange, call: Call) -> Guarded:
        if not exchange.streaming:
            return guard_answer(call, await exchange.whole())
        stream = ResponseStream(call, StreamLimits(event_bytes=self._limits.result_bytes, events=1000))
        async with aclosing(exchange.chunks()) as pieces:
            async for piece in pieces:
                stream.feed(piece)
                if stream.final is not None:
                    exchange.release()
                if stream.final is not None or stream.fault:
                    break
        stream.finish()
        if stream.final is None:
            raise UpstreamInvalid(stream.fault, sent=True, replica=exchange.replica)
        return stream.final

    def _own_tail(self, server: str, call: Call, body: bytes) -> Tail:
        """The same of a question of the house, in which it speaks for itself."""
        stating = self._stating.get(server)
        own = b"" if stating is None else stating.of_question(body, str(call.envelope.id), call.method, call.name)
        return request_tail(headers_of(call), body, own)

    def _question(self, method: str, params: Mapping[str, Any]) -> tuple[Call, bytes]:
        """The house's own request, with all that the revision asks of one."""
        meta = {
            VERSION_KEY: PROTOCOL_VERSION,
            CAPABILITIES_KEY: {},
            "io.modelcontextprotocol/clientInfo": CLIENT_INFO,
        }
        request_id = f"ostiary-{self._nonce}-{next(self._numbers)}"
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**params, "_meta": meta}}
        body = orjson.dumps(message)
        name = params.get("name", params.get("uri"))
        return Call(parse_envelope(body), "inquiry", method, name, params, {}), body


def _ring(server: str, target: UpstreamTarget, limits: UpstreamLimits, rules: ServerRules, lookups: Lookups) -> Ring:
    tls = target.tls
    if tls is None and any(address.secure for address in target.replicas):
        tls = Fixed(system_context())
    named = zip(target.replicas, _names(target), strict=True)
    replicas = tuple(
        Replica(address, request_prefix(address, target), tls, limits, rules=rules.health, lookups=lookups, name=name)
        for address, name in named
    )
    return Ring(server, replicas, rules)


def _names(target: UpstreamTarget) -> list[str]:
    """What metrics and the log call the replicas: host and port, and which one where several have the same."""
    names = [address.authority for address in target.replicas]
    return [
        name if names.count(name) == 1 else f"{name}#{names[:number].count(name) + 1}"
        for number, name in enumerate(names)
    ]
