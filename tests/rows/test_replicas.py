"""Two gateways on one PostgreSQL: an approval runs once, whoever dies; the database in trouble is 503 and no call.

(requirements APR-02, APR-13, OPS-06; issue 4, "Store in production".) They have the same name to the world and the
same keys, and nothing else in common: no folder, no record.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from tests.rows.asking import Ask, tool
from tests.rows.conftest import DATA, OFFERED, WRITES, furnish, opened, served, settings_of
from tests.rows.proof import passes
from tests.rows.stage import House, Server, Stage, at_once, listed
from tests.rows.test_approvals import told
from tests.support.http_raw import Answer, RawClient
from tests.support.postgres import Postgres
from tests.support.stack import Stack, body

WITHIN_S = 5.0
NUL = "nul\0"
HERE = {
    **DATA,
    "tools": {**DATA["tools"], NUL: WRITES},
    "resources": {**DATA["resources"], "demo://vault/": DATA["resources"]["demo://guarded"]},
}
USES = 100
_numbers = itertools.count(1)


@dataclass
class Replica(Stack):
    """A gateway that goes by the name of another one."""

    name: str = ""

    @property
    def url(self) -> str:
        """`public_url`, which is both gateways'."""
        return self.name or super().url


@dataclass
class Pair:
    """The two gateways, and what is behind both."""

    houses: list[House]
    server: Server
    database: Postgres
    calls: Iterator[int] = field(default_factory=itertools.count)

    def ran(self, message: dict[str, object]) -> int:
        """How often the server was asked for exactly this."""
        wanted = message["params"]["arguments"]["number"]  # type: ignore[index]
        return sum(b'"number":%d' % wanted in seen.body.replace(b" ", b"") for seen in self.server.forwarded)


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    """A server of this module's own: it is stopped, hung and killed."""
    server = Postgres(max_connections="60")
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="module")
def pair(stage: Stage, database: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both serve."""
    server = Server(listed(**{name: {} for name in (*OFFERED, NUL)}))
    first = Replica(tmp_path_factory.mktemp("first"), {}, data=HERE)
    second = Replica(
        tmp_path_factory.mktemp("second"), {}, data=HERE, name=first.url, secrets=first.secrets, issuer=first.issuer
    )
    houses = [House(stage, stack, {"plain": [server]}) for stack in (first, second)]
    name = database.create().rpartition("/")[2]
    database.sql("CREATE ROLE app LOGIN PASSWORD 'canary-of-app'")  # no superuser: their connections are limited
    database.sql(f'ALTER DATABASE "{name}" OWNER TO app')
    url = database.url_of(name, "app", "canary-of-app")
    with opened(stage, [server]):
        for stack in (first, second):
            stack.environment = {"ROWS_DATABASE": url}
            furnish(
                stack,
                settings_of({"plain": [server]}),
                public_url=first.url,
                approvals={"database_env": "ROWS_DATABASE"},
                allowed_hosts=[f"127.0.0.1:{second.port}"],
                limits={"tickets_per_hour": 100_000},
            )
        with served(stage, first), served(stage, second), houses[0].http, houses[1].http:
            yield Pair(houses, server, database)


def fresh() -> dict[str, object]:
    """A gated call that no other test makes."""
    return tool("write", number=next(_numbers) + 10_000_000)


def race(pair: Pair, message: dict[str, object]) -> list[tuple[Answer, float]]:
    """The same call, a hundred times at once over both gateways, on connections of their own: answers and seconds."""
    houses = [pair.houses[number % 2] for number in range(USES)]
    asks = [house.good(message).encode() for house in houses]
    clients = [RawClient(house.address, 60) for house in houses]
    try:
        for client, house in zip(clients, houses, strict=True):  # connected before the race begins
            line = house.good().lines[0]
            hello = Ask(b"/.well-known/oauth-protected-resource/plain/mcp", (line,), verb=b"GET")
            assert client.ask(hello.encode()).status == 200

        def post(number: int) -> tuple[Answer, float]:
            began = time.monotonic()
            answer = clients[number].ask(asks[number])
            return answer, time.monotonic() - began

        return at_once(USES, post)
    finally:
        for client in clients:
            client.close()


def one_runs(pair: Pair) -> float:
    """A race for one approval -> how many seconds the slowest of those who lost it took."""
    message = fresh()
    pair.houses[next(pair.calls) % 2].approved("plain", message)
    answers = race(pair, message)
    assert Counter(answer.status for answer, _ in answers) == {200: 1, 403: USES - 1}
    assert pair.ran(message) == 1
    lost = [(answer, seconds) for answer, seconds in answers if answer.status == 403]
    assert {answer.json()["error"]["code"] for answer, _ in lost} <= {40303, 40304}
    tickets = {answer.json()["error"]["data"]["ticket"]["id"] for answer, _ in lost}
    assert len(tickets) <= 2, "besides the one that is used the losers share one at most"
    return max(seconds for _, seconds in lost)


def test_uses_of_one_approval_over_two_gateways_are_one_call(pair: Pair) -> None:
    """APR-02: of a hundred at once exactly one reaches the server; each other gets 403 in a second; nobody a 5xx."""
    slowest = [one_runs(pair) for _ in range(3)]
    while sum(seconds < 1.0 for seconds in slowest) < 3 and len(slowest) < 9:
        slowest.append(one_runs(pair))  # whatever else this machine does may take a round; `soak` holds all to it
    assert sum(seconds < 1.0 for seconds in slowest) >= 3, slowest


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_hundred_rounds_are_two_hundred_calls(pair: Pair) -> None:
    """APR-02, the whole: 200 rounds × 100 uses, exactly 200 calls."""
    before = len(pair.server.forwarded)
    assert max(one_runs(pair) for _ in range(200)) < 1.0
    assert len(pair.server.forwarded) == before + 200


def test_a_ticket_is_every_gateways(pair: Pair) -> None:
    """Asked for at one, approved at another, used at either; a repetition attaches to the one ticket anywhere."""
    for here, there in (pair.houses, pair.houses[::-1]):
        message = fresh()
        held = here.held("plain", message)
        assert there.held("plain", message)["id"] == held["id"]
        assert here.act("approve", held["id"]).status_code == 200
        assert there.call("plain", message).status == 200
        assert here.call("plain", message).json()["error"]["code"] == 40303
        assert pair.ran(message) == 1


def test_a_name_that_the_database_can_not_keep_is_no_trouble(pair: Pair) -> None:
    """A tool and a URI with a NUL in their names: 403 `unapprovable` at the call, 422 ahead of it, and no 5xx."""
    house = pair.houses[0]
    before = len(pair.server.forwarded)
    house.held("plain", fresh())
    answer = house.call("plain", tool(NUL, number=1))
    assert told(answer) == (403, 40304), answer
    assert answer.json()["error"]["data"]["why"] == "unapprovable"
    house.held("plain", body("resources/read", {"uri": "demo://vault/a"}))
    outside = house.call("plain", body("resources/read", {"uri": "demo://vault/a\0"}))
    assert told(outside) == (403, 40302), "the shipped policy names no such URI"
    asked = {"server": "plain", "method": "tools/call", "name": NUL, "arguments": {}}
    ahead = house.api("POST", "", house.person("alice"), asked)
    assert (ahead.status_code, ahead.json()["error"]) == (422, "unapprovable")
    assert len(pair.server.forwarded) == before
    odd = house.stack.person(scope="approvals:read", groups=["a\0", "b"])
    assert house.api("GET", "", odd).status_code == 200


def kill_at_random(pair: Pair, rounds: int) -> None:
    first, second = pair.houses
    used = Counter[str]()
    for _ in range(rounds):
        message = fresh()
        ticket = second.approved("plain", message)
        ask = first.good(message).encode()
        first.readiness()
        (victim, *_) = first.stage.run(first.stack.worker_pids())
        with ThreadPoolExecutor(1) as aside:
            asking = aside.submit(lost, first, ask)
            time.sleep(random.random() * 0.03)
            kill(victim)
            asking.result(30)
        again = second.call("plain", message)
        assert pair.ran(message) <= 1, "executed twice"
        assert (again.status, told(again)[1]) in ((200, 0), (403, 40303), (403, 40304)), again
        assert pair.ran(message) == 1 or again.status == 403
        first.stage.run(first.stack.until_ready(60))
        states = [run["state"] for run in second.api("GET", f"/{ticket}").json()["runs"]]
        used[" ".join(states)] += 1
        assert len(states) == 1
    assert set(used) <= {"executed", "unknown", "failed"}, used


def lost(house: House, ask: bytes) -> None:
    """Ask, and hear nothing, perhaps."""
    try:
        house.ask(ask)
    except (OSError, EOFError, AssertionError, ValueError):
        return


def kill(pid: int) -> None:
    """kill -9 of a worker."""
    os.kill(pid, signal.SIGKILL)


def test_a_gateway_that_dies_anywhere_leaves_no_second_call(pair: Pair) -> None:
    """APR-13: kill -9 at any moment of a call; the same call at the other gateway: never two executions."""
    kill_at_random(pair, 4)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_gateway_that_dies_a_hundred_times(pair: Pair) -> None:
    """APR-13, the whole."""
    kill_at_random(pair, 100)


def break_database(pair: Pair, how: str) -> None:
    """The database is in this trouble."""
    if how == "down":
        pair.database.stop()
    elif how == "hung":
        pair.database.pause()
    else:
        pair.database.sql("ALTER SYSTEM SET default_transaction_read_only = on")
        pair.database.sql("SELECT pg_reload_conf()")
        time.sleep(0.3)


def mend_database(pair: Pair, how: str) -> None:
    """The trouble is over."""
    if how == "down":
        pair.database.start()
    elif how == "hung":
        pair.database.resume()
    else:
        pair.database.sql("ALTER SYSTEM RESET default_transaction_read_only")
        pair.database.sql("SELECT pg_reload_conf()")


@pytest.mark.parametrize("how", ["down", "hung", "read-only"])
def test_without_the_database_nothing_gated_runs(pair: Pair, how: str) -> None:
    """APR-13, OPS-06: 503 50303 within the limit and no call; all else goes on; back within 5 s of its return."""
    message = fresh()
    pair.houses[0].approved("plain", message)
    for house in pair.houses:
        passes(house)
    before = len(pair.server.forwarded)
    break_database(pair, how)
    try:
        for house in pair.houses:
            for held in (message, fresh()):
                began = time.monotonic()
                answer = house.call("plain", held)
                assert told(answer) == (503, 50303), answer
                assert answer.values("retry-after") == ["5"]
                assert time.monotonic() - began < 3.0
        assert len(pair.server.forwarded) == before
        for house in pair.houses:
            assert house.ask(house.good()).status == 200, "what needs no approval does not wait for one"
            end = time.monotonic() + 10
            while "approvals" not in house.readiness()[1]["degraded"]:
                assert time.monotonic() < end
                time.sleep(0.05)
            assert house.readiness()[0] == 200, "a shared dependency that fails is no reason to take a worker away"
    finally:
        mend_database(pair, how)
    end = time.monotonic() + WITHIN_S
    while (answer := pair.houses[1].call("plain", message)).status == 503:
        assert time.monotonic() < end, "the database is back and not used"
        time.sleep(0.05)
    assert answer.status == 200
    assert pair.ran(message) == 1
    assert pair.houses[0].call("plain", message).status == 403


def test_a_server_without_a_connection_left_runs_nothing(pair: Pair) -> None:
    """APR-13, pool exhausted: 503 within the limit and no call, all else goes on; served once there is room again."""
    house, message = pair.houses[0], fresh()
    house.approved("plain", message)
    before, database = len(pair.server.forwarded), pair.database
    database.sql("ALTER ROLE app WITH CONNECTION LIMIT 0")
    try:
        database.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
        asked = [message, *(fresh() for _ in range(11))]
        began = time.monotonic()
        answers = at_once(len(asked), lambda number: house.call("plain", asked[number]))
        assert [told(answer) for answer in answers] == [(503, 50303)] * len(asked)
        assert time.monotonic() - began < 6.0
        assert len(pair.server.forwarded) == before
        assert house.ask(house.good()).status == 200
    finally:
        database.sql("ALTER ROLE app WITH CONNECTION LIMIT -1")
    end = time.monotonic() + WITHIN_S
    while (answer := house.call("plain", message)).status == 503:
        assert time.monotonic() < end, "there is room and it is not used"
        time.sleep(0.05)
    assert answer.status == 200
    assert pair.ran(message) == 1


def flap(pair: Pair, rounds: int, on_s: float, off_s: float) -> None:
    for number in range(rounds):
        message = fresh()
        end = time.monotonic() + WITHIN_S
        while pair.houses[0].call("plain", message).status == 503:
            assert time.monotonic() < end, f"round {number}: errors did not end"
        pair.houses[0].approved("plain", message)
        (pair.database.kill if number % 2 else pair.database.stop)()
        off = time.monotonic() + off_s
        while time.monotonic() < off:
            for house in pair.houses:
                assert house.call("plain", message).status == 503
        assert pair.ran(message) == 0
        pair.database.start()
        on = time.monotonic() + on_s
        end = time.monotonic() + WITHIN_S
        while (answer := pair.houses[number % 2].call("plain", message)).status == 503:
            assert time.monotonic() < end, f"round {number}: errors did not end"
        assert answer.status == 200
        while time.monotonic() < on:
            for house in pair.houses:
                assert house.call("plain", message).status == 403
        assert pair.ran(message) == 1


def test_a_database_that_comes_and_goes_is_used_while_it_is_there(pair: Pair) -> None:
    """OPS-06, small: nothing passes that should not, and errors end within 5 s of each return."""
    flap(pair, 3, 0.5, 0.5)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_database_that_comes_and_goes_for_ten_minutes(pair: Pair) -> None:
    """OPS-06, the whole: on and off every 30 s for 10 minutes."""
    flap(pair, 10, 30, 30)


def test_credentials_of_the_database_are_nowhere(pair: Pair) -> None:
    """AUD-02: neither log nor record nor an answer has its password, in good times and in bad."""
    secret = b"canary-of-app"
    for house in pair.houses:
        files = [house.stack.folder / "gateway.log", *house.audit_files]
        assert all(file.stat().st_size for file in files)
        assert not [file for file in files if secret in file.read_bytes()]
