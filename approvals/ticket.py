"""What an approval is: a ticket bound to one exact effect, its states, its uses, and the ways to be told no.

Values and rules only; `desk.py` applies them and `store.py` makes their transitions atomic. Nothing here is I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final


class StoreUnavailable(Exception):  # noqa: N818 - the room's own word; only the house refuses
    """The store failed, was locked, did not answer in time, or its commit is unknown. Nothing may run."""


class Unreadable(StoreUnavailable):
    """One ticket was changed in the database, or is sealed by a key that is not here; the store itself is well."""


class NotHeld(Exception):  # noqa: N818 - what a use came to before it was sent
    """Surely not held any more: revoked, expired or lapsed between the claim and the sending. Nothing may run."""


class TooManyTickets(Exception):  # noqa: N818 - what happened, not an accident
    """The requester opened as many tickets in the last hour as one may. `retry_after_s`: seconds."""

    def __init__(self, retry_after_s: int = 60) -> None:
        super().__init__("too many tickets were opened in the last hour")
        self.retry_after_s = retry_after_s


class TicketUnknown(Exception):  # noqa: N818 - one answer for what is absent, foreign, malformed or guessed
    """No ticket that this reader may know of has this id. Says nothing else, so that nothing can be learnt.

    `why` is for the record alone: `malformed`, `absent`, or `not_theirs` (neither to ask nor to decide) and whether
    another ticket names this reader as an approver (`approver_elsewhere`) or none does (`approver_nowhere`).
    """

    def __init__(self, why: str = "") -> None:
        super().__init__()
        self.why = why


class NotAllowed(Exception):  # noqa: N818 - the counter's own no
    """This person may not do this. `why` is a stable name; `scopes` are what the token would have to carry."""

    def __init__(self, why: str, *, scopes: tuple[str, ...] = ()) -> None:
        super().__init__(why)
        self.why = why
        self.scopes = scopes


class ActInvalid(ValueError):  # noqa: N818 - what was handed in
    """What the person handed in has not the form that the act needs. The text is a stable name."""


class MovedOn(Exception):  # noqa: N818 - a conflict with what happened meanwhile
    """The ticket is no longer what the person saw, or its state does not admit the act. Nothing was changed."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Unapprovable(ValueError):  # noqa: N818 - says what is wrong with the terms
    """Nobody could approve under these terms: an unreadable approver, none, or too few. The text says which."""


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
    """A use's outcome: `claimed -> sent -> executed | failed | unknown`; a lapsed lease is `unknown`.

    A server that asks for input makes it `sent -> waiting`, with the next leg; the answer makes it `waiting ->
    claimed`, once a leg. One whose ticket ends meanwhile is `abandoned`: it never completed.
    """

    CLAIMED = "claimed"
    SENT = "sent"
    WAITING = "waiting"
    EXECUTED = "executed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    ABANDONED = "abandoned"


MOVES: Mapping[State, Mapping[str, State]] = {
    State.PENDING: {
        "approve": State.APPROVED,
        "deny": State.DENIED,
        "expire": State.EXPIRED,
        "withdraw": State.WITHDRAWN,
    },
    State.APPROVED: {
        "exhaust": State.USED,
        "expire": State.EXPIRED,
        "revoke": State.REVOKED,
        "withdraw": State.REVOKED,
    },
}
"""Every move that a ticket can make, by verb. A state that is absent here is final.

`exhaust` is the end of the last use: while that use runs, the ticket is `approved` with none left, so that it can
still be revoked, and a use that is restored never revives a ticket that was.
"""

RUN_MOVES: Mapping[Run, frozenset[Run]] = {
    Run.CLAIMED: frozenset({Run.SENT, Run.FAILED, Run.UNKNOWN}),
    Run.SENT: frozenset({Run.EXECUTED, Run.FAILED, Run.UNKNOWN, Run.WAITING}),
    Run.WAITING: frozenset({Run.CLAIMED, Run.ABANDONED}),
    # The holder of a lapsed lease may still learn how its call ended, as long as no person has resolved it.
    Run.UNKNOWN: frozenset({Run.EXECUTED, Run.FAILED}),
}
"""Every move that a use can make; `executed`, `failed` and `abandoned` are final.

A use that is restored is not among them: before its first leg it fails and the ticket has it again, later it waits
again at the same leg.
"""

OPEN_RUNS = frozenset({Run.CLAIMED, Run.SENT})


def sources(target: Run) -> tuple[Run, ...]:
    """The states from which a use may move to `target`."""
    return tuple(run for run, targets in RUN_MOVES.items() if target in targets)


