"""CCH-02: decisions that hold for any arguments are asked once; nothing else is remembered, nor for anybody else."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import os
import random
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import evaluator, memory
from policies.bundles import DECISION, load_bundle
from policies.embedded import EmbeddedPolicy
from policies.memory import Memory
from policies.opa import OpaPolicy
from policies.question import Candidates, Question
from policies.reloading import Replaced
from policies.verdict import Effect, PolicyUnavailable, Verdict
from tests.ports.test_bundle import write_bundle
from tests.support.opa import Opa
from tests.support.processes import eventually
from tests.support.questions import Cases

SHIPPED = Path(__file__).parents[2] / "policies" / "bundle"
# What the bundle says of itself is not true: the word that it is asked about shows whether it was asked.
LIES = """package mcp.authz

import rego.v1

default decision := {"effect": "deny", "any_arguments": true}

word := sprintf("%v", [input.request.arguments.word])

common := {"effect": "allow", "reasons": [word], "any_arguments": true}

decision := common if input.request.name == "same"

decision := object.union(common, {"any_arguments": false}) if input.request.name == "told_not"

decision := object.remove(common, ["any_arguments"]) if input.request.name == "silent"

decision := object.union(common, {"effect": "deny"}) if input.request.name == "denied"

decision := object.union(common, {"effect": "approve", "approval": {"approvers": ["user:ann"]}}) if {
	input.request.name == "gated"
}

decision := object.union(common, {"limits": [{"name": "b", "per": [], "count": 1, "window_s": 1}]}) if {
	input.request.name == "counted"
}
"""
DOCUMENT: dict[str, Any] = {
    "phase": "call",
    "server": {"name": "files", "resource": "https://gw.example/files", "environment": "production"},
    "subject": {
        "issuer": "https://idp.example.com", "id": "bob", "client_id": "c", "tenant": "acme", "scopes": ["a"],
        "claims": {"groups": ["x"], "exp": 7},
    },
    "tool": {"annotations": {"readOnlyHint": True}, "digest": "sha256:0", "pinned": False},
    "request": {
        "method": "tools/call", "kind": "tool", "name": "same", "input_responses": None, "tasks": [], "leg": 0,
        "approved": False,
    },
}  # fmt: skip


def ask(name: str, word: str, *, begins: bool = True, leg: int = 0) -> Question:
    return put(
        {**DOCUMENT, "request": {**DOCUMENT["request"], "name": name, "leg": leg}}, {"word": word}, begins=begins
    )


def put(document: Mapping[str, Any], arguments: Any, *, begins: bool = True) -> Question:
    facts = {name: value for name, value in document.items() if name not in {"candidates", "request"}}
    offered = Candidates(document["candidates"]) if "candidates" in document else None
    return Question(orjson.dumps(facts)[:-1], document["request"], arguments, begins=begins, candidates=offered)


async def words(policy: EmbeddedPolicy | OpaPolicy, *questions: Question) -> list[tuple[str, ...]]:
    return [(await policy.judge(question)).reasons for question in questions]


@pytest.fixture
def lies(tmp_path: Path) -> EmbeddedPolicy:
    return EmbeddedPolicy(write_bundle(tmp_path / "bundle", LIES), deadline_s=5)


async def test_what_holds_for_any_arguments_is_asked_once(lies: EmbeddedPolicy) -> None:
    """The engine is not asked again, and whoever counts questions counts each."""
    await lies.start()
    try:
        assert await words(lies, ask("same", "one"), ask("same", "two")) == [("one",), ("one",)]
        assert (lies.evaluations, lies.remembered) == (2, 1)
    finally:
        await lies.close()
    with pytest.raises(PolicyUnavailable):
        await lies.judge(ask("same", "two"))


@pytest.mark.parametrize("name", ["told_not", "silent", "denied", "gated", "counted"])
async def test_what_does_not_say_so_is_asked_each_time(lies: EmbeddedPolicy, name: str) -> None:
    """Silence means that arguments were read; nothing is remembered that is denied, approved by people or counted."""
    await lies.start()
    try:
        assert await words(lies, ask(name, "one"), ask(name, "two")) == [("one",), ("two",)]
        # The twin that is remembered differs in its name alone.
        assert await words(lies, ask("same", "one"), ask("same", "two")) == [("one",), ("one",)]
    finally:
        await lies.close()


async def test_what_brings_more_than_arguments_is_asked_each_time(lies: EmbeddedPolicy) -> None:
    """Answers, tasks, grants (`begins` is false), and questions that come as text."""
    await lies.start()
    try:
        await words(lies, ask("same", "one"))
        assert await words(lies, *(ask("same", word, begins=False) for word in ("two", "three"))) == [
            ("two",), ("three",),
        ]  # fmt: skip
        assert (await lies.judge(bytes(ask("same", "four")))).reasons == ("four",)
        assert await words(lies, ask("same", "five")) == [("one",)]
    finally:
        await lies.close()


def leaves(place: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document, and of every object and list."""
    if path:
        yield path
    for step, value in (
        place.items() if isinstance(place, dict) else enumerate(place) if isinstance(place, list) else ()
    ):
        yield from leaves(value, (*path, step))


