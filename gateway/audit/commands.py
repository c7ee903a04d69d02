"""`ostiary audit verify | tail | search | checkpoint`: what an operator asks of the record; nothing needs to run.

Exit codes: 0 all is whole, 1 a chain is broken, 2 it could not be read. What a file holds is hostile: it is printed
escaped.
"""

from __future__ import annotations

import sys
import time
from heapq import merge
from pathlib import Path
from typing import Final

import click
import orjson

from gateway.audit.place import chains_of, give_up, placed
from gateway.audit.query import time_of
from gateway.audit.searching import search
from gateway.audit.tail import Follower, show
from gateway.audit.verify import Report, read_checkpoints, verify_all
from gateway.contract.chain import Checkpoint
from gateway.contract.redaction import printable

_LOOK_AGAIN_S: Final = 0.2


@click.group()
def audit() -> None:
    """Verify and read the audit's hash chains."""


audit.add_command(search)


_json = click.option("--json", "as_json", is_flag=True, help="One JSON document per line.")


@audit.command()
@placed
@click.option("--checkpoint", "points", type=click.Path(path_type=Path), help="Checkpoints from a second place.")
@_json
@click.pass_context
def verify(
    ctx: click.Context, config: Path | None, files: tuple[Path, ...], points: Path | None, as_json: bool
) -> None:
    """Judge every chain; name the first bad record of each that is broken."""
    chains = chains_of(ctx, config, files)
    try:
        checkpoints = read_checkpoints(points) if points else []
    except (OSError, ValueError) as error:
        give_up(f"checkpoints: {error}")
    reports = verify_all(chains, checkpoints)
    for report in reports:
        click.echo(orjson.dumps(report.as_json()).decode() if as_json else _sentence(report))
    if any(report.finding for report in reports):
        sys.exit(1)
    if any(report.unread for report in reports):
        sys.exit(2)


@audit.command()
@placed
@click.option("--output", type=click.Path(path_type=Path), help="Append to this file, in a second place.")
@click.pass_context
def checkpoint(ctx: click.Context, config: Path | None, files: tuple[Path, ...], output: Path | None) -> None:
    """Print `{writer, count, head}` of each chain, once all of them verify; keep it where a writer can't reach."""
    reports = verify_all(chains_of(ctx, config, files))
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
        give_up(f"{output}: {error.strerror or error}")


@audit.command()
@placed
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
        for _, path in chains_of(ctx, config, files):
            followers[path] = Follower(path)
        last = list(merge(*(follower.last(count) for follower in followers.values()), key=time_of))
        for line in last[len(last) - min(count, len(last)) :]:
            click.echo(show(line, as_json=as_json))
        while follow:
            time.sleep(_LOOK_AGAIN_S)
            for _, path in chains_of(ctx, config, files):  # another writer may have come
                if path not in followers:
                    followers[path] = Follower(path)
            for line in merge(*(follower.new() for follower in followers.values()), key=time_of):
                click.echo(show(line, as_json=as_json))
    except OSError as error:
        give_up(f"{error.filename or 'the audit'}: {error.strerror or error}")
    finally:
        for follower in followers.values():
            follower.close()


def _sentence(report: Report) -> str:
    if report.unread:
        return f"{report.path}: could not be read: {report.unread}"
    if report.finding:
        found = report.finding
        where = f"{report.path}: BROKEN at line {found.line}, record {found.seq}"
        return f"{where}: {printable(found.why, 500)} [{found.kind}]"
    if not report.count:
        return f"{report.path}: empty, nothing to verify"
    since = f" from {report.first} on, where a checkpoint begins," if report.first > 1 else ""
    count = report.count - report.first + 1
    return f"{report.path}: whole, {count} records{since} of writer {report.writer}, head {report.head}"
