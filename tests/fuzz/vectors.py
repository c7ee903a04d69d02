"""The kept inputs of each target, as text that can be reviewed: one a line, as a JSON string of bytes (Latin-1).

TARGET.txt is a small set that covers what a campaign has covered; found.txt are inputs that once broke a rule, with
their target. With the seeds, they are replayed by the ordinary suite and begin every campaign.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tests.fuzz.seeds import SEEDS

FOLDER = Path(__file__).parents[1] / "vectors/fuzz"
FOUND = FOLDER / "found.txt"


def spell(data: bytes) -> str:
    """Bytes as a line."""
    return json.dumps(data.decode("latin-1"))


def kept(target: str) -> list[bytes]:
    """The inputs that a target begins with: its seeds, the set that was kept, and what was found with it."""
    return [*SEEDS[target], *_read(FOLDER / f"{target}.txt"), *(data for name, data in found() if name == target)]


def found() -> list[tuple[str, bytes]]:
    """(target, input) of what once broke a rule."""
    lines = FOUND.read_text(encoding="ascii").splitlines() if FOUND.exists() else []
    return [(line.split(" ", 1)[0], _bytes(line.split(" ", 1)[1])) for line in lines]


def add_found(target: str, data: bytes) -> None:
    """Keep an input that broke a rule."""
    if (target, data) not in found():
        with FOUND.open("a", encoding="ascii") as file:
            file.write(f"{target} {spell(data)}\n")


def keep(target: str, inputs: Iterable[bytes]) -> None:
    """Replace a target's set."""
    lines = sorted({spell(data) for data in inputs}, key=lambda line: (len(line), line))
    (FOLDER / f"{target}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="ascii")


def _read(file: Path) -> list[bytes]:
    return [_bytes(line) for line in file.read_text(encoding="ascii").splitlines()] if file.exists() else []


def _bytes(line: str) -> bytes:
    return str(json.loads(line)).encode("latin-1")
