"""A gateway whose parts fail: policy, record, store, keys, itself (AZ-01, AUD-07, APR-12, JWT-12; overload, limits).

Its policy is one of its own: it can be made to loop and to answer nonsense. Its audit is on a file system of its own
that can be filled up. Every test leaves it well.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.contract.refusals import Refusal
from tests.rows.asking import tool
from tests.rows.conftest import furnish, opened, served, settings_of
from tests.rows.proof import passes, refused
from tests.rows.stage import SECOND, House, Server, Stage, listed
from tests.rows.test_approvals import bare, told
from tests.support.disk import file_system, fill
from tests.support.http_raw import RawClient
from tests.support.issuer import JwksServer
from tests.support.stack import ISSUER, Stack
from tests.support.upstream import Exchange, http

BREAKING = Path(__file__).parent / "breaking"
DEFECT = "planted-text-of-an-exception"
CONCURRENT, AT_ONCE, TICKETS = 12, 8, 8
_numbers = itertools.count(1)

POLICY = """
package mcp.authz

import rego.v1

name := input.request.name

hold := {"approvers": ["user:%(issuer)s|%(approver)s"], "min_approvers": 1, "uses": 1, "ttl_s": 600}

decision := {"effect": "allow", "scopes": ["files:read"], "reasons": ["allowed"]} if {
	name in {"read", "defect"}
	not heavy
}

decision := {"effect": "approve", "scopes": ["files:write"], "reasons": ["held"], "approval": hold} if {
	name == "write"
	not input.request.arguments.kind == "%(denied)s"
}

decision := {"effect": "maybe"} if name == "nonsense"

decision := {"effect": "allow", "scopes": "files:read", "reasons": []} if name == "scopes as text"

decision := {"effect": "allow", "scopes": [], "reasons": ["listed"], "visible": ["read", "write"]} if {
	input.phase == "list"
}

decision := {"effect": "deny", "scopes": [], "reasons": ["unlisted"]} if {
	not name in {"read", "defect", "write", "nonsense", "scopes as text", "undefined"}
	input.phase == "call"
}

decision := {"effect": "deny", "scopes": [], "reasons": ["withdrawn"]} if {
	name == "write"
	input.request.arguments.kind == "%(denied)s"
}

heavy if {
	input.request.arguments.heavy == true
	count([1 | some a in numbers.range(1, 100000); some b in numbers.range(1, 100000); a + b == 0]) > 0
}
"""
NAMES = ("read", "write", "nonsense", "scopes as text", "undefined", "defect")


def write_policy(folder: Path, *, revision: str, denied: str = "-", approver: str = "bob") -> None:
    """This module's own bundle."""
    authz = folder / "bundle" / "mcp" / "authz"
    text = POLICY % {"issuer": ISSUER, "approver": approver, "denied": denied}
    (authz / "authz.rego").write_text(text)
    (authz / "data.json").write_text("{}")
    (folder / "bundle" / ".manifest").write_text(json.dumps({"revision": revision, "roots": ["mcp/authz"]}))


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small file system of its own."""
    # Less than the mebibyte that the record takes ahead: it would have all the room for itself where it comes first.
    with file_system(tmp_path_factory.mktemp("disk"), "900k") as folder:
        yield folder


@pytest.fixture(scope="module")
def jwks(stage: Stage) -> Iterator[JwksServer]:
    """An issuer's keys over HTTP, not there yet."""

    async def make() -> JwksServer:
        return JwksServer()

    server = stage.run(make())
    yield server
    stage.run(server.stop())


