"""One suite for every adapter of `policies.port.Policy`: whatever the engine, the port keeps its promises."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from policies.embedded import EmbeddedPolicy
from policies.opa import OpaPolicy
from policies.port import Policy
from policies.verdict import Effect, PolicyUnavailable
from tests.ports.test_bundle import write_bundle
from tests.support.opa import Opa

RULES = """package mcp.authz

import rego.v1

default decision := {"effect": "deny", "reasons": ["not_decided"]}

decision := answers[input.request.name]

decision := {"effect": "allow", "reasons": [sprintf("n%v", [input.request.arguments.n])]} if {
	input.request.name == "echo"
}

decision := {"effect": "allow", "clear": [sprintf("/%s", [input.request.arguments.text])]} if {
	input.request.name == "text"
}

decision := {"effect": "allow", "visible": visible} if input.phase == "list"

visible := [c.id | some c in input.candidates; c.open]

decision := {"effect": "allow"} if {
	input.request.name == "loop"
	some a in numbers.range(1, 40000)
	some b in numbers.range(1, 40000)
	a * b == -1
}

decision := {"effect": "allow"} if {
	input.request.name == "explode"
	everything := [concat("", [input.request.arguments.text | some b in numbers.range(a, 20000)]) |
		some a in numbers.range(1, 10000)
	]
	count(everything) < 0
}

decision := {"effect": "allow"} if {
	input.request.name == "regex"
	regex.match("^(a+)+(a|b|ab)*c$", input.request.arguments.text)
}

decision := {"effect": "allow", "reasons": ["small"]} if {
	input.request.name == "search"
	count([v | walk(input.request.arguments, [_, v]); v == "needle"]) == 1
}

decision := {"effect": "allow"} if {
	input.request.name == "error"
	upper(input.request.arguments.n) == "X"
}

decision := {"effect": "allow", "reasons": ["one"]} if input.request.name == "conflict"

decision := {"effect": "allow", "reasons": ["two"]} if input.request.name == "conflict"

answers := {
	"allow": {"effect": "allow", "scopes": ["s"], "reasons": ["allowed"]},
	"approve": {"effect": "approve", "approval": {"approvers": ["user:ann"], "uses": 3}},
	"deny": {"effect": "deny", "reasons": ["no"]},
	"word": "allow",
	"true": true,
	"null": null,
	"empty": {},
	"list": [{"effect": "allow"}],
	"upper": {"effect": "ALLOW"},
	"extra": {"effect": "allow", "obligations": []},
	"no_terms": {"effect": "approve"},
	"text_scopes": {"effect": "allow", "scopes": "s"},
}
"""


@asynccontextmanager
async def embedded(
    tmp_path: Path, rules: str = RULES, deadline_s: float = 5, **options: Any
) -> AsyncIterator[EmbeddedPolicy]:
    """The embedded engine on a bundle with these rules, started. The deadline is one that a busy machine meets."""
    policy = EmbeddedPolicy(write_bundle(tmp_path / "bundle", rules), deadline_s=deadline_s, **options)
    await policy.start()
    try:
        yield policy
    finally:
        await policy.close()


Opener = Callable[..., AbstractAsyncContextManager[Policy]]
ADAPTERS = ("embedded", "opa")


@pytest.fixture(scope="module")
def opa(opa_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opa]:
    """One real OPA for all tests of the module, on the rules above."""
    folder = tmp_path_factory.mktemp("opa")
    with Opa(opa_program, write_bundle(folder / "bundle", RULES), folder / "opa.log") as running:
        yield running


@asynccontextmanager
async def asked_over_http(url: str, deadline_s: float = 5, **_: Any) -> AsyncIterator[OpaPolicy]:
    """The adapter of the OPA at `url`, started; options of the embedded engine mean nothing to it."""
    policy = OpaPolicy(url, deadline_s=deadline_s)
    await policy.start()
    try:
        yield policy
    finally:
        await policy.close()


@pytest.fixture(params=ADAPTERS)
def open_policy(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Policy]]:
    """Starts the adapter under test on a bundle with the rules above; options are the adapter's."""
    if request.param == "embedded":
        return lambda **options: embedded(tmp_path, **options)
    running: Opa = request.getfixturevalue("opa")
    return lambda **options: asked_over_http(running.url, **options)


