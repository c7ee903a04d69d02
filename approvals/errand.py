"""An errand: a held call that its caller follows as a task, and the one step that follows from what stands of it.

Values and rules only; `shelf.py` keeps the rows. docs/tasks.md ("A held call as a task") has the table of the states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from approvals.filed import Filed
from approvals.showing import standing
from approvals.ticket import Run, State


class Stage(StrEnum):
    """`held -> running -> asked | relayed | ended`; `asked -> running`; back where not one byte left."""

    HELD = "held"
    RUNNING = "running"
    ASKED = "asked"
    RELAYED = "relayed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Questions:
    """What a leg's server asked for: `state` is the sealed state for the next leg, `requests` by the task's own keys.

    `leg` counts the legs from 1 on; the task's keys are the server's with the leg before them, because a task must
    not use one twice. `ticket` is that of the answers, where they need an approval of their own.
    """

    leg: int
    state: str
    requests: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    ticket: str = ""

    @property
    def open(self) -> dict[str, Any]:
        """What still has to be answered."""
        return {key: request for key, request in self.requests.items() if key not in self.answers}

    @property
    def responses(self) -> dict[str, Any]:
        """The answers under the server's own keys."""
        return {key.partition(".")[2]: answer for key, answer in self.answers.items()}


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that is needed to run the call again as it was judged: who may (`client`), its body, its mirrored headers.

    `handle` is the id that its owner was given.
    """

    handle: str
    tool: str
    client: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Errand:
    """A row as it was read. Times: seconds since the epoch. `told` is what its stage says, as JSON:

    `ended`: `{status, result | error}`; `asked`, and `running` from there: a `Questions`; `relayed`: `{task}`, the
    server's id.
    """

    id: str
    ticket_id: str
    version: int
    stage: Stage
    issuer: str
    subject: str
    owner: str
    lease_until: float
    created_at: float
    updated_at: float
    expires_at: float
    told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def questions(self) -> Questions | None:
        """What its server asked for, if it did."""
        return Questions(**self.told) if "leg" in self.told else None

    @property
    def waits_for(self) -> str:
        """The ticket that it waits for."""
        return str(self.told.get("ticket") or self.ticket_id)


WAIT, RUN = "wait", "run"


def next_step(errand: Errand, filed: Filed | None, now: float) -> str:
    """`WAIT`, `RUN`, or why it can't go on any more. `filed` is the ticket that it waits for."""
    if errand.stage in (Stage.ENDED, Stage.RELAYED):
        return WAIT
    if errand.stage is Stage.RUNNING:
        return WAIT if errand.lease_until > now else "interrupted"
    if filed is None:
        return "expired"
    questions = errand.questions
    if questions is not None and questions.open:
        return WAIT if _still_counts(filed, now) else _end_of(filed, now)
    if questions is not None and not questions.ticket:
        return RUN if _still_counts(filed, now) else _end_of(filed, now)
    if filed.running is not None:  # by a repetition of the call
        return "unknown" if filed.running.run is Run.UNKNOWN else WAIT
    state = standing(filed.ticket, now).state
    if state is State.PENDING:
        return WAIT
    if state is State.APPROVED:
        return RUN if filed.ticket.uses_left > 0 else WAIT
    return state.value


def _still_counts(filed: Filed, now: float) -> bool:
    """Whether the use that waits for answers can still be continued."""
    return filed.ticket.state is State.APPROVED and filed.ticket.expires_at > now


def _end_of(filed: Filed, now: float) -> str:
    if filed.running is not None and filed.running.run is Run.UNKNOWN:
        return "unknown"
    return "expired" if filed.ticket.expires_at <= now else filed.ticket.state.value
