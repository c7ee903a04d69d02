"""Servers of earlier revisions behind the same port: the house initializes, keeps the session, and translates.

A call is sent once. Where losing the session could make it necessary to send it again, the session is asked first
(`ping`) whether it is still there; only a list, which changes nothing, may be asked for twice. Everything else is
`HttpUpstream`'s: where requests go, what is an accepted head, every limit (docs/upstream.md, "Old servers").
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from gateway.contract.guard import RPC_ERROR, Guarded, guard_answer
from gateway.contract.passage import Admitted, Call, Identity, Server
from gateway.contract.past import (
    LISTS,
    PastStream,
    call_of_the_past,
    headers_of_the_past,
    is_known_to_the_past,
    own_answer,
    present_answer,
)
from gateway.contract.refusals import INVALID_PARAMS, METHOD_NOT_FOUND, Refused
from gateway.contract.stream import StreamLimits, TooLarge
from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import Answer, UpstreamFault, UpstreamInvalid, UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.request import request_tail
from gateway.upstream.sessions import Session, SessionLimits, Sessions, Who
from gateway.upstream.target import UpstreamLimits
from gateway.upstream.whole import Whole, read_error, result_of
from gateway.upstream.wire import Exchange

LOST = frozenset({400, 404, 410})
"""What a server answers to a session that it does not know: 404 as the revisions say, 400 and 410 as others do."""

_ANSWERS = (METHOD_NOT_FOUND, INVALID_PARAMS)
"""Codes that say something about a question, never about its session."""

HOUSE: Who = ()

Found = TypeVar("Found")

Asked = tuple[Call, Call]
"""The caller's call, and the same as it was sent."""


class PastAnswer:
    """An old server's answer, as one of this revision (`gateway.upstream.port.Answer`)."""

    def __init__(
        self, sessions: Sessions, session: Session, exchange: Exchange, asked: Asked, limits: StreamLimits
    ) -> None:
        self._sessions = sessions
        self._session: Session | None = session
        self._exchange = exchange
        self._call, self._asked = asked
        self._stream = PastStream(*asked, limits)
        self._answered = self._asked.envelope.id is None
        self._code = 0
        self.status, self.streaming, self.replica = exchange.status, exchange.streaming, exchange.replica
        self.retries = 0

    async def chunks(self) -> AsyncGenerator[bytes]:
        """See the port."""
        try:
            if not self.streaming:
                body = await self._exchange.whole()
                text = body
                if not self._answered:
                    guarded = guard_answer(self._asked, body)
                    text, self._code = present_answer(self._call, guarded), guarded.code
                self._answered = True
                yield text
                return
            async for piece in self._exchange.chunks():
                told = self._stream.feed(piece)
                self._answered, self._code = self._stream.answered, self._stream.code
                if told:
                    yield told
        except TooLarge:
            raise UpstreamInvalid("an event is too large", sent=True, replica=self.replica) from None
        except Refused as refused:
            raise UpstreamInvalid(refused.detail, sent=True, replica=self.replica) from None

    async def whole(self) -> bytes:
        """See the port."""
        return b"".join([piece async for piece in self.chunks()])

    def interrupt(self) -> None:
        """See the port."""
        self._exchange.interrupt()

    def release(self) -> None:
        """See the port."""
        self._exchange.release()
        self._leave()

    async def close(self) -> None:
        """See the port. A call that was not answered is called off."""
        await self._exchange.close()
        self._leave()

    def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._sessions.leave(session)
            if self._code and self._code not in _ANSWERS and self._call.method in LISTS:
                self._sessions.retire(session)  # it may be that of an unknown session, and no ping asked before it
            if not self._answered:
                self._sessions.call_off(session, str(self._asked.envelope.id))


