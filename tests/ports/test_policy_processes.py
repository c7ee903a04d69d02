"""The embedded engine's processes: killed, exploding, orphaned; no question is lost, none is answered wrongly."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import uvloop

from policies import frames
from policies import generation as generation_room
from policies.bundles import load_bundle
from policies.embedded import EmbeddedPolicy
from policies.generation import WINDOW, Bounds, Generation
from policies.verdict import Effect, PolicyUnavailable
from tests.ports.test_bundle import write_bundle
from tests.ports.test_policy import RULES, ask, embedded, timed

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CRASHING = """package mcp.authz

import rego.v1

default decision := {"effect": "deny"}

decision := {"effect": "allow"} if input.request.name == "allow"

decision := {"effect": "allow"} if {
	input.request.name == "crash"
	deeper(1) == 0
}

deeper(n) := deeper(n + 1)
"""


async def until(holds: object, seconds: float = 5.0) -> bool:
    """Whether the condition comes true in time."""
    assert callable(holds)
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.01)
    return True


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def resident(pid: int) -> int:
    """Bytes of memory that the process holds; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


async def storm(policy: EmbeddedPolicy, seconds: float, failures: list[str]) -> int:
    """Ask distinct questions, 16 at a time; every answer must be the right one. Returns how many were answered."""
    answered = 0
    end = time.monotonic() + seconds

    async def client(start: int) -> None:
        nonlocal answered
        n = start
        while time.monotonic() < end:
            n += 1
            try:
                verdict = await policy.judge(ask("echo", {"n": n}))
                assert verdict.reasons == (f"n{n}",)
                denied = await policy.judge(ask("deny"))
                assert denied.effect is Effect.DENY
                answered += 2
            except PolicyUnavailable as failure:
                failures.append(str(failure))

    await asyncio.gather(*(client(k * 1_000_000) for k in range(16)))
    return answered


@LINUX
async def test_killed_evaluators_lose_no_question(tmp_path: Path) -> None:
    """kill -9 of an evaluator, again and again under load: 0 wrong answers, 0 lost questions, all replaced."""
    async with embedded(tmp_path, deadline_s=10) as policy:
        failures: list[str] = []
        load = asyncio.ensure_future(storm(policy, 1.5, failures))
        killed: set[int] = set()
        for _ in range(5):
            await asyncio.sleep(0.15)
            assert await until(lambda: len(policy.pids) == 2)
            pid = policy.pids[0]
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        assert await load > 100
        assert failures == []
        assert len(killed) == 5
        assert await until(lambda: len(policy.pids) == 2 and not killed & set(policy.pids))
        assert await until(lambda: not any(alive(pid) for pid in killed))


async def test_all_evaluators_killed_at_once(tmp_path: Path) -> None:
    """With every process gone questions wait for the next ones; the engine says that it is not ready meanwhile."""
    async with embedded(tmp_path, deadline_s=5) as policy:
        for pid in policy.pids:
            os.kill(pid, signal.SIGKILL)
        verdicts = await asyncio.gather(*(policy.judge(ask("allow")) for _ in range(20)))
        assert all(verdict.effect is Effect.ALLOW for verdict in verdicts)
        assert await until(lambda: policy.ready)


async def test_a_question_that_kills_is_asked_twice_at_most(tmp_path: Path) -> None:
    """A policy that crashes the native code costs two evaluators, then the question; the others go on."""
    async with embedded(tmp_path, CRASHING, deadline_s=5) as policy:
        assert (await policy.judge(ask("allow"))).effect is Effect.ALLOW
        before = set(policy.pids)
        with pytest.raises(PolicyUnavailable, match="died on this question"):
            await policy.judge(ask("crash"))
        assert (await policy.judge(ask("allow"))).effect is Effect.ALLOW
        assert await until(lambda: len(policy.pids) == 2 and not before & set(policy.pids))


