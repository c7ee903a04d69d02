"""`ostiary explain`: the whole story of one request, in the words of docs/refusals.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.audit.commands import audit
from gateway.audit.explaining import explain
from gateway.audit.story import refusal_words
from gateway.contract.record import approval_record
from gateway.contract.refusals import Refusal
from tests.contract.walked import REDACTOR, transition
from tests.ports.test_audit import decision, outcome, refusal
from tests.ports.test_audit_search import at, written

ID = f"{1:032x}"


def ask(file: Path, *words: str) -> Result:
    return CliRunner().invoke(explain, [*words, "--file", str(file)])


def test_every_refusal_has_words() -> None:
    """The page is the only source, and has a paragraph for every row; no mark of Markdown is left in it."""
    words = refusal_words()
    assert set(words) == {one.reason for one in Refusal}
    assert all(
        len(text) > 20 and "](" not in text and "**" not in text and "#" not in text[:3] for text in words.values()
    )


def test_a_calls_story_goes_from_its_ticket_to_its_end(tmp_path: Path) -> None:
    """Who asked for what, who approved it, that it was forwarded, how it ended; in order, over writers."""
    file = tmp_path / "audit.jsonl"
    written(file, [at(decision(1), 3, ticket="t-1"), at(outcome(1), 4, ticket="t-1"), at(decision(2), 5)])
    written(file, [at(approval_record(transition(), REDACTOR), 2)], writer=1)
    told = ask(file, ID)
    assert told.exit_code == 0
    lines = told.output.splitlines()
    assert lines[0] == "tools/call read_file at readonly"
    assert "subject alice" in lines[1]
    shown = [line.partition("  ")[2] for line in lines if line.startswith("2026")]
    assert [line.split()[0] for line in shown] == ["ticket", "decided:", "ended:"]
    assert "approve by https://idp.example.com|bob" in shown[0]
    assert "executed" in shown[2]
    document = json.loads(ask(file, ID, "--json").output)
    assert [record["kind"] for record in document["records"]] == ["approval", "decision", "outcome"]


@pytest.mark.parametrize(
    ("why", "detail", "words"),
    [
        (Refusal.SCOPE_INSUFFICIENT, "missing files:write", "ask for all the scopes"),
        (Refusal.HEADER_MISMATCH, "Mcp-Name says other", "derive the headers from the body"),
        (Refusal.POLICY_DENIED, "", "look at the record's reasons"),
    ],
)
def test_a_refusal_is_told_in_the_pages_words(tmp_path: Path, why: Refusal, detail: str, words: str) -> None:
    """The reason, what to do about it, the detail that the caller never got, the policy's own reasons."""
    file = tmp_path / "audit.jsonl"
    reasons = [why.reason, "readers_only"]
    written(file, [at(refusal(1, why), 1, reasons=reasons, detail=detail or None)])
    told = ask(file, ID)
    assert told.exit_code == 0
    assert f"why: {why.reason}: " in told.output
    assert words in told.output.replace("`", "")
    assert "the policy's reasons: readers_only" in told.output
    assert (f"in detail: {detail}" in told.output) == bool(detail)


def test_a_refusal_without_a_code_tells_none(tmp_path: Path) -> None:
    """What the approvals API refuses has a status and no JSON-RPC code; a call's refusal has both."""
    file = tmp_path / "audit.jsonl"
    written(file, [at(refusal(1, Refusal.POLICY_DENIED), 1)])
    assert "refused: policy_denied, status 403, code 40302" in ask(file, ID).output
    written(file, [at(refusal(1, Refusal.POLICY_DENIED), 1, code=None)])
    told = ask(file, ID).output
    assert "refused: policy_denied, status 403" in told
    assert "code" not in told.partition("refused: ")[2].partition("\n")[0]


