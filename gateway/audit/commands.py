"""`ostiary audit verify | tail | checkpoint`: what an operator asks of the record, without the gateway running.

Exit codes: 0 all is whole, 1 a chain is broken, 2 it could not be read. What a file holds is hostile: it is printed
escaped.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final, NoReturn, Protocol

import click
import orjson

from gateway.audit.tail import Follower, show, time_of
from gateway.audit.verify import Report, list_chains, read_checkpoints, verify_all
from gateway.contract.chain import Checkpoint
from gateway.contract.redaction import printable

_LOOK_AGAIN_S: Final = 0.2


class AuditFiles(Protocol):
    """What the house puts into `ctx.obj`: the way from a configuration to the audit's file."""

    def audit_file(self, config: Path) -> Path:
        """`audit.file` of the configuration. Raises `ValueError` or `OSError` where it can't be read."""
        ...


@click.group()
def audit() -> None:
    """Verify and read the audit's hash chains."""


_config = click.option("--config", type=click.Path(path_type=Path), help="The gateway's configuration.")
_files = click.option(
    "--file", "files", multiple=True, type=click.Path(path_type=Path), help="An audit file, instead."
)
_json = click.option("--json", "as_json", is_flag=True, help="One JSON document per line.")


@audit.command()
@_config
@_files
@click.option("--checkpoint", "points", type=click.Path(path_type=Path), help="Checkpoints from a second place.")
@_json
@click.pass_context
def verify(
    ctx: click.Context, config: Path | None, files: tuple[Path, ...], points: Path | None, as_json: bool
) -> None:
    """Judge every chain; name the first bad record of each that is broken."""
    chains = _chains(ctx, config, files)
    try:
        checkpoints = read_checkpoints(points) if points else []
    except (OSError, ValueError) as error:
        _give_up(f"checkpoints: {error}")
    reports = verify_all(chains, checkpoints)
    for report in reports:
        click.echo(orjson.dumps(report.as_json()).decode() if as_json else _sentence(report))
    if any(report.finding for report in reports):
        sys.exit(1)
    if any(report.unread for report in reports):
        sys.exit(2)


@audit.command()
@_config
@_files
@click.option("--output", type=click.Path(path_type=Path), help="Append to this file, in a second place.")
@click.pass_context
def checkpoint(ctx: click.Context, config: Path | None, files: tuple[Path, ...], output: Path | None) -> None:
    """Print `{writer, count, head}` of each chain, once all of them verify; keep it where a writer can't reach."""
    reports = verify_all(_chains(ctx, config, files))
    for report in reports:
        if not report.whole:
            click.echo(_sentence(report), err=True)
    if any(report.finding for report in reports):
        sys.exit(1)
    if any(report.unread for report in reports):
        sys.exit(2)
    points = [Checkpoint(report.writer or 0, report.count, report.head) for report in reports]
    lines = [orjson.dumps({"writer": point.writer, "count": point.count, "head": point.head}) for point in points]
    text = b"".join(line + b"\n" for line in lines)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        with output.open("ab") as file:
            file.write(text)
    except OSError as error:
        _give_up(f"{output}: {error.strerror or error}")


@audit.command()
@_config
@_files
@click.option("-n", "count", default=10, show_default=True, type=click.IntRange(0, 100_000), help="How many records.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what is written from now on.")
@_json
@click.pass_context
def tail(
    ctx: click.Context, /, config: Path | None, files: tuple[Path, ...], *, count: int, follow: bool, as_json: bool
) -> None:
    """Print the last records of all writers, in order of time."""
    followers: dict[Path, Follower] = {}
    try:
        for _, path in _chains(ctx, config, files):
            followers[path] = Follower(path)
        last = [line for follower in followers.values() for line in follower.last(count)]
        last.sort(key=time_of)
        for line in last[len(last) - min(count, len(last)) :]:
            click.echo(show(line, as_json=as_json))
        while follow:
            time.sleep(_LOOK_AGAIN_S)
            for _, path in _chains(ctx, config, files):  # another writer may have come
                if path not in followers:
                    followers[path] = Follower(path)
            for line in sorted((line for follower in followers.values() for line in follower.new()), key=time_of):
                click.echo(show(line, as_json=as_json))
    except OSError as error:
        _give_up(f"{error.filename or 'the audit'}: {error.strerror or error}")
    finally:
        for follower in followers.values():
            follower.close()


def _chains(ctx: click.Context, config: Path | None, files: tuple[Path, ...]) -> list[tuple[int | None, Path]]:
    if bool(config) == bool(files):
        raise click.UsageError("give either --config or --file")
    if files:
        # A file that is named alone may be a copy from anywhere: its own first record says whose it is.
        found: list[tuple[int | None, Path]] = []
        for file in files:
            listed = list_chains(file)
            found += listed if len(listed) > 1 else [(None, file)]
        return _unique(found)
    if config is None or not hasattr(ctx.obj, "audit_file"):
        raise click.UsageError("--config is not available here")
    house: AuditFiles = ctx.obj
    try:
        return list(list_chains(house.audit_file(config)))
    except (OSError, ValueError) as error:
        _give_up(str(error))  # the house's own words: they name the file, or the variable


def _unique(chains: list[tuple[int | None, Path]]) -> list[tuple[int | None, Path]]:
    seen: dict[Path, int | None] = {}
    for writer, path in chains:
        seen.setdefault(path, writer)
    return [(writer, path) for path, writer in seen.items()]


def _give_up(why: str) -> NoReturn:
    click.echo(printable(why, 1000), err=True)
    sys.exit(2)


def _sentence(report: Report) -> str:
    if report.unread:
        return f"{report.path}: could not be read: {report.unread}"
    if report.finding:
        found = report.finding
        return f"{report.path}: BROKEN at line {found.line}, record {found.seq}: {printable(found.why, 500)}"
    if not report.count:
        return f"{report.path}: empty, nothing to verify"
    return f"{report.path}: whole, {report.count} records of writer {report.writer}, head {report.head}"
