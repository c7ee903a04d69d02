"""The audit record: its members, its redaction, its chain (requirements AUD-01 to AUD-06 at the level of values)."""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest
import rfc8785
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from approvals.ticket import Claimed, Held
from gateway.contract import redaction
from gateway.contract.chain import MAX_LINE, ZERO, Chain, Checkpoint, chain, read_line, verify_chain
from gateway.contract.passage import Call, Envelope, OpenedState, OpenedTasks, Passage, Task, Tool, Waits
from gateway.contract.printable import printable, remark
from gateway.contract.record import (
    AuditKeys,
    Redactor,
    admin_record,
    approval_record,
    closing_outcome,
    decision_record,
    log_fields,
    outcome_record,
    refusal_record,
)
from gateway.contract.redaction import MAX_LEAVES
from gateway.contract.refusals import Refusal, Refused
from policies.verdict import Effect, Verdict
from tests.contract.walked import KEY, KEY_TEXT, REDACTOR, TOOL, ended, transition, turned_away, walked

# fmt: off
MEMBERS = frozenset((
    "kind", "decision_id", "request_id", "trace_id", "actor", "server", "resource", "environment", "replica",
    "method", "name", "arguments", "verdict", "reasons", "policy_revision", "ticket", "status", "code", "latency_ms",
    "outcome", "arguments_hmac", "result_hmac", "key_id", "count", "detail",
    "legacy", "quirks", "task",
))
# fmt: on
CANARY = "CANARY-7f3a9b2c"

# How long an example takes is the machine's affair, not the rule's.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=6),
    max_leaves=30,
)
arguments = st.dictionaries(st.text(), json_values, max_size=8)


def lines_of(records: list[dict[str, Any]], writer: int = 0) -> list[bytes]:
    """A chain as a sink writes it."""
    lines, head = [], ZERO
    for seq, record in enumerate(records, 1):
        told = {**record, "seq": seq, "prev": head, "writer": writer, "time": "2026-07-28T00:00:00.000Z"}
        head, line = chain(head, told)
        lines.append(line)
    return lines


def some_chain(length: int = 6, writer: int = 0) -> list[bytes]:
    """Decisions and outcomes in turn."""
    records = []
    for n in range(length):
        passage = walked({"path": f"/srv/{n}"}, decision_id=f"{n // 2:032x}")
        records.append(outcome_record(ended(passage), REDACTOR) if n % 2 else decision_record(passage, REDACTOR))
    return lines_of(records, writer)


# What a record says


def test_every_record_has_the_same_members() -> None:
    """A reader finds every member of the pinned line in every kind of record."""
    records = [
        decision_record(walked(), REDACTOR),
        outcome_record(ended(walked()), REDACTOR),
        refusal_record(turned_away(), REDACTOR),
        approval_record(transition(), REDACTOR),
        admin_record("reloaded"),
        closing_outcome("x", decision_record(walked(), REDACTOR), "unknown", "writer_ended"),
    ]
    for record in records:
        assert record.keys() >= MEMBERS
    assert records[0].keys() == records[1].keys() == records[2].keys() == MEMBERS


def test_a_decision_says_who_what_where_and_by_which_policy() -> None:
    """AUD-01: reason, subject, policy revision, target and digest are in the decision."""
    record = decision_record(walked(), REDACTOR)
    assert record["kind"] == "decision"
    assert record["actor"] == {"issuer": "https://idp.example.com", "subject": "alice", "client": "client-1"}
    assert (record["server"], record["environment"]) == ("readonly", "production")
    of_tenant = walked()
    assert of_tenant.identity is not None
    of_tenant.identity = replace(of_tenant.identity, tenant="acme")
    assert decision_record(of_tenant, REDACTOR)["actor"] == {**record["actor"], "tenant": "acme"}
    assert (record["method"], record["name"], record["request_id"]) == ("tools/call", "read_file", 7)
    assert (record["verdict"], record["reasons"], record["policy_revision"]) == ("allow", ["readers_read"], "rev-1")
    assert record["key_id"] == REDACTOR.key_id
    assert record["trace_id"] == "0af7651916cd43dd8448eb211c80319c"


def test_an_outcome_says_how_it_ended() -> None:
    """The outcome shares the decision's id and carries status, latency and the keyed HMAC of the result."""
    record = outcome_record(ended(walked(), latency_s=0.0125), REDACTOR)
    assert (record["kind"], record["outcome"], record["status"]) == ("outcome", "executed", 200)
    assert record["latency_ms"] == 12.5
    expected = hmac.digest(KEY, b"result\0" + b"r" * 32, "sha256")[:16].hex()
    assert record["result_hmac"] == expected
    assert record["replica"] == "http://10.0.0.1:8000/mcp"


def test_an_outcome_that_was_refused_names_the_refusal() -> None:
    """A fault behind a forwarded call is the outcome's reason; the detail is in the record only."""
    passage = ended(walked(), "failed")
    passage.refused = Refused(Refusal.UPSTREAM_UNREACHABLE, "replica http://10.0.0.1:8000/mcp refused")
    record = outcome_record(passage, REDACTOR)
    assert record["reasons"] == ["upstream_unreachable"]
    assert record["detail"] == "replica http://10.0.0.1:8000/mcp refused"