@LINUX
async def test_a_policy_that_explodes_is_bounded(tmp_path: Path) -> None:
    """AZ-07: memory ends at the limit: the process dies, the gateway grows by nothing, others are answered."""
    async with embedded(tmp_path, deadline_s=20, memory_bytes=160 << 20) as policy:
        explosion = asyncio.ensure_future(policy.judge(ask("explode", {"text": "x" * 1000})))
        most = 0
        while not explosion.done():
            for pid in policy.pids:
                most = max(most, resident(pid))
            assert (await policy.judge(ask("allow"))).effect is Effect.ALLOW
            await asyncio.sleep(0.02)
        with pytest.raises(PolicyUnavailable):
            await explosion
        assert most < 180 << 20
        assert (await policy.judge(ask("allow"))).effect is Effect.ALLOW


async def test_questions_behind_a_loop_are_handed_on(tmp_path: Path) -> None:
    """Head-of-line blocking is bounded: what was sent behind a question that hangs is answered elsewhere, at once."""
    async with embedded(tmp_path, deadline_s=3) as policy:
        loop = asyncio.ensure_future(timed(policy.judge(ask("loop"))))
        await asyncio.sleep(0)
        # More than one evaluator's window at once: some of them land behind the one that hangs.
        results = await asyncio.gather(*(timed(policy.judge(ask("echo", {"n": n}))) for n in range(14)))
        assert [result.reasons for _, result in results] == [(f"n{n}",) for n in range(14)]
        assert max(took for took, _ in results) < 1.5
        assert isinstance((await loop)[1], PolicyUnavailable)


async def test_a_single_evaluator_is_replaced_before_the_deadline(tmp_path: Path) -> None:
    """With one evaluator that hangs, the others wait for its replacement, not for the deadline."""
    async with embedded(tmp_path, deadline_s=3, evaluators=1) as policy:
        loop = asyncio.ensure_future(timed(policy.judge(ask("loop"))))
        await asyncio.sleep(0)
        took, verdict = await timed(policy.judge(ask("allow")))
        assert verdict.effect is Effect.ALLOW
        assert took < 2.5
        took, failure = await loop
        assert isinstance(failure, PolicyUnavailable)
        assert 2.9 < took < 4


async def test_many_loops_end_with_their_callers_only(tmp_path: Path) -> None:
    """More hanging questions than evaluators: each is refused in time, and no process is left behind."""
    async with embedded(tmp_path, deadline_s=0.5) as policy:
        results = await asyncio.gather(*(timed(policy.judge(ask("loop"))) for _ in range(12)))
        assert all(isinstance(result, PolicyUnavailable) for _, result in results)
        assert max(took for took, _ in results) < 1.0
        # The pool may have grown meanwhile: when that is ended again is the next test's.
        assert await until(lambda: len(policy.pids) >= 2)
        assert (await policy.judge(ask("allow"))).effect is Effect.ALLOW


