"""Every way in which a yes is none, each with its own reason in the record (issue 4, must-show 4; APR-10, APR-12)."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rows.asking import tool
from tests.rows.conftest import furnish, opened, served, settings_of
from tests.rows.stage import House, Server, Stage, listed
from tests.rows.test_approvals import told
from tests.support.stack import ISSUER, Stack, write_bundle

_numbers = itertools.count(1)


def rules(group: str, **more: Any) -> dict[str, Any]:
    """A server whose `write` waits for this group."""
    hold = {"needed": True, "approvers": [f"group:{ISSUER}|{group}"], "min_approvers": 1, "uses": 1, "ttl_s": 600}
    write = {"effect": "write", "scopes": ["files:write"], "approval": hold}
    return {"methods": {"tools/list": {}}, "tools": {"write": write, **more}}


PAYMENTS, ARCHIVE = rules("payers"), rules("archivists")


@pytest.fixture
def house(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two servers, each with approvers of its own."""
    behind = {name: [Server(listed(write={}), ttl_ms=0)] for name in ("payments", "archive")}
    stack = Stack(tmp_path_factory.mktemp("yes"), {})
    with opened(stage, [*behind["payments"], *behind["archive"]]):
        furnish(stack, settings_of(behind))
        write_bundle(stack.folder, {"payments": PAYMENTS, "archive": ARCHIVE})
        made = House(stage, stack, behind)
        with served(stage, stack), made.http:
            yield made


def fresh() -> dict[str, Any]:
    return tool("write", number=next(_numbers))


def act(house: House, verb: str, ticket: str, subject: str, *groups: str) -> tuple[int, str, str]:
    """What a person of these groups gets -> status, error, and the detail in the record."""
    token = house.stack.person(subject, groups=list(groups))
    answer = house.api("POST", f"/{ticket}/{verb}", token, {"comment": "row"})
    if answer.status_code == 200:
        return 200, "", ""
    (record,) = house.await_records(answer.headers["ostiary-decision"], "refusal")
    return answer.status_code, answer.json()["error"], record["detail"]


def refusal(house: House, server: str, message: dict[str, Any]) -> tuple[int, int, list[str]]:
    """What the caller gets -> status, code, and the reasons in the record."""
    before = len(house.forwarded())
    answer = house.call(server, message)
    (record,) = house.await_records(answer.values("ostiary-decision")[0], "refusal")
    assert len(house.forwarded()) == before
    return *told(answer), record["reasons"]


def endings(house: House, ticket: str) -> list[tuple[str, str]]:
    """How the gateway ended a ticket by itself: verb and why."""
    end = time.monotonic() + 20
    while True:
        moved = [one for one in house.records() if one["kind"] == "approval" and one["ticket"] == ticket]
        found = [(one["transition"], json.dumps(one)) for one in moved if one["transition"] in ("revoke", "expire")]
        if found or time.monotonic() > end:
            return found
        time.sleep(0.05)


def approved(house: House, message: dict[str, Any], subject: str = "bob") -> str:
    """A ticket to which a payer said yes."""
    ticket = str(house.held("payments", message)["id"])
    assert act(house, "approve", ticket, subject, "payers")[0] == 200
    return ticket


def test_a_person_who_may_not_say_yes_is_told_and_recorded_each_in_their_own_way(house: House) -> None:
    """The requester, who lost the role or is an approver elsewhere, a scope that is missing, a no after a yes."""
    message = fresh()
    ticket = house.held("payments", message)["id"]
    house.held("archive", fresh())
    mine = act(house, "approve", ticket, "alice", "payers")
    elsewhere = act(house, "approve", ticket, "carol", "archivists")
    no_longer = act(house, "approve", ticket, "bob")
    without = house.api(
        "POST", f"/{ticket}/approve", house.stack.person("bob", "approvals:read", groups=["payers"]), {}
    )
    (record,) = house.await_records(without.headers["ostiary-decision"], "refusal")
    assert (mine[0], elsewhere[0], no_longer[0], without.status_code) == (403, 404, 404, 403)
    assert mine[1] == "own_request"
    assert refusal(house, "payments", message)[:2] == (403, 40303)
    assert act(house, "approve", ticket, "bob", "payers")[0] == 200, "and who may, may"
    after = act(house, "deny", ticket, "carol", "payers")
    assert after[:2] == (409, "moved_on")
    told_of = [mine[2], elsewhere[2], no_longer[2], record["detail"], after[2]]
    assert told_of == [
        "own_request", "not_found: not_theirs: approver_elsewhere", "not_found: not_theirs: approver_nowhere",
        "insufficient_scope", "moved_on: approved",
    ]  # fmt: skip
    assert len(set(told_of)) == len(told_of), "each with its own reason"
    guessed = house.api("POST", f"/{'A' * 24}/approve", house.stack.person("carol"), {})
    (record,) = house.await_records(guessed.headers["ostiary-decision"], "refusal")
    assert record["detail"] == "not_found: absent"
    assert house.call("payments", message).status == 200


def test_a_yes_that_would_not_be_given_today_is_none(house: House) -> None:
    """A policy that denies now, approvers that would no longer do, a tool that changed: each says which it was."""
    folder, server = house.stack.folder, house.behind["payments"][0]
    denied, outdated, moved, kept = fresh(), fresh(), fresh(), fresh()
    tickets = [approved(house, message) for message in (denied, outdated, moved, kept)]
    assert house.call("payments", kept).status == 200
    tools = server.tools
    try:
        server.tools = [{**one, "description": "and now it deletes"} for one in tools]
        end = time.monotonic() + 20
        payer = house.stack.person("bob", groups=["payers"])
        while house.api("GET", f"/{tickets[2]}", payer).json()["state"] == "approved":
            time.sleep(2.1)  # a listing counts for 2 s at least
            house.call("payments", moved)
            assert time.monotonic() < end
        ((verb, why),) = endings(house, tickets[2])
        assert (verb, "tool_changed" in why) == ("revoke", True)
    finally:
        server.tools = tools
    for data, message, code, reason in (
        (rules("directors"), outdated, 40303, ""),
        ({**PAYMENTS, "tools": {}}, denied, 40302, "policy"),
    ):
        assert house.stage.run(house.stack.stop()) == 0
        write_bundle(folder, {"payments": data, "archive": ARCHIVE})
        house.stage.run(house.stack.launch())
        status, found, reasons = refusal(house, "payments", message)
        assert (status, found) == (403, code)
        assert reason in " ".join(reasons)
    ((verb, why),) = endings(house, tickets[1])
    assert (verb, "approvers_changed" in why) == ("revoke", True)