@pytest.mark.parametrize("news", ["nothing", "task", "retried", "refused", "ended", "gone"])
@pytest.mark.parametrize("begun", ["plain", "gated", "leg", "keyed", "named"])  # a call that names tasks makes none
def test_an_outcome_that_goes_on_from_its_decision_says_what_one_made_anew_would(begun: str, news: str) -> None:
    """What the decision's record said already is not found out again, and nothing of the outcome differs for it."""
    passage = walked({"path": CANARY})
    if begun == "gated":
        passage.settled = Claimed("t-9", "u-1")
    elif begun == "leg":
        passage.opened_state = OpenedState("state", 2, Claimed("t-3", "u-3"))
    elif begun == "keyed":
        passage.key, passage.replay_of = "key-1", "e" * 32
    elif begun == "named":
        passage.tasks = OpenedTasks((Task("handle", "id", "read_file", "t-4"),))
    decided = decision_record(passage, REDACTOR)
    before = copy.deepcopy(decided)
    ended(passage, "failed" if news == "refused" else "executed")
    if news == "task" and begun != "named":
        passage.made_task = Task("made", "made-id", "read_file", "t-5")
    elif news == "retried":
        passage.retries = 1
    elif news == "refused":
        passage.refused = Refused(Refusal.UPSTREAM_INVALID, "why")
    elif news == "ended":
        passage.ended = "token_expired"
    elif news == "gone":
        passage.replica = ""
    anew = outcome_record(passage, REDACTOR)
    passage.decided = decided
    assert outcome_record(passage, REDACTOR) == anew
    assert decided == before
    assert anew["outcome"] in {"executed", "failed"}


@pytest.mark.parametrize("refusal", list(Refusal), ids=lambda row: row.reason)
def test_every_refusal_gives_a_record_with_its_name(refusal: Refusal) -> None:
    """AUD-01: whichever room refuses, known caller or not, the record's first reason is the refusal's name."""
    for passage in (turned_away(refusal), walked()):
        passage.refused = Refused(refusal, "why")
        record = refusal_record(passage, REDACTOR)
        assert (record["kind"], record["reasons"][0]) == ("refusal", refusal.reason)
        assert (record["status"], record["code"]) == (refusal.value.status, refusal.value.code)
        assert record["detail"] == "why"
    assert refusal_record(turned_away(refusal), REDACTOR)["actor"] is None


def test_a_refusal_after_the_policy_names_its_reasons_and_the_hold() -> None:
    """What the policy said and what the desk said stand beside the refusal's own name."""
    passage = walked(verdict=Verdict(Effect.APPROVE, reasons=("large",), revision="rev-1"))
    passage.refused = Refused(Refusal.APPROVAL_REFUSED)
    passage.settled = Held("in_flight", transition().ticket)
    record = refusal_record(passage, REDACTOR)
    assert record["reasons"] == ["approval_refused", "in_flight", "large"]
    assert (record["ticket"], record["verdict"]) == ("t-1", "approve")


def test_a_consumed_use_names_its_ticket() -> None:
    """A gated call's decision names the ticket that it used."""
    passage = walked()
    passage.settled = Claimed("t-9", "u-1")
    assert decision_record(passage, REDACTOR)["ticket"] == "t-9"


def test_a_transition_says_who_did_it_and_what_they_saw() -> None:
    """A ticket's move names who moved it, whose call it is, and the digest of what was shown; no text of people."""
    record = approval_record(transition(comment=f"fine {CANARY}"), REDACTOR, decision_id="d-1")
    assert (record["transition"], record["by"], record["seen"]) == (
        "approve",
        "https://idp.example.com|bob",
        "c" * 64,
    )
    assert record["actor"] == {"issuer": "https://idp.example.com", "subject": "bob", "client": ""}
    assert record["requester"]["subject"] == "alice"
    assert (record["ticket"], record["decision_id"]) == ("t-1", "d-1")
    assert CANARY not in repr(record)
    assert record["comment_hmac"] != approval_record(transition(comment="other"), REDACTOR)["comment_hmac"]
    local = approval_record(transition(by="local:1000@host"), REDACTOR)
    assert local["actor"] == {"issuer": "", "subject": "local:1000@host", "client": ""}


def test_a_transition_confirms_no_guess_at_the_arguments() -> None:
    """AUD-02: the effect's plain digest could be made of the record and a guess; only its keyed HMAC is written."""
    record = approval_record(transition(), REDACTOR)
    assert "a" * 64 not in repr(record)
    assert record["effect_hmac"] == hmac.digest(KEY, b"effect\0" + b"a" * 64, "sha256")[:16].hex()
    assert approval_record(transition(verb="claim"), REDACTOR)["effect_hmac"] == record["effect_hmac"]


def test_the_log_line_is_a_projection_without_arguments() -> None:
    """The canonical log line says what the record says, flat, without arguments, digests and empty members."""
    fields = log_fields(outcome_record(ended(walked({"path": CANARY})), REDACTOR))
    assert fields["subject"] == "alice"
    assert fields["outcome"] == "executed"
    assert fields["latency_ms"] == 12.5
    assert not fields.keys() & {"arguments", "arguments_hmac", "result_hmac", "verdict_reasons", "ticket"}
    assert CANARY not in repr(fields)


