"""Work in turns: at most so many in one turn of the loop, in the order of arrival, whoever goes away meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter

from gateway.turns import Turns


class Loop:
    """Counts the loop's turns while it runs."""

    def __init__(self) -> None:
        self.turn = 0
        self._counting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Loop:
        self._counting = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._counting is not None
        self._counting.cancel()
        await asyncio.gather(self._counting, return_exceptions=True)

    async def _count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


async def test_at_most_so_many_go_on_in_one_turn_of_the_loop_and_all_in_order() -> None:
    """Each has its turn, the first ones first, no turn has more than its number, and no turn is left out."""
    turns, done = Turns(3), list[tuple[int, int]]()

    async def work(nth: int, loop: Loop) -> None:
        await turns.take()
        done.append((nth, loop.turn))

    async with Loop() as loop:
        await asyncio.gather(*(work(nth, loop) for nth in range(10)))
    assert [nth for nth, _ in done] == list(range(10))
    per_turn = Counter(turn for _, turn in done)
    assert sorted(per_turn.values()) == [1, 3, 3, 3]
    assert max(per_turn) - min(per_turn) == 3, "one turn after the other"


async def test_who_comes_back_at_once_stands_behind_all_who_wait() -> None:
    """Many that always come again keep nobody from their turn: who came after them has it after those before it."""
    turns, served, stop = Turns(2), Counter[str](), asyncio.Event()

    async def flood(nth: int) -> None:
        while not stop.is_set():
            await turns.take()
            served[f"flood {nth}"] += 1

    floods = [asyncio.create_task(flood(nth)) for nth in range(8)]
    await asyncio.sleep(0)
    for _ in range(5):
        before = served.total()
        await turns.take()
        assert served.total() - before <= 10
    stop.set()
    await asyncio.gather(*floods)
    assert max(served.values()) - min(served.values()) <= 1


async def test_who_has_gone_takes_nobody_s_turn() -> None:
    """Whoever is cancelled while waiting is passed over, and the next one goes on in the same turn of the loop."""
    turns, done = Turns(2), list[int]()

    async def work(nth: int) -> None:
        await turns.take()
        done.append(nth)

    tasks = [asyncio.create_task(work(nth)) for nth in range(6)]
    await asyncio.sleep(0)
    for gone in tasks[:4]:
        gone.cancel()
    async with Loop() as loop:
        await asyncio.gather(*tasks[4:])
        waited = loop.turn
    assert done == [4, 5]
    assert waited <= 3
    await asyncio.wait_for(turns.take(), 5)
