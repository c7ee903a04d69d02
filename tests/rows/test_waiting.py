"""Held calls of clients that open pages, over the wire: rows APR-01, 02, 07, 09 and 11 for the state that waits."""

from __future__ import annotations

import copy
import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from gateway.contract.refusals import Refusal
from gateway.elicitation import QUESTION
from tests.rows.proof import passes, refused
from tests.rows.stage import PATIENCE_S, House
from tests.rows.table import CAPABILITIES_KEY
from tests.rows.test_approvals import change, runs, told, transitions
from tests.support.http_raw import Answer, RawClient

OPENS: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}


@pytest.fixture
def kept() -> Iterator[ThreadPoolExecutor]:
    """Threads for requests that are not answered at once."""
    with ThreadPoolExecutor(32) as pool:
        yield pool


def opening(message: dict[str, Any], **params: Any) -> dict[str, Any]:
    """The same call by a client that opens pages; `params` are more members."""
    message = copy.deepcopy(message)
    message["params"]["_meta"][CAPABILITIES_KEY] = OPENS
    message["params"].update(params)
    return message


def sent_to_a_page(house: House, message: dict[str, Any]) -> tuple[str, str]:
    """The first answer of a held call -> its ticket and the state."""
    began = time.monotonic()
    answer = house.call("odd", opening(message))
    assert time.monotonic() - began < 10, "at once"
    result = answer.json()["result"]
    assert (answer.status, result["resultType"]) == (200, "input_required")
    ticket = result["inputRequests"][QUESTION]["params"]["url"].rpartition("/")[2]
    return ticket, result["requestState"]


def back(message: dict[str, Any], state: str, action: str = "accept") -> dict[str, Any]:
    """The call again, with the state and the user's word about the page."""
    return opening(message, requestState=state, inputResponses={QUESTION: {"action": action}})


def waiting(house: House) -> int:
    """How many calls are kept now."""
    found = [line for line in house.metrics().splitlines() if line.startswith("ostiary_calls_waiting ")]
    return round(float(found[0].split()[1])) if found else 0


def until_waiting(house: House, count: int, within_s: float = PATIENCE_S) -> None:
    """Wait until so many calls are kept."""
    end = time.monotonic() + within_s
    while waiting(house) != count:
        assert time.monotonic() < end, waiting(house)
        time.sleep(0.02)


def test_a_kept_call_runs_once_it_is_approved(house: House, kept: ThreadPoolExecutor) -> None:
    """The whole way over the wire: a page at once, one kept retry, a person's yes, one call with nothing of ours in
    it; one record for each request, and a ticket that was asked for once."""
    message = change()
    before = len(house.forwarded("odd"))
    ticket, state = sent_to_a_page(house, message)
    retry: Future[Answer] = kept.submit(house.call, "odd", back(message, state))
    until_waiting(house, 1)
    passes(house)
    assert len(house.forwarded("odd")) == before
    assert house.act("approve", ticket).status_code == 200
    answer = retry.result(PATIENCE_S)
    assert (answer.status, answer.json()["result"]["isError"]) == (200, False)
    (sent,) = house.forwarded("odd")[before:]
    assert not {"requestState", "inputResponses"} & json.loads(sent.body)["params"].keys()
    assert runs(house, ticket) == ["executed"]
    decision = answer.values("ostiary-decision")[0]
    assert [one["ticket"] for one in house.await_records(decision, "decision", "outcome")] == [ticket] * 2
    assert transitions(house, ticket, 5) == ["request", "approve", "claim", "sent", "executed"]
    held = [one for one in house.records() if one["kind"] == "refusal" and one["ticket"] == ticket]
    assert [(one["reasons"][0], one["status"], one["code"], one["challenge"]) for one in held] == [
        ("approval_required", 200, 40303, "elicitation")
    ]


def test_a_state_that_waits_is_not_forged(house: House) -> None:
    """APR-11: truncated, extended, spelt otherwise, each of the last 63 characters changed: 400, nothing sent or
    used; the owner's still runs."""
    message = change()
    ticket, state = sent_to_a_page(house, message)
    assert house.act("approve", ticket).status_code == 200
    before = len(house.forwarded("odd"))
    forged = [state[:-1], state[1:], state + "A", state + "=", state.swapcase(), ""]
    for at in range(len(state) - 63, len(state)):
        forged.append(state[:at] + ("A" if state[at] != "A" else "B") + state[at + 1 :])
    for text in forged:
        assert told(house.call("odd", back(message, text))) == (400, -32602), text[-70:]
    assert len(house.forwarded("odd")) == before
    assert house.api("GET", f"/{ticket}").json()["uses_left"] == 1
    assert house.call("odd", back(message, state)).status == 200
    assert len(house.forwarded("odd")) == before + 1


