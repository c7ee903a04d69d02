"""Calls under idempotency keys whose client goes away while their end is being written: no key is held for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from approvals.keyed import KeyedCalls
from approvals.ticket import StoreUnavailable
from gateway.audit.port import AuditUnavailable
from policies.verdict import Limit, Verdict
from tests.pipeline.house import ALLOW, APPROVE, InnerHouse, inner_house
from tests.pipeline.test_repeats import ask, code, keyed, locked
from tests.support.upstream import SSE_HEAD, Exchange, chunk, result_of


def rows_of(house: InnerHouse) -> KeyedCalls:
    """The keys of this house."""
    assert house.corridor.repeats.rows is not None
    return house.corridor.repeats.rows


async def leave_during(house: InnerHouse, owner: Any, name: str) -> None:
    """Ask under a key; go away while `owner.name` works, which then comes to its end."""
    work: Callable[..., Awaitable[Any]] = getattr(owner, name)
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*given: Any, **named: Any) -> Any:
        waiting.set()
        await go_on.wait()
        return await work(*given, **named)

    setattr(owner, name, slow)
    asked = asyncio.ensure_future(house.serve(keyed(house)))
    await asyncio.wait_for(waiting.wait(), 30)
    asked.cancel()
    await asyncio.wait({asked})
    assert asked.cancelled()
    go_on.set()
    await house.corridor.delivery.drain()
    setattr(owner, name, work)


async def test_who_leaves_while_the_use_ends_finds_the_outcome(tmp_path: Path) -> None:
    """An approved call ran; its client went away while its use was being ended: the key's end is written all the
    same, and no lease is held any longer."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        await house.approve(keyed(house))
        await leave_during(house, house.desk, "finish")
        assert rows_of(house).held == 0
        assert b"ostiary-replay-of" in (await ask(house))[2]
        assert len(house.forwarded) == 1


async def test_who_leaves_while_the_use_goes_back_leaves_the_key_free(tmp_path: Path) -> None:
    """Nothing was sent: the use is there again and so is the key, whenever the client went away."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        await house.approve(keyed(house))
        house.sink.broken = AuditUnavailable("full")
        await leave_during(house, house.desk, "restore")
        house.sink.broken = None
        assert rows_of(house).held == 0
        assert (await ask(house))[0] == 200
        assert len(house.forwarded) == 1


async def test_a_key_that_cannot_be_given_back_lapses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client left while the key was being taken, and then the store was away: freeing is tried again, and in
    the end the lease is let go rather than renewed for as long as the worker lives."""
    monkeypatch.setattr("gateway.repeats.KEEPING_S", (0.01,) * 2)
    async with inner_house(tmp_path, store_limit_s=0.2) as house:
        rows = rows_of(house)
        take, taken, go_on = rows.take, asyncio.Event(), asyncio.Event()

        async def slow(*given: Any) -> Any:
            found = await take(*given)
            taken.set()
            await go_on.wait()
            return found

        rows.take = slow  # type: ignore[method-assign, assignment]
        asked = asyncio.ensure_future(house.serve(keyed(house)))
        await asyncio.wait_for(taken.wait(), 30)
        asked.cancel()
        await asyncio.wait({asked})
        assert rows.held == 1
        with locked(tmp_path):
            go_on.set()
            await house.corridor.delivery.drain()
        assert rows.held == 0
        assert code(await ask(house)) == 40902
        assert house.forwarded == []


async def test_a_replay_that_only_the_taking_found_costs_no_budget(tmp_path: Path) -> None:
    """Another gateway ran the call between the look and the taking: what is told again is not counted."""
    budgeted = replace(ALLOW, limits=(Limit("daily", ("subject",), 2, 86_400),))
    async with inner_house(tmp_path, lambda _: budgeted) as house:
        assert (await ask(house))[0] == 200
        rows = rows_of(house)
        look = rows.look

        async def see_nothing(_: Any) -> None:
            return None

        rows.look = see_nothing  # type: ignore[method-assign, assignment]
        for _ in range(3):
            assert b"ostiary-replay-of" in (await ask(house))[2]
            await house.corridor.delivery.drain()
        rows.look = look  # type: ignore[method-assign]
        assert (await ask(house, "k-2"))[0] == 200
        assert code(await ask(house, "k-3")) == 42901
        assert len(house.forwarded) == 2


async def test_an_answer_that_came_with_the_last_progress_is_kept(tmp_path: Path) -> None:
    """The client went away after events that came in one piece with the response: it is known, not `unknown`."""
    async with inner_house(tmp_path) as house:
        progress = {
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": 5, "progress": 1},
        }

        async def script(exchange: Exchange) -> None:
            final = result_of(exchange.id, content=[{"type": "text", "text": "streamed"}])
            events = b"".join(b"data: " + one + b"\n\n" for one in (orjson.dumps(progress), final))
            await exchange.send(SSE_HEAD + chunk(events) + b"0\r\n\r\n")

        house.script = script
        reply = await house.serve(keyed(house, meta={"progressToken": 5}))
        chunks: Any = reply.chunks
        assert b"progress" in await anext(aiter(chunks))
        await chunks.aclose()
        await house.corridor.delivery.drain()
        assert house.sink.of("outcome")[0]["outcome"] == "executed"
        again = await ask(house)
        assert again[1]["result"]["content"][0]["text"] == "streamed"
        assert len(house.forwarded) == 1


@pytest.mark.parametrize("effect", [ALLOW, APPROVE], ids=["allowed", "approved"])
@pytest.mark.parametrize("carried_out", [False, True], ids=["not carried out", "carried out all the same"])
async def test_a_store_that_fails_at_any_step_never_has_a_call_sent_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effect: Verdict, carried_out: bool
) -> None:
    """Whichever reading or writing fails, whether or not it was carried out: the call is sent once at most, no lease
    is held afterwards, and who was told an outcome is told the same again."""
    monkeypatch.setattr("gateway.repeats.KEEPING_S", (0.0,) * 2)
    async with inner_house(tmp_path, lambda _: effect) as house:
        store, rows = house.store, rows_of(house)
        ways = {name: getattr(store, name) for name in ("read", "write", "look", "move")}
        for lasts in (1, 99):
            for step in range(12):
                key, amount = f"k-{lasts}-{step}", {"amount": lasts * 100 + step}
                if effect is APPROVE:
                    await house.approve(keyed(house, key, arguments=amount))
                before, steps = len(house.forwarded), 0

                def failing(
                    way: Callable[..., Awaitable[Any]], step: int = step, lasts: int = lasts
                ) -> Callable[..., Awaitable[Any]]:
                    async def work(*given: Any) -> Any:
                        nonlocal steps
                        steps += 1
                        fails = step < steps <= step + lasts
                        found = await way(*given) if carried_out or not fails else None
                        if fails:
                            raise StoreUnavailable("planted")
                        return found

                    return work

                for name, way in ways.items():
                    setattr(store, name, failing(way))
                first = await ask(house, key, arguments=amount)
                await house.corridor.delivery.drain()
                for name, way in ways.items():
                    setattr(store, name, way)
                assert rows.held == 0, (lasts, step)
                again = await ask(house, key, arguments=amount)
                await house.corridor.delivery.drain()
                assert len(house.forwarded) - before <= 1, (lasts, step, first, again)
                if first[0] == 200 and again[0] == 200:
                    assert b"ostiary-replay-of" in again[2], (lasts, step)
                assert first[0] in {200, 503}, (lasts, step, first)
                assert again[0] in {200, 409, 403}, (lasts, step, again)
            assert steps < 12, "all steps were reached"
