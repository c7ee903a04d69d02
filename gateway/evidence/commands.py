"""`ostiary evidence` and `ostiary evidence verify`: make a pack, and judge one offline.

Exit codes: 0 complete, 1 incomplete or not whole, 2 it could not be asked.
"""

from __future__ import annotations

import asyncio
import re
import signal
import ssl
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import click
import orjson

from gateway.audit.keys import public_key
from gateway.audit.place import give_up, place_of
from gateway.config import ConfigError
from gateway.config_file import load_settings
from gateway.contract.printable import printable
from gateway.evidence.checks import CLASSES, Verdict
from gateway.evidence.deployed import facts_of, log_from, published_of, secrets_of
from gateway.evidence.excerpt import record_of
from gateway.evidence.gather import Deployment, Made, gather
from gateway.evidence.pack import REPORT, Secretive, Unreadable
from gateway.evidence.scrubbing import Scrubber, TooShort
from gateway.evidence.site import PlanInvalid, Site, commands, read_plan, tokens_here
from gateway.evidence.verifying import describe, examine

_LONGEST: Final = 500
_tell_now = partial(click.echo, err=True)


@click.group(invoke_without_command=True, short_help="Ask a deployment what it has to show, and keep it.")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="The deployment's configuration.")
@click.option(
    "--plan",
    type=click.Path(dir_okay=False, path_type=Path),
    help="What may be called and done there; else evidence.yaml beside --config.",
)
@click.option("--ca", type=click.Path(dir_okay=False, path_type=Path), help="CA certificates to trust, as PEM.")
@click.option("--demo", is_flag=True, help="Start the demo and ask that; needs no configuration.")
@click.option("--out", type=click.Path(path_type=Path), help="The directory to write, which must not exist.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def evidence(  # noqa: PLR0917 - one a parameter
    ctx: click.Context,
    config: Path | None,
    plan: Path | None,
    ca: Path | None,
    demo: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Ask a deployment, or the demo, everything that it has to show, and write what came as a pack."""
    if ctx.invoked_subcommand is not None:
        return
    if out is None:
        raise click.UsageError("--out DIR is missing")
    if demo is bool(config) or (demo and plan):
        raise click.UsageError("give either --demo, or --config and, where it is not evidence.yaml beside it, --plan")
    if out.exists() or out.is_symlink():
        give_up(f"{out}: is there already")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        made = _ask(ctx, config, plan or config.with_name("evidence.yaml"), ca, out) if config else _ask_demo(out)
    except (Unreadable, Secretive, TooShort, PlanInvalid, ConfigError, OSError) as error:
        give_up(str(error))
    _tell(made, out, as_json)
    sys.exit(0 if made.complete else 1)


@evidence.command(short_help="Judge a pack again, offline.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--digest", help="The digest that was printed when the pack was made.")
@click.option("--public-key", "keys", multiple=True, help="Who has to have signed the pack, and the record in it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(folder: Path, digest: str | None, keys: tuple[str, ...], as_json: bool) -> None:
    """Judge the pack in DIR, offline: its files, and every verdict once more."""
    trusted = [public_key(text) for text in keys]
    known = None if digest is None else digest.strip().lower().removeprefix("sha256:")
    if known is not None and not re.fullmatch("[0-9a-f]{64}", known):
        raise click.UsageError("--digest: not a SHA-256 digest in hexadecimal")
    try:
        found = examine(folder, known, trusted)
    except Unreadable as unreadable:
        give_up(str(unreadable))
    if as_json:
        click.echo(orjson.dumps(found.as_json(), option=orjson.OPT_INDENT_2))
    else:
        _table(found.verdicts)
        for wrong in found.wrong:
            click.echo(f"WRONG  {printable(wrong, _LONGEST)}")
        state = "complete" if found.complete else "not whole" if found.wrong else "incomplete"
        click.echo(f"{folder}: {state}, sha256:{found.digest}")
    sys.exit(0 if found.complete else 1)


def _ask(ctx: click.Context, config: Path, plan_file: Path, ca: Path | None, out: Path) -> Made:
    """A deployment that runs. Raises as `gather`, and `PlanInvalid`, `ConfigError`, `OSError`."""
    settings, plan = load_settings(config), read_plan(plan_file)
    scrubber = Scrubber()
    for name, value in secrets_of(settings):
        scrubber.know(name, value)
    base = plan.url.rstrip("/") or settings.base_url
    place = place_of(ctx, config)
    site = Site(
        url=base,
        admin_url=plan.admin_url.rstrip("/") or f"http://{settings.admin.host}:{settings.admin.port}",
        endpoints={name: base + server.path for name, server in settings.servers.items()},
        plan=plan,
        tokens=tokens_here(),
        acts=commands(plan),
        published=published_of(settings, config, plan),
    )
    deployment = Deployment(
        site,
        record=lambda query: record_of(place, query),
        log=log_from(plan.log),
        facts=lambda: facts_of(settings, config, place, demo=False),
        tls=ssl.create_default_context(cafile=ca) if ca else True,
        key=place.key,
    )
    return asyncio.run(gather(deployment, scrubber, out, tell=_tell_now))


def _ask_demo(out: Path) -> Made:
    """The demo, which is started for it. Raises as `gather`; ends the program where it can't be started."""
    try:
        from gateway.demo.stack import StackFailed  # noqa: PLC0415 - the demo is an extra
        from gateway.evidence.demo import demo_deployment  # noqa: PLC0415
    except ImportError as error:
        _no_demo(error)
    scrubber = Scrubber()
    try:
        _tell_now("the demo starts")
        with demo_deployment(scrubber) as deployment:
            return asyncio.run(gather(deployment, scrubber, out, tell=_tell_now))
    except StackFailed as failed:
        give_up(f"the demo could not run: {failed}")


def _no_demo(error: ImportError) -> NoReturn:
    give_up(f"the demo needs the extra `demo` (in a clone: pip install '.[demo]'): {error.name} is missing")


def _tell(made: Made, out: Path, as_json: bool) -> None:
    if as_json:
        told = {"complete": made.complete, "digest": made.digest, "broke_off": dict(made.broke_off)}
        click.echo(orjson.dumps(told | describe(made.verdicts), option=orjson.OPT_INDENT_2))
        return
    _table(made.verdicts)
    for name, why in made.broke_off.items():
        click.echo(f"could not be asked: {name}: {printable(why, _LONGEST)}")
    state = "complete" if made.complete else "INCOMPLETE"
    click.echo(f"{out}: {state}, see {out / REPORT}")
    click.echo(f"sha256:{made.digest}")


def _table(verdicts: Sequence[Verdict]) -> None:
    """Each class in a line, and each check that fails."""
    for group, title in CLASSES.items():
        mine = [one for one in verdicts if one.check.group == group]
        held = sum(one.holds for one in mine)
        click.echo(f"{'ok  ' if held == len(mine) else 'FAIL'}  {title}: {held} of {len(mine)}")
        for one in mine:
            if not one.holds:
                click.echo(f"      {one.check.name}: {printable(one.came, _LONGEST)}")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
