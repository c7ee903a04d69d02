"""How many tickets wait or may be used, and how many uses nobody knows the end of; over partial indexes."""

from __future__ import annotations

from typing import Final

from sqlalchemy import func, select

from approvals.ledger import Ledger
from approvals.schema import tickets, uses
from approvals.store import Store
from approvals.ticket import Run, State

STATES: Final = (State.PENDING.value, State.APPROVED.value)
UNCLEAR: Final = "unclear"
"""Uses that ended as `unknown` and that no person has resolved."""


async def census(store: Store) -> dict[str, int]:
    """Live tickets by state, and unclear uses; nought where there is none. Raises `StoreUnavailable`."""

    async def work(ledger: Ledger) -> dict[str, int]:
        live = select(tickets.c.state, func.count()).where(tickets.c.state.in_(STATES)).group_by(tickets.c.state)
        unclear = select(func.count()).where(uses.c.state == Run.UNKNOWN.value, uses.c.resolved_at.is_(None))
        found = dict.fromkeys((*STATES, UNCLEAR), 0)
        for state, count in await ledger.connection.execute(live):
            found[state] = count
        found[UNCLEAR] = (await ledger.connection.execute(unclear)).scalar_one()
        return found

    return await store.read(work)
