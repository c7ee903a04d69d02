"""The official suite, run as it comes: its own Node.js, its own scenarios, its own verdicts."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parent
PACKAGE = FOLDER / "node_modules/@modelcontextprotocol/conformance"
NODES = sorted((FOLDER / "node_modules").glob("node-linux-*/bin/node"))
STAMP = re.compile(r"^server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z$")
DEADLINE_S = 150.0
HURRIED = frozenset({"server-stateless"})
"""Scenarios that wait for half a second only: what a busy machine fails there is asked again, once and alone."""

Key = tuple[str, str, str, int]
"""A check: its scenario, id and name, and which of that name it is."""


@dataclass(frozen=True)
class Verdict:
    """What the suite says of one check: SUCCESS, FAILURE, WARNING, INFO or SKIPPED, and why."""

    status: str
    why: str


Verdicts = Mapping[Key, Verdict]


def lost(direct: Verdicts, through: Verdicts) -> list[Key]:
    """The checks that pass directly and do not through the gateway, and those that fail there alone."""
    passed = [key for key, verdict in direct.items() if verdict.status == "SUCCESS"]
    gone = [key for key in passed if key not in through or through[key].status != "SUCCESS"]
    fresh = [key for key, verdict in through.items() if verdict.status == "FAILURE" and key not in direct]
    return gone + fresh


def failing(verdicts: Verdicts) -> set[tuple[str, str]]:
    """Scenario and name of what fails."""
    return {(key[0], key[2]) for key, verdict in verdicts.items() if verdict.status == "FAILURE"}


def told(verdicts: Verdicts, keys: list[Key]) -> str:
    """Checks with their verdicts, a line each."""
    return "\n".join(f"{key}: {verdicts.get(key)}" for key in keys)


def node() -> str:
    """A Node.js that runs the suite. Skips where there is none; in CI that is a failure."""
    if not PACKAGE.is_dir():
        missing("the conformance suite is not installed: npm ci --prefix tests/conformance")
    for each in [*map(str, NODES), shutil.which("node") or ""]:
        if each and major(each) >= 22:
            return each
    missing("the conformance suite needs Node.js 22 or newer")
    raise AssertionError


def missing(reason: str) -> None:
    """Skip, or fail in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def major(program: str) -> int:
    """The major version of a Node.js; 0 for one that does not run here."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(said.lstrip("v").split(".")[0])


def scenarios(revision: str) -> set[str]:
    """The scenarios that a revision's frozen list names for servers, required or not."""
    listed: dict[str, Any] = yaml.safe_load((PACKAGE / f"requirements/{revision}.yaml").read_text())
    return {*listed["server"], *(each["scenario"] for each in listed["not_scored"] if each["leg"] == "server")}


async def run(url: str, revision: str, folder: Path) -> Verdicts:
    """Run what a revision requires against `url` -> every check's verdict. Its files stay in `folder`."""
    verdicts = await drive(url, folder, "--requirements", revision)
    for scenario in HURRIED & {
        key[0] for key, verdict in verdicts.items() if verdict.status in {"FAILURE", "WARNING"}
    }:
        again = await drive(
            url, folder / scenario, "--scenario", scenario, "--spec-version", revision, "--timeout", "60000"
        )
        kept = {key: verdict for key, verdict in verdicts.items() if key[0] != scenario}
        verdicts = {**kept, **again}
    return verdicts


async def drive(url: str, folder: Path, *options: str) -> Verdicts:
    """One run, to its end."""
    with prepare(folder).open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            node(), str(PACKAGE / "dist/index.js"), "server", "--url", url, "--output-dir", str(folder), *options,
            stdout=said, stderr=said, cwd=folder,
        )  # fmt: skip
        try:
            await asyncio.wait_for(process.wait(), DEADLINE_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return dict(read(folder))


def prepare(folder: Path) -> Path:
    """Make a run's folder -> the file for what the suite prints."""
    folder.mkdir(parents=True)
    return folder / "said.txt"


def read(folder: Path) -> Iterator[tuple[Key, Verdict]]:
    """The verdicts that a run left in its folder."""
    for file in sorted(folder.glob("*/checks.json")):
        named = STAMP.match(file.parent.name)
        assert named is not None, file
        seen = Counter[tuple[str, str]]()
        for check in json.loads(file.read_text()):
            name = (check["id"], check["name"])
            yield (named[1], *name, seen[name]), Verdict(check["status"], check.get("errorMessage") or "")
            seen[name] += 1
