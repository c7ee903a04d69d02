"""The statements of a gated call's way, built once: what finds its ticket, and the compare-and-sets that move it.

Each condition of a transition stands in the `WHERE` of its one statement; the number of rows that it touched decides.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Insert,
    Select,
    TextClause,
    Update,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal,
    not_,
    null,
    or_,
    select,
    type_coerce,
    union,
    union_all,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from approvals.approvers import Person, entries_of
from approvals.schema import decisions, eligible, tickets, uses
from approvals.ticket import Run, State
from approvals.transaction import Both, Frequent

LIVE = (State.PENDING, State.APPROVED)
MOST_OF_ONE_EFFECT = 20
MOST_GRANTS = 50

_light = [column for column in tickets.c if column.name != "shown"]

SUMMARY = select(
    *_light,
    uses.c.state.label("run_state"),
    uses.c.lease_until.label("run_lease"),
    uses.c.leg.label("run_leg"),
    uses.c.effect.label("run_effect"),
).select_from(tickets.outerjoin(uses, uses.c.id == tickets.c.running))
"""Tickets with the use that keeps them busy, without what is shown."""

_of_effect = (
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
OF_EFFECT = Frequent(_of_effect)

_grants = SUMMARY.where(tickets.c.kin.in_(bindparam("kin", expanding=True)))
# Without `coalesce` PostgreSQL makes an inner join of it, and may read all uses in place of one by its key.
_busy_with_it = _grants.where(
    tickets.c.running.is_not(None),
    func.coalesce(uses.c.effect, "").in_(bindparam("lookups", expanding=True)),
).limit(MOST_OF_ONE_EFFECT)

OF_CALL = Frequent(union_all(select(_of_effect.subquery()), select(_busy_with_it.subquery())))
"""What is of this effect, and the grants whose present use is for exactly this call."""

_other = tickets.alias("other")
_by_a_person = (
    select(decisions.c.id).where(decisions.c.ticket_id == _other.c.id, decisions.c.verb == "revoke").limit(1)
)
_taken_back = exists().where(
    _other.c.lookup.in_(bindparam("lookups", expanding=True)),
    _other.c.state == State.REVOKED,
    _other.c.expires_at > bindparam("now"),
    _by_a_person.scalar_subquery().is_not(None),  # `exists` would be a join, perhaps with all decisions
)
"""A person revoked an approval of exactly this call, and its time is not over: no grant covers it."""

GRANTS = Frequent(
    _grants.where(or_(tickets.c.state == State.APPROVED, tickets.c.running.is_not(None)), not_(_taken_back))
    .order_by(tickets.c.running.is_(None), tickets.c.created_at.desc())
    .limit(MOST_GRANTS)
)
"""Grants of one caller for one tool, those that are busy first: none of these may be overlooked."""

ALONE = Frequent(select(func.pg_advisory_xact_lock(bindparam("requester", type_=BigInteger))))
"""PostgreSQL alone: held to the end of the transaction."""

DECISIONS = Frequent(
    select(decisions)
    .where(decisions.c.ticket_id.in_(bindparam("ids", expanding=True)))
    .order_by(decisions.c.at, decisions.c.id)
)

_claim = (
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


def _take(given: ColumnElement[bool] | None) -> Insert:
    row = {
        uses.c.id: bindparam("use"), uses.c.ticket_id: bindparam("ticket"), uses.c.state: literal(Run.CLAIMED.value),
        uses.c.leg: literal(0), uses.c.owner: bindparam("holder"), uses.c.lease_until: bindparam("until"),
        uses.c.claimed_at: bindparam("now"), uses.c.at: bindparam("now"), uses.c.effect: bindparam("call"),
    }  # fmt: skip
    values = select(*[type_coerce(value, column.type) for column, value in row.items()])
    return insert(uses).from_select(list(row), values if given is None else values.where(given))


CLAIM = Both(_claim, _take)
"""A use of an approved ticket, and that it was claimed."""

CLAIM_FOR_CALL = Both(_claim.where(not_(_taken_back)), _take)
"""A use of a grant."""

RUN = (
    update(uses)
    .where(
        uses.c.id == bindparam("use"),
        uses.c.state.in_(bindparam("sources", expanding=True)),
        uses.c.resolved_at.is_(None),
    )
    .values(state=bindparam("target"), at=bindparam("now"))
)
_run_by_holder = RUN.where(uses.c.owner == bindparam("holder"), uses.c.leg == bindparam("at_leg"))
"""By whoever holds this leg: a late word about an earlier one moves nothing."""
_its_approval = select(tickets.c.id).where(
    tickets.c.id == uses.c.ticket_id,
    tickets.c.running == uses.c.id,
    tickets.c.state == State.APPROVED,
    tickets.c.expires_at > bindparam("now"),
)
_its_approval_stands = _its_approval.exists()

SEND = Frequent(_run_by_holder.where(_its_approval.with_for_update(read=True).exists()))
"""The last moment at which a revocation or the end of its time stops a call: nothing was sent yet.

