"""Runs a bundle's own Rego tests (`*_test.rego`, rules named `test_…`) in an evaluator process, without OPA.

A test passes only if its rule is `true`; one that fails, is undefined, or does not end in time has not passed.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from policies import frames
from policies.bundles import DECISION, Bundle, load_bundle
from policies.process import LOAD_S, connect_blocking
from policies.verdict import PolicyUnavailable


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test rule: its path (`data.…test_…`), whether it held, and if not, why."""

    name: str
    passed: bool
    why: str = ""


def run_tests(path: str | os.PathLike[str], *, timeout_s: float = 10.0) -> list[Outcome]:
    """Run all tests of the bundle at `path` (blocking), each for `timeout_s` at most (and `LOAD_S` to load it).

    Raises `PolicyUnavailable` naming the file when the bundle or a test file can't be loaded at all.
    """
    return run_bundle_tests(load_bundle(path), timeout_s=timeout_s)


def run_bundle_tests(
    bundle: Bundle,
    *,
    timeout_s: float,
    given_up: Callable[[], bool] = lambda: False,
    coverage: Coverage | None = None,
) -> list[Outcome]:
    """The same of a bundle that was read. Tests that are not run because of `given_up` have not passed.

    `coverage` is filled with the lines of the rules that tests evaluated; what a process that died had seen is lost.
    """
    load = {
        "modules": [[module.name, module.text] for module in (*bundle.modules, *bundle.tests)],
        "data": bundle.data,
        "rule": DECISION,
        "checks": [],
        "memory_bytes": 1 << 30,
        "vet": True,
        "cover": coverage is not None,
    }
    names: list[str] = []
    outcomes: list[Outcome] = []
    while len(outcomes) == 0 or len(outcomes) < len(names):
        # Again from the first test that has no outcome: one that never ends, or crashes, costs its process.
        with _Run(json.dumps(load).encode(), timeout_s) as run:
            names = run.names
            outcomes += run.test(names[len(outcomes) :], given_up)
            if coverage is not None:
                coverage.add(run.report())
        if not names:
            break
    return outcomes


def trace_question(bundle: Bundle, question: bytes, *, timeout_s: float) -> dict[str, list[int]]:
    """By file, the lines that are evaluated for one question (blocking). Raises `PolicyUnavailable`."""
    load = {
        "modules": [[module.name, module.text] for module in bundle.modules],
        "data": bundle.data, "rule": DECISION, "checks": [], "memory_bytes": 1 << 30, "vet": False, "cover": True,
    }  # fmt: skip
    with _Run(json.dumps(load).encode(), timeout_s) as run:
        run.ask(question)
        return {name: lines["covered"] for name, lines in sorted(run.report().items())}


class Coverage:
    """The lines of each file that were evaluated, and those that never were. Tests' own files are left out."""

    def __init__(self) -> None:
        self._covered: dict[str, set[int]] = {}
        self._seen: dict[str, set[int]] = {}

    def add(self, report: Mapping[str, Mapping[str, list[int]]]) -> None:
        """What one process has evaluated."""
        for name, lines in report.items():
            if not name.endswith("_test.rego"):
                self._covered.setdefault(name, set()).update(lines["covered"])
                self._seen.setdefault(name, set()).update(lines["covered"], lines["not_covered"])

    def files(self) -> dict[str, tuple[list[int], list[int]]]:
        """By file: the lines that were evaluated, and those that were not."""
        return {
            name: (sorted(self._covered[name]), sorted(seen - self._covered[name]))
            for name, seen in sorted(self._seen.items())
        }


class _Run:
    """One evaluator process with the bundle and its tests, for the length of a `with`."""

    def __init__(self, load: bytes, timeout_s: float) -> None:
        self._load = load
        self._timeout_s = timeout_s
        self.names: list[str] = []
        self._dead = False

    def __enter__(self) -> Self:
        try:
            self._channel, self._process = connect_blocking()
        except OSError as error:
            raise PolicyUnavailable(f"no evaluator could be started: {error.strerror}") from error
        try:
            self._channel.settimeout(LOAD_S)
            self._heard = _frames(self._channel)
            self._channel.sendall(frames.pack_frame(frames.LOAD, 0, self._load))
            kind, payload = next(self._heard, (frames.UNLOADABLE, b"the evaluator ended while it loaded the bundle"))
            if kind != frames.LOADED:
                raise PolicyUnavailable(payload.decode(errors="replace"))
            self.names = json.loads(payload)["tests"]
            self._channel.settimeout(self._timeout_s)
        except TimeoutError:
            self.__exit__()
            raise PolicyUnavailable(f"the bundle did not load within {LOAD_S:g} s") from None
        except OSError as error:
            self.__exit__()
            raise PolicyUnavailable("the evaluator ended while it loaded the bundle") from error
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def test(self, names: list[str], given_up: Callable[[], bool]) -> list[Outcome]:
        """Run these, up to the first that costs the process."""
        outcomes: list[Outcome] = []
        for name in names:
            if given_up():
                outcomes.append(Outcome(name, False, "was not run: the time for all tests was over"))
                continue
            answer, why = self._ask(frames.TEST, name.encode())
            if answer is None:
                outcomes.append(Outcome(name, False, why))
                break
            outcomes.append(_read_outcome(name, *answer))
        return outcomes

    def ask(self, question: bytes) -> None:
        """Evaluate the decision for a question."""
        self._ask(frames.ASK, question)

    def report(self) -> dict[str, dict[str, list[int]]]:
        """What was evaluated; nothing where the process is gone."""
        answer, _ = (None, "") if self._dead else self._ask(frames.REPORT, b"")
        found: dict[str, dict[str, list[int]]] = {} if answer is None else json.loads(answer[1])
        return found

    def _ask(self, kind: int, payload: bytes) -> tuple[tuple[int, bytes] | None, str]:
        try:
            self._channel.sendall(frames.pack_frame(kind, 0, payload))
            answer = next(self._heard, None)
        except TimeoutError:
            self._dead = True
            return None, f"did not end within {self._timeout_s:g} s"
        except OSError:
            answer = None
        self._dead = answer is None
        return answer, "the evaluator died"


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
