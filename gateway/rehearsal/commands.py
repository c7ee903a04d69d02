"""`ostiary policy test | diff | replay`: a policy is tried before it judges, and watched before it is believed.

Exit codes: 0 all holds (or nothing would differ), 1 it does not, 2 it could not be asked.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from gateway.audit.place import Place, chains_of
from gateway.audit.query import Query
from gateway.audit.searching import Moment
from gateway.audit.trail import search
from gateway.disagreements import read_all
from gateway.rehearsal.bundles import compare
from gateway.rehearsal.promises import find_broken
from gateway.rehearsal.replay import Replay, replay
from gateway.rehearsal.sheets import sheet_of_comparison, sheet_of_group, sheet_of_replay
from policies.bundles import load_bundle
from policies.embedded import EmbeddedPolicy
from policies.rego_tests import Coverage, Outcome, run_bundle_tests
from policies.verdict import PolicyUnavailable

NO: Final = 1
NOT_ASKED: Final = 2
TEST_S: Final = 10.0
OPA_S: Final = 120.0
REPLAY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PolicyDoor:
    """The way from `--config` to the policy's places (`ctx.obj`). Each raises `ValueError` where it can't be read."""

    bundle: Callable[[Path], Path]
    shadow_file: Callable[[Path], Path]
    audit_place: Callable[[Path], Place]


@click.group(short_help="Test, compare and replay a policy before it judges.")
def policy() -> None:
    """Try a policy before it judges, and compare it with the one that does."""


config_option = click.option("--config", type=click.Path(path_type=Path), help="The gateway's configuration.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@policy.command(short_help="Run a bundle's own tests; tell what they cover.")
@click.argument("path", type=click.Path(path_type=Path), required=False)
@config_option
@click.option("--coverage", is_flag=True, help="Also print which lines of the rules no test evaluated.")
@click.option(
    "--opa", "opa", is_flag=False, flag_value="opa", help="Also run the tests in this OPA (default: `opa`)."
)
@json_option
@click.pass_context
def test(  # noqa: PLR0917 - one a parameter
    ctx: click.Context, path: Path | None, config: Path | None, coverage: bool, opa: str | None, as_json: bool
) -> None:
    """Run the Rego tests of the bundle at PATH (or of the configuration's), in the embedded engine.

    A sample of the decisions that hold for any arguments is asked again with others, for at most 20 seconds.
    """
    folder = path or _bundle(ctx, config)
    seen = Coverage() if coverage else None
    try:
        bundle = load_bundle(folder)
        outcomes = run_bundle_tests(bundle, timeout_s=TEST_S, coverage=seen)
        outcomes += asyncio.run(find_broken(bundle))
        others = [] if opa is None else _test_in_opa(opa, folder)
    except PolicyUnavailable as error:
        end(str(error), as_json)
    if as_json:
        told: dict[str, Any] = {"tests": [asdict(one) for one in outcomes]}
        if opa is not None:
            told["opa"] = [asdict(one) for one in others]
        if seen is not None:
            files = seen.files().items()
            told["coverage"] = {name: {"covered": yes, "not_covered": no} for name, (yes, no) in files}
        click.echo(json.dumps(told, indent=2))
    else:
        for engine, found in (("", outcomes), ("OPA: ", others)):
            for one in found:
                click.echo(f"{engine}{'ok  ' if one.passed else 'FAIL'} {one.name}{one.why and ': ' + one.why}")
        for name, (yes, no) in (seen.files() if seen else {}).items():
            share = 100 * len(yes) / max(1, len(yes) + len(no))
            click.echo(f"{name}: {share:.1f} % of its lines{(no and f', not {_ranges(no)}') or ''}")
        click.echo(f"{sum(one.passed for one in (*outcomes, *others))} of {len(outcomes) + len(others)} passed")
    sys.exit(0 if all(one.passed for one in (*outcomes, *others)) else NO)


def _test_in_opa(program: str, folder: Path) -> list[Outcome]:
    """The same tests by `opa test`. Raises `PolicyUnavailable` where it can't be run or does not load the bundle."""
    command = [program, "test", "--bundle", str(folder), "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=OPA_S, check=False, stdin=subprocess.DEVNULL)  # noqa: S603
        found = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PolicyUnavailable(f"{program}: {getattr(error, 'strerror', None) or 'did not end in time'}") from error
    except ValueError as error:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise PolicyUnavailable(f"{program}: {' '.join(words)[:500] or 'no result'}") from error
    return [
        Outcome(f"{one['package']}.{one['name']}", not bad, "does not hold" if bad else "")
        for one in found or []
        for bad in (bool(one.get("fail") or one.get("error")),)
    ]


def _ranges(lines: Iterable[int]) -> str:
    """3, 4, 5, 9 -> `3-5, 9`."""
    runs = [list(run) for _, run in groupby(enumerate(sorted(lines)), lambda pair: pair[1] - pair[0])]
    return ", ".join(
        str(run[0][1]) if len(run) == 1 else f"{run[0][1]}-{run[-1][1]}" for run in runs
    )  # fmt: skip


@policy.command(short_help="What a bundle changes of another.")
@click.argument("old", type=click.Path(path_type=Path), required=False)
@click.argument("new", type=click.Path(path_type=Path), required=False)
@click.option("--live", is_flag=True, help="What the running gateway's shadow judged otherwise.")
@config_option
@json_option
@click.pass_context
def diff(  # noqa: PLR0917 - one a parameter
    ctx: click.Context, old: Path | None, new: Path | None, live: bool, config: Path | None, as_json: bool
) -> None:
    """What the bundle at NEW changes of that at OLD; or with --live, where the shadow disagrees with the policy."""
    if live is (new is not None):
        raise click.UsageError("OLD and NEW are two bundles' folders; or --live --config FILE")
    if old is not None and new is not None:
        _diff_bundles(old, new, as_json)
    try:
        groups = read_all(_door(ctx).shadow_file(_named(config)))
    except (ValueError, OSError) as error:
        end(str(error), as_json)
    if as_json:
        click.echo(json.dumps([asdict(group) for group in groups], indent=2))
    else:
        for group in groups:
            click.echo(sheet_of_group(group))
        click.echo(f"{sum(group.count for group in groups)} calls in {len(groups)} kinds would be judged otherwise")
    sys.exit(NO if groups else 0)


def _diff_bundles(old: Path, new: Path, as_json: bool) -> NoReturn:
    try:
        told = asyncio.run(compare(old, new, REPLAY_S))
    except PolicyUnavailable as error:
        end(str(error), as_json)
    if as_json:
        changes = [{**asdict(turn), "count": count} for turn, count in sorted(told.turns.items())]
        facts = {"revisions": told.revisions, "files": told.files, "data": told.data, "cases": told.cases}
        click.echo(json.dumps({**facts, "cut": told.cut, "changes": changes}, indent=2))
    else:
        click.echo("\n".join(sheet_of_comparison(told)))
    sys.exit(NO if told.differs else 0)


@policy.command(name="replay", short_help="Judge recorded decisions again by a candidate.")
@click.option("--bundle", "candidate", type=click.Path(path_type=Path), required=True, help="The candidate's folder.")
@click.option(
    "--audit",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="The record: writer 0's file names them all. May be repeated. Default: that of --config.",
)
@click.option(
    "--baseline", type=click.Path(path_type=Path), help="The bundle that judged. Default: that of --config."
)
@click.option("--since", type=Moment(), help="From this time on: 2026-11-30, 2026-11-30T10:15:00Z, 2h.")
@click.option("--until", type=Moment(), help="Before this time.")
@config_option
@json_option
@click.pass_context
def replay_command(  # noqa: PLR0917 - one a parameter
    ctx: click.Context, candidate: Path, files: tuple[Path, ...], baseline: Path | None, since: str | None,
    until: str | None, config: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Judge recorded decisions again by a candidate, and tell what would change."""
    before = baseline or (_bundle(ctx, config) if config else None)
    if not files and config is None:
        raise click.UsageError("--audit FILE or --config FILE says which record")
    if not all(file.exists() for file in files):
        end(f"there is no record at {', '.join(map(str, files))}", as_json)
    chains = chains_of(ctx, None if files else config, files)
    records = (record for _, record in search(chains, Query(since=since, until=until), newest_first=False))
    try:
        told = asyncio.run(_replay(records, candidate, before))
    except (PolicyUnavailable, OSError) as error:
        end(str(error), as_json)
    if as_json:
        counts = {name: getattr(told, name) for name in COUNTS}
        changes = [{**asdict(change), "count": count} for change, count in told.changes.most_common()]
        click.echo(json.dumps({**counts, "baseline": before is not None, "changes": changes}, indent=2))
    else:
        click.echo("\n".join(sheet_of_replay(told, before is not None)))
    sys.exit(NO if told.changes else 0)


COUNTS: Final = ("same", "changed", "failed", "unsure", "skipped", "without_arguments")


async def _replay(records: Iterable[dict[str, Any]], candidate: Path, baseline: Path | None) -> Replay:
    engines = [EmbeddedPolicy(path, deadline_s=REPLAY_S) for path in (candidate, baseline) if path is not None]
    try:
        for engine in engines:
            await engine.start()
        return await replay(records, engines[0], engines[1] if len(engines) > 1 else None)
    finally:
        for engine in engines:
            await engine.close()


def end(message: str, as_json: bool) -> NoReturn:
    """It could not be asked."""
    told = json.dumps({"error": "not_asked", "message": message}, indent=2) if as_json else message
    click.echo(told, err=not as_json)
    sys.exit(NOT_ASKED)


def _named(config: Path | None) -> Path:
    if config is None:
        raise click.UsageError("--config FILE says which")
    return config


def _bundle(ctx: click.Context, config: Path | None) -> Path:
    try:
        return _door(ctx).bundle(_named(config))
    except ValueError as error:
        end(str(error), as_json=False)


def _door(ctx: click.Context) -> PolicyDoor:
    door = ctx.find_object(PolicyDoor)
    if door is None:
        raise click.UsageError("--config is not available here")
    return door