def test_a_closed_decision_keeps_who_and_what() -> None:
    """A decision whose end nobody saw gets an outcome that repeats its target, not its arguments."""
    decision = {**decision_record(walked(), REDACTOR), "seq": 9, "prev": ZERO, "hash": ZERO, "writer": 3}
    record = closing_outcome("d" * 32, decision, "unknown", "writer_ended")
    assert (record["kind"], record["outcome"], record["reasons"]) == ("outcome", "unknown", ["writer_ended"])
    assert (record["name"], record["actor"]["subject"]) == ("read_file", "alice")
    assert record["arguments"] is record["arguments_hmac"] is None
    assert record.keys() == MEMBERS


def test_a_closed_leg_keeps_its_place_in_the_conversation() -> None:
    """Whose end nobody saw is still told from the call that began: leg, ticket, and the ticket of its answers."""
    passage = walked()
    passage.settled = use = Claimed("ticket-1", "use-1", leg=2, answers=Claimed("ticket-2", "use-2"))
    passage.opened_state = OpenedState("own", leg=2, use=use)
    decision = decision_record(passage, REDACTOR)
    record = closing_outcome(passage.decision_id, decision, "unknown", "writer_ended")
    for told in (decision, record):
        assert (told["leg"], told["ticket"], told["answers_ticket"]) == (2, "ticket-1", "ticket-2")


def test_what_goes_to_an_older_server_says_so() -> None:
    """`legacy_servers` is an exception that the record shows: in decision, outcome, closing and log."""
    passage = ended(walked())
    assert passage.server is not None
    assert "upstream_revision" not in decision_record(passage, REDACTOR)
    passage.server = replace(passage.server, past="2025-06-18")
    decision, outcome = decision_record(passage, REDACTOR), outcome_record(passage, REDACTOR)
    closed = closing_outcome(passage.decision_id, decision, "unknown", "writer_ended")
    for told in (decision, outcome, closed, log_fields(outcome)):
        assert told["upstream_revision"] == "2025-06-18"
    assert outcome.keys() == MEMBERS | {"upstream_revision"}


def test_a_call_that_waits_says_how_its_caller_was_told() -> None:
    """A result in place of the error is 200 with the row's code; the ticket is named before it was settled."""
    passage = walked(verdict=None)
    assert "challenge" not in refusal_record(passage, REDACTOR)
    passage.waits, passage.challenge = Waits("ticket-1", "e" * 64), "elicitation"
    passage.refuse(Refused(Refusal.APPROVAL_REQUIRED, instead={"resultType": "input_required"}))
    record = refusal_record(passage, REDACTOR)
    assert (record["challenge"], record["ticket"]) == ("elicitation", "ticket-1")
    assert (record["reasons"], record["status"], record["code"]) == (["approval_required"], 200, 40303)
    assert record.keys() == MEMBERS | {"challenge"}
    passage.opened_state = OpenedState("own", leg=2, use=Claimed("ticket-0", "use-0", leg=2))
    record = refusal_record(passage, REDACTOR)
    assert (record["ticket"], record["answers_ticket"], record["leg"]) == ("ticket-0", "ticket-1", 2)


# Redaction


def test_arguments_are_types_sizes_and_hmacs() -> None:
    """Each leaf is its JSON pointer with type, size and keyed HMAC; the value is not there."""
    record = decision_record(walked({"path": CANARY, "limit": 3, "token": None}), REDACTOR)
    tag = hmac.digest(KEY, b"value\0" + orjson.dumps(CANARY), "sha256")[:16].hex()
    assert record["arguments"]["/path"] == {"type": "string", "size": len(CANARY), "hmac": tag}
    assert record["arguments"]["/limit"]["type"] == "integer"
    assert record["arguments"]["/token"] == {"type": "null"}
    whole = rfc8785.dumps({"path": CANARY, "limit": 3, "token": None})
    assert record["arguments_hmac"] == hmac.digest(KEY, b"arguments\0" + whole, "sha256")[:16].hex()
    assert CANARY not in repr(record)


def test_another_key_gives_other_hmacs() -> None:
    """An HMAC says nothing to who lacks the key."""
    other = Redactor(AuditKeys(base64.urlsafe_b64encode(b"\1" * 32).decode()))
    mine, theirs = decision_record(walked(), REDACTOR), decision_record(walked(), other)
    assert mine["arguments_hmac"] != theirs["arguments_hmac"]
    assert mine["arguments"]["/path"]["hmac"] != theirs["arguments"]["/path"]["hmac"]
    assert mine["key_id"] != theirs["key_id"]


@given(st.binary(max_size=300), st.binary(max_size=300))
@unhurried
def test_tags_are_hmac_sha256(purpose: bytes, data: bytes) -> None:
    """The quick HMAC is the standard library's."""
    assert REDACTOR.tag(purpose, data) == hmac.digest(KEY, purpose + b"\0" + data, "sha256")[:16].hex()


