"""`ostiary audit export`: records for others, as evidence (JSONL), for a spreadsheet (CSV), for a SIEM (OCSF).

Every chain is judged while it is read, and of a broken one nothing is exported. Exit codes: 0 done, 1 a chain is
broken, 2 it could not be read or written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import click

from gateway.audit.choosing import Broken, choose
from gateway.audit.keys import anchors_of, signing_key
from gateway.audit.place import chains_of, give_up, placed
from gateway.audit.query import Query
from gateway.audit.searching import asking
from gateway.contract.printable import printable


@click.command(short_help="Write records as signed evidence, CSV or OCSF.")
@placed
@asking
@click.option("--format", "form", type=click.Choice(["jsonl", "csv", "ocsf"]), default="jsonl", show_default=True)
@click.option("--out", required=True, help="A new file; - for standard output.")
@click.option("--key-env", help="The variable with the key that signs, where the configuration names none.")
@click.pass_context
def export(
    ctx: click.Context,
    /,
    config: Path | None,
    files: tuple[Path, ...],
    *,
    form: str,
    out: str,
    key_env: str | None,
    **asked: str | None,
) -> None:
    """Write the records that all given options hold of, in a form for others."""
    key = signing_key(ctx, config, key_env)
    query = Query(**asked)
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    points = anchors_of(ctx, config, key)
    lines = choose(chains_of(ctx, config, files), query, form, now=now, key=key, points=points)
    try:
        _write(out, lines)
    except Broken as broken:
        click.echo(printable(str(broken), 1000), err=True)
        sys.exit(1)
    except OSError as error:
        give_up(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _write(out: str, lines: Iterator[bytes]) -> None:
    """All of it or no file. Raises `OSError`."""
    if out == "-":
        sys.stdout.buffer.writelines(lines)
        return
    path = Path(out)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            _fill(file, lines)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _fill(file: IO[bytes], lines: Iterator[bytes]) -> None:
    file.writelines(lines)
    file.flush()
    os.fsync(file.fileno())
