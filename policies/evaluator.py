"""The process that evaluates Rego: a question comes in, a decision goes out, one after the other.

It is started by `policies/process.py`, has the gateway's end of one socket and nothing else: no environment, no file,
no network, bounded memory. It may be killed at any time; nothing is kept here. The gateway itself never loads the
engine's native code, so a fault in it costs one evaluator, not the gateway.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import signal
import socket
import sys
import time
from typing import Any, Protocol, cast

from policies import frames, vetting

UNDEFINED = '"<undefined>"'  # how the engine writes that a rule has no value
_READ_BYTES = 256 * 1024
_TOGETHER_S = 0.001  # answers that are this close to each other leave in one write
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38

_PLACE = re.compile(r"--> (.+:\d+):\d+")
_REASON = re.compile(r"error: (.+)")


class Engine(Protocol):
    """What is used of `regorus.Engine`."""

    def add_policy(self, path: str, rego: str) -> Any:
        """One module, parsed."""

    def add_data_json(self, data: str) -> None:
        """JSON text, merged into the data document."""

    def set_input_json(self, input: str) -> None:  # noqa: A002 - the engine's own name
        """JSON text, the input document from now on."""

    def eval_rule_as_json(self, rule: str) -> str:
        """`data.…` -> its value as JSON text, or `UNDEFINED`."""
        ...

    def get_ast_as_json(self) -> str:
        """The syntax trees of all modules."""
        ...

    def set_enable_coverage(self, enable: bool) -> None:
        """Whether lines that are evaluated are noted."""

    def get_coverage_report_as_json(self) -> str:
        """The lines that were, and those that were not."""
        ...

    def clone(self) -> Engine:
        """A copy that shares what is never changed."""
        ...


class Unloadable(Exception):  # noqa: N818 - a past participle: the bundle was not loaded
    """The bundle can't judge. The text names the file."""


class Judge:
    """One loaded bundle. After a failed question the next one gets a fresh copy of the engine."""

    def __init__(self, load: dict[str, Any], engine: Engine) -> None:
        """`load` is the payload of a LOAD frame (frames.py), `engine` an empty engine. Raises `Unloadable`."""
        self._rule: str = load["rule"]
        self.tests: list[str] = []
        self._reports: list[str] = []
        self._covers = bool(load.get("cover"))
        try:
            if self._covers:
                engine.set_enable_coverage(True)
            for name, text in load["modules"]:
                engine.add_policy(name, text)
            if load["vet"]:
                self.tests = _vet(engine, json.loads(load["data"]), self._rule)
            engine.add_data_json(load["data"])
        except Unloadable:
            raise
        except BaseException as error:  # the engine's panics are no `Exception`s
            raise Unloadable(_explain(error)) from error
        self._fresh = engine
        self._engine = engine.clone()
        self.checks = []
        for question in load["checks"]:
            try:
                answer = self._evaluate(question, self._rule)
            except BaseException as error:
                raise Unloadable(_explain(error)) from error
            if answer == UNDEFINED:
                raise Unloadable(f"{load['modules'][0][0]}: {self._rule} is undefined for a plain question")
            self.checks.append(answer)

    def answer(self, question: bytes, rule: str | None = None) -> tuple[int, bytes]:
        """The input document -> (ANSWER, JSON text) or (FAILED, why). The text of a failure holds no input."""
        try:
            decision = self._evaluate(question.decode(), rule or self._rule)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is no decision
            if self._covers:
                self._reports.append(self._engine.get_coverage_report_as_json())
            self._engine = self._fresh.clone()
            place = _PLACE.search(str(error))
            what = f"a rule failed at {place[1]}" if place else f"the evaluation failed ({type(error).__name__})"
            return frames.FAILED, what.encode()
        if decision == UNDEFINED:
            return frames.FAILED, f"{rule or self._rule} is undefined".encode()
        answer = decision.encode()
        if len(answer) > frames.LONGEST_ANSWER:
            return frames.FAILED, f"{rule or self._rule} is longer than {frames.LONGEST_ANSWER} bytes".encode()
        return frames.ANSWER, answer

    def report(self) -> bytes:
        """The lines that were evaluated by now, and those that were not: the payload of an answer to REPORT."""
        covered: dict[str, set[int]] = {}
        seen: dict[str, set[int]] = {}
        for text in [*self._reports, self._engine.get_coverage_report_as_json()]:
            for file in json.loads(text)["files"]:
                covered.setdefault(file["path"], set()).update(file["covered"])
                seen.setdefault(file["path"], set()).update(file["covered"], file["not_covered"])
        told = {
            name: {"covered": sorted(covered[name]), "not_covered": sorted(lines - covered[name])}
            for name, lines in seen.items()
        }
        return json.dumps(told).encode()

    def _evaluate(self, question: str, rule: str) -> str:
        engine = self._engine
        engine.set_input_json(question)
        return engine.eval_rule_as_json(rule)


