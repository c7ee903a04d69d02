"""The bundle that comes with the gateway: its own Rego tests, its documentation, and that lists agree with calls."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from policies.embedded import EmbeddedPolicy
from policies.rego_tests import run_tests
from policies.verdict import Effect, PolicyUnavailable
from tests.ports.test_bundle import write_bundle

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "policies" / "bundle"
PAGE = ROOT / "docs" / "policy.md"


def documented_data() -> dict[str, Any]:
    """The worked example of docs/policy.md."""
    found = re.search(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.fixture
async def documented(tmp_path: Path) -> AsyncIterator[EmbeddedPolicy]:
    """The default rules on the worked example's data."""
    shutil.copytree(BUNDLE, tmp_path / "bundle")
    (tmp_path / "bundle/mcp/authz/data.json").write_text(json.dumps(documented_data()))
    policy = EmbeddedPolicy(tmp_path / "bundle", deadline_s=5)
    await policy.start()
    yield policy
    await policy.close()


def ask(method: str, name: str | None, tenant: str = "", **more: Any) -> bytes:
    """A complete question."""
    return json.dumps(
        {
            "phase": "call",
            "server": {"name": "files", "resource": "https://gw.example/files", "environment": "production"},
            "subject": {"issuer": "https://idp.example.com", "id": "bob", "client_id": "c", "tenant": tenant,
                        "scopes": [], "claims": {}},
            "request": {"method": method, "kind": "", "name": name, "arguments": {}, "leg": 0},
            "tool": None,
            "candidates": [],
        } | more
    ).encode()  # fmt: skip


def test_the_bundles_own_tests_pass() -> None:
    """Every Rego test of the default bundle holds in the embedded engine."""
    outcomes = run_tests(BUNDLE)
    assert len(outcomes) >= 40
    assert [outcome for outcome in outcomes if not outcome.passed] == []


def test_a_rego_test_passes_only_if_it_is_true(tmp_path: Path) -> None:
    """False, undefined, failing, endless, crashing: each is named, and the ones after it are still run."""
    bundle = write_bundle(tmp_path)
    (bundle / "mcp/authz/authz_test.rego").write_text(
        """package mcp.authz_test

import rego.v1

test_true if data.mcp.authz.decision.effect == "deny"

test_false := false

test_undefined if data.mcp.authz.decision.effect == "allow"

test_other := "true"

test_failing if startswith(1, "a")

test_endless if {
	some a in numbers.range(1, 40000)
	some b in numbers.range(1, 40000)
	a * b == -1
}

test_crashing if deeper(1) == 0

deeper(n) := deeper(n + 1)

test_last if true

helper_test_x if false
"""
    )
    outcomes = {outcome.name.rsplit(".", 1)[1]: outcome for outcome in run_tests(bundle, timeout_s=1.5)}
    assert [name for name, outcome in outcomes.items() if outcome.passed] == ["test_true", "test_last"]
    assert outcomes["test_endless"].why == "did not end within 1.5 s"
    assert outcomes["test_crashing"].why == "the evaluator died"
    assert "undefined" in outcomes["test_undefined"].why
    assert outcomes["test_failing"].why.endswith("authz_test.rego:13")
    assert len(outcomes) == 8


def test_a_test_file_that_does_not_compile_is_named(tmp_path: Path) -> None:
    """It is not passed over as if there were no tests."""
    bundle = write_bundle(tmp_path)
    assert run_tests(bundle) == []
    (bundle / "mcp/authz/authz_test.rego").write_text("package mcp.authz_test\n\ntest_x := {")
    with pytest.raises(PolicyUnavailable, match=r"authz_test\.rego:3"):
        run_tests(bundle)


