"""AZ-08: another bundle judges from one question to the next; a bad one changes nothing and is told."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from policies import rego_tests, reloading
from policies.bundles import Bundle, load_bundle
from policies.embedded import EmbeddedPolicy
from policies.rego_tests import run_bundle_tests
from policies.reloading import Folder, Replaced
from policies.verdict import PolicyUnavailable
from tests.ports.test_bundle import write_bundle
from tests.ports.test_policy import ask
from tests.ports.test_policy_processes import alive
from tests.support.processes import descendants, eventually

_numbers = itertools.count()
RULES = """package mcp.authz

import rego.v1

decision := {{"effect": "allow", "reasons": [data.mcp.authz.word, "{word}"]}} if input.phase != "slow"

decision := {{"effect": "allow", "reasons": ["slow", "{word}"]}} if {{
	input.phase == "slow"
	count([a | some a in numbers.range(1, 60000); a * a == 49]) == 1
}}
"""
TEST = """package mcp.authz_test

import rego.v1

test_allows if data.mcp.authz.decision.reasons[1] == "{word}" with input as {{"phase": "call"}}
"""


def put(link: Path, word: str, revision: str | None = None, **files: str) -> None:
    """At `link`, at once, a bundle whose rules, data, tests and revision all say `word`; `files` replace texts."""
    folder = link.with_name(f"{link.name}-{next(_numbers)}")
    home = folder / "mcp/authz"
    texts = {
        home / "authz.rego": files.get("rules", RULES.format(word=word)),
        home / "data.json": files.get("data", json.dumps({"word": word})),
        home / "authz_test.rego": files.get("tests", TEST.format(word=word)),
        folder / ".manifest": files.get("manifest", json.dumps({"revision": revision or word})),
    }
    home.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        file.write_text(text)
    draft = link.with_name("draft")
    draft.symlink_to(folder.name)
    draft.rename(link)


@asynccontextmanager
async def watched(folder: Path, told: list[Replaced], deadline_s: float = 5) -> AsyncIterator[EmbeddedPolicy]:
    policy = EmbeddedPolicy(folder, deadline_s=deadline_s, replaced=told.append, look_every_s=0.05)
    await policy.start()
    try:
        yield policy
    finally:
        await policy.close()


async def test_every_decision_is_of_one_bundle_and_none_fails(tmp_path: Path) -> None:
    """AZ-08: under load, bundle after bundle: rules, data and revision of one answer always belong together."""
    put(tmp_path / "b", "one")
    told: list[Replaced] = []
    async with watched(tmp_path / "b", told) as policy:
        seen: list[str] = []
        stop = False

        async def caller() -> None:
            while not stop:
                verdict = await policy.judge(ask("x"))
                assert set(verdict.reasons) == {verdict.revision}
                seen.append(verdict.revision)

        callers = [asyncio.ensure_future(caller()) for _ in range(8)]
        words = ["one", "two", "three", "four"]
        for before, word in itertools.pairwise(words):
            pids = policy.pids
            put(tmp_path / "b", word)
            await eventually("the new one judges", lambda: policy.revision == word)  # noqa: B023
            assert told[-1] == Replaced(before, word)
            await eventually("the old processes are gone", lambda: not any(map(alive, pids)))  # noqa: B023
        await eventually("the last one answers", lambda: seen[-1] == "four")
        stop = True
        await asyncio.gather(*callers)
        assert list(dict.fromkeys(seen)) == words, "never back to an older one"
        assert policy.fault == ""


async def test_who_asked_before_is_answered_by_the_old_bundle(tmp_path: Path) -> None:
    """A question on its way when the bundle is replaced is neither lost nor judged by half of each."""
    put(tmp_path / "b", "one")
    told: list[Replaced] = []
    async with watched(tmp_path / "b", told, deadline_s=30) as policy:
        put(tmp_path / "b", "two")
        slow = json.dumps({"phase": "slow"}).encode()
        asked = []
        while policy.revision == "one":
            asked.append(asyncio.ensure_future(policy.judge(slow)))
            await asyncio.sleep(0.05)
        verdicts = await asyncio.gather(*asked)
        assert {(verdict.reasons, verdict.revision) for verdict in verdicts} == {(("slow", "one"), "one")}
        assert (await policy.judge(slow)).reasons == ("slow", "two")


BAD = {
    "does not parse": ({"rules": "package mcp.authz\ndecision := {"}, "authz.rego:2"),
    "data is no JSON": ({"data": "{"}, "data.json: not JSON"),
    "no revision": ({"manifest": "{}"}, ".manifest: `revision`"),
    "its own test fails": ({"tests": TEST.format(word="other")}, "test_allows does not hold"),
    "its tests do not parse": ({"tests": "package mcp.authz_test\ntest_x := {"}, "authz_test.rego:2"),
    "does I/O": ({"rules": RULES.format(word="two") + "\nx := http.send({})\n"}, "http.send"),
    "undefined for a plain question": (
        {"rules": "package mcp.authz\n\ndecision := 1 if false\n", "tests": "package mcp.authz_test"},
        "undef",
    ),
    "no verdict": (
        {"rules": 'package mcp.authz\n\ndecision := "allow"\n', "tests": "package mcp.authz_test"},
        "malformed",
    ),
    "the same revision": ({"manifest": '{"revision": "one"}'}, "`revision` is still one"),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_bundle_changes_nothing_and_is_told(tmp_path: Path, case: str) -> None:
    """AZ-08: the old one goes on judging, it is said once why, and a good one is taken after it."""
    files, words = BAD[case]
    put(tmp_path / "b", "one")
    told: list[Replaced] = []
    async with watched(tmp_path / "b", told) as policy:
        pids = policy.pids
        put(tmp_path / "b", "two", **files)
        await eventually("it is told", lambda: bool(told))
        assert (told[0].before, words in told[0].why) == ("one", True), told[0]
        assert policy.fault == told[0].why
        for _ in range(5):
            assert (await policy.judge(ask("x"))).revision == "one"
            await asyncio.sleep(0.06)
        assert policy.ready
        assert policy.pids == pids
        assert len(told) == 1, "once for each bundle"
        put(tmp_path / "b", "three")
        await eventually("a good one judges", lambda: policy.revision == "three")
        assert policy.fault == ""


async def test_what_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A good bundle that the machine was too slow for judges by and by, though its files do not change any more."""
    monkeypatch.setattr(reloading, "AGAIN_S", 0.3)
    put(tmp_path / "b", "one")
    told: list[Replaced] = []
    with monkeypatch.context() as slow:
        slow.setattr(reloading, "TESTS_S", -1.0)
        async with watched(tmp_path / "b", told) as policy:
            put(tmp_path / "b", "two")
            await eventually("it was not tested in time", lambda: "the time for all tests" in policy.fault)
            slow.setattr(reloading, "TESTS_S", 30.0)
            await eventually("it judges", lambda: policy.revision == "two")
    assert [bool(one.why) for one in told] == [True, False]


