"""How the house receives people, apart from the API and the pages themselves: what it refuses, and its record of it.

It is open from the start; what people see is opened once somebody comes for it (parlour.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from approvals.desk import Desk
from approvals.store import Store
from gateway.audit.port import AuditSink
from gateway.contract.identity import Implications
from gateway.contract.passage import Reply
from gateway.contract.printable import printable
from gateway.contract.record import MAX_STRANGE_NAME, refusal_record
from gateway.contract.refusals import Refused
from gateway.control import caller_of, refused_as
from gateway.pipeline import Corridor
from gateway.plan import Plan
from gateway.tokens import Tokens

if TYPE_CHECKING:
    from approvals.approvers import Person
    from approvals.review.api import TurnedAway


@dataclass(frozen=True, slots=True)
class Behind:
    """What of the house stands behind the control plane."""

    plan: Plan
    corridor: Corridor
    desk: Desk
    store: Store
    tokens: Tokens
    implications: Implications
    sink: AuditSink


class Reception:
    """Where people are received; the resource is the approvals API as a protected one."""

    def __init__(self, behind: Behind) -> None:
        self.behind = behind
        self._corridor = behind.corridor
        self._resource = behind.plan.approvals

    async def turn_away(self, refused: Refused, person: Person | None = None) -> Reply:
        """A refusal of the control plane, recorded like any other."""
        passage = self._corridor.open_passage(self._resource)
        passage.identity = caller_of(person)
        return await self._corridor.turn_away(passage, refused)

    def write_off(self, refused: Refused) -> str:
        """A refusal that somebody else renders, recorded like any other -> its decision id."""
        passage = self._corridor.open_passage(self._resource)
        self._corridor.write_off(passage, refused)
        return passage.decision_id

    def write_down(self, turned: TurnedAway) -> Mapping[str, str]:
        """What the approvals API refused by itself: who wanted what of which ticket, and why not."""
        passage = self._corridor.open_passage(self._resource)
        passage.identity = caller_of(turned.person)
        passage.refuse(refused_as(turned.status, turned.name, turned.ticket_id))
        passage.status = turned.status

        def make() -> dict[str, Any]:
            return refusal_record(passage, self._corridor.redactor) | {
                "code": None,
                "method": printable(f"approvals/{turned.verb}", MAX_STRANGE_NAME),
                "ticket": printable(turned.ticket_id, MAX_STRANGE_NAME) or None,
            }

        self._corridor.write_down(passage, make)
        return {"ostiary-decision": passage.decision_id}
