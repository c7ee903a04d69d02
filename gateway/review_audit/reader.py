"""The record, read for pages: by one thread a process, each look within bounds, and never many looks in a row.

The files may hold gigabytes and a page is asked for by anybody who signs in: a look ends after `BOUNDS`, few wait for
their turn, and of one person one at a time. The event loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Final, TypeVar

from gateway.audit.looking import Budget
from gateway.audit.place import Place
from gateway.audit.reading import Tables
from gateway.audit.segments import list_chains
from gateway.audit.trail import Chain, ChainOfFiles, ChainOfTable
from gateway.contract.refusals import Refusal, Refused

T = TypeVar("T")
Work = Callable[[Sequence[Chain], Budget], T]


class RecordUnreadable(Exception):  # noqa: N818 - what it is
    """The record could not be read at all: its folder or its database is away. The text is for operators."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one look: bytes and seconds. `waiting`: so many people may wait for their turn in this process."""

    read_bytes: int = 128 * 1024 * 1024
    seconds: float = 3.0
    waiting: int = 8


BOUNDS: Final = Bounds()


class Reader:
    """Whoever reads the record for pages. Raises `Refused`: RATE_LIMITED, OVERLOADED; and `RecordUnreadable`."""

    def __init__(self, place: Place, bounds: Bounds = BOUNDS) -> None:
        self.place: Final = place
        self._bounds: Final = bounds
        self._thread: Final = ThreadPoolExecutor(1, "audit-reader")
        self._readers: Final[set[str]] = set()

    async def read(self, by: str, work: Work[T]) -> T:
        """What `work` makes of all chains, for the person `by`; it is called in the thread."""
        if by in self._readers:
            raise Refused(Refusal.RATE_LIMITED, "one look into the record at a time", message=ONE_AT_A_TIME)
        if len(self._readers) >= self._bounds.waiting:
            raise Refused(Refusal.OVERLOADED, "looks into the record wait for each other")
        self._readers.add(by)
        looking = asyncio.get_running_loop().run_in_executor(self._thread, self._look, work)

        def end(ended: asyncio.Future[T]) -> None:
            self._readers.discard(by)
            if not ended.cancelled():
                ended.exception()  # whoever asked may have left

        # Whoever leaves meanwhile has no second turn before the first one ended.
        looking.add_done_callback(end)
        return await asyncio.shield(looking)

    def _look(self, work: Work[T]) -> T:
        budget = Budget(self._bounds.read_bytes, self._bounds.seconds)
        if self.place.database is None:
            return work([ChainOfFiles(path, writer) for writer, path in list_chains(self.place.file)], budget)
        with closing(Tables(self.place.database)) as tables:
            try:
                chains = [ChainOfTable(tables, writer) for writer in tables.writers()]
            except OSError as error:
                raise RecordUnreadable(str(error)) from error
            return work(chains, budget)

    async def close(self) -> None:
        """Wait for the look that is under way, which has its bound."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)


ONE_AT_A_TIME = "You are reading the record already. One look at a time: wait for it, then try again."
