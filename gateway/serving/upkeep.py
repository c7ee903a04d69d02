"""What is done every half minute beside the calls: leases kept, what lapsed ended, what is old forgotten.

At first, and then every hour, what writers that are not started any more left open in the record is closed as well.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import count

import structlog

from approvals.census import census
from approvals.desk import Desk, StoreUnavailable
from approvals.keyed import KeyedCalls
from approvals.retention import forget
from approvals.shelf import Shelf
from approvals.store import Store
from approvals.tally import sweep
from gateway.audit.orphans import close_orphans
from gateway.audit.port import AuditUnavailable
from gateway.plan import Plan

LOOK_AFTER_S = 30.0
ORPHANS_EVERY = 120
"""Turns: an hour."""


class Upkeep:
    """One worker's. `tickets` is the last count of them (approvals/census.py).

    `well` is part of readiness: leases that nobody extends end calls that run as `unknown`.
    """

    def __init__(self, plan: Plan, desk: Desk, store: Store, shelf: Shelf, keyed: KeyedCalls) -> None:
        self._plan = plan
        self._desk = desk
        self._store = store
        self._shelf = shelf
        self._keyed = keyed
        self._log = structlog.get_logger("house")
        self._task: asyncio.Task[None]
        self.tickets: dict[str, int] = {}

    @property
    def well(self) -> bool:
        """Whether it goes on."""
        return not self._task.done()

    def start(self) -> None:
        """Begin; the first round comes after a while, which also lets every worker claim its own file first."""
        self._task = asyncio.create_task(self._look_after())

    async def close(self) -> None:
        """Stop. What it broke by, if it did, is in the log."""
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            self._log.error("task_broke", exc_info=error)

    async def _look_after(self) -> None:
        for turn in count():
            with contextlib.suppress(StoreUnavailable):  # the store's health tells it
                self.tickets = await census(self._store)
            await asyncio.sleep(LOOK_AFTER_S)
            try:
                # Whoever it is: after a reload nobody may be writer 0. Who comes second finds nothing to do.
                if turn % ORPHANS_EVERY == 0 and (closed := await self._close_orphans()):
                    self._log.warning("orphaned_records_closed", writers=closed)
                await self._desk.renew()
                await self._keyed.renew()
                await self._desk.sweep()
                await self._shelf.sweep()
                await self._keyed.sweep()
                await self._keyed.measure()
                if forgotten := await forget(self._store, self._plan.settings.approvals.keep_s):
                    self._log.info("tickets_forgotten", count=forgotten)
                await sweep(self._store)
            except (StoreUnavailable, AuditUnavailable) as error:
                self._log.error("approvals_not_looked_after", error=str(error))

    async def _close_orphans(self) -> list[int]:
        if self._plan.audit_database is not None:
            from gateway.audit.postgres import close_orphans as close_orphans_in  # noqa: PLC0415 - loaded by then

            return await close_orphans_in(self._plan.audit_database)
        return await close_orphans(self._plan.settings.audit.file)
