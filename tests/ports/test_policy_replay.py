"""`ostiary policy replay`: a planted difference is found and only it; what the record lacks is said, not guessed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.audit.place import Place
from gateway.audit.tables import connect, make_tables
from gateway.cli import main
from gateway.rehearsal.commands import PolicyDoor, policy
from gateway.rehearsal.replay import rebuild
from tests.ports.test_bundle import write_bundle
from tests.support.postgres import Postgres

RULES = """package mcp.authz

import rego.v1

default decision := {"effect": "deny", "reasons": ["not_listed"]}

decision := {"effect": "allow", "reasons": ["reads"]} if input.request.name == "read"

decision := {"effect": "allow", "reasons": ["small"]} if {
	input.request.name == "pay"
	input.request.arguments.amount < LIMIT
}

decision := {"effect": "allow", "reasons": ["tenant"]} if {
	input.request.name == "report"
	input.subject.tenant == "acme"
}
"""
NUMBERS = iter(range(10**6))


def record(name: str, verdict: str, reason: str, amount: int | None = None, **more: Any) -> dict[str, Any]:
    shape: dict[str, Any] = {"": {"type": "object", "size": 0}}
    if amount is not None:
        shape = {"/amount": {"type": "integer", "value": amount}, "/note": {"type": "string", "size": 9, "hmac": "x"}}
    refused = verdict == "deny"
    return {
        "kind": "refusal" if refused else "decision", "time": f"2026-11-30T10:{next(NUMBERS) % 60:02}:00.000Z",
        "server": "files", "resource": "https://gw.example/files", "environment": "", "method": "tools/call",
        "name": name, "actor": {"issuer": "https://i", "subject": "bob", "client": "c"}, "verdict": verdict,
        "reasons": (["policy_denied"] if refused else []) + [reason], "arguments": shape, **more,
    }  # fmt: skip


@pytest.fixture
def bundles(tmp_path: Path) -> tuple[Path, Path]:
    old = write_bundle(tmp_path / "old", RULES.replace("LIMIT", "100"))
    new = write_bundle(tmp_path / "new", RULES.replace("LIMIT", "50"), manifest='{"revision": "r2"}')
    return old, new


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    records = [
        *(record("read", "allow", "reads") for _ in range(5)),
        *(record("pay", "allow", "small", amount) for amount in (10, 60, 70)),
        record("pay", "deny", "not_listed", 500),
        record("report", "allow", "tenant"),
        record("gone", "deny", "not_listed"),
        record("read", "allow", "reads", kind="outcome"),
        record("read", "allow", "reads", method="tools/list"),
        record("read", "allow", "reads", leg=2),
        record("made \\u202e up", "deny", "not_listed"),
        {**record("read", "deny", "x"), "verdict": None},
    ]
    file = tmp_path / "audit.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    return file


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["policy", "replay", *map(str, words)], env={})
    return done.exit_code, done.output


def test_a_planted_difference_is_found_and_only_it(bundles: tuple[Path, Path], audit: Path) -> None:
    """Two payments between the limits would be denied; the report, which a tenant decided, is not guessed at."""
    old, new = bundles
    code, told = run("--bundle", new, "--audit", audit, "--baseline", old, "--json")
    found = json.loads(told)
    assert code == 1
    assert {name: found[name] for name in ("same", "changed", "failed", "unsure", "skipped")} == {
        "same": 8, "changed": 2, "failed": 0, "unsure": 1, "skipped": 5,
    }  # fmt: skip
    assert found["changes"] == [
        {
            "server": "files", "method": "tools/call", "name": "pay", "recorded": "allow", "then": "deny",
            "recorded_reason": "small", "then_reason": "not_listed", "difference": "allow_to_deny", "how": "",
            "count": 2,
        }
    ]  # fmt: skip
    assert found["without_arguments"] == 4, "the notes of the payments are not in the record"
    text = run("--bundle", new, "--audit", audit, "--baseline", old)[1]
    assert "2 x files tools/call pay: allow (small) -> deny (not_listed)" in text
    assert "1 can't be told" in text
    assert "4 were judged without arguments" in text


def test_held_calls_are_grouped_by_the_policys_reason(bundles: tuple[Path, Path], tmp_path: Path) -> None:
    """A call that waits, one that a person denied and one that ran under its approval were judged for one reason."""
    file = tmp_path / "audit.jsonl"
    kept = record("pay", "approve", "approval_needed")
    held = [
        {**kept, "kind": "refusal", "reasons": [name, why, "approval_needed"]}
        for name, why in (("approval_required", "pending"), ("approval_refused", "denied"))
    ]
    file.write_text("".join(json.dumps(one) + "\n" for one in (kept, *held)))
    changes = json.loads(run("--bundle", bundles[1], "--audit", file, "--json")[1])["changes"]
    assert [(one["recorded_reason"], one["count"]) for one in changes] == [("approval_needed", 3)]


def test_the_same_bundle_changes_nothing(bundles: tuple[Path, Path], audit: Path) -> None:
    """Exit code 0, and what could not be told is told."""
    old, _ = bundles
    code, told = run("--bundle", old, "--audit", audit, "--baseline", old)
    assert code == 0
    assert "0 would change" in told
    assert "1 can't be told" in told


def test_without_a_baseline_it_says_what_that_means(bundles: tuple[Path, Path], audit: Path) -> None:
    """Then the report counts as changed, and the reader is told why it may not be."""
    code, told = run("--bundle", bundles[0], "--audit", audit)
    assert code == 1
    assert "1 x files tools/call report: allow (tenant) -> deny (not_listed)" in told
    assert "compared with the record alone" in told


def test_the_configurations_own_record_is_judged_wherever_it_lies(
    bundles: tuple[Path, Path], audit: Path, postgres: Postgres
) -> None:
    """Without `--audit` it is that of `--config`, in files or in PostgreSQL, and the answer is the same."""
    old, new = bundles
    url, lines = postgres.create(), audit.read_text().splitlines()
    asyncio.run(made(url))
    for number, line in enumerate(lines, 1):
        text = line.encode().hex()
        row = f"INSERT INTO ostiary_audit VALUES (0, {number}, false, decode('{text}', 'hex'))"
        postgres.sql(row, url.rpartition("/")[2])
    told = [
        CliRunner().invoke(
            policy,
            ["replay", "--bundle", str(new), "--config", "x", "--json"],
            obj=PolicyDoor(lambda _: old, lambda _: old, lambda _, place=place: place),  # type: ignore[misc]
        )
        for place in (Place(audit), Place(audit.with_name("absent"), url))
    ]
    expected = run("--bundle", new, "--audit", audit, "--baseline", old, "--json")
    assert [(one.exit_code, one.output) for one in told] == [expected] * 2
    assert run("--bundle", new)[0] == 2, "which record?"


async def made(url: str) -> None:
    connection = await connect(url, 20.0)
    await make_tables(connection)
    await connection.close()


def test_a_time_limits_what_is_judged(bundles: tuple[Path, Path], audit: Path) -> None:
    """`--since` and `--until` as everywhere."""
    code, told = run("--bundle", bundles[1], "--audit", audit, "--since", "2030-01-01", "--json")
    assert (code, json.loads(told)["skipped"], json.loads(told)["same"]) == (0, 0, 0)


def test_what_cannot_be_asked_is_2(bundles: tuple[Path, Path], audit: Path, tmp_path: Path) -> None:
    """A bundle that does not load, a record that is not there."""
    (tmp_path / "bad").mkdir()
    assert run("--bundle", tmp_path / "bad", "--audit", audit)[0] == 2
    assert run("--bundle", bundles[0], "--audit", tmp_path / "none.jsonl")[0] == 2


def test_scopes_and_terms_count_as_well(bundles: tuple[Path, Path], audit: Path, tmp_path: Path) -> None:
    """Where a call would stay allowed but for another scope, or be approved by fewer: compared with the baseline."""
    terms = '{"approvers": ["user:ann"], "min_approvers": MOST}'
    wipe = f'{{"effect": "approve", "reasons": ["gate"], "approval": {terms}}} if input.request.name == "wipe"'
    asking = f"{RULES.replace('LIMIT', '100')}\ndecision := {wipe}\n"
    old = write_bundle(tmp_path / "asks", asking.replace("MOST", "2"), manifest='{"revision": "r3"}')
    laxer = asking.replace("MOST", "1").replace('"reasons": ["reads"]', '"reasons": ["other"], "scopes": ["x"]')
    new = write_bundle(tmp_path / "laxer", laxer, manifest='{"revision": "r4"}')
    with audit.open("a") as stream:
        stream.write(json.dumps(record("wipe", "approve", "gate")) + "\n")
    code, told = run("--bundle", new, "--audit", audit, "--baseline", old, "--json")
    found = {one["name"]: one for one in json.loads(told)["changes"]}
    assert (code, set(found)) == (1, {"read", "wipe"})
    assert (found["read"]["difference"], found["read"]["count"], found["read"]["how"]) == ("scopes", 5, '[] -> ["x"]')
    assert found["wipe"]["difference"] == "approval"
    assert '"min_approvers": 2' in found["wipe"]["how"]
    renamed = asking.replace("MOST", "2").replace('"reasons": ["reads"]', '"reasons": ["other"]')
    named = write_bundle(tmp_path / "renamed", renamed, manifest='{"revision": "r5"}')
    assert run("--bundle", named, "--audit", audit, "--baseline", old)[0] == 0, "another word for it is no change"


def test_a_candidate_without_a_verdict_is_a_change(bundles: tuple[Path, Path], audit: Path, tmp_path: Path) -> None:
    """Where it would be a 503, callers would notice."""
    failing = RULES.replace("LIMIT", "100").replace('"reasons": ["reads"]', '"reasons": "reads"')
    bad = write_bundle(tmp_path / "failing", failing, manifest='{"revision": "r3"}')
    code, told = run("--bundle", bad, "--audit", audit, "--baseline", bundles[0], "--json")
    assert (code, json.loads(told)["failed"]) == (1, 5)


@pytest.mark.parametrize(
    ("shape", "arguments", "whole"),
    [
        ({"": {"type": "object", "size": 0}}, {}, True),
        (
            {"/a/b": {"type": "integer", "value": 1}, "/a/c~1d": {"type": "string", "value": "x"}},
            {"a": {"b": 1, "c/d": "x"}},
            True,
        ),
        ({"/a": {"type": "integer", "value": 1}, "/b": {"type": "string", "hmac": "x"}}, {"a": 1}, False),
        ({"/a/0": {"type": "integer", "value": 1}}, {}, False),
        ({"/#0f": {"type": "integer", "value": 1}}, {}, False),
        ({"": {"type": "object", "size": 9, "hmac": "x"}}, {}, False),
    ],
)
def test_arguments_are_rebuilt_as_far_as_they_are_there(shape: Any, arguments: Any, whole: bool) -> None:
    """Only what is in clear, at its own place; everything else is missing and counted."""
    made = rebuild(record("read", "allow", "reads") | {"arguments": shape})
    assert made is not None
    assert json.loads(made.question)["request"]["arguments"] == arguments
    assert made.whole is whole