def test_names_of_members_that_nobody_declared_are_hidden() -> None:
    """A member's name is shown where the tool's schema or the protocol declares it; else it is a caller's data."""
    shown = decision_record(walked({"path": 1, "inner": 2, CANARY: 3}), REDACTOR)["arguments"]
    assert {"/path", "/inner"} < shown.keys()
    assert CANARY not in repr(shown)
    hidden = next(pointer for pointer in shown if pointer.startswith("/#"))
    assert shown[hidden]["type"] == "integer"
    unknown_tool = decision_record(walked({"path": 1}, tool=None), REDACTOR)["arguments"]
    assert "/path" not in unknown_tool


def test_clear_shows_and_mask_wins() -> None:
    """A value is clear only where `clear` names it, a whole subtree included, and never where `mask` names it."""
    given_arguments = {
        "path": "/srv/a",
        "limit": 2**60,
        "token": CANARY,
        "deep": {"a/b": [1, {"c": CANARY}], "e": 1.5},
    }
    verdict = Verdict(
        Effect.ALLOW, clear=("/path", "/limit", "/token", "/deep", "/absent", "x"), mask=("/token", "/deep/a~1b/1")
    )
    shown = decision_record(walked(given_arguments, verdict=verdict), REDACTOR)["arguments"]
    assert shown["/path"] == {"type": "string", "size": 6, "value": "/srv/a"}
    assert shown["/limit"] == {"type": "integer", "value": str(2**60)}
    assert shown["/deep/a~1b/0"] == {"type": "integer", "value": 1}
    assert shown["/deep/e"] == {"type": "number", "value": "1.5"}
    assert "value" not in shown["/token"]
    assert CANARY not in repr(shown)


@pytest.mark.parametrize("mask", [("",), ("/a",), ("/a/b",), ("/a/b/0",), ("a",), ("x", "/y")])
def test_a_mask_above_hides_what_is_below(mask: tuple[str, ...]) -> None:
    """A pointer in `mask` covers everything below it; `""`, and what is no pointer, everything."""
    arguments_ = {"a": {"b": [CANARY]}}
    clear = Verdict(Effect.ALLOW, clear=("/a",))
    assert CANARY in repr(decision_record(walked(arguments_, verdict=clear), REDACTOR))
    masked = Verdict(Effect.ALLOW, clear=("", "/a", "/a/b/0"), mask=mask)
    assert CANARY not in repr(decision_record(walked(arguments_, verdict=masked), REDACTOR))


@pytest.mark.parametrize(("clear", "mask"), [("/a~b", "/a~0b"), ("/a~0b", "/a~b"), ("/a~b", "/a~b"), ("", "/a~b")])
def test_a_mask_covers_every_spelling_of_its_pointer(clear: str, mask: str) -> None:
    """Two spellings of one pointer are one place."""
    shown = decision_record(walked({"a~b": CANARY}, verdict=Verdict(Effect.ALLOW, clear=(clear,))), REDACTOR)
    assert CANARY in repr(shown)
    verdict = Verdict(Effect.ALLOW, clear=(clear,), mask=(mask,))
    assert CANARY not in repr(decision_record(walked({"a~b": CANARY}, verdict=verdict), REDACTOR))


def test_names_that_sort_differently_in_other_readings_stay_canonical() -> None:
    """Members beyond the basic plane are ordered by UTF-16, as RFC 8785 wants it."""
    names = ["\U0001f40d", "\uffe6", "\u00e9", "z"]
    definition: dict[str, Any] = {"inputSchema": {"properties": {name: {} for name in names}}}
    tool = Tool("t", "5027" * 16, {}, definition)  # a digest of its own: names are remembered by it
    record = decision_record(walked(dict.fromkeys(names, 1), tool=tool), REDACTOR)
    assert set(record["arguments"]) == {f"/{name}" for name in names}
    line = lines_of([record])[0]
    assert line.index("\U0001f40d".encode()) < line.index("\uffe6".encode())
    assert verify_chain([line]).fault is None


def test_large_arguments_take_no_time() -> None:
    """Megabytes of numbers, of members or of text are projected in well under a second, in a small record."""
    for arguments_ in (
        {"n": [1.5e300] * 500_000},
        {f"{n}\N{SNAKE}": n for n in range(200_000)},
        {"path": "\N{SNAKE}" * 1_000_000},
        {"list": [[[]] * 16] * 16, "more": [{"a": [1.25] * 100_000}] * 16},
    ):
        began = time.process_time()
        decision_record(walked(arguments_, verdict=Verdict(Effect.ALLOW, clear=("",))), REDACTOR)
        assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    "arguments_",
    [
        {f"k{n}": n for n in range(10_000)},
        {"list": list(range(10_000))},
        {"path": {"path": [[[[[[[[[[CANARY]]]]]]]]]]}},
        {"path": [{"limit": [1] * 15} for _ in range(15)]},
        {"x" * 100_000: 1},
        {"path": "x" * 1_000_000},
        {f"{n}" + "\N{SNAKE}" * 1000: "\x00" * 1000 for n in range(40)},
    ],
    ids=["members", "items", "depth", "leaves", "name", "text", "wide"],
)
def test_a_record_stays_small(arguments_: dict[str, Any]) -> None:
    """Whatever the arguments are, the record is at most 16 KiB and the whole is held by one HMAC."""
    verdict = Verdict(Effect.ALLOW, reasons=tuple("r" * 5000 for _ in range(100)), clear=("",), revision="v" * 9999)
    passage = walked(arguments_, name="\u202e" * 10_000, request_id="\u2028" * 10_000, verdict=verdict)
    record = decision_record(passage, REDACTOR)
    assert len(lines_of([record])[0]) <= 16 * 1024
    assert len(record["arguments"]) <= 2 * MAX_LEAVES
    assert record["arguments_hmac"] == REDACTOR.whole(arguments_)


