"""Which record a command is about: `--config`, or files named one by one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import click

from gateway.audit.checkpoints import SigningKey
from gateway.audit.reading import Tables
from gateway.audit.segments import list_chains
from gateway.audit.trail import ChainOfFiles, ChainOfTable
from gateway.contract.printable import printable

AnyChain = ChainOfFiles | ChainOfTable
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Place:
    """Where a configuration's record lies: in `database` if there is one, else in `file`.

    The second place's file, and the checkpoints' key where it is known.
    """

    file: Path
    database: str | None = None
    checkpoints: Path | None = None
    key: SigningKey | None = None


class AuditHouse(Protocol):
    """What the house puts into `ctx.obj`: the way from a configuration to its record."""

    def audit_place(self, config: Path) -> Place:
        """The place that the configuration names. Raises `ValueError` or `OSError` where it can't be read."""
        ...


_CONFIG = click.option("--config", type=click.Path(path_type=Path), help="The gateway's configuration.")
_FILES = click.option(
    "--file", "files", multiple=True, type=click.Path(path_type=Path), help="An audit file, instead."
)


def placed(command: F) -> F:
    """The options `--config` and `--file`."""
    return _CONFIG(_FILES(command))


def chains_of(ctx: click.Context, config: Path | None, files: tuple[Path, ...]) -> list[AnyChain]:
    """Each chain that is meant. Ends the program where the configuration or the database can't be read."""
    if bool(config) == bool(files):
        raise click.UsageError("give either --config or --file")
    if files:
        # A file that is named alone may be a copy from anywhere: its own first record says whose it is.
        found: dict[Path, int | None] = {}
        for file in files:
            listed = list_chains(file)
            for writer, path in listed if len(listed) > 1 else [(None, file)]:
                found.setdefault(path, writer)
        return [ChainOfFiles(path, writer) for path, writer in found.items()]
    place = place_of(ctx, config)
    if place.database is None:
        return [ChainOfFiles(path, writer) for writer, path in list_chains(place.file)]
    tables = ctx.with_resource(closing(Tables(place.database)))
    try:
        return [ChainOfTable(tables, writer) for writer in tables.writers()]
    except OSError as error:
        give_up(str(error))


def place_of(ctx: click.Context, config: Path | None) -> Place:
    """The configuration's place. Ends the program where it can't be read."""
    if config is None or not hasattr(ctx.obj, "audit_place"):
        raise click.UsageError("--config is not available here")
    house: AuditHouse = ctx.obj
    try:
        return house.audit_place(config)
    except (OSError, ValueError) as error:
        give_up(str(error))  # the house's own words: they name the file, or the variable


def give_up(why: str) -> NoReturn:
    """Say what could not be asked, and exit 2."""
    click.echo(printable(why, 1000), err=True)
    sys.exit(2)
