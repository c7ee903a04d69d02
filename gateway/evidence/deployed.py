"""What a configuration says of its deployment: where it listens, where its record lies, which secrets it names."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.audit.choosing import Broken, choose
from gateway.audit.place import AnyChain, Place
from gateway.audit.query import Query
from gateway.audit.reading import Tables
from gateway.audit.segments import list_chains
from gateway.audit.trail import ChainOfFiles, ChainOfTable, search
from gateway.audit.verify import verify_all
from gateway.config import Settings
from gateway.evidence.wire import REVISION

MOST_LOG = 16 << 20
"""Bytes of the log that are kept."""


def facts_of(settings: Settings, config: Path, *, demo: bool) -> dict[str, Any]:
    """The versions of everything that this machine knows of; no secret."""
    database = settings.approvals.database_env or settings.approvals.database
    return {
        "url": settings.base_url,
        "demo": demo,
        "ostiary": version("ostiary"),
        "python": platform.python_version(),
        "revision": REVISION,
        "libraries": {one.metadata["Name"].lower(): one.version for one in distributions()},
        "engine": settings.policy.engine,
        "database": urlsplit(database).scheme or "named by the environment",
        "config_sha256": hashlib.sha256(config.read_bytes()).hexdigest(),
        "system": platform.platform(),
    }


def secrets_of(settings: Settings) -> Iterator[tuple[str, str]]:
    """Each secret that the configuration names, and that is in this environment: (variable, value)."""
    for variable in sorted(set(_variables(settings.model_dump()))):
        for value in os.environ.get(variable, "").split(","):
            if value:
                yield variable, value


def _variables(told: Any) -> Iterator[str]:
    if isinstance(told, Mapping):
        for name, value in told.items():
            if str(name).endswith("_env") and isinstance(value, str) and value:
                yield value
            yield from _variables(value)
    elif isinstance(told, Sequence) and not isinstance(told, str):
        for value in told:
            yield from _variables(value)


def record_since(place: Place, began: str) -> tuple[list[dict[str, Any]], bytes]:
    """Every chain's report, and the records since then as a selection (of a broken chain: its lines alone).

    Raises `OSError`.
    """
    if place.database is None:
        return _read([ChainOfFiles(path, writer) for writer, path in list_chains(place.file)], place, began)
    with closing(Tables(place.database)) as tables:
        return _read([ChainOfTable(tables, writer) for writer in tables.writers()], place, began)


def _read(chains: Sequence[AnyChain], place: Place, began: str) -> tuple[list[dict[str, Any]], bytes]:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    reports = [report.as_json() | {"file": Path(report.path).name} for report in verify_all(chains)]
    query = Query(since=began)
    try:
        return reports, b"".join(choose(chains, query, "jsonl", now=now, key=place.key, points=()))
    except Broken:  # `reports` says which and where; what can still be read says what happened
        return reports, b"".join(line for line, _ in search(chains, query, newest_first=False))


def log_from(path: Path | None) -> Callable[[], bytes]:
    """What is added to a log from now on. Raises `OSError` when it is read, or where it is too much."""
    at = path.stat().st_size if path is not None and path.exists() else 0

    def read() -> bytes:
        if path is None:
            raise FileNotFoundError("the plan names no log")
        with path.open("rb") as file:
            file.seek(at)
            data = file.read(MOST_LOG + 1)
        if len(data) > MOST_LOG:
            raise OSError(f"the log grew by more than {MOST_LOG} bytes")
        return data

    return read