def test_what_is_clear_is_shown_beside_a_shape_that_is_too_large() -> None:
    """Nobody can push a clear value out of the record by adding members."""
    crowd = {f"k{n}": {"a": n} for n in range(1000)}
    verdict = Verdict(Effect.ALLOW, clear=("/path",))
    shown = decision_record(walked({**crowd, "path": "/srv/a"}, verdict=verdict), REDACTOR)["arguments"]
    assert shown["/path"]["value"] == "/srv/a"
    assert shown[""]["type"] == "object"


def test_no_secret_has_a_way_in() -> None:
    """AUD-02: token, cookie, query, header values, claims and credentials in a replica's URL never enter."""
    from gateway.contract.passage import Received

    passage = ended(walked({"token": CANARY}))
    assert passage.server is not None
    headers = ((b"authorization", b"Bearer " + CANARY.encode()), (b"cookie", CANARY.encode()))
    passage.received = Received(passage.server, "POST", f"/readonly/mcp?access_token={CANARY}", headers)
    passage.replica = f"http://user:{CANARY}@10.0.0.1:8000/mcp"
    assert passage.identity is not None
    object.__setattr__(passage.identity, "claims", {"secret": CANARY})
    passage.refused = Refused(Refusal.TOKEN_INVALID, f"Bearer {CANARY}", secret=CANARY)
    for project in (decision_record, outcome_record, refusal_record):
        record = project(passage, REDACTOR)
        assert CANARY not in repr(record)
        assert CANARY not in repr(log_fields(record))


def test_a_detail_loses_what_looks_like_a_credential() -> None:
    """A room's sentence is kept, a token or credential that slipped into it is not."""
    assert remark("the audience is another server's") == "the audience is another server's"
    assert remark("a bearer token is missing") == "a bearer token is missing"
    token = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"
    assert "eyJ" not in remark(f"can't read {token}")
    assert "YWxpY2U6c2VjcmV0" not in remark("got Basic YWxpY2U6c2VjcmV0")


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        ("file:///srv/a.txt", "file:///srv/a.txt"),
        ("https://user:CANARY@host/p", "https://hmac:"),
        ("https://host/p?token=CANARY", "https://host/p?hmac:"),
        ("https://host/p#CANARY", "https://host/p#hmac:"),
        ("https://a@CANARY@host?x=CANARY#CANARY", "https://hmac:"),
        ("mailto:x?subject=CANARY", "mailto:x?hmac:"),
        ("data:text/plain;base64,CANARY", "data:text/plain;base64,hmac:"),
        ("DATA:,CANARY?CANARY#CANARY", "DATA:,hmac:"),
        ("data:CANARY", "data:"),
    ],
)
def test_a_resource_is_named_without_its_secrets(uri: str, kept: str) -> None:
    """Userinfo, query and fragment of a resource's URI are HMACs; scheme, host and path stay readable."""
    envelope = Envelope(b"{}", 1, "resources/read", {"uri": uri}, {})
    passage = Passage("d", 0.0, 0.0, envelope=envelope)
    passage.call = Call(envelope, "resource", "resources/read", uri, {}, {})
    name = decision_record(passage, REDACTOR)["name"]
    assert name.startswith(kept)
    assert "CANARY" not in name
    passage.call = None
    assert "CANARY" not in refusal_record(passage, REDACTOR)["name"]


# One line, whatever comes in


HOSTILE = "a\r\nb\x1b[31mc\u2028d\u2029e\u202ef\u2066g\x00h\x7fi\x9bj\ud800k\\l\ufeffm\u200bn\U000e0001o"


