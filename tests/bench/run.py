"""`make bench`: every part, one after another, in one table with the aims, and the machine's facts above it.

    python -m tests.bench.run [PART …] [--rounds N] [--seconds S] [--out FOLDER]

The contender (the gateway with its supervisor and its evaluators, or what it is compared with) has one core; load and
upstream have the other. Each part is also a command of its own: `python -m tests.bench.bench_PART`.
FOLDER gets `table.md` and `figures.json`, which `tests.bench.scale` reads. Needs Linux, two cores, nginx and wrk.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.bench.machine import facts
from tests.bench.table import Row, about, aims, keep, kept, lacking, parts

PARTS = ("calls", "opa", "lists", "gated", "bodies", "refusals", "workers", "streams", "start")
"""In the order of the table of aims."""
LIMIT_S = 300
"""Of one part; one that takes longer has failed."""


def run(name: str, options: list[str], folder: Path) -> list[Row]:
    """One part in a process of its own -> its rows; none, said aloud, when it failed."""
    file = folder / f"{name}.json"
    began = time.monotonic()
    command = [sys.executable, "-m", f"tests.bench.bench_{name}", "--json", str(file), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        try:
            told, _ = child.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)  # so that it ends its own processes
            told = f"took longer than {LIMIT_S} s\n" + child.communicate()[0]
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if file.exists():
        return [replace(row, part=name) for row in kept(file)]
    print(f"{name} could not be measured:\n{told[-3000:]}", file=sys.stderr, flush=True)
    return []


def main() -> int:
    """Exit 0 with the table, 1 when a part failed, 2 where nothing can be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(".bench"))
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if missing := lacking("wrk", "nginx"):
        print(f"The benchmark needs Linux, two cores, nginx, wrk and taskset; missing: {missing}")
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ostiary-bench-") as folder:
        machine = facts(Path(folder)) | {"rounds": f"{given.rounds} of {given.seconds} s each"}
        rows: list[Row] = []
        failed = []
        for name in given.parts or PARTS:
            if importlib.util.find_spec(f"tests.bench.bench_{name}") is None:
                continue
            found = run(name, ["--rounds", str(given.rounds), "--seconds", str(given.seconds)], Path(folder))
            rows += found
            failed += [] if found else [name]
    page = f"{about(machine)}\n\n{aims(rows)}\n\n{parts(rows)}\n"
    (given.out / "table.md").write_text(page)
    keep(given.out / "figures.json", rows, machine=machine)
    print(page)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