def altered(path: tuple[Any, ...]) -> dict[str, Any]:
    found = copy.deepcopy(DOCUMENT)
    place: Any = found
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = (
        {"other": 1} if isinstance(place[path[-1]], dict) else "same " if path[-1] == "name" else "other"
    )
    return found


async def test_whatever_else_differs_is_another_question(tmp_path: Path) -> None:
    """CCH-02: caller, claim, scope, tenant, server, environment, tool's definition: each alone is asked anew."""
    rules = LIES[: LIES.index("decision := common")] + "decision := common if word\n"
    policy = EmbeddedPolicy(write_bundle(tmp_path / "bundle", rules), deadline_s=5)
    await policy.start()
    try:
        assert await words(policy, ask("same", "one"), ask("same", "two")) == [("one",), ("one",)]
        paths = [path for path in leaves(DOCUMENT) if path != ("request",)]
        assert len(paths) > 20
        for number, path in enumerate(paths):
            asked = policy.remembered
            other = [put(altered(path), {"word": f"{number}{which}"}) for which in "ab"]
            assert await words(policy, *other) == [(f"{number}a",)] * 2, path
            assert policy.remembered == asked + 1
        assert await words(policy, ask("same", "three")) == [("one",)]
    finally:
        await policy.close()


async def test_a_memory_ends_with_its_bundle(tmp_path: Path) -> None:
    """CCH-02, AZ-08: nothing of an old bundle is left, and what it answers late is remembered by nobody."""
    folder = write_bundle(tmp_path / "bundle", LIES)
    told: list[Replaced] = []
    policy = EmbeddedPolicy(folder, deadline_s=30, replaced=told.append, look_every_s=0.05)
    await policy.start()
    try:
        assert await words(policy, ask("same", "one"), ask("same", "two")) == [("one",), ("one",)]
        evaluators = policy.pids
        for pid in evaluators:
            os.kill(pid, signal.SIGSTOP)  # the one question that each is asked now, it answers after the replacement
        legs = range(1, len(evaluators) + 1)
        late = [asyncio.ensure_future(policy.judge(ask("same", "late", leg=leg))) for leg in legs]
        (folder / "mcp/authz/authz.rego").write_text(LIES.replace('"%v"', '"new_%v"'))
        (folder / ".manifest").write_text('{"revision": "new"}')
        await eventually("the second bundle judges", lambda: policy.revision == "new")
        assert not [one for one in late if one.done()]
        for pid in evaluators:
            os.kill(pid, signal.SIGCONT)
        assert [(await one).reasons for one in late] == [("late",)] * len(late)
        for leg in (0, *legs):
            assert await words(policy, ask("same", "one", leg=leg)) == [("new_one",)]
            assert await words(policy, ask("same", "two", leg=leg)) == [("new_one",)]
        assert [one.why for one in told] == [""]
    finally:
        await policy.close()


