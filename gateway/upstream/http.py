"""The upstream over HTTP/1.1: each admitted call goes to one replica, once, with the gateway's own credential.

Another replica is tried only while not one byte was sent. What the caller brought along (credentials, cookies,
framing, forwarding headers) never travels, even if admission let it through (contract.md sections 1, 5, 6; rows UPS).
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
import secrets
import ssl
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import orjson

from gateway.contract.envelope import parse_envelope
from gateway.contract.guard import EXECUTED, RPC_ERROR, Guarded, guard_answer
from gateway.contract.headers import CAPABILITIES_KEY, PROTOCOL_VERSION, VERSION_KEY, encode_value
from gateway.contract.passage import Admitted, Call, Server
from gateway.contract.refusals import Refused
from gateway.contract.stream import ResponseStream, StreamLimits
from gateway.upstream.port import Answer, UpstreamInvalid, UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.replicas import Replica, Ring
from gateway.upstream.target import ReplicaAddress, UpstreamLimits, UpstreamTarget
from gateway.upstream.wire import Exchange

NEVER_FORWARDED = frozenset(
    b"authorization cookie cookie2 host connection keep-alive proxy-connection te trailer transfer-encoding upgrade"
    b" content-length content-encoding accept-encoding expect forwarded via x-real-ip mcp-session-id last-event-id"
    b" origin referer".split()
)
"""Fields of the caller's that no server sees; besides those that start with `proxy-` or `x-forwarded-`."""

Fields = tuple[tuple[bytes, bytes], ...]

_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e]*\r\n")
CLIENT_INFO = {"name": "ostiary", "version": version("ostiary")}
_SMALL = 1024
"""Bytes of header values up to which their lines are kept for the next call of the same kind."""
_OWN = (
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
    (b"mcp-protocol-version", PROTOCOL_VERSION.encode()),
)
SILENT_S = 600.0
"""After so long without a byte a subscription of the house's own may be to a server that is gone."""
_FOR_EVER_S = 10 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer whose body was read already, because only the body says whether it is one: a JSON-RPC error."""

    status: int
    replica: str
    body: bytes
    streaming: bool = False

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The body, in one piece."""
        yield self.body

    def interrupt(self) -> None:
        """Nothing is open any more."""

    def release(self) -> None:
        """Nothing is open any more."""

    async def close(self) -> None:
        """Nothing is open any more."""


