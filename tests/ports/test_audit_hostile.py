"""Records that anybody may have written: each member is replaced by what it never is, and no command breaks by it.

The pages' twin is `tests/edge/test_review_audit.py`, `test_whatever_the_files_hold_is_a_page`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.contract.record import admin_record, approval_record
from tests.contract.walked import REDACTOR, transition
from tests.ports.test_audit import decision, outcome, refusal
from tests.ports.test_audit_search import at, written
from tests.ports.test_bundle import write_bundle

ID = f"{1:032x}"
ACTS = "\x1b]0;x\x07\u2028\u202e"
GARBAGE: tuple[Any, ...] = (
    None, True, 0, -1.5, 1e300, -1e300, "", ACTS, "=1+1", "0001-01-01T00:00:00", "9999-12-31T23:59:59.999-23:59",
    [], [1], [ACTS], [[ACTS]], [{}], {}, {ACTS: ACTS}, {"subject": [], "issuer": 1}, {"/a": 1, "/b": []},
    {"/a": {"value": 1}, "/a/b": {"value": 2}, "/a/b/c": {"value": 3}}, {"": {}}, "tools/call", "deny",
)  # fmt: skip
FORGED: tuple[str, ...] = ("transition", "by", "act", "facts", "requester", "leg", "replay_of", "answers_ticket")
RULES = """package mcp.authz

import rego.v1

default decision := {"effect": "deny", "reasons": ["planted"]}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chain that verifies: every member of every kind of record, once with each of `GARBAGE`."""
    file = tmp_path_factory.mktemp("hostile") / "audit.jsonl"
    allowed = {**decision(1), "verdict": "allow", "reasons": ["allowed"], "method": "tools/call", "name": "read_file"}
    refused = {**refusal(1), "verdict": "allow", "reasons": ["policy_denied", "x"], "decision_id": ID}
    kinds = [allowed, outcome(1), refused, approval_record(transition(), REDACTOR, ID), admin_record("x", "y")]
    records = []
    for kind in kinds:
        for name in (*kind, *FORGED):
            if name not in ("kind", "decision_id", "hash", "prev", "seq", "writer"):
                records += [{**at({**kind, "method": "tools/call"}, 1), name: value} for value in GARBAGE]
    written(file, [at(allowed, 0), *records])
    return file


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [*map(str, words)], env={"OSTIARY_CONFIG": ""})


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, ("audit", "verify", "--file")),
        (0, ("audit", "verify", "--json", "--file")),
        (0, ("audit", "tail", "-n", "100000", "--file")),
        (0, ("audit", "tail", "-n", "100000", "--json", "--file")),
        (0, ("audit", "search", "-n", "0", "--who", "alice", "--since", "2026-11-30", "--file")),
        (0, ("audit", "search", "-n", "0", "--reason", "allowed", "--json", "--file")),
        (0, ("audit", "export", "--format", "csv", "--out", "-", "--file")),
        (0, ("audit", "export", "--format", "ocsf", "--out", "-", "--file")),
        (0, ("explain", ID, "--file")),
        (0, ("explain", ID, "--json", "--file")),
    ],
    ids=lambda value: "-".join(value[:3]) if isinstance(value, tuple) else None,
)
def test_no_record_breaks_a_command_or_acts_on_a_terminal(file: Path, code: int, words: tuple[str, ...]) -> None:
    """AUD-04: whatever its members hold, a chain that verifies is told, and nothing of it reaches a terminal raw."""
    done = run(*words, file)
    assert (done.exit_code, done.exception) == (code, None), (done.exception, done.output[-300:])
    assert not any(char in done.output + done.stderr for char in ACTS if char not in "]0;x")


def test_no_record_breaks_a_replay(file: Path, tmp_path: Path) -> None:
    """What no sink wrote is not judged again; what is, is told in printable characters."""
    done = run("policy", "replay", "--bundle", write_bundle(tmp_path / "new", RULES), "--audit", file)
    assert (done.exit_code, type(done.exception)) == (1, SystemExit), (done.exception, done.output[-300:])
    assert "allow (allowed) -> deny (planted)" in done.output
    assert not any(char in done.output for char in ACTS if char not in "]0;x")


@pytest.mark.parametrize("depth", [100, 400, 1000])
def test_nothing_is_too_deep(tmp_path: Path, depth: int) -> None:
    """A line that is nested deeper than can be written again is shown as what it is, or passed over."""
    line = orjson.dumps(at({**decision(1), "name": ""}, 1)).replace(
        b'"name":""', b'"name":' + b"[" * depth + b"]" * depth
    )
    file = tmp_path / "audit.jsonl"
    file.write_bytes(line + b"\n")
    tail, told = ("audit", "tail"), ("explain", ID)
    commands = (tail, (*tail, "--json"), ("audit", "search"), told, (*told, "--json"))
    replayed = ("policy", "replay", "--bundle", str(write_bundle(tmp_path / "new", RULES)), "--audit")
    for words in (*((*one, "--file") for one in commands), replayed):
        done = run(*words, file)
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
