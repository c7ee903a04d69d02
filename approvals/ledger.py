"""The statements of one transaction over tickets, decisions and uses.

Every transition is one compare-and-set statement, and its result decides: a method that moves something returns
whether it did, and the caller believes nothing else. How it looks for rows is finding.py's, how they are opened
opening.py's.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
from sqlalchemy import null, select, update

from approvals.approvers import Approver, Party, Person, filed_entry
from approvals.filed import Filed
from approvals.finding import BATCH, Finding
from approvals.opening import stated
from approvals.schema import decisions, eligible, tickets, uses
from approvals.statements import (
    ABANDON,
    ALONE,
    AWAIT,
    CLAIM,
    CLAIM_FOR_CALL,
    CONTINUE,
    END,
    END_UNKNOWN,
    RUN,
    SEND,
    SUMMARY,
    WAIT_AGAIN,
    is_overdue,
)
from approvals.ticket import OPEN_RUNS, Asked, Claimed, Run, State, Ticket, Unreadable, sources
from approvals.transaction import insert_new
from approvals.vault import effect_of, join, kin_of


def new_id() -> str:
    """144 random bits, URL-safe, in exactly one spelling; never looks like an option of a command."""
    while (name := secrets.token_urlsafe(18)).startswith("-"):
        pass
    return name


class Ledger(Finding):
    """One transaction's view. Made by `Store.read` and `Store.write`; not to be kept beyond them."""

    # Being alone

    async def alone(self, asked: Asked) -> None:
        """From here to the end of the transaction nobody else opens a ticket for this requester.

        What is read after it stays true, and a count of what was opened is exact. In SQLite whoever writes is alone.
        """
        if self._is_postgresql:
            key = hashlib.sha256(join("ostiary requester", asked.issuer, asked.subject)).digest()[:8]
            await self.connection.rows(ALONE, {"requester": int.from_bytes(key, "big", signed=True)})

    async def hold(self, ticket_id: str) -> None:
        """From here to the end of the transaction nobody else moves this ticket: two who decide it at once do so one
        after the other. In SQLite whoever writes is alone.
        """
        await self.connection.execute(select(tickets.c.id).where(tickets.c.id == ticket_id).with_for_update())

    async def overdue(self, now: float, unreadable: set[str]) -> list[Filed]:
        """A batch of live tickets whose time is over, held as by `hold`; without those that somebody else holds.

        One that can't be read is none of them and is put into `unreadable`, whose tickets are not looked at again.
        """
        due = select(tickets.c.id).where(is_overdue(now), tickets.c.id.not_in(list(unreadable)))
        query = due.order_by(tickets.c.expires_at, tickets.c.id).limit(BATCH)
        held = (await self.connection.execute(query.with_for_update(skip_locked=True))).scalars().all()
        rows = (await self.connection.execute(SUMMARY.where(tickets.c.id.in_(held)))).all() if held else []
        found = []
        for row in rows:
            try:
                found.append(self._filed(row, self._bond(row), None))
            except Unreadable:
                unreadable.add(row.id)
        return found

    # Moving

    async def is_there(self, ticket_id: str) -> bool:
        """Whether there is such a ticket, whoever asks."""
        query = select(tickets.c.id).where(tickets.c.id == ticket_id)
        return (await self.connection.execute(query)).one_or_none() is not None

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
                "stated": stated(ticket), **grant,
            }
        )  # fmt: skip
        sealed = self._vault.seal(shown, ticket.id, "shown")
        values = {
            "id": ticket.id, "version": 1, "lookup": self._vault.lookups(asked)[0], "key_id": self._vault.key_id,
            "state": ticket.state, "issuer": asked.issuer, "subject": asked.subject, "tenant": asked.tenant,
            "client": asked.client,
            "server": asked.server, "resource": asked.resource, "environment": asked.environment,
            "method": asked.method, "name": asked.name, "tool_digest": asked.tool_digest,
            "reasons": _texts(ticket.reasons), "approvers": _texts(ticket.approvers), "mask": _texts(ticket.mask),
            "min_approvers": ticket.min_approvers, "uses": ticket.uses, "uses_left": ticket.uses_left,
            "created_at": ticket.created_at, "expires_at": ticket.expires_at,
            "bond": self._vault.seal(bond, ticket.id, "bond"), "shown": sealed, "weight": len(sealed) + len(bond),
            "kin": self._vault.kin(asked)[0] if asked.is_grant else None,
        }  # fmt: skip
        filed = await self.connection.execute(insert_new(self.connection, tickets, values))
        if filed.rowcount != 1:
            return False
        entries = {filed_entry(approver, asked.issuer, asked.tenant) for approver in approvers}
        await self.connection.execute(eligible.insert(), [{"ticket_id": ticket.id, "entry": one} for one in entries])
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
        told = 0
        for row in found:
            with contextlib.suppress(Unreadable):  # one that was changed in the database; whoever looks is told so
                await self.tell("expiring", self._filed(row, self._bond(row), None).ticket, now)
                told += 1
        return told

    async def decide(
        self, filed: Filed, verb: str, person: Person, *, comment: str, seen: str, target: State, now: float
    ) -> bool:
        """Write a decision down and move the ticket by it (`target` may be the state it is in: a quorum grows)."""
        if not await self.move(filed, target, now):
            return False
        decision_id = new_id()
        who = {
            "issuer": person.issuer, "subject": person.subject, "client": person.client, "local": person.local,
            "tenant": person.tenant,
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

        `call`: what a grant's use is for; none where a person took back an approval of exactly that.
        """
        given: dict[str, Any] = {"ticket": filed.ticket.id, "read": filed.version, "use": use_id, "holder": owner}
        given |= {"now": now, "until": lease_until, "call": None}
        if call is None:
            return await self.connection.moved(CLAIM, given)
        lookups = self._vault.lookups(call)
        return await self.connection.moved(CLAIM_FOR_CALL, {**given, "lookups": lookups, "call": lookups[0]})

    async def go_on(self, filed: Filed, use: Claimed, owner: str, *, now: float, lease_until: float) -> bool:
        """Take a use that waits at this leg, if its ticket is still what was read, approved and in time."""
        given: dict[str, Any] = {"use": use.use_id, "at_leg": use.leg, "read": filed.version}
        given |= {"holder": owner, "until": lease_until, "now": now}
        return await self.connection.touched(CONTINUE, given) == 1

    async def run(self, use_id: str, target: Run, now: float, *, owner: str | None = None, leg: int = 0) -> bool:
        """Move a use, held by `owner` at `leg` where given; False if its state does not admit it or a person resolved
        it. It is `sent` only while its ticket still is approved and in time, `abandoned` only when it no longer is.

        A known end frees the ticket, an unknown one keeps it busy, and so does a use that waits (from then on at its
        next leg); the end of the last use makes it `used`.
        """
        given: dict[str, Any] = {"use": use_id, "target": target, "now": now}
        if target is Run.ABANDONED:
            moved = (await self.connection.execute(ABANDON, given)).rowcount == 1
        elif owner is None:
            moved = (await self.connection.execute(RUN, given | {"sources": sources(target)})).rowcount == 1
        else:
            given |= {"sources": sources(target), "holder": owner, "at_leg": leg}
            if target in (Run.SENT, Run.WAITING):
                return await self.connection.touched(SEND if target is Run.SENT else AWAIT, given) == 1
            return await self.connection.moved(END_UNKNOWN if target is Run.UNKNOWN else END, given)
        if moved:
            ended = END_UNKNOWN if target is Run.UNKNOWN else END
            await self.connection.touched(ended.then, {"use": use_id})
        return moved

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


def _texts(texts: Sequence[str]) -> str:
    return orjson.dumps(texts).decode()
