"""One row of the benchmark's table, the table, and the command line that every part has.

A part is a module with `measure(options) -> rows` that ends in `part(measure, __doc__)`:

    python -m tests.bench.bench_NAME [--rounds N] [--seconds S] [--spy FILE] [--json FILE]

`make bench` runs the parts one after another and puts their rows into one table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """A measured figure: the median of its rounds, beside the aim (`≥ 5000`, `≤ 0.5`; empty: told only)."""

    key: str
    """What the cost model and the documents call it."""
    what: str
    values: tuple[float, ...]
    unit: str
    aim: str = ""
    beside: str = ""
    """What has to be known to read it: another contender's figure, the disk's own time."""
    part: str = ""
    """Which part measured it: the NAME of its command."""

    @property
    def figure(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.values)

    @property
    def reached(self) -> float | None:
        """Figure over aim, or aim over figure where less is better: from 1.0 on the aim is met."""
        if not self.aim:
            return None
        sense, number = self.aim.split()
        aim = float(number.replace(",", ""))
        return self.figure / aim if sense == "≥" else aim / self.figure if self.figure else float("inf")


@dataclass(frozen=True)
class Options:
    """How long a part measures, and whether py-spy looks at the worker meanwhile."""

    rounds: int = 3
    seconds: int = 3
    spy: Path | None = None


def number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def command(part: str) -> str:
    """What measures a part alone, in Markdown."""
    return f"`python -m tests.bench.bench_{part}`"


def table(rows: Iterable[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| what | aim | measured | of the aim | lowest to highest round | beside it |",
        "|---|---|---|---|---|---|",
    ]
    lines += [f"| {row.what} | {_judged(row)} | {row.beside} |" for row in rows]
    return "\n".join(lines)


def aims(rows: Iterable[Row]) -> str:
    """Of the rows those that have an aim, each by its whole name and with its command."""
    lines = [
        "| what | aim | measured | of the aim | lowest to highest round | measured by |",
        "|---|---|---|---|---|---|",
    ]
    subject = ""
    for row in rows:
        more = row.what.removeprefix("… ")
        if more == row.what:
            subject = row.what
        what = row.what if more == row.what else f"{subject}: {more}"
        if row.aim:
            lines.append(f"| {what} | {_judged(row)} | {command(row.part)} |")
    return "\n".join(lines)


def parts(rows: Iterable[Row]) -> str:
    """All rows, a table for each part under its command."""
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(row.part, []).append(row)
    return "\n\n".join(f"{command(part)}\n\n{table(found)}" for part, found in of.items())


def _judged(row: Row) -> str:
    """A row's middle columns: the aim, the figure, how much of the aim it is, and how far the rounds stray."""
    share = row.reached
    told = "–" if share is None else "" if math.isinf(share) else f"{share:.2f}"  # of nothing there is no share
    reached = f"{told} ✓".strip() if share is not None and share >= 1 else told
    spread = f"{number(min(row.values))} to {number(max(row.values))}" if len(row.values) > 1 else "–"
    aim = f"{row.aim} {row.unit}" if row.aim else "–"
    return f"{aim} | {number(row.figure)} {row.unit} | {reached} | {spread}"


def about(facts: Mapping[str, str]) -> str:
    """The machine, as a list."""
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items())


def kept(file: Path) -> list[Row]:
    """Rows that a part or a whole run wrote with `--json`."""
    return [Row(**{**row, "values": tuple(row["values"])}) for row in json.loads(file.read_text())["rows"]]


def keep(file: Path, rows: Sequence[Row], **more: Any) -> None:
    """Write rows for `kept`."""
    file.write_text(json.dumps({**more, "rows": [asdict(row) for row in rows]}, indent=1, ensure_ascii=False) + "\n")


def lacking(*tools: str) -> str:
    """What this machine lacks for a part; empty where all is there."""
    missing = [tool for tool in ("taskset", *tools) if shutil.which(tool) is None]
    return ", ".join(missing) or ("a second core" if len(os.sched_getaffinity(0)) < 2 else "")


def part(measure: Callable[[Options], list[Row]], doc: str | None, *tools: str) -> int:
    """The command line of a part -> exit code: 0 with its table, 2 where it can't be measured here."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement; whole ones, wrk knows no other")
    parser.add_argument("--spy", type=Path, help="where py-spy writes what the worker did, for tests.bench.rooms")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    given = parser.parse_args()
    if missing := lacking(*tools):
        print(f"This can't be measured here: it needs {missing}.")
        return 2
    rows = measure(Options(given.rounds, given.seconds, given.spy))
    print(table(rows), flush=True)
    if given.json:
        keep(given.json, rows)
    return 0