async def test_the_shipped_data_denies_everything() -> None:
    """Without data nothing is open, whatever is asked."""
    policy = EmbeddedPolicy(BUNDLE, deadline_s=5)
    await policy.start()
    try:
        for method in ("tools/call", "tools/list", "server/discover", "resources/read", "x/y"):
            verdict = await policy.judge(ask(method, "read_file"))
            assert (verdict.effect, verdict.reasons) == (Effect.DENY, ("server_not_listed",))
            assert verdict.revision == json.loads((BUNDLE / ".manifest").read_text())["revision"]
    finally:
        await policy.close()


async def test_the_documented_example_does_what_the_page_says(documented: EmbeddedPolicy) -> None:
    """Each sentence under the worked example of docs/policy.md."""
    read = await documented.judge(ask("tools/call", "read_file"))
    assert (read.effect, read.scopes, read.clear) == (Effect.ALLOW, ("mcp:use", "files:read"), ("/path",))
    found = await documented.judge(ask("tools/call", "find_files", tenant="acme"))
    assert found.effect is Effect.ALLOW
    assert (await documented.judge(ask("tools/call", "find_files", tenant="x"))).effect is Effect.DENY
    delete = await documented.judge(ask("tools/call", "delete_file"))
    assert delete.effect is Effect.APPROVE
    assert delete.approval is not None
    assert (delete.approval.min_approvers, delete.approval.ttl_s, delete.mask) == (2, 900, ("/reason",))
    assert (await documented.judge(ask("tools/call", "touch_file"))).effect is Effect.ALLOW
    assert (await documented.judge(ask("tools/call", "format_disk"))).reasons == ("tool_not_listed",)
    for uri, effect in {
        "file:///srv/public/a": Effect.ALLOW,
        "file:///srv/public/payroll/a": Effect.DENY,
        "file:///srv/public/x/../payroll/a": Effect.DENY,
        "status://all": Effect.ALLOW,
        "status://all/more": Effect.DENY,
    }.items():
        assert (await documented.judge(ask("resources/read", uri))).effect is effect


async def test_hidden_and_absent_are_one_answer(documented: EmbeddedPolicy) -> None:
    """A denied tool's verdict is that of an absent one, but for the reason that only the record gets."""
    hidden = await documented.judge(ask("tools/call", "find_files"))
    absent = await documented.judge(ask("tools/call", "no_such_tool"))
    assert (hidden.effect, hidden.scopes, hidden.disclose) == (absent.effect, absent.scopes, absent.disclose)
    assert (hidden.scopes, hidden.disclose) == ((), False)


async def test_listed_is_what_a_call_would_not_be_denied(documented: EmbeddedPolicy) -> None:
    """AZ-05 for the rules themselves: 20 principals, each list against one call per entry, in the server's order."""
    names = [*reversed(documented_data()["servers"]["files"]["tools"]), "absent", "READ_FILE"]
    for n in range(20):
        tenant = ["", "acme", "globex", "ACME", "acme "][n % 5]
        environment = ["production", "production", "staging", ""][n % 4]
        members: dict[str, Any] = {"server": {"name": "files", "resource": "r", "environment": environment}}
        candidates = [{"id": name} for name in names]
        page = await documented.judge(ask("tools/list", None, tenant, phase="list", candidates=candidates, **members))
        callable_names = []
        for name in names:
            if (await documented.judge(ask("tools/call", name, tenant, **members))).effect is not Effect.DENY:
                callable_names.append(name)
        assert list(page.visible) == callable_names
        assert len(callable_names) == (0 if environment != "production" else 4 if tenant in ("acme", "globex") else 3)


def test_every_reason_is_documented() -> None:
    """A reason that the rules can give has its row on the page, and no row is without its rule."""
    rules = (BUNDLE / "mcp/authz/authz.rego").read_text()
    table = PAGE.read_text().partition("## Reasons")[2].partition("\n## ")[0]
    documented_names = set(re.findall(r"^\| `([a-z_]+)` \|", table, re.MULTILINE))
    last = "listed|missing|possible|unknown|normal|needed|decided|continued|unreadable|hours|not_allowed"
    given = set(re.findall(rf'"((?:[a-z]+_)+(?:{last})|allowed)"', rules))
    assert given == documented_names
