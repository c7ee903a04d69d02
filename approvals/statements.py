"""The statements of a gated call's way, built once: what finds its ticket, and the compare-and-sets that move it.

Each condition of a transition stands in the `WHERE` of its one statement; the number of rows that it touched decides.
"""

from __future__ import annotations

from sqlalchemy import and_, bindparam, case, exists, null, or_, select, update

from approvals.schema import decisions, tickets, uses
from approvals.ticket import State

LIVE = (State.PENDING, State.APPROVED)
MOST_OF_ONE_EFFECT = 20

_light = [column for column in tickets.c if column.name != "shown"]

SUMMARY = select(*_light, uses.c.state.label("run_state"), uses.c.lease_until.label("run_lease")).select_from(
    tickets.outerjoin(uses, uses.c.id == tickets.c.running)
)
"""Tickets with the use that keeps them busy, without what is shown."""

OF_EFFECT = (
    SUMMARY.where(
        tickets.c.lookup.in_(bindparam("lookups", expanding=True)),
        or_(
            tickets.c.state.in_(LIVE),
            tickets.c.running.is_not(None),
            and_(tickets.c.state == State.DENIED, tickets.c.expires_at > bindparam("now")),
        ),
    )
    .order_by(tickets.c.created_at.desc())
    .limit(MOST_OF_ONE_EFFECT)
)

DECISIONS = (
    select(decisions)
    .where(decisions.c.ticket_id.in_(bindparam("ids", expanding=True)))
    .order_by(decisions.c.at, decisions.c.id)
)

CLAIM = (
    update(tickets)
    .where(
        tickets.c.id == bindparam("ticket"),
        tickets.c.version == bindparam("read"),
        tickets.c.state == State.APPROVED,
        tickets.c.uses_left > 0,
        tickets.c.expires_at > bindparam("now"),
        tickets.c.running.is_(None),
    )
    .values(uses_left=tickets.c.uses_left - 1, running=bindparam("use"), version=tickets.c.version + 1)
)

RUN = (
    update(uses)
    .where(
        uses.c.id == bindparam("use"),
        uses.c.state.in_(bindparam("sources", expanding=True)),
        uses.c.resolved_at.is_(None),
    )
    .values(state=bindparam("target"), at=bindparam("now"))
)
RUN_BY_HOLDER = RUN.where(uses.c.owner == bindparam("holder"))
SEND = RUN_BY_HOLDER.where(
    exists().where(
        tickets.c.id == uses.c.ticket_id,
        tickets.c.running == uses.c.id,
        tickets.c.state == State.APPROVED,
        tickets.c.expires_at > bindparam("now"),
    )
)
"""The last moment at which a revocation or the end of its time stops a call: nothing was sent yet."""

_when_last = (and_(tickets.c.state == State.APPROVED, tickets.c.uses_left == 0), State.USED.value)

_its_ticket = select(uses.c.ticket_id).where(uses.c.id == bindparam("use")).scalar_subquery()

LEFT_UNKNOWN = (
    update(tickets)
    .where(tickets.c.id == _its_ticket, tickets.c.running == bindparam("use"))
    .values(state=case(_when_last, else_=tickets.c.state), version=tickets.c.version + 1)
)
"""An unknown end keeps the ticket busy; the end of the last use makes it `used`."""

FREED = LEFT_UNKNOWN.values(running=null())
"""A known end frees it."""
