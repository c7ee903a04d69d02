"""A candidate beside the policy: it finds a planted difference and only it, and nobody who is judged notices it."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.disagreements import MOST, Disagreements, Group, file_of, group_of, read_all
from gateway.rehearsal.sheets import sheet_of_group
from policies.embedded import EmbeddedPolicy
from policies.shadow import DIFFERENCES, LARGEST, WAITING, Difference, Shadow, ShadowedPolicy, tell_apart
from policies.verdict import ApprovalTerms, Effect, PolicyUnavailable, Verdict
from tests.contract.walked import REDACTOR
from tests.ports.test_bundle import write_bundle
from tests.ports.test_policy import RULES, ask
from tests.support.processes import eventually

PLANTED = RULES.replace('"deny": {"effect": "deny", "reasons": ["no"]}', '"deny": {"effect": "allow"}')
CANARY = "canary-8f2c1d"


@asynccontextmanager
async def beside(
    folder: Path, rules: str, found: list[Difference], **options: Any
) -> AsyncIterator[tuple[ShadowedPolicy, Shadow]]:
    live = EmbeddedPolicy(write_bundle(folder / "live", RULES), deadline_s=5)
    bundle = write_bundle(folder / "next", rules, manifest='{"revision": "r2"}')
    candidate = EmbeddedPolicy(bundle, deadline_s=5, evaluators=1, background=True)
    await live.start()
    shadow = Shadow(candidate, found.append, **options)
    shadow.start()
    try:
        await eventually("the candidate is there", lambda: shadow.ready)
        yield ShadowedPolicy(live, shadow), shadow
    finally:
        await shadow.close()
        await live.close()


async def test_a_planted_difference_is_found_and_only_it(tmp_path: Path) -> None:
    """Of hundreds of calls exactly those differ whose rule was changed; what was judged is the live policy's."""
    assert PLANTED != RULES
    found: list[Difference] = []
    async with beside(tmp_path, PLANTED, found) as (policy, shadow):
        names = ["allow", "approve", "deny", "nothing", "echo"] * 40
        verdicts = await asyncio.gather(*(policy.judge(ask(name, {"n": 1})) for name in names))
        assert {verdict.revision for verdict in verdicts} == {"r1"}
        assert Counter(verdict.effect for verdict in verdicts)[Effect.DENY] == 80
        await eventually("all were asked", lambda: shadow.judged == 200)
        await eventually("all differences are told", lambda: len(found) == 40)
        assert shadow.dropped == 0
        assert {one.kind for one in found} == {"deny_to_allow"}
        assert {json.loads(one.question)["request"]["name"] for one in found} == {"deny"}
        assert {(one.live.revision, one.candidate and one.candidate.revision) for one in found} == {("r1", "r2")}


async def test_a_candidate_that_loops_and_fails_holds_up_nobody(tmp_path: Path) -> None:
    """Whatever the candidate does, callers are judged in their time; what it could not be asked is counted."""
    looping = RULES.replace('input.request.name == "loop"\n', 'input.request.name == "allow"\n')
    assert looping != RULES
    found: list[Difference] = []
    async with beside(tmp_path, looping, found) as (policy, shadow):
        began = time.monotonic()
        for _ in range(WAITING + 200):
            assert (await policy.judge(ask("allow"))).effect is Effect.ALLOW
        assert time.monotonic() - began < 20
        assert shadow.dropped > 0
        await eventually("a failure is told", lambda: any(one.kind == "failed" for one in found))
        assert all(one.candidate is None for one in found if one.kind == "failed")


async def test_what_is_large_or_not_drawn_is_not_asked(tmp_path: Path) -> None:
    """The queue is bounded in bytes, a question in size, and a sample is a sample."""
    found: list[Difference] = []
    async with beside(tmp_path, PLANTED, found) as (policy, shadow):
        await policy.judge(ask("deny", {"text": "x" * LARGEST}))
        assert (shadow.judged, shadow.dropped) == (0, 1)
    async with beside(tmp_path / "sampled", PLANTED, found, sample=0.2) as (policy, shadow):
        for _ in range(300):
            await policy.judge(ask("allow"))
        await eventually("they were asked", lambda: shadow.judged > 10)
        assert shadow.judged < 200