Others may share the transaction and it may last: until it is committed nobody revokes, and is told so, what it sends.
"""

AWAIT = Frequent(_run_by_holder.values(leg=uses.c.leg + 1))
"""The server asked for input: the use waits at its next leg, and the ticket stays busy."""

CONTINUE = Frequent(
    update(uses)
    .where(
        uses.c.id == bindparam("use"),
        uses.c.state == Run.WAITING,
        uses.c.leg == bindparam("at_leg"),
        _its_approval_stands,
        exists().where(tickets.c.id == uses.c.ticket_id, tickets.c.version == bindparam("read")),
    )
    .values(state=Run.CLAIMED, owner=bindparam("holder"), lease_until=bindparam("until"), at=bindparam("now"))
)
"""Exactly once a leg: whoever comes second finds another state or another leg."""

WAIT_AGAIN = (
    update(uses)
    .where(
        uses.c.id == bindparam("use"),
        uses.c.state.in_((Run.CLAIMED, Run.SENT)),
        uses.c.owner == bindparam("holder"),
        uses.c.leg == bindparam("at_leg"),
        uses.c.leg > 0,
    )
    .values(state=Run.WAITING, at=bindparam("now"))
)
"""Of this leg provably not one byte left: it can be continued once more."""

ABANDON = (
    update(uses)
    .where(uses.c.id == bindparam("use"), uses.c.state == Run.WAITING, not_(_its_approval_stands))
    .values(state=bindparam("target"), at=bindparam("now"))
)

STALLED = select(uses.c.id).where(uses.c.state == Run.WAITING, not_(_its_approval_stands)).limit(MOST_OF_ONE_EFFECT)
"""Uses that wait for an answer which could not be sent any more."""

_when_last = (and_(tickets.c.state == State.APPROVED, tickets.c.uses_left == 0), State.USED.value)

_its_ticket = select(uses.c.ticket_id).where(uses.c.id == bindparam("use")).scalar_subquery()


def _leave_unknown(given: ColumnElement[bool] | None) -> Update:
    leave = (
        update(tickets)
        .where(tickets.c.id == _its_ticket, tickets.c.running == bindparam("use"))
        .values(state=case(_when_last, else_=tickets.c.state), version=tickets.c.version + 1)
    )
    return leave if given is None else leave.where(given)


END_UNKNOWN = Both(_run_by_holder, _leave_unknown)
"""An unknown end keeps the ticket busy; the end of the last use makes it `used`."""

END = Both(_run_by_holder, lambda given: _leave_unknown(given).values(running=null()))
"""A known end frees it."""


def is_of(person: Person) -> ColumnElement[bool]:
    """Tickets that this person asked for, in this tenant."""
    own = and_(tickets.c.issuer == person.issuer, tickets.c.subject == person.subject)
    return and_(own, tickets.c.tenant.in_(["", person.tenant]))


def names(person: Person) -> ColumnElement[bool]:
    """Tickets whose approvers name this person."""
    return exists().where(eligible.c.ticket_id == tickets.c.id, eligible.c.entry.in_(entries_of(person)))


def is_readable_by(person: Person) -> ColumnElement[bool]:
    """Tickets that this person asked for or is named by: for a look at one. Many are found by `latest`."""
    return or_(is_of(person), names(person))


def latest(person: Person, *conditions: ColumnElement[bool] | TextClause, limit: int) -> Select[tuple[str]]:
    """The ids of the newest tickets that this person may read (a local administrator: any) under these conditions.

    Each of the two ways to be a reader is a bounded search of its own, in the order of an index: with both joined by
    `or`, a database looks through what a whole group may read, whatever is asked for.
    """

    def search(*more: ColumnElement[bool]) -> Select[tuple[str]]:
        query = select(tickets.c.id).where(*more, *conditions)
        found = query.order_by(tickets.c.created_at.desc(), tickets.c.id.desc()).limit(limit).subquery()
        return select(found.c.id)

    if person.local:
        return search()
    both = union(search(is_of(person)), search(names(person))).subquery()
    return select(both.c.id)


def is_overdue(now: float) -> ColumnElement[bool]:
    """Live tickets whose time is over."""
    # With its last use in flight an approved ticket is as good as used: how it ends is for that use to say.
    waiting = or_(tickets.c.state == State.PENDING, and_(tickets.c.state == State.APPROVED, tickets.c.uses_left > 0))
    return and_(waiting, tickets.c.expires_at <= now)


def stands_as(state: State, now: float) -> ColumnElement[bool]:
    """Tickets that stand in this state now: expiry needs nobody to write it down first."""
    if state is State.EXPIRED:
        return or_(tickets.c.state == State.EXPIRED, is_overdue(now))
    return and_(tickets.c.state == state, ~is_overdue(now))
