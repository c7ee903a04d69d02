"""All kept inputs, replayed: what once broke a rule does not any more, and the targets would notice what did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from gateway.contract import envelope, guard, headers
from gateway.contract.arguments import Contract
from gateway.contract.stream import EventParser, ResponseStream
from gateway.sealing import Sealer
from tests.fuzz import targets, vectors
from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import TARGETS

Sabotage = Callable[[pytest.MonkeyPatch], None]


def test_every_target_is_run_and_has_inputs() -> None:
    """A campaign leaves no target out, and each begins with inputs of its own; what was found names a target."""
    assert tuple(SEEDS) == tuple(TARGETS)
    assert {file.stem for file in vectors.FOLDER.glob("*.txt")} <= {*TARGETS, "found"}
    assert {name for name, _ in vectors.found()} <= set(TARGETS)
    assert all(len(vectors.kept(name)) >= 3 for name in TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_no_kept_input_breaks_a_rule(name: str) -> None:
    """Everything that fuzzing kept or found holds, in every run of the suite and without a fuzzer."""
    replay(name)


class ByLineFeed(EventParser):
    """Takes CR LF for two ends of a line."""

    def feed(self, data: bytes) -> Any:
        return super().feed(data.replace(b"\r\n", b"\n\n"))


class ByPiece(ResponseStream):
    """Lets the caller see how the bytes were cut."""

    def feed(self, data: bytes) -> list[bytes]:
        return [*super().feed(data), b":\n\n"]


def _lenient_seal(patch: pytest.MonkeyPatch) -> None:
    opened = Sealer.open
    patch.setattr(Sealer, "open", lambda self, text, binding: opened(self, text.rstrip("="), binding))


SABOTAGE: dict[str, Sabotage] = {
    "json": lambda patch: patch.setattr(targets, "read_strictly", orjson.loads),
    "envelope": lambda patch: patch.setattr(envelope, "_check_names", lambda *_: None),
    "headers": lambda patch: patch.setattr(headers, "_equal", lambda *_: None),
    "events": lambda patch: patch.setattr(targets, "EventParser", ByLineFeed),
    "stream": lambda patch: patch.setattr(targets, "ResponseStream", ByPiece),
    "answer": lambda patch: patch.setattr(guard, "read_strictly", orjson.loads),
    "seals": _lenient_seal,
    "pins": lambda patch: patch.setattr(targets, "write_pins", lambda _: b'{"version": 1, "servers": {}}\xff'),
    "differences": lambda patch: patch.setattr(targets, "lines", lambda one: [one.path, str(one.after)]),
    "arguments": lambda patch: patch.setattr(
        targets, "Contract", lambda schema, strict: Contract(schema, strict=not strict)
    ),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_broken_reader_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a plausible defect in the reader, the kept inputs break its rule: the targets can fail."""
    SABOTAGE[name](monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        replay(name)


def replay(name: str) -> None:
    """All kept inputs of a target."""
    for data in vectors.kept(name):
        TARGETS[name](data)


def test_inputs_are_kept_as_text(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any bytes are one line of ASCII and come back; what was found is kept once, with its target, and replayed."""
    monkeypatch.setattr(vectors, "FOLDER", tmp_path)
    monkeypatch.setattr(vectors, "FOUND", tmp_path / "found.txt")
    odd = [bytes(range(256)), b"", b"\n", b'"\\', "\u2028".encode()]
    vectors.keep("json", odd)
    for _ in range(2):
        vectors.add_found("json", b"found\r\n")
        vectors.add_found("pins", b"")
    assert sorted(vectors.kept("json")) == sorted([*odd, *SEEDS["json"], b"found\r\n"])
    assert vectors.kept("pins") == [*SEEDS["pins"], b""]
    assert (tmp_path / "json.txt").read_bytes().count(b"\n") == len(odd)
