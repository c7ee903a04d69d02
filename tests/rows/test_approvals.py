"""Approvals through HTTP and the command: rows APR-01, 03, 04, 07, 10, 11, 12, restored uses, who is shown what."""

from __future__ import annotations

import copy
import itertools
import json
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.contract.refusals import Refusal
from tests.rows.asking import encoded, tool
from tests.rows.proof import passes, refused
from tests.rows.stage import House, at_once
from tests.rows.table import NAME
from tests.support.http_raw import Answer
from tests.support.stack import body
from tests.support.upstream import Exchange

_numbers = itertools.count(1)


def change(tool_name: str = "write", **arguments: Any) -> dict[str, Any]:
    """A gated call that no other test makes."""
    return tool(tool_name, number=next(_numbers), **arguments)


def told(answer: Answer) -> tuple[int, int]:
    """Status and code."""
    return answer.status, answer.json()["error"]["code"] if "error" in answer.json() else 0


def bare(answer: Answer) -> dict[str, Any]:
    """An error without what differs from ticket to ticket."""
    error: dict[str, Any] = copy.deepcopy(answer.json()["error"])
    error["data"].pop("decisionId")
    page, day = error["data"]["ticket"]["page"], error["data"]["ticket"]["expiresAt"][:10]
    assert page in error["message"]
    error["message"] = error["message"].replace(page, "PAGE").partition(day)[0]
    for member in ("id", "page", "expiresAt"):
        error["data"]["ticket"].pop(member)
    return error


def runs(house: House, ticket: str) -> list[str]:
    """The outcomes of a ticket's uses."""
    return [run["state"] for run in house.api("GET", f"/{ticket}").json()["runs"]]


def transitions(house: House, ticket: str, count: int) -> list[str]:
    """What the record says that happened to a ticket, once that are `count` things."""
    end = time.monotonic() + 20
    while True:
        moved = [one for one in house.records() if one["kind"] == "approval" and one["ticket"] == ticket]
        if len(moved) >= count or time.monotonic() > end:
            return [one["transition"] for one in moved]
        time.sleep(0.02)


@pytest.mark.provokes(Refusal.APPROVAL_REQUIRED)
def test_an_approval_is_used_once_and_all_that_is_none_looks_the_same(house: House) -> None:
    """APR-01: exactly one call reaches the server; used, expired, revoked, foreign and unknown share one body."""
    message = change()
    ticket = house.approved("odd", message)
    before = len(house.forwarded("odd"))
    answer = house.call("odd", message)
    assert answer.status == 200
    decision = answer.values("ostiary-decision")[0]
    assert [record["ticket"] for record in house.await_records(decision, "decision", "outcome")] == [ticket] * 2
    used = house.call("odd", message)

    short = change("brief")
    house.approved("odd", short)
    expires = time.monotonic() + 2.2
    taken_back = change()
    assert house.act("revoke", house.approved("odd", taken_back)).status_code == 200
    revoked = house.call("odd", taken_back)

    foreign = change()
    house.approved("odd", foreign)
    others = house.call("odd", foreign, "mallory")
    unknown = house.call("odd", change())
    time.sleep(max(0.0, expires - time.monotonic()))
    expired = house.call("odd", short)

    for answer in (used, revoked, others, unknown, expired):
        assert told(answer) == (403, 40303)
        assert bare(answer) == bare(unknown)
    assert len(house.forwarded("odd")) == before + 1
    assert house.call("odd", foreign).status == 200, "and the owner's is not burned"
    assert house.api("GET", f"/{ticket}").json()["state"] == "used"
    assert runs(house, ticket) == ["executed"]


def test_what_is_sent_is_what_was_approved(house: House) -> None:
    """G7: the arguments go out in the canonical text that was digested, whatever spelling came in."""
    message = change(b=[1, 2.5, "\u00e9"], a={"z": None, "y": True})
    house.approved("odd", message)
    assert house.call("odd", message).status == 200
    sent = house.forwarded("odd")[-1].body.decode()
    number = message["params"]["arguments"]["number"]
    assert f'"arguments":{{"a":{{"y":true,"z":null}},"b":[1,2.5,"\u00e9"],"number":{number}}}' in sent


