"""`ostiary init`: asks a few questions and writes a commented configuration, a policy and keys. Overwrites nothing.

Exit codes: 0 written, 2 it could not be: nothing is left behind then.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import tempfile
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final, NoReturn

import click

from gateway.beginning.asking import PAST, Offer, ask
from gateway.beginning.drafting import Answers, draft_configuration, draft_data, draft_environment, wrong_answer
from gateway.beginning.schema import settings_schema
from gateway.config import ConfigError
from gateway.config_file import load_settings
from gateway.plan import Plan, make_plan

CONFIGURATION, ENVIRONMENT, SCHEMA, POLICIES = "ostiary.yaml", "ostiary.env", "ostiary.schema.json", "policies"
WRITTEN: Final = (CONFIGURATION, ENVIRONMENT, SCHEMA, POLICIES)
DATA: Final = "bundle/mcp/authz/data.json"


def _unwritten(_: click.Context, __: click.Parameter, folder: Path) -> Path:
    """Before anything is asked: a folder that has none of the files yet, or the end."""
    targets = [folder / name for name in WRITTEN]
    if there := [target for target in targets if target.exists() or target.is_symlink()]:
        _give_up(f"{there[0]} is there already: nothing was written -> name another folder with --dir")
    return folder


@click.command()
@click.option(
    "--dir", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path(), help="Where to write.",
    is_eager=True, callback=_unwritten,
)  # fmt: skip
@click.option("--issuer", prompt="Your identity provider (its issuer URL)", help="Whose tokens count.")
@click.option(
    "--server", prompt="Your MCP server (its endpoint)", default="http://127.0.0.1:8000/mcp", show_default=True,
    help="The endpoint of the server to be governed.",
)  # fmt: skip
@click.option(
    "--name", prompt="A short name for it", default="tools", show_default=True, help="Its name in paths and policy.",
)  # fmt: skip
@click.option(
    "--public-url", prompt="What clients will call the gateway", default="http://127.0.0.1:8080", show_default=True,
    help="https, or http on this machine.",
)  # fmt: skip
@click.option(
    "--scope",
    prompt="A scope that every token must have (empty: none)",
    default="",
    show_default=False,
    help="Every token must have it.",
)
@click.option(
    "--approvers", prompt="Who approves changes, as group:NAME or user:SUBJECT (empty: nobody)",
    default="", show_default=False, help="As in the policy: group:NAME, user:SUBJECT, scope:NAME.",
)  # fmt: skip
@click.option(
    "--token-type",
    default="at+jwt",
    show_default=True,
    help="`typ` in the head of the tokens; JWT where the provider sets no other.",
)
@click.option("--ask/--no-ask", "asks", default=True, help="Whether to ask the server which tools it has.")
@click.option("--json", "as_json", is_flag=True, help="Tell what was written, and of which tools, as JSON.")
def init(*, folder: Path, asks: bool, as_json: bool, **given: str) -> None:
    """Write ostiary.yaml, a policy and keys for one MCP server."""
    answers = Answers(**{name: value.strip() for name, value in given.items()})
    if wrong := wrong_answer(answers):
        _give_up(wrong)
    targets = [folder / name for name in WRITTEN]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".ostiary-init-") as name:
            draft = Path(name)
            offer = _write(draft, answers, asks=asks)
            for target in targets:
                (draft / target.name).rename(target)
    except OSError as error:
        _give_up(f"{error.filename or folder}: {error.strerror}")
    if as_json:
        told = {"written": [str(target) for target in targets], "legacy": offer.legacy, "fault": offer.fault}
        click.echo(json.dumps(told | {"reads": offer.tools}))
    else:
        _tell(folder, answers, offer)


def _write(draft: Path, answers: Answers, *, asks: bool) -> Offer:
    """All files into a folder of their own. Raises `OSError`; exits where the answers make no configuration."""
    environment = draft_environment()
    descriptor = os.open(draft / ENVIRONMENT, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(environment)
    (draft / SCHEMA).write_text(json.dumps(settings_schema(), indent=1) + "\n", encoding="utf-8")
    with as_file(files("policies") / "bundle") as bundle:
        shutil.copytree(bundle, draft / POLICIES / "bundle")
    # Its own process reads the keys as the gateway will.
    for line in environment.splitlines():
        name, _, key = line.partition("=")
        os.environ[name] = key
    plans = {legacy: _plan(draft, answers, legacy) for legacy in reversed(PAST)}
    offer = asyncio.run(ask(plans)) if asks else Offer({})
    (draft / CONFIGURATION).write_text(draft_configuration(answers, offer.legacy), encoding="utf-8")
    (draft / POLICIES / DATA).write_text(json.dumps(draft_data(answers, offer), indent=2) + "\n", encoding="utf-8")
    manifest = json.loads((draft / POLICIES / "bundle/.manifest").read_text(encoding="utf-8"))
    manifest["revision"] = "init-1"
    (draft / POLICIES / "bundle/.manifest").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return offer


def _plan(draft: Path, answers: Answers, legacy: str) -> Plan:
    """The plan of the configuration as it would be with this setting; exits naming what is wrong with an answer."""
    file = draft / CONFIGURATION
    file.write_text(draft_configuration(answers, legacy), encoding="utf-8")
    try:
        return make_plan(load_settings(file))
    except (ConfigError, ValueError) as error:
        # Without the place in a draft that is gone by the time this is read.
        _give_up(re.sub(rf"^{re.escape(str(file))}:\d+: ", "", str(error), flags=re.MULTILINE))


def _tell(folder: Path, answers: Answers, offer: Offer) -> None:
    """What was written, what it opens, and what comes next."""
    reads = [name for name, only in offer.tools.items() if only]
    changes = [name for name, only in offer.tools.items() if not only]
    held = f"wait for {answers.approvers}" if answers.approvers else "are closed: nobody was named to approve them"
    click.echo(f"Written: {', '.join(str(folder / one) for one in (CONFIGURATION, ENVIRONMENT, SCHEMA, POLICIES))}")
    if offer.fault:
        click.echo(
            f"The server could not be asked: {offer.fault!a}. Until data.json names its tools, all are closed."
        )
    elif offer.tools:
        click.echo(f"By the server's own hints these tools only read, and are open: {_names(reads)}")
        click.echo(f"All others {held}: {_names(changes)}")
    data = folder / POLICIES / DATA
    click.echo(f"Read {data} before you serve it: a server's hints are its own word.")
    click.echo(f"""
Next:
  set -a; . {folder / ENVIRONMENT}; set +a
  ostiary check --config {folder / CONFIGURATION} --live
  ostiary serve --config {folder / CONFIGURATION}""")


def _names(names: list[str]) -> str:
    """A few names, which a server chose: nothing of them acts on a terminal."""
    shown = ", ".join(ascii(name)[1:-1][:64] for name in names[:12])
    return (shown or "none") + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _give_up(why: str) -> NoReturn:
    click.echo(why, err=True)
    raise SystemExit(2)
