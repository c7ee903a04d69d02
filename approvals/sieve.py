"""Which tickets somebody wants to see, as conditions of one bounded statement.

What a person may see at all is joined in here and nowhere else; a filter can only leave out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Select, and_, func, or_, select, text
from sqlalchemy.sql.elements import ColumnElement

from approvals.approvers import Person
from approvals.schema import decisions, tickets, uses
from approvals.statements import is_readable_by, stands_as
from approvals.ticket import Run, State, Ticket

MOST_LOOKED_THROUGH = 500
"""So many of a server's latest approvals are looked through for the last one of a tool."""


class Whose(StrEnum):
    """Tickets by who asked: all that one may read, those of others (to decide), or one's own."""

    ALL = "all"
    OTHERS = "others"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Sieve:
    """What a list is narrowed to; exact texts, `""` for any. `after`, `until`: when it was asked for, in seconds.

    `open`: what somebody has to do something about, which is pending or has a call of unknown outcome.
    """

    state: State | None = None
    open: bool = False
    whose: Whose = Whose.ALL
    server: str = ""
    name: str = ""
    requester: str = ""
    after: float | None = None
    until: float | None = None


_ended_unknown = (
    select(uses.c.id).where(uses.c.id == tickets.c.running, uses.c.state == Run.UNKNOWN).correlate(tickets).exists()
)


def newest(
    query: Select[Any], person: Person, sieve: Sieve, before: tuple[float, str] | None, now: float
) -> Select[Any]:
    """The query over tickets, newest first, of what this person may read and asked to see."""
    query = query.order_by(tickets.c.created_at.desc(), tickets.c.id.desc())
    if not person.local:
        query = query.where(is_readable_by(person))
    own = _is_of(person)
    if sieve.whose is not Whose.ALL:
        query = query.where(own if sieve.whose is Whose.OWN else ~own)
    if sieve.state is not None:
        query = query.where(stands_as(sieve.state, now))
    if sieve.open:
        query = query.where(or_(stands_as(State.PENDING, now), _ended_unknown))
    for column, wanted in (("server", sieve.server), ("name", sieve.name), ("subject", sieve.requester)):
        if wanted:
            query = query.where(tickets.c[column] == wanted)
    if sieve.after is not None:
        query = query.where(tickets.c.created_at >= sieve.after)
    if sieve.until is not None:
        query = query.where(tickets.c.created_at <= sieve.until)
    if before is not None:
        at, ticket_id = before
        query = query.where(
            or_(tickets.c.created_at < at, and_(tickets.c.created_at == at, tickets.c.id < ticket_id))
        )
    return query


def _is_of(person: Person) -> ColumnElement[bool]:
    return and_(tickets.c.issuer == person.issuer, tickets.c.subject == person.subject)


def last_approved(ticket: Ticket, person: Person) -> Select[Any]:
    """The id of the ticket that was approved last for the same tool, target and environment, whoever asked.

    Only one that this person may read: what others asked for is not told by comparison. Looked for among the
    server's latest approvals, so that a long history costs no more than a short one.
    """
    asked = ticket.asked
    approved = select(tickets.c.id, tickets.c.method, tickets.c.name).where(
        tickets.c.server == asked.server,
        tickets.c.resource == asked.resource,
        tickets.c.environment == asked.environment,
        text("tickets.state IN ('approved', 'used')"),  # to the letter of the index, which parameters would hide
        tickets.c.id != ticket.id,
        tickets.c.kin.is_(None),  # a grant has no arguments to compare with
    )
    if not person.local:
        approved = approved.where(is_readable_by(person))
    latest = approved.order_by(tickets.c.created_at.desc()).limit(MOST_LOOKED_THROUGH).subquery()
    approved_at = (
        select(func.max(decisions.c.at))
        .where(decisions.c.ticket_id == latest.c.id, decisions.c.verb == "approve")
        .scalar_subquery()
    )
    return (
        select(latest.c.id)
        .where(latest.c.method == asked.method, latest.c.name == asked.name)
        .order_by(approved_at.desc(), latest.c.id)
        .limit(1)
    )