async def test_an_opa_server_remembers_nothing(opa_program: Path, tmp_path: Path) -> None:
    """Its data can change and its revision stay: every question is put to it."""
    with Opa(opa_program, write_bundle(tmp_path / "bundle", LIES), tmp_path / "opa.log") as running:
        policy = OpaPolicy(running.url, deadline_s=5)
        await policy.start()
        try:
            assert await words(policy, ask("same", "one"), ask("same", "two")) == [("one",), ("two",)]
        finally:
            await policy.close()


ALLOW = Verdict(Effect.ALLOW, any_arguments=True, revision="r")


def test_memory_is_bounded_and_forgets_what_was_not_used() -> None:
    """By entries and by bytes; a question that is long is not kept at all."""
    few = Memory(entries=2)
    first, second, third = (ask(name, "x") for name in ("a", "b", "c"))
    few.keep(first, ALLOW)
    few.keep(second, ALLOW)
    assert few.recall(first) is ALLOW
    few.keep(third, ALLOW)
    assert [few.recall(one) for one in (first, second, third)] == [ALLOW, None, ALLOW]
    small = Memory(total_bytes=2 * (len(first.key) + memory.OVERHEAD))
    for one in (first, second, third, third):
        small.keep(one, ALLOW)
    assert [small.recall(one) for one in (first, second, third)] == [None, ALLOW, ALLOW]
    for member in ("visible", "scopes", "reasons", "clear", "mask"):
        more: dict[str, Any] = {member: ("text" * 100,) * 3}
        small.keep(long := ask("d", "x"), replace(ALLOW, **more))
        assert small.recall(long) is None, f"what it says counts as well: {member}"
    long = ask("n" * memory.LARGEST, "x")
    few.keep(long, ALLOW)
    assert few.recall(long) is None


async def test_a_page_is_another_one_with_every_candidate(tmp_path: Path) -> None:
    """What is shown of a list is remembered for these very candidates alone, in this order, pinned or not."""
    folder = write_bundle(tmp_path / "bundle", load_bundle(SHIPPED).modules[0].text)
    tools = {"a": {"effect": "read"}, "b": {"effect": "read", "arguments": {"/x": {}}}, "c": False}
    hours = {"effect": "read", "hours": [{"first_day": "2000-01-01"}]}
    (folder / "mcp/authz/data.json").write_text(json.dumps({"servers": {"files": {"tools": {**tools, "h": hours}}}}))

    def page(*candidates: str, pinned: bool = False) -> Question:
        request = {**DOCUMENT["request"], "method": "tools/list", "kind": "list", "name": None}
        offered = [{"id": one, "pinned": pinned} for one in candidates]
        document = {**DOCUMENT, "phase": "list", "tool": None, "candidates": offered, "request": request}
        return put(document, {"cursor": "x"})

    policy = EmbeddedPolicy(folder, deadline_s=5)
    await policy.start()
    try:
        for asked, remembered, shown in (
            (page("a", "c"), 0, ("a",)), (page("a", "c"), 1, ("a",)), (page("c", "a"), 1, ("a",)),
            (page("a", "b", "c"), 1, ("a", "b")), (page("a", "c", pinned=True), 1, ("a",)),
            (page("a", "b", "c"), 2, ("a", "b")), (page("a", "h"), 2, ("a", "h")), (page("a", "h"), 2, ("a", "h")),
        ):  # fmt: skip
            assert ((await policy.judge(asked)).visible, policy.remembered) == (shown, remembered)
    finally:
        await policy.close()


