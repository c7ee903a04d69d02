"""Calls that are held for a person and brought back: wait a while for the decision, then walk on as if just come.

Everything that counts is looked at after the wait: token, policy, definition, ticket, approvers. The wait itself is
bounded: so many calls of one subject, so many of this worker, and none once it stops; beyond that the caller is
answered at once. Whoever leaves frees its place.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from approvals.desk import Desk
from gateway.contract.passage import Call, Identity, OpenedState, Waits
from gateway.contract.refusals import Refusal, Refused
from gateway.elicitation import QUESTION

HOLD_S: Final = 25.0
PER_SUBJECT: Final = 8
"""How many calls of one subject are kept waiting at once by one worker."""

DECLINED: Final = (
    "The question was declined, so this call was not run; the request for its approval stands. To go on, repeat the "
    "identical call; to give the request up, withdraw it. Page: {page}"
)
_ANSWERS = frozenset({"accept", "decline", "cancel"})


@dataclass(slots=True)
class Holding:
    """The calls that wait in one worker: for `hold_s` each, `most` at once. `clock` is that of tokens' ends."""

    desk: Desk
    hold_s: float = HOLD_S
    most: int = 250
    per_subject: int = PER_SUBJECT
    clock: Callable[[], float] = time.time
    _places: Counter[tuple[str, str]] = field(default_factory=Counter)
    _taken: int = 0

    @property
    def waiting(self) -> int:
        """How many calls wait now."""
        return self._taken

    async def wait(self, call: Call, identity: Identity, waits: Waits) -> None:
        """Return once somebody decided, or the time is over: what came of it is for the desk to say.

        Raises `StoreUnavailable`, and `Refused`: APPROVAL_REQUIRED where the caller's user declined the question,
        PARAMS_INVALID for an answer that is none, STATE_NOT_ACCEPTED where there is no such ticket any more.
        """
        answer = read_answer(call)
        with self._place(identity) as has_place:
            lasts = max(0.0, min(self.hold_s, identity.expires_at - self.clock()))
            within_s = lasts if has_place and answer == "accept" else 0.0
            standing = await self.desk.watch(waits.ticket_id, within_s=within_s)
        if standing is None:
            raise Refused(Refusal.STATE_NOT_ACCEPTED, "the ticket that was waited for is not there any more")
        if answer != "accept":
            ticket = self.desk.describe(standing)
            said = DECLINED.format(page=ticket["page"])
            raise Refused(Refusal.APPROVAL_REQUIRED, f"elicitation: {answer}", message=said, ticket=ticket)

    @contextmanager
    def _place(self, identity: Identity) -> Iterator[bool]:
        """Whether there is a place to wait in, taken meanwhile."""
        subject = (identity.issuer, identity.subject)
        if self._taken >= self.most or self._places[subject] >= self.per_subject:
            yield False
            return
        self._taken += 1
        self._places[subject] += 1
        try:
            yield True
        finally:
            self._taken -= 1
            self._places[subject] -= 1
            if not self._places[subject]:
                del self._places[subject]


def read_answer(call: Call) -> str:
    """What the caller's user said to the gateway's question; who brings the state alone goes on waiting.

    Answers to anything else are ignored, as the specification asks for. Raises `Refused(PARAMS_INVALID)`.
    """
    answer = (call.input_responses or {}).get(QUESTION, {"action": "accept"})
    action = answer.get("action") if isinstance(answer, dict) else None
    if not isinstance(action, str) or action not in _ANSWERS:
        raise Refused(Refusal.PARAMS_INVALID, f"inputResponses.{QUESTION}.action")
    return action


def check_waits(waits: Waits, effect: str) -> str:
    """The ticket that a call waited for, if its effect is the same now. Raises `Refused(STATE_NOT_ACCEPTED)`."""
    if effect != waits.effect:
        raise Refused(Refusal.STATE_NOT_ACCEPTED, "another effect than the one that waits for a person")
    return waits.ticket_id


def take_up(call: Call, opened: OpenedState) -> tuple[Call, OpenedState | None]:
    """A call that was held, without what the gateway added to it: as it was held, and what it goes on with.

    Whatever is judged, digested and sent from here on is in the new envelope: nothing of the gateway's own question
    and its answer is left.
    """
    assert opened.waits is not None  # noqa: S101 - asked for nothing else
    params: dict[str, Any] = {
        name: value
        for name, value in call.envelope.params.items()
        if name not in ("requestState", "inputResponses")
    }  # fmt: skip
    if opened.leg:
        params["requestState"] = call.request_state
        if opened.waits.answers is not None:
            params["inputResponses"] = opened.waits.answers
    message = {"jsonrpc": "2.0", "id": call.envelope.id, "method": call.method, "params": params}
    envelope = replace(call.envelope, raw=orjson.dumps(message), params=params)
    held = replace(
        call,
        envelope=envelope,
        request_state=params.get("requestState"),
        input_responses=params.get("inputResponses"),
    )
    return held, replace(opened, waits=None) if opened.leg else None
