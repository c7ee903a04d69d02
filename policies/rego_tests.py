"""Runs a bundle's own Rego tests (`*_test.rego`, rules named `test_…`) in an evaluator process, without OPA.

A test passes only if its rule is `true`; one that fails, is undefined, or does not end in time has not passed.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from policies import frames
from policies.bundles import DECISION, Bundle, load_bundle
from policies.process import connect_blocking
from policies.verdict import PolicyUnavailable


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test rule: its path (`data.…test_…`), whether it held, and if not, why."""

    name: str
    passed: bool
    why: str = ""


def run_tests(path: str | os.PathLike[str], *, timeout_s: float = 10.0) -> list[Outcome]:
    """Run all tests of the bundle at `path` (blocking), each for `timeout_s` at most.

    Raises `PolicyUnavailable` naming the file when the bundle or a test file can't be loaded at all.
    """
    return run_bundle_tests(load_bundle(path), timeout_s=timeout_s)


def run_bundle_tests(
    bundle: Bundle, *, timeout_s: float, given_up: Callable[[], bool] = lambda: False
) -> list[Outcome]:
    """The same of a bundle that was read. Tests that are not run because of `given_up` have not passed."""
    load = {
        "modules": [[module.name, module.text] for module in (*bundle.modules, *bundle.tests)],
        "data": bundle.data,
        "rule": DECISION,
        "checks": [],
        "memory_bytes": 1 << 30,
        "vet": True,
    }
    names: list[str] = []
    outcomes: list[Outcome] = []
    while len(outcomes) == 0 or len(outcomes) < len(names):
        # Again from the first test that has no outcome: one that never ends, or crashes, costs its process.
        names, more = _run_from(len(outcomes), json.dumps(load).encode(), timeout_s, given_up)
        outcomes += more
        if not names:
            break
    return outcomes


def _run_from(
    first: int, load: bytes, timeout_s: float, given_up: Callable[[], bool]
) -> tuple[list[str], list[Outcome]]:
    channel, process = connect_blocking()
    try:
        with channel:
            channel.settimeout(timeout_s)
            heard = _frames(channel)
            channel.sendall(frames.pack_frame(frames.LOAD, 0, load))
            kind, payload = next(heard, (frames.UNLOADABLE, b"the evaluator ended while it loaded the bundle"))
            if kind != frames.LOADED:
                raise PolicyUnavailable(payload.decode(errors="replace"))
            names: list[str] = json.loads(payload)["tests"]
            outcomes: list[Outcome] = []
            for name in names[first:]:
                if given_up():
                    outcomes.append(Outcome(name, False, "was not run: the time for all tests was over"))
                    continue
                channel.sendall(frames.pack_frame(frames.TEST, 0, name.encode()))
                try:
                    answer = next(heard, None)
                except TimeoutError:
                    outcomes.append(Outcome(name, False, f"did not end within {timeout_s:g} s"))
                    break
                if answer is None:
                    outcomes.append(Outcome(name, False, "the evaluator died"))
                    break
                outcomes.append(_read_outcome(name, *answer))
            return names, outcomes
    except TimeoutError:
        raise PolicyUnavailable(f"the bundle did not load within {timeout_s:g} s") from None
    finally:
        process.kill()
        process.wait()


def _frames(channel: socket.socket) -> Iterator[tuple[int, bytes]]:
    reader = frames.FrameReader(frames.LONGEST_LOAD)
    while data := channel.recv(65536):
        for kind, _, payload in reader.feed(data):
            yield kind, payload


def _read_outcome(name: str, kind: int, payload: bytes) -> Outcome:
    if kind == frames.FAILED:
        return Outcome(name, False, payload.decode(errors="replace"))
    if payload == b"true":
        return Outcome(name, True)
    return Outcome(name, False, "is not true")
