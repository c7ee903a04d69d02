"""docs/policy.md: every example on the page is run, and the tables under it say what comes out."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import EmbeddedPolicySettings
from gateway.rehearsal.decide import read_request
from policies.embedded import EmbeddedPolicy
from policies.verdict import Effect, Verdict
from tests.pipeline.house import SERVER
from tests.ports.test_policy_default import BUNDLE, PAGE, ask

TEXT = PAGE.read_text()
BLOCK = re.compile(r"(<!-- example -->\n)?```(json|yaml)\n(.*?)```\n", re.DOTALL)


def examples() -> Iterator[tuple[str, Any, list[list[str]]]]:
    """(a tool's name, its data, the rows of the table that follows) of each marked example."""
    for found in BLOCK.finditer(TEXT):
        if found[1]:
            ((name, entry),) = json.loads("{" + found[3] + "}").items()
            table = re.match(r"\n\|(.*?)\n\n", TEXT[found.end() :], re.DOTALL)
            assert table is not None, name
            rows = [line.strip("|").split(" | ") for line in table[0].strip().splitlines()[2:]]
            yield name, entry, [[cell.strip() for cell in row] for row in rows]


def words(verdict: Verdict) -> str:
    """A verdict as the page writes it."""
    if verdict.effect is Effect.APPROVE:
        assert verdict.approval is not None
        return f"approve by {verdict.approval.min_approvers}"
    if verdict.effect is Effect.DENY:
        return f"deny `{verdict.reasons[0]}`"
    within = ", ".join(sorted(limit.name for limit in verdict.limits))
    return f"allow within {within}" if within else "allow"


EXAMPLES = list(examples())


@pytest.mark.parametrize(("name", "entry", "rows"), EXAMPLES, ids=[name for name, _, _ in EXAMPLES])
async def test_an_example_does_what_the_table_under_it_says(
    tmp_path: Path, name: str, entry: Any, rows: list[list[str]]
) -> None:
    """Each row is a call: its arguments, or the time at which it is made, and the policy's answer."""
    shutil.copytree(BUNDLE, tmp_path / "bundle")
    data = {"servers": {"files": {"tools": {name: entry}}}}
    (tmp_path / "bundle/mcp/authz/data.json").write_text(json.dumps(data))
    policy = EmbeddedPolicy(tmp_path / "bundle", deadline_s=5)
    await policy.start()
    try:
        for given, answer in rows:
            question = json.loads(ask("tools/call", name))
            if given.startswith("`{"):
                question["request"]["arguments"] = json.loads(given.strip("`"))
            else:
                at = datetime.fromisoformat(given.strip("`"))
                question["now_ns"] = int(at.timestamp()) * 1_000_000_000
            assert words(await policy.judge(json.dumps(question).encode())) == answer, given
    finally:
        await policy.close()


def test_no_example_is_left_out() -> None:
    """Every block has a table, or is the worked example (test_policy_default.py), or is read below."""
    found = [(bool(block[1]), block[2]) for block in BLOCK.finditer(TEXT)]
    assert len(EXAMPLES) >= 6
    assert sum(marked for marked, _ in found) == len(EXAMPLES)
    assert [kind for marked, kind in found if not marked] == ["json", "json", "yaml", "json"]
    assert TEXT.count("```") == 2 * (len(found) + 1)  # and the bundle's layout


async def test_the_grant_of_the_page_is_one(tmp_path: Path) -> None:
    """What is asked for within its bounds is approved on its terms."""
    _, text, _ = [block[3] for block in BLOCK.finditer(TEXT) if block[2] == "json" and not block[1]]
    shutil.copytree(BUNDLE, tmp_path / "bundle")
    data = {"servers": {"files": {"tools": {"pay": {"effect": "write", **json.loads("{" + text + "}")}}}}}
    (tmp_path / "bundle/mcp/authz/data.json").write_text(json.dumps(data))
    policy = EmbeddedPolicy(tmp_path / "bundle", deadline_s=5)
    await policy.start()
    try:
        question = json.loads(ask("tools/call", "pay"))
        question["request"]["grant"] = {"schema": {"type": "object"}}
        verdict = await policy.judge(json.dumps(question).encode())
        assert verdict.approval is not None
        assert (verdict.approval.uses, verdict.approval.ttl_s, verdict.approval.min_approvers) == (20, 86_400, 2)
        assert verdict.approval.grant == data["servers"]["files"]["tools"]["pay"]["approval"]["grant"]["schema"]
    finally:
        await policy.close()


def test_the_setting_of_the_page_is_one() -> None:
    """The block about a candidate is read as it stands."""
    (text,) = [block[3] for block in BLOCK.finditer(TEXT) if block[2] == "yaml"]
    settings = EmbeddedPolicySettings.model_validate(yaml.safe_load(text)["policy"])
    assert settings.shadow is not None
    assert settings.shadow.path == Path("policies/next")


def test_the_request_of_the_page_is_read() -> None:
    """`ostiary decide` takes it for what it is: a request to the example's server."""
    *_, text = [block[3] for block in BLOCK.finditer(TEXT) if block[2] == "json" and not block[1]]
    request = read_request(text.encode(), {"files": replace(SERVER, name="files")})
    assert request.receive().values(b"mcp-name") == [b"read_file"]


def test_the_manifest_of_the_page_is_one() -> None:
    """The line in the bundle's layout is the shipped one's form."""
    (line,) = re.findall(r"^PATH/\.manifest +(\{.*\})$", TEXT, re.MULTILINE)
    assert json.loads(line).keys() == json.loads((BUNDLE / ".manifest").read_text()).keys()


def test_every_member_of_the_rules_is_on_the_page() -> None:
    """What the rules know of an entry, a server, an argument, a window is explained by name."""
    rules = (BUNDLE / "mcp/authz/authz.rego").read_text()
    sets = re.findall(r"^\w+_(?:members|conditions) := \{(.*?)\}$", rules, re.DOTALL | re.MULTILINE)
    members = {member for text in sets for member in re.findall(r'"(\w+)"', text)}
    assert len(sets) == 8
    assert members >= {"hours", "budgets", "arguments", "within", "first_day", "tools"}
    assert [member for member in sorted(members) if f"`{member}`" not in TEXT] == []
