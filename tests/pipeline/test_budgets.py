"""The policy's limits in the corridor: what counts, what does not, and what the caller is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from approvals.allowance import Allowance, Taken
from approvals.ticket import StoreUnavailable
from gateway.audit.port import AuditUnavailable
from gateway.budgets import Budgets, OneOfSeveral
from policies.verdict import Limit, Verdict
from tests.contract.asking import message
from tests.pipeline.house import ALLOW, APPROVE, DENY, InnerHouse, inner_house, tool, until
from tests.support.upstream import Exchange

DAILY = Limit("daily", ("server", "subject", "name"), 2, 86_400)
BUDGETED = replace(ALLOW, limits=(DAILY,))


async def refused(house: InnerHouse, status: int = 429) -> dict[str, object]:
    """A call that is not forwarded -> the error."""
    before = len(house.forwarded)
    found, body = await house.call()
    assert (found, len(house.forwarded)) == (status, before), body
    error: dict[str, object] = body["error"]
    return error


async def test_the_call_after_the_last_is_refused_and_told_when_the_window_ends(tmp_path: Path) -> None:
    """429 42901 with the budget's name and the seconds until it is free; the record says the same."""
    async with inner_house(tmp_path, lambda _: BUDGETED) as house:
        for _ in range(2):
            assert (await house.call())[0] == 200
        reply = await house.serve()
        error = orjson.loads(reply.body)["error"]
        after_s = int(dict(reply.headers)[b"retry-after"])
        assert (reply.status, error["code"], error["data"]["budget"]) == (429, 42901, "daily")
        assert 86_390 <= after_s <= 86_400
        assert str(after_s) in error["message"]
        record = house.sink.of("refusal")[-1]
        assert record["reasons"][0] == "rate_limited"
        assert "budget daily" in record["detail"]
        assert len(house.forwarded) == 2


async def test_everybody_and_every_tool_has_a_count_of_its_own_where_the_limit_says_so(tmp_path: Path) -> None:
    """`per` names what is counted apart; what it does not name is counted together."""
    verdict = [BUDGETED]
    async with inner_house(tmp_path, lambda _: verdict[0]) as house:
        body = message(params={"name": "pay", "arguments": {}})

        async def of(sub: str = "alice") -> int:
            return (await house.serve(house.request(body, sub=sub))).status

        assert [await of() for _ in range(3)] == [200, 200, 429]
        assert await of("mallory") == 200
        assert (await house.call("secret"))[0] == 200
        together = replace(DAILY, name="all", per=("server",), count=3)
        verdict[0] = replace(ALLOW, limits=(together,))
        assert [await of(), await of("mallory"), (await house.call("secret"))[0]] == [200, 200, 200]
        assert [await of("carol"), (await house.call("secret"))[0]] == [429, 429]


async def test_what_is_refused_otherwise_costs_nothing(tmp_path: Path) -> None:
    """Denied, not as the tool wants it, held for a person, not recorded: none of these is counted."""
    verdict: list[Verdict] = [BUDGETED]
    async with inner_house(tmp_path, lambda _: verdict[0]) as house:
        house.tools.append(tool("strict", inputSchema={"type": "object", "required": ["a"]}))
        for refusing in (
            replace(DENY, limits=(DAILY,)),
            replace(BUDGETED, scopes=("none:such",)),
            replace(APPROVE, limits=(DAILY,)),
        ):
            verdict[0] = refusing
            for _ in range(3):
                assert (await house.call())[0] == 403
        verdict[0] = BUDGETED
        for _ in range(3):
            assert (await house.call("strict"))[1]["result"]["isError"]
        house.sink.broken = AuditUnavailable("full")
        for _ in range(3):
            assert (await house.call())[0] == 503
            await house.corridor.delivery.drain()
        house.sink.broken = None
        assert not house.forwarded
        assert [(await house.call())[0] for _ in range(3)] == [200, 200, 429]


