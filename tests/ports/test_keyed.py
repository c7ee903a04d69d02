"""Calls under idempotency keys at rest, on both databases: taken by one, ended once, sealed, bounded, forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import select, update

from approvals.keyed import LEASE_S, KeyedCalls
from approvals.keyed_call import Found, Outcome, Stage, Taken, TooManyKeys, Wanted
from approvals.schema import keyed_calls
from approvals.store import Store
from approvals.ticket import StoreUnavailable, Unreadable
from tests.support.approvals import KEY, Clock

OTHER_KEY = bytes(32)
SCOPE = ("client", "tenant", "server", "https://s", "production")
PAY = Wanted(("https://i", "alice"), SCOPE, "k-1", "base", "whole")
PAID = Outcome(
    "executed", "d-1", 200, 0, "ab" * 32, b'{"jsonrpc":"2.0","id":1,"result":{"planted":"\xc3\xa4\\n"}}\n{"x":1}'
)


@dataclass
class Gateways:
    """Two workers of two gateways on one store, each with its own way to it."""

    stores: tuple[Store, Store]
    clock: Clock
    one: KeyedCalls
    two: KeyedCalls

    async def taken(self, wanted: Wanted = PAY, decision: str = "d-1") -> Taken:
        """Taken by the first."""
        taken = await self.one.take(wanted, decision)
        assert isinstance(taken, Taken)
        return taken

    async def rows(self) -> list[Any]:
        """Everything that is stored."""

        async def work(ledger: Any) -> list[Any]:
            return list((await ledger.connection.execute(select(keyed_calls))).all())

        return await self.stores[0].read(work)

    async def change(self, **values: Any) -> None:
        """As somebody with the database alone would."""
        query = update(keyed_calls).values(values)
        await self.stores[0].write(lambda ledger: ledger.connection.execute(query))


@asynccontextmanager
async def gateways(
    where: Path | str, keys: tuple[tuple[bytes, ...], ...] = ((KEY,), (KEY,)), **more: Any
) -> AsyncIterator[Gateways]:
    """Two of them."""
    url = where if isinstance(where, str) else f"sqlite:///{where}"
    clock = Clock()
    stores = (Store(url, [KEY], clock=clock, limit_s=60), Store(url, [KEY], clock=clock, limit_s=60))
    try:
        for store in stores:
            await store.start()
        one, two = (
            KeyedCalls(store, own, owner=name, clock=clock, **more)
            for store, own, name in zip(stores, keys, ("one", "two"), strict=True)
        )
        yield Gateways(stores, clock, one, two)
    finally:
        for store in stores:
            await store.close()


async def test_of_many_at_once_one_has_the_key(where: Path | str) -> None:
    """However many take it at two gateways, one runs; all others are told which decision does."""
    async with gateways(where) as there:
        for round_ in range(3):
            wanted = replace(PAY, key=f"k-{round_}")
            both = [(there.one, there.two)[n % 2].take(wanted, f"d-{n}") for n in range(8)]
            found = await asyncio.gather(*both)
            (taken,) = [one for one in found if isinstance(one, Taken)]
            others = [one for one in found if isinstance(one, Found)]
            assert others == [Found(Stage.RUNNING, True, taken.decision)] * 7


async def test_gateways_with_their_keys_in_another_order_share_a_key(where: Path | str) -> None:
    """While keys rotate one files by the new key and the other by the old one: still one of all runs."""
    async with gateways(where, ((KEY, OTHER_KEY), (OTHER_KEY, KEY))) as there:
        for round_ in range(3):
            wanted = replace(PAY, key=f"k-{round_}")
            found = await asyncio.gather(*((there.one, there.two)[n % 2].take(wanted, f"d-{n}") for n in range(6)))
            (taken,) = [one for one in found if isinstance(one, Taken)]
            holder = there.one if taken.decision in {"d-0", "d-2", "d-4"} else there.two
            assert await holder.end(taken, Stage.KEPT, PAID)
            assert [await one.look(wanted) for one in (there.one, there.two)] == [
                Found(Stage.KEPT, True, taken.decision, PAID)
            ] * 2


async def test_a_key_of_ours_that_is_gone_stops_the_start(where: Path | str) -> None:
    """What would not be found would run again: the error names the key; once the rows are over it does not matter."""
    async with gateways(where, ((KEY,), (OTHER_KEY,)), keep_s=100) as there:
        await there.two.check_keys()
        await there.taken()
        await there.one.check_keys()
        with pytest.raises(StoreUnavailable, match="not configured"):
            await there.two.check_keys()
        there.clock.now += LEASE_S + 101
        await there.two.check_keys()


async def test_what_came_of_a_call_is_found_until_its_time_is_over(where: Path | str) -> None:
    """At either gateway, byte for byte; then the key is new again."""
    async with gateways(where, keep_s=100) as there:
        assert await there.two.look(PAY) is None
        taken = await there.taken()
        there.clock.now += 50
        assert await there.one.end(taken, Stage.KEPT, PAID)
        assert not await there.one.end(taken, Stage.UNKNOWN, Outcome("unknown", "d-1"))
        there.clock.now += 99
        assert await there.two.look(PAY) == Found(Stage.KEPT, True, "d-1", PAID)
        assert await there.two.take(PAY, "d-2") == Found(Stage.KEPT, True, "d-1", PAID)
        there.clock.now += 1
        assert await there.two.look(PAY) is None
        assert isinstance(await there.two.take(PAY, "d-2"), Taken)


@pytest.mark.parametrize("what", ["party", "scope", "key", "base", "whole"])
async def test_nothing_of_another_call_is_found(where: Path | str, what: str) -> None:
    """Another party, scope or key is another row; another request finds the row, and nothing of its outcome."""
    other = {
        "party": replace(PAY, party=("https://i", "bob")),
        "scope": replace(PAY, scope=("clienttenant", "", "server", "https://s", "production")),
        "key": replace(PAY, key="k-2"),
        "base": replace(PAY, base="other", whole="other"),
        "whole": replace(PAY, whole="other"),
    }[what]
    async with gateways(where) as there:
        assert await there.one.end(await there.taken(), Stage.KEPT, PAID)
        expected = Found(Stage.KEPT, False, "d-1") if what in {"base", "whole"} else None
        assert await there.two.look(other) == expected
        taken = await there.two.take(other, "d-2")
        assert taken == expected if expected else isinstance(taken, Taken)


async def test_a_lease_that_lapses_leaves_unknown_and_the_truth_may_still_come(where: Path | str) -> None:
    """Held longer while its worker lives; lost with it: nobody runs it again, but its holder's late word counts."""
    async with gateways(where) as there:
        taken = await there.taken()
        for _ in range(3):
            there.clock.now += LEASE_S * 0.9
            await there.one.renew()
            await there.two.renew()
            await there.two.sweep()
            assert await there.two.take(PAY, "d-2") == Found(Stage.RUNNING, True, "d-1")
        there.clock.now += LEASE_S
        assert await there.two.take(PAY, "d-2") == Found(Stage.UNKNOWN, True, "d-1")
        assert await there.two.sweep() == 1
        assert [row.state for row in await there.rows()] == ["unknown"]
        assert await there.one.end(taken, Stage.KEPT, PAID)
        assert await there.two.look(PAY) == Found(Stage.KEPT, True, "d-1", PAID)