def spellings(text: bytes) -> dict[str, bytes]:
    """Other texts of the same arguments `{"number":N,"list":[1,"abc"],"deep":{"a":1,"b":2}}`."""
    return {
        "other order": text.replace(b'"deep":{"a":1,"b":2}', b'"deep":{"b":2,"a":1}'),
        "blanks": text.replace(b'"list":', b' "list"\n:\t').replace(b"[1,", b"[ 1 , "),
        "escapes": text.replace(b'"abc"', rb'"\u0061b\u0063"'),
        "a name in escapes": text.replace(b'"deep"', rb'"\u0064eep"'),
        "a float": text.replace(b"[1,", b"[1.0,"),
        "an exponent": text.replace(b"[1,", b"[1e0,"),
    }


@pytest.mark.parametrize("name", spellings(b""))
def test_another_spelling_is_the_same_call(house: House, name: str) -> None:
    """APR-04: reordered keys, white space, escapes have the same RFC 8785 digest."""
    message = change(list=[1, "abc"], deep={"a": 1, "b": 2})
    house.approved("odd", message)
    ask = house.good(message, "odd")
    respelled = replace(ask, body=spellings(ask.body)[name])
    assert respelled.body != ask.body
    assert house.ask(respelled).status == 200


def mutations(value: Any) -> Iterator[Any]:
    """The value with any one leaf changed, re-typed, removed, or with one member added."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield {name: other for name, other in value.items() if name != key}
            yield {**{name: other for name, other in value.items() if name != key}, key.upper(): one}
            for changed in mutations(one):
                yield {**value, key: changed}
        yield {**value, "more": None}
    elif isinstance(value, list):
        yield [*value, None]
        for at, one in enumerate(value):
            yield [*value[:at], *value[at + 1 :]]
            for changed in mutations(one):
                yield [*value[:at], changed, *value[at + 1 :]]
        if len(value) > 1:
            yield value[::-1]
    else:
        yield from ([value], {"": value})
        match value:
            case str():
                yield from (value + " ", value.upper(), unicodedata.normalize("NFD", value), None)
            case bool():
                yield from (not value, int(value), str(value).lower())
            case int() | float():
                yield from (value + 1, -value, str(value), value + 0.5)
            case None:
                yield from (False, 0, "", "null")


def test_any_other_arguments_are_another_call(house: House) -> None:
    """APR-03: every leaf changed, added, removed or re-typed, NFC against NFD: 403, nothing sent, nothing burned."""
    arguments: dict[str, Any] = {
        "path": "caf\u00e9/A",
        "n": 7,
        "f": 0.5,
        "ok": True,
        "none": None,
        "list": [1, "x"],
        "deep": {"a": {"b": "c"}},
    }
    message = change(**arguments)
    ticket = house.approved("odd", message)
    before = len(house.forwarded("odd"))
    own = message["params"]["arguments"]
    changed = {json.dumps(one, sort_keys=True): one for one in mutations(own)}
    changed.pop(json.dumps(own, sort_keys=True), None)
    assert len(changed) > 60
    for one in changed.values():
        other = {**message, "params": {**message["params"], "arguments": one}}
        answer = house.call("odd", other)
        assert told(answer) == (403, 40303), one
    assert len(house.forwarded("odd")) == before
    assert house.api("GET", f"/{ticket}").json()["uses_left"] == 1
    assert house.call("odd", message).status == 200


def test_meta_of_the_callers_own_is_part_of_the_effect(house: House) -> None:
    """design.md: keys that are not the protocol's own are bound, and the protocol's own are not."""
    message = change()
    message["params"]["_meta"]["example.com/dry-run"] = True
    house.approved("odd", message, "meta-subject")
    for other in (False, None):
        changed = copy.deepcopy(message)
        changed["params"]["_meta"]["example.com/dry-run"] = other
        assert told(house.call("odd", changed, "meta-subject")) == (403, 40303)
    changed = copy.deepcopy(message)
    changed["params"]["_meta"]["progressToken"] = 1
    assert house.call("odd", changed, "meta-subject").status == 200


def test_an_approval_is_bound_to_who_what_and_where(house: House) -> None:
    """APR-07: other subject, same subject of another issuer, other tool, server, environment: 403 each."""
    message = change()
    house.approved("odd", message, "bound")
    claims: dict[str, Any] = {"sub": "bound", "scope": "mcp:use files:read files:write", "client_id": "tests"}
    stranger = house.plant(house.second.mint(house.stack.endpoint("odd"), **claims))
    other_client = house.plant(house.stack.issuer.mint(house.stack.endpoint("odd"), **{**claims, "client_id": "x"}))
    erase = copy.deepcopy(message)
    erase["params"]["name"] = "erase"
    before = len(house.forwarded())
    for name, answer in {
        "other subject": house.call("odd", message, "boundx"),
        "other issuer": house.ask(house.good(message, "odd", stranger)),
        "other client": house.ask(house.good(message, "odd", other_client)),
        "other tool": house.call("odd", erase, "bound"),
        "other server": house.call("plain", message, "bound"),
        "other environment": house.call("other", message, "bound"),
    }.items():
        assert told(answer) == (403, 40303), name
    assert len(house.forwarded()) == before
    assert house.call("odd", message, "bound").status == 200


def test_a_tool_that_changed_needs_a_new_approval(house: House) -> None:
    """APR-10: schema or description changed between approval and use: 403, and the page shows the new definition."""
    server = house.behind["moody"][0]
    message = change()
    ticket = house.approved("moody", message)
    digest = house.api("GET", f"/{ticket}").json()["tool_digest"]
    before = len(house.forwarded("moody"))
    original = server.tools
    try:
        server.tools = [{**one, "description": "and now it deletes"} for one in original]
        end = time.monotonic() + 20
        while True:
            time.sleep(2.1)  # a listing counts for 2 s at least
            held = house.held("moody", message)
            shown = house.api("GET", f"/{held['id']}").json()
            if shown["tool_digest"] != digest:
                break
            assert time.monotonic() < end
        assert held["id"] != ticket
        assert len(house.forwarded("moody")) == before
    finally:
        server.tools = original


def test_nobody_finds_a_ticket_by_guessing(house: House) -> None:
    """APR-11: any other spelling of an id answers exactly like one that is absent, to everybody."""
    ticket = house.approved("odd", change())
    assert len(ticket) * 6 >= 128
    absent = house.api("GET", "/" + "A" * 24)
    assert absent.status_code == 404
    guesses = [ticket[:-1], ticket + "A", ticket.swapcase(), ticket + "%00", ticket + "=", "%2e%2e", ticket + "/"]
    for at in range(len(ticket)):
        guesses.append(ticket[:at] + ("A" if ticket[at] != "A" else "B") + ticket[at + 1 :])
    for guess in guesses:
        for verb, path in (("GET", f"/{guess}"), ("POST", f"/{guess}/approve")):
            answer = house.api(verb, path, content={} if verb == "POST" else None)
            assert (answer.status_code, answer.text) == (404, absent.text), guess
    foreign = house.api("GET", f"/{ticket}", token=house.person("carol"))
    assert (foreign.status_code, foreign.text) == (404, absent.text)
    assert house.act("approve", ticket, "carol").text == absent.text
    assert house.api("GET", f"/{ticket}").json()["id"] == ticket


def test_whoever_asks_does_not_decide(house: House) -> None:
    """APR-12: the requester is refused, also where the policy names nobody else; a stranger sees no ticket."""
    message = change()
    ticket = house.held("odd", message)["id"]
    own = house.act("approve", ticket, "alice")
    assert (own.status_code, own.json()["error"]) == (403, "own_request")
    assert house.act("deny", ticket, "alice").status_code == 403
    assert told(house.call("odd", message)) == (403, 40303)
    assert house.act("approve", ticket).status_code == 200
    assert house.act("approve", ticket).status_code == 409, "what is decided is decided"
    assert house.call("odd", message).status == 200


def test_a_person_without_the_scope_decides_nothing(house: House) -> None:
    """APR-12: a role that is not in the token."""
    ticket = house.held("odd", change())["id"]
    reader = house.person("bob", "approvals:read")
    answer = house.api("POST", f"/{ticket}/approve", reader, {})
    assert (answer.status_code, answer.json()["error"]) == (403, "insufficient_scope")
    assert 'scope="approvals:decide"' in answer.headers["www-authenticate"]
    assert house.api("GET", f"/{ticket}").json()["state"] == "pending"


@pytest.mark.provokes(Refusal.APPROVAL_REFUSED)
def test_a_denial_holds(house: House) -> None:
    """The same call is refused with the reason, without a new ticket, until the ticket expires."""
    message = change()
    ticket = house.held("odd", message)["id"]
    assert house.act("deny", ticket).status_code == 200
    answer = refused(
        house,
        house.good(message, "odd"),
        Refusal.APPROVAL_REFUSED,
        twin=house.good(server="odd"),
        reasons=("denied",),
    )
    assert answer.json()["error"]["data"]["ticket"]["id"] == ticket
    assert answer.json()["error"]["data"]["ticket"]["state"] == "denied"


def test_the_same_call_attaches_to_the_one_ticket(house: House) -> None:
    """design.md: one pending ticket an effect, however often it is asked for."""
    message = change()
    assert len({house.held("odd", message)["id"] for _ in range(4)}) == 1


def test_an_approval_can_be_asked_for_ahead(house: House) -> None:
    """`POST /approvals`, then the identical call runs; the ticket says who, what, where and why."""
    message = change(path="ahead")
    asked = {
        "server": "odd", "method": "tools/call", "name": "write",
        "arguments": message["params"]["arguments"], "justification": "because",
    }  # fmt: skip
    before = len(house.forwarded())
    opened = house.api("POST", "", house.person("alice"), asked)
    assert opened.status_code == 201, opened.text
    ticket = opened.json()
    assert ticket["requester"] == {"issuer": house.stack.issuer.name, "subject": "alice", "client": "tests"}
    assert (ticket["state"], ticket["justification"], ticket["environment"]) == ("pending", "because", "test")
    assert house.api("POST", "", house.person("alice"), asked).status_code == 200, "it is the same one again"
    assert house.held("odd", message)["id"] == ticket["id"]
    assert len(house.forwarded()) == before
    assert house.act("approve", ticket["id"]).status_code == 200
    assert house.call("odd", message).status == 200


@pytest.mark.parametrize("named", [{"server": "nowhere"}, {"name": "hidden"}, {"name": "absent"}, {"name": "read"}])
def test_what_can_not_be_approved_can_not_be_asked_for(house: House, named: dict[str, str]) -> None:
    """What the person would be denied, and what needs nobody's word, opens no ticket."""
    good = {"server": "odd", "method": "tools/call", "name": "write", "arguments": {"ahead": next(_numbers)}}
    assert house.api("POST", "", house.person("alice"), good).status_code == 201
    answer = house.api("POST", "", house.person("alice"), {**good, **named})
    assert answer.status_code in (403, 422), answer.text
    assert "ticket" not in answer.text


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400), (b"[]", 400), (b"{", 400), (b'{"server":"odd","server":"odd"}', 400), (b'{"x":1}', 400),
        (b'{"server":1,"method":"tools/call","name":"write"}', 400), (b"[" * 100_000, 400),
        (b'{"server":"odd","method":"tools/list","name":"write"}', 400), (b"\xff", 400),
        (b'{"server":"odd","method":"tools/call","name":"\\ud800"}', 400),
        (b'{"a":' * 70 + b"1" + b"}" * 70, 400), (b" " * 1_100_000, 413),
    ],
)  # fmt: skip
def test_the_api_reads_as_strictly_as_the_endpoint(house: House, content: bytes, status: int) -> None:
    """One reading, known members, known types; never a 500, and the next request works."""
    headers = {"Authorization": f"Bearer {house.person('alice')}", "Content-Type": "application/json"}
    answer = house.http.post(f"{house.stack.url}/approvals", headers=headers, content=content)
    assert answer.status_code == status, answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert house.api("GET").status_code == 200


