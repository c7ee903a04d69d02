"""A call under an idempotency key: run once, told again as often as it is asked for, and never sent a second time.

Comes after token, policy, scopes and the tool's own definition said what they say today; then either what is known is
told, or the key is taken before anything is sent. What came of the call is kept before its caller is told. Whatever
is not certain is `unknown`, and an unknown call is never run again (docs/idempotency.md).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from approvals.keyed import KeyedCalls
from approvals.keyed_call import Found, Outcome, Stage, Taken, TooManyKeys, Wanted
from approvals.ticket import StoreUnavailable
from gateway.contract.guard import EXECUTED, INPUT_REQUIRED, RPC_ERROR, TASK, TOOL_ERROR
from gateway.contract.passage import Call, Passage
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.repeats import KEYED, not_kept, read_key, want, without_key

KEEPING_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""The pauses between further attempts to write an end down, apart from the connection."""

ROOM_AFTER_S: Final = 60

_KNOWN: Final = frozenset({EXECUTED, TOOL_ERROR, RPC_ERROR, TASK})
_STANDS: Final[Mapping[Stage, Refusal]] = {
    Stage.RUNNING: Refusal.IDEMPOTENCY_IN_FLIGHT,
    Stage.ASKED: Refusal.IDEMPOTENCY_ASKED,
    Stage.UNKNOWN: Refusal.IDEMPOTENCY_UNKNOWN,
}

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
"""Finishes work apart from the connection that caused it."""


class Replayed(Exception):  # noqa: N818 - what happened: it ran already, and what came of it is known
    """The answer to this request is that of an earlier one."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


@dataclass(slots=True)
class Repeats:
    """One worker's. Without `rows` keys are read and nothing else: nobody looks, takes or keeps.

    `most_bytes`: the longest answer that is kept. `count` is told of each end, by a stable name.
    """

    rows: KeyedCalls | None = None
    volatile_meta: frozenset[str] = frozenset()
    most_bytes: int = 262_144
    count: Callable[[str], None] = lambda _: None

    @staticmethod
    def read(passage: Passage, call: Call) -> Call:
        """The call without its key, which is in the passage from now on. Raises `Refused`."""
        received = passage.received
        if call.method == KEYED and received is not None and (key := read_key(received, call)):
            passage.key, call = key, without_key(call)
            passage.envelope = call.envelope
        return call

    async def look(self, passage: Passage) -> None:
        """Go on where the call's key is free. Raises `Replayed`, `Refused`, `StoreUnavailable`."""
        if passage.key and self.rows is not None:
            found = await self.rows.look(want(passage, self.volatile_meta))
            if found is not None:
                raise self._stands(passage, found)

    async def take(self, passage: Passage, spawn: Spawn) -> None:
        """Take the key: from here on nobody else runs a call under it. Raises like `look`, and for want of room."""
        if self.rows is None:
            return
        wanted = want(passage, self.volatile_meta)
        taking = asyncio.ensure_future(self.rows.take(wanted, passage.decision_id))
        try:
            found = await asyncio.shield(taking)
        except asyncio.CancelledError:
            spawn(self._give_back(taking, wanted, passage.decision_id, spawn))
            raise
        except StoreUnavailable:
            spawn(self._undo(wanted, passage.decision_id))
            raise
        except TooManyKeys as full:
            row = Refusal.OVERLOADED if full.all_full else Refusal.RATE_LIMITED
            raise Refused(row, f"idempotency keys: {full}", retry_after_s=ROOM_AFTER_S) from None
        if isinstance(found, Found):
            raise self._stands(passage, found)
        passage.keyed = found

    async def end(self, passage: Passage, text: bytes, spawn: Spawn) -> None:
        """The call has ended as its passage says, `text` being its answer: written down before anybody is told.

        To its end even if the client goes away meanwhile. Raises nothing: a call whose end can't be written stays in
        flight until its lease lapses into `unknown`.
        """
        taken, passage.keyed = passage.keyed, None
        if taken is not None and self.rows is not None:
            stage, outcome = self._came_of(passage, text)
            await asyncio.shield(spawn(self._end(self.rows, taken, stage, outcome, spawn)))

    def _stands(self, passage: Passage, found: Found) -> Exception:
        """What a key that was used already means for this call."""
        passage.replay_of = found.decision
        if not found.same:
            return Refused(Refusal.IDEMPOTENCY_CONFLICT, f"{found.stage}: another request")
        if found.outcome is None:
            return Refused(_STANDS[found.stage], found.stage, replayOf=found.decision)
        passage.replay_of = found.outcome.decision
        if found.stage is Stage.ENDED:
            return not_kept(found.outcome, found.outcome.why)
        return Replayed(found.outcome)

    def _came_of(self, passage: Passage, text: bytes) -> tuple[Stage | None, Outcome]:
        """How its row ends (`None`: as if it had never been there), and what is kept."""
        word, decision = passage.outcome, passage.decision_id
        outcome = Outcome(word, decision, passage.status, passage.code, passage.result_digest.hex())
        if not passage.sent:
            return None, outcome
        if word == INPUT_REQUIRED:
            return Stage.ASKED, outcome
        if word not in _KNOWN:
            return Stage.UNKNOWN, outcome
        fits = 0 < len(text) <= self.most_bytes
        why = "refused" if passage.refused is not None else "" if fits else "too_large"
        return Stage.ENDED if why else Stage.KEPT, replace(outcome, text=b"" if why else text, why=why)

    async def _end(self, rows: KeyedCalls, taken: Taken, stage: Stage | None, outcome: Outcome, spawn: Spawn) -> None:
        if not await self._write(rows, taken, stage, outcome):
            spawn(self._keep_trying(rows, taken, stage, outcome))

    async def _keep_trying(self, rows: KeyedCalls, taken: Taken, stage: Stage | None, outcome: Outcome) -> None:
        for pause in KEEPING_S:
            await asyncio.sleep(pause)
            if await self._write(rows, taken, stage, outcome):
                return
        rows.let_go(taken)

    async def _write(self, rows: KeyedCalls, taken: Taken, stage: Stage | None, outcome: Outcome) -> bool:
        try:
            if stage is None:
                await rows.free(taken)
            else:
                await rows.end(taken, stage, outcome)
        except StoreUnavailable as error:
            structlog.get_logger("repeats").error("keyed_call_not_kept", decision=outcome.decision, error=str(error))
            return False
        self.count("freed" if stage is None else stage.value)
        return True

    async def _give_back(
        self, taking: asyncio.Future[Taken | Found], wanted: Wanted, decision: str, spawn: Spawn
    ) -> None:
        """Nobody waits for the key any more."""
        await asyncio.wait({taking})
        if taking.exception() is not None:
            await self._undo(wanted, decision)
        elif isinstance(taken := taking.result(), Taken) and self.rows is not None:
            await self._end(self.rows, taken, None, Outcome("", decision), spawn)

    async def _undo(self, wanted: Wanted, decision: str) -> None:
        """Whether the key was taken is not known, that nothing was sent is. What stays lapses into `unknown`."""
        if self.rows is not None:
            with contextlib.suppress(StoreUnavailable):
                await self.rows.undo(wanted, decision)
