"""What an approval is: a ticket bound to one exact effect, its states, its uses, and who may decide it.

Values and rules only; `desk.py` applies them and `store.py` makes their transitions atomic. Nothing here is I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """`pending -> approved -> used | expired | revoked`; `pending -> denied | expired | withdrawn`."""

    PENDING = "pending"
    APPROVED = "approved"
    USED = "used"
    EXPIRED = "expired"
    REVOKED = "revoked"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"


class Run(StrEnum):
    """A use's outcome: `claimed -> sent -> executed | failed | unknown`; a lapsed lease is `unknown`."""

    CLAIMED = "claimed"
    SENT = "sent"
    EXECUTED = "executed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Asked:
    """The exact effect that a call would have.

    `digest` (SHA-256, hex) covers, in RFC 8785 form, every member but `tool_digest`, `arguments` and `claims` themselves
    (the arguments, `inputResponses` and bound `_meta` keys enter by their own digest): it finds the ticket. `tool_digest`
    is compared afterwards: a changed definition makes the ticket stale. `arguments` is what reviewers are shown,
    before masking; `shown_meta` are the bound `_meta` keys and input responses, for the same purpose.
    """

    issuer: str
    subject: str
    client: str
    server: str
    resource: str
    environment: str
    method: str
    name: str
    arguments: Mapping[str, Any]
    digest: str
    tool_digest: str
    shown_meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A ticket as the desk hands it out (JSON form: design.md, "Approvals API"). Times: seconds since the epoch."""

    id: str
    state: State
    asked: Asked
    justification: str
    reasons: tuple[str, ...]
    approvers: tuple[str, ...]
    min_approvers: int
    mask: tuple[str, ...]
    decisions: tuple[Mapping[str, Any], ...]
    uses: int
    uses_left: int
    runs: tuple[Mapping[str, Any], ...]
    created_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class Claimed:
    """One use of an approved ticket was consumed for this call, and for no other."""

    ticket_id: str
    use_id: str


@dataclass(frozen=True, slots=True)
class Held:
    """No use was consumed. `why` is one of:

    `pending` (a ticket waits for people; 40303), `denied`, `in_flight`, `unknown`, `unapprovable` (nobody could
    approve it) (all 40304). `ticket` is the one that the caller may look at.
    """

    why: str
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Transition:
    """A ticket or a use moved; the house writes it into the audit chain as a record of kind `approval`.

    `verb`: request, approve, deny, revoke, withdraw, expire, claim, restore, sent, executed, failed, unknown, resolve.
    `by` is `ISSUER|SUBJECT`, `local:UID@HOST` or `ostiary` (the gateway itself). `seen` is the digest of what they saw.
    """

    ticket: Ticket
    verb: str
    by: str
    at: float
    comment: str = ""
    seen: str = ""
    use_id: str = ""