async def test_a_lease_that_lapses_while_its_renewal_waits_stays_lapsed(where: Path | str) -> None:
    """What others were told to be unknown does not run again because a turn at the store came late."""
    async with gateways(where) as there:
        await there.taken()
        there.clock.now += LEASE_S * 0.9
        async with AsyncExitStack() as busy:
            for _ in range(there.stores[0]._database.writers):
                await busy.enter_async_context(there.stores[0]._writers)
            renewing = asyncio.create_task(there.one.renew())
            await asyncio.sleep(0)
            there.clock.now += LEASE_S * 0.5
        await renewing
        assert await there.two.look(PAY) == Found(Stage.UNKNOWN, True, "d-1")


async def test_a_restart_ends_what_its_worker_ran(where: Path | str) -> None:
    """By the name of the worker before, and nobody else's; what had ended stays as it is."""
    async with gateways(where) as there:
        await there.taken()
        other = replace(PAY, key="k-2")
        assert isinstance(await there.two.take(other, "d-2"), Taken)
        ended = replace(PAY, key="k-3")
        assert await there.one.end(await there.taken(ended, "d-3"), Stage.KEPT, PAID)
        await there.two.reconcile("one")
        assert await there.two.look(PAY) == Found(Stage.UNKNOWN, True, "d-1")
        assert await there.two.look(other) == Found(Stage.RUNNING, True, "d-2")
        assert await there.two.look(ended) == Found(Stage.KEPT, True, "d-3", PAID)


async def test_a_call_that_runs_longer_than_keys_are_kept_is_not_forgotten(where: Path | str) -> None:
    """Its time begins with its end, however that comes: a stream of a day does not free its key while it runs."""
    async with gateways(where, keep_s=60, lease_s=100) as there:
        await there.taken()
        for _ in range(5):
            there.clock.now += 99
            await there.one.renew()
            await there.two.sweep()
            assert await there.two.look(PAY) == Found(Stage.RUNNING, True, "d-1")
        there.clock.now += 101
        assert await there.two.look(PAY) == Found(Stage.UNKNOWN, True, "d-1")
        there.clock.now += 58
        assert await there.two.look(PAY) == Found(Stage.UNKNOWN, True, "d-1")
        there.clock.now += 2
        assert await there.two.look(PAY) is None


