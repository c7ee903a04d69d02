"""What the approvals API refuses stands in the record like any other refusal (AUD-01, APR-12)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gateway.contract.refusals import Refusal
from tests.rows.asking import tool
from tests.rows.proof import passes
from tests.rows.stage import House

_numbers = itertools.count(1)


@pytest.mark.parametrize(
    ("who", "scope", "verb", "status", "refusal", "why"),
    [
        ("alice", "", "approve", 403, Refusal.POLICY_DENIED, "own_request"),
        ("alice", "", "deny", 403, Refusal.POLICY_DENIED, "own_request"),
        ("carol", "", "approve", 404, Refusal.APPROVAL_REFUSED, "not_found: not_theirs: approver_nowhere"),
        ("bob", "approvals:read", "approve", 403, Refusal.SCOPE_INSUFFICIENT, "insufficient_scope"),
        ("bob", "", "revoke", 409, Refusal.APPROVAL_REFUSED, "moved_on: pending"),
    ],
)
def test_an_act_that_was_refused_is_one_record(  # noqa: PLR0917 - the columns of the table
    house: House, who: str, scope: str, verb: str, status: int, refusal: Refusal, why: str
) -> None:
    """Whoever tries to decide what is not theirs to decide leaves a trace: who, what, which ticket, why not."""
    passes(house)
    ticket = house.held("odd", tool("write", counter=next(_numbers)))["id"]
    token = house.person(who, scope) if scope else house.person(who)
    answer = house.api("POST", f"/{ticket}/{verb}", token, {"comment": "row"})
    assert answer.status_code == status
    decision = answer.headers["ostiary-decision"]
    passes(house)
    records: list[dict[str, Any]] = house.records_of(decision)
    assert [(one["kind"], one["reasons"][0], one["status"], one["detail"]) for one in records] == [
        ("refusal", refusal.reason, status, why)
    ]
    assert (records[0]["actor"]["subject"], records[0]["method"], records[0]["ticket"]) == (
        who,
        f"approvals/{verb}",
        ticket,
    )