async def test_back_to_the_old_text_is_well_again(tmp_path: Path) -> None:
    """The fault is about what lies there: where that is what judges, there is none."""
    put(tmp_path / "b", "one")
    told: list[Replaced] = []
    async with watched(tmp_path / "b", told) as policy:
        put(tmp_path / "b", "one", rules="package mcp.authz\n}")
        await eventually("told", lambda: bool(policy.fault))
        put(tmp_path / "b", "one")
        await eventually("well", lambda: not policy.fault)
        assert len(told) == 1


async def test_a_bundle_that_is_gone_goes_on_judging(tmp_path: Path) -> None:
    """What lies there no more is told like a bad one."""
    put(tmp_path / "b", "one")
    told: list[Replaced] = []
    async with watched(tmp_path / "b", told) as policy:
        (tmp_path / "b").unlink()
        await eventually("it is told", lambda: "no such bundle directory" in policy.fault)
        assert told == [Replaced("one", "", policy.fault)]
        assert (await policy.judge(ask("x"))).revision == "one"


def test_files_are_taken_once_they_rest(tmp_path: Path) -> None:
    """Who copies file by file is not read half-way, as long as no look finds the same as the one before."""
    put(tmp_path / "b", "one")
    folder = Folder(tmp_path / "b")
    assert folder.load().revision == "one"
    assert folder.load_if_changed() is None
    for name in ("authz.rego", "data.json"):
        file = tmp_path / "b/mcp/authz" / name
        file.write_text(file.read_text() + "\n\n")
        assert folder.load_if_changed() is None
    (tmp_path / "b/.manifest").write_text('{"revision": "two"}')
    assert folder.load_if_changed() is None
    found = folder.load_if_changed()
    assert found is not None
    assert found.revision == "two"
    assert folder.load_if_changed() is None


