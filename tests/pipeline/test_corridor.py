"""The corridor stopped at its awaits: what was consumed ends once and rightly, whoever goes away when."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.audit.port import AuditUnavailable
from gateway.contract.passage import Passage, Received
from gateway.tokens import CHECKS
from policies.verdict import Verdict
from tests.contract.asking import META, TASKS_META, message
from tests.pipeline.house import ALLOW, APPROVE, DENY, Asked, inner_house, until
from tests.support.approvals import BOB
from tests.support.upstream import SSE_HEAD, Exchange, chunk, http, result_of


async def _leave(serving: asyncio.Task[Any]) -> None:
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


async def test_an_approved_call_runs_once(tmp_path: Path) -> None:
    """The positive twin of what follows: held, approved, executed, used."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket = await house.approve(house.ask())
        status, _ = await house.call()
        assert (status, len(house.forwarded)) == (200, 1)
        assert house.moves == ["request", "approve", "claim", "sent", "executed"]
        assert (await house.ticket(ticket))["state"] == "used"


@pytest.mark.parametrize("verdict", [ALLOW, DENY])
async def test_a_request_leaves_nothing_for_the_collector(verdict: Verdict, tmp_path: Path) -> None:
    """A flood of refusals costs their walk and no collections beside it: what a request holds goes with its end."""
    async with inner_house(tmp_path, lambda _: verdict) as house:
        await house.call()
        gc.collect()
        gc.disable()
        try:
            before = sum(isinstance(thing, Passage) for thing in gc.get_objects())
            statuses = {(await house.call())[0] for _ in range(3)}
            await house.corridor.delivery.drain()
            after = sum(isinstance(thing, Passage) for thing in gc.get_objects())
        finally:
            gc.enable()
        assert statuses == {200 if verdict is ALLOW else 403}
        assert after == before


def _forged(asked: Asked) -> Asked:
    received = asked.received
    headers = tuple(
        (name, value[:-8] + b"AAAAAAAA" if name == b"authorization" else value) for name, value in received.headers
    )
    return Asked(Received(received.server, received.http_method, received.path, headers), asked.raw, asked.server)


async def test_tokens_that_wait_for_their_check_take_nobody_s_room(tmp_path: Path) -> None:
    """A flood of forged tokens does not fill `limits.concurrent`: whose token is known is served meanwhile."""
    async with inner_house(tmp_path) as house:
        known = house.ask()
        assert (await house.serve(known)).status == 200
        house.corridor.concurrent = 2
        flood = [asyncio.create_task(house.serve(_forged(house.ask()))) for _ in range(5 * CHECKS)]
        await asyncio.sleep(0)
        assert len(house.corridor.tokens._turns) == 5 * CHECKS
        assert (await house.serve(known)).status == 200
        assert {(await one).status for one in flood} == {401}
        assert house.corridor.in_flight == 0


async def test_who_has_waited_for_a_check_finds_room_or_is_refused(tmp_path: Path) -> None:
    """`limits.concurrent` holds for those too whose token was good: what they did not take is not theirs."""
    async with inner_house(tmp_path) as house:
        go_on = asyncio.Event()

        async def wait(exchange: Exchange) -> None:
            await go_on.wait()
            await exchange.send(http(200, result_of(exchange.id)))

        await house.call()
        house.script = wait
        house.corridor.concurrent = 2
        served = [asyncio.create_task(house.call()) for _ in range(4)]
        await until(lambda: sum(one.done() for one in served) == 2)
        assert house.corridor.in_flight == 2
        go_on.set()
        assert sorted([(await one)[0] for one in served]) == [200, 200, 503, 503]