def test_an_argument_beyond_53_bits_is_not_approvable(house: House) -> None:
    """design.md: readers would disagree about it; 400 -32602, ahead of the call and at the call."""
    asked = {"server": "odd", "method": "tools/call", "name": "write", "arguments": {"n": 2**53}}
    answer = house.api("POST", "", house.person("alice"), asked)
    assert answer.status_code == 400, answer.text
    assert told(house.call("odd", tool("write", n=2**53))) == (400, -32602)


def test_what_the_policy_masks_nobody_is_shown(house: House) -> None:
    """Not the API, not the command, not the store at rest; the server gets it all the same."""
    secret = "planted-masked-value-7d1f"
    house.secrets.add(secret.encode())
    message = change("masked", secret=secret, path="shown")
    ticket = house.held("odd", message)["id"]
    for answer in (house.api("GET", f"/{ticket}"), house.api("GET"), house.act("approve", ticket)):
        assert answer.status_code == 200
        assert secret not in answer.text
        assert "/secret" in answer.text
    shown = house.ostiary("approvals", "show", ticket, "--config", str(house.stack.config))
    assert shown.returncode == 0, shown.stderr
    assert "shown" in shown.stdout
    assert secret not in shown.stdout
    for file in house.stack.folder.glob("ostiary.db*"):
        at_rest = file.read_bytes()
        assert secret.encode() not in at_rest
        assert b'"shown"' not in at_rest
    before = len(house.forwarded("odd"))
    assert house.call("odd", message).status == 200
    assert secret in house.forwarded("odd")[before].body.decode()


