"""Two workers, two replicas: every call may land anywhere, an approval runs once (must-show 5, APR-02, APR-09)."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rows.asking import Ask, tool
from tests.rows.conftest import DATA, furnish, offered, opened, served, settings_of
from tests.rows.stage import House, Server, Stage, at_once
from tests.rows.test_upstream import asking_first, eliciting
from tests.support.http_raw import Answer, RawClient
from tests.support.stack import Stack

ROUNDS = 3


@pytest.fixture(scope="module")
def pair(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two workers, two replicas, one store."""
    behind = {"plain": [Server(offered()), Server(offered())]}
    stack = Stack(tmp_path_factory.mktemp("pair"), {}, workers=2, data=DATA)
    with opened(stage, behind["plain"]):
        furnish(stack, settings_of(behind))
        house = House(stage, stack, behind)
        with served(stage, stack), house.http:
            yield house


def posts(house: House, message: dict[str, Any], count: int) -> list[tuple[Answer, float]]:
    """The same call, `count` times at once on connections of their own: answers and seconds."""
    ask = house.good(message)
    hello = Ask(b"/.well-known/oauth-protected-resource/plain/mcp", (ask.lines[0],), verb=b"GET").encode()
    clients = [RawClient(house.address, 60) for _ in range(count)]
    try:
        for client in clients:  # connected before the race begins, and spread over the workers
            assert client.ask(hello).status == 200

        def post(number: int) -> tuple[Answer, float]:
            began = time.monotonic()
            answer = clients[number].ask(ask.encode())
            return answer, time.monotonic() - began

        return at_once(count, post)
    finally:
        for client in clients:
            client.close()


def test_two_hundred_calls_at_once_are_all_right(pair: House) -> None:
    """Must-show 5: 200 concurrent calls, each with its own id and argument; both replicas and both workers served."""
    before = [len(server.forwarded) for server in pair.behind["plain"]]
    pair.token()
    answers = at_once(200, lambda number: pair.ask(pair.good(tool("read", number, path=f"p{number}"))))
    assert [answer.status for answer in answers] == [200] * 200
    assert [answer.json()["id"] for answer in answers] == list(range(200))
    share = [len(server.forwarded) - count for server, count in zip(pair.behind["plain"], before, strict=True)]
    assert sum(share) == 200
    assert min(share) > 20, share
    decisions = {answer.values("ostiary-decision")[0] for answer in answers}
    assert len(decisions) == 200
    end = time.monotonic() + 20
    while True:
        found = [record for record in pair.records() if record["decision_id"] in decisions]
        if len(found) == 400 or time.monotonic() > end:
            break
        time.sleep(0.05)
    assert Counter(record["kind"] for record in found) == {"decision": 200, "outcome": 200}
    assert {record["writer"] for record in found} == {0, 1}


def test_consecutive_calls_land_anywhere(pair: House) -> None:
    """No affinity: the same caller's calls in a row, on one connection, go to both replicas."""
    before = [len(server.forwarded) for server in pair.behind["plain"]]
    ask = pair.good(tool("read", path="in a row")).encode()
    with RawClient(pair.address, 60) as client:
        assert [client.ask(ask).status for _ in range(10)] == [200] * 10
    share = [len(server.forwarded) - count for server, count in zip(pair.behind["plain"], before, strict=True)]
    assert share == [5, 5]


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_a_hundred_uses_of_one_approval_are_one_call(pair: House, round_: int) -> None:
    """APR-02: exactly one reaches a server; each other gets 403 in less than a second, and nobody a 5xx."""
    message = tool("write", race=round_)
    ticket = pair.approved("plain", message)
    before = len(pair.forwarded())
    answers = posts(pair, message, 100)
    assert Counter(answer.status for answer, _ in answers) == {200: 1, 403: 99}
    assert len(pair.forwarded()) == before + 1
    losers = [(answer.json()["error"]["code"], seconds) for answer, seconds in answers if answer.status == 403]
    assert {code for code, _ in losers} <= {40303, 40304}
    assert max(seconds for _, seconds in losers) < 1.0
    shown = pair.api("GET", f"/{ticket}").json()
    assert (shown["state"], shown["uses_left"], [run["state"] for run in shown["runs"]]) == ("used", 0, ["executed"])
    tickets = pair.api("GET", "?limit=100").json()["tickets"]
    same = [one for one in tickets if one["arguments"] == {"race": round_}]
    assert len(same) <= 2, "the losers share one new ticket at most"


def test_a_hundred_answers_to_one_question_are_one_leg(pair: House) -> None:
    """APR-02, APR-09: over two workers one continuation of an approved call reaches a server; each other gets 403 in
    less than a second, and one `complete` result is all that the approval gives."""
    message = eliciting("write", arguments={"asked": "once"})
    ticket = pair.approved("plain", message)
    with pair.behind["plain"][0].playing(asking_first), pair.behind["plain"][1].playing(asking_first):
        question = pair.call("plain", message).json()["result"]
        answer = {"name": {"action": "accept", "content": {}}}
        again = {**message["params"], "requestState": question["requestState"], "inputResponses": answer}
        before = len(pair.forwarded())
        answers = posts(pair, {**message, "params": again}, 100)
    assert Counter(one.status for one, _ in answers) == {200: 1, 403: 99}
    assert len(pair.forwarded()) == before + 1
    assert {one.json()["error"]["code"] for one, _ in answers if one.status == 403} == {40304}
    assert max(seconds for one, seconds in answers if one.status == 403) < 1.0
    shown = pair.api("GET", f"/{ticket}").json()
    assert (shown["state"], [run["state"] for run in shown["runs"]]) == ("used", ["executed"])


def test_tickets_are_one_store_for_all_workers(pair: House) -> None:
    """Asked for at one worker, approved at another, used at any: no worker keeps anything to itself."""
    for number in range(4):
        message = tool("write", spread=number)
        pair.approved("plain", message)
        assert pair.call("plain", message).status == 200


def test_a_worker_that_dies_is_replaced_and_its_chain_goes_on(pair: House) -> None:
    """A crash of one is seen and counted; calls go on, and every chain verifies afterwards."""
    (victim, *_) = pair.stage.run(pair.stack.worker_pids())
    os.kill(victim, signal.SIGKILL)
    end = time.monotonic() + 30
    while True:
        status, answer = pair.readiness()
        pids = [worker["pid"] for worker in answer["workers"] if worker["ready"]]
        if len(pids) == 2 and victim not in pids:
            break
        assert time.monotonic() < end, answer
        assert status == 200, "one worker is enough to be ready"
        time.sleep(0.05)
    restarts = [line for line in pair.metrics().splitlines() if line.startswith("ostiary_worker_restarts")]
    assert [float(line.split()[1]) for line in restarts] == [1.0]
    for _ in range(6):
        assert pair.call("plain", tool("read", path="after the death")).status == 200
    verified = pair.ostiary("audit", "verify", "--config", str(pair.stack.config))
    assert verified.returncode == 0, verified.stdout
    whole = [line for line in verified.stdout.splitlines() if ": whole, " in line]
    assert len(whole) == 2, verified.stdout
