"""Grants and webhooks through the real gateway: what a grant covers and what it does not, and who is told of it."""

from __future__ import annotations

import base64
import copy
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.ports.test_webhooks import snippet
from tests.rows.asking import tool
from tests.rows.conftest import furnish, opened, served, settings_of
from tests.rows.stage import House, Server, Stage, at_once, listed
from tests.support.stack import HOLD, Stack
from tests.support.upstream import Exchange, ScriptedUpstream, Seen, http

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}, "to": {"type": "string"}}}
BOUNDS = {"properties": {"n": {"maximum": 50}}}
USES = 3
PAY = {"effect": "write", "approval": {**HOLD, "grant": {"schema": BOUNDS, "uses": USES, "ttl_s": 600}}}
DATA = {"tools": {"pay": PAY, "refund": PAY, "write": {"effect": "write", "approval": HOLD}}}
SECRET = "whsec_" + base64.b64encode(os.urandom(32)).decode()


@dataclass
class Receiver:
    """Takes every message."""

    seen: list[Seen] = field(default_factory=list)

    async def take(self, exchange: Exchange) -> None:
        """A yes."""
        self.seen.append(exchange.seen)
        await exchange.send(http(204, extra="Connection: close\r\n"))
        exchange.writer.close()


@pytest.fixture(scope="module")
def receiver() -> Receiver:
    """Who is told of every ticket."""
    return Receiver()


