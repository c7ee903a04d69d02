"""How the caller of a held call is told that it waits for a person: as its client can take it.

By what the client declared in this very request, and by what the server's setting prefers (docs/approvals.md, "What
a client sees"). A kind that the client did not declare is never sent: it gets the error, which every client has. None
of them carries authority: whatever the caller brings back, its call is found by its effect, as ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from approvals.desk import Desk
from approvals.ticket import Held
from gateway.contract.methods import declares_tasks
from gateway.contract.passage import Call, Passage
from gateway.contract.refusals import Refusal, Refused
from gateway.legs import refusal_of

AUTO: Final = "auto"
BUSY: Final = frozenset({"in_flight", "waiting"})
"""What a call is held for that runs already: as a task, perhaps, which its repetition then is told of."""


class Challenge(StrEnum):
    """How a held call is answered."""

    ELICITATION = "elicitation"
    TASK = "task"
    ERROR = "error"


Maker = Callable[[Passage, Held, Mapping[str, Any]], Awaitable[Refused | None]]
"""What a kind of challenge is made by: the request, what it is held for, and its ticket as the caller may know it.

`None`: this one can't be made of it, and the error is.
"""


def _declares_urls(call: Call) -> bool:
    declared = call.capabilities.get("elicitation")
    return type(declared) is dict and type(declared.get("url")) is dict


_DECLARED: Final[Mapping[Challenge, Callable[[Call], bool]]] = {
    Challenge.ELICITATION: _declares_urls,
    Challenge.TASK: lambda call: call.method == "tools/call" and declares_tasks(call.capabilities),
    Challenge.ERROR: lambda _: True,
}


def choose(preferred: str, call: Call, made: Collection[Challenge]) -> Challenge:
    """The kind of challenge for this call: what is preferred, if its client declared it and somebody makes it.

    Older revisions have no word for any but the error, and their clients' declarations do not come this far.
    """
    wanted = (Challenge.ELICITATION, Challenge.TASK) if preferred == AUTO else (Challenge(preferred),)
    return next((one for one in wanted if one in made and _DECLARED[one](call)), Challenge.ERROR)


@dataclass(slots=True)
class Challenges:
    """One per worker. `makers`: who makes a kind besides the error; a kind without a maker is not chosen."""

    desk: Desk
    makers: dict[Challenge, Maker] = field(default_factory=dict)

    async def challenge(self, passage: Passage, held: Held) -> Refused:
        """Why the call does not run, as its caller can take it. Raises what the makers raise."""
        ticket = self.desk.describe(held.ticket)
        if passage.call is None or passage.server is None:
            return refusal_of(held, ticket)
        # At a held call's run nobody stands who could be asked: its task tells the error.
        kind = Challenge.ERROR if passage.errand else choose(passage.server.challenge, passage.call, self.makers)
        refused = None
        if held.why == "pending" or (kind is Challenge.TASK and held.why in BUSY):
            refused = None if kind is Challenge.ERROR else await self.makers[kind](passage, held, ticket)
        if held.why != "pending":
            return refused or refusal_of(held, ticket)
        refused = refused or page_error(held, ticket)
        passage.challenge = (kind if refused.instead is not None else Challenge.ERROR).value
        return refused


def page_error(held: Held, ticket: Mapping[str, Any]) -> Refused:
    """The challenge that every client can take."""
    return Refused(Refusal.APPROVAL_REQUIRED, held.why, message=say_where(ticket), ticket=ticket)


def say_where(ticket: Mapping[str, Any]) -> str:
    """What a model can tell its user: what is missing, where that is given, until when, and what to do then."""
    where = f"{ticket['page']} (open until {say_when(ticket)})"
    return f"A person must approve this call first. Page: {where}. Once it is approved, repeat the identical call."


def say_when(ticket: Mapping[str, Any]) -> str:
    """A ticket's end to the minute."""
    day, _, time = ticket["expiresAt"].partition("T")
    return f"{day} {time[:5]} UTC"