def test_a_floods_record_says_how_often_and_of_how_many(tmp_path: Path) -> None:
    """One refusal stands for many: the story says so, and an unknown id is told that it may be one of them."""
    times = {"first": "2026-11-30T10:02:00.000Z", "last": "2026-11-30T10:02:00.900Z"}
    file = tmp_path / "audit.jsonl"
    written(file, [at(refusal(1), 3, count=480, **times), at(refusal(2), 4, count=9, actors=7, **times)])
    often = f"times from {times['first']} to {times['last']}"
    assert f"refused: token_missing, status 401, code 40101, 480 {often}" in ask(file, ID).output
    several = ask(file, f"{2:032x}").output
    assert f"code 40101, 9 times of 7 callers from {times['first']}" in several
    assert "names the first alone" in ask(file, f"{3:032x}").stderr


def test_what_a_flood_mixed_is_not_said_to_be_one_reasons_or_a_strangers(tmp_path: Path) -> None:
    """Its record has no status, and of several callers no name: the story claims neither, and no policy said it."""
    times = {"first": "2026-11-30T10:02:00.000Z", "last": "2026-11-30T10:02:00.900Z"}
    mixed = {"status": None, "code": None, "server": None, "reasons": ["header_mismatch", "meta_missing"], **times}
    file = tmp_path / "audit.jsonl"
    written(file, [at(refusal(1), 3, **mixed, count=718, actors=9)])
    told = ask(file, ID).output
    assert "refused, each for one of these: header_mismatch, meta_missing, 718 times of 9 callers from" in told
    assert "by one of 9 callers\n" in told
    for untrue in ("None", "not known", "the policy's reasons"):
        assert untrue not in told
    line = CliRunner().invoke(audit, ["search", "--file", str(file)]).output
    assert "  9 callers  " in line
    assert "  header_mismatch,meta_missing  718 times  " in line


def test_the_policys_reasons_are_its_own(tmp_path: Path) -> None:
    """Why a call is held is the desk's word, and the detail; a policy's reason of that name is one."""
    file = tmp_path / "audit.jsonl"
    held = {**refusal(1, Refusal.APPROVAL_REQUIRED), "detail": "pending"}
    held["reasons"] = ["approval_required", "pending", "approval_needed", "pending"]
    written(
        file, [at(held, 1), at({**refusal(2, Refusal.POLICY_DENIED), "reasons": ["policy_denied", "pending"]}, 2)]
    )
    assert "the policy's reasons: approval_needed, pending\n" in ask(file, ID).output
    other = CliRunner().invoke(explain, [f"{2:032x}", "--file", str(file)])
    assert "the policy's reasons: pending\n" in other.output


def test_an_unknown_id_is_1_and_hostile_text_is_escaped(tmp_path: Path) -> None:
    """AUD-04: nothing that a file or the command line holds acts on a terminal."""
    file = tmp_path / "audit.jsonl"
    written(file, [at(decision(1), 1, name="a\x1b[2J\u202eb")])
    assert "\x1b" not in ask(file, ID).output
    assert "\x1b" not in ask(file, ID, "--json").output
    unknown = ask(file, "\x1b[2Jno")
    assert (unknown.exit_code, "\x1b" in unknown.output + unknown.stderr) == (1, False)
    assert ask(tmp_path / "absent", ID).exit_code == 2


def test_a_replay_tells_of_the_call_that_ran(tmp_path: Path) -> None:
    """What was told again, and how that came about: the other decision's records and its ticket's, in order."""
    file, ran = tmp_path / "audit.jsonl", f"{2:032x}"
    of = {"replay_of": ran, "idempotency_key": "hmac"}
    first = [at(decision(2), 3, ticket="t-1"), at(outcome(2), 4, ticket="t-1")]
    written(file, [*first, at(decision(1), 6, **of), at(outcome(1), 7, outcome="replayed", **of)])
    written(file, [at(approval_record(transition(), REDACTOR), 2)], writer=1)
    told = ask(file, ID)
    assert told.exit_code == 0
    shown = [line.partition("  ")[2] for line in told.output.splitlines() if line.startswith("2026")]
    words = ["ticket", f"({ran})", f"({ran})", "decided:", "ended:"]
    assert [line.split()[0] for line in shown] == words
    assert f"told again what came of {ran}" in shown[3]
    assert "replayed" in shown[4]
