"""What is over is not kept for ever: settled tickets go, with their decisions and uses, once they are old enough.

Never one that still says something: that is live, whose use is open, waits or is unknown and not looked into, or
whose denial holds. What is settled stays so: it may be found in one transaction and removed in another.
"""

from __future__ import annotations

from sqlalchemy import and_, delete, exists, or_, select

from approvals.ledger import Ledger
from approvals.schema import tickets, uses
from approvals.statements import LIVE
from approvals.store import Store
from approvals.ticket import OPEN_RUNS, Run

BATCH = 500


async def forget(store: Store, keep_s: float) -> int:
    """Remove a batch of tickets that were settled and whose time was over `keep_s` seconds ago -> how many.

    Any worker, at any time. Raises `StoreUnavailable`.
    """
    before = store.now() - keep_s
    still_says = exists().where(
        uses.c.ticket_id == tickets.c.id,
        or_(
            uses.c.state.in_((*OPEN_RUNS, Run.WAITING)),
            and_(uses.c.state == Run.UNKNOWN, uses.c.resolved_at.is_(None)),
            uses.c.at > before,
        ),
    )
    settled = (
        select(tickets.c.id)
        .where(tickets.c.state.not_in(LIVE), tickets.c.running.is_(None), tickets.c.expires_at <= before, ~still_says)
        .order_by(tickets.c.expires_at)
        .limit(BATCH)
    )

    async def look(ledger: Ledger) -> list[str]:
        return list((await ledger.connection.execute(settled)).scalars())

    if not (found := await store.read(look)):  # which is the usual case, and takes the write lock from nobody
        return 0

    async def remove(ledger: Ledger) -> int:
        return (await ledger.connection.execute(delete(tickets).where(tickets.c.id.in_(found)))).rowcount

    return await store.write(remove)
