"""`ostiary audit search`: who did what, why it was refused, which ticket it ran under.

Exit codes: 0 something was found, 1 nothing was, 2 the record could not be read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import click

from gateway.audit.place import chains_of, give_up, placed
from gateway.audit.query import Query, moment
from gateway.audit.tail import show
from gateway.audit.trail import search as search_chains

F = TypeVar("F", bound=Callable[..., Any])

_ASKED = {
    "who": "The subject that acted, whose ticket it was, or who moved it.",
    "issuer": "Their issuer.",
    "client": "The client that acted for them.",
    "server": "The server's configured name.",
    "tool": "The tool's or prompt's name, or the resource's URI, as the record holds it.",
    "method": "The request's method.",
    "kind": "decision, outcome, refusal, approval or admin.",
    "verdict": "The policy's: allow, approve or deny.",
    "outcome": "How a forwarded request ended.",
    "reason": "One of the record's reasons.",
    "ticket": "The ticket's id.",
    "decision": "The decision's id.",
    "trace": "The trace's id.",
    "since": "From this time on: 2026-11-30, 2026-11-30T10:15:00+01:00, or 2h for two hours ago.",
    "until": "Before this time.",
}


class Moment(click.ParamType[str]):
    """A time as people write it, on the command line."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """A time as the record writes it."""
        try:
            return moment(str(value), datetime.now(UTC))
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time: write 2026-11-30, 2026-11-30T10:15:00Z or 2h", param, ctx)


class Text(click.ParamType[str]):
    """A text that a record can hold."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is; bytes that are no UTF-8 came as lone surrogates."""
        try:
            str(value).encode("utf-8")
        except UnicodeEncodeError:
            self.fail("it is not UTF-8", param, ctx)
        return str(value)


def asking(command: F) -> F:
    """The options of a query, one for each of its members."""
    for name, text in reversed(_ASKED.items()):
        kind = Moment() if name in ("since", "until") else Text()
        command = click.option(f"--{name}", type=kind, help=text)(command)
    return command


@click.command()
@placed
@asking
@click.option("--limit", "-n", default=100, show_default=True, type=click.IntRange(0), help="At most; 0 for all.")
@click.option("--oldest-first", is_flag=True, help="Else the newest is first.")
@click.option("--json", "as_json", is_flag=True, help="The records as they are, one a line.")
@click.pass_context
def search(
    ctx: click.Context,
    /,
    config: Path | None,
    files: tuple[Path, ...],
    *,
    limit: int,
    oldest_first: bool,
    as_json: bool,
    **asked: str | None,
) -> None:
    """Print the records that all given options hold of."""
    found = search_chains(chains_of(ctx, config, files), Query(**asked), newest_first=not oldest_first)
    count = 0
    try:
        for line, _ in islice(found, limit) if limit else found:
            click.echo(show(line, as_json=as_json))
            count += 1
    except BrokenPipeError:  # whoever read has enough; click ends without a word
        raise
    except OSError as error:
        give_up(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    sys.exit(0 if count else 1)
