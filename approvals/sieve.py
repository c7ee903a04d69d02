"""Which tickets somebody wants to see, as conditions of one bounded statement.

What a person may see at all is joined in here and nowhere else; a filter can only leave out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Select, TextClause, and_, func, or_, select, text, union_all
from sqlalchemy.sql.elements import ColumnElement

from approvals.approvers import Person
from approvals.schema import decisions, tickets, uses
from approvals.statements import LIVE, is_of, latest, stands_as
from approvals.ticket import State, Ticket

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


_LIVE = text("tickets.state IN ('pending', 'approved')")  # to the letter of the index, which parameters would hide
_APPROVED = text("tickets.state IN ('approved', 'used')")  # likewise
_ended_unknown = text("uses.state = 'unknown' AND uses.resolved_at IS NULL")  # likewise


def _needs_somebody(now: float) -> ColumnElement[bool]:
    pending = select(tickets.c.id).where(_LIVE, stands_as(State.PENDING, now))
    unclear = select(uses.c.ticket_id).where(_ended_unknown)
    return tickets.c.id.in_(union_all(pending, unclear))


def newest(
    query: Select[Any], person: Person, sieve: Sieve, before: tuple[float, str] | None, *, now: float, limit: int
) -> Select[Any]:
    """The query over tickets, newest first and at most `limit`, of what this person may read and asked to see."""
    wanted: list[ColumnElement[bool] | TextClause] = []
    own = is_of(person)
    if sieve.whose is not Whose.ALL:
        wanted.append(own if sieve.whose is Whose.OWN else ~own)
    if sieve.state is not None:
        wanted.append(stands_as(sieve.state, now))
        if sieve.state in LIVE:
            wanted.append(_LIVE)
    if sieve.open:
        wanted.append(_needs_somebody(now))
    for column, value in (("server", sieve.server), ("name", sieve.name), ("subject", sieve.requester)):
        if value:
            wanted.append(tickets.c[column] == value)
    if sieve.after is not None:
        wanted.append(tickets.c.created_at >= sieve.after)
    if sieve.until is not None:
        wanted.append(tickets.c.created_at <= sieve.until)
    if before is not None:
        at, ticket_id = before
        wanted.append(or_(tickets.c.created_at < at, and_(tickets.c.created_at == at, tickets.c.id < ticket_id)))
    found = tickets.c.id.in_(latest(person, *wanted, limit=limit))
    return query.where(found).order_by(tickets.c.created_at.desc(), tickets.c.id.desc()).limit(limit)


def last_approved(ticket: Ticket, person: Person) -> Select[Any]:
    """The id of the ticket that was approved last for the same tool, target and environment, whoever asked.

    Only one that this person may read: what others asked for is not told by comparison. Looked for among the
    server's latest approvals, so that a long history costs no more than a short one.
    """
    asked = ticket.asked
    approved = latest(
        person,
        tickets.c.server == asked.server,
        tickets.c.resource == asked.resource,
        tickets.c.environment == asked.environment,
        _APPROVED,
        tickets.c.id != ticket.id,
        tickets.c.kin.is_(None),  # a grant has no arguments to compare with
        limit=MOST_LOOKED_THROUGH,
    )
    approved_at = (
        select(func.max(decisions.c.at))
        .where(decisions.c.ticket_id == tickets.c.id, decisions.c.verb == "approve")
        .scalar_subquery()
    )
    return (
        select(tickets.c.id)
        .where(tickets.c.id.in_(approved), tickets.c.method == asked.method, tickets.c.name == asked.name)
        .order_by(approved_at.desc(), tickets.c.id)
        .limit(1)
    )
