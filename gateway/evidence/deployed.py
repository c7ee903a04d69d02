"""What a configuration says of its deployment: its secrets, what it depends on, its log, what is published of it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from gateway.audit.place import Place
from gateway.config import Settings
from gateway.evidence.scrubbing import SHORTEST
from gateway.evidence.site import Plan, Published, ostiary
from gateway.evidence.versions import dependencies_of
from gateway.evidence.wire import REVISION

MOST_LOG = 16 << 20
"""Bytes of the log that are kept."""

_LINE_OF_PEM: Final = re.compile(rf"^[A-Za-z0-9+/=]{{{SHORTEST},}}(?=\s*$)", re.MULTILINE)


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
    """Each secret that the configuration names and that is to be had here, and passwords in it: (name, value).

    In variables, and in files of keys that may be read.
    """
    told = settings.model_dump()
    for url in _texts(told):
        if "://" in url and (password := _password(url)):
            yield "a password of the configuration", password
    for setting, variable in sorted(set(_variables(told))):
        for value in _values(setting, os.environ.get(variable, "")):
            yield variable, value
    for file in sorted(set(_keys(told))):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            for value in _LINE_OF_PEM.findall(file.read_text("ascii") if file.is_file() else ""):
                yield f"the key {file.name}", value


def _values(setting: str, text: str) -> Iterator[str]:
    """What of a variable's text is looked for: each secret in it, without what stands around it."""
    if "-----BEGIN" in text:
        yield from _LINE_OF_PEM.findall(text)
        return
    if "://" in text:
        yield text
        if password := _password(text):
            yield password
        return
    for part in text.split(","):
        value = part.partition("=")[2] if setting == "headers_env" else part
        if value := value.rpartition(" ")[2]:  # of a whole header what follows the scheme
            yield value


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


def _variables(told: Any) -> Iterator[tuple[str, str]]:
    """(setting, variable) of each setting that names one."""
    if isinstance(told, Mapping):
        for name, value in told.items():
            if str(name).endswith("_env") and isinstance(value, str) and value:
                yield str(name), value
            yield from _variables(value)
    elif isinstance(told, Sequence) and not isinstance(told, str):
        for value in told:
            yield from _variables(value)


def _keys(told: Any) -> Iterator[Path]:
    """The files of private keys."""
    if isinstance(told, Mapping):
        for name, value in told.items():
            if name == "key" and isinstance(value, Path):
                yield value
            yield from _keys(value)
    elif isinstance(told, Sequence) and not isinstance(told, str):
        for value in told:
            yield from _keys(value)


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