def test_a_replicas_url_is_remembered_within_bounds_as_its_key_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered is what `uri` says, for each key its own, and never of more URLs than a bound."""
    monkeypatch.setattr(redaction, "MAX_REPLICAS", 4)
    urls = [f"https://user:word{n}@10.0.0.{n}/mcp?key=secret" for n in range(10)]
    redactors = [REDACTOR, Redactor(AuditKeys(base64.urlsafe_b64encode(b"k" * 32).decode()))]
    for redactor in redactors:
        for url in (*urls, *urls):
            assert redactor.replica(url) == redactor.uri(url)
            assert len(redactor._replicas) <= 4
    assert redactors[0].replica(urls[0]) != redactors[1].replica(urls[0])


def test_hostile_text_is_one_escaped_line() -> None:
    """AUD-04: CR, LF, ANSI, U+2028, bidi and the like are escaped wherever a caller's text can come."""
    passage = walked({HOSTILE: HOSTILE}, name=HOSTILE, request_id=HOSTILE, tool=None)
    verdict = Verdict(Effect.ALLOW, reasons=(HOSTILE,), revision=HOSTILE, clear=("",))
    passage.verdict, passage.replica = verdict, HOSTILE
    passage.trace = ((b"traceparent", b"00-\x1b[31m\r\n\x00\x7f" + b"\x07" * 60),)
    assert passage.identity is not None
    object.__setattr__(passage.identity, "subject", HOSTILE)
    passage.refused = Refused(Refusal.PARAMS_INVALID, HOSTILE)
    records = [project(passage, REDACTOR) for project in (decision_record, refusal_record, outcome_record)]
    records.append(admin_record(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}))
    records.append(approval_record(transition(comment=HOSTILE, by=HOSTILE, seen=HOSTILE), REDACTOR))
    lines = lines_of(records)
    for line in lines:
        text = line.decode("utf-8")
        assert text.endswith("\n")
        assert text[:-1].isprintable()
        assert len(text.splitlines()) == 1
    assert verify_chain(lines).fault is None
    assert "\\u202e" in records[0]["name"]


@given(st.text(), st.text())
@unhurried
def test_escapes_tell_different_texts_apart(one: str, other: str) -> None:
    """Two different texts never look alike in a record (but for what was cut off)."""
    assert (printable(one, 10_000) == printable(other, 10_000)) == (one == other)


@given(st.text(alphabet=st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp", "Lu"])), st.integers(0, 200))
@unhurried
def test_printable_is_printable_and_bounded(text: str, limit: int) -> None:
    """Escaping never yields a character that acts on a terminal, nor more of them than asked."""
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit


def test_a_strange_name_is_cut_and_a_known_one_is_not() -> None:
    """A name that no server offers is escaped and cut to 128 characters; one that is offered stays whole."""
    name = "n" * 300
    assert decision_record(walked(name=name, tool=None), REDACTOR)["name"] == "n" * 128
    known = Tool(name, TOOL.digest, {}, {})
    assert decision_record(walked(name=name, tool=known), REDACTOR)["name"] == name
    assert len(decision_record(walked(name="\n" * 300, tool=None), REDACTOR)["name"]) == 128


def test_a_refusal_before_the_headers_agree_names_what_the_body_named() -> None:
    """A header mismatch is recorded with the body's method and name and the arguments' HMAC."""
    passage = walked({"path": CANARY}, tool=None, verdict=None)
    passage.call = None
    passage.refused = Refused(Refusal.HEADER_MISMATCH, "Mcp-Name")
    record = refusal_record(passage, REDACTOR)
    assert (record["method"], record["name"], record["reasons"]) == ("tools/call", "read_file", ["header_mismatch"])
    assert record["arguments_hmac"] == REDACTOR.whole({"path": CANARY})
    assert CANARY not in repr(record)


@pytest.mark.parametrize("params", [{"name": 5}, {"name": ["x"]}, {"arguments": "x"}, {"arguments": None}, {}])
def test_params_of_any_shape_are_recorded(params: dict[str, Any]) -> None:
    """A refusal of ill-typed params is still a record."""
    passage = walked()
    passage.call = passage.verdict = passage.tool = None
    passage.envelope = Envelope(b"{}", None, "tools/call", params, {})
    passage.refused = Refused(Refusal.PARAMS_INVALID)
    record = refusal_record(passage, REDACTOR)
    assert record["name"] is None
    assert verify_chain(lines_of([record])).fault is None


@given(arguments, st.text(), st.text() | st.integers(-(2**63), 2**63), st.floats(0, 1e7))
@settings(unhurried, max_examples=50)
def test_every_record_is_canonical_as_written(
    arguments_: dict[str, Any], name: str, request_id: str | int, latency_s: float
) -> None:
    """Whatever is called, the line that is written is the RFC 8785 form, and it verifies."""
    verdict = Verdict(Effect.ALLOW, clear=("",))
    passage = ended(walked(arguments_, name=name, request_id=request_id, verdict=verdict), latency_s=latency_s)
    records = [decision_record(passage, REDACTOR), outcome_record(passage, REDACTOR)]
    lines = lines_of(records)
    for line in lines:
        record = orjson.loads(line)
        digest = record.pop("hash")
        form = rfc8785.dumps(record)
        assert line == form[:-1] + b',"hash":"' + digest.encode() + b'"}\n'
        assert hashlib.sha256(record["prev"].encode() + form).hexdigest() == digest
    assert verify_chain(lines).fault is None


@given(arguments)
@settings(unhurried, max_examples=30)
def test_projecting_changes_nothing(arguments_: dict[str, Any]) -> None:
    """The record is a projection: what will be forwarded is untouched."""
    before = copy.deepcopy(arguments_)
    decision_record(walked(arguments_), REDACTOR)
    assert arguments_ == before


# The keys


def test_keys_are_read_and_named() -> None:
    """Several keys, padded or not: the first one is used, each has its own name that tells nothing of it."""
    other = base64.urlsafe_b64encode(b"\xff" * 32).decode()
    keys = AuditKeys(f" {KEY_TEXT}\n,{other.rstrip('=')}")
    assert keys.keys == (KEY, b"\xff" * 32)
    assert Redactor(keys).key_id == keys.key_ids[0] != keys.key_ids[1]
    assert KEY.hex() not in repr(keys)
    assert KEY_TEXT[:8] not in repr(keys)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ",",
        KEY_TEXT + ",",
        KEY_TEXT[:-2],
        KEY_TEXT + "A",
        KEY_TEXT.replace("A", "+", 1),
        base64.b64encode(b"\xff" * 32).decode(),
        base64.urlsafe_b64encode(bytes(31)).decode(),
        base64.urlsafe_b64encode(bytes(33)).decode(),
        KEY.hex(),
        f"{KEY_TEXT},{KEY_TEXT}",
        KEY_TEXT[:-2] + "9",
        KEY_TEXT + "==",
        "\N{SNAKE}" * 43,
    ],
)
def test_keys_of_any_other_form_are_refused(text: str) -> None:
    """A key is exactly 32 bytes in base64url with one spelling; the error names the variable and quotes nothing."""
    AuditKeys(KEY_TEXT)
    with pytest.raises(ValueError, match="OSTIARY_AUDIT_KEY") as caught:
        AuditKeys(text)
    assert len(text.strip()) < 8 or text.strip()[:8] not in str(caught.value)


