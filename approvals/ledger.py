"""The statements of one transaction over tickets, decisions and uses.

Every transition is one compare-and-set statement, and its result decides: a method that moves something returns
whether it did, and the caller believes nothing else. Rows leave as `Filed`, with what is sealed opened and checked.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from sqlalchemy import BigInteger, Select, and_, case, false, func, literal, null, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from approvals.approvers import Approver, Party, Person
from approvals.filed import Filed, Open
from approvals.outbox import Outbox, expiring
from approvals.schema import decisions, eligible, tickets, uses
from approvals.sieve import Sieve, last_approved, newest
from approvals.statements import (
    ABANDON,
    AWAIT,
    CLAIM,
    CONTINUE,
    DECISIONS,
    FREED,
    GRANTS,
    LEFT_UNKNOWN,
    MOST_GRANTS,
    OF_EFFECT,
    RUN,
    RUN_BY_HOLDER,
    SEND,
    STALLED,
    SUMMARY,
    WAIT_AGAIN,
    is_overdue,
    is_readable_by,
)
from approvals.ticket import OPEN_RUNS, Asked, Claimed, Run, Standing, State, StoreUnavailable, Ticket, sources
from approvals.vault import Vault, effect_of, join, kin_of

MOST_EARLIER = 10
BATCH = 100


def new_id() -> str:
    """144 random bits, URL-safe, in exactly one spelling; never looks like an option of a command."""
    while (name := secrets.token_urlsafe(18)).startswith("-"):
        pass
    return name


class Ledger:
    """One transaction's view. Made by `Store.read` and `Store.write`; not to be kept beyond them."""

    def __init__(self, connection: AsyncConnection, vault: Vault, outbox: Outbox | None = None) -> None:
        self.connection = connection
        self._vault = vault
        self._outbox = outbox
        self.has_news = False
        self._is_postgresql = connection.dialect.name == "postgresql"

    # Reading

    async def of_effect(self, asked: Asked, now: float) -> list[Filed]:
        """What stands in the way of this effect or speaks for it: live tickets, denials that hold, open uses."""
        lookups = self._vault.lookups(asked)
        given = {"lookups": lookups, "now": now}
        rows = (await self.connection.execute(OF_EFFECT, given)).all()
        said = await self._said([row.id for row in rows if row.state == State.APPROVED])
        effect = effect_of(asked).hex()
        grants = await self.grants(asked)  # one that is busy with this very call stands in its way
        filed = [one for one in grants if one.running is not None and one.running.effect in lookups]
        for row in rows:
            bond = self._bond(row)
            if bond["effect"] != effect:
                raise StoreUnavailable(f"ticket {row.id} was filed under another effect")
            filed.append(self._filed(row, bond, asked, said=said.get(row.id, ())))
        return filed

    async def grants(self, asked: Asked) -> list[Filed]:
        """The grants that could cover this call, whatever its arguments: approved ones, and those that are busy."""
        if asked.is_grant:
            return []
        rows = (await self.connection.execute(GRANTS, {"kin": self._vault.kin(asked)})).all()
        if len(rows) == MOST_GRANTS and rows[-1].running is not None:
            raise StoreUnavailable(
                "too many grants of one tool are busy"
            )  # one of them may be so with this very call
        said = await self._said([row.id for row in rows if row.state == State.APPROVED])
        kin = kin_of(asked).hex()
        filed = []
        for row in rows:
            bond = self._bond(row)
            if bond.get("kin") != kin:
                raise StoreUnavailable(f"ticket {row.id} is no grant of this tool")
            filed.append(self._filed(row, bond, None, said=said.get(row.id, ())))
        return filed

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
        query = newest(select(tickets.c.id, tickets.c.weight), person, sieve, before, now)
        rows = (await self.connection.execute(query.limit(limit + 1))).all()
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
        query = newest(SUMMARY, person, sieve, before, now).limit(limit + 1)
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

    async def is_there(self, ticket_id: str) -> bool:
        """Whether there is such a ticket, whoever asks."""
        query = select(tickets.c.id).where(tickets.c.id == ticket_id)
        return (await self.connection.execute(query)).one_or_none() is not None

    async def opened_since(self, asked: Asked, since: float) -> int:
        """How many tickets this requester opened after `since`."""
        query = select(func.count()).select_from(tickets)
        query = query.where(tickets.c.issuer == asked.issuer, tickets.c.subject == asked.subject)
        return int((await self.connection.execute(query.where(tickets.c.created_at > since))).scalar_one())

    async def alone(self, asked: Asked) -> None:
        """From here to the end of the transaction nobody else opens a ticket for this requester.

        What is read after it stays true, and a count of what was opened is exact. In SQLite whoever writes is alone.
        """
        if self._is_postgresql:
            key = hashlib.sha256(join("ostiary requester", asked.issuer, asked.subject)).digest()[:8]
            lock = func.pg_advisory_xact_lock(literal(int.from_bytes(key, "big", signed=True), BigInteger))
            await self.connection.execute(select(lock))

    async def hold(self, ticket_id: str) -> None:
        """From here to the end of the transaction nobody else moves this ticket: two who decide it at once do so one
        after the other. In SQLite whoever writes is alone.
        """
        await self.connection.execute(select(tickets.c.id).where(tickets.c.id == ticket_id).with_for_update())

    async def overdue(self, now: float) -> list[Filed]:
        """A batch of live tickets whose time is over, held as by `hold`; without those that somebody else holds."""
        query = select(tickets.c.id).where(is_overdue(now)).order_by(tickets.c.expires_at, tickets.c.id).limit(BATCH)
        held = (await self.connection.execute(query.with_for_update(skip_locked=True))).scalars().all()
        rows = (await self.connection.execute(SUMMARY.where(tickets.c.id.in_(held)))).all() if held else []
        return [self._filed(row, self._bond(row), None) for row in rows]

    async def adrift(self, now: float, owner: str | None, held: Iterable[str] = ()) -> list[str]:
        """A batch of open uses: those whose lease lapsed, and those that `owner` left behind (all but `held`)."""
        lost: ColumnElement[bool] = uses.c.lease_until <= now
        if owner is not None:
            lost = or_(lost, and_(uses.c.owner == owner, uses.c.id.not_in(list(held))))
        query = select(uses.c.id).where(uses.c.state.in_(list(OPEN_RUNS)), lost).limit(BATCH)
        return list((await self.connection.execute(query)).scalars())

    async def stalled(self, now: float) -> list[str]:
        """A batch of uses that wait for an answer though their ticket was revoked or is out of time."""
        return list((await self.connection.execute(STALLED, {"now": now})).scalars())

    # Moving

    async def file(self, ticket: Ticket, approvers: Sequence[Approver], parties: Sequence[Party]) -> bool:
        """Store a new pending ticket; False if a live one of the same effect is there already."""
        asked = ticket.asked
        shown = orjson.dumps(
            {
                "arguments": asked.arguments, "meta": asked.shown_meta, "justification": ticket.justification,
                "tool": asked.tool, "clear": ticket.clear,
            }
        )  # fmt: skip
        grant = {"kin": kin_of(asked).hex(), "vary": asked.vary} if asked.is_grant else {}
        bond = orjson.dumps(
            {
                "effect": effect_of(asked).hex(), "digest": asked.digest, "tenant": asked.tenant, "parties": parties,
                "stated": _stated(ticket), **grant,
            }
        )  # fmt: skip
        sealed = self._vault.seal(shown, ticket.id, "shown")
        values = {
            "id": ticket.id, "version": 1, "lookup": self._vault.lookups(asked)[0], "key_id": self._vault.key_id,
            "state": ticket.state, "issuer": asked.issuer, "subject": asked.subject, "client": asked.client,
            "server": asked.server, "resource": asked.resource, "environment": asked.environment,
            "method": asked.method, "name": asked.name, "tool_digest": asked.tool_digest,
            "reasons": _texts(ticket.reasons), "approvers": _texts(ticket.approvers), "mask": _texts(ticket.mask),
            "min_approvers": ticket.min_approvers, "uses": ticket.uses, "uses_left": ticket.uses_left,
            "created_at": ticket.created_at, "expires_at": ticket.expires_at,
            "bond": self._vault.seal(bond, ticket.id, "bond"), "shown": sealed, "weight": len(sealed) + len(bond),
            "kin": self._vault.kin(asked)[0] if asked.is_grant else None,
        }  # fmt: skip
        insert = postgresql.insert if self._is_postgresql else sqlite.insert
        filed = await self.connection.execute(insert(tickets).values(values).on_conflict_do_nothing())
        if filed.rowcount != 1:
            return False
        entries = [{"ticket_id": ticket.id, "entry": entry} for entry in {approver.entry for approver in approvers}]
        await self.connection.execute(eligible.insert(), entries)
        await self.tell("new", ticket, ticket.created_at)
        return True

    async def move(self, filed: Filed, target: State, now: float) -> bool:
        """From the state that was read to `target`, if nothing moved meanwhile; a yes or a no needs time left."""
        query = update(tickets).where(tickets.c.id == filed.ticket.id, tickets.c.version == filed.version)
        query = query.where(tickets.c.state == filed.ticket.state)
        if target is not filed.ticket.state and target in (State.APPROVED, State.DENIED):
            query = query.where(tickets.c.expires_at > now)
        moved = await self.connection.execute(query.values(state=target, version=tickets.c.version + 1))
        if moved.rowcount != 1:
            return False
        if target is not filed.ticket.state:
            await self.tell(target.value, replace(filed.ticket, state=target), now)
        return True

    async def tell(self, event: str, ticket: Ticket, now: float) -> None:
        """Have whoever wants it told of this, if they were not yet: with this transaction, or not at all."""
        if self._outbox is None or not self._outbox.wanted(event):
            return
        if event != "new":  # how a ticket is moved does not take what is shown of it
            query = select(tickets.c.shown).where(tickets.c.id == ticket.id)
            sealed = (await self.connection.execute(query)).scalar_one()
            shown = orjson.loads(self._vault.open(sealed, ticket.id, "shown"))
            ticket = replace(
                ticket, asked=replace(ticket.asked, arguments=shown["arguments"]), clear=shown.get("clear", ())
            )
        await self._outbox.put(self.connection, self._vault, event, ticket, now)
        self.has_news = True

    async def remind(self, now: float) -> int:
        """Have those who want it told of pending tickets that are about to expire -> of how many."""
        found = (await self.connection.execute(self._late(now).limit(BATCH))).all()
        for row in found:
            await self.tell("expiring", self._filed(row, self._bond(row), None).ticket, now)
        return len(found)

    async def has_late(self, now: float) -> bool:
        """Whether `remind` would find any."""
        query = self._late(now).with_only_columns(tickets.c.id).limit(1)
        return (await self.connection.execute(query)).first() is not None

    def _late(self, now: float) -> Select[Any]:
        hooks = [] if self._outbox is None else self._outbox.wanted("expiring")
        return SUMMARY.where(expiring(now, [hook.id for hook in hooks]) if hooks else false())

    async def decide(
        self, filed: Filed, verb: str, person: Person, *, comment: str, seen: str, target: State, now: float
    ) -> bool:
        """Write a decision down and move the ticket by it (`target` may be the state it is in: a quorum grows)."""
        if not await self.move(filed, target, now):
            return False
        decision_id = new_id()
        who = {
            "issuer": person.issuer, "subject": person.subject, "client": person.client, "local": person.local,
            "scopes": sorted(person.scopes), "groups": sorted(person.groups), "act": person.claims.get("act"),
        }  # fmt: skip
        said = orjson.dumps(
            {"id": decision_id, "verb": verb, "who": who, "by": person.by, "comment": comment, "seen": seen}
        )
        await self.connection.execute(
            decisions.insert().values(
                id=decision_id, ticket_id=filed.ticket.id, verb=verb, at=now,
                sealed=self._vault.seal(said, filed.ticket.id, "decision"),
            )
        )  # fmt: skip
        return True

    async def claim(
        self, filed: Filed, use_id: str, owner: str, *, now: float, lease_until: float, call: Asked | None = None
    ) -> bool:
        """Take one use of an approved ticket, if it is still exactly what was read, in time, and nothing runs.

        `call`: what a grant's use is for.
        """
        given = {"ticket": filed.ticket.id, "read": filed.version, "use": use_id, "now": now}
        taken = await self.connection.execute(CLAIM, given)
        if taken.rowcount != 1:
            return False
        row = {
            "id": use_id, "ticket_id": filed.ticket.id, "state": Run.CLAIMED, "leg": 0, "owner": owner,
            "lease_until": lease_until, "claimed_at": now, "at": now,
            "effect": None if call is None else self._vault.lookups(call)[0],
        }  # fmt: skip
        await self.connection.execute(uses.insert(), row)
        return True

    async def go_on(self, filed: Filed, use: Claimed, owner: str, *, now: float, lease_until: float) -> bool:
        """Take a use that waits at this leg, if its ticket is still what was read, approved and in time."""
        given: dict[str, Any] = {"use": use.use_id, "at_leg": use.leg, "read": filed.version}
        given |= {"holder": owner, "until": lease_until, "now": now}
        return (await self.connection.execute(CONTINUE, given)).rowcount == 1

    async def run(self, use_id: str, target: Run, now: float, *, owner: str | None = None, leg: int = 0) -> bool:
        """Move a use, held by `owner` at `leg` where given; False if its state does not admit it or a person resolved
        it. It is `sent` only while its ticket still is approved and in time, `abandoned` only when it no longer is.

        A known end frees the ticket, an unknown one keeps it busy, and so does a use that waits (from then on at its
        next leg); the end of the last use makes it `used`.
        """
        given: dict[str, Any] = {"use": use_id, "target": target, "now": now}
        if target is Run.ABANDONED:
            moved = await self.connection.execute(ABANDON, given)
        elif owner is None:
            moved = await self.connection.execute(RUN, given | {"sources": sources(target)})
        else:
            statement = {Run.SENT: SEND, Run.WAITING: AWAIT}.get(target, RUN_BY_HOLDER)
            given |= {"sources": sources(target), "holder": owner, "at_leg": leg}
            moved = await self.connection.execute(statement, given)
        if moved.rowcount != 1:
            return False
        if target not in (Run.SENT, Run.WAITING):
            await self.connection.execute(LEFT_UNKNOWN if target is Run.UNKNOWN else FREED, {"use": use_id})
        return True

    async def give_back(self, use_id: str, owner: str, now: float) -> bool:
        """A use of which provably not one byte left: it failed, and the ticket has it again. Once only, and never
        after a leg of it was answered.
        """
        closed = await self.connection.execute(
            update(uses)
            .where(uses.c.id == use_id, uses.c.owner == owner, uses.c.leg == 0, uses.c.state.in_(list(OPEN_RUNS)))
            .values(state=Run.FAILED, at=now)
        )
        if closed.rowcount != 1:
            return False
        freed = await self.connection.execute(
            update(tickets)
            .where(tickets.c.running == use_id, tickets.c.uses_left < tickets.c.uses)
            .values(running=null(), uses_left=tickets.c.uses_left + 1, version=tickets.c.version + 1)
        )
        return freed.rowcount == 1

    async def wait_again(self, use_id: str, leg: int, owner: str, now: float) -> bool:
        """A leg of which provably not one byte left: the use waits at it again."""
        given = {"use": use_id, "at_leg": leg, "holder": owner, "now": now}
        return (await self.connection.execute(WAIT_AGAIN, given)).rowcount == 1

    async def resolve(self, filed: Filed, now: float) -> bool:
        """Set the unknown use of this ticket aside: a person looked into it. Its outcome stays `unknown`."""
        if filed.running is None:
            return False
        query = update(uses).where(uses.c.id == filed.running.use_id, uses.c.state == Run.UNKNOWN)
        if (await self.connection.execute(query.values(resolved_at=now))).rowcount != 1:
            return False
        freed = await self.connection.execute(
            update(tickets)
            .where(tickets.c.id == filed.ticket.id, tickets.c.running == filed.running.use_id)
            .values(running=null(), version=tickets.c.version + 1)
        )
        return freed.rowcount == 1

    async def extend(self, use_ids: Sequence[str], owner: str, lease_until: float) -> None:
        """Hold these open uses longer."""
        query = update(uses).where(uses.c.id.in_(use_ids), uses.c.owner == owner, uses.c.state.in_(list(OPEN_RUNS)))
        await self.connection.execute(query.values(lease_until=lease_until))

    # Opening what is sealed

    def _bond(self, row: Any) -> dict[str, Any]:
        bond: dict[str, Any] = orjson.loads(self._vault.open(row.bond, row.id, "bond"))
        return bond

    async def _said(self, ticket_ids: Sequence[str]) -> dict[str, list[Mapping[str, Any]]]:
        if not ticket_ids:
            return {}
        said: dict[str, list[Mapping[str, Any]]] = {}
        for row in (await self.connection.execute(DECISIONS, {"ids": list(ticket_ids)})).all():
            one = orjson.loads(self._vault.open(row.sealed, row.ticket_id, "decision"))
            if one["id"] != row.id:
                raise StoreUnavailable(f"ticket {row.ticket_id}: a decision was copied in the database")
            said.setdefault(row.ticket_id, []).append({**one, "at": row.at})
        return said

    async def _whole(self, query: Select[Any], *, earlier: bool = False) -> list[Filed]:
        rows = (await self.connection.execute(query)).all()
        said = await self._said([row.id for row in rows])
        ran: dict[str, list[Mapping[str, Any]]] = {}
        runs = (
            select(uses).where(uses.c.ticket_id.in_([row.id for row in rows])).order_by(uses.c.claimed_at, uses.c.id)
        )
        for run in (await self.connection.execute(runs)).all():
            one = {"use": run.id, "state": run.state, "at": run.at, "resolved": run.resolved_at is not None}
            ran.setdefault(run.ticket_id, []).append(one)
        filed = []
        for row in rows:
            shown = orjson.loads(self._vault.open(row.shown, row.id, "shown"))
            before = await self._earlier(row) if earlier else ()
            filed.append(
                self._filed(
                    row,
                    self._bond(row),
                    None,
                    shown=shown,
                    said=said.get(row.id, ()),
                    ran=ran.get(row.id, ()),
                    earlier=before,
                )
            )
        return filed

    async def _earlier(self, row: Any) -> tuple[Mapping[str, Any], ...]:
        query = select(uses.c.ticket_id, uses.c.state, uses.c.at).join(tickets, tickets.c.id == uses.c.ticket_id)
        query = query.where(
            tickets.c.lookup == row.lookup, tickets.c.id != row.id, uses.c.claimed_at <= row.created_at
        )
        found = (await self.connection.execute(query.order_by(uses.c.at.desc()).limit(MOST_EARLIER))).all()
        return tuple({"ticket": one.ticket_id, "state": one.state, "at": one.at} for one in found)

    def _filed(
        self,
        row: Any,
        bond: Mapping[str, Any],
        asked: Asked | None,
        *,
        shown: Mapping[str, Any] | None = None,
        said: Sequence[Mapping[str, Any]] = (),
        ran: Sequence[Mapping[str, Any]] = (),
        earlier: tuple[Mapping[str, Any], ...] = (),
    ) -> Filed:
        effect = Asked(
            row.issuer, row.subject, row.client, row.server, row.resource, row.environment, row.method, row.name,
            arguments=asked.arguments if asked else shown["arguments"] if shown else {},
            digest=bond["digest"], tool_digest=row.tool_digest,
            shown_meta=asked.shown_meta if asked else shown["meta"] if shown else {},
            tenant=bond.get("tenant", ""),  # none in a ticket of before tickets named it
            tool=asked.tool if asked else shown.get("tool", {}) if shown else {},  # likewise
            vary=bond.get("vary"),
        )  # fmt: skip
        ticket = Ticket(
            id=row.id, state=State(row.state), asked=effect, justification=shown["justification"] if shown else "",
            reasons=tuple(orjson.loads(row.reasons)), approvers=tuple(orjson.loads(row.approvers)),
            min_approvers=row.min_approvers, mask=tuple(orjson.loads(row.mask)),
            decisions=tuple({key: one[key] for key in ("by", "verb", "comment", "at")} for one in said),
            uses=row.uses, uses_left=row.uses_left, runs=tuple(ran), created_at=row.created_at,
            expires_at=row.expires_at, earlier=earlier,
        )  # fmt: skip
        if _stated(ticket) != bond["stated"] or effect_of(effect).hex() != bond["effect"]:
            raise StoreUnavailable(f"ticket {row.id} was changed in the database")
        running = None
        if row.running is not None:
            running = Open(row.running, Run(row.run_state), row.run_lease, row.run_leg, row.run_effect or "")
        return Filed(
            ticket=ticket,
            version=row.version,
            parties=tuple((issuer, subject) for issuer, subject in bond["parties"]),
            running=running,
            approvals=tuple(_person(one["who"]) for one in said if one["verb"] == "approve"),
        )


def _stated(ticket: Ticket) -> list[Any]:
    """What people say yes to beside the effect: sealed as well, because it is kept in clear to be asked for."""
    return [ticket.asked.tool_digest, ticket.uses, ticket.created_at, ticket.expires_at, list(ticket.mask)]


def _texts(texts: Sequence[str]) -> str:
    return orjson.dumps(texts).decode()


def _person(who: Mapping[str, Any]) -> Person:
    scopes, groups = frozenset(who["scopes"]), frozenset(who["groups"])
    claims = {"act": who["act"]}  # all that is looked at again: who acted for them
    return Person(who["issuer"], who["subject"], who["client"], scopes, groups, claims, local=who["local"])