@pytest.fixture(scope="module")
def ailing(stage: Stage, disk: Path, jwks: JwksServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One worker, one server, and everything that it depends on within reach of the tests."""
    folder = tmp_path_factory.mktemp("ailing")
    tools = listed(**{name: {} for name in NAMES})
    behind = {"plain": [Server(tools)], "moved": [Server(tools)]}
    path = os.pathsep.join([str(BREAKING), str(BREAKING.parents[2])])
    stack = Stack(folder, {}, environment={"ROWS_DEFECT": DEFECT, "PYTHONPATH": path})
    with opened(stage, [one for replicas in behind.values() for one in replicas]):
        house = House(stage, stack, behind)
        house.secrets.add(DEFECT.encode())
        house.audit_folder = disk
        stage.run(jwks.listen())
        jwks.routes["/jwks"] = house.second.jwks()
        furnish(
            stack,
            settings_of(behind),
            identity={
                "issuers": [
                    {"issuer": ISSUER, "jwks_file": "jwks.json", "algorithms": ["ES256"]},
                    {"issuer": SECOND, "jwks_uri": f"{jwks.url}/jwks", "algorithms": ["ES256"]},
                ]
            },
            audit={"file": str(disk / "audit.jsonl")},
            limits={"concurrent": CONCURRENT, "concurrent_per_subject": AT_ONCE, "tickets_per_hour": TICKETS},
        )
        write_policy(folder, revision="first")
        with served(stage, stack), house.http:
            yield house


@pytest.fixture
def house(ailing: House, request: pytest.FixtureRequest) -> Iterator[House]:
    """Well before each test, and after it."""
    passes(ailing)
    before = len(ailing.records())
    yield ailing
    await_ready(ailing)
    passes(ailing)
    reasons = {record["reasons"][0] for record in ailing.records()[before:] if record["reasons"]}
    owed = {refusal.reason for mark in request.node.iter_markers("provokes") for refusal in mark.args}
    assert owed <= reasons


def await_ready(house: House) -> None:
    """Until the gateway says that it is ready."""
    end = time.monotonic() + 60
    while house.readiness()[0] != 200:
        assert time.monotonic() < end, house.readiness()
        time.sleep(0.02)


def subject() -> str:
    """Somebody who has opened no ticket yet."""
    return f"caller-{next(_numbers)}"


def change(**arguments: Any) -> dict[str, Any]:
    """A gated call that no other test makes."""
    return tool("write", number=next(_numbers), **arguments)


# The policy


def evaluators(house: House) -> list[int]:
    """The children of the worker that judge."""
    (worker,) = house.stage.run(house.stack.worker_pids())
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == worker and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def timed(house: House, message: dict[str, Any]) -> tuple[tuple[int, int], list[str], float]:
    """(status and code), Retry-After, seconds."""
    began = time.monotonic()
    answer = house.call("plain", message)
    return told(answer), answer.values("retry-after"), time.monotonic() - began


@pytest.mark.provokes(Refusal.POLICY_UNAVAILABLE)
def test_a_policy_that_does_not_end_is_a_refusal_within_a_second(house: House) -> None:
    """AZ-01, AZ-07: 503 50302 with Retry-After, no server asked; others are served meanwhile, and after it."""
    before = len(house.forwarded())
    took = []
    for _ in range(3):
        status, retry, seconds = timed(house, tool("read", heavy=True))
        assert (status, retry) == ((503, 50302), ["1"])
        took.append(seconds)
    assert min(took) < 1.0, "a busy machine makes one late, and not each of three"
    assert len(house.forwarded()) == before


@pytest.mark.provokes(Refusal.POLICY_UNAVAILABLE)
def test_others_are_judged_while_one_question_does_not_end(house: House) -> None:
    """AZ-07: the loop is not blocked, and nobody waits behind the heavy one."""

    def longest() -> float:
        took = []
        with RawClient(house.address, 30) as client:
            client.send(house.good(tool("read", heavy=True)).encode())
            time.sleep(0.05)
            for _ in range(5):
                began = time.monotonic()
                passes(house)
                took.append(time.monotonic() - began)
            assert client.read_answer().status == 503
        return max(took)

    assert any(longest() < 0.4 for _ in range(3)), "a busy machine makes one late, and not one of each five"


@pytest.mark.provokes(Refusal.POLICY_UNAVAILABLE)
def test_evaluators_that_hang_are_a_refusal_and_are_replaced(house: House) -> None:
    """AZ-01: SIGSTOP for all of them: 503 within a second; then it recovers by itself."""
    before = len(house.forwarded())
    hung = evaluators(house)
    assert len(hung) == 2
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    status, retry, seconds = timed(house, tool("read", path="hang"))
    assert (status, retry) == ((503, 50302), ["1"])
    assert seconds < 1.0
    assert len(house.forwarded()) == before
    await_served(house)
    assert not set(hung) & set(evaluators(house))


def await_served(house: House) -> None:
    """Until a good call is served again; until then it is refused for the policy's sake, and quickly."""
    end = time.monotonic() + 20
    while True:
        status, _, seconds = timed(house, tool("read", path="again"))
        assert seconds < 1.0
        if status[0] == 200:
            return
        assert status == (503, 50302)
        assert time.monotonic() < end


def test_evaluators_that_are_killed_come_back(house: House) -> None:
    """AZ-01: kill -9 for all of them, again and again: each call is served or 503 within a second, never a 500."""
    for _ in range(3):
        before = len(house.forwarded())
        for pid in evaluators(house):
            os.kill(pid, signal.SIGKILL)
        status, _, seconds = timed(house, tool("read", path="killed"))
        assert status in ((200, 0), (503, 50302))
        assert len(house.forwarded()) == before + (status[0] == 200)
        assert seconds < 1.0
        await_served(house)


@pytest.mark.provokes(Refusal.POLICY_UNAVAILABLE)
@pytest.mark.parametrize("name", ["nonsense", "scopes as text", "undefined"])
def test_an_answer_that_is_no_verdict_is_a_refusal(house: House, name: str) -> None:
    """G6: malformed and undefined are refusals, never an allow."""
    refused(house, house.good(tool(name)), Refusal.POLICY_UNAVAILABLE)


# The record


@pytest.mark.provokes(Refusal.AUDIT_UNAVAILABLE)
def test_without_a_record_nothing_is_done(house: House, disk: Path) -> None:
    """AUD-07: full disk: 503 within 2 s, no server asked, not ready; refusals stay; it returns by itself."""
    approved = change()
    caller = subject()
    ticket = house.approved("plain", approved, caller)
    pending = house.held("plain", change(), caller)["id"]
    asked = house.good(change(), token=house.token("plain", caller))
    before = len(house.forwarded())
    filler = fill(disk)
    try:
        end = time.monotonic() + 30
        while True:  # what a page of the file system still holds is used up first
            began = time.monotonic()
            answer = house.ask(house.good(tool("read", path="unrecorded")))
            if answer.status != 200:
                break
            assert time.monotonic() < end
        before = len(house.forwarded())
        assert told(answer) == (503, 50304)
        assert answer.values("retry-after") == ["5"]
        assert time.monotonic() - began < 2.0
        for _ in range(3):
            began = time.monotonic()
            assert told(house.ask(house.good())) == (503, 50304)
            assert time.monotonic() - began < 2.0
        assert told(house.call("plain", approved, caller)) == (503, 50304)
        assert told(house.ask(house.good(tool("nowhere")))) == (403, 40302), "a refusal needs no record to be one"
        assert house.ask(house.good().line(b"Authorization")).status == 401
        assert house.ask(asked).status in (503,), "no ticket is opened without its record"
        given = house.act("approve", pending)
        assert given.status_code == 503, given.text
        end = time.monotonic() + 10
        while True:
            status, answer_ = house.readiness()
            if status == 503:
                break
            assert time.monotonic() < end
            time.sleep(0.02)
        assert answer_["workers"][0]["missing"] == ["audit"]
        assert len(house.forwarded()) == before
    finally:
        filler.unlink()
    await_ready(house)
    passes(house)
    assert house.api("GET", f"/{pending}").json()["state"] == "pending", "nobody had approved it"
    end = time.monotonic() + 10
    while not [
        one for one in house.records() if one["kind"] == "refusal" and one["reasons"][0] == "audit_unavailable"
    ]:
        assert time.monotonic() < end
        time.sleep(0.05)
    verified = house.ostiary("audit", "verify", "--config", str(house.stack.config))
    assert verified.returncode == 0, verified.stdout
    # The use of the approved call was consumed before its record failed, and not a byte had left.
    assert house.api("GET", f"/{ticket}").json()["state"] in ("approved", "used")


# The store


@pytest.mark.provokes(Refusal.APPROVALS_UNAVAILABLE)
def test_without_the_store_nothing_gated_runs(house: House) -> None:
    """APR-13: locked by somebody else: 503 50303 and no call; all else goes on; it returns by itself."""
    caller = subject()
    message = change()
    ticket = house.approved("plain", message, caller)
    before = len(house.forwarded())
    lock = sqlite3.connect(house.stack.folder / "ostiary.db", isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")
        for held in (message, change()):
            answer = house.call("plain", held, caller)
            assert told(answer) == (503, 50303)
            assert answer.values("retry-after") == ["5"]
        assert len(house.forwarded()) == before
        passes(house)
        end = time.monotonic() + 10
        while "approvals" not in house.readiness()[1]["degraded"]:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert house.readiness()[0] == 200, "a shared dependency that fails is no reason to take the worker away"
    finally:
        lock.close()
    assert house.call("plain", message, caller).status == 200
    assert [run["state"] for run in house.api("GET", f"/{ticket}").json()["runs"]] == ["executed"]


# The gateway itself


@pytest.mark.provokes(Refusal.INTERNAL_ERROR)
def test_a_defect_refuses_and_gives_nothing_away(house: House) -> None:
    """500 -32603; the exception's text reaches neither the caller nor the log; the record has its type."""
    answer = refused(house, house.good(tool("defect")), Refusal.INTERNAL_ERROR)
    (record,) = house.records_of(answer.values("ostiary-decision")[0])
    assert record["detail"] == "ZeroDivisionError"
    end = time.monotonic() + 10
    while "ZeroDivisionError" not in house.stack.log():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.provokes(Refusal.OVERLOADED)
def test_what_is_too_much_is_refused_early(house: House) -> None:
    """OPS-04: beyond the limit 503 50305 with Retry-After before anything is asked; afterwards all is as before."""
    go_on = asyncio.Event()
    server = house.behind["plain"][0]

    async def wait(exchange: Exchange) -> None:
        await asyncio.wait_for(go_on.wait(), 30)
        await exchange.send(http(200, server.result(exchange)))

    clients = []
    before = len(house.forwarded())
    with ExitStack() as stack, server.playing(wait):
        for number in range(CONCURRENT):
            client = stack.enter_context(RawClient(house.address, 30))
            client.send(house.good(token=house.token("plain", f"at once {number % 2}")).encode())
            clients.append(client)
        await_forwarded(house, before + CONCURRENT)
        evaluations = house.evaluations()
        answer = house.ask(house.good())
        assert told(answer) == (503, 50305)
        assert answer.values("retry-after") == ["1"]
        assert house.evaluations() == evaluations
        assert len(house.forwarded()) == before + CONCURRENT
        house.stage.run(_set(go_on))
        assert [client.read_answer().status for client in clients] == [200] * CONCURRENT
    passes(house)


@pytest.mark.provokes(Refusal.CALLER_BUSY)
def test_one_subject_leaves_room_for_others(house: House) -> None:
    """OPS-04: beyond its own limit a subject gets 429 42902 with Retry-After, whatever client it comes with, before
    its body is read; everybody else and the operators are served; afterwards it is as before."""
    go_on = asyncio.Event()
    server = house.behind["plain"][0]
    mine = house.good(token=house.token("plain", "eager"))

    async def wait(exchange: Exchange) -> None:
        if b'"slow"' in exchange.seen.body:
            await asyncio.wait_for(go_on.wait(), 30)
        await exchange.send(http(200, server.result(exchange)))

    before = len(house.forwarded())
    with ExitStack() as stack, server.playing(wait):
        clients = [stack.enter_context(RawClient(house.address, 30)) for _ in range(AT_ONCE)]
        slow = house.good(tool("read", path="slow"), token=house.token("plain", "eager"))
        for client in clients:
            client.send(slow.encode())
        await_forwarded(house, before + AT_ONCE)
        evaluations = house.evaluations()
        elsewhere = house.plant(
            house.stack.issuer.mint(house.stack.endpoint("plain"), sub="eager", scope="mcp:use", client_id="another")
        )
        for ask in (mine, house.good(token=elsewhere)):
            answer = house.ask(ask)
            assert told(answer) == (429, 42902)
            assert answer.values("retry-after") == ["1"]
        assert house.evaluations() == evaluations
        assert len(house.forwarded()) == before + AT_ONCE
        passes(house, house.good(token=house.token("plain", "patient")))
        assert house.readiness()[0] == 200
        await_said(house, f"ostiary_busiest_subject_requests {float(AT_ONCE)}")
        house.stage.run(_set(go_on))
        assert [client.read_answer().status for client in clients] == [200] * AT_ONCE
    passes(house, mine)


def await_said(house: House, line: str) -> None:
    """Until the metrics have this line."""
    end = time.monotonic() + 20
    while line not in house.metrics().splitlines():
        assert time.monotonic() < end
        time.sleep(0.05)


def await_forwarded(house: House, count: int) -> None:
    """Until the servers saw so many requests."""
    end = time.monotonic() + 20
    while len(house.forwarded()) < count:
        assert time.monotonic() < end
        time.sleep(0.01)


async def _set(event: asyncio.Event) -> None:
    event.set()


@pytest.mark.provokes(Refusal.RATE_LIMITED)
def test_one_requester_opens_so_many_tickets(house: House) -> None:
    """Beyond the limit 429 with Retry-After and no ticket; at the API as well; others are not concerned."""
    caller = subject()
    for _ in range(TICKETS):
        house.held("plain", change(), caller)
    answer = refused(house, house.good(change(), token=house.token("plain", caller)), Refusal.RATE_LIMITED)
    assert "ticket" not in answer.json()["error"]["data"]
    asked = {"server": "plain", "method": "tools/call", "name": "write", "arguments": {"ahead": 1}}
    assert house.api("POST", "", house.person(caller), asked).status_code == 429
    house.held("plain", change(), subject())


# Stopping, and what changes while it is down


def test_a_stop_lets_calls_finish(house: House) -> None:
    """OPS-01, small: on SIGTERM not ready at once; a slow call gets its answer and its end in the record; exit 0."""
    go_on = asyncio.Event()
    server = house.behind["plain"][0]

    async def wait(exchange: Exchange) -> None:
        await asyncio.wait_for(go_on.wait(), 30)
        await exchange.send(http(200, server.result(exchange)))

    before = len(house.forwarded())
    with server.playing(wait), RawClient(house.address, 30) as client:
        client.send(house.good().encode())
        while len(house.forwarded()) == before:
            time.sleep(0.005)
        stopping = house.stage.submit(house.stack.stop())
        end = time.monotonic() + 5
        while house.readiness()[0] != 503:
            assert time.monotonic() < end
            time.sleep(0.01)
        house.stage.run(_set(go_on))
        answer = client.read_answer()
    assert answer.status == 200
    assert stopping.result(30) == 0
    records = house.records_of(answer.values("ostiary-decision")[0])
    assert [record["kind"] for record in records] == ["decision", "outcome"]
    house.stage.run(house.stack.launch())


def relaunch(house: House) -> Future[None]:
    """Start again, without waiting until it is ready."""
    return house.stage.submit(house.stack.launch())


@pytest.mark.provokes(Refusal.KEYS_UNAVAILABLE)
def test_it_is_not_ready_until_all_keys_are_there(house: House, jwks: JwksServer) -> None:
    """JWT-12: keys that can't be had at the start: 503 for their issuer's tokens, never an anonymous caller."""
    claims: dict[str, Any] = {"sub": "alice", "scope": "files:read"}
    token = house.plant(house.second.mint(house.stack.endpoint("plain"), **claims))
    passes(house, house.good(token=token))
    assert house.stage.run(house.stack.stop()) == 0
    house.stage.run(jwks.stop())
    ready = relaunch(house)
    end = time.monotonic() + 30
    while True:
        try:
            status, answer = house.readiness()
            if answer["workers"][0]["missing"] == ["keys"]:
                break
        except (OSError, LookupError, ValueError):
            pass
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("httpx", "httpcore"):
                raise
        assert time.monotonic() < end
        assert not ready.done()
        time.sleep(0.05)
    assert status == 503
    refusal = house.ask(house.good(token=token))
    assert told(refusal) == (503, 50301)
    assert refusal.values("retry-after") == ["5"]
    stranger = house.plant(house.second.mint(house.stack.endpoint("plain"), key=house.stack.issuer.keys[0], **claims))
    assert house.ask(house.good(token=stranger)).status in (401, 503)
    house.stage.run(jwks.listen())
    ready.result(40)
    passes(house, house.good(token=token))
    house.stage.run(jwks.stop())
    passes(house, house.good(token=token))
    house.stage.run(jwks.listen())


def test_an_approval_is_worth_what_the_policy_still_says(house: House) -> None:
    """APR-12, APR-07: at dispatch the policy denies, the approver would not do, the environment is another: 403.

    The positive twin: an approval that nothing changed for outlives the restart, and is used.
    """
    config = house.stack.config
    caller, folder = subject(), house.stack.folder
    kept, denied, moved = change(), change(kind="denied now"), change()
    for server, message in (("plain", kept), ("plain", denied), ("moved", moved)):
        house.approved(server, message, caller)
    document = yaml.safe_load(config.read_text())
    assert house.stage.run(house.stack.stop()) == 0
    try:
        write_policy(folder, revision="second", denied="denied now")
        changed = json.loads(json.dumps(document))
        changed["servers"]["moved"]["environment"] = "production"
        config.write_text(yaml.safe_dump(changed))
        house.stage.run(house.stack.launch())
        before = len(house.forwarded())
        answer = house.call("plain", denied, caller)
        assert told(answer) == (403, 40302)
        passes(house)
        (record,) = house.records_of(answer.values("ostiary-decision")[0])
        assert record["policy_revision"] == "second"
        assert 'ostiary_policy_info{revision="second"} 1.0' in house.metrics()
        assert told(house.call("moved", moved, caller)) == (403, 40303)
        assert len(house.forwarded()) == before + 1
        assert house.call("plain", kept, caller).status == 200

        other = change()
        house.approved("plain", other, caller)
        assert house.stage.run(house.stack.stop()) == 0
        write_policy(folder, revision="third", approver="carol")
        config.write_text(yaml.safe_dump(document))
        house.stage.run(house.stack.launch())
        before = len(house.forwarded())
        lost = house.call("plain", other, caller)
        assert told(lost) == (403, 40303), "bob would no longer do"
        assert bare(lost)["data"]["ticket"]["state"] == "pending"
        assert len(house.forwarded()) == before
        assert house.call("moved", moved, caller).status == 403
        ticket = lost.json()["error"]["data"]["ticket"]["id"]
        assert house.act("approve", ticket).status_code in (403, 404)
        assert house.act("approve", ticket, "carol").status_code == 200
        assert house.call("plain", other, caller).status == 200
    finally:
        house.stage.run(house.stack.stop())
        write_policy(folder, revision="first")
        config.write_text(yaml.safe_dump(document))
        house.stage.run(house.stack.launch())