async def test_what_the_pool_grew_by_is_ended_once_all_is_calm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A jam costs processes for as long as it lasts and a while longer, not until the gateway ends."""
    monkeypatch.setattr(generation_room, "CALM_S", 0.5)
    async with embedded(tmp_path, deadline_s=10) as policy:
        jammed = list(policy.pids)
        for pid in jammed:
            os.kill(pid, signal.SIGSTOP)
        asked = [asyncio.ensure_future(policy.judge(ask("allow"))) for _ in range(20)]
        grew = await until(lambda: len(policy.pids) > 2)
        for pid in jammed:
            os.kill(pid, signal.SIGCONT)
        assert grew, "where all take long, another one is started"
        assert {verdict.effect for verdict in await asyncio.gather(*asked)} == {Effect.ALLOW}
        grown = list(policy.pids)
        assert await until(lambda: len(policy.pids) == 2)
        assert await until(lambda: sum(map(alive, grown)) == 2), "those that were ended have gone"
        assert (await policy.judge(ask("allow"))).effect is Effect.ALLOW


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    """Beyond the bound a question is refused at once, and says why; those within it are answered."""
    bundle = load_bundle(write_bundle(tmp_path / "bundle", RULES))
    generation = Generation(bundle, Bounds(deadline_s=5, evaluators=1, waiting=10, question_bytes=10_000), ())
    await generation.start()
    try:
        asked = [asyncio.ensure_future(generation.ask(ask("allow"))) for _ in range(50)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        refused = [result for result in results if isinstance(result, PolicyUnavailable)]
        assert len(results) - len(refused) == WINDOW + 10
        assert all("overloaded" in str(failure) for failure in refused)
        with pytest.raises(PolicyUnavailable, match="longer than 10000 bytes"):
            await generation.ask(ask("allow", {"text": "x" * 10_000}))
    finally:
        await generation.close()


async def test_waiting_questions_are_refused_at_the_end(tmp_path: Path) -> None:
    """Closing answers everyone: nobody waits for an engine that is gone."""
    policy = EmbeddedPolicy(write_bundle(tmp_path / "bundle", RULES), deadline_s=5)
    await policy.start()
    asked = [asyncio.ensure_future(policy.judge(ask("loop"))) for _ in range(30)]
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await policy.close()
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(result, PolicyUnavailable) for result in results)
    assert time.monotonic() - began < 1


@LINUX
async def test_an_evaluator_has_nothing_of_the_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment (secrets live there), no listening socket, no file, no other descriptor; bounded for good."""
    monkeypatch.setenv("OSTIARY_AUDIT_KEY", "c2VjcmV0LXNlY3JldA")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        async with embedded(tmp_path, evaluators=1) as policy:
            process = Path(f"/proc/{policy.pids[0]}")
            assert b"c2VjcmV0LXNlY3JldA" not in (process / "environ").read_bytes()
            names = {entry.split(b"=")[0] for entry in (process / "environ").read_bytes().split(b"\0") if entry}
            assert names <= {b"PYTHONPATH", b"MIMALLOC_ARENA_RESERVE", b"LD_LIBRARY_PATH", b"PYTHONHOME"}
            descriptors = {entry.name: str(entry.readlink()) for entry in (process / "fd").iterdir()}
            assert set(descriptors) == {"0", "1", "2"}
            assert descriptors["0"].startswith("socket:")
            assert descriptors["1"] == descriptors["2"] == "/dev/null"
            limits = (process / "limits").read_text()
            for row in ("Max open files            3", "Max core file size        0", "Max file size             0"):
                assert row in limits
            assert "Max address space         1073741824" in limits
            assert "Max processes             0" in limits


@LINUX
async def test_signals_to_the_group_leave_evaluators_to_the_gateway(tmp_path: Path) -> None:
    """Ctrl-C and a service manager's SIGTERM reach all: the gateway drains, its evaluators stay until then."""
    async with embedded(tmp_path, evaluators=1) as policy:
        pid = policy.pids[0]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        assert (await policy.judge(ask("allow"))).effect is Effect.ALLOW
        assert policy.pids == [pid]


