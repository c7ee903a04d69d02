"""Budgets, wherever they are counted: in one worker's memory, or in either database for all who share it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from approvals.allowance import Allowance, Spent, Taken
from approvals.store import Store
from approvals.tally import Tally, sweep
from approvals.ticket import StoreUnavailable
from gateway.budgets import Counter, MemoryTally
from tests.support.approvals import KEY, Clock, bench
from tests.support.postgres import Postgres

MINUTE = 60.0


def allowed(count: int, key: str = "0a" * 32, name: str = "daily", window_s: float = MINUTE) -> Allowance:
    """At most `count` a minute."""
    return Allowance(key, name, count, window_s)


@dataclass
class Counting:
    """A counter, and the clock that it goes by."""

    counter: Counter
    clock: Clock

    async def take(self, *allowances: Allowance) -> tuple[Taken, ...]:
        """One of each."""
        return await self.counter.take(allowances)

    async def spent(self, *allowances: Allowance) -> Spent:
        """Nothing is left."""
        with pytest.raises(Spent) as caught:
            await self.counter.take(allowances)
        return caught.value


@pytest.fixture
async def counted(where: Path | str) -> AsyncIterator[Counting]:
    """A count in each database."""
    async with bench(where) as made:
        yield Counting(Tally(made.store), made.clock)


@pytest.fixture
async def memory() -> Counting:
    """A count in memory."""
    clock = Clock()
    return Counting(MemoryTally(clock=clock), clock)


async def rules(it: Counting) -> None:
    """What every counter keeps."""
    begun = it.clock.now
    for _ in range(3):
        await it.take(allowed(3))
        it.clock.now += 1
    spent = await it.spent(allowed(3))
    assert (spent.name, round(spent.free_in_s)) == ("daily", 57)
    assert "daily" in str(spent)
    await it.take(allowed(1, key="0b" * 32))
    # The last moment of the window, and the first of the next one.
    it.clock.now = begun + MINUTE - 0.001
    assert (await it.spent(allowed(3))).free_in_s < 0.01
    it.clock.now = begun + MINUTE
    for _ in range(3):
        await it.take(allowed(3))
    assert round((await it.spent(allowed(3))).free_in_s) == 60


async def whole_or_not(it: Counting) -> None:
    """What is asked for at once is taken whole or not at all, whichever is spent, in whatever order."""
    wide, narrow = allowed(5, key="0c" * 32, name="wide"), allowed(1, key="0b" * 32, name="narrow")
    await it.take(wide, narrow)
    for order in ((wide, narrow), (narrow, wide)):
        assert (await it.spent(*order)).name == "narrow"
    for _ in range(4):
        await it.take(wide)
    assert (await it.spent(wide)).name == "wide"


async def giving_back(it: Counting) -> None:
    """What is given back may be taken again; of a window that has ended nothing is given back."""
    taken = await it.take(allowed(1))
    await it.spent(allowed(1))
    await it.counter.give_back(taken)
    again = await it.take(allowed(1))
    await it.spent(allowed(1))
    it.clock.now += MINUTE
    await it.take(allowed(1))
    await it.counter.give_back(again)
    await it.spent(allowed(1))


RULES: tuple[Callable[[Counting], Awaitable[None]], ...] = (rules, whole_or_not, giving_back)


@pytest.mark.parametrize("rule", RULES)
async def test_a_count_in_memory(memory: Counting, rule: Callable[[Counting], Awaitable[None]]) -> None:
    """At most so many in a window, to its edges; several at once; given back."""
    await rule(memory)


@pytest.mark.parametrize("rule", RULES)
async def test_a_count_in_a_database(counted: Counting, rule: Callable[[Counting], Awaitable[None]]) -> None:
    """The same rules where all who share the database count together."""
    await rule(counted)


async def test_memory_is_bounded_and_forgets_no_count(memory: Counting) -> None:
    """A thousand others do not win back what one has spent; what has ended is free again."""
    memory.counter = tally = MemoryTally(most=8, clock=memory.clock)
    keys = [f"{n:08x}" + "0" * 56 for n in range(1000)]
    await memory.take(allowed(2, keys[0]))
    for key in keys[1:]:
        await memory.take(allowed(2, key))
    await memory.take(allowed(2, keys[0]))
    for key in keys[1:500]:
        await memory.take(allowed(2, key))
    await memory.spent(allowed(2, keys[0]))
    assert len(tally._counts) == 8
    assert len(tally._cells) <= 1000
    memory.clock.now += MINUTE
    await memory.take(allowed(2, keys[0]))


async def replicas(where: Path | str, stack: AsyncExitStack, number: int = 2) -> list[Store]:
    """Gateways that share one database, each by its own connections and the database's clock."""
    url = where if isinstance(where, str) else f"sqlite:///{where}"
    stores = [Store(url, [KEY], limit_s=20) for _ in range(number)]
    for store in stores:
        await store.start()
        stack.push_async_callback(store.close)
    return stores


async def test_replicas_never_exceed_a_budget_together(where: Path | str) -> None:
    """120 calls at once at two gateways, a budget of 37, another of 50: 37 go on, and no more of the second count."""
    async with AsyncExitStack() as stack:
        tallies = [Tally(store) for store in await replicas(where, stack)]
        both = (allowed(37, "0f" * 32, window_s=600), allowed(50, "0a" * 32, window_s=600))

        async def one(number: int) -> bool:
            # The order in which they are asked for must not lock two gateways against each other.
            try:
                await tallies[number % 2].take(both if number % 3 else both[::-1])
            except Spent:
                return False
            return True

        went = await asyncio.gather(*(one(number) for number in range(120)))
        assert sum(went) == 37
        for _ in range(13):
            await tallies[0].take(both[1:])
        with pytest.raises(Spent):
            await tallies[1].take(both[1:])


async def test_the_database_says_what_time_it_is(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway whose clock is an hour ahead finds no window ended that the others find open."""
    url = postgres.create()
    async with AsyncExitStack() as stack:
        (near,) = await replicas(url, stack, 1)
        await Tally(near).take([allowed(1, "11" * 32, window_s=600)])
        ahead = time.time() + 3600
        monkeypatch.setattr("time.time", lambda: ahead)
        (far,) = await replicas(url, stack, 1)
        with pytest.raises(Spent):
            await Tally(far).take([allowed(1, "11" * 32, window_s=600)])


async def test_windows_that_have_ended_are_removed_and_no_others(counted: Counting, where: Path | str) -> None:
    """The table does not grow with everybody who ever called."""
    async with bench(where, clock=counted.clock) as other:
        for n in range(3):
            await counted.take(allowed(1, f"{n:064x}"))
        counted.clock.now += MINUTE - 1
        await counted.take(allowed(1, "ee" * 32))
        assert await sweep(other.store) == 0
        counted.clock.now += 1
        assert await sweep(other.store) == 3
        await counted.spent(allowed(1, "ee" * 32))
        assert await sweep(other.store) == 0


async def test_a_database_that_is_away_counts_for_nobody(tmp_path: Path) -> None:
    """Not counted is not allowed."""
    async with bench(tmp_path / "desk.db", limit_s=0.2) as made:
        tally = Tally(made.store)
        await tally.take([allowed(9)])
        entered, leave = asyncio.Event(), asyncio.Event()

        async def hold(_: object) -> None:
            entered.set()
            await leave.wait()

        async with bench(tmp_path / "desk.db", limit_s=10) as other:
            holding = asyncio.create_task(other.store.write(hold, patience_s=5))
            await entered.wait()
            with pytest.raises(StoreUnavailable):
                await tally.take([allowed(9)])
            leave.set()
            await holding
