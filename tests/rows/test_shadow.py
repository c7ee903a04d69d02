"""A shadow through the whole gateway: what it finds is counted, logged and listed, and callers are none the wiser."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.rows.asking import tool
from tests.rows.conftest import furnish, opened, served, settings_of
from tests.rows.proof import passes
from tests.rows.stage import House, Server, Stage, listed, listing
from tests.support.opa import Opa
from tests.support.stack import DATA, Stack

TOOLS = listed(read={}, write={}, hidden={})


@pytest.fixture(params=["in process", "a second OPA"])
def house(stage: Stage, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """Its candidate lists `hidden`, and is the same but for that."""
    opa = None
    if request.param == "a second OPA":
        opa = Opa(request.getfixturevalue("opa_program"), tmp_path / "next", tmp_path / "opa.log")
    behind = {"plain": [Server(TOOLS)]}
    stack = Stack(tmp_path, {}, data=DATA)
    with opened(stage, behind["plain"]):
        house = House(stage, stack, behind)
        furnish(
            stack,
            settings_of(behind),
            policy={"path": "bundle", "shadow": {"url": opa.url} if opa else {"path": "next"}},
        )
        shutil.copytree(tmp_path / "bundle", tmp_path / "next")
        data = json.loads((tmp_path / "next/mcp/authz/data.json").read_text())
        data["servers"]["plain"]["tools"]["hidden"] = {"effect": "read"}
        (tmp_path / "next/mcp/authz/data.json").write_text(json.dumps(data))
        (tmp_path / "next/.manifest").write_text('{"revision": "next-7"}')
        with opa or nullcontext(), house.http, served(stage, stack):
            yield house


def series(house: House, name: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in house.metrics().splitlines() if line.startswith(name)]
    return {one: float(value) for one, _, value in lines}


def test_a_planted_difference_is_listed_and_only_it(house: House) -> None:
    """Callers meet the policy alone; `policy diff --live` names the tool and the lists, and no argument."""
    end = time.monotonic() + 30
    while series(house, "ostiary_shadow_healthy") != {"ostiary_shadow_healthy": 1.0}:
        assert time.monotonic() < end
        time.sleep(0.05)
    while (listed := house.ostiary("policy", "diff", "--live", "--config", str(house.stack.config))).returncode == 2:
        assert time.monotonic() < end, listed.stderr
    assert (listed.returncode, listed.stdout) == (0, "0 calls in 0 kinds would be judged otherwise\n")
    for _ in range(3):
        passes(house)
        refused = house.call("plain", tool("hidden", path=house.argument))
        assert refused.status == 403
    names = [one["name"] for one in house.call("plain", listing()).json()["result"]["tools"]]
    assert sorted(names) == ["read", "write"]
    wanted = {
        'ostiary_shadow_differences_total{difference="deny_to_allow",server="plain"}': 6.0,
        'ostiary_shadow_differences_total{difference="visible",server="plain"}': 1.0,
    }
    while not set(wanted) <= set(found := series(house, "ostiary_shadow_differences_total")):
        assert time.monotonic() < end, found
        time.sleep(0.05)
    assert set(found) == set(wanted)
    assert series(house, "ostiary_shadow_dropped_total").get("ostiary_shadow_dropped_total", 0) == 0
    while True:
        done = house.ostiary("policy", "diff", "--live", "--config", str(house.stack.config), "--json")
        groups = json.loads(done.stdout)
        if len(groups) == 2:
            break
        assert time.monotonic() < end, groups
    assert done.returncode == 1
    assert {(one["method"], one["name"], one["live"], one["candidate"]) for one in groups} == {
        ("tools/call", "hidden", "deny", "allow"),
        ("tools/list", "", "allow", "allow"),
    }
    assert {(one["live_revision"], one["candidate_revision"]) for one in groups} == {("default-4", "next-7")}
    assert house.records()  # looks through log and record for planted values
    assert not house.planted_in((house.stack.folder / "shadow.jsonl").read_bytes())
    text = house.ostiary("policy", "diff", "--live", "--config", str(house.stack.config)).stdout
    assert "plain tools/call hidden: deny_to_allow" in text
    assert f"see  ostiary explain {refused.json()['error']['data']['decisionId']}\n" in text
    assert {record["policy_revision"] for record in house.records() if record["policy_revision"]} == {"default-4"}
