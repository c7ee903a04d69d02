"""Forward what was admitted, guard the answer on its way back, and write down how it ended.

A use that was consumed is restored only if provably not one byte left; everything else ends it as `executed`,
`failed` or `unknown` (never retried), or has it wait for an answer to what its server asks. The outcome is concluded
exactly once, whoever notices the end first: the answer, a fault, or the client that goes away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog

from approvals.desk import Desk, NotHeld, StoreUnavailable, TooManyTickets
from approvals.keyed_call import Outcome
from approvals.ticket import Claimed, Held, Run
from gateway.answers import Answers
from gateway.audit.port import AuditSink, AuditUnavailable
from gateway.contract.guard import EXECUTED, UNDECLARED
from gateway.contract.legacy import Answered
from gateway.contract.passage import Admitted, Call, Passage, Reply
from gateway.contract.quirks import Quirk
from gateway.contract.record import Redactor, outcome_record
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.repeats import REPLAY_OF, tell_again
from gateway.contract.reply import accepted_reply, result_reply, stream_headers
from gateway.contract.retelling import session_line
from gateway.contract.stream import ResponseStream, StreamLimits
from gateway.contract.subscription import Rewrite, Rewriter
from gateway.relay import Relay
from gateway.repeats import Repeats
from gateway.streams import Place, Streams
from gateway.upstream.port import (
    Answer,
    Upstream,
    UpstreamFault,
    UpstreamFull,
    UpstreamInvalid,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from policies.verdict import PolicyUnavailable

TRANSLATED: dict[type[Exception], Refusal] = {
    PolicyUnavailable: Refusal.POLICY_UNAVAILABLE,
    StoreUnavailable: Refusal.APPROVALS_UNAVAILABLE,
    NotHeld: Refusal.APPROVAL_REFUSED,
    TooManyTickets: Refusal.RATE_LIMITED,
    AuditUnavailable: Refusal.AUDIT_UNAVAILABLE,
    UpstreamFull: Refusal.OVERLOADED,
    UpstreamUnreachable: Refusal.UPSTREAM_UNREACHABLE,
    UpstreamTimeout: Refusal.UPSTREAM_TIMEOUT,
    UpstreamInvalid: Refusal.UPSTREAM_INVALID,
}
"""What the rooms raise in their own words -> how the house refuses. tests/pipeline proves that no word is missing."""


def translate(error: Exception) -> Refused:
    """A room's word -> the house's refusal. Its text is detail: for the record, never for the caller."""
    row = next(refusal for word, refusal in TRANSLATED.items() if isinstance(error, word))
    return Refused(row, str(error))


RUNS: Mapping[str, Run] = {
    "executed": Run.EXECUTED,
    "tool_error": Run.FAILED,
    "rpc_error": Run.FAILED,
    "failed": Run.FAILED,
    "input_required": Run.WAITING,
    "task": Run.EXECUTED,  # the server took the call: what becomes of its task is the task's own story
    "cancelled": Run.UNKNOWN,
    "unknown": Run.UNKNOWN,
}
"""A forwarded call's outcome -> how the use that it consumed ends, or that it waits for the next leg."""


APART: Final = frozenset({"subscription", "task"})
"""What takes no place at a replica, or is answered by the house itself as often as not."""


class Observer(Protocol):
    """Who sees every request's end: metrics and the canonical log line."""

    def concluded(self, passage: Passage, record: Mapping[str, Any]) -> None:
        """`record` is the last audit record of the request (outcome or refusal). Must not block."""
        ...

    def counted(self, passage: Passage, make: Callable[[], Mapping[str, Any]]) -> None:
        """A refusal that shares its record and its log line with others; `make` would give its own record."""
        ...

    def broke(self, passage: Passage, error: BaseException) -> None:
        """A defect of the gateway itself: the request was refused as `internal_error`."""
        ...


