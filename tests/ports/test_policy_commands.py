"""`ostiary policy test`: a bundle's own tests, with coverage, without OPA and with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import main
from policies.bundles import load_bundle
from policies.rego_tests import Coverage, run_bundle_tests
from tests.ports.test_bundle import write_bundle

SHIPPED = Path(__file__).parents[2] / "policies" / "bundle"
RULES = """package mcp.authz

import rego.v1

default decision := {"effect": "deny"}

decision := {"effect": "allow"} if input.request.name == "read"

decision := {"effect": "approve", "approval": {"approvers": ["user:ann"]}} if {
	input.request.name == "write"
	input.subject.id != "bob"
}
"""
TESTS = """package mcp.authz_test

import rego.v1

test_read if data.mcp.authz.decision.effect == "allow" with input as {"request": {"name": "read"}}
"""
NOT_SO = """
test_no if data.mcp.authz.decision.effect == "deny" with input as {"request": {"name": "read"}}
"""


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["policy", *words], env={})
    return done.exit_code, done.output


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = write_bundle(tmp_path / "bundle", RULES)
    (folder / "mcp/authz/authz_test.rego").write_text(TESTS)
    return folder


def test_what_holds_is_0_what_does_not_1_what_cannot_be_asked_2(bundle: Path, tmp_path: Path) -> None:
    """Each test is named; one that fails is the answer no; a bundle that does not load was not asked."""
    assert run("test", str(bundle)) == (0, "ok   data.mcp.authz_test.test_read\n1 of 1 passed\n")
    (bundle / "mcp/authz/more_test.rego").write_text(
        "package mcp.authz_test\n\ntest_no if data.mcp.authz.decision == 1\n"
    )
    code, told = run("test", str(bundle))
    assert code == 1
    assert "FAIL data.mcp.authz_test.test_no" in told
    assert "1 of 2 passed" in told
    assert json.loads(run("test", str(bundle), "--json")[1])["tests"][1]["passed"] is False
    for what in (str(tmp_path / "nowhere"), "--config", str(tmp_path / "none.yaml")):
        assert run("test", what)[0] == 2
    assert run("test")[0] == 2
    assert json.loads(run("test", str(tmp_path), "--json")[1])["error"] == "not_asked"


def test_coverage_names_the_lines_that_no_test_evaluated(bundle: Path) -> None:
    """Of the rules, not of the tests; a line that one test evaluates is covered, whatever the others do."""
    code, told = run("test", str(bundle), "--coverage", "--json")
    found: dict[str, Any] = json.loads(told)["coverage"]
    assert code == 0
    assert list(found) == ["mcp/authz/authz.rego"]
    lines = found["mcp/authz/authz.rego"]
    assert 7 in lines["covered"]
    assert 11 in lines["not_covered"], lines
    assert not set(lines["covered"]) & set(lines["not_covered"])
    assert "not 9, 11" in run("test", str(bundle), "--coverage")[1]


def test_coverage_survives_a_test_that_fails(bundle: Path) -> None:
    """An evaluation that fails gets a fresh engine, and what was seen before it is not forgotten."""
    (bundle / "mcp/authz/authz_test.rego").write_text(TESTS + '\ntest_then_fails if upper(1) == "x"\n')
    seen = Coverage()
    outcomes = run_bundle_tests(load_bundle(bundle), timeout_s=5, coverage=seen)
    assert [one.passed for one in outcomes] == [True, False]
    assert 7 in seen.files()["mcp/authz/authz.rego"][0]


def test_the_shipped_rules_are_covered_by_their_tests() -> None:
    """Hardly a line of the default bundle is evaluated by no test of its own."""
    seen = Coverage()
    assert all(one.passed for one in run_bundle_tests(load_bundle(SHIPPED), timeout_s=10, coverage=seen))
    covered, missed = seen.files()["mcp/authz/authz.rego"]
    assert len(covered) > 150
    assert len(missed) <= 3, missed


def test_the_real_opa_says_the_same(bundle: Path, opa_program: Path) -> None:
    """With `--opa` the tests run in both engines; one that fails in either is the answer no."""
    code, told = run("test", str(SHIPPED), "--opa", str(opa_program), "--json")
    found = json.loads(told)
    assert code == 0
    names = [{one["name"] for one in found[engine]} for engine in ("tests", "opa")]
    assert names[0] == names[1]
    assert len(names[0]) > 40
    failing = TESTS + NOT_SO
    (bundle / "mcp/authz/authz_test.rego").write_text(failing)
    code, told = run("test", str(bundle), "--opa", str(opa_program))
    assert code == 1
    assert "OPA: FAIL data.mcp.authz_test.test_no: does not hold" in told
    assert run("test", str(bundle), "--opa", str(bundle / "none"))[0] == 2
    assert os.access(opa_program, os.X_OK)


PROMISES = """package mcp.authz

import rego.v1

default decision := {"effect": "deny"}

promised := {"effect": "allow", "any_arguments": true}

decision := promised if input.request.name == "kept"

decision := promised if {
	input.request.name == "amount"
	input.request.arguments.order.amount <= 5000
}

decision := promised if {
	input.request.name == "word"
	input.request.arguments.currency in ["EUR", "USD"]
}

decision := promised if {
	input.request.name == "clock"
	time.weekday(time.now_ns()) != "Sunday"
	time.now_ns() < 4000000000000000000
}

decision := {"effect": "allow"} if {
	input.request.name == "silent"
	input.request.arguments.amount > 1
}
"""


def test_a_promise_that_is_not_kept_is_found(tmp_path: Path) -> None:
    """`any_arguments` is asked again with other arguments and at other times; what keeps it and what does not say it
    is no finding."""
    folder = write_bundle(tmp_path / "bundle", PROMISES)
    code, told = run("test", str(folder))
    assert code == 1
    broken = [line.split(": ")[0] for line in told.splitlines() if line.startswith("FAIL")]
    assert broken == [f"FAIL any_arguments of (another) tools/call {name}" for name in ("amount", "clock", "word")]
    kept = PROMISES[: PROMISES.index("decision := promised if {")]
    assert run("test", str(write_bundle(tmp_path / "kept", kept))) == (0, "0 of 0 passed\n")