async def test_a_use_that_is_given_back_is_so_even_if_the_client_goes_away(tmp_path: Path) -> None:
    """Nothing was recorded and so nothing was sent: the approval is whole again, whoever waited for the refusal."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket = await house.approve(house.ask())
        house.sink.gate = asyncio.Event()
        serving = asyncio.create_task(house.serve())
        await until(lambda: "claim" in house.moves)
        async with house.store_is_busy():
            house.sink.broken = AuditUnavailable("full")
            house.sink.gate.set()
            await until(lambda: bool(house.sink.of("refusal")[1:]))
            await asyncio.sleep(0.01)
            await _leave(serving)
        await house.corridor.delivery.drain()
        assert (await house.ticket(ticket))["uses_left"] == 1
        house.sink.broken = None
        assert (await house.call())[0] == 200


async def test_a_client_that_leaves_before_the_decision_leaves_one_record(tmp_path: Path) -> None:
    """AUD-01: in the body, at the policy, at the disk: one refusal, with whoever was known, counted, nothing sent."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        await house.approve(house.ask())
        asked, read = house.ask(), asyncio.Event()

        async def never() -> bytes:
            read.set()
            await asyncio.Event().wait()
            return b""

        del house.sink.records[:]
        whole, asked.body = asked.body, never  # type: ignore[method-assign]
        ends = house.watcher.ends
        serving = asyncio.create_task(house.serve(asked))
        await read.wait()
        await _leave(serving)
        asked.body = whole  # type: ignore[method-assign]
        house.sink.gate = asyncio.Event()
        serving = asyncio.create_task(house.serve(asked))
        await until(lambda: house.moves[-1] == "claim")
        await _leave(serving)
        await house.corridor.delivery.drain()
        assert house.moves[-1] == "restore"
        early, late = house.sink.records
        assert [(one["kind"], one["reasons"][0]) for one in (early, late)] == [("refusal", "client_gone")] * 2
        assert [(one["status"], one["code"]) for one in (early, late)] == [(499, 49901)] * 2
        assert early["actor"] == late["actor"] is not None
        assert (early["name"], late["name"], late["ticket"] is not None) == (None, "pay", True)
        assert (house.watcher.ends, house.forwarded, house.corridor.in_flight) == (ends + 2, [], 0)
        house.sink.gate = None
        assert (await house.call())[0] == 200


async def test_a_client_that_leaves_before_the_first_byte_used_nothing(tmp_path: Path) -> None:
    """Decided, and provably not sent: the outcome is `failed`, not `cancelled`, and the approval is whole again."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket = await house.approve(house.ask())
        house.sink.gate = asyncio.Event()
        serving = asyncio.create_task(house.serve())
        await until(lambda: "claim" in house.moves)
        async with house.store_is_busy():
            house.sink.gate.set()
            await until(lambda: bool(house.sink.of("decision")))  # from here to the store nothing waits
            await _leave(serving)
        await house.corridor.delivery.drain()
        (end,) = house.sink.of("outcome")
        assert (end["outcome"], end["status"], house.forwarded) == ("failed", 499, [])
        assert (await house.ticket(ticket))["uses_left"] == 1
        assert (await house.call())[0] == 200


@pytest.mark.parametrize("steps", [0, 1])
async def test_a_stream_that_nobody_reads_to_its_end_is_cancelled(tmp_path: Path, steps: int) -> None:
    """Before its first event or after it: one outcome, the place among the calls given back, the use `unknown`."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        await house.approve(house.ask())

        async def endless(exchange: Exchange) -> None:
            note = b'data: {"jsonrpc":"2.0","method":"com.example/notifications/note","params":{}}\n\n'
            await exchange.send(SSE_HEAD + chunk(note))
            await exchange.gone(20)

        house.script = endless
        chunks: Any = (await house.serve()).chunks
        for _ in range(steps):
            assert b"com.example/notifications/note" in await anext(chunks)
        assert house.corridor.delivery.streams.calls == 1
        await chunks.aclose()
        await house.corridor.delivery.drain()
        assert [record["outcome"] for record in house.sink.of("outcome")] == ["cancelled"]
        assert (house.corridor.delivery.streams.calls, house.moves[-1]) == (0, "unknown")


async def test_an_approval_revoked_between_the_claim_and_the_sending_is_a_refusal(tmp_path: Path) -> None:
    """APR-02: whoever loses against the person who revokes is refused; nothing runs, and no fault is made of it."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket = await house.approve(house.ask())
        house.sink.gate = asyncio.Event()
        serving = asyncio.create_task(house.call())
        await until(lambda: "claim" in house.moves)
        await house.desk.act("revoke", BOB, ticket)
        house.sink.gate.set()
        status, told = await serving
        assert (status, told["error"]["code"], house.forwarded) == (403, 40304, [])
        assert [record["outcome"] for record in house.sink.of("outcome")] == ["failed"]
        assert (await house.ticket(ticket))["state"] == "revoked"
        assert not house.watcher.defects


async def test_a_use_whose_call_was_executed_ends_so_even_if_the_client_goes_away(tmp_path: Path) -> None:
    """The record says `executed`, and so does the ticket, though nobody waits for the answer any more."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        ticket = await house.approve(house.ask())

        async def answer_slowly(exchange: Exchange) -> None:
            await busy.__aenter__()
            await exchange.send(http(200, result_of(exchange.id)))

        busy = house.store_is_busy()
        house.script = answer_slowly
        serving = asyncio.create_task(house.serve())
        await until(lambda: bool(house.sink.of("outcome")))
        await asyncio.sleep(0.01)
        await _leave(serving)
        await busy.__aexit__(None, None, None)
        await house.corridor.delivery.drain()
        assert [record["outcome"] for record in house.sink.of("outcome")] == ["executed"]
        assert (await house.ticket(ticket))["state"] == "used"
        assert house.moves[-1] == "executed"