def test_a_state_that_waits_is_its_callers_for_its_call(house: House) -> None:
    """APR-07: other arguments, another tool, server, subject: 400 and no ticket of theirs; then the owner's runs."""
    message = change()
    ticket, state = sent_to_a_page(house, message)
    assert house.act("approve", ticket).status_code == 200
    asked = len([one for one in house.records() if one.get("transition") == "request"])
    other = back(message, state)
    other["params"]["arguments"]["number"] += 1_000_000
    elsewhere = back(message, state)
    elsewhere["params"]["name"] = "brief"
    for answer in (
        house.call("odd", other),
        house.call("odd", elsewhere),
        house.call("plain", back(message, state)),
        house.call("odd", back(message, state), "mallory"),
    ):
        assert told(answer) == (400, -32602)
    assert len([one for one in house.records() if one.get("transition") == "request"]) == asked
    assert house.call("odd", back(message, state)).status == 200


def test_a_state_that_waited_is_refused_once_its_ticket_is_over(house: House) -> None:
    """APR-01: used, denied, withdrawn, revoked: 403 with 40304 and why; held to the whole proof; no new ticket."""
    used = change()
    ticket, state = sent_to_a_page(house, used)
    assert house.act("approve", ticket).status_code == 200
    assert house.call("odd", back(used, state)).status == 200
    ends = (((), "used"), (("deny",), "denied"), (("withdraw",), "withdrawn"), (("approve", "revoke"), "revoked"))
    for verbs, why in ends:
        if verbs:
            used = change()
            ticket, state = sent_to_a_page(house, used)
            for verb in verbs:
                assert house.act(verb, ticket, "alice" if verb == "withdraw" else "bob").status_code == 200
        answer = refused(house, house.good(back(used, state), "odd"), Refusal.APPROVAL_REFUSED)
        assert answer.json()["error"]["data"]["why"] == why
        assert answer.json()["error"]["data"]["ticket"]["id"] == ticket
        assert transitions(house, ticket, 1).count("request") == 1


def test_a_declined_question_runs_nothing(house: House) -> None:
    """40303 with the whole proof, whatever was decided meanwhile; the identical call still runs."""
    message = change()
    ticket, state = sent_to_a_page(house, message)
    assert house.act("approve", ticket).status_code == 200
    answer = refused(house, house.good(back(message, state, "decline"), "odd"), Refusal.APPROVAL_REQUIRED)
    assert answer.json()["error"]["data"]["ticket"]["state"] == "approved"
    assert house.call("odd", message).status == 200


def test_of_parallel_retries_one_runs(house: House, kept: ThreadPoolExecutor) -> None:
    """APR-02: twenty at once, eight of them kept: the others are answered with the state, one runs, no 5xx."""
    message = change()
    ticket, state = sent_to_a_page(house, message)
    before = len(house.forwarded("odd"))
    retries = [kept.submit(house.call, "odd", back(message, state)) for _ in range(20)]
    until_waiting(house, 8)
    assert house.act("approve", ticket).status_code == 200
    answers = [retry.result(PATIENCE_S) for retry in retries]
    kinds = Counter(
        "refused" if "error" in one.json() else str(one.json()["result"].get("resultType", "complete"))
        for one in answers
    )
    assert kinds["complete"] == 1
    assert kinds["input_required"] <= 12
    assert {one.status for one in answers} <= {200, 403}
    assert {told(one) for one in answers if "error" in one.json()} <= {(403, 40304)}
    assert len(house.forwarded("odd")) == before + 1
    assert runs(house, ticket) == ["executed"]


def test_a_client_that_leaves_while_it_is_kept_frees_its_place(house: House) -> None:
    """One refusal `client_gone` with its ticket, within seconds; the ticket is as it was, and the call runs later."""
    message = change()
    ticket, state = sent_to_a_page(house, message)
    with RawClient(house.address, 30) as client:
        client.send(house.good(back(message, state), "odd").encode())
        until_waiting(house, 1)
    until_waiting(house, 0, 5)
    passes(house)
    gone = [one for one in house.records() if one["reasons"][:1] == ["client_gone"] and one["ticket"] == ticket]
    assert [(one["kind"], one["status"], one["actor"]["subject"]) for one in gone] == [("refusal", 499, "alice")]
    assert house.act("approve", ticket).status_code == 200
    assert house.call("odd", message).status == 200