def test_a_use_of_which_nothing_was_sent_is_given_back(house: House) -> None:
    """Both replicas refuse connections: 502, and the identical call runs later without a new approval."""
    servers = house.behind["frail"]
    message = change()
    passes(house, house.good(server="frail"))
    ticket = house.approved("frail", message)
    for server in servers:
        house.stage.run(server.wire.stop())
    try:
        for _ in range(3):
            answer = house.call("frail", message)
            assert told(answer) == (502, 50201)
            records = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")
            assert (records[1]["outcome"], records[1]["ticket"]) == ("failed", ticket)
            assert house.api("GET", f"/{ticket}").json()["uses_left"] == 1
    finally:
        for server in servers:
            house.stage.run(server.wire.start())
    before = len(house.forwarded("frail"))
    assert house.call("frail", message).status == 200
    assert len(house.forwarded("frail")) == before + 1
    wanted = ["request", "approve", *["claim", "sent", "restore"] * 3, "claim", "sent", "executed"]
    assert transitions(house, ticket, len(wanted)) == wanted


def test_a_use_of_which_something_was_sent_is_not(house: House) -> None:
    """The server got the request and broke: `unknown`, 40304, no new ticket, until a person has looked into it."""

    async def breaks(exchange: Exchange) -> None:
        exchange.reset()

    message = change()
    ticket = house.approved("odd", message)
    before = len(house.forwarded("odd"))
    with house.behind["odd"][0].playing(breaks):
        assert told(house.call("odd", message)) == (502, 50201)
    again = house.call("odd", message)
    assert told(again) == (403, 40304)
    assert again.json()["error"]["data"]["ticket"]["id"] == ticket
    assert len(house.forwarded("odd")) == before + 1
    assert runs(house, ticket) == ["unknown"]
    assert house.act("resolve", ticket, comment="").status_code == 400, "not without a word"
    assert house.act("resolve", ticket).status_code == 200
    anew = house.call("odd", message)
    assert told(anew) == (403, 40303)
    assert anew.json()["error"]["data"]["ticket"]["id"] != ticket