# The chain


def test_a_whole_chain_verifies() -> None:
    """Unchanged lines give no fault, their count and the last hash."""
    lines = some_chain()
    judged = verify_chain(lines)
    assert judged.fault is None
    assert (judged.count, judged.writer) == (6, 0)
    assert judged.head == json.loads(lines[-1])["hash"]
    assert verify_chain([]).fault is None


CHAIN = some_chain()
WHOLE = b"".join(CHAIN)


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
@settings(unhurried, max_examples=400)
def test_any_flipped_byte_is_found_where_it_is(position: int, flip: int) -> None:
    """AUD-05: one changed byte anywhere, line ends included, is found, and the record it is in is named."""
    text = bytearray(WHOLE)
    text[position] ^= flip
    expected = WHOLE[:position].count(b"\n") + 1
    fault = verify_chain(bytes(text).splitlines(keepends=True) if flip == 0 else _split(bytes(text))).fault
    assert fault is not None
    assert fault.seq == fault.line == expected


def _split(text: bytes) -> list[bytes]:
    *lines, rest = text.split(b"\n")
    return [line + b"\n" for line in lines] + ([rest] if rest else [])


@pytest.mark.parametrize(
    ("change", "seq", "why"),
    [
        (lambda lines: lines[:2] + lines[3:], 3, "missing"),
        (lambda lines: lines[1:], 1, "head was cut"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2, "out of order"),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], 4, "out of order"),
        (lambda lines: [*lines[:3], lines[3].replace(b"alice", b"alicf"), *lines[4:]], 4, "hash"),
        (lambda lines: [*lines[:3], b"\n", *lines[3:]], 4, "not JSON"),
        (lambda lines: [*lines[:3], lines_of([admin_record("x")])[0], *lines[3:]], 4, "record 1 stands here"),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], 6, "torn"),
        (lambda lines: [*lines[:5], lines[5].replace(b'"writer":0', b'"writer":1')], 6, "hash"),
    ],
    ids=["delete", "cut head", "swap", "double", "edit", "empty line", "insert", "torn", "other writer"],
)
def test_tampering_is_named_by_its_first_bad_record(change: Any, seq: int, why: str) -> None:
    """AUD-05: delete, reorder, insert, double, cut the head: the first bad sequence number is named."""
    fault = verify_chain(change(list(CHAIN))).fault
    assert fault is not None
    assert (fault.seq, fault.line) == (seq, seq)
    assert why in fault.why


def test_a_rewritten_record_breaks_the_next_one() -> None:
    """A record that was changed and hashed anew no longer fits the one after it."""
    record = json.loads(CHAIN[2])
    del record["hash"]
    record["name"] = "other"
    forged = chain(record["prev"], record)[1]
    fault = verify_chain([*CHAIN[:2], forged, *CHAIN[3:]]).fault
    assert fault is not None
    assert fault.seq == 4
    assert "does not follow" in fault.why


def test_a_cut_tail_shows_against_a_checkpoint_only() -> None:
    """AUD-06: without its last records a chain looks whole; count and head from outside tell."""
    whole = verify_chain(CHAIN)
    point = Checkpoint(0, whole.count, whole.head)
    assert verify_chain(CHAIN, [point]).fault is None
    assert verify_chain([*CHAIN, *[]], [point]).fault is None
    assert verify_chain(CHAIN[:-2]).fault is None
    fault = verify_chain(CHAIN[:-2], [point]).fault
    assert fault is not None
    assert (fault.seq, "tail was cut" in fault.why) == (5, True)


def test_a_swapped_chain_shows_against_a_checkpoint() -> None:
    """AUD-06: a valid chain in the place of another one is found at the checkpoint's record."""
    head = json.loads(CHAIN[3])["hash"]
    other = lines_of([admin_record(f"act-{n}") for n in range(9)])
    assert verify_chain(other).fault is None
    fault = verify_chain(other, [Checkpoint(0, 4, head)]).fault
    assert fault is not None
    assert fault.seq == 4
    disagreeing = verify_chain(CHAIN, [Checkpoint(0, 4, head), Checkpoint(0, 4, ZERO)]).fault
    assert disagreeing is not None