async def test_a_client_that_goes_before_its_call_is_decided_costs_nothing(tmp_path: Path) -> None:
    """Its count is given back like its approval."""
    async with inner_house(tmp_path, lambda _: replace(BUDGETED, limits=(replace(DAILY, count=1),))) as house:
        house.sink.gate = asyncio.Event()
        serving = asyncio.create_task(house.serve())
        await until(lambda: any(one.in_flight for one in [house.corridor]) and bool(house.policy.questions))
        await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait({serving})
        house.sink.gate = None
        await house.corridor.delivery.drain()
        assert (await house.call())[0] == 200
        await refused(house)


async def test_a_spent_budget_consumes_no_approval(tmp_path: Path) -> None:
    """Counted before the use is taken: when the window is over, the approval is still there."""
    verdict = [APPROVE]
    async with inner_house(tmp_path, lambda _: verdict[0]) as house:
        ticket = await house.approve(house.ask())
        verdict[0] = replace(BUDGETED, limits=(replace(DAILY, count=1),))
        assert (await house.call())[0] == 200
        verdict[0] = replace(APPROVE, limits=(replace(DAILY, count=1),))
        await refused(house)
        assert (await house.ticket(ticket))["uses_left"] == 1
        verdict[0] = APPROVE
        assert (await house.call())[0] == 200
        assert (await house.ticket(ticket))["uses_left"] == 0


async def test_an_approved_call_counts_once(tmp_path: Path) -> None:
    """Not while it waits for its approval, and once when it runs."""
    async with inner_house(tmp_path, lambda _: replace(APPROVE, limits=(replace(DAILY, count=1),))) as house:
        await house.approve(house.ask())
        await house.corridor.delivery.drain()
        assert (await house.call())[0] == 200
        await refused(house)


class Away:
    """A counter that can't count."""

    async def take(self, allowances: Sequence[Allowance]) -> tuple[Taken, ...]:  # noqa: ARG002 - the port's
        """Never."""
        raise StoreUnavailable("gone")

    async def give_back(self, taken: Sequence[Taken]) -> None:  # noqa: ARG002 - the port's
        """Never."""
        raise StoreUnavailable("gone")


async def test_who_cannot_count_refuses(tmp_path: Path) -> None:
    """A store that is away: 503 50303. Several workers that count apart: 503 50302. Without limits both serve."""
    verdict = [BUDGETED]
    async with inner_house(tmp_path, lambda _: verdict[0]) as house:
        for counter, code in ((Away(), 50303), (OneOfSeveral(), 50302)):
            house.corridor.budgets = Budgets(counter)
            assert (await refused(house, 503))["code"] == code
        verdict[0] = ALLOW
        assert (await house.call())[0] == 200


async def test_what_cannot_be_given_back_stays_counted(tmp_path: Path) -> None:
    """Too high is safe, and nobody is answered worse for it."""
    async with inner_house(tmp_path, lambda _: replace(APPROVE, limits=(DAILY,))) as house:
        counter = house.corridor.budgets.counter
        house.corridor.budgets = budgets = Budgets(counter)

        class Half(Away):
            async def take(self, allowances: Sequence[Allowance]) -> tuple[Taken, ...]:
                return await counter.take(allowances)

        budgets.counter = Half()
        assert [(await house.call())[0] for _ in range(3)] == [403, 403, 429]


async def test_a_call_whose_server_did_not_answer_was_counted(tmp_path: Path) -> None:
    """It was admitted: whatever became of it, it may have had its effect."""
    async with inner_house(tmp_path, lambda _: BUDGETED) as house:

        async def gone(exchange: Exchange) -> None:
            exchange.reset()

        house.script = gone
        assert [(await house.call())[0] for _ in range(3)] == [502, 502, 429]


@pytest.mark.parametrize("window_s", [1, 86_400])
async def test_another_window_is_another_budget(tmp_path: Path, window_s: int) -> None:
    """A changed count holds in the window that runs; a changed window begins anew."""
    verdict = [BUDGETED]
    async with inner_house(tmp_path, lambda _: verdict[0]) as house:
        assert [(await house.call())[0] for _ in range(3)] == [200, 200, 429]
        verdict[0] = replace(ALLOW, limits=(replace(DAILY, count=3, window_s=window_s),))
        assert [(await house.call())[0] for _ in range(2)] == ([200, 429] if window_s == 86_400 else [200, 200])
