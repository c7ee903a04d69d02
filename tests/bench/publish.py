"""Put measured figures into the repository and its pages: after `make bench`, `python -m tests.bench.publish`.

    python -m tests.bench.publish [FIGURES]       # default .bench/figures.json

Rows of FIGURES replace the kept ones of the same key (`tests/bench/figures.json`); others stay, so that a part can be
measured again alone. Then the tables between `<!-- NAME -->` and `<!-- end -->` of docs/performance.md and
docs/scale.md are written anew.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.bench.run import PARTS
from tests.bench.scale import KEPT, TABLES, read
from tests.bench.table import about, aims, keep, kept, parts

DOCS = Path(__file__).parents[2] / "docs"


@functools.cache
def tables(file: Path = KEPT) -> Mapping[str, str]:
    """All tables of the pages, by name."""
    figures = read(file)
    machine = json.loads(file.read_text()).get("machine", {})
    rows = sorted(kept(file), key=lambda row: PARTS.index(row.part))
    measured = {"machine": about(machine), "aims": aims(rows), "figures": parts(rows)}
    return measured | {name: made(figures) for name, made in TABLES.items()}


def filled(page: str, made: Mapping[str, str]) -> str:
    """A page with its tables written anew. Raises KeyError for a name that nobody makes."""

    def one(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n{made[found[1]]}\n<!-- end -->"

    return re.sub(r"<!-- ([a-z ]+) -->\n.*?<!-- end -->", one, page, flags=re.DOTALL)


def main(arguments: list[str]) -> int:
    """Keep the figures, write the pages."""
    new = Path(arguments[0] if arguments else ".bench/figures.json")
    rows = {row.key: row for row in (kept(KEPT) if KEPT.exists() else [])}
    rows |= {row.key: row for row in kept(new)}
    machine = json.loads(new.read_text()).get("machine", {})
    keep(KEPT, list(rows.values()), machine=machine)
    for name in ("performance.md", "scale.md"):
        page = DOCS / name
        page.write_text(filled(page.read_text(), tables()))
    print(f"{len(rows)} figures kept; docs/performance.md and docs/scale.md written anew.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
