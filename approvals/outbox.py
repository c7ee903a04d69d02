"""What is still to be told: one row for each ticket, event and webhook, written in the transition's own transaction.

A row that is there is never written again, so nothing is told twice by being asked twice. It is taken by lease (its
next attempt lies ahead, and its number of attempts says whose it is), by whichever worker comes first.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import and_, delete, exists, func, literal, or_, select, update

from approvals.schema import outbox, tickets
from approvals.telling import EVENTS, Hook, Told, message
from approvals.ticket import State, StoreUnavailable, Ticket
from approvals.transaction import Transaction, insert_new
from approvals.vault import Vault

MOST_WAITING = 10_000
"""Messages that wait for one receiver; what comes beyond is dropped, and said to be."""

TOLD_LATE = 0.2
"""The share of a ticket's life that is left when those who decide are told that it is about to expire."""

KEPT_S = 45 * 86_400.0
"""How long a settled row stays, so that nothing is told again: longer than any ticket lives."""

GIVEN_UP_S = 2 * 86_400.0
"""When a message that nobody delivers any more (its webhook was taken out) is given up."""

TIDIED = 500


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was taken for one attempt. `body` is `None` for what can't be sent any more; `why` says why."""

    id: str
    ticket_id: str
    event: str
    hook_id: str
    attempts: int
    created_at: float
    body: bytes | None = field(repr=False)
    why: str = ""


class Outbox:
    """Which webhooks there are; `page_url`: where tickets' pages lie; `conceal` hides
    what looks like a secret in a text, even in one that the policy clears. One per worker, handed to its store."""

    def __init__(
        self, hooks: Sequence[Hook] = (), page_url: str = "", conceal: Callable[[str], str] | None = None
    ) -> None:
        self.hooks: Mapping[str, Hook] = {hook.id: hook for hook in hooks}
        self._told = Told(page_url) if conceal is None else Told(page_url, conceal)
        self.rung = asyncio.Event()

    def wanted(self, event: str) -> list[Hook]:
        """Who is told of this event (none where it is no event)."""
        return [hook for hook in self.hooks.values() if hook.wants(event)] if event in EVENTS else []

    def ring(self) -> None:
        """There is something new to be told: to be called once it is committed."""
        self.rung.set()

    async def put(self, connection: Transaction, vault: Vault, event: str, ticket: Ticket, now: float) -> None:
        """Write down what is to be told of `ticket`, as it stands after the event. Once: a second time is nothing."""
        for hook in self.wanted(event):
            waiting = select(literal(1)).where(outbox.c.hook == hook.id, outbox.c.settled_at.is_(None))
            count = select(func.count()).select_from(waiting.limit(MOST_WAITING).subquery())
            is_full = (await connection.execute(count)).scalar_one() >= MOST_WAITING
            body = b"" if is_full else message(hook.form, event, ticket, self._told, now)
            row = {
                "ticket_id": ticket.id, "event": event, "hook": hook.id, "attempts": 0, "created_at": now,
                "due_at": now, "message": f"msg_{secrets.token_urlsafe(18)}", "outcome": "",
                "sealed": vault.seal(body, ticket.id, f"outbox {event} {hook.id}") if body else b"",
            }  # fmt: skip
            await connection.execute(insert_new(connection, outbox, row))


def expiring(now: float, hook_ids: Iterable[str]) -> Any:
    """Tickets that are pending, in the last part of their life, and of which somebody was not told so yet."""
    missing = [
        ~exists().where(outbox.c.ticket_id == tickets.c.id, outbox.c.event == "expiring", outbox.c.hook == hook_id)
        for hook_id in hook_ids
    ]
    left = tickets.c.expires_at - now
    is_late = left <= TOLD_LATE * (tickets.c.expires_at - tickets.c.created_at)
    return and_(tickets.c.state == State.PENDING, tickets.c.expires_at > now, is_late, or_(*missing))


async def has_due(connection: Transaction, hook_id: str, now: float) -> bool:
    """Whether `due` would find any."""
    query = select(outbox.c.message).where(
        outbox.c.hook == hook_id, outbox.c.settled_at.is_(None), outbox.c.due_at <= now
    )
    return (await connection.execute(query.limit(1))).first() is not None


async def due(connection: Transaction, hook_id: str, now: float, most: int) -> list[Any]:
    """Rows of this webhook whose attempt is due, the oldest first."""
    query = select(outbox).where(outbox.c.hook == hook_id, outbox.c.settled_at.is_(None), outbox.c.due_at <= now)
    return list((await connection.execute(query.order_by(outbox.c.due_at).limit(most))).all())


async def lost(connection: Transaction, hook_ids: Collection[str], now: float) -> list[Any]:
    """Rows that nobody comes to deliver: of webhooks that are not among these."""
    query = select(outbox).where(outbox.c.settled_at.is_(None), outbox.c.created_at <= now - GIVEN_UP_S)
    query = query.where(outbox.c.hook.not_in(list(hook_ids)))
    return list((await connection.execute(query.where(outbox.c.due_at <= now).limit(TIDIED))).all())


async def take(connection: Transaction, vault: Vault, row: Any, now: float, lease_s: float) -> Message | None:
    """This row for one attempt, held for `lease_s`; `None` where another worker was faster."""
    held = update(outbox).where(
        outbox.c.message == row.message,
        outbox.c.attempts == row.attempts,
        outbox.c.settled_at.is_(None),
        outbox.c.due_at <= now,
    )
    taken = await connection.execute(held.values(attempts=outbox.c.attempts + 1, due_at=now + lease_s))
    if taken.rowcount != 1:
        return None
    body, why = None, "queue_full"
    if row.sealed:
        try:
            body, why = vault.open(row.sealed, row.ticket_id, f"outbox {row.event} {row.hook}"), ""
        except StoreUnavailable:
            why = "not_readable"  # sealed by a key that is not there any more, or changed in the database
    return Message(row.message, row.ticket_id, row.event, row.hook, row.attempts + 1, row.created_at, body, why)


async def put_off(connection: Transaction, taken: Message, due_at: float) -> None:
    """The attempt failed; there is another one at `due_at`."""
    await connection.execute(_mine(taken).values(due_at=due_at))


async def settle(connection: Transaction, taken: Message, outcome: str, now: float) -> bool:
    """`delivered` or `dead`: the row stays, without what it said. False where another worker holds it by now."""
    settled = await connection.execute(_mine(taken).values(settled_at=now, outcome=outcome, sealed=b""))
    return settled.rowcount == 1


def _mine(taken: Message) -> Any:
    return update(outbox).where(
        outbox.c.message == taken.id,
        outbox.c.attempts == taken.attempts,
        outbox.c.settled_at.is_(None),
    )


async def waiting(connection: Transaction) -> dict[str, int]:
    """How many messages wait, by webhook."""
    query = select(outbox.c.hook, func.count()).where(outbox.c.settled_at.is_(None)).group_by(outbox.c.hook)
    return {row[0]: row[1] for row in (await connection.execute(query)).all()}


async def forget(connection: Transaction, now: float) -> None:
    """Drop rows that were settled long ago."""
    await connection.execute(delete(outbox).where(outbox.c.settled_at <= now - KEPT_S))