@dataclass(slots=True)
class Delivery:
    """The way out and back of one worker's admitted calls."""

    upstream: Upstream
    answers: Answers
    desk: Desk
    sink: AuditSink
    redactor: Redactor
    observer: Observer
    stream_limits: StreamLimits = field(default_factory=StreamLimits)
    streams: Streams = field(default_factory=Streams)
    rewriters: tuple[Rewriter, ...] = ()
    """What rooms do to the notifications of subscriptions, in this order (gateway/contract/subscription.py)."""
    repeats: Repeats = field(default_factory=Repeats)
    pending: set[asyncio.Task[Any]] = field(default_factory=set)
    expected: dict[str, int] = field(default_factory=dict)
    """Server -> calls to it that walk and were not sent yet."""

    def refusal_of(self, passage: Passage, error: Exception) -> Refused:
        """What an exception means for its request: a refusal, a room's word for one, or a defect of the house."""
        if isinstance(error, Refused):
            undeclared = passage.spoken is not None and error.detail == UNDECLARED
            return Refused(Refusal.REVISION_REQUIRED, error.detail) if undeclared else error
        if isinstance(error, tuple(TRANSLATED)):
            return translate(error)
        self.observer.broke(passage, error)
        return Refused(Refusal.INTERNAL_ERROR, type(error).__name__)

    def expect(self, passage: Passage, call: Call) -> None:
        """A call walks on. Raises `Refused` where, with those before it, it would only wait in vain at its server."""
        if call.kind in APART or passage.server is None:
            return
        server = passage.server.name
        expected = self.expected.get(server, 0)
        if not self.upstream.has_room(server, expected):
            raise Refused(Refusal.OVERLOADED, "every replica of the server is full, and so is its queue")
        self.expected[server] = expected + 1
        passage.expected = server

    def expect_no_more(self, passage: Passage) -> None:
        """It is about to be sent, or never will be."""
        if passage.expected:
            self.expected[passage.expected] -= 1
            passage.expected = ""

    async def deliver(self, passage: Passage, admitted: Admitted) -> Reply:
        """Forward the admitted call; a reply whose outcome is (or, for a stream, will be) concluded.

        Raises `Refused` and `UpstreamFault`; `passage.sent` then says whether a byte may have left.
        """
        if admitted.call.kind == "subscription":
            return await self._subscribe(passage, admitted)
        answer = await self._forward(passage, admitted)
        if not answer.streaming:
            return await self._read_whole(passage, admitted, answer)
        reads_no_stream = passage.heard is not None and Quirk.ACCEPT_JSON_ONLY in passage.heard.quirks
        # Only a yes begins a session, so it comes first; of an errand nobody reads more than how it ended.
        if reads_no_stream or session_line(passage.spoken) or passage.errand is not None:
            return await self._read_response(passage, admitted, answer)
        return self._relay(passage, admitted, answer)

    async def _subscribe(self, passage: Passage, admitted: Admitted) -> Reply:
        """A subscription has a place of its own from before its server is asked until its stream has ended."""
        rewrite = await self._rewrite(admitted)
        place = self.streams.take(admitted.call, admitted.identity)
        kept = False
        try:
            answer = await self._forward(passage, admitted)
            kept = answer.streaming
            if kept:
                return self._relay(passage, admitted, answer, rewrite, place)
            return await self._read_whole(passage, admitted, answer)
        finally:
            if not kept:
                place.leave()

    async def _forward(self, passage: Passage, admitted: Admitted) -> Answer:
        if admitted.use is not None:
            await self.desk.sent(admitted.use)
        passage.sent = True
        self.expect_no_more(passage)
        try:
            answer = await self.upstream.forward(admitted)
        except UpstreamFault as fault:
            passage.sent, passage.replica, passage.retries = fault.sent, fault.replica, fault.retries
            raise
        passage.left["forward"] = time.perf_counter()
        passage.replica, passage.status, passage.retries = answer.replica, answer.status, answer.retries
        return answer

    def _relay(
        self,
        passage: Passage,
        admitted: Admitted,
        answer: Answer,
        rewrite: Rewrite | None = None,
        place: Place | None = None,
    ) -> Reply:
        stream = ResponseStream(admitted.call, self.stream_limits, rewrite)
        relay = Relay(self, passage, admitted, answer, stream, place=place)
        return Reply(answer.status, stream_headers(passage.decision_id), chunks=relay)

    async def _read_response(self, passage: Passage, admitted: Admitted, answer: Answer) -> Reply:
        """A stream's response alone."""
        body = await Relay(self, passage, admitted, answer, ResponseStream(admitted.call, self.stream_limits)).whole()
        return result_reply(answer.status, body, passage.decision_id, _begun(passage))

    async def _read_whole(self, passage: Passage, admitted: Admitted, answer: Answer) -> Reply:
        try:
            body = await answer.whole()
            passage.left["answer"] = time.perf_counter()
            if admitted.call.envelope.id is None:
                await self.conclude(passage, "executed")
                return accepted_reply(passage.decision_id)
            guarded = self.answers.guard(admitted, body)
            body = await self.answers.fit(passage, admitted, guarded)
        finally:
            await answer.close()
        await self.conclude(passage, guarded.outcome, body)
        status = answer.status if passage.spoken is None else 200
        return result_reply(status, body, passage.decision_id, _begun(passage))

    async def answer(self, passage: Passage, answered: Answered) -> Reply:
        """What the house answers by itself: recorded, and nothing forwarded."""
        passage.status = answered.status
        await self.conclude(passage, "answered")
        return answered.reply(passage.decision_id)

    async def replay(self, passage: Passage, outcome: Outcome) -> Reply:
        """What came of an earlier call under the same key, under the id of this one: recorded, and nothing forwarded.

        Raises `Refused`.
        """
        guarded = tell_again(passage, outcome)
        passage.status = outcome.status if passage.spoken is None else 200
        passage.code = outcome.code
        passage.result_digest = bytes.fromhex(outcome.digest)
        await self.conclude(passage, "replayed")
        told = ((REPLAY_OF, outcome.decision.encode("ascii")),)
        return result_reply(passage.status, guarded.raw, passage.decision_id, told)

    async def _rewrite(self, admitted: Admitted) -> Rewrite | None:
        """All that the rooms do to a subscription's notifications, as one. Raises `Refused`."""
        rewrites = [rewrite for one in self.rewriters if (rewrite := await one(admitted)) is not None]

        def rewrite_all(message: dict[str, Any]) -> dict[str, Any] | None:
            taken: dict[str, Any] | None = message
            for rewrite in rewrites:
                if taken is None:
                    break
                taken = rewrite(taken)
            return taken

        return rewrite_all if rewrites else None

    async def conclude(self, passage: Passage, outcome: str, text: bytes = b"") -> None:
        """Write the outcome down, once, and end the use that the call consumed; `text` is kept under its key."""
        if passage.outcome:
            return
        passage.outcome = outcome
        passage.latency_s = time.perf_counter() - passage.began
        record = outcome_record(passage, self.redactor)
        self.sink.note(record)
        self.observer.concluded(passage, record)
        if passage.settled is not None or passage.keyed is not None:
            await self._end(passage, text)

    async def give_back(self, passage: Passage) -> None:
        """What a call consumed that was not even decided: its use, and its key."""
        await self._end(passage, b"")

    async def _end(self, passage: Passage, text: bytes) -> None:
        """End the use that a call consumed and the key that it took, both to their end even if the client goes away
        meanwhile: what nobody ends is held until its lease lapses into `unknown`."""
        if isinstance(passage.settled, Claimed) or passage.keyed is not None:
            await asyncio.shield(self.spawn(self._end_both(passage, text)))

    async def _end_both(self, passage: Passage, text: bytes) -> None:
        try:
            if isinstance(passage.settled, Claimed):
                await self._try_to_end(self._ending(passage, passage.settled), passage.settled)
        finally:
            if passage.keyed is not None:
                await self.repeats.end(passage, text, self.spawn)

    def _ending(self, passage: Passage, use: Claimed) -> Awaitable[None]:
        """How the use of this call ends: given back only if provably not one byte of it left."""
        if not passage.sent:
            return self.desk.restore(use)
        run = RUNS[passage.outcome]
        if run is Run.WAITING and use.by_grant:  # of which no leg goes on
            run = Run.EXECUTED
        if run is Run.WAITING and passage.refused is not None:  # the caller can't be asked, so it ends here
            run = Run.UNKNOWN
        return self.desk.finish(use, run)

    @staticmethod
    async def _try_to_end(ending: Awaitable[None], use: Claimed) -> None:
        try:
            await ending
        except StoreUnavailable as error:
            # The use stays open; its lease lapses into `unknown`, which is never retried.
            structlog.get_logger("delivery").error("use_left_open", use=use.use_id, error=str(error))
        except AuditUnavailable as error:
            # The use has ended, and what ran is answered: its caller must not take it for a call that was not made.
            structlog.get_logger("delivery").error("use_not_recorded", use=use.use_id, error=str(error))

    def abandon(self, passage: Passage) -> None:
        """The client has gone. What was consumed and not sent is given back; what was sent is `cancelled`."""
        if passage.committed:
            passage.status = passage.status or 499
            self.spawn(self.conclude(passage, "cancelled" if passage.sent else "failed"))
        elif isinstance(passage.settled, Claimed) or passage.keyed is not None:
            self.spawn(self.give_back(passage))

    async def claim(self, asking: Coroutine[Any, Any, Claimed | Held]) -> Claimed | Held:
        """Ask the desk to its end even if the client goes away meanwhile: a use that nobody waits for goes back."""
        task = asyncio.ensure_future(asking)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self.spawn(self._give_back(task))
            raise

    async def _give_back(self, task: asyncio.Task[Claimed | Held]) -> None:
        await asyncio.wait({task})
        if task.exception() is None and isinstance(settled := task.result(), Claimed):
            await self._try_to_end(self.desk.restore(settled), settled)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Finish `work` apart from the connection that caused it; `drain()` waits for it."""
        task = asyncio.ensure_future(work)
        self.pending.add(task)
        task.add_done_callback(self.pending.discard)
        return task

    async def drain(self) -> None:
        """Wait for all that goes on apart from a connection."""
        while self.pending:
            await asyncio.wait(self.pending)


def _begun(passage: Passage) -> tuple[tuple[bytes, bytes], ...]:
    """The header that begins an older client's session, where the call that asked for one was answered with a yes."""
    return session_line(passage.spoken) if passage.outcome == EXECUTED else ()