def test_a_chain_of_another_writer_is_not_taken() -> None:
    """AUD-06: one writer's valid chain can't stand in another writer's file."""
    theirs = some_chain(writer=1)
    assert verify_chain(theirs, writer=1).fault is None
    fault = verify_chain(theirs, writer=0).fault
    assert fault is not None
    assert fault.seq == 1
    assert verify_chain(theirs, [Checkpoint(0, 99, ZERO)], writer=1).fault is None


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\n",
        b"[]\n",
        b"null\n",
        b"{}\n",
        b"[" * 60_000 + b"\n",
        b'{"a":' * 10_000 + b"\n",
        b"x" * (MAX_LINE + 1),
        CHAIN[0].replace(b'"seq":1', b'"seq":1.0'),
        CHAIN[0].replace(b'"seq":1', b'"seq":"1"'),
        CHAIN[0].replace(b'"seq":1', b'"seq":true'),
        CHAIN[0].replace(b'"seq":1', b'"seq":99999999999999999999999'),
        CHAIN[0].replace(b'{"actor"', b'{ "actor"'),
        CHAIN[0].replace(b'"kind":"decision"', b'"kind":[]'),
        CHAIN[0].replace(b'"kind":"decision"', b'"kind":"other"'),
        CHAIN[0].replace(b'"prev":"0', b'"prev":"G'),
        CHAIN[0].replace(b"\n", b" \n"),
        CHAIN[0].replace(b"\n", b"\r\n"),
    ],
)
def test_hostile_lines_are_named_not_crashed_on(line: bytes) -> None:
    """A line of any content is a finding at its place."""
    assert verify_chain(CHAIN[:1]).fault is None
    fault = verify_chain([line, *CHAIN[1:]]).fault
    assert fault is not None
    assert fault.seq == 1


@pytest.mark.parametrize(
    "spelling",
    [
        lambda form: form.replace(b'"count":1', b'"count":1,"count":1'),
        lambda form: form.replace(b'"count":1', b'"count":1.0'),
        lambda form: form.replace(b'"count":1', b'"count":1e0'),
        lambda form: form.replace(b'"latency_ms":12.5', b'"latency_ms":12.50'),
        lambda form: form.replace(b"alice", b"\\u0061lice"),
        lambda form: form.replace(b",", b", "),
        lambda form: form.replace(b'"latency_ms":12.5', b'"latency_ms":12345678901234567890'),
    ],
)
def test_another_spelling_is_not_the_record(spelling: Any) -> None:
    """A line that is hashed rightly but not spelled canonically (a member twice, `1.0`) has two readings: refused."""
    record = {**outcome_record(ended(walked()), REDACTOR), "seq": 1, "prev": ZERO, "writer": 0, "time": "t"}
    form = rfc8785.dumps(record)

    def line(text: bytes) -> bytes:
        digest = hashlib.sha256(ZERO.encode() + text).hexdigest()
        return text[:-1] + b',"hash":"' + digest.encode() + b'"}\n'

    assert read_line(line(form))[1] == ""
    changed = spelling(form)
    assert changed != form
    assert read_line(line(changed))[1] != ""


@given(st.binary(max_size=200))
@unhurried
def test_no_bytes_make_the_verifier_raise(text: bytes) -> None:
    """The verifier never raises, whatever a line holds."""
    judged = Chain()
    assert judged.read(text) is None
    assert judged.end() is not None


def test_the_verifier_reads_on_in_constant_memory() -> None:
    """Nothing of a record is kept: the judge's state after many records is as small as after one."""
    judged = Chain()
    for line in some_chain(200):
        assert judged.read(line) is not None
    state: Mapping[str, Any] = {name: getattr(judged, name) for name in Chain.__slots__}
    assert len(repr(state)) < 500


def test_random_keys_make_unlinkable_records() -> None:
    """Two installations' records of the same value have nothing in common."""
    tags = set()
    for _ in range(8):
        redactor = Redactor(AuditKeys(base64.urlsafe_b64encode(os.urandom(32)).decode()))
        tags.add(decision_record(walked(), redactor)["arguments"]["/path"]["hmac"])
    assert len(tags) == 8


@pytest.mark.parametrize(
    ("by", "issuer", "subject"),
    [
        ("https://idp.example.com|bob", "https://idp.example.com", "bob"),
        ("https://idp.example.com|team|bob", "https://idp.example.com", "team|bob"),
        ("local:0@host", "", "local:0@host"),
        ("ostiary", "", "ostiary"),
    ],
)
def test_who_moved_a_ticket_is_read_one_way(by: str, issuer: str, subject: str) -> None:
    """`by` ends its issuer at the first bar: a subject with one is not taken for another issuer's."""
    actor = approval_record(replace(transition(), by=by), REDACTOR)["actor"]
    assert (actor["issuer"], actor["subject"]) == (issuer, subject)
