"""The shelf: errands at rest, each move one compare-and-set, everything of a caller's sealed and bound to its row.

A worker that runs one holds its lease; at most one open errand per ticket is the database's own rule. What a row
says is believed only while its seals open (docs/tasks.md, "A held call as a task").
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import orjson
from sqlalchemy import Select, case, delete, func, null, select, tuple_, update

from approvals.errand import Errand, Questions, Recipe, Stage
from approvals.filed import Filed
from approvals.ledger import Ledger
from approvals.schema import errands
from approvals.store import Store
from approvals.ticket import Ticket
from approvals.transaction import insert_new

MOST_AT_ONCE = 100
LEASE_S = 60.0
_light = [column for column in errands.c if column.name != "call"]


class Shelf:
    """One worker's way to the errands; several share a store. `owner` names the worker in its leases.

    `per_subject`: how many errands one requester may have, ended ones included. `keep_s`: how long one outlives its
    ticket's time, and so how long a result is kept. `clock`: for tests; else the store's.
    """

    def __init__(
        self,
        store: Store,
        *,
        owner: str,
        clock: Callable[[], float] | None = None,
        lease_s: float = LEASE_S,
        keep_s: float = 3600.0,
        per_subject: int = 100,
    ) -> None:
        self._store = store
        self._owner = owner
        self.clock = clock or store.now
        self.lease_s = lease_s
        self._keep_s = keep_s
        self._per_subject = per_subject

    async def put(self, ticket: Ticket, errand_id: str, recipe: Recipe) -> tuple[Errand, str] | None:
        """The open errand of this ticket, or a new one by this id; with the id that its owner holds. None: no room.

        Raises `StoreUnavailable`; a row may then be there that nobody knows of, and the next who asks gets it.
        """
        asked, now = ticket.asked, self.clock()

        async def work(ledger: Ledger) -> tuple[Errand, str] | None:
            await ledger.connection.execute(delete(errands).where(errands.c.expires_at <= now, _is(asked)))
            if (found := await self._open_one(ledger, ticket.id)) is not None:
                return found
            held = select(func.count()).select_from(errands).where(_is(asked))
            if (await ledger.connection.execute(held)).scalar_one() >= self._per_subject:
                return None
            errand = Errand(
                errand_id, ticket.id, 1, Stage.HELD, asked.issuer, asked.subject, "", 0.0, now, now,
                ticket.expires_at + self._keep_s,
            )  # fmt: skip
            values = {
                "id": errand_id, "ticket_id": ticket.id, "version": 1, "state": Stage.HELD, "issuer": asked.issuer,
                "subject": asked.subject, "owner": "", "lease_until": 0.0, "created_at": now, "updated_at": now,
                "expires_at": errand.expires_at, "call": self._seal(errand_id, "call", _written(recipe)),
            }  # fmt: skip
            put = await ledger.connection.execute(insert_new(ledger.connection, errands, values))
            return (errand, recipe.handle) if put.rowcount == 1 else await self._open_one(ledger, ticket.id)

        return await self._store.write(work)

    async def open_of(self, ticket_id: str) -> tuple[Errand, str] | None:
        """The errand that is open for this ticket, and the id that its owner holds. Raises `StoreUnavailable`."""
        return await self._store.read(lambda ledger: self._open_one(ledger, ticket_id))

    async def stages(self, errand_ids: Collection[str]) -> dict[str, tuple[Stage, str]]:
        """Those of these errands whose time is not over: their stage, and the server's own task where it made one.

        Raises `StoreUnavailable`.
        """
        told = case((errands.c.state == Stage.RELAYED, errands.c.told), else_=null()).label("told")
        query = select(errands.c.id, errands.c.state, told)
        query = query.where(errands.c.id.in_(list(errand_ids)), errands.c.expires_at > self.clock())

        async def work(ledger: Ledger) -> dict[str, tuple[Stage, str]]:
            found = {}
            for row in (await ledger.connection.execute(query)).all():
                made = b"{}" if row.told is None else self._unseal(row.id, f"told {row.state}", row.told)
                found[row.id] = Stage(row.state), orjson.loads(made).get("task", "")
            return found

        return await self._store.read(work)

    async def find(self, errand_id: str) -> Errand | None:
        """The errand, unless its time is over. Raises `StoreUnavailable`."""
        return await self._store.read(lambda ledger: self._find(ledger, errand_id))

    async def look(self, errand_id: str) -> tuple[Errand, Filed | None] | None:
        """The errand and the ticket that it waits for, in one look. Raises `StoreUnavailable`."""

        async def work(ledger: Ledger) -> tuple[Errand, Filed | None] | None:
            errand = await self._find(ledger, errand_id)
            return None if errand is None else (errand, await ledger.bookkeeping(errand.waits_for))

        return await self._store.read(work)

    async def recipe(self, errand: Errand) -> Recipe | None:
        """What is needed to run it; None once it has ended. Raises `StoreUnavailable`."""

        async def work(ledger: Ledger) -> Recipe | None:
            query = select(errands.c.call).where(errands.c.id == errand.id)
            sealed = (await ledger.connection.execute(query)).scalar_one_or_none()
            return None if sealed is None else _read(self._unseal(errand.id, "call", sealed))

        return await self._store.read(work)

    async def take(self, errand: Errand) -> Errand | None:
        """Take the lease of one that is still what was read: it runs here, and nowhere else. None: it moved on."""
        until = self.clock() + self.lease_s
        return await self._move(replace(errand, stage=Stage.RUNNING, owner=self._owner, lease_until=until), errand)

    async def tell(
        self, errand: Errand, stage: Stage, told: Mapping[str, Any], *, expires_at: float = 0.0
    ) -> Errand | None:
        """Move one that is still what was read, and let the lease go. None: it moved on."""
        until = max(errand.expires_at, expires_at)
        after = replace(errand, stage=stage, told=told, owner="", lease_until=0.0, expires_at=until)
        return await self._move(after, errand)

    async def ask(self, errand: Errand, questions: Questions) -> Errand | None:
        """Move one to what its server asks for. None: it moved on."""
        return await self.tell(errand, Stage.ASKED, asdict(questions))

    async def held(self, taken: Sequence[Errand]) -> set[str]:
        """Those of these leases that are still what was taken: their errands' ids. Raises `StoreUnavailable`."""
        query = select(errands.c.id).where(_as_read(taken))

        async def work(ledger: Ledger) -> set[str]:
            return set((await ledger.connection.execute(query)).scalars())

        return await self._store.read(work)

    async def renew(self, taken: Sequence[Errand]) -> float:
        """Hold these leases longer, but for those that are lost -> until when. Raises `StoreUnavailable`."""
        until = self.clock() + self.lease_s
        query = update(errands).where(_as_read(taken)).values(lease_until=until)

        async def work(ledger: Ledger) -> None:
            await ledger.connection.execute(query)

        await self._store.write(work)
        return until

    async def reconcile(self, owner: str) -> None:
        """At the start of worker `owner`, or after its death: nobody runs what it ran."""
        query = update(errands).where(errands.c.owner == owner, errands.c.state == Stage.RUNNING)

        async def work(ledger: Ledger) -> None:
            await ledger.connection.execute(query.values(lease_until=0.0))

        await self._store.write(work)

    async def sweep(self) -> int:
        """Take away what has outlived its time -> how many."""
        due = select(errands.c.id).where(errands.c.expires_at <= self.clock()).limit(MOST_AT_ONCE)

        async def work(ledger: Ledger) -> int:
            ids = list((await ledger.connection.execute(due)).scalars())
            if ids:
                await ledger.connection.execute(delete(errands).where(errands.c.id.in_(ids)))
            return len(ids)

        gone = 0
        while more := await self._store.write(work):
            gone += more
        return gone

    async def _move(self, after: Errand, before: Errand) -> Errand | None:
        after = replace(after, version=before.version + 1, updated_at=self.clock())
        values: dict[str, Any] = {
            "version": after.version, "state": after.stage, "owner": after.owner, "lease_until": after.lease_until,
            "updated_at": after.updated_at, "expires_at": after.expires_at,
            "told": self._seal(after.id, f"told {after.stage}", orjson.dumps(after.told)) if after.told else None,
        }  # fmt: skip
        if after.stage in (Stage.ENDED, Stage.RELAYED):
            values["call"] = None
        query = update(errands).where(
            errands.c.id == before.id, errands.c.version == before.version, errands.c.state != Stage.ENDED
        )

        async def work(ledger: Ledger) -> bool:
            return (await ledger.connection.execute(query.values(values))).rowcount == 1

        return after if await self._store.write(work) else None

    async def _find(self, ledger: Ledger, errand_id: str) -> Errand | None:
        return await self._one(ledger, select(*_light).where(errands.c.id == errand_id))

    async def _one(self, ledger: Ledger, query: Select[Any]) -> Errand | None:
        row = (await ledger.connection.execute(query.where(errands.c.expires_at > self.clock()))).one_or_none()
        if row is None:
            return None
        told = {} if row.told is None else orjson.loads(self._unseal(row.id, f"told {row.state}", row.told))
        return Errand(
            row.id, row.ticket_id, row.version, Stage(row.state), row.issuer, row.subject, row.owner,
            row.lease_until, row.created_at, row.updated_at, row.expires_at, told,
        )  # fmt: skip

    async def _open_one(self, ledger: Ledger, ticket_id: str) -> tuple[Errand, str] | None:
        query = select(*_light).where(errands.c.ticket_id == ticket_id)
        query = query.where(errands.c.state.in_((Stage.HELD, Stage.RUNNING, Stage.ASKED)))
        errand = await self._one(ledger, query)
        if errand is None:
            return None
        call = (await ledger.connection.execute(select(errands.c.call).where(errands.c.id == errand.id))).scalar_one()
        return errand, _read(self._unseal(errand.id, "call", call)).handle

    def _seal(self, errand_id: str, column: str, plain: bytes) -> bytes:
        return self._store.vault.seal(plain, errand_id, f"errand {column}")

    def _unseal(self, errand_id: str, column: str, sealed: bytes) -> bytes:
        return self._store.vault.open(sealed, errand_id, f"errand {column}")


def _as_read(read: Sequence[Errand]) -> Any:
    return tuple_(errands.c.id, errands.c.version).in_([(errand.id, errand.version) for errand in read])


def _is(asked: Any) -> Any:
    return (errands.c.issuer == asked.issuer) & (errands.c.subject == asked.subject)


def _written(recipe: Recipe) -> bytes:
    lines = [[name.decode("ascii"), base64.b64encode(value).decode()] for name, value in recipe.headers]
    body = recipe.body.decode()  # strict JSON, and so UTF-8
    return orjson.dumps([recipe.handle, recipe.tool, recipe.client, body, lines])


def _read(plain: bytes) -> Recipe:
    handle, tool, client, body, lines = orjson.loads(plain)
    headers = tuple((name.encode(), base64.b64decode(value)) for name, value in lines)
    return Recipe(handle, tool, client, body.encode(), headers)
