"""Fuzzing for a bounded time: `python -m tests.fuzz.campaign --seconds 60 [TARGET …]`, from the kept inputs on.

Exit codes: 0 no rule was broken, 1 one was (its input is now in tests/vectors/fuzz/found.txt), 2 it could not be
done. `--keep` puts a small set of inputs that covers what was reached in the place of the kept one.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import vectors
from tests.fuzz.seeds import SEEDS

BYTES = 4096
INPUT_S = 10
MEMORY_MB = 1500
DICTIONARY = "words.dict"
KEPT = 150
"""Inputs a target that are kept in the repository; the shortest go in first."""

WORDS = (
    "jsonrpc", "2.0", "method", "params", "_meta", "id", "result", "error", "code", "message", "name", "arguments",
    "uri", "requestState", "inputResponses", "inputRequests", "resultType", "complete", "input_required",
    "tools/call", "tools/list", "resources/read", "tasks/get", "taskId", "subscriptions/listen",
    "notifications/progress", "notifications/message", "progressToken", "progress", "2026-07-28",
    "io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/subscriptionId", "MCP-Protocol-Version: ", "Mcp-Method: ", "Mcp-Name: ", "Mcp-Param-",
    "=?base64?", "?=", "data: ", "event: ", "id: ", "retry: ", ":", "\r\n", "\n\n", "\r", "\ufeff", "\\u0000",
    "\\ud800", "1e400", "1e-400", "18446744073709551616", "-0", "properties", "type", "object", "string", "integer",
    "array", "items", "required", "enum", "pattern", "$ref", "$defs", "#", "anyOf", "additionalProperties", "if",
    "then", "else", "x-mcp-header", "version", "servers", "digest", "definition", "accepted_at", "accepted_by",
    "description", "annotations",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a target: how many inputs were tried, and the one that broke a rule, with the last words."""

    target: str
    tried: int
    broken: bytes | None
    words: str


def run(target: str, seconds: int, folder: Path) -> Outcome:
    """Fuzz one target in a process of its own."""
    corpus = folder / target
    corpus.mkdir()
    for data in vectors.kept(target):
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    artifact = folder / f"{target}-"  # and a word for the kind, and a digest
    done = _fuzz(
        target, folder, str(corpus), f"-max_total_time={seconds}", f"-artifact_prefix={artifact}",
        "-print_final_stats=1", f"-dict={folder / DICTIONARY}",
    )  # fmt: skip
    tried = re.search(r"stat::number_of_executed_units:\s*(\d+)", done)
    left = [file for file in folder.glob(f"{target}-*") if file.is_file()]
    broken = left[0].read_bytes() if left else None
    return Outcome(target, int(tried[1]) if tried else 0, broken, "\n".join(done.splitlines()[-40:]))


def reduce(target: str, folder: Path) -> None:
    """Keep the smallest set of inputs that covers what the corpus covers."""
    small = folder / f"{target}.small"
    small.mkdir()
    _fuzz(target, folder, "-merge=1", str(small), str(folder / target))
    inputs = {file.read_bytes() for file in small.iterdir()}.difference(SEEDS[target])
    vectors.keep(target, sorted(inputs, key=len)[:KEPT])


def _fuzz(target: str, folder: Path, *words: str) -> str:
    itself = folder / f"{target}.sh"
    itself.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.fuzz.one {target} "$0" "$@"\n')
    itself.chmod(0o700)
    bounds = (f"-max_len={BYTES}", f"-timeout={INPUT_S}", f"-rss_limit_mb={MEMORY_MB}")
    done = subprocess.run([itself, *words, *bounds], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.stdout.decode("utf-8", "replace")


def write_dictionary(folder: Path) -> None:
    """The words that the readers know, so that nobody has to guess them letter by letter."""
    lines = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in WORDS)
    (folder / DICTIONARY).write_text("".join(f'"{line}"\n' for line in lines))


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(SEEDS))
    words = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed (there are wheels for Linux on x86-64): `make fuzz` installs it")
        return 2
    targets = words.targets or SEEDS
    code = 0
    with (
        tempfile.TemporaryDirectory(prefix="ostiary-fuzz-") as name,
        ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, len(targets)))) as pool,
    ):
        folder = Path(name)
        write_dictionary(folder)
        for outcome in pool.map(lambda target: run(target, words.seconds, folder), targets):
            print(f"{outcome.target:<12} {outcome.tried:>9} inputs", "" if outcome.broken is None else "BROKEN")
            if outcome.broken is not None:
                vectors.add_found(outcome.target, outcome.broken)
                print(f"{outcome.words}\n{outcome.target} {vectors.spell(outcome.broken)}")
                code = 1
            elif not outcome.tried:
                print(outcome.words)
                code = code or 2
        if words.keep:
            list(pool.map(lambda target: reduce(target, folder), targets))
    return code


if __name__ == "__main__":
    sys.exit(main())
