"""The process that makes evidence for a download: `choose` over whole chains, apart from the process that serves.

It reads one JSON document from standard input (see `Evidence`), writes the lines to standard output, and ends with 0
done, 1 a chain is broken, 2 something could not be read, 3 that would be too much; why is on standard error.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from gateway.audit.checkpoints import SigningKey, read_checkpoints
from gateway.audit.choosing import Broken, choose
from gateway.audit.query import Query
from gateway.audit.reading import Tables
from gateway.audit.segments import list_chains
from gateway.audit.trail import Chain, ChainOfFiles, ChainOfTable


def main() -> int:
    """Serve one question."""
    asked = orjson.loads(sys.stdin.buffer.read())
    os.nice(10)
    try:
        with ExitStack() as opened:
            return _copy(asked, opened)
    except Broken as broken:
        return _end(1, str(broken))
    except (OSError, ValueError) as error:
        return _end(2, str(error))


def _copy(asked: dict[str, Any], opened: ExitStack) -> int:
    key = SigningKey(asked["key"], "the checkpoints' key") if asked["key"] else None
    points = []
    if asked["checkpoints"] and Path(asked["checkpoints"]).exists():
        points = read_checkpoints(Path(asked["checkpoints"]), (key.public,) if key else ())
    chains: list[Chain]
    if asked["database"]:
        tables = opened.enter_context(closing(Tables(asked["database"])))
        chains = [ChainOfTable(tables, writer) for writer in tables.writers()]
    else:
        chains = [ChainOfFiles(path, writer) for writer, path in list_chains(Path(asked["file"]))]
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    left = asked["most_bytes"]
    for line in choose(chains, Query(**asked["query"]), "jsonl", now=now, key=key, points=points):
        left -= len(line)
        if left < 0:
            return _end(3, "more than a download may have")
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    return 0


def _end(code: int, why: str) -> int:
    sys.stderr.write(why[:1000])
    return code


if __name__ == "__main__":
    sys.exit(main())
