"""`ostiary policy diff OLD NEW`: what a bundle changes, in its data and in what it decides, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import main

SHIPPED = Path(__file__).parents[2] / "policies" / "bundle"
GATE = {"approvers": ["group:https://idp.example|ops"], "ttl_s": 900}
DATA: dict[str, Any] = {
    "servers": {
        "files": {
            "scopes": ["mcp:use"],
            "tools": {
                "read": {"effect": "read", "scopes": ["files:read"], "tenants": ["acme", "globex"]},
                "delete": {"effect": "write", "approval": GATE},
                "shut": False,
            },
            "resources": {"file:///srv/": {}},
        }
    }
}
Data = dict[str, Any]


def bundle_at(folder: Path, data: Data, revision: str, rules: Callable[[str], str] = str) -> Path:
    shutil.copytree(SHIPPED, folder)
    (folder / "mcp/authz/data.json").write_text(json.dumps(data))
    manifest = json.loads((folder / ".manifest").read_text())
    (folder / ".manifest").write_text(json.dumps({**manifest, "revision": revision}))
    file = folder / "mcp/authz/authz.rego"
    file.write_text(rules(file.read_text()))
    return folder


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["policy", "diff", *map(str, words)], env={})
    return done.exit_code, done.output


def changed(change: Callable[[Data], None]) -> Data:
    data: Data = json.loads(json.dumps(DATA))
    change(data["servers"]["files"])
    return data


CHANGES: dict[str, tuple[Callable[[Data], None], str, set[tuple[str, str, str]]]] = {
    "a scope": (
        lambda files: files["tools"]["read"].update(scopes=["files:all"]),
        '/servers/files/tools/read/scopes: ["files:read"] -> ["files:all"]',
        {("tools/call", "read", "scopes"), ("tasks/update", "read", "scopes")},
    ),
    "half the people": (
        lambda files: files["tools"]["delete"]["approval"].update(min_approvers=2),
        "/servers/files/tools/delete/approval/min_approvers: (absent) -> 2",
        {("tools/call", "delete", "approval")},
    ),
    "no approval any more": (
        lambda files: files["tools"]["delete"].update(approval={"needed": False}),
        "/servers/files/tools/delete/approval/needed: (absent) -> false",
        {
            ("tools/call", "delete", "approve_to_allow"),
            ("tools/call", "delete", "reasons"),
            ("tasks/update", "delete", "deny_to_allow"),
        },
    ),
    "a tool opened": (
        lambda files: files["tools"].update(shut={"effect": "read"}),
        '/servers/files/tools/shut: false -> {"effect": "read"}',
        {
            ("tools/call", "shut", "deny_to_allow"),
            ("tasks/update", "shut", "deny_to_allow"),
            ("tools/list", "", "visible"),
        },
    ),
    "a tenant less": (
        lambda files: files["tools"]["read"].update(tenants=["acme"]),
        '/servers/files/tools/read/tenants: ["acme", "globex"] -> ["acme"]',
        {
            ("tools/call", "read", "allow_to_deny"),
            ("tasks/update", "read", "allow_to_deny"),
            ("tools/list", "", "visible"),
        },
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_planted_change_is_found_and_only_it(tmp_path: Path, case: str) -> None:
    """One change of the data is one line of it, and exactly the cases that it decides otherwise; exit code 1."""
    change, line, turns = CHANGES[case]
    old, new = bundle_at(tmp_path / "old", DATA, "a"), bundle_at(tmp_path / "new", changed(change), "b")
    code, told = run(old, new, "--json")
    found = json.loads(told)
    assert code == 1
    assert line in found["data"]
    assert (found["revisions"], found["files"], found["cut"]) == (["a", "b"], [], False)
    assert {(one["method"], one["name"], one["difference"]) for one in found["changes"]} == turns
    assert {one["server"] for one in found["changes"]} == {"files"}
    assert 0 < sum(one["count"] for one in found["changes"]) < found["cases"]


def test_a_change_of_a_rule_is_told_by_what_it_decides(tmp_path: Path) -> None:
    """The file is named, and what it decides; the text of the data is shown in ASCII."""

    def laxer(rules: str) -> str:
        assert rules.count("not input.subject.tenant in tenants") == 1
        return rules.replace("not input.subject.tenant in tenants", "not input.subject.tenant in {1}")

    data = changed(lambda files: files.update(description="x\u202ey"))
    old, new = bundle_at(tmp_path / "old", DATA, "a"), bundle_at(tmp_path / "new", data, "b", laxer)
    code, told = run(old, new)
    assert code == 1
    assert "revision a -> b" in told
    assert "file mcp/authz/authz.rego differs" in told
    assert "data /servers/files/description: (absent) -> " in told
    assert "\u202e" not in told
    assert "files tools/call read: allow_to_deny, allow (allowed) -> deny (tenant_not_listed)" in told


def test_the_same_bundle_under_another_revision_changes_nothing(tmp_path: Path) -> None:
    """Exit code 0, after as many cases."""
    old, new = bundle_at(tmp_path / "old", DATA, "a"), bundle_at(tmp_path / "new", DATA, "b")
    code, told = run(old, new, "--json")
    found = json.loads(told)
    assert (code, found["changes"], found["data"], found["files"]) == (0, [], [], [])
    assert found["cases"] > 100


def test_what_cannot_be_compared_is_2(tmp_path: Path) -> None:
    """A bundle that does not load; one bundle alone; both kinds of comparison at once."""
    old = bundle_at(tmp_path / "old", DATA, "a")
    (tmp_path / "bad").mkdir()
    assert run(old, tmp_path / "bad")[0] == 2
    assert run(old)[0] == 2
    assert run()[0] == 2
    assert run(old, old, "--live")[0] == 2