@dataclass(frozen=True, slots=True)
class Terms:
    """What the policy wants of an approval now: uses, lifetime in seconds, who may decide, how many of them.

    `clear`: JSON pointers of arguments that a webhook may be told.
    """

    uses: int = 1
    ttl_s: int = 3600
    approvers: tuple[str, ...] = ()
    min_approvers: int = 1
    clear: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """The exact effect that a call would have.

    `digest` (SHA-256, hex) covers, in RFC 8785 form, every member but `tool_digest`, `arguments` and `claims`
    themselves (the arguments, `inputResponses` and bound `_meta` keys enter by their own digest): it finds the
    ticket. `tool_digest` is compared afterwards: a changed definition makes the ticket stale. `arguments` is what
    reviewers are shown, before masking; `shown_meta` are the bound `_meta` keys and input responses, for the same
    purpose. `tenant` is the requester's, `""` where none is configured. `tool` is what the server said of its tool at
    that moment, for reviewers: `{title, description, annotations}` as far as it said it, bounded; `tool_digest`
    covers the whole of it.

    A grant is the same without arguments: `vary` is `{schema, bounds}`, the JSON Schemas of whoever asks and of the
    policy, both of which a call's arguments have to fit, and `digest` covers them in the place of the arguments.
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
    tenant: str = ""
    tool: Mapping[str, Any] = field(default_factory=dict)
    vary: Mapping[str, Any] | None = None

    @property
    def is_grant(self) -> bool:
        """Whether it stands for many calls: those whose arguments fit `vary`."""
        return self.vary is not None


@dataclass(frozen=True, slots=True)
class Granted:
    """That the policy would give this grant today for this very call: on these terms, with this mask."""

    terms: Terms
    mask: tuple[str, ...] = ()


Covers = Callable[[Mapping[str, Any]], Awaitable[Granted | None]]
"""A grant's `vary` -> whether the call that is asked for fits it, and the policy gives such a grant today."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A ticket as the desk hands it out (JSON form: docs/approvals.md). Times: seconds since the epoch.

    `decisions` are `{by, verb, comment, at}`, `runs` `{state, at, resolved}`, `earlier` the uses that earlier tickets
    of the same effect had: `{ticket, state, at}`. Where only the bookkeeping was read, `asked.arguments` is empty.
    """

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
    earlier: tuple[Mapping[str, Any], ...] = ()
    clear: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a ticket stands, and nothing of what it is about. `state` is that of the moment: expiry needs nobody to
    write it down first. `version` grows with every move of the ticket, `expires_at` is in seconds since the epoch.
    """

    id: str
    state: State
    version: int
    expires_at: float


@dataclass(frozen=True, slots=True)
class Claimed:
    """One use of an approved ticket was consumed for this call, and for no other.

    `leg`: how often the use was asked for input before. `expires_at` is the ticket's end, `effect` the digest of the
    call without what it answers (all its legs share it). `answers` is the use of a further ticket where the answers
    of this leg needed an approval of their own. `by_grant`: the ticket is a grant, which covers this call alone and
    nothing that it is asked for.
    """

    ticket_id: str
    use_id: str
    leg: int = 0
    expires_at: float = 0.0
    effect: str = ""
    answers: Claimed | None = None
    by_grant: bool = False

    @property
    def parts(self) -> tuple[Claimed, ...]:
        """This use, and that of the answers."""
        return (self,) if self.answers is None else (self, self.answers)


@dataclass(frozen=True, slots=True)
class Origin:
    """The approved call that a request goes on with: its use, waiting at `use.leg`, and today's terms for the call.

    `terms` is `None` where the call would need no approval today.
    """

    use: Claimed
    terms: Terms | None


HELD_FOR: Final = frozenset({
    "pending", "denied", "in_flight", "waiting", "unknown", "unapprovable", "continued", "revoked", "expired",
    "tool_changed", "approvers_changed", "terms_tightened", "used", "withdrawn",
})  # fmt: skip
"""Every `why` of `Held`."""


@dataclass(frozen=True, slots=True)
class Held:
    """No use was consumed. `why` is one of:

    `pending` (a ticket waits for people; 40303), `denied`, `in_flight`, `waiting` (for the answer of a leg),
    `unknown`, `unapprovable` (nobody could approve it), and of a leg that can't go on: `continued` (it did already),
    `revoked`, `expired`, `tool_changed`, `approvers_changed`, `terms_tightened`; of a call that waited for its ticket
    also how that ended: `used`, `withdrawn`, `revoked`, `expired` (all 40304). `ticket` is the one that
    the caller may look at; one that is `unapprovable` was never stored, its id is `""`, and `detail` says what is
    wrong with the terms (for the record, not for the caller).
    """

    why: str
    ticket: Ticket
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Transition:
    """A ticket or a use moved; the house writes it into the audit chain as a record of kind `approval`.

    `verb`: request, approve, deny, revoke, withdraw, justify, expire, claim, continue, restore, sent, waiting,
    executed, failed, unknown, abandoned, resolve. `leg` is the use's. `by` is `ISSUER|SUBJECT` (the issuer ends at
    the first `|`), `local:UID@HOST` or `ostiary` (the gateway itself). `seen` is the digest of what they saw.
    """

    ticket: Ticket
    verb: str
    by: str
    at: float
    comment: str = ""
    seen: str = ""
    use_id: str = ""
    leg: int = 0