async def test_a_candidate_that_cannot_start_is_told_and_waited_for(tmp_path: Path) -> None:
    """A bad candidate is no fault of the gateway's: it serves, and says so."""
    bundle = write_bundle(tmp_path / "next", "package mcp.authz\n}")
    said: list[str] = []
    shadow = Shadow(EmbeddedPolicy(bundle), lambda _: None, said.append)
    shadow.start()
    await eventually("it is told", lambda: bool(said))
    assert "authz.rego" in said[0]
    assert not shadow.ready
    await shadow.close()


ALLOW = Verdict(Effect.ALLOW, ("a", "b"), ("r",), revision="r1")
APPROVE = Verdict(Effect.APPROVE, approval=ApprovalTerms(approvers=("user:ann",)), revision="r1")


@pytest.mark.parametrize(
    ("live", "candidate", "kind"),
    [
        (ALLOW, replace(ALLOW, revision="r2", scopes=("b", "a")), ""),
        (ALLOW, APPROVE, "allow_to_approve"),
        (APPROVE, replace(ALLOW, scopes=("x",)), "approve_to_allow"),
        (ALLOW, replace(ALLOW, scopes=("a",)), "scopes"),
        (APPROVE, replace(APPROVE, approval=ApprovalTerms(approvers=("user:bob",))), "approval"),
        (ALLOW, replace(ALLOW, visible=("x",)), "visible"),
        (ALLOW, replace(ALLOW, disclose=True), "disclose"),
        (ALLOW, replace(ALLOW, mask=("/x",)), "mask"),
        (ALLOW, replace(ALLOW, clear=("/x",)), "clear"),
        (ALLOW, replace(ALLOW, reasons=("other",)), "reasons"),
    ],
)
def test_every_member_of_a_verdict_counts(live: Verdict, candidate: Verdict, kind: str) -> None:
    """What differs is told by the first member that matters; the revision and the order of sets do not."""
    assert tell_apart(live, candidate) == kind
    assert kind in ("", *DIFFERENCES)


def difference(name: str, kind: str = "deny_to_allow", server: str = "files") -> Difference:
    question = {"server": {"name": server}, "subject": {"id": CANARY, "claims": {"x": CANARY}}}
    request = {"method": "tools/call", "name": name, "arguments": {"secret": CANARY}}
    verdict = Verdict(Effect.DENY, reasons=("no",), revision="r1")
    asked = orjson.dumps({**question, "request": request})
    return Difference(kind, asked, verdict, replace(ALLOW, revision="r2"), decision=f"id of {name}"[:16])


def test_the_table_is_small_holds_no_argument_and_is_read_back(tmp_path: Path) -> None:
    """Grouped, bounded whatever names are made up, written at once, read over all workers; no caller's data in it."""
    counted: Counter[tuple[str, str]] = Counter()

    def count(server: str, kind: str) -> None:
        counted[server, kind] += 1

    uri = REDACTOR.uri
    tables = [Disagreements(file_of(tmp_path / "shadow.jsonl", writer), count, uri, lambda: 7.0) for writer in (0, 1)]
    for number in range(3 * MOST):
        tables[0].met(difference(f"made up {number}\n\u202e"))
    for _ in range(5):
        for table in tables:
            table.met(difference("read"))
    for table in tables:
        table.save()
    assert counted == {("files", "deny_to_allow"): 3 * MOST + 10}
    groups = read_all(tmp_path / "shadow.jsonl")
    assert len(groups) == MOST
    first = groups[0]
    assert (first.name, first.count, first.live, first.candidate) == ("read", 10, "deny", "allow")
    assert first.decision == "id of read"
    assert (first.live_reasons, first.candidate_reasons, first.candidate_revision) == (["no"], ["r"], "r2")
    for file in tmp_path.iterdir():
        text = file.read_text()
        assert CANARY not in text
        assert text.isascii()
    tables[0].forget()
    assert [group.count for group in read_all(tmp_path / "shadow.jsonl")] == [5]
    (tmp_path / "shadow.jsonl.2").write_text("{}\n")
    with pytest.raises(ValueError, match=r"shadow\.jsonl\.2"):
        read_all(tmp_path / "shadow.jsonl")