ORPHANING = """
import asyncio, sys
from policies.embedded import EmbeddedPolicy

async def main():
    policy = EmbeddedPolicy(sys.argv[1], deadline_s=600)
    await policy.start()
    asyncio.ensure_future(policy.judge(b'{"request": {"name": "loop"}}'))
    await asyncio.sleep(0.1)
    print(*policy.pids, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@LINUX
def test_evaluators_die_with_a_killed_gateway(tmp_path: Path) -> None:
    """kill -9 of the gateway, with one evaluator idle and one in an evaluation that never ends: neither stays."""
    bundle = write_bundle(tmp_path / "bundle", RULES)
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANING, str(bundle)],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    ) as gateway:
        assert gateway.stdout is not None
        pids = [int(pid) for pid in gateway.stdout.readline().split()]
        assert len(pids) == 2
        assert all(alive(pid) for pid in pids)
        gateway.kill()
    end = time.monotonic() + 5
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(alive(pid) for pid in pids)


async def test_an_answer_out_of_order_ends_the_evaluator(tmp_path: Path) -> None:
    """An answer that is not to the first open question is given to nobody; the question is asked again elsewhere."""
    bundle = load_bundle(write_bundle(tmp_path / "bundle", RULES))
    generation = Generation(bundle, Bounds(deadline_s=5, evaluators=1), ())
    await generation.start()
    try:
        evaluator = generation._evaluators[0]
        asked = asyncio.ensure_future(generation.ask(ask("deny")))
        await asyncio.sleep(0)
        forged = [frames.pack_frame(frames.ANSWER, ident, b'{"effect": "allow"}') for ident in (999, 1)]
        evaluator.data_received(b"".join(forged))
        assert b"allow" not in await asked
        assert evaluator not in generation._evaluators
    finally:
        await generation.close()


async def test_a_failure_that_is_no_text_is_still_an_answer(tmp_path: Path) -> None:
    """Whatever bytes an evaluator sends as its reason: the question is refused at once, and never hangs."""
    bundle = load_bundle(write_bundle(tmp_path / "bundle", RULES))
    generation = Generation(bundle, Bounds(deadline_s=30, evaluators=1), ())
    await generation.start()
    try:
        asked = asyncio.ensure_future(generation.ask(ask("loop")))
        await asyncio.sleep(0)
        generation._evaluators[0].data_received(frames.pack_frame(frames.FAILED, 1, b"\xff\xfe"))
        with pytest.raises(PolicyUnavailable):
            await asyncio.wait_for(asked, 5)
    finally:
        await generation.close()


def test_it_runs_on_the_loop_of_production(tmp_path: Path) -> None:
    """The same under uvloop: concurrent answers, a deadline, a killed process."""

    async def story() -> None:
        async with embedded(tmp_path, deadline_s=0.5) as policy:
            verdicts = await asyncio.gather(*(policy.judge(ask("echo", {"n": n})) for n in range(100)))
            assert [verdict.reasons for verdict in verdicts] == [(f"n{n}",) for n in range(100)]
            took, failure = await timed(policy.judge(ask("loop")))
            assert isinstance(failure, PolicyUnavailable)
            assert took < 1
            os.kill(policy.pids[0], signal.SIGKILL)
            assert (await policy.judge(ask("allow"))).effect is Effect.ALLOW

    uvloop.run(story())


async def test_the_policy_counts_what_it_was_asked(tmp_path: Path) -> None:
    """Other rooms' tests prove with this counter that a refusal came before the policy."""
    async with embedded(tmp_path) as policy:
        assert policy.evaluations == 0
        await policy.judge(ask("allow"))
        with pytest.raises(PolicyUnavailable):
            await policy.judge(ask("word"))
        assert policy.evaluations == 2


@pytest.mark.parametrize(
    ("rules", "manifest", "names"),
    [
        ("package mcp.authz\n\ndecision := {", '{"revision": "r"}', r"bundle: mcp/authz/authz\.rego:3"),
        ('package mcp.authz\n\ndecision := "allow"\n', '{"revision": "r"}', r"bundle: .*not an object"),
        (
            'package mcp.authz\n\ndecision := {"effect": "allow", "x": 1}\n',
            '{"revision": "r"}',
            r"unknown member `x`",
        ),
        ("package mcp.authz\n\ndecision := 1 if input.never\n", '{"revision": "r"}', r"undefined"),
        (RULES, "{}", r"\.manifest"),
    ],
)
async def test_a_bundle_that_cannot_judge_fails_at_the_start(
    tmp_path: Path, rules: str, manifest: str, names: str
) -> None:
    """Does not compile, undefined, malformed for a plain question, no revision: named at start, never met later."""
    policy = EmbeddedPolicy(write_bundle(tmp_path / "bundle", rules, manifest=manifest))
    with pytest.raises(PolicyUnavailable, match=names):
        await policy.start()
    assert not policy.ready
    assert policy.revision == policy.digest == ""


def test_frames_survive_any_cut() -> None:
    """However the stream is cut, the same frames come out, in order; a length beyond reason ends it."""
    sent = [(frames.ANSWER, n, b"x" * (n * 7 % 40)) for n in range(20)]
    stream = b"".join(frames.pack_frame(*frame) for frame in sent)
    for step in (1, 2, 8, 9, 10, 33, len(stream)):
        reader = frames.FrameReader(100)
        heard = [frame for at in range(0, len(stream), step) for frame in reader.feed(stream[at : at + step])]
        assert heard == sent
    for cut in (4, 9):
        reader = frames.FrameReader(100)
        assert list(reader.feed(b"\xff" * cut if cut < frames.HEAD_BYTES else b"")) == []
        with pytest.raises(frames.FrameError):
            list(reader.feed(b"\xff" * 12))
