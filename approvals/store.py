"""The store: transactions over one shared database, bounded in time, each with a known result or none.

A transaction runs to its end in a task of its own: a caller that is cancelled or out of time leaves none half done.
`StoreUnavailable` means that nothing may run: what may have been consumed counts as consumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import select

from approvals.database import open_database
from approvals.ledger import Ledger
from approvals.outbox import Outbox
from approvals.revisions import bring_up, look, must_be_migrated
from approvals.schema import tickets
from approvals.sharing import Common, Share, Sharing
from approvals.statements import LIVE
from approvals.ticket import State, StoreUnavailable
from approvals.transaction import Transaction
from approvals.vault import Vault

T = TypeVar("T")
Work = Callable[[Ledger], Awaitable[T]]

__all__ = ["Store", "StoreUnavailable"]

LIMIT_S = 2.0
ATTEMPTS = 3


class Store:
    """Tickets in a database: `url` is `sqlite:///FILE` or `postgresql://…`.

    `keys`: 32 bytes each, the first seals, all open.
    `migrate`: whether `start` brings the database to the newest revision, or refuses one that is not there yet.
    `clock`: for tests; else the database's own.
    """

    def __init__(
        self,
        url: str,
        keys: Sequence[bytes],
        *,
        limit_s: float = LIMIT_S,
        migrate: bool = True,
        clock: Callable[[], float] | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self.vault = Vault(keys)
        self._outbox = outbox
        self._database = open_database(url, limit_s)
        self._limit_s = limit_s
        self._migrate = migrate
        self._clock = clock
        self._writers = asyncio.Semaphore(self._database.writers)
        self._readers = asyncio.Semaphore(self._database.readers)
        self._looking = Sharing(partial(self._serve, write=False), self._readers)
        self._moving = Sharing(partial(self._serve, write=True), self._writers)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        # By `write`: what can be read hides no write that fails. Before the first write nothing speaks against any.
        self._well = {False: False, True: True}

    def now(self) -> float:
        """Seconds since the epoch, by the clock that all who share the database go by."""
        return self._database.now() if self._clock is None else self._clock()

    @property
    def healthy(self) -> bool:
        """Whether the last look and the last write were carried out (readiness; `degraded` otherwise)."""
        return all(self._well.values())

    async def start(self) -> None:
        """Make the tables where there are none; check revision and keys. Raises `StoreUnavailable`."""
        database = self._database
        try:
            await database.prepare()
            standing = await self.read(lambda ledger: ledger.connection.run_sync(look))
            if not standing.is_newest:
                if not self._migrate:
                    raise must_be_migrated(standing)
                await database.migrate(bring_up, write=True)
            await self.read(self._check_keys)
        except database.faults as fault:
            await self.close()
            raise StoreUnavailable(f"{database.name}: {database.explain(fault)}") from fault
        except StoreUnavailable:
            await self.close()
            raise

    async def close(self) -> None:
        """Tell those who wait for a shared transaction, let what runs come to its end (bounded), then close the
        connections. Whoever comes later is told as well.
        """
        sharings, loop = (self._looking, self._moving), asyncio.get_running_loop()
        for sharing in sharings:
            sharing.close()
        until = loop.time() + self._limit_s
        # What a shared transaction leaves undone goes on in further tasks.
        while (left := until - loop.time()) > 0 and (
            running := self._tasks.union(one.serving for one in sharings if one.serving is not None)
        ):
            await asyncio.wait(running, timeout=left)
        self._closed = True
        await asyncio.wait({asyncio.ensure_future(self._database.close())}, timeout=self._limit_s)

    async def read(self, work: Work[T]) -> T:
        """One consistent look. Raises `StoreUnavailable`, and what `work` itself raises."""
        return await self._within(self._readers, work, write=False, patience_s=0.0)

    async def write(self, work: Work[T], *, patience_s: float = 0.0) -> T:
        """One transaction that may change something: committed when it returns, rolled back if `work` raises.

        `patience_s` is what `work` may spend besides the store's own limit (a record that it waits for); without any
        it does nothing but in the database (perhaps in another thread), and is done once more where the database
        rolled it back by itself. Raises `StoreUnavailable` if it was not, or may not have been, carried out.
        """
        return await self._within(self._writers, work, write=True, patience_s=patience_s)

    async def look(self, work: Work[T]) -> T:
        """As `read`, in one transaction with others that look at the same moment: for what every gated call asks."""
        return await self._shared(self._looking, work, write=False)

    async def move(self, work: Work[T]) -> T:
        """As `write` without patience, in one transaction with others that move at the same moment.

        `work` is carried out once more, alone, where it or another of them failed.
        """
        return await self._shared(self._moving, work, write=True)

    async def _shared(self, sharing: Sharing, work: Work[T], *, write: bool) -> T:
        share = sharing.join(work, asyncio.get_running_loop().time() + self._limit_s)
        try:
            done, _ = await asyncio.wait({share.done}, timeout=self._limit_s)
        except asyncio.CancelledError:
            sharing.leave(share)
            raise
        if not done:
            self._well[write] = False
            if sharing.leave(share):
                raise StoreUnavailable("the store is busy")
            raise StoreUnavailable("the store did not answer in time; what it did is unknown")
        result: T = share.done.result()
        return result

    async def _serve(self, shares: Sequence[Share], *, write: bool) -> None:
        """One transaction for all; where it is rolled back, one for each. Who comes after them waits for it, so that
        it waits for nobody; one that is alone goes alone only where somebody holds what it needs.
        """
        common = Common(shares, asyncio.get_running_loop().time)
        task = self._begin(self._transact(common.carry_out, write, common.deadline, brisk=True))
        await asyncio.wait({task})
        fault = task.exception()
        if fault is None:
            for share, result in zip(shares, task.result(), strict=True):
                _tell(share, result)
        elif not common.ran and (len(shares) > 1 or self._may_go_on(fault)):  # it broke before it was committed
            for share in shares:
                self._begin(self._go_alone(share, write))
        else:
            self._well[write] = self._well[write] and not isinstance(fault.__cause__, self._database.faults)
            for share in shares:
                _tell(share, fault)

    def _may_go_on(self, fault: BaseException) -> bool:
        cause = fault.__cause__
        return isinstance(cause, self._database.faults) and self._database.is_passing(cause)

    async def _go_alone(self, share: Share, write: bool) -> None:
        within = self._within(
            self._writers if write else self._readers, share.work, write=write, deadline=share.deadline
        )
        task = asyncio.create_task(within)
        await asyncio.wait({task})
        _tell(share, task.exception() or task.result())

    async def _within(
        self, turn: asyncio.Semaphore, work: Work[T], *, write: bool, patience_s: float = 0.0, deadline: float = 0.0
    ) -> T:
        deadline = deadline or asyncio.get_running_loop().time() + self._limit_s + patience_s
        try:
            async with asyncio.timeout_at(deadline):
                await turn.acquire()
        except TimeoutError as fault:
            self._well[write] = False
            raise StoreUnavailable("the store is busy") from fault
        if self._closed:
            turn.release()
            raise StoreUnavailable("the store is closed; nothing was done")
        task = self._begin(self._transact(work, write, deadline, patient=patience_s > 0))
        task.add_done_callback(lambda _: turn.release())
        done, _ = await asyncio.wait({task}, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        if not done:
            self._well[write] = False
            raise StoreUnavailable("the store did not answer in time; what it did is unknown")
        return task.result()

    def _begin(self, doing: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone; then nobody else asks for it

    async def _transact(
        self, work: Work[T], write: bool, deadline: float, *, patient: bool = False, brisk: bool = False
    ) -> T:
        loop, database = asyncio.get_running_loop(), self._database
        attempts = 1 if patient or brisk else ATTEMPTS
        ledgers: list[Ledger] = []

        async def done_in(transaction: Transaction) -> T:
            ledgers.append(ledger := Ledger(transaction, self.vault, self._outbox))
            result = await work(ledger)
            if loop.time() > deadline:
                raise StoreUnavailable("out of time; nothing was done")
            return result

        while True:
            attempts -= 1
            try:
                if patient:
                    async with database.transaction(write=write) as transaction:
                        result = await done_in(transaction)
                else:
                    result = await database.carry_out(done_in, write=write, brisk=brisk)
            except database.faults as fault:
                if attempts > 0 and database.is_repeatable(fault):
                    continue
                self._well[write] = self._well[write] and brisk  # whoever has them carried out together tells
                raise StoreUnavailable(database.explain(fault)) from fault
            self._well[write] = True
            if self._outbox is not None and ledgers[-1].has_news:
                self._outbox.ring()
            return result

    async def _check_keys(self, ledger: Ledger) -> None:
        connection = ledger.connection
        # What stands in the way of a call can be found by its key alone: a denial must not be forgotten with it.
        holds = (tickets.c.state == State.DENIED) & (tickets.c.expires_at > self.now())
        matters = tickets.c.state.in_(LIVE) | tickets.c.running.is_not(None) | holds
        query = select(tickets.c.key_id).distinct().where(matters)
        strange = set((await connection.execute(query)).scalars()) - set(self.vault.key_ids)
        if strange:
            raise StoreUnavailable(
                f"tickets that still count are sealed by keys that are not configured: {sorted(strange)}"
            )


def _tell(share: Share, result: Any) -> None:
    """What came of it, to whoever still waits."""
    if share.done.done():
        return
    if isinstance(result, BaseException):
        share.done.set_exception(result)
    else:
        share.done.set_result(result)
