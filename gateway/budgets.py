"""How often: the policy's `limits`, counted for a call that would otherwise go on, before any approval is consumed.

Counted in the one worker's memory, or in the approvals database for all workers and gateways (`budgets.store`).
Whoever can't count refuses: "at most 5" is never read as "allow". What is counted and then refused for another reason
is given back; where that fails, the count stays too high, never too low.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

import orjson
import structlog

from approvals.allowance import Allowance, Spent, Taken
from approvals.ticket import StoreUnavailable
from gateway.contract.passage import Call, Identity, Server
from gateway.contract.refusals import Refusal, Refused
from policies.verdict import Limit, PolicyUnavailable

REMEMBERED = 100_000
CELLS = 4096


class Counter(Protocol):
    """Who counts."""

    async def take(self, allowances: Sequence[Allowance]) -> tuple[Taken, ...]:
        """One of each, or none of any. Raises `Spent`, `StoreUnavailable`, `PolicyUnavailable`."""
        ...

    async def give_back(self, taken: Sequence[Taken]) -> None:
        """As if it had not been counted. Raises `StoreUnavailable`."""
        ...


class MemoryTally:
    """The counts of one worker, as long as it lives: `most` keys, and what older ones had come to.

    A key that has to go leaves its count in one of a few cells that it shares with others, and takes up the cell's
    count when it comes back: never less than its own.
    """

    def __init__(self, most: int = REMEMBERED, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._cells: dict[int, tuple[int, float]] = {}

    async def take(self, allowances: Sequence[Allowance]) -> tuple[Taken, ...]:
        """One of each, or none of any. Raises `Spent`."""
        now = self._clock()
        counts = []
        for one in allowances:
            used, ends_at = self._counts.get(one.key) or self._cells.get(_cell(one.key), (0, 0.0))
            if ends_at <= now:
                used, ends_at = 0, now + one.window_s
            if used >= one.count:
                raise Spent(one.name, ends_at - now)
            counts.append((one.key, used + 1, ends_at))
        for key, used, ends_at in counts:
            self._counts[key] = (used, ends_at)
            self._counts.move_to_end(key)
        while len(self._counts) > self._most:
            self._fold(*self._counts.popitem(last=False), now)
        return tuple(Taken(key, ends_at) for key, _, ends_at in counts)

    def _fold(self, key: str, count: tuple[int, float], now: float) -> None:
        used, ends_at = self._cells.get(_cell(key), (0, 0.0))
        if ends_at <= now:
            used, ends_at = 0, 0.0
        if count[1] > now:
            self._cells[_cell(key)] = (max(used, count[0]), max(ends_at, count[1]))

    async def give_back(self, taken: Sequence[Taken]) -> None:
        """As if it had not been counted."""
        for one in taken:
            used, ends_at = self._counts.get(one.key, (0, 0.0))
            if used and ends_at == one.ends_at:
                self._counts[one.key] = (used - 1, ends_at)


def _cell(key: str) -> int:
    return int(key[:8], 16) % CELLS


class OneOfSeveral:
    """Stands where a count of this worker's own would let each of several workers spend the whole budget."""

    async def take(self, allowances: Sequence[Allowance]) -> tuple[Taken, ...]:  # noqa: ARG002 - the port's
        """Never."""
        raise PolicyUnavailable("the policy sets limits; with several workers they need budgets.store: database")

    async def give_back(self, taken: Sequence[Taken]) -> None:
        """Nothing was taken."""


@dataclass(slots=True)
class Budgets:
    """The room: a verdict's limits against what was counted."""

    counter: Counter = field(default_factory=MemoryTally)

    async def take(
        self, limits: Sequence[Limit], server: Server, identity: Identity, call: Call
    ) -> tuple[Taken, ...]:
        """Count this call once in each budget, or in none.

        Raises `Refused(RATE_LIMITED)`, and what the counter raises.
        """
        if not limits:
            return ()
        allowances = [
            Allowance(_key(one, server, identity, call), one.name, one.count, one.window_s) for one in limits
        ]
        try:
            return await self.counter.take(allowances)
        except Spent as spent:
            after_s = max(1, ceil(spent.free_in_s))
            sentence = f"The budget {spent.name} is spent; it is free again in {after_s} s."
            raise Refused(
                Refusal.RATE_LIMITED, str(spent), message=sentence, retry_after_s=after_s, budget=spent.name
            ) from None

    async def give_back(self, taken: Sequence[Taken]) -> None:
        """For a call that went no further. Raises nothing: what can't be given back stays counted."""
        try:
            await self.counter.give_back(taken)
        except StoreUnavailable as error:
            structlog.get_logger("budgets").warning("budget_not_given_back", count=len(taken), error=str(error))


def _key(limit: Limit, server: Server, identity: Identity, call: Call) -> str:
    """What the limit counts, for whom: 64 hexadecimal digits, of verified claims and the judged call alone.

    The limit's `count` is not part of it: a changed one holds at once.
    """
    all_of = {
        "server": (server.name,),
        "subject": (identity.issuer, identity.subject),
        "client": (identity.issuer, identity.client_id),
        "tenant": (identity.issuer, identity.tenant),
        "name": (call.method, call.name),
    }
    of = [(word, all_of[word]) for word in sorted(limit.per)]
    return hashlib.sha256(orjson.dumps([limit.name, limit.window_s, of])).hexdigest()