def ask(name: str, arguments: Any = None, **members: Any) -> bytes:
    """A question about the tool `name`."""
    question = {"phase": "call", "request": {"method": "tools/call", "name": name, "arguments": arguments or {}}}
    return json.dumps({**question, **members}).encode()


async def test_each_effect_arrives_as_it_was_meant(open_policy: Opener) -> None:
    """Allow, approve with its terms, deny, and the default where no rule speaks; each with the revision."""
    async with open_policy() as policy:
        allow = await policy.judge(ask("allow"))
        assert (allow.effect, allow.scopes, allow.reasons, allow.revision) == (
            Effect.ALLOW,
            ("s",),
            ("allowed",),
            "r1",
        )
        approve = await policy.judge(ask("approve"))
        assert approve.approval is not None
        assert (approve.effect, approve.approval.uses, approve.approval.approvers) == (
            Effect.APPROVE,
            3,
            ("user:ann",),
        )
        assert (await policy.judge(ask("deny"))).reasons == ("no",)
        assert (await policy.judge(ask("nothing"))).reasons == ("not_decided",)
        listed = await policy.judge(ask("", phase="list", candidates=[{"id": "a", "open": True}, {"id": "b"}]))
        assert listed.visible == ("a",)


async def test_ready_and_revision_follow_the_life_of_the_engine(tmp_path: Path, open_policy: Opener) -> None:
    """Ready only while a bundle is loaded; after the end no question is answered."""
    async with open_policy() as policy:
        assert policy.ready
        assert policy.revision == "r1"
    assert not policy.ready
    with pytest.raises(PolicyUnavailable):
        await policy.judge(ask("allow"))


@pytest.mark.parametrize(
    "name",
    ["word", "true", "null", "empty", "list", "upper", "extra", "no_terms", "text_scopes", "error", "conflict"],
)
async def test_what_is_no_verdict_is_a_failure(open_policy: Opener, name: str) -> None:
    """G6: a wrong shape, an error, two answers: `PolicyUnavailable`, and the next question is answered."""
    async with open_policy(evaluators=1) as policy:
        assert (await policy.judge(ask("allow"))).effect is Effect.ALLOW
        with pytest.raises(PolicyUnavailable):
            await policy.judge(ask(name, {"n": 1}))
        assert (await policy.judge(ask("allow"))).effect is Effect.ALLOW


@pytest.mark.parametrize("question", [b"", b"{", b"\xff", b'{"a": 1} x', b"null", b"[]", b'"allow"'])
async def test_what_is_no_question_is_never_an_allow(open_policy: Opener, question: bytes) -> None:
    """A question that can't be read fails; one of another shape meets the default."""
    async with open_policy(evaluators=1) as policy:
        with suppress(PolicyUnavailable):
            assert (await policy.judge(question)).effect is Effect.DENY
        assert (await policy.judge(ask("allow"))).effect is Effect.ALLOW