def make_engine() -> Engine:
    """An empty engine. The native code is loaded here and nowhere else."""
    import regorus  # noqa: PLC0415 - the gateway imports this module's names without the native code

    return cast(Engine, regorus.Engine())


def _vet(engine: Engine, data: dict[str, Any], decision: str) -> list[str]:
    """Refuse what vetting.py finds; return the paths of the test rules."""
    trees = json.loads(engine.get_ast_as_json())
    faults = list(vetting.find_faults(trees, data, _list_builtins(), decision))
    if faults:
        raise Unloadable("; ".join(faults[:5]))
    return vetting.list_tests(trees)


def _list_builtins() -> frozenset[str]:
    engine = make_engine()
    engine.add_policy("names", "package names\nnames := opa.runtime().builtins")
    engine.set_input_json("{}")
    return frozenset(json.loads(engine.eval_rule_as_json("data.names.names")))


def _explain(error: BaseException) -> str:
    """The engine's error about the bundle (never about a caller's question) -> `file:line: what`."""
    text = str(error).partition("Stack backtrace")[0]
    place, reason = _PLACE.search(text), _REASON.search(text)
    what = reason[1] if reason else " ".join(text.split())[:300] or type(error).__name__
    return f"{place[1]}: {what}" if place else what


def confine(memory_bytes: int) -> None:
    """Give up what judging doesn't take: memory beyond the limit, files, sockets, children, core dumps."""
    open_files = 3  # 0 is the gateway's socket, 1 and 2 are /dev/null
    for what, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        # Not every system has every limit (macOS has no RLIMIT_AS that works): what can be bounded, is.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (limit, limit))


def _die_with_parent(parent: int) -> None:
    """End when the gateway does, even in the middle of an evaluation that never ends (Linux)."""
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def serve(channel: socket.socket) -> None:
    """Answer frames until the gateway hangs up: first one LOAD, then any number of ASK and TEST."""
    reader = frames.FrameReader(frames.LONGEST_LOAD)
    judge: Judge | None = None
    answers: list[bytes] = []
    while data := channel.recv(_READ_BYTES):
        since = time.monotonic()
        for kind, ident, payload in reader.feed(data):
            if judge is None:
                load, engine = json.loads(payload), make_engine()
                confine(load["memory_bytes"])
                try:
                    judge = Judge(load, engine)
                except Unloadable as error:
                    channel.sendall(frames.pack_frame(frames.UNLOADABLE, ident, str(error).encode()))
                    return
                loaded = json.dumps({"checks": judge.checks, "tests": judge.tests}).encode()
                channel.sendall(frames.pack_frame(frames.LOADED, ident, loaded))
                continue
            if kind == frames.REPORT:
                outcome, text = frames.ANSWER, judge.report()
            elif kind == frames.TEST:
                outcome, text = judge.answer(b"{}", payload.decode())
            else:
                outcome, text = judge.answer(payload)
            answers.append(frames.pack_frame(outcome, ident, text))
            if time.monotonic() - since > _TOGETHER_S:
                channel.sendall(b"".join(answers))
                answers.clear()
                since = time.monotonic()
        if answers:
            channel.sendall(b"".join(answers))
            answers.clear()


def main(parent: int) -> None:
    """The process: `python -c "…main(PID)"` with the socket as its standard input."""
    for quiet in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A signal to the whole group is the gateway's to answer: it drains, then hangs up.
        signal.signal(quiet, signal.SIG_IGN)
    _die_with_parent(parent)
    with contextlib.suppress(OSError), socket.socket(fileno=0) as channel:
        serve(channel)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
