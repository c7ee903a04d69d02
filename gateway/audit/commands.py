"""`ostiary audit verify | tail | search | checkpoint`: what an operator asks of the record; nothing needs to run.

Exit codes: 0 all is whole, 1 a chain is broken, 2 it could not be read. What a file holds is hostile: it is printed
escaped.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from heapq import merge
from pathlib import Path
from typing import Final

import click
import orjson

from gateway.audit.checkpoints import count_unfinished, write_checkpoint
from gateway.audit.evidence import Judgement, is_export, judge_export
from gateway.audit.exporting import export
from gateway.audit.keys import anchors_of, checkpoints_in, public_key, signing_key
from gateway.audit.place import AnyChain, chains_of, give_up, place_of, placed
from gateway.audit.query import time_of
from gateway.audit.reading import TableFollower
from gateway.audit.searching import search
from gateway.audit.segments import segments_of
from gateway.audit.tail import Follower, show
from gateway.audit.trail import ChainOfFiles
from gateway.audit.verify import Report, verify_all
from gateway.contract.chain import Checkpoint
from gateway.contract.printable import printable

_LOOK_AGAIN_S: Final = 0.2


@click.group()
def audit() -> None:
    """Verify and read the audit's hash chains."""


audit.add_command(search)
audit.add_command(export)


_json = click.option("--json", "as_json", is_flag=True, help="One JSON document per line.")


@audit.command(short_help="Judge every chain; name the first bad record.")
@placed
@click.option(
    "--checkpoints", "--checkpoint", "points", type=click.Path(path_type=Path), help="A file from a second place."
)
@click.option(
    "--public-key", "keys", multiple=True, help="Whose checkpoints count; else signatures are not looked at."
)
@_json
@click.pass_context
def verify(
    ctx: click.Context,
    /,
    config: Path | None,
    files: tuple[Path, ...],
    *,
    points: Path | None,
    keys: tuple[str, ...],
    as_json: bool,
) -> None:
    """Judge every chain; name the first bad record of each that is broken."""
    chains = chains_of(ctx, config, files)
    trusted = [public_key(text) for text in keys]
    configured = False
    if config is not None:
        place = place_of(ctx, config)
        if points is None and place.checkpoints is not None:
            points, configured = place.checkpoints, True
            trusted = trusted or ([place.key.public] if place.key else [])
    checkpoints = checkpoints_in(points, trusted, configured=configured) if points else []
    # A configured place holds the record and nothing else: an export there is a record that was swapped.
    exports = [] if config else [one.slot for one in chains if isinstance(one, ChainOfFiles) and _is_export(one)]
    chains = [one for one in chains if not (isinstance(one, ChainOfFiles) and one.slot in exports)]
    judged = [judge_export(path, trusted, checkpoints) for path in exports]
    # Who judges an export has no chains to find missing.
    reports = verify_all(chains, checkpoints) if chains or not exports else []
    told: list[Report | Judgement] = [*judged, *reports]
    for report in told:
        click.echo(orjson.dumps(report.as_json()).decode() if as_json else _sentence(report))
    if points is not None and not as_json:
        whose = f"signed by {', '.join(key.id for key in trusted)}" if trusted else "signatures not looked at"
        torn = count_unfinished(points)
        left = f"; {torn} unfinished {'line' if torn == 1 else 'lines'} left out" if torn else ""
        click.echo(f"compared with {len(checkpoints)} checkpoints of {points}, {whose}{left}")
    elif reports and not as_json:
        click.echo("compared with no checkpoints: a cut tail, or a chain written anew, would not show")
    _leave(reports, judged)


@audit.command(short_help="Print each chain's end, to be kept elsewhere.")
@placed
@click.option("--output", type=click.Path(path_type=Path), help="Append to this file, in a second place.")
@click.option("--key-env", help="The variable with the key that signs, where the configuration names none.")
@click.option("--show-key", is_flag=True, help="Print the public key that goes with it, and nothing else.")
@click.pass_context
def checkpoint(
    ctx: click.Context,
    /,
    config: Path | None,
    files: tuple[Path, ...],
    *,
    output: Path | None,
    key_env: str | None,
    show_key: bool,
) -> None:
    """Print `{writer, count, head}` of each chain, once all of them verify; keep it where a writer can't reach."""
    key = signing_key(ctx, config, key_env)
    if show_key:
        if key is None:
            give_up("there is no key: set audit.checkpoints.key_env's variable, or name one with --key-env")
        click.echo(key.public.text)
        return
    reports = verify_all(chains_of(ctx, config, files), anchors_of(ctx, config, key))
    for report in reports:
        if not report.whole:
            click.echo(_sentence(report), err=True)
    if not all(report.whole for report in reports):
        _leave(reports)
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    points = [Checkpoint(report.writer or 0, report.count, report.head) for report in reports]
    text = b"".join(write_checkpoint(point, now, key) for point in points)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "ab") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        give_up(f"{output}: {error.strerror or error}")


def _is_export(chain: ChainOfFiles) -> bool:
    """Whether it is one, alone; beside other files of a record it stands in the place of a chain."""
    try:
        return chain.writer is None and not segments_of(chain.slot) and is_export(chain.slot)
    except OSError:
        return False  # said when it is judged as a chain


def _leave(reports: Sequence[Report], judged: Sequence[Judgement] = ()) -> None:
    """Exit 1 where something is broken, 2 where it could not be read."""
    if any(report.finding for report in reports) or any(one.finding for one in judged):
        sys.exit(1)
    if any(report.unread for report in reports):
        sys.exit(2)


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
    followers: dict[AnyChain, Follower | TableFollower] = {}
    try:
        _follow(followers, chains_of(ctx, config, files))
        last = list(merge(*(follower.last(count) for follower in followers.values()), key=time_of))
        for line in last[len(last) - min(count, len(last)) :]:
            click.echo(show(line, as_json=as_json))
        while follow:
            time.sleep(_LOOK_AGAIN_S)
            if all(isinstance(one, ChainOfFiles) for one in followers):
                _follow(followers, chains_of(ctx, config, files))  # another writer may have come
            for line in merge(*(follower.new() for follower in followers.values()), key=time_of):
                click.echo(show(line, as_json=as_json))
    except BrokenPipeError:  # whoever read has enough; click ends without a word
        raise
    except OSError as error:
        give_up(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    finally:
        for follower in followers.values():
            follower.close()


def _follow(followers: dict[AnyChain, Follower | TableFollower], chains: Sequence[AnyChain]) -> None:
    for one in chains:
        if one not in followers:
            followers[one] = (
                Follower(one.slot) if isinstance(one, ChainOfFiles) else TableFollower(one.tables, one.writer or 0)
            )


def _sentence(report: Report | Judgement) -> str:
    if isinstance(report, Judgement):
        return _sentence_of_export(report)
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


def _sentence_of_export(judged: Judgement) -> str:
    if found := judged.finding:
        where = f"{judged.path}: BROKEN at line {found.line}, record {found.seq}"
        return f"{where}: {printable(found.why, 500)} [{found.kind}]"
    parts = [
        f"{chain['records']} of records {chain['first']} to {chain['count']} of writer {chain['writer']}"
        f" ({chain['gaps']} gaps)"
        for chain in judged.chains
    ]
    whose = f"signed by {judged.key}" if judged.key else "nobody's word was checked: give --public-key"
    return f"{judged.path}: a whole export of {printable(judged.time, 40)}: {'; '.join(parts) or 'nothing'}; {whose}"