def test_what_is_written_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle that changed under the reader's hands may be half of each, and is not taken."""
    put(tmp_path / "b", "one")
    folder = Folder(tmp_path / "b")
    folder.load()
    put(tmp_path / "b", "two")
    assert folder.load_if_changed() is None

    def load_slowly(path: Path) -> Bundle:
        bundle = load_bundle(path)
        put(tmp_path / "b", "three")
        return bundle

    with monkeypatch.context() as slow:
        slow.setattr(reloading, "load_bundle", load_slowly)
        assert folder.load_if_changed() is None
    assert folder.load_if_changed() is None
    found = folder.load_if_changed()
    assert found is not None
    assert found.revision == "three"


async def test_a_path_that_the_system_cannot_follow_is_waited_for(tmp_path: Path) -> None:
    """A mount that fails for a while, with whatever error, is told; the folder is looked at further."""
    put(tmp_path / "b", "one")
    told: list[Replaced] = []
    async with watched(tmp_path / "b", told) as policy:
        (tmp_path / "b").unlink()
        (tmp_path / "b").symlink_to("x" * 256)  # a name that no file can have: neither there nor absent
        await eventually("it is told", lambda: bool(told))
        assert "defect" not in policy.fault
        put(tmp_path / "b", "two")
        await eventually("it judges", lambda: policy.revision == "two")


def test_a_path_that_the_system_cannot_follow_is_no_bundle(tmp_path: Path) -> None:
    """At the start it is said of the path, as everything else that is wrong with it."""
    (tmp_path / "b").symlink_to("x" * 256)
    with pytest.raises(PolicyUnavailable, match="/b: "):
        load_bundle(tmp_path / "b")


async def test_a_machine_without_a_process_to_spare_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that can't be run for want of the machine have not passed, and are tried again."""
    monkeypatch.setattr(reloading, "AGAIN_S", 0.3)
    put(tmp_path / "b", "one")
    told: list[Replaced] = []

    def refuse() -> Any:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    async with watched(tmp_path / "b", told) as policy:
        with monkeypatch.context() as poor:
            poor.setattr(rego_tests, "connect_blocking", refuse)
            put(tmp_path / "b", "two")
            await eventually("it is told", lambda: bool(told))
            assert "no evaluator could be started" in policy.fault
        await eventually("it judges", lambda: policy.revision == "two")


async def test_a_listener_is_told_in_text_whatever_a_file_is_called(tmp_path: Path) -> None:
    """A name that is no UTF-8 is told escaped, and shortened: who writes logs and records can write it."""
    put(tmp_path / "b", "one")
    told: list[Replaced] = []
    async with watched(tmp_path / "b", told) as policy:
        put(tmp_path / "b", "two")
        (tmp_path / "b" / os.fsdecode(b"\xff" * 200 + b".rego")).write_text("package x")
        await eventually("it is told", lambda: bool(told))
        assert told[0].why.encode()
        assert len(told[0].why) <= 2000
        assert policy.fault == told[0].why


