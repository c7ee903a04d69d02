"""The challenge that opens a page: `input_required` with one URL-mode elicitation, and a state that waits.

The first answer sends the client's user to the ticket's page; those that follow carry the state alone, until somebody
decided (specification, basic/patterns/mrtr and client/elicitation). The state is sealed like any other and names the
ticket and the effect that is waited for. It carries no authority: once the wait is over, the call is found by its
effect, as if it had been repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from approvals.ticket import Held, Ticket
from gateway.challenge import page_error, say_when
from gateway.contract.passage import OpenedState, Passage, Waits
from gateway.contract.printable import printable
from gateway.contract.refusals import Refusal, Refused
from gateway.seals import Seals

QUESTION: Final = "approval"
"""The key of the gateway's own question in `inputRequests`, and of its answer in `inputResponses`."""

LATE_S: Final = 3600.0
"""How long after its ticket's end a state is still known, so that who comes late learns what became of it."""

LONGEST_STATE: Final = 131_072
"""A state that would be longer (the server's own is in it, and the answers that were held) is not made."""

MOST_NAMED: Final = 8
_NAMED: Final = 80
_WHAT: Final[Mapping[str, str]] = {"tool": "The call of {}", "prompt": "The prompt {}", "resource": "Reading {}"}


@dataclass(frozen=True, slots=True)
class Elicitation:
    """Makes the challenge (`gateway.challenge.Maker`). One per worker."""

    seals: Seals

    async def __call__(self, passage: Passage, held: Held, ticket: Mapping[str, Any]) -> Refused:
        """The page to open and the state; to who was sent there already, the state alone."""
        call, identity, server, opened = passage.call, passage.identity, passage.server, passage.opened_state
        assert call is not None and identity is not None and server is not None  # noqa: PT018, S101 - it was judged
        ends = held.ticket.expires_at + LATE_S
        if opened is None:
            opened = OpenedState(None, leg=0, expires_at=ends)
        waits = Waits(held.ticket.id, held.ticket.asked.digest, call.input_responses)
        state = OpenedState(opened.value, opened.leg, opened.use, waits)
        sealed = self.seals.seal_state(state, identity, server, call, min(ends, opened.expires_at))
        if len(sealed) > LONGEST_STATE:
            return page_error(held, ticket)
        asks: dict[str, Any] = {"resultType": "input_required", "requestState": sealed}
        if passage.waits is None or passage.waits.ticket_id != held.ticket.id:
            params = {"mode": "url", "message": say_what(held.ticket, call.kind, ticket), "url": ticket["page"]}
            asks["inputRequests"] = {QUESTION: {"method": "elicitation/create", "params": params}}
        return Refused(Refusal.APPROVAL_REQUIRED, held.why, instead=asks, ticket=ticket)


def say_what(held: Ticket, kind: str, ticket: Mapping[str, Any]) -> str:
    """What is asked for, in words for a person and a model: what, which server, who may say yes, until when.

    Names are other people's text: shown in printable characters, and cut. No argument is in it.
    """
    asked = held.asked
    what = _WHAT[kind].format(printable(asked.name, _NAMED))
    where = printable(asked.server, _NAMED)
    return (
        f"{what} on the server {where} needs a person's approval. It can be given on this page by {say_who(held)}, "
        f"until {say_when(ticket)}. Once it is given, the call goes on by itself."
    )


def say_who(held: Ticket) -> str:
    """Who may approve, by the names that the policy gives them; how many of them, where that is more than one."""
    names = []
    for entry in held.approvers[:MOST_NAMED]:
        kind, _, rest = entry.partition(":")
        name = rest.partition("|")[2] or rest
        names.append(printable(f"{kind} {name}", _NAMED))
    more = len(held.approvers) - len(names)
    who = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    return who if held.min_approvers == 1 else f"{held.min_approvers} of {who}"