@pytest.mark.parametrize("arguments", [{}, {"a": [1, {"b": None}]}, {"t": "\u00e9\u2028"}])
def test_the_text_of_a_question_is_the_whole_document(arguments: dict[str, Any]) -> None:
    """What the engine reads is the document with the arguments in their place, and nothing but that."""
    question = put(DOCUMENT, arguments)
    whole = {**DOCUMENT, "request": {**DOCUMENT["request"], "arguments": arguments}}
    assert json.loads(bytes(question)) == whole
    assert json.loads(question.key) == DOCUMENT
    text = bytes(question)
    assert text is bytes(question), "made once"


async def test_with_a_memory_and_without_one_the_shipped_rules_decide_alike(tmp_path: Path) -> None:
    """AZ-09: random data, questions and arguments, in any order: what is remembered is what would be decided."""
    seed = random.SystemRandom().randrange(1 << 32)
    cases, order = Cases(seed), random.Random(seed)
    remembered = 0
    for number in range(4):
        folder = write_bundle(tmp_path / str(number), load_bundle(SHIPPED).modules[0].text)
        (folder / "mcp/authz/data.json").write_text(json.dumps({"servers": cases.data()}))
        policy = EmbeddedPolicy(folder, deadline_s=30)
        await policy.start()
        try:
            given = [cases.question() for _ in range(60)]
            pairs = [(one, {**one["request"], "arguments": other["request"]["arguments"]})
                     for one in given for other in order.sample(given, 4)]  # fmt: skip
            order.shuffle(pairs)
            for one, request in pairs:
                document = {**{k: v for k, v in one.items() if k != "request"}, "request": dict(request)}
                whole = json.dumps(document).encode()
                arguments: Mapping[str, Any] = document["request"].pop("arguments")
                if not isinstance(arguments, dict):
                    continue
                here = await policy.judge(put(document, arguments))
                assert here == await policy.judge(whole), f"seed {seed}: {whole.decode()}"
            remembered += policy.remembered
        finally:
            await policy.close()
    assert remembered > 5


WORDS = st.sampled_from(("ref/prompt", "greet", "ref/resource", "notes://all", "/srv/public/a"))
NAMES = st.sampled_from(("x", "ref", "type", "name", "uri", "notifications"))
PLAIN = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | WORDS
JSON = st.recursive(
    PLAIN | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TIMES = st.integers(0, 4_102_444_800).map(lambda seconds: seconds * 1_000_000_000)


@pytest.fixture(autouse=True)
def engines_end_in_this_thread() -> Iterator[None]:
    """Only the thread that made an engine may drop it, and Hypothesis leaves the one of its test to the collector."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def rules() -> evaluator.Engine:
    engine = evaluator.make_engine()
    for module in load_bundle(SHIPPED).modules:
        engine.add_policy(module.name, module.text)
    return engine


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.tuples(JSON, TIMES), min_size=2, max_size=5))
def test_where_the_shipped_rules_say_so_nothing_of_the_arguments_or_the_time_counts(
    rules: evaluator.Engine, seed: int, given_: list[tuple[Any, int]]
) -> None:
    """Wherever they declare `any_arguments`, any two arguments, at any two times, get the very same decision."""
    cases = Cases(seed)
    fresh = rules.clone()
    fresh.add_data_json(json.dumps({"mcp": {"authz": {"servers": cases.data()}}}))

    def decide(question: dict[str, Any]) -> dict[str, Any]:
        engine = fresh.clone()
        engine.set_input_json(json.dumps(question))
        try:
            found: dict[str, Any] = json.loads(engine.eval_rule_as_json(DECISION))
        except RuntimeError:  # a rule failed: no decision, which is another than any
            return {}
        return found

    for question in (cases.question() for _ in range(6)):
        decisions = [
            decide({**question, "now_ns": now_ns, "request": {**question["request"], "arguments": arguments}})
            for arguments, now_ns in given_
        ]
        if any(decision.get("any_arguments") for decision in decisions):
            assert all(decision == decisions[0] for decision in decisions), question
