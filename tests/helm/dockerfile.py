"""A Dockerfile as instructions and stages: what can be known of an image without building it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Stage:
    """`FROM image AS name` and the instructions up to the next one, as (word, rest)."""

    image: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, word: str) -> list[str]:
        """What stands behind every instruction of a word."""
        return [rest for one, rest in self.steps if one == word]

    def copies(self) -> Iterator[tuple[str, Sequence[str], str]]:
        """(stage it is taken from or "", sources, destination) of each COPY."""
        for rest in self.all("COPY"):
            words = shlex.split(rest)
            origin = next((w.removeprefix("--from=") for w in words if w.startswith("--from=")), "")
            *sources, destination = [w for w in words if not w.startswith("--")]
            yield origin, sources, destination

    def command(self, word: str) -> list[str]:
        """The words of an ENTRYPOINT or CMD in its exec form."""
        (rest,) = self.all(word)
        found: list[str] = json.loads(rest)
        return found


def read(file: Path) -> tuple[list[tuple[str, str]], list[Stage]]:
    """(the instructions before the first FROM, the stages)."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    logical = [line.strip() for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines() if line.strip()]
    before: list[tuple[str, str]] = []
    stages: list[Stage] = []
    for line in logical:
        word, _, rest = line.partition(" ")
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            stages.append(Stage(image, name))
        else:
            (stages[-1].steps if stages else before).append((word, re.sub(r"\s+", " ", rest).strip()))
    return before, stages
