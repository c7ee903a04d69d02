"""The looks of one transaction: what there is of an effect, of a person, of a use; nothing here moves anything."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, and_, case, false, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from approvals.approvers import Person, entries_of
from approvals.filed import Filed
from approvals.opening import Opening
from approvals.outbox import expiring
from approvals.schema import eligible, tickets, uses
from approvals.sieve import Sieve, last_approved, newest
from approvals.statements import (
    GRANTS,
    MOST_GRANTS,
    OF_CALL,
    OF_EFFECT,
    STALLED,
    SUMMARY,
    is_overdue,
    is_readable_by,
)
from approvals.ticket import OPEN_RUNS, Asked, Standing, State, StoreUnavailable, Ticket
from approvals.vault import effect_of, kin_of

BATCH = 100


class Finding(Opening):
    """One transaction's looks."""

    async def of_effect(self, asked: Asked, now: float) -> list[Filed]:
        """What stands in the way of this effect or speaks for it: live tickets, denials that hold, open uses."""
        given = {"lookups": self._vault.lookups(asked), "now": now}
        if asked.is_grant:
            rows = await self.connection.rows(OF_EFFECT, given)
        else:  # a grant that is busy with this very call stands in its way
            rows = await self.connection.rows(OF_CALL, {**given, "kin": self._vault.kin(asked)})
        said = await self._said([row.id for row in rows if row.state == State.APPROVED])
        effect = effect_of(asked).hex()
        grants, own = [], []
        for row in rows:
            if row.kin is not None and not asked.is_grant:
                grants.append(self._grant(row, asked, said.get(row.id, ())))
                continue
            bond = self._bond(row)
            if bond["effect"] != effect:
                raise StoreUnavailable(f"ticket {row.id} was filed under another effect")
            own.append(self._filed(row, bond, asked, said=said.get(row.id, ())))
        return grants + own

    async def grants(self, asked: Asked, now: float) -> list[Filed]:
        """The grants that could cover this call, whatever its arguments: approved ones, and those that are busy.

        None where a person revoked an approval of exactly this call whose time is not over.
        """
        if asked.is_grant:
            return []
        given = {"kin": self._vault.kin(asked), "lookups": self._vault.lookups(asked), "now": now}
        rows = await self.connection.rows(GRANTS, given)
        if len(rows) == MOST_GRANTS and rows[-1].running is not None:
            raise StoreUnavailable("too many grants of one tool are busy")
        said = await self._said([row.id for row in rows if row.state == State.APPROVED])
        return [self._grant(row, asked, said.get(row.id, ())) for row in rows]

    def _grant(self, row: Any, asked: Asked, said: Sequence[Mapping[str, Any]] = ()) -> Filed:
        bond = self._bond(row)
        if bond.get("kin") != kin_of(asked).hex():
            raise StoreUnavailable(f"ticket {row.id} is no grant of this tool")
        return self._filed(row, bond, None, said=said)

    async def holding(self, use_id: str, *, decided: bool = False) -> Filed | None:
        """The bookkeeping of the ticket that this use belongs to (`decided`: with who approved it), or None."""
        belongs = select(uses.c.ticket_id).where(uses.c.id == use_id).scalar_subquery()
        row = (await self.connection.execute(SUMMARY.where(tickets.c.id == belongs))).one_or_none()
        if row is None:
            return None
        said = await self._said([row.id]) if decided else {}
        return self._filed(row, self._bond(row), None, said=said.get(row.id, ()))

    async def standings(self, ticket_ids: Collection[str], now: float) -> dict[str, Standing]:
        """Where these tickets stand; one that is not there is left out."""
        columns = (tickets.c.id, tickets.c.state, tickets.c.version, tickets.c.expires_at)
        over = case((is_overdue(now), State.EXPIRED.value), else_=tickets.c.state).label("now")
        query = select(*columns, over).where(tickets.c.id.in_(list(ticket_ids)))
        rows = (await self.connection.execute(query)).all()
        return {row.id: Standing(row.id, State(row.now), row.version, row.expires_at) for row in rows}

    async def bookkeeping(self, ticket_id: str) -> Filed | None:
        """A ticket without what is shown of it, or None."""
        row = (await self.connection.execute(SUMMARY.where(tickets.c.id == ticket_id))).one_or_none()
        return None if row is None else self._filed(row, self._bond(row), None)

    async def whole(self, ticket_id: str) -> Filed | None:
        """A ticket with everything that a person may look at, earlier uses of the same effect included, or None."""
        found = await self._whole(SUMMARY.add_columns(tickets.c.shown).where(tickets.c.id == ticket_id), earlier=True)
        return found[0] if found else None

    async def page(
        self,
        person: Person,
        *,
        sieve: Sieve,
        before: tuple[float, str] | None,
        limit: int,
        budget: int,
        now: float,
    ) -> tuple[list[Filed], bool]:
        """Tickets that this person asked for or may decide (a local administrator: all), newest first, and whether
        more follow. At most `limit`, and no more than `budget` bytes of arguments (but always one).
        """
        query = newest(select(tickets.c.id, tickets.c.weight), person, sieve, before, now=now, limit=limit + 1)
        rows = (await self.connection.execute(query)).all()
        chosen: list[str] = []
        for row in rows[:limit]:
            budget -= row.weight
            if budget < 0 and chosen:
                break
            chosen.append(row.id)
        found = await self._whole(SUMMARY.add_columns(tickets.c.shown).where(tickets.c.id.in_(chosen)))
        found.sort(key=lambda filed: chosen.index(filed.ticket.id))
        return found, len(chosen) < len(rows)

    async def lines(
        self, person: Person, *, sieve: Sieve, before: tuple[float, str] | None, limit: int, now: float
    ) -> tuple[list[Filed], bool]:
        """The bookkeeping of the same tickets, and of none their arguments: what a queue is made of."""
        query = newest(SUMMARY, person, sieve, before, now=now, limit=limit + 1)
        rows = (await self.connection.execute(query)).all()
        said = await self._said([row.id for row in rows[:limit]])
        found = [self._filed(row, self._bond(row), None, said=said.get(row.id, ())) for row in rows[:limit]]
        return found, len(rows) > limit

    async def last_approved(self, ticket: Ticket, person: Person) -> Filed | None:
        """The last other approval of this tool, target and environment that this person may look at, or None."""
        if ticket.asked.is_grant:  # which has no arguments to compare
            return None
        found = (await self.connection.execute(last_approved(ticket, person))).scalar_one_or_none()
        return None if found is None else await self.whole(found)

    async def is_readable(self, person: Person, ticket_id: str) -> bool:
        """Whether this person asked for the ticket or is named by its approvers."""
        query = select(tickets.c.id).where(tickets.c.id == ticket_id)
        if not person.local:
            query = query.where(is_readable_by(person))
        return (await self.connection.execute(query)).one_or_none() is not None

    async def is_approver(self, person: Person) -> bool:
        """Whether any ticket that is kept names this person as an approver."""
        query = select(eligible.c.ticket_id).where(eligible.c.entry.in_(entries_of(person))).limit(1)
        return (await self.connection.execute(query)).one_or_none() is not None

    async def opened_since(self, asked: Asked, since: float) -> int:
        """How many tickets this requester opened after `since`."""
        query = select(func.count()).select_from(tickets)
        query = query.where(tickets.c.issuer == asked.issuer, tickets.c.subject == asked.subject)
        return int((await self.connection.execute(query.where(tickets.c.created_at > since))).scalar_one())

    async def adrift(
        self, now: float, owner: str | None, held: Iterable[str] = (), *, but: Iterable[str] = ()
    ) -> list[str]:
        """A batch of open uses: those whose lease lapsed, and those that `owner` left behind (all but `held`); none
        of `but`."""
        lost: ColumnElement[bool] = uses.c.lease_until <= now
        if owner is not None:
            lost = or_(lost, and_(uses.c.owner == owner, uses.c.id.not_in(list(held))))
        query = select(uses.c.id).where(uses.c.state.in_(list(OPEN_RUNS)), lost, uses.c.id.not_in(list(but)))
        query = query.limit(BATCH)
        return list((await self.connection.execute(query)).scalars())

    async def stalled(self, now: float, but: Iterable[str] = ()) -> list[str]:
        """A batch of uses that wait for an answer though their ticket was revoked or is out of time, but these."""
        query = STALLED.where(uses.c.id.not_in(list(but)))
        return list((await self.connection.execute(query, {"now": now})).scalars())

    async def has_late(self, now: float) -> bool:
        """Whether `remind` would find any."""
        query = self._late(now).with_only_columns(tickets.c.id).limit(1)
        return (await self.connection.execute(query)).first() is not None

    def _late(self, now: float) -> Select[Any]:
        hooks = [] if self._outbox is None else self._outbox.wanted("expiring")
        return SUMMARY.where(expiring(now, [hook.id for hook in hooks]) if hooks else false())