def test_where_nobody_looked_on_that_is_said(tmp_path: Path) -> None:
    """No table is no answer; a shadow that agrees in everything has an empty one. Whatever the file's name."""
    file = tmp_path / "shadow[1]*.jsonl"
    with pytest.raises(ValueError, match="is not there"):
        read_all(file)
    for writer in (0, 1):
        table = Disagreements(file_of(file, writer), lambda *_: None, REDACTOR.uri)
        table.forget()
        table.save()
    assert read_all(file) == []
    table.met(difference("read"))
    table.save()
    assert [group.count for group in read_all(file)] == [1]


@pytest.mark.parametrize(
    "changed",
    [
        {"last": "x"}, {"last": 1e300}, {"last": -1}, {"count": "x"}, {"count": None}, {"count": True}, {"count": -5},
        {"live_reasons": 5}, {"live_reasons": [5]}, {"candidate_reasons": [[]]}, {"server": 5}, {"name": []},
        {"decision": None}, {"planted": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_table_that_was_changed_is_told_or_shown_plainly(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Whoever may write its file: another form is named, and no text of it acts on a terminal."""
    file = tmp_path / "shadow.jsonl"
    table = Disagreements(file, lambda *_: None, REDACTOR.uri)
    table.met(difference("read"))
    table.save()
    group = orjson.loads(file.read_bytes())
    texts = {name: f"\x1b[2J\u202e{value}" for name, value in group.items() if isinstance(value, str)}
    acting = {**group, **texts, "live_reasons": ["\x1b[2J"], "candidate_reasons": ["\x07"]}
    file.write_bytes(orjson.dumps(acting) + b"\n")
    assert all(line.isprintable() for one in read_all(file) for line in sheet_of_group(one).splitlines())
    file.write_bytes(orjson.dumps({**group, **changed}) + b"\n" + orjson.dumps(group) + b"\n")
    with pytest.raises(ValueError, match=r"shadow\.jsonl: not a list of differences"):
        read_all(file)


def test_a_failed_candidate_is_a_group_as_well() -> None:
    """Its failure's text stands where reasons would."""
    live = Verdict(Effect.ALLOW, revision="r1")
    group = group_of(Difference("failed", b'{"request": {}}', live, None, str(PolicyUnavailable("took longer"))), str)
    assert isinstance(group, Group)
    assert (group.candidate, group.candidate_reasons, group.server) == ("none", ["took longer"], "")


@pytest.mark.parametrize(
    ("method", "name", "shown"),
    [
        ("resources/read", f"https://{CANARY}:x@files.example/a?sig={CANARY}#{CANARY}", "https://hmac:"),
        ("resources/subscribe", f"data:text/plain,{CANARY}", "data:text/plain,hmac:"),
        ("tasks/get", CANARY, ""),
        ("tools/call", "read", "read"),
        ("tools/call", "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJlc2lnbmF0dXJl", "[token removed]"),
    ],
)
def test_a_name_tells_no_more_than_the_record(method: str, name: str, shown: str) -> None:
    """AUD-02: what may be secret in a URI, a task's handle and what looks like a token are in no list and no log."""
    asked = Difference("failed", orjson.dumps({"request": {"method": method, "name": name}}), ALLOW, None, "")
    group = group_of(asked, REDACTOR.uri)
    assert group.name.startswith(shown)
    assert CANARY not in group.name
    assert (group.name == "") is (shown == "")
