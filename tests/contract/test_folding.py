"""AUD-01: which refusals may share a record, and which have their own whatever comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from approvals.allowance import Taken
from approvals.ticket import Claimed
from gateway.contract.folding import OF_THE_CONTRACT, kind_of
from gateway.contract.legacy import Heard
from gateway.contract.passage import OpenedState, OpenedTasks, Passage, Task, Waits
from gateway.contract.quirks import Quirk
from gateway.contract.refusals import Refusal, Refused
from policies.verdict import Effect
from tests.contract.walked import ALLOW, SERVER, TOOL, malformed, turned_away

ALICE = ("https://idp.example.com", "alice", "client-1", "")


def test_a_known_callers_malformed_request_has_a_kind() -> None:
    """Who, where, why and which known method: nothing of the caller's own words."""
    kind = kind_of(malformed())
    assert kind is not None
    assert (kind.actor, kind.server, kind.reason) == (ALICE, "readonly", "header_mismatch")
    assert (kind.detail, kind.method, kind.name) == ("Mcp-Name header is missing", "tools/call", "")
    made_up = malformed(Refusal.METHOD_UNKNOWN, "", method="made/up")
    assert (found := kind_of(made_up)) is not None
    assert (found.method, found.name) == ("", "")


@pytest.mark.parametrize("refusal", Refusal)
def test_only_refusals_of_the_contract_share_a_record(refusal: Refusal) -> None:
    """Of a known caller, what the request's form is to blame for; nothing that a policy, person or server said."""
    assert (kind_of(malformed(refusal)) is not None) == (refusal in OF_THE_CONTRACT)
    assert kind_of(turned_away(refusal)) is not None, "who is not known has a rate of their own"
    if refusal in OF_THE_CONTRACT:
        assert refusal.value.status in {200, 400, 404, 406, 413, 415}
        assert refusal.value.result == (refusal.value.status == 200), "a result that says that arguments do not fit"


USE = Claimed("ticket-1", "use-1")
TASK = Task("handle", "1", "read_file")
FURTHER: dict[str, Callable[[Passage], Any]] = {
    "the approvals API's": lambda it: setattr(it, "received", None),
    "the decision is durable": lambda it: setattr(it, "committed", True),
    "sent": lambda it: setattr(it, "sent", True),
    "about a task": lambda it: setattr(it, "tasks", OpenedTasks((TASK,))),
    "a held call that runs": lambda it: setattr(it, "errand", TASK),
    "goes on": lambda it: setattr(it, "opened_state", OpenedState("state")),
    "waits": lambda it: setattr(it, "waits", Waits("ticket-1", "effect")),
    "settled": lambda it: setattr(it, "settled", USE),
    "under a key": lambda it: setattr(it, "key", "key-1"),
    "told to wait": lambda it: setattr(it, "challenge", "task"),
    "counted": lambda it: setattr(it, "taken", (Taken("budget", 1.0),)),
    "judged": lambda it: setattr(it, "verdict", ALLOW),
}


@pytest.mark.parametrize("fact", FURTHER)
def test_what_went_any_further_has_a_record_of_its_own(fact: str) -> None:
    """Approvals, keys, tasks, verdicts, whatever might have been forwarded: never folded."""
    passage = malformed()
    assert kind_of(passage) is not None
    FURTHER[fact](passage)
    assert kind_of(passage) is None


def test_bad_arguments_are_kept_apart_by_tool_and_verdict() -> None:
    """The schema's refusals come after the policy: what it said of the tool stays in their record."""
    bad = malformed(Refusal.ARGUMENTS_INVALID, "limit: not an integer")
    bad.tool, bad.verdict = TOOL, ALLOW
    kinds = {kind_of(bad)}
    for verdict in (
        replace(ALLOW, revision="rev-2"),
        replace(ALLOW, effect=Effect.APPROVE),
        replace(ALLOW, reasons=()),
    ):
        bad.verdict = verdict
        kinds.add(kind_of(bad))
    bad.tool = replace(TOOL, name="write_file")
    kinds.add(kind_of(bad))
    assert None not in kinds
    assert len(kinds) == 5


def test_kinds_differ_by_all_that_a_shared_record_says() -> None:
    """Another caller, tenant, server, reason, detail, method or older revision: another record."""
    plain = malformed()
    kinds = {kind_of(plain)}
    changes: tuple[Callable[[Any], None], ...] = (
        lambda it: setattr(it, "identity", replace(it.identity, subject="bob")),
        lambda it: setattr(it, "identity", replace(it.identity, issuer="https://other.example.com")),
        lambda it: setattr(it, "identity", replace(it.identity, client_id="client-2")),
        lambda it: setattr(it, "identity", replace(it.identity, tenant="acme")),
        lambda it: setattr(it, "server", replace(SERVER, name="other")),
        lambda it: setattr(it, "refused", Refused(Refusal.META_MISSING, "Mcp-Name header is missing")),
        lambda it: setattr(it, "refused", Refused(Refusal.HEADER_MISMATCH, "another header")),
        lambda it: setattr(it, "envelope", replace(it.envelope, method="tools/list")),
        lambda it: setattr(it, "heard", Heard(None, (Quirk.ACCEPT_JSON_ONLY,))),
    )
    for change in changes:
        other = malformed()
        change(other)
        kinds.add(kind_of(other))
    assert None not in kinds
    assert len(kinds) == 10
    assert kind_of(malformed(request_id="another")) == kind_of(plain)


def test_forged_and_expired_tokens_are_told_apart() -> None:
    """Both are `token_invalid`: a flood of the one does not hide the other."""
    kinds = {kind_of(turned_away(Refusal.TOKEN_INVALID, why)) for why in ("forged", "expired")}
    assert len(kinds) == 2


@pytest.mark.parametrize("refusal", [Refusal.HEAD_TOO_LARGE, Refusal.BODY_TOO_LARGE])
def test_a_size_that_the_sender_chose_makes_no_kind(refusal: Refusal) -> None:
    """Else one stranger's heads of ever other lengths were all the kinds that strangers have."""
    assert len({kind_of(turned_away(refusal, f"{size} bytes")) for size in range(70_000, 71_000)}) == 1
    assert kind_of(turned_away(refusal)) != kind_of(turned_away(Refusal.TOKEN_MISSING))
    assert len({kind_of(malformed(Refusal.BODY_TOO_LARGE, f"{size} bytes announced")) for size in (1, 2)}) == 1
