"""Budgets that all who share the database share: how often a key was taken within its window, in one row a key.

A window begins with the first call that it counts and ends `window_s` later; the next call after that begins another.
Taking is one statement a key, so no two gateways ever read the same count; what is asked for at once is taken whole
or not at all. The time is the database's.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select, text

from approvals.allowance import Allowance, Spent, Taken
from approvals.ledger import Ledger
from approvals.schema import budgets
from approvals.store import Store

SWEPT = 500

# What is refused is counted up to one more than may be, and rolled back: the answer tells when the window ends, and
# no second look is needed. Two who meet at a row wait for each other there, always in the keys' order.
_TAKE = text(
    "INSERT INTO budgets (id, used, ends_at) VALUES (:id, 1, :ends) ON CONFLICT (id) DO UPDATE SET "
    "used = CASE WHEN budgets.ends_at <= :now THEN 1 ELSE budgets.used + 1 END, "
    "ends_at = CASE WHEN budgets.ends_at <= :now THEN :ends ELSE budgets.ends_at END "
    "RETURNING used, ends_at"
)
_GIVE_BACK = text("UPDATE budgets SET used = used - 1 WHERE id = :id AND ends_at = :ends AND used > 0")


class Tally:
    """The counts in the store's database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def take(self, allowances: Sequence[Allowance]) -> tuple[Taken, ...]:
        """One of each, or none of any. Raises `Spent`, and `StoreUnavailable`: then it counts as taken."""
        wanted = sorted(allowances, key=lambda one: one.key)

        async def work(ledger: Ledger) -> tuple[Taken, ...]:
            taken = []
            for one in wanted:
                now = self._store.now()
                given = {"id": one.key, "now": now, "ends": now + one.window_s}
                used, ends_at = (await ledger.connection.execute(_TAKE, given)).one()
                if used > one.count:
                    raise Spent(one.name, max(0.0, ends_at - now))
                taken.append(Taken(one.key, ends_at))
            return tuple(taken)

        return await self._store.write(work)

    async def give_back(self, taken: Sequence[Taken]) -> None:
        """For a call that went no further: as if it had not been counted, if its window has not ended since."""

        async def work(ledger: Ledger) -> None:
            for one in sorted(taken, key=lambda each: each.key):
                await ledger.connection.execute(_GIVE_BACK, {"id": one.key, "ends": one.ends_at})

        await self._store.write(work)


async def sweep(store: Store) -> int:
    """Remove a batch of windows that have ended -> how many. Any worker, at any time. Raises `StoreUnavailable`."""
    ended = budgets.c.ends_at <= store.now()

    async def look(ledger: Ledger) -> list[str]:
        return list((await ledger.connection.execute(select(budgets.c.id).where(ended).limit(SWEPT))).scalars())

    if not (found := await store.read(look)):
        return 0

    async def remove(ledger: Ledger) -> int:
        # Asked again: a window of the same key may have begun meanwhile.
        return (await ledger.connection.execute(delete(budgets).where(budgets.c.id.in_(found), ended))).rowcount

    return await store.write(remove)