def test_what_no_engine_reads_hides_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout's thousands of hidden files beside the bundle are neither looked at nor counted."""
    monkeypatch.setattr(reloading, "MOST_FILES", 20)
    put(tmp_path / "b", "one")
    for number in range(30):
        (tmp_path / "b" / ".git" / f"{number}").mkdir(parents=True)
        (tmp_path / "b" / ".git" / f"{number}" / "object").touch()
    folder = Folder(tmp_path / "b")
    folder.load()
    (tmp_path / "b/mcp/authz/data.json").write_text('{"word": "other"}')
    assert folder.load_if_changed() is None
    found = folder.load_if_changed()
    assert found is not None
    assert "other" in found.data


def test_a_folder_with_too_many_files_is_no_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can't be looked at whole is refused, and not watched in part."""
    monkeypatch.setattr(reloading, "MOST_FILES", 20)
    put(tmp_path / "b", "one")
    folder = Folder(tmp_path / "b")
    folder.load()
    for number in range(30):
        (tmp_path / "b" / f"{number}").touch()
    with pytest.raises(PolicyUnavailable, match="more than 20 files"):
        folder.load()


async def test_a_mounted_configmap_is_replaced_by_one_swap(tmp_path: Path) -> None:
    """As kubelet does it: files are links into `..data`, which is renamed from one folder to the next."""
    mount = tmp_path / "policy"
    mount.mkdir()

    def judges(policy: EmbeddedPolicy, word: str) -> bool:
        return policy.revision == word

    def publish(word: str) -> None:
        put(tmp_path / "from", word)
        (tmp_path / "from").resolve().rename(mount / f"..{word}")
        (mount / "..data_tmp").symlink_to(f"..{word}")
        (mount / "..data_tmp").rename(mount / "..data")

    publish("one")
    for name in (".manifest", "mcp"):
        (mount / name).symlink_to(f"..data/{name}")
    told: list[Replaced] = []
    async with watched(mount, told) as policy:
        for before, word in pairwise(("one", "two", "three")):
            publish(word)
            shutil.rmtree(mount / f"..{before}")
            await eventually("it judges", partial(judges, policy, word))
            assert (await policy.judge(ask("x"))).reasons == (word, word)
    assert [one.why for one in told] == ["", ""]


def test_a_bundle_that_takes_long_to_load_is_not_a_test_that_takes_long(tmp_path: Path) -> None:
    """What may judge from the start may come later as well: the time to load it is not taken from a test's."""
    put(tmp_path / "b", "one")
    outcomes = run_bundle_tests(load_bundle(tmp_path / "b"), timeout_s=0.001)
    assert [outcome.name for outcome in outcomes] == ["data.mcp.authz_test.test_allows"]


async def test_a_close_in_the_middle_of_a_change_leaves_nothing(tmp_path: Path) -> None:
    """Whatever it is doing, after `close` there is no process, and nobody is answered."""
    put(tmp_path / "b", "one")
    before = descendants(os.getpid())
    for delay in (0.1, 0.15, 0.2, 0.3):
        told: list[Replaced] = []
        async with watched(tmp_path / "b", told) as policy:
            put(tmp_path / "b", f"w{delay}")
            await asyncio.sleep(delay)
        assert policy.pids == []
        with pytest.raises(PolicyUnavailable):
            await policy.judge(ask("x"))
    await eventually("no child is left", lambda: not descendants(os.getpid()) - before)


async def test_a_folder_nobody_watches_is_read_once(tmp_path: Path) -> None:
    """Without somebody to tell (`ostiary check`) nothing is replaced."""
    write_bundle(tmp_path / "a")
    policy = EmbeddedPolicy(tmp_path / "a", look_every_s=0.01)
    await policy.start()
    (tmp_path / "a/.manifest").write_text('{"revision": "r2"}')
    await asyncio.sleep(0.2)
    assert policy.revision == "r1"
    await policy.close()