@pytest.mark.parametrize(
    "message",
    [
        body("prompts/get", {"name": "guarded", "arguments": {"b": "1", "a": "2"}}, 7),
        body("resources/read", {"uri": "demo://guarded"}, 7),
    ],
    ids=["a prompt", "a resource"],
)
def test_prompts_and_resources_wait_for_a_person_too(house: House, message: dict[str, Any]) -> None:
    """APR-01 for the other two kinds: held, approved, run once."""
    caller = f"reader-{next(_numbers)}"
    ticket = house.approved("odd", message, caller)
    before = len(house.forwarded("odd"))
    assert house.call("odd", message, caller).status == 200
    assert told(house.call("odd", message, caller)) == (403, 40303)
    assert len(house.forwarded("odd")) == before + 1
    assert runs(house, ticket) == ["executed"]


@pytest.mark.parametrize("kind", ["prompts/get", "resources/read"])
def test_names_of_the_other_kinds_are_not_approved_by_accident(house: House, kind: str) -> None:
    """An approval of a tool is none of a prompt or a resource of the same name."""
    message = change()
    house.approved("odd", message)
    member = "uri" if kind == "resources/read" else "name"
    ask = house.good(body(kind, {member: "write"}, 7), "odd").line(NAME, encoded("write"))
    refused(house, ask, Refusal.POLICY_DENIED, twin=house.good(server="odd"))


