"""Sessions of people at the pages, in the approvals' database: any replica serves, and any of them can end, a visit.

A row is found by the SHA-256 of the browser's secret, so that the table opens nothing; what it keeps besides is
sealed by whoever signs people in, and means nothing here. Times: seconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, select, update

from approvals.ledger import Ledger
from approvals.schema import visits
from approvals.store import Store

MOST_OF_ONE = 10
"""Sessions that one person may have; the newest stay."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One session. `version` counts what was sealed anew; until `lease_until` one replica is about to do so."""

    id: str
    issuer: str
    subject: str
    created_at: float
    seen_at: float
    ends_at: float
    sealed: str
    version: int = 0
    lease_until: float = 0.0


class Visits:
    """The table. Every method raises `StoreUnavailable` where the store does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, entry: Entry, instead_of: str | None, now: float) -> None:
        """A new session, `instead_of` the browser's earlier one. Ended ones go, and a person's oldest beyond the
        most."""

        async def work(ledger: Ledger) -> None:
            await ledger.connection.execute(delete(visits).where(visits.c.ends_at <= now))
            if instead_of is not None:
                await ledger.connection.execute(delete(visits).where(visits.c.id == instead_of))
            mine = (visits.c.issuer == entry.issuer, visits.c.subject == entry.subject)
            newest = select(visits.c.id).where(*mine).order_by(visits.c.created_at.desc()).offset(MOST_OF_ONE - 1)
            oldest = (await ledger.connection.execute(newest.limit(100))).scalars().all()
            await ledger.connection.execute(delete(visits).where(visits.c.id.in_(oldest)))
            await ledger.connection.execute(visits.insert().values(**{name: getattr(entry, name) for name in _NAMES}))

        await self._store.write(work)

    async def find(self, visit_id: str) -> Entry | None:
        """The session, ended or not."""

        async def work(ledger: Ledger) -> Entry | None:
            row = (await ledger.connection.execute(select(visits).where(visits.c.id == visit_id))).one_or_none()
            return None if row is None else Entry(**row._mapping)

        return await self._store.read(work)

    async def touch(self, visit_id: str, now: float) -> None:
        """Somebody was here."""

        async def work(ledger: Ledger) -> None:
            await ledger.connection.execute(update(visits).where(visits.c.id == visit_id).values(seen_at=now))

        await self._store.write(work)

    async def lease(self, entry: Entry, now: float, until: float) -> bool:
        """Whether the caller alone may renew what is sealed, as it was read, until then."""

        async def work(ledger: Ledger) -> bool:
            free = (visits.c.id == entry.id, visits.c.version == entry.version, visits.c.lease_until <= now)
            taken = await ledger.connection.execute(update(visits).where(*free).values(lease_until=until))
            return taken.rowcount == 1

        return await self._store.write(work)

    async def renew(self, entry: Entry, sealed: str) -> bool:
        """Keep what was sealed anew, if the session is still there as it was read."""

        async def work(ledger: Ledger) -> bool:
            same = (visits.c.id == entry.id, visits.c.version == entry.version)
            changes = {"sealed": sealed, "version": entry.version + 1, "lease_until": 0.0}
            return (await ledger.connection.execute(update(visits).where(*same).values(**changes))).rowcount == 1

        return await self._store.write(work)

    async def release(self, entry: Entry) -> None:
        """Nothing was sealed anew; somebody else may try."""

        async def work(ledger: Ledger) -> None:
            same = (visits.c.id == entry.id, visits.c.version == entry.version)
            await ledger.connection.execute(update(visits).where(*same).values(lease_until=0.0))

        await self._store.write(work)

    async def remove(self, visit_id: str) -> bool:
        """End a session -> whether it was there."""

        async def work(ledger: Ledger) -> bool:
            return (await ledger.connection.execute(delete(visits).where(visits.c.id == visit_id))).rowcount == 1

        return await self._store.write(work)

    async def remove_all(self, issuer: str, subject: str) -> int:
        """End every session of a person -> how many there were."""

        async def work(ledger: Ledger) -> int:
            mine = (visits.c.issuer == issuer, visits.c.subject == subject)
            return (await ledger.connection.execute(delete(visits).where(*mine))).rowcount

        return await self._store.write(work)


_NAMES = tuple(Entry.__dataclass_fields__)