@pytest.fixture(scope="module")
def house(stage: Stage, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway whose policy gives grants, and that tells a webhook."""
    behind = {name: [Server(listed(pay={}, refund={}, write={}))] for name in ("bank", "other")}
    wire = ScriptedUpstream(receiver.take)
    stage.run(wire.start())
    try:
        with opened(stage, [one for (one,) in behind.values()]):
            hook = {"url": f"http://127.0.0.1:{wire.port}/tickets", "secret_env": "ROWS_HOOK"}
            stack = Stack(tmp_path_factory.mktemp("grants"), {}, data=DATA, environment={"ROWS_HOOK": SECRET})
            furnish(
                stack, settings_of(behind),
                approvals={"database": "sqlite:///ostiary.db", "webhooks": [hook]},
                limits={"tickets_per_hour": 1000},
            )  # fmt: skip
            house = House(stage, stack, behind)
            house.secrets.add(SECRET.encode())
            with served(stage, stack), house.http:
                yield house
    finally:
        stage.run(wire.stop())


def granted(house: House, subject: str, name: str = "pay") -> str:
    """An approved grant of somebody's."""
    asked = {"server": "bank", "method": "tools/call", "name": name, "vary": SCHEMA, "justification": "weekly"}
    opened = house.api("POST", "", house.person(subject), asked)
    assert opened.status_code == 201, opened.text
    ticket: dict[str, Any] = opened.json()
    assert house.act("approve", ticket["id"], subject, seen=ticket["digest"]).status_code == 403, "their own"
    assert house.act("approve", ticket["id"], seen=ticket["digest"]).status_code == 200
    return str(ticket["id"])


def shown(house: House, ticket: str) -> dict[str, Any]:
    """As its approver is shown it."""
    found: dict[str, Any] = house.api("GET", f"/{ticket}").json()
    return found


def strangers(house: House) -> dict[str, Any]:
    """Calls that a grant of alice's for `pay` on `bank` does not cover -> what makes them."""
    program = house.plant(
        house.stack.issuer.mint(
            house.stack.endpoint("bank"), sub="alice", scope="mcp:use files:read files:write", client_id="another"
        )
    )
    batch = copy.deepcopy(tool("pay", n=1))
    batch["params"]["_meta"]["example.com/batch"] = "7"
    calls: dict[str, Any] = {
        "another person": lambda: house.call("bank", tool("pay", n=1), "mallory"),
        "another program": lambda: house.ask(house.good(tool("pay", n=1), "bank", program)),
        "another server": lambda: house.call("other", tool("pay", n=1)),
        "another tool": lambda: house.call("bank", tool("refund", n=1)),
        "its own _meta": lambda: house.call("bank", batch),
    }
    outside: list[dict[str, Any]] = [
        {"n": 0}, {"n": 51}, {"n": 1.5}, {"n": "1"}, {"n": True}, {"n": [1]}, {"n": 1, "more": 1}, {"N": 1},
        {"to": None}, {"n": 1, "to": {"a": 1}}, {"n": 50.000001},
    ]  # fmt: skip
    calls |= {f"outside: {one}": lambda one=one: house.call("bank", tool("pay", **one)) for one in outside}
    return calls


def test_a_grant_covers_what_it_says_and_nothing_else(house: House) -> None:
    """APR-01, APR-03, APR-04, APR-07: whoever else, wherever else, whatever else is held and burns none; in the end
    as many calls ran as it says, and each is found by its use with an effect of its own.
    """
    ticket = granted(house, "alice")
    before = len(house.forwarded())
    for what, call in strangers(house).items():
        answer = call()
        assert (answer.status, answer.json()["error"]["code"]) == (403, 40303), what
        assert answer.json()["error"]["data"]["ticket"]["id"] != ticket, what
    assert len(house.forwarded()) == before
    assert shown(house, ticket)["uses_left"] == USES
    for arguments in ({"n": 50}, {"to": "a", "n": 7.0}, {"n": 7e0, "to": "b"}):
        assert house.call("bank", tool("pay", **arguments)).status == 200
    assert house.call("bank", tool("pay", n=8)).json()["error"]["code"] == 40303
    assert len(house.forwarded()) == before + USES
    sent = [json.loads(seen.body)["params"]["arguments"] for seen in house.forwarded("bank")[-USES:]]
    assert [json.dumps(one) for one in sent] == ['{"n": 50}', '{"n": 7, "to": "a"}', '{"n": 7, "to": "b"}']
    runs = {run["use"] for run in shown(house, ticket)["runs"]}
    effects = {one["use"]: one["effect_hmac"] for one in house.records() if one["kind"] == "approval" and one["use"]}
    assert len({effects[use] for use in runs}) == USES


def test_of_parallel_calls_under_a_grant_one_runs_at_a_time(house: House) -> None:
    """APR-02: of many calls at once, alike or not, no more run than it says; nobody is told of a failure."""
    ticket = granted(house, "carl", "refund")
    before = len(house.forwarded())

    def work(number: int) -> int:
        return house.call("bank", tool("refund", n=1 + number % 5), "carl").status

    statuses = Counter(at_once(40, work))
    assert set(statuses) <= {200, 403}
    assert 1 <= statuses[200] == len(house.forwarded()) - before <= USES
    assert shown(house, ticket)["uses_left"] == USES - statuses[200]


@pytest.mark.parametrize("verb", ["revoke", "withdraw"])
def test_a_grant_that_was_taken_back_covers_nothing(house: House, verb: str) -> None:
    """APR-12: from then on a call that it covered is held."""
    subject = f"dora-{verb}"
    ticket = granted(house, subject)
    assert house.call("bank", tool("pay", n=1), subject).status == 200
    assert house.act(verb, ticket, subject).status_code == 200
    before = len(house.forwarded())
    assert house.held("bank", tool("pay", n=2), subject)["id"] != ticket
    assert len(house.forwarded()) == before
    assert shown(house, ticket)["state"] == "revoked"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"vary": {"$ref": "https://evil.example/schema"}}, 400), ({"vary": {"$ref": "file:///etc/passwd"}}, 400),
        ({"vary": {"properties": {"n": {"format": "iban"}}}}, 400), ({"vary": []}, 400),
        ({"arguments": {"n": 1}}, 400),
        ({"vary": {"properties": {f"p{n}": {"pattern": "[^a]{1040}"} for n in range(99)}}}, 400),
        ({"vary": {"allOf": [{"$ref": "#"}]}}, 400), ({"name": "write"}, 422), ({"name": "absent"}, 403),
    ],
)  # fmt: skip
def test_what_is_no_grant_is_asked_of_nobody(house: House, change: dict[str, Any], status: int) -> None:
    """A schema that nobody could hold a call to, a tool of which the policy gives none: no ticket, nobody told."""
    good = {"server": "bank", "method": "tools/call", "name": "pay", "vary": SCHEMA}
    before = len(house.api("GET", "?limit=100").json()["tickets"])
    answer = house.api("POST", "", house.person("erin"), {**good, **change})
    assert answer.status_code == status, answer.text
    assert len(house.api("GET", "?limit=100").json()["tickets"]) == before


def test_a_receiver_is_told_once_signed_and_no_value(house: House, receiver: Receiver) -> None:
    """AUD-02: each event of a held call once, believed by the documented lines; nothing planted is in it."""
    message = tool("write", path=house.argument)
    (ticket,) = {house.held("bank", message, "fred")["id"] for _ in range(5)}
    assert house.act("approve", ticket, comment=house.query).status_code == 200
    assert house.call("bank", message, "fred").status == 200
    end = time.monotonic() + 60
    while len(told := [seen for seen in receiver.seen if json.loads(seen.body)["data"]["id"] == ticket]) < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert [json.loads(seen.body)["type"] for seen in told] == ["ticket.new", "ticket.approved"]
    for seen in told:
        given = {name.lower(): value for name, value in seen.headers}
        assert snippet()(SECRET, given, seen.body, int(given["webhook-timestamp"]))
        assert not snippet()(SECRET, given, seen.body + b" ", int(given["webhook-timestamp"]))
    for seen in receiver.seen:
        assert not house.planted_in(seen.body + repr(seen.headers).encode())
    assert house.records()  # which looks through record and log for all that was planted
