"""`ostiary registry validate | drift | import | publish`.

Exit codes: 0 all is in order (or was done), 1 it is not, 2 it could not be asked. What a registry, a record or a
server says is hostile: it is printed with nothing hidden.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from gateway.contract.differences import visible
from gateway.registry.commands_import import import_
from gateway.registry.commands_publish import publish
from gateway.registry.drift import Comparison
from gateway.registry.flaws import Flaw, usable
from gateway.registry.record import Published
from gateway.registry.room import RegistryRoom, subjects_named
from gateway.registry.sources import record_at, record_in
from gateway.registry.telling import (
    NO,
    NOT_ASKED,
    config_option,
    door_of,
    end,
    flaw_lines,
    flaws_of,
    json_option,
    private_option,
    publisher_option,
    read_file,
    run,
)
from gateway.registry.watching import NotChecked, Subject


@click.group(short_help="Records of servers: validate, compare, take in, publish.")
def registry() -> None:
    """Validate, compare, import and publish records of servers (server.json)."""


@registry.command(short_help="Hold server.json files to the schema and the rules.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@publisher_option
@private_option
@json_option
def validate(files: tuple[Path, ...], publisher: str, private: bool, as_json: bool) -> None:
    """Validate server.json FILES: the official schema, and the rules beyond it."""
    found: list[tuple[Path, list[Flaw]]] = []
    for file in files:
        found.append((file, flaws_of(read_file(file, as_json), publisher, as_json, private=private)))
    if as_json:
        told = [
            {"file": str(file), "valid": usable(flaws), "flaws": [one.document() for one in flaws]}
            for file, flaws in found
        ]
        click.echo(json.dumps(told, indent=2))
    else:
        for file, flaws in found:
            for line in flaw_lines(file, flaws):
                click.echo(line)
    sys.exit(0 if all(usable(flaws) for _, flaws in found) else NO)


@registry.command()
@config_option
@click.option("--record", "where", help="A file or a URL with the record, instead of the configured one. One SERVER.")
@click.argument("servers", nargs=-1, metavar="[SERVER]...")
@json_option
@click.pass_context
def drift(ctx: click.Context, config: Path, where: str | None, servers: tuple[str, ...], as_json: bool) -> None:
    """Compare published records with live servers. Says nothing where nothing differs."""

    async def ask() -> list[dict[str, Any]]:
        async with door_of(ctx).open(config, False) as room:
            chosen = _chosen(room, servers, where, as_json)
            return [await _compared(room, one, where, as_json) for one in chosen]

    told = run(ask, as_json)
    if as_json:
        click.echo(json.dumps({"servers": told}, indent=2))
    if any(one["fault"] for one in told):
        sys.exit(NOT_ASKED)
    sys.exit(NO if any(one["differences"] for one in told) else 0)


def _chosen(room: RegistryRoom, servers: tuple[str, ...], where: str | None, as_json: bool) -> list[Subject]:
    try:
        chosen = subjects_named(room.subjects, servers)
    except KeyError as error:
        end("unknown", f"servers: there is no {error.args[0]!r}", NOT_ASKED, as_json)
    if where is not None:
        if len(chosen) != 1:
            raise click.UsageError("--record is the record of one SERVER")
        return chosen
    if strange := [one.server.name for one in chosen if servers and not one.source]:
        end("no_record", f"servers.{strange[0]}.registry is not set, and there is no --record", NOT_ASKED, as_json)
    recorded = [one for one in chosen if one.source]
    if not recorded:
        end("no_record", "no server has a record: set servers.NAME.registry, or name --record", NOT_ASKED, as_json)
    return recorded


async def _compared(room: RegistryRoom, subject: Subject, where: str | None, as_json: bool) -> dict[str, Any]:
    """One server's comparison, printed unless it is asked for as JSON."""

    async def named(place: str) -> Published:
        return await record_at(place) if "://" in place else await asyncio.to_thread(record_in, Path(place))

    name = subject.server.name
    try:
        found = await room.examiner.examine(subject, None if where is None else partial(named, where))
    except NotChecked as error:
        if not as_json:
            click.echo(f"{name}: not compared: {visible(str(error))}", err=True)
        return {"server": name, "fault": str(error), "differences": []}
    if not as_json:
        for line in _sheet(found.comparison):
            click.echo(line)
    return {"server": name, "fault": None, **found.document()}


def _sheet(found: Comparison) -> Iterator[str]:
    for one in found.found:
        first, *rest = one.lines()
        yield f"{found.server}: {first}"
        yield from rest
    if found.found:
        many = f"{len(found.found)} difference{'s' * (len(found.found) != 1)}"
        yield f"{found.server}: {many} from {visible(found.record)}"


registry.add_command(import_)
registry.add_command(publish)