HOSTILE_NAMES = [
    "../../v1/policies/x",
    '"]; allow := true #',
    'allow"} default decision := {"effect": "allow',
    "data.mcp.authz.decision",
    "allow\u0000",
    "\u0430llow",
    "ａｌｌｏｗ",
    "al\u200blow",
    "\u202eallow",
    "allow\n",
    "ALLOW",
    "allow " * 20_000,
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
async def test_a_name_is_input_and_nothing_else(open_policy: Opener, name: str) -> None:
    """AZ-03, AZ-04: a name is compared byte by byte, whatever it looks like, and reaches no path, rule or query."""
    async with open_policy(evaluators=1) as policy:
        assert (await policy.judge(ask("allow"))).effect is Effect.ALLOW
        assert (await policy.judge(ask(name))).reasons == ("not_decided",)
        assert (await policy.judge(ask("x", {name: name}))).reasons == ("not_decided",)
        assert policy.revision == "r1"


async def test_concurrent_answers_are_never_swapped(open_policy: Opener) -> None:
    """200 questions at once with an answer of their own each: everyone gets his own."""
    async with open_policy() as policy:

        async def one(n: int) -> bool:
            return (await policy.judge(ask("echo", {"n": n}))).reasons == (f"n{n}",)

        for start in (0, 1000, 2000):
            assert all(await asyncio.gather(*(one(start + n) for n in range(200))))


async def timed(judging: Awaitable[Any]) -> tuple[float, Any]:
    """Seconds, and the verdict or the failure."""
    began = time.perf_counter()
    try:
        result = await judging
    except PolicyUnavailable as failure:
        result = failure
    return time.perf_counter() - began, result


async def test_a_policy_that_does_not_end_is_refused_at_the_deadline(open_policy: Opener) -> None:
    """AZ-07: the deadline ends the question, the engine is whole again at once, and only this question fails."""
    async with open_policy(deadline_s=0.3) as policy:
        for _ in range(2):
            took, failure = await timed(policy.judge(ask("loop")))
            assert isinstance(failure, PolicyUnavailable)
            assert "longer than 0.3 s" in str(failure)
            assert 0.25 < took < 1
            assert (await policy.judge(ask("allow"))).effect is Effect.ALLOW


async def test_a_loop_holds_up_nobody_else(open_policy: Opener) -> None:
    """AZ-07: while evaluations run to their deadline, the others are answered, and quickly."""
    async with open_policy(deadline_s=3) as policy:
        loops = [asyncio.ensure_future(timed(policy.judge(ask("loop")))) for _ in range(2)]
        await asyncio.sleep(0.02)
        results = [await timed(policy.judge(ask("echo", {"n": n}))) for n in range(100)]
        assert [getattr(result, "reasons", result) for _, result in results] == [(f"n{n}",) for n in range(100)]
        assert max(took for took, _ in results) < 2
        assert all(isinstance(result, PolicyUnavailable) for _, result in await asyncio.gather(*loops))


@pytest.mark.parametrize("text", ["a" * 40 + "!", "a" * 5000, "ab" * 200_000])
async def test_no_regular_expression_runs_away(open_policy: Opener, text: str) -> None:
    """AZ-07: the classic catastrophic pattern ends with an answer or at the deadline."""
    async with open_policy(deadline_s=0.5) as policy:
        took, result = await timed(policy.judge(ask("regex", {"text": text})))
        assert took < 1
        assert isinstance(result, PolicyUnavailable) or result.effect is Effect.DENY


async def test_a_big_argument_is_judged_whole(open_policy: Opener) -> None:
    """AZ-07: 1 MB of one string, byte for byte; the answer shows that its end was read."""
    async with open_policy(evaluators=1) as policy:
        text = "x" * 1_000_000
        with pytest.raises(PolicyUnavailable, match="pointer"):
            await policy.judge(ask("text", {"text": text}))
        assert (await policy.judge(ask("allow", {"text": text}))).effect is Effect.ALLOW
        needle = {f"k{n}": {"list": [1, 2, n], "text": "y" * 30} for n in range(600)} | {"z": "needle"}
        assert (await policy.judge(ask("search", needle))).reasons == ("small",)
        needle["z"] = "hay"
        assert (await policy.judge(ask("search", needle))).effect is Effect.DENY


async def test_big_arguments_never_block_the_loop(open_policy: Opener) -> None:
    """40 KB of structure, many times at once: a 5 ms heartbeat never waits for 100 ms."""
    async with open_policy(deadline_s=20) as policy:
        big = ask("allow", {f"k{n}": {"list": [1, 2, n], "text": "y" * 30} for n in range(620)} | {"z": "needle"})
        assert len(big) > 40_000
        longest, beating = 0.0, True

        async def beat() -> None:
            nonlocal longest
            while beating:
                began = time.perf_counter()
                await asyncio.sleep(0.005)
                longest = max(longest, time.perf_counter() - began)

        heart = asyncio.ensure_future(beat())
        verdicts = await asyncio.gather(*(policy.judge(big) for _ in range(64)))
        beating = False
        await heart
        assert all(verdict.effect is Effect.ALLOW for verdict in verdicts)
        assert longest < 0.1


async def test_a_question_given_up_disturbs_nobody(open_policy: Opener) -> None:
    """Callers that leave while they wait (a closed connection) take no answer of another with them."""
    async with open_policy() as policy:
        leaving = [asyncio.ensure_future(policy.judge(ask("echo", {"n": n}))) for n in range(50)]
        staying = [asyncio.ensure_future(policy.judge(ask("echo", {"n": 100 + n}))) for n in range(50)]
        await asyncio.sleep(0)
        for task in leaving:
            task.cancel()
        verdicts = await asyncio.gather(*staying)
        assert [verdict.reasons for verdict in verdicts] == [(f"n{100 + n}",) for n in range(50)]
        await asyncio.gather(*leaving, return_exceptions=True)