class HttpUpstream:
    """All fronted servers, by name. One per worker and event loop; the port is `gateway.upstream.port.Upstream`."""

    def __init__(self, targets: Mapping[str, UpstreamTarget], limits: UpstreamLimits | None = None) -> None:
        self._limits = limits or UpstreamLimits()
        self._rings = {name: _ring(target, self._limits) for name, target in targets.items()}
        self._numbers = itertools.count(1)
        self._nonce = secrets.token_hex(8)

    def replicas(self) -> dict[str, tuple[int, int]]:
        """For metrics: server -> how many replicas it has, and how many of them were not reached when last tried."""
        return {
            name: (len(ring.replicas), sum(replica.failures > 0 for replica in ring.replicas))
            for name, ring in self._rings.items()
        }

    async def forward(self, admitted: Admitted) -> Answer:
        """See the port. A 4xx or 5xx is an answer only if its body is a JSON-RPC error with the caller's id."""
        call = admitted.call
        quiet_s = _FOR_EVER_S if call.kind == "subscription" else self._limits.quiet_s
        exchange = await self._exchange(
            admitted.server.name,
            request_tail(admitted.headers, admitted.body),
            notification=call.envelope.id is None,
            quiet_s=quiet_s,
        )
        if exchange.status in (200, 202):
            return exchange
        return await read_error(exchange, call)

    async def inquire(self, server: Server, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. The id is the gateway's own; the answer is whole within `inquire_s`, or `UpstreamTimeout`."""
        call, body = self._question(method, params)
        sending = self._exchange(server.name, request_tail(_headers_of(call), body))
        return result_of(call, *await self.ask(call, sending, self._limits.inquire_s))

    async def listen(self, server: Server, wanted: Mapping[str, bool]) -> tuple[Call, Answer]:
        """See the port."""
        call, body = self._question("subscriptions/listen", {"notifications": wanted})
        exchange = await self._exchange(server.name, request_tail(_headers_of(call), body), quiet_s=SILENT_S)
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
        for ring in self._rings.values():
            ring.close()

    def replicas_of(self, server: str) -> list[Replica]:
        """Whom to try for the next request, in order. Raises `UpstreamUnreachable` for a server that is not known."""
        ring = self._rings.get(server)
        if ring is None:
            raise UpstreamUnreachable("no such server is configured", sent=False)
        return ring.order(asyncio.get_running_loop().time())

    async def send(
        self,
        replica: Replica,
        tail: bytes,
        *,
        verb: bytes = b"POST",
        notification: bool = False,
        quiet_s: float = 0.0,
    ) -> Exchange:
        """Send one request to this replica, and wait for an accepted head. Raises `UpstreamFault` subclasses."""
        connection = replica.take()
        if connection is None:
            replica.attempt(asyncio.get_running_loop().time())
            connection = await replica.connect()
        head = replica.prefix if verb == b"POST" else verb + replica.prefix[len(b"POST") :]
        exchange = connection.ask(
            head + tail, replica.address.url, self._limits, notification=notification, quiet_s=quiet_s
        )
        await exchange.head()
        return exchange

    async def _exchange(
        self, server: str, tail: bytes, *, notification: bool = False, quiet_s: float = 0.0
    ) -> Exchange:
        """Send one request to the first replica that takes it; another is tried only while not one byte was sent."""
        fault = UpstreamUnreachable("no replica is configured", sent=False)
        for replica in self.replicas_of(server):
            try:
                return await self.send(replica, tail, notification=notification, quiet_s=quiet_s)
            except UpstreamUnreachable as refused:
                if refused.sent:
                    raise
                fault = refused
        raise fault

    async def _read_whole(self, exchange: Exchange, call: Call) -> Guarded:
        if not exchange.streaming:
            return guard_answer(call, b"".join([piece async for piece in exchange.chunks()]))
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


def _headers_of(call: Call) -> Fields:
    """The header lines of a question of the house."""
    named = () if call.name is None else ((b"mcp-name", encode_value(call.name)),)
    return (*_OWN, (b"mcp-method", call.method.encode()), *named)


def result_of(call: Call, exchange: Exchange, guarded: Guarded) -> Mapping[str, Any]:
    """The result of a question of the house. Raises `UpstreamInvalid` for any other answer to it."""
    if guarded.outcome != EXECUTED:
        detail = f"{call.method}: {guarded.outcome} {guarded.code or ''}".rstrip()
        raise UpstreamInvalid(detail, sent=True, replica=exchange.replica, code=guarded.code)
    return guarded.result


async def read_error(exchange: Exchange, call: Call) -> Whole:
    """The answer whose status says that it is an error. Raises `UpstreamInvalid` where its body is no JSON-RPC error
    with the call's id."""
    body = b"".join([piece async for piece in exchange.chunks()])
    status, replica = exchange.status, exchange.replica
    if call.envelope.id is None:
        raise UpstreamInvalid(f"status {status} to a notification", sent=True, replica=replica, status=status)
    try:
        guarded = guard_answer(call, body)
    except Refused as refused:
        detail = f"status {status}: {refused.detail}"
        raise UpstreamInvalid(detail, sent=True, replica=replica, status=status) from None
    if guarded.outcome != RPC_ERROR:
        raise UpstreamInvalid(f"status {status} with a result", sent=True, replica=replica)
    return Whole(status, replica, body)


def _ring(target: UpstreamTarget, limits: UpstreamLimits) -> Ring:
    tls = target.tls
    if tls is None and any(address.secure for address in target.replicas):
        tls = ssl.create_default_context()
    if tls is not None:
        tls.set_alpn_protocols(["http/1.1"])
    return Ring(tuple(Replica(address, _prefix(address, target), tls, limits) for address in target.replicas))


def _prefix(address: ReplicaAddress, target: UpstreamTarget) -> bytes:
    """The part of the head that is the same in every request to a replica."""
    lines = [f"POST {address.path} HTTP/1.1", f"host: {address.authority}", "accept-encoding: identity"]
    if target.credential_header:
        lines.append(f"{target.credential_header.lower()}: {target.credential_value}")
    return "".join(f"{line}\r\n" for line in lines).encode("ascii")


def request_tail(headers: Fields, body: bytes, own: bytes = b"") -> bytes:
    """The rest of a request: the admitted fields, the house's `own` lines (checked, each with its end), the body."""
    small = sum([len(value) for _, value in headers]) <= _SMALL
    fields = _few_fields(headers) if small else _write_fields(headers)
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (fields, own, len(body), body)


def _write_fields(headers: Fields) -> bytes:
    """Header fields as lines. Raises `UpstreamInvalid` (nothing was sent) for one that is not exactly one line."""
    fields = []
    for name, value in headers:
        key = name.lower()
        if key in NEVER_FORWARDED or key.startswith((b"proxy-", b"x-forwarded-")):
            continue
        field = key + b": " + value + b"\r\n"
        if not _FIELD.fullmatch(field):
            raise UpstreamInvalid("an admitted header is not one line", sent=False)
        fields.append(field)
    return b"".join(fields)


_few_fields = functools.lru_cache(256)(_write_fields)
