"""A ticket as it was read in one transaction, with what a compare-and-set needs."""

from __future__ import annotations

from dataclasses import dataclass

from approvals.approvers import Party, Person
from approvals.ticket import Run, Ticket


@dataclass(frozen=True, slots=True)
class Open:
    """The use that keeps a ticket busy: in flight until `lease_until`, waiting at its `leg`, or unknown.

    `effect` is the keyed digest of the call that a grant's use is for.
    """

    use_id: str
    run: Run
    lease_until: float
    leg: int = 0
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Filed:
    """A ticket as it was read, with what a compare-and-set needs. `approvals`: the people who said yes, as then."""

    ticket: Ticket
    version: int
    parties: tuple[Party, ...]
    running: Open | None
    approvals: tuple[Person, ...] = ()
