"""Calls under idempotency keys at rest: a key is taken before anything is sent, by one gateway of all that share.

A row is found by a keyed digest of whose key it is; what was asked and what came of it are sealed and bound to their
row and stage, by keys of this purpose alone. Whoever holds a lease and is lost leaves `unknown`, which nobody runs
again (docs/idempotency.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from sqlalchemy import BigInteger, and_, delete, func, insert, literal, not_, select, update

from approvals.keyed_call import Found, Outcome, Stage, Taken, TooManyKeys, Wanted, goes_on
from approvals.ledger import Ledger
from approvals.schema import keyed_calls
from approvals.store import Store
from approvals.ticket import StoreUnavailable
from approvals.vault import Vault, join

LEASE_S = 120.0
SWEPT = 500
SHARES = 10
"""No subject may have more of all bytes than this part."""

_HELD = (Stage.RUNNING, Stage.UNKNOWN)
"""What whoever runs a call may end: a lease that lapsed meanwhile takes nothing from the truth."""

_columns = keyed_calls.c
_no_text = [column for column in _columns if column.name != "told"]


class KeyedCalls:
    """One worker's way to them; several share a store. `keys`: 32 bytes each, of this purpose, the current one first.

    `keep_s`: how long a key is remembered after its call's end. `per_subject` and `most`: how many keys of one
    subject and of all are remembered; `bytes_in_all`: how much of outcomes, a tenth of which one subject may have.
    What all have is looked at by `measure`, and what this worker adds in between is counted along. `clock`: for
    tests; else the store's.
    """

    def __init__(
        self,
        store: Store,
        keys: Sequence[bytes],
        *,
        owner: str,
        keep_s: float = 86_400.0,
        per_subject: int = 10_000,
        most: int = 100_000,
        bytes_in_all: int = 1 << 30,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._store = store
        self._vault = Vault(keys)
        self._owner = owner
        self._keep_s = keep_s
        self._per_subject = per_subject
        self._most = most
        self._bytes_in_all = bytes_in_all
        self._lease_s = lease_s
        self._clock = clock or store.now
        self._held: set[str] = set()
        self.count = 0
        self.bytes = 0

    @property
    def held(self) -> int:
        """How many leases this worker holds."""
        return len(self._held)

    async def look(self, wanted: Wanted) -> Found | None:
        """What stands under the key; None where this call may take it. Raises `StoreUnavailable`, `Unreadable`."""
        return await self._store.read(lambda ledger: self._find(ledger, wanted))

    async def take(self, wanted: Wanted, decision: str) -> Taken | Found:
        """Take the key for this call, which then runs here and nowhere else, or find out why not.

        Raises `TooManyKeys`, `StoreUnavailable` (it may be taken all the same: it then lapses into `unknown`),
        `Unreadable`.
        """

        async def work(ledger: Ledger) -> Taken | Found:
            await self._alone(ledger, wanted)
            now = self._clock()
            await ledger.connection.execute(
                delete(keyed_calls).where(_columns.lookup.in_(self._lookups(wanted)), _is_over(now))
            )
            if (found := await self._find(ledger, wanted)) is not None:
                return found
            until = now + self._lease_s
            running = {
                "state": Stage.RUNNING, "claim": decision, "leg": wanted.leg, "owner": self._owner,
                "lease_until": until, "expires_at": until + self._keep_s,
            }  # fmt: skip
            if (row := await self._row(ledger, wanted, _no_text)) is not None:
                values = {**running, "bond": self._bond(row.lookup, wanted)}
                query = update(keyed_calls).where(_columns.lookup == row.lookup)
                await ledger.connection.execute(query.values(values))
                return Taken(row.lookup, decision, (row.claim, row.leg, row.bond))
            await self._make_room(ledger, wanted, now)
            lookup = self._lookups(wanted)[0]
            values = {
                **running, "lookup": lookup, "key_id": self._vault.key_id, "holder": self._holders(wanted)[0],
                "created_at": now, "size": 0, "bond": self._bond(lookup, wanted),
            }  # fmt: skip
            await ledger.connection.execute(insert(keyed_calls).values(values))
            return Taken(lookup, decision)

        taken = await self._store.write(work)
        if isinstance(taken, Taken):
            self._held.add(taken.lookup)
            self.count += taken.before is None
        return taken

    async def end(self, taken: Taken, stage: Stage, outcome: Outcome) -> bool:
        """The call has come to this end -> whether its row was still there. Raises `StoreUnavailable`."""
        told = self._written(taken.lookup, stage, outcome)
        values = {
            "state": stage, "told": told, "size": len(told), "owner": "", "lease_until": 0.0,
            "expires_at": self._clock() + self._keep_s,
        }  # fmt: skip
        query = update(keyed_calls).where(self._is_still(taken)).values(values)

        async def work(ledger: Ledger) -> bool:
            return (await ledger.connection.execute(query)).rowcount == 1

        ended = await self._store.write(work)
        self._held.discard(taken.lookup)
        self.bytes += len(told) if ended else 0
        return ended

    async def free(self, taken: Taken) -> None:
        """Not one byte of it was sent: as if it had not been asked for. Raises `StoreUnavailable`."""
        if taken.before is None:
            await self._change(delete(keyed_calls).where(self._is_still(taken)))
        else:
            claim, leg, bond = taken.before
            values = {
                "state": Stage.ASKED, "claim": claim, "leg": leg, "bond": bond, "owner": "", "lease_until": 0.0,
                "expires_at": self._clock() + self._keep_s,
            }  # fmt: skip
            await self._change(update(keyed_calls).where(self._is_still(taken)).values(values))
        self.let_go(taken)
        self.count -= taken.before is None

    async def undo(self, wanted: Wanted, decision: str) -> None:
        """Taking the key failed, and may have been carried out all the same: nothing was sent, so it is free again.

        A further leg's row stays as it may be: what went before is in it. Raises `StoreUnavailable`.
        """
        mine = and_(_columns.lookup.in_(self._lookups(wanted)), _columns.claim == decision, _columns.told.is_(None))
        await self._change(delete(keyed_calls).where(mine))

    def let_go(self, taken: Taken) -> None:
        """Hold its lease no longer: it lapses into `unknown`."""
        self._held.discard(taken.lookup)

    async def renew(self) -> None:
        """Hold all leases of this worker longer, but for those that lapsed: what was told to be unknown stays so
        until its end is known. To be called several times per `lease_s`.
        """
        if not (held := list(self._held)):
            return
        mine = and_(_columns.lookup.in_(held), _columns.owner == self._owner, _columns.state == Stage.RUNNING)

        async def work(ledger: Ledger) -> None:
            now = self._clock()  # a lease may have lapsed while this waited for its turn
            until = now + self._lease_s
            query = update(keyed_calls).where(mine, _columns.lease_until > now)
            await ledger.connection.execute(query.values(lease_until=until, expires_at=until + self._keep_s))

        await self._store.write(work)

    async def reconcile(self, owner: str) -> None:
        """At the start of worker `owner`, or after its death: nobody knows what came of what it ran."""
        query = update(keyed_calls).where(_columns.owner == owner, _columns.state == Stage.RUNNING)
        await self._change(query.values(state=Stage.UNKNOWN, owner="", lease_until=0.0))

    async def sweep(self) -> int:
        """Leases that lapsed become `unknown`; a batch of what has outlived its time goes -> how many of both."""
        now = self._clock()
        lapsed = and_(_columns.state == Stage.RUNNING, _columns.lease_until <= now)

        async def look(ledger: Ledger) -> list[str]:
            queries = [select(_columns.lookup).where(these).limit(SWEPT) for these in (_is_over(now), lapsed)]
            return [one for query in queries for one in (await ledger.connection.execute(query)).scalars()]

        if not (found := await self._store.read(look)):
            return 0
        mine = _columns.lookup.in_(found)
        ended = update(keyed_calls).where(mine, lapsed, not_(_is_over(now)))
        moved = await self._change(ended.values(state=Stage.UNKNOWN, owner="", lease_until=0.0))
        return moved + await self._change(delete(keyed_calls).where(mine, _is_over(now)))

    async def measure(self) -> None:
        """How many keys are remembered, and how many bytes of outcomes, by all who share the store."""
        query = select(func.count(), func.coalesce(func.sum(_columns.size), 0)).select_from(keyed_calls)

        async def work(ledger: Ledger) -> tuple[int, int]:
            count, size = (await ledger.connection.execute(query)).one()
            return int(count), int(size)

        self.count, self.bytes = await self._store.read(work)

    async def check_keys(self) -> None:
        """Raises `StoreUnavailable` where a key is remembered that none of ours would find: it could run again."""
        query = select(_columns.key_id).distinct().where(_columns.expires_at > self._clock())

        async def work(ledger: Ledger) -> set[str]:
            return set((await ledger.connection.execute(query)).scalars())

        if strange := (await self._store.read(work)) - set(self._vault.key_ids):
            raise StoreUnavailable(
                f"idempotency keys that still count are filed by keys that are not configured: {sorted(strange)}"
            )

    async def _alone(self, ledger: Ledger, wanted: Wanted) -> None:
        """From here to the end of the transaction nobody else takes a key of this subject.

        In SQLite whoever writes is alone. The row's own digest would not do: a gateway with its keys in another order
        files under another one.
        """
        if ledger.connection.dialect.name == "postgresql":
            key = hashlib.sha256(join("ostiary keyed call", *wanted.party)).digest()[:8]
            lock = func.pg_advisory_xact_lock(literal(int.from_bytes(key, "big", signed=True), BigInteger))
            await ledger.connection.execute(select(lock))

    async def _make_room(self, ledger: Ledger, wanted: Wanted, now: float) -> None:
        if self.count >= self._most or self.bytes >= self._bytes_in_all:
            raise TooManyKeys(f"{self.count} keys, {self.bytes} bytes of outcomes", all_full=True)
        theirs = _columns.holder.in_(self._holders(wanted)), _columns.expires_at > now
        query = select(func.count(), func.coalesce(func.sum(_columns.size), 0)).where(*theirs)
        count, size = (await ledger.connection.execute(query)).one()
        if count >= self._per_subject or size >= self._bytes_in_all / SHARES:
            raise TooManyKeys(f"{count} keys, {size} bytes of outcomes of one subject", all_full=False)

    async def _row(self, ledger: Ledger, wanted: Wanted, columns: Sequence[Any]) -> Any:
        query = select(*columns).where(_columns.lookup.in_(self._lookups(wanted)), not_(_is_over(self._clock())))
        return (await ledger.connection.execute(query.limit(1))).one_or_none()

    async def _find(self, ledger: Ledger, wanted: Wanted) -> Found | None:
        row = await self._row(ledger, wanted, list(_columns))
        if row is None:
            return None
        base, whole = orjson.loads(self._vault.open(row.bond, row.lookup, "keyed call bond"))
        stage = Stage(row.state)
        if stage is Stage.RUNNING and row.lease_until <= self._clock():
            stage = Stage.UNKNOWN
        if goes_on(stage, base == wanted.base, row.leg, wanted):
            return None
        is_open = stage not in {Stage.KEPT, Stage.ENDED}
        same = base == wanted.base and (whole == wanted.whole or (is_open and wanted.leg < row.leg))
        if is_open or not same:
            return Found(stage, same, row.claim)
        return Found(stage, same, row.claim, self._read(row.lookup, stage, row.told))

    def _is_still(self, taken: Taken) -> Any:
        """The row as this call took it, whatever became of its lease, while it is remembered at all."""
        mine = and_(_columns.lookup == taken.lookup, _columns.claim == taken.decision)
        return and_(mine, _columns.state.in_(_HELD), not_(_is_over(self._clock())))

    async def _change(self, query: Any) -> int:
        async def work(ledger: Ledger) -> int:
            return int((await ledger.connection.execute(query)).rowcount)

        return await self._store.write(work)

    def _lookups(self, wanted: Wanted) -> list[str]:
        return self._vault.marks(join("key", *wanted.party, *wanted.scope, wanted.key))

    def _holders(self, wanted: Wanted) -> list[str]:
        return self._vault.marks(join("holder", *wanted.party))

    def _bond(self, lookup: str, wanted: Wanted) -> bytes:
        return self._vault.seal(orjson.dumps([wanted.base, wanted.whole]), lookup, "keyed call bond")

    def _written(self, lookup: str, stage: Stage, outcome: Outcome) -> bytes:
        head = [outcome.word, outcome.decision, outcome.status, outcome.code, outcome.digest, outcome.why]
        return self._vault.seal(orjson.dumps(head) + b"\n" + outcome.text, lookup, f"keyed call {stage}")

    def _read(self, lookup: str, stage: Stage, told: bytes) -> Outcome:
        head, _, text = self._vault.open(told, lookup, f"keyed call {stage}").partition(b"\n")
        word, decision, status, code, digest, why = orjson.loads(head)
        return Outcome(word, decision, status, code, digest, text, why)


def _is_over(now: float) -> Any:
    """Rows whose time is over; of one that runs only once its lease is."""
    return and_(_columns.expires_at <= now, not_(and_(_columns.state == Stage.RUNNING, _columns.lease_until > now)))