def test_every_refusal_of_the_api_is_one_record(house: House) -> None:
    """AUD-01 for people: own request, stranger, wrong scope, moved on, nonsense: who, which ticket, and why."""
    message = change()
    ticket = house.held("odd", message)["id"]
    granted = house.approved("odd", change())
    asks: dict[str, tuple[Any, ...]] = {
        "bob": ("POST", f"/{granted}/approve", house.person(), {}),
        "alice": ("POST", f"/{ticket}/approve", house.person("alice"), {}),
        "carol": ("POST", f"/{ticket}/approve", house.person("carol"), {}),
        "dave": ("GET", f"/{ticket}", house.person("dave")),
        "erin": ("POST", f"/{ticket}/approve", house.person("erin", "approvals:read"), {}),
        "frank": ("POST", "", house.person("frank"), {"nonsense": 1}),
        "grace": ("GET", "?state=nonsense", house.person("grace")),
        "": ("POST", f"/{ticket}/approve", "", {}),
    }
    passes(house)
    start = len(house.records())
    answers = {who: house.api(*ask) for who, ask in asks.items()}
    assert {who: answer.status_code for who, answer in answers.items()} == {
        "bob": 409, "alice": 403, "carol": 404, "dave": 404, "erin": 403, "frank": 400, "grace": 400, "": 401,
    }  # fmt: skip
    passes(house)
    new = [one for one in house.records()[start:] if one["kind"] == "refusal"]
    assert len(new) == len(asks)
    for who, answer in answers.items():
        (record,) = [one for one in new if one["decision_id"] == answer.headers["ostiary-decision"]]
        assert record["status"] == answer.status_code
        assert record["resource"] == f"{house.stack.url}/approvals"
        assert (record["actor"] or {"subject": ""})["subject"] == who
        assert record["reasons"]
    assert not [one for one in house.records()[start:] if one["kind"] == "approval"]


# The command


def test_the_command_asks_shows_approves_and_the_call_runs(house: House) -> None:
    """`ostiary approvals request | show | list | approve` over --url, as whoever OSTIARY_TOKEN names."""
    arguments = house.stack.folder / "arguments.json"
    message = change(path="by command")
    arguments.write_text(json.dumps(message["params"]["arguments"]))
    there = ("--url", house.stack.url, "--json")
    asked = house.ostiary(
        "approvals", "request", *there, "--server", "odd", "--tool", "write", "--arguments", str(arguments),
        token=house.person("alice"),
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr
    ticket = json.loads(asked.stdout)["id"]
    asks = (
        (("approve", ticket, *there), house.person("alice")),
        (("list", *there, "--state", "pending"), house.person()),
        (("list", *there), "rubbish"),
    )
    own, listed, nobody = at_once(3, lambda at: house.ostiary("approvals", *asks[at][0], token=asks[at][1]))
    assert (own.returncode, json.loads(own.stdout)["error"]) == (1, "own_request")
    assert ticket in [one["id"] for one in json.loads(listed.stdout)["tickets"]]
    assert nobody.returncode == 2
    given = house.ostiary("approvals", "approve", ticket, *there, "--comment", "fine", token=house.person())
    assert (given.returncode, json.loads(given.stdout)["state"]) == (0, "approved")
    assert house.call("odd", message).status == 200
    seen = house.ostiary("approvals", "show", ticket, *there, token=house.person())
    assert [run["state"] for run in json.loads(seen.stdout)["runs"]] == ["executed"]


def test_a_local_administrator_looks_denies_and_does_not_approve(house: House) -> None:
    """`--config` works on the store as local:UID@HOST; its acts are records of a writer of their own."""
    message = change()
    ticket = house.held("odd", message)["id"]
    here = ("--config", str(house.stack.config), "--json")
    own = house.ostiary("approvals", "approve", ticket, *here)
    assert (own.returncode, json.loads(own.stdout)["error"]) == (1, "not_locally")
    denied = house.ostiary("approvals", "deny", ticket, *here, "--comment", "no")
    assert (denied.returncode, json.loads(denied.stdout)["state"]) == (0, "denied"), denied.stderr
    assert told(house.call("odd", message)) == (403, 40304)
    assert transitions(house, ticket, 2) == ["request", "deny"]
    act = next(one for one in house.records() if one["ticket"] == ticket and one.get("transition") == "deny")
    assert act["by"].startswith("local:")
    assert act["writer"] > 0