class LegacyUpstream:
    """All fronted servers, those of earlier revisions among them (`gateway.upstream.port.Upstream`).

    `versions`: server -> the revision that it is offered; all others are the plain upstream's business.
    """

    def __init__(
        self,
        http: HttpUpstream,
        versions: Mapping[str, str],
        limits: UpstreamLimits | None = None,
        session_limits: SessionLimits | None = None,
    ) -> None:
        self._http = http
        self._versions = versions
        self._limits = limits or UpstreamLimits()
        self._stream_limits = StreamLimits(event_bytes=self._limits.result_bytes)
        self.sessions = Sessions(http, versions, session_limits)

    def forward(self, admitted: Admitted) -> Coroutine[Any, Any, Answer]:
        """See the port."""
        return (self._forward if admitted.server.name in self._versions else self._http.forward)(admitted)

    async def _forward(self, admitted: Admitted) -> Answer:
        """What no earlier revision knows is answered here."""
        call, server = admitted.call, admitted.server.name
        if call.method == "server/discover":
            session = await self._enter(server, HOUSE)
            self.sessions.leave(session)
            return Whole(200, session.key[1], own_answer(call, self.sessions.welcome_of(session).discovery))
        if not is_known_to_the_past(call):
            return Whole(404, "", own_answer(call, None))
        if call.request_state is not None or call.input_responses is not None:
            raise UpstreamInvalid("an answer to what this server can't have asked", sent=False)
        who = _principal(admitted.identity)
        await self._http.await_room(server)
        if call.method in LISTS:
            return await self._list(server, who, lambda session: self._send(session, admitted), tries=True)
        session = await self._enter(server, who, tries=admitted.use is None)
        try:
            return await self._send(session, admitted)
        except UpstreamFault as fault:
            self._is_lost(session, fault, doubted=False)
            raise

    def has_room(self, server: str, expected: int = 0) -> bool:
        """See the port."""
        return self._http.has_room(server, expected)

    async def inquire(self, server: Server, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. `server/discover` is what the server said to `initialize`."""
        if server.name not in self._versions:
            return await self._http.inquire(server, method, params)
        if method in LISTS:
            return await self._list(server.name, HOUSE, lambda session: self._ask(session, method, params))
        session = await self._enter(server.name, HOUSE)
        if method == "server/discover":
            self.sessions.leave(session)
            return self.sessions.welcome_of(session).discovery
        return await self._ask(session, method, params)

    async def listen(self, server: Server, wanted: Mapping[str, bool]) -> tuple[Call, Answer]:
        """See the port. No earlier revision knows of it."""
        if server.name in self._versions:
            raise UpstreamInvalid("subscriptions/listen: a server of an earlier revision", sent=False)
        return await self._http.listen(server, wanted)

    async def close(self) -> None:
        """End the sessions, then close every connection."""
        await self.sessions.close()
        await self._http.close()

    async def _list(
        self, server: str, who: Who, ask: Callable[[Session], Awaitable[Found]], *, tries: bool = False
    ) -> Found:
        """Ask for a list: once more where its session was lost, and another replica while not one byte was sent.

        Raises `UpstreamFault` subclasses.
        """
        fault: UpstreamFault = UpstreamUnreachable("no replica is configured", sent=False)
        replicas, again = self._http.replicas_of(server, tries=tries), False
        while replicas:
            session = None
            try:
                session, _ = await self.sessions.enter(server, replicas[0], who)
                return await ask(session)
            except UpstreamFault as found:
                fault = found
            if session is not None and self._is_lost(session, fault, doubted=True) and not again:
                again = True
            elif fault.sent:
                break
            else:
                del replicas[0]
        raise fault

    async def _enter(self, server: str, who: Who, *, tries: bool = False) -> Session:
        """A session at the first replica that has one, and that was there a moment ago.

        Raises `UpstreamFault` subclasses; nothing of the call was sent.
        """
        fault: UpstreamFault = UpstreamUnreachable("no replica is configured", sent=False)
        for replica in self._http.replicas_of(server, tries=tries):
            try:
                session, fresh = await self.sessions.enter(server, replica, who)
                return await self._prove(session) if session.id and not fresh else session
            except UpstreamFault as refused:
                fault = refused
        raise fault

    async def _prove(self, session: Session) -> Session:
        """The session if its server still knows it, else a new one in its place. Raises with `sent` false."""
        call = self.sessions.question("ping", {})
        try:
            found = await self._http.ask(call, self.sessions.ask_in(session, call), self._limits.answer_s)
            _check_known(*found, anyhow=True)
        except UpstreamFault as fault:
            self.sessions.leave(session)
            if not self._is_lost(session, fault, doubted=True):
                raise type(fault)(f"session: {fault.detail}", sent=False, replica=fault.replica) from fault
        except asyncio.CancelledError:
            self.sessions.leave(session)
            raise
        else:
            return session
        server, _, who = session.key
        return (await self.sessions.enter(server, session.replica, who))[0]

    def _is_lost(self, session: Session, fault: UpstreamFault, *, doubted: bool) -> bool:
        """Whether the server does not know the session any more, so that another can be opened at once.

        Nobody enters it again then; nor, where it is `doubted`, after any other fault. Servers say in many ways that
        a session is gone, or let it hang: who went on in it would be locked out for as long as it is asked for.
        """
        if isinstance(fault, _Unknown) or fault.status in LOST:
            self.sessions.lose(session)
            return bool(session.id)
        if doubted and fault.sent and fault.code not in _ANSWERS:
            self.sessions.retire(session)
        return False

    async def _send(self, session: Session, admitted: Admitted) -> Answer:
        """Send the call in a session that was entered; it is left when the answer is over."""
        call, notification = admitted.call, admitted.call.envelope.id is None
        request_id = self.sessions.new_id()
        answer: PastAnswer | None = None
        try:
            asked = call_of_the_past(admitted, request_id)
            body, stating = asked.envelope.raw, self._http.stating_to(admitted.server.name)
            own = session.lines if stating is None else session.lines + stating.of_call(admitted, body)
            tail = request_tail(headers_of_the_past(admitted.headers), body, own)
            exchange = await self._http.send_seated(
                session.replica, tail, call.method, notification=notification, quiet_s=self._limits.quiet_s
            )
            if exchange.status in (200, 202):
                answer = PastAnswer(self.sessions, session, exchange, (call, asked), self._stream_limits)
                return answer
            error = await read_error(exchange, asked)
            guarded = guard_answer(asked, error.body)
            if call.method in LISTS:
                _check_known(exchange, guarded)
            return Whole(error.status, error.replica, present_answer(call, guarded))
        except (asyncio.CancelledError, UpstreamTimeout):
            if not notification:
                self.sessions.call_off(session, request_id)
            raise
        finally:
            if answer is None:
                self.sessions.leave(session)

    async def _ask(self, session: Session, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        call = self.sessions.question(method, params)
        try:
            found = await self._http.ask(call, self.sessions.ask_in(session, call), self._limits.inquire_s)
            _check_known(*found)
        finally:
            self.sessions.leave(session)
        return result_of(call, *found)


class _Unknown(UpstreamInvalid):
    """An error that names the request and yet is that of an unknown session."""


def _check_known(exchange: Exchange, guarded: Guarded, *, anyhow: bool = False) -> None:
    """Raise `_Unknown` for an error that names the request and yet may be that of an unknown session.

    Some servers copy the request's id into it; some give it status 200, which counts where nothing else is wrong with
    what was asked (`anyhow`). That the method or a parameter is wrong is an answer all the same.
    """
    if guarded.outcome == RPC_ERROR and guarded.code not in _ANSWERS and (anyhow or exchange.status in LOST):
        detail = f"status {exchange.status}: error {guarded.code}"
        raise _Unknown(detail, sent=True, replica=exchange.replica, status=exchange.status)


def _principal(identity: Identity) -> Who:
    return identity.issuer, identity.subject, identity.tenant, identity.client_id
