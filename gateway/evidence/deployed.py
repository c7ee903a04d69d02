"""What a configuration says of its deployment: its secrets, what it depends on, its log, what is published of it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from gateway.audit.place import Place
from gateway.config import Settings
from gateway.evidence.site import Plan, Published, ostiary
from gateway.evidence.versions import dependencies_of
from gateway.evidence.wire import REVISION

MOST_LOG = 16 << 20
"""Bytes of the log that are kept."""


async def facts_of(settings: Settings, config: Path, place: Place, *, demo: bool) -> dict[str, Any]:
    """The versions of everything, each asked of itself; `""` where it did not answer. No secret."""
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
        "dependencies": await dependencies_of(settings),
        "config_sha256": hashlib.sha256(await asyncio.to_thread(config.read_bytes)).hexdigest(),
        "record_key": place.key.public.text if place.key else "",
        "system": platform.platform(),
    }


def secrets_of(settings: Settings) -> Iterator[tuple[str, str]]:
    """Each secret that the configuration names and this environment has, and passwords in it: (name, value)."""
    told = settings.model_dump()
    for url in _texts(told):
        if "://" in url and (password := _password(url)):
            yield "a password of the configuration", password
    for variable in sorted(set(_variables(told))):
        for value in os.environ.get(variable, "").split(","):
            if value:
                yield variable, value.rpartition(" ")[2]  # of a whole header what follows the scheme


def published_of(settings: Settings, config: Path, plan: Plan) -> Published | None:
    """The record that the plan names, beside the server that it is of."""
    server = settings.servers.get(plan.server)
    if plan.record is None or server is None:
        return None
    return Published(
        server=plan.server,
        config=config,
        record=plan.record,
        publisher=plan.publisher,
        private=plan.private,
        pins=settings.pins.file,
        addresses=(settings.resource(plan.server), *server.replicas),
        run=ostiary,
    )


def _password(url: str) -> str:
    try:
        return unquote(urlsplit(url).password or "")
    except ValueError:
        return ""


def _texts(told: Any) -> Iterator[str]:
    if isinstance(told, str):
        yield told
    elif isinstance(told, Mapping):
        for value in told.values():
            yield from _texts(value)
    elif isinstance(told, Sequence):
        for value in told:
            yield from _texts(value)


def _variables(told: Any) -> Iterator[str]:
    if isinstance(told, Mapping):
        for name, value in told.items():
            if str(name).endswith("_env") and isinstance(value, str) and value:
                yield value
            yield from _variables(value)
    elif isinstance(told, Sequence) and not isinstance(told, str):
        for value in told:
            yield from _variables(value)


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
