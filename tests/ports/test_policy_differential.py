"""AZ-09: the embedded engine and the real OPA decide alike, on random data and random questions.

OPA is asked in batches, through a rule of its own that evaluates the decision once per question.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom
from typing import Any

import httpx
import pytest

from policies.bundles import Bundle, load_bundle
from policies.data_form import find_faults
from policies.generation import Bounds, Generation
from policies.verdict import PolicyUnavailable
from tests.support.opa import Opa
from tests.support.questions import Cases

SHIPPED = Path(__file__).parents[2] / "policies" / "bundle"
BATCH = """package differential

import rego.v1

answers[place] := decision if {
	some place, question in input.questions
	decision := data.mcp.authz.decision with input as question
}
"""
FAILED = "(failed)"


@pytest.fixture(scope="module")
def opa(opa_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A real OPA with the shipped rules, whose data can be replaced."""
    running = Opa(opa_program, None, tmp_path_factory.mktemp("opa") / "opa.log")
    with running, httpx.Client(base_url=running.url, trust_env=False, timeout=60) as client:
        (rules,) = (module.text for module in load_bundle(SHIPPED).modules)
        for name, text in (("authz", rules), ("batch", BATCH)):
            client.put(f"/v1/policies/{name}", content=text).raise_for_status()
        yield client


def ask_opa(opa: httpx.Client, servers: Any, questions: list[Any]) -> list[Any]:
    """The real OPA's decisions; a question for which there is none has `None`."""
    opa.put("/v1/data/mcp/authz/servers", json=servers).raise_for_status()
    answer = opa.post("/v1/data/differential/answers", json={"input": {"questions": questions}})
    answer.raise_for_status()
    found = answer.json()["result"]
    return [found.get(str(place)) for place in range(len(questions))]


async def ask_embedded(servers: Any, questions: list[Any]) -> list[Any]:
    """The embedded engine's decisions; `FAILED` where it has none."""
    shipped = load_bundle(SHIPPED)
    data = json.dumps({"mcp": {"authz": {"servers": servers}}})
    generation = Generation(Bundle("r", shipped.modules, (), data), Bounds(deadline_s=30), ())
    await generation.start()

    async def one(question: Any) -> Any:
        try:
            return json.loads(await generation.ask(json.dumps(question).encode()))
        except PolicyUnavailable:
            return FAILED

    try:
        return await asyncio.gather(*map(one, questions))
    finally:
        await generation.close()


def seed_of_this_run() -> int:
    """`OSTIARY_TEST_SEED` repeats a run."""
    return int(os.environ.get("OSTIARY_TEST_SEED") or SystemRandom().randrange(1 << 32))


@pytest.mark.parametrize(
    ("sets", "each"), [(12, 150), pytest.param(140, 200, marks=pytest.mark.soak)], ids=["small", "whole"]
)
async def test_both_engines_decide_alike(opa: httpx.Client, sets: int, each: int) -> None:
    """AZ-09: random (subject, server, request, data), shipped rules: no disagreement. The seed is in the message."""
    seed = seed_of_this_run()
    print(f"seed {seed}")  # noqa: T201 - what repeats this run
    cases = Cases(seed)
    effects: dict[str, int] = {}
    reasons: set[str] = set()
    for number in range(sets):
        servers, questions = cases.data(), [cases.question() for _ in range(each)]
        embedded, real = await ask_embedded(servers, questions), ask_opa(opa, servers, questions)
        for question, here, there in zip(questions, embedded, real, strict=True):
            assert here == there, f"seed {seed}, set {number}: {json.dumps([question, servers])}"
            effects[here["effect"]] = effects.get(here["effect"], 0) + 1
            reasons |= {*here["reasons"], *(["limits"] if here.get("limits") else [])}
    assert sum(effects.values()) == sets * each
    assert min(effects[one] for one in ("allow", "approve", "deny")) > sets * each * 0.01, effects
    assert reasons >= {"outside_hours", "argument_missing", "argument_not_allowed", "limits"}, reasons


@pytest.mark.parametrize(
    ("sets", "each"), [(8, 100), pytest.param(60, 200, marks=pytest.mark.soak)], ids=["small", "whole"]
)
async def test_on_odd_data_the_embedded_engine_is_never_laxer(opa: httpx.Client, sets: int, each: int) -> None:
    """AZ-09: with wrong types and misspelt members in the data: the same decision, or none at all, which is a 503."""
    seed = seed_of_this_run()
    print(f"seed {seed}")  # noqa: T201 - what repeats this run
    cases = Cases(seed, odd=0.08)
    failed = 0
    for number in range(sets):
        servers, questions = cases.data(), [cases.question() for _ in range(each)]
        embedded, real = await ask_embedded(servers, questions), ask_opa(opa, servers, questions)
        for question, here, there in zip(questions, embedded, real, strict=True):
            failed += here == FAILED
            assert here in (there, FAILED), f"seed {seed}, set {number}: {json.dumps([question, servers])}"
    assert failed < sets * each / 2


async def test_a_difference_would_be_found(opa: httpx.Client) -> None:
    """The comparison can fail: one entry that differs between the two engines' data shows, and only there."""
    question = Cases(1).question()
    question["request"] |= {"method": "tools/call", "kind": "tool", "name": "read"}
    question["server"]["name"] = "files"
    other = json.loads(json.dumps(question))
    other["request"]["name"] = "none"
    open_, closed = {"files": {"tools": {"read": {"effect": "read"}}}}, {"files": {"tools": {"read": False}}}
    embedded, real = await ask_embedded(open_, [question, other]), ask_opa(opa, closed, [question, other])
    assert embedded[0] != real[0]
    assert embedded[1] == real[1]


UNREADABLE = {"data_member_unknown", "argument_rule_unreadable", "budget_unreadable", "approval_terms_missing"}


async def test_where_check_finds_nothing_the_rules_can_read_everything() -> None:
    """The form that `ostiary check` knows is that of the rules: data without a finding is readable to them."""
    seed = seed_of_this_run()
    cases = Cases(seed, odd=0.01)
    clean = 0
    reasons: set[str] = set()
    for _ in range(400):
        servers = cases.data()
        for server in servers.values():
            server.pop("methods", None)  # a gate there is a mistake that random data makes all the time
        if list(find_faults({"servers": servers})) or clean >= 12:
            continue
        clean += 1
        for answer in await ask_embedded(servers, [cases.question() for _ in range(60)]):
            assert answer != FAILED, f"seed {seed}: {json.dumps(servers)}"
            reasons |= set(answer["reasons"])
    assert not reasons & UNREADABLE, f"seed {seed}: {reasons}"
    assert clean >= 6