async def test_a_desk_that_fails_for_a_client_that_has_gone_troubles_nobody(tmp_path: Path) -> None:
    """Nothing was claimed, so nothing is given back, and no task's exception is left over for nobody."""
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    async with inner_house(tmp_path, lambda _: APPROVE, store_limit_s=0.3) as house:
        ticket = await house.approve(house.ask())
        entered = asyncio.Event()

        async def hold(_: object) -> None:
            entered.set()
            await asyncio.sleep(0.6)

        holding = asyncio.create_task(house.store.write(hold, patience_s=5))
        await entered.wait()
        serving = asyncio.create_task(house.serve())
        await asyncio.sleep(0.1)
        await _leave(serving)
        assert house.corridor.delivery.pending
        await house.corridor.delivery.drain()
        await holding
        gc.collect()
        assert (await house.ticket(ticket))["uses_left"] == 1
        assert (await house.call())[0] == 200
    assert not unheard


async def test_an_approval_of_a_continued_call_covers_the_servers_state(tmp_path: Path) -> None:
    """G7: what the server does with an answer depends on the state that it gave; another state is another effect."""

    def judge(question: Mapping[str, Any]) -> Verdict:
        return APPROVE if question["request"]["leg"] else ALLOW

    async with inner_house(tmp_path, judge) as house:

        async def ask_first(exchange: Exchange) -> None:
            if b"inputResponses" in exchange.seen.body:
                await exchange.send(http(200, result_of(exchange.id)))
                return
            quote = f"quote-{len(house.forwarded)}"
            asks = result_of(exchange.id, resultType="input_required", requestState=quote)
            await exchange.send(http(200, asks))

        house.script = ask_first
        first, second = [(await house.call())[1]["result"]["requestState"] for _ in range(2)]

        def go_on(state: str) -> Asked:
            params = {"name": "pay", "arguments": {}, "requestState": state, "inputResponses": {"ok": {"yes": True}}}
            return house.request(message(params=params))

        ticket = await house.approve(go_on(first))
        other = orjson.loads((await house.serve(go_on(second))).body)
        assert other["error"]["code"] == 40303
        assert other["error"]["data"]["ticket"]["id"] != ticket
        assert len(house.forwarded) == 2
        assert (await house.serve(go_on(first))).status == 200
        assert orjson.loads(house.forwarded[-1])["params"]["requestState"] == "quote-1"


async def test_volatile_meta_is_neither_approved_nor_sent(tmp_path: Path) -> None:
    """What the configuration names as volatile may differ on repetition, and an approved call leaves without it."""
    async with inner_house(tmp_path, lambda _: APPROVE) as house:
        house.corridor.volatile_meta = frozenset({"com.example/request"})

        def ask(number: str, bound: str = "a") -> Asked:
            return house.ask(meta={**META, "com.example/request": number, "com.example/bound": bound})

        await house.approve(ask("r-1"))
        assert (await house.serve(ask("r-1", "b"))).status == 403
        assert (await house.serve(ask("r-2"))).status == 200
        (sent,) = house.forwarded
        assert (b"r-2" in sent, b"com.example/request" in sent, b"com.example/bound" in sent) == (False, False, True)


async def test_a_denied_caller_is_not_told_which_tasks_there_are(tmp_path: Path) -> None:
    """The policy's no comes first; only who may ask at all hears that there is no such task."""
    async with inner_house(tmp_path) as house:
        asked = house.request(message("tasks/get", params={"taskId": "x"}, meta=TASKS_META))
        assert orjson.loads((await house.serve(asked)).body)["error"]["code"] == -32602
        house.policy.judge_by = lambda _: DENY
        assert orjson.loads((await house.serve(asked)).body)["error"]["code"] == 40302
        assert house.forwarded == []
