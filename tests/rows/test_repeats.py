"""Idempotency keys over the wire: what is refused under one, and what is told again, by the real gateway."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from gateway.contract.refusals import Refusal
from tests.rows.asking import Ask, tool
from tests.rows.proof import passes, refused
from tests.rows.stage import House
from tests.support.http_raw import Answer, RawClient
from tests.support.stack import body
from tests.support.upstream import Exchange, Script, http, result_of

HEADER = b"Idempotency-Key"
ROOTS: Mapping[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"roots": {}}}


@pytest.fixture
def key(house: House) -> str:
    """A key that shows up nowhere: neither in record, log, metrics nor an answer."""
    made = f"planted-key-{os.urandom(8).hex()}"
    house.secrets.add(made.encode())
    return made


@contextmanager
def playing(house: House, script: Script) -> Iterator[None]:
    """Every replica answers so meanwhile."""
    with ExitStack() as stack:
        for server in house.behind["plain"]:
            stack.enter_context(server.playing(script))
        yield


def under(house: House, key: str, path: str = "a") -> Ask:
    """A call under a key."""
    return house.good(tool("read", path=path)).line(HEADER, key.encode())


def replays(house: House, ask: Ask, first: Answer) -> Answer:
    """Told again: nothing is sent, and the record says of what decision it is."""
    before = len(house.forwarded())
    again = house.ask(ask)
    assert again.status == first.status
    assert len(house.forwarded()) == before
    ran = first.values("ostiary-decision")[0]
    assert again.values("ostiary-replay-of") == [ran]
    told = house.await_records(again.values("ostiary-decision")[0], "decision", "outcome")
    assert [one["replay_of"] for one in told] == [ran, ran]
    assert told[1]["outcome"] == "replayed"
    return again


def test_a_repetition_gets_the_outcome_of_the_first(house: House, key: str) -> None:
    """The same result under another id; requests are counted as replayed; one keyed call was kept."""
    first = passes(house, under(house, key))
    again = replays(house, under(house, key).edit(lambda message: message.update(id="again")), first)
    assert (again.json()["id"], again.json()["result"]) == ("again", first.json()["result"])
    shown = house.metrics()
    assert 'reason="replayed"' in shown
    assert 'ostiary_keyed_calls_total{end="kept"}' in shown
    assert not house.planted_in(shown.encode())


@pytest.mark.provokes(Refusal.IDEMPOTENCY_KEY_INVALID)
def test_a_key_that_is_none_is_refused_before_anything_is_asked(house: House, key: str) -> None:
    """Empty, too long, or two readings: 400 -32602; on a method that keys mean nothing for, it is not looked at."""
    for bad in (b"", b'""', b"a b", b"x" * 256):
        refused(house, house.good().line(HEADER, bad), Refusal.IDEMPOTENCY_KEY_INVALID)
    refused(house, under(house, key).more(HEADER, key.encode()), Refusal.IDEMPOTENCY_KEY_INVALID)
    passes(house, house.good(body("prompts/get", {"name": "greet"}, 7)).line(HEADER, b"a b"))


@pytest.mark.provokes(Refusal.IDEMPOTENCY_CONFLICT)
def test_another_request_under_a_key_is_a_conflict(house: House, key: str) -> None:
    """Other arguments, another tool: 409 40901; the first outcome stands. Another caller has keys of its own."""
    first = passes(house, under(house, key))
    refused(house, under(house, key, "b"), Refusal.IDEMPOTENCY_CONFLICT)
    refused(house, house.good(tool("café")).line(HEADER, key.encode()), Refusal.IDEMPOTENCY_CONFLICT)
    others = house.good(tool("read", path="b"), token=house.token("plain", "carol")).line(HEADER, key.encode())
    passes(house, others)
    replays(house, under(house, key), first)


@pytest.mark.provokes(Refusal.IDEMPOTENCY_IN_FLIGHT)
def test_a_call_that_runs_is_not_run_again(house: House, key: str) -> None:
    """409 40902 with `Retry-After: 2` while it runs, by whichever connection; its outcome afterwards."""
    go_on = asyncio.Event()
    server = house.behind["plain"][0]

    async def wait(exchange: Exchange) -> None:
        if b'"slow"' in exchange.seen.body:
            await asyncio.wait_for(go_on.wait(), 30)
        await exchange.send(http(200, server.result(exchange)))

    before = len(house.forwarded())
    with RawClient(house.address, 30) as client, playing(house, wait):
        client.send(under(house, key, "slow").encode())
        house.stage.run(_until(lambda: len(house.forwarded()) > before))
        answer = refused(house, under(house, key, "slow"), Refusal.IDEMPOTENCY_IN_FLIGHT)
        assert answer.values("retry-after") == ["2"]
        house.stage.run(_set(go_on))
        first = client.read_answer()
    replays(house, under(house, key, "slow"), first)


@pytest.mark.provokes(Refusal.IDEMPOTENCY_UNKNOWN, Refusal.UPSTREAM_UNREACHABLE)
def test_a_call_whose_end_nobody_knows_is_not_run_again(house: House, key: str) -> None:
    """The server took it and broke off: 409 40904 from then on."""

    async def broken(exchange: Exchange) -> None:
        exchange.reset()

    with playing(house, broken):
        assert house.ask(under(house, key)).status == 502
    refused(house, under(house, key), Refusal.IDEMPOTENCY_UNKNOWN)


@pytest.mark.provokes(Refusal.IDEMPOTENCY_NOT_KEPT)
def test_an_answer_that_is_too_large_is_not_kept(house: House, key: str) -> None:
    """The caller gets it; a repetition is told that the call has ended, how, and why it gets no more: 409 40905."""

    async def large(exchange: Exchange) -> None:
        text = [{"type": "text", "text": "x" * 270_000}]
        await exchange.send(http(200, result_of(exchange.id, content=text)))

    with playing(house, large):
        passes(house, under(house, key))
    data = refused(house, under(house, key), Refusal.IDEMPOTENCY_NOT_KEPT).json()["error"]["data"]
    assert (data["outcome"], data["why"]) == ("executed", "too_large")


@pytest.mark.provokes(Refusal.IDEMPOTENCY_ASKED)
def test_a_call_that_waits_for_answers_is_not_begun_again(house: House, key: str) -> None:
    """409 40903 for the first leg again; the next leg goes on under the key and is the outcome."""

    async def asks(exchange: Exchange) -> None:
        question = {"q": {"method": "roots/list", "params": {}}}
        asked = {"resultType": "input_required", "inputRequests": question, "requestState": "theirs"}
        await exchange.send(http(200, result_of(exchange.id, **asked)))

    def declaring(ask: Ask) -> Ask:
        return ask.edit(lambda message: message["params"]["_meta"].update(ROOTS))

    first = declaring(under(house, key))
    with playing(house, asks):
        state = house.ask(first).json()["result"]["requestState"]
    refused(house, first, Refusal.IDEMPOTENCY_ASKED)
    leg = {"requestState": state, "inputResponses": {"q": {"roots": []}}}
    last = first.edit(lambda message: message["params"].update(leg))
    replays(house, last, passes(house, last))


async def _set(event: asyncio.Event) -> None:
    event.set()


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
