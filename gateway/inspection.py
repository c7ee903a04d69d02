"""`ostiary check`: would this configuration serve, and does everything that it names exist?

Opens what a worker opens at start and closes it again; of the record and the store it looks for the folder only.
Nothing is changed.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import orjson

from gateway.app import House, build
from gateway.config import ConfigError, Settings
from gateway.logs import set_up_logs


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, whether it is in order, and in words what is (or is not) there."""

    what: str
    ok: bool
    detail: str


def inspect(settings: Settings, as_json: bool) -> int:
    """Print every finding -> exit code: 0 all in order, 1 not."""
    set_up_logs(logging.ERROR)
    try:
        house = build(settings)
    except (ConfigError, ValueError) as error:
        findings = [Finding("configuration", False, str(error))]
    else:
        names = sorted(settings.servers)
        servers = f"{len(names)} server{'s' * (len(names) != 1)}: {', '.join(names)}"
        findings = [Finding("configuration", True, servers), *look_for_folders(settings), *asyncio.run(look(house))]
    for finding in findings:
        mark = "ok  " if finding.ok else "FAIL"
        click.echo(orjson.dumps(asdict(finding)).decode() if as_json else f"{mark} {finding.what}: {finding.detail}")
    return 0 if all(finding.ok for finding in findings) else 1


def look_for_folders(settings: Settings) -> list[Finding]:
    """The folders that the record and the tickets need and that are not there. Neither is opened."""
    database = Path(settings.approvals.database.removeprefix("sqlite:///"))
    needed = {"audit": ("audit.file", settings.audit.file), "approvals": ("approvals.database", database)}
    return [
        Finding(what, False, f"{setting}: there is no folder {file.parent}")
        for what, (setting, file) in needed.items()
        if not file.parent.is_dir()
    ]


async def look(house: House) -> list[Finding]:
    """Ask the parts of a house that can be asked without changing anything."""
    return [Finding(what, ok, detail) for what, ok, detail in await house.examine()]