async def test_what_is_not_known_to_be_taken_is_undone_and_legs_are_not(where: Path | str) -> None:
    """A claim whose commit is unknown, of which nothing was sent; one that continues keeps what went before."""
    async with gateways(where) as there:
        await there.taken()
        await there.two.undo(PAY, "d-2")
        assert len(await there.rows()) == 1
        await there.one.undo(PAY, "d-1")
        assert await there.rows() == []
        assert await there.one.end(await there.taken(), Stage.ASKED, Outcome("input_required", "d-1"))
        leg = replace(PAY, whole="leg 1", leg=1)
        assert isinstance(await there.two.take(leg, "d-2"), Taken)
        await there.two.undo(leg, "d-2")
        assert await there.one.look(leg) == Found(Stage.RUNNING, True, "d-2")


async def test_room_is_bounded_for_one_and_for_all(where: Path | str) -> None:
    """Exactly for one subject, under parallel takers of two gateways; other subjects, and what is known, go on."""
    async with gateways(where, per_subject=5) as there:
        tries = [(there.one, there.two)[n % 2].take(replace(PAY, key=f"k-{n}"), f"d-{n}") for n in range(12)]
        found = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(one, Taken) for one in found) == 5
        full = [one for one in found if isinstance(one, TooManyKeys)]
        assert len(full) == 7
        assert not any(one.all_full for one in full)
        assert isinstance(await there.one.take(replace(PAY, party=("https://i", "bob")), "d"), Taken)
        await there.one.measure()
        assert there.one.count == 6
        first = next(one for one in found if isinstance(one, Taken))
        await there.one.free(first)
        assert isinstance(await there.one.take(replace(PAY, key="new"), "d"), Taken)
    async with gateways(where, bytes_in_all=1500) as there:
        dave = replace(PAY, party=("https://i", "dave"))
        large = replace(PAID, text=b"x" * 150)
        assert await there.one.end(await there.taken(dave), Stage.KEPT, large)
        with pytest.raises(TooManyKeys, match="of one subject") as caught:
            await there.two.take(replace(dave, key="k-2"), "d")
        assert not caught.value.all_full
        assert isinstance(await there.two.take(replace(PAY, party=("https://i", "erin")), "d"), Taken)
    async with gateways(where, most=9, bytes_in_all=10**6) as there:
        await there.one.measure()
        known = await there.one.take(replace(PAY, party=("https://i", "carol")), "d-c")
        assert isinstance(known, Taken)
        for keyed, why in ((there.one, "9 keys"), (there.two, "keys")):
            await there.two.measure()
            with pytest.raises(TooManyKeys, match=why) as caught:
                await keyed.take(replace(PAY, party=("https://i", "dora")), "d")
            assert caught.value.all_full
        assert isinstance(await there.two.take(replace(PAY, party=("https://i", "carol")), "d"), Found)


async def test_what_has_outlived_its_time_goes(where: Path | str) -> None:
    """Batch by batch, by any worker, at any time; what still counts stays."""
    async with gateways(where, keep_s=100) as there:
        for n in range(4):
            assert await there.one.end(await there.taken(replace(PAY, key=f"k-{n}"), "d"), Stage.KEPT, PAID)
            there.clock.now += 30
        there.clock.now += 11  # of four, two are 100 s old
        assert await there.two.sweep() == 2
        assert await there.two.sweep() == 0
        assert len(await there.rows()) == 2


async def test_what_was_changed_in_the_database_is_not_told(where: Path | str) -> None:
    """Sealed and bound to its row and stage: contents moved from another row, or another stage, do not open."""
    async with gateways(where) as there:
        assert await there.one.end(await there.taken(), Stage.ENDED, replace(PAID, text=b"", why="too_large"))
        other = replace(PAY, key="k-2")
        assert await there.one.end(await there.taken(other, "d-2"), Stage.KEPT, PAID)
        ended, kept = sorted(await there.rows(), key=lambda row: str(row.state))
        await there.change(state="kept", told=ended.told)
        with pytest.raises(Unreadable):
            await there.two.look(PAY)
        await there.change(state="kept", told=kept.told)
        with pytest.raises(Unreadable):
            await there.two.look(PAY)
        assert await there.two.look(other) == Found(Stage.KEPT, True, "d-2", PAID)
        await there.change(bond=kept.bond)
        with pytest.raises(Unreadable):
            await there.two.take(PAY, "d")


async def test_nothing_of_it_is_in_clear(where: Path | str) -> None:
    """Neither who, nor where, nor the key, nor what was asked, nor what came of it; two alike are not seen to be."""
    async with gateways(where) as there:
        for number in range(2):
            wanted = Wanted(
                ("https://planted-issuer", "planted-subject"), ("planted-client",), f"planted-{number}", "b", "w"
            )
            assert await there.one.end(await there.taken(wanted, "d"), Stage.KEPT, PAID)
        rows = await there.rows()
        text = b"".join(value if isinstance(value, bytes) else str(value).encode() for row in rows for value in row)
        assert b"planted" not in text
        assert len({row.told for row in rows} | {row.bond for row in rows}) == 4
        assert len({row.lookup for row in rows}) == 2
        assert orjson.dumps(["b", "w"]) not in text
