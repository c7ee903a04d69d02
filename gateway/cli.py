"""The one command, `ostiary`; it reads the configuration and delegates.

Exit codes: 0 done (or: the answer is yes), 1 the answer is no, 2 it could not be asked, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.options import INTERRUPTED, config_option, fail

if TYPE_CHECKING:
    from gateway.audit.place import Place
    from gateway.config import Settings

ROOMS = {
    "approvals": "approvals.commands",
    "audit": "gateway.audit.commands",
    "evidence": "gateway.evidence.commands",
    "explain": "gateway.audit.explaining",
    "init": "gateway.beginning.commands",
    "judge": "gateway.serving.commands",
    "pins": "gateway.pins.commands",
    "policy": "gateway.rehearsal.commands",
    "registry": "gateway.registry.commands",
    "serve": "gateway.serving.commands",
    "worker": "gateway.serving.commands",
}
"""Commands, and groups of them, that a room brings along: name -> its module, where it has the same name."""


def read_settings(config: Path) -> Settings:
    """The settings of `--config`, or exit 2 with every setting that is wrong."""
    from gateway.config import ConfigError  # noqa: PLC0415 - a fifth of a second, for commands that read settings
    from gateway.config_file import load_settings  # noqa: PLC0415

    try:
        return load_settings(config)
    except ConfigError as error:
        fail(error)


class House(click.Group):
    """A room's commands are imported when they are called: `audit verify` does not wait for a database driver."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, the rooms' included."""
        return sorted({*super().list_commands(ctx), *ROOMS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, from its room where it has one."""
        if cmd_name in ROOMS:
            command: click.Command = getattr(import_module(ROOMS[cmd_name]), cmd_name)
            return command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        """Ctrl-C, in any command that does not see to it itself: 130, as a shell expects, and no word about it.

        A question to the terminal (`click.prompt`) turns it into `Abort`; so it does the end of the input, which
        stays what it is: exit 1.
        """
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort) as stopped:
            if isinstance(stopped, click.Abort) and not isinstance(stopped.__context__, KeyboardInterrupt):
                raise
            click.echo(err=True)  # the terminal's ^C stands on a line of its own
            ctx.exit(INTERRUPTED)


@click.group(cls=House, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ostiary")
@click.pass_context
def main(ctx: click.Context) -> None:
    """A gateway in front of unmodified MCP servers.

    Begin with `demo`, which shows what it does, or with `init`, which writes a configuration for a server of yours.

    Exit codes: 0 done (or: the answer is yes), 1 the answer is no, 2 it could not be asked, 130 stopped by Ctrl-C.
    """
    if ctx.invoked_subcommand in {"approvals", "pins", "policy", "registry"}:
        from gateway.doors import door_of  # noqa: PLC0415 - see House

        ctx.obj = door_of(ctx.invoked_subcommand, AuditDoor().audit_place)
    else:
        ctx.obj = AuditDoor()


@main.command(short_help="Look whether all is in order, without serving.")
@config_option
@click.option("--live", is_flag=True, help="Also ask the servers whether they offer what the policy's data names.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check(config: Path, live: bool, as_json: bool) -> None:
    """Check settings, secrets, keys, the bundle, its tests and its data.

    Exit 1 where something that the file names is wrong, 2 where something could not be asked or the file is wrong.
    """
    from gateway.inspecting.inspection import inspect  # noqa: PLC0415

    sys.exit(inspect(read_settings(config), as_json, live=live))


@main.command(short_help="What would become of one request, without making it.")
@config_option
@click.argument("request", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--trace", is_flag=True, help="Also print which lines of the rules were evaluated (embedded engine).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def decide(config: Path, request: Path, trace: bool, as_json: bool) -> None:
    """Decide about one REQUEST ({server, token | claims, headers, body}) without making it. Exit 0: forwarded."""
    from gateway.rehearsal.deciding import tell_decision  # noqa: PLC0415

    try:
        text = request.read_bytes()
    except OSError as error:
        fail(f"{request}: {error.strerror}")
    sys.exit(tell_decision(read_settings(config), text, trace=trace, as_json=as_json))


@main.command(short_help="See it work: servers, an issuer, a guided tour.")
@click.argument("story", type=click.Choice(["bank", "procurement", "call"]), default="bank")
@click.option("--tour", is_flag=True, help="Leave after the tour; exit 0 only if every stop behaved.")
@click.option("--old", is_flag=True, help="Procurement by MCP 2025-11-25, with sessions and without the gateway.")
@click.option("--url", default="http://127.0.0.1:8080", help="Of `call`: the gateway of the demo that runs.")
@click.option("--issuer", default="http://127.0.0.1:8100", help="Of `call`: its issuer.")
def demo(story: str, tour: bool, old: bool, url: str, issuer: str) -> None:
    """Demo servers, a development issuer, the gateway, and a guided tour. Loopback only.

    STORY is `bank` (the tour), `procurement` (questions and tasks across replicas that come and go), or `call`: one
    call at a bank that runs already, held until somebody approves it in a browser.
    """
    if old and story != "procurement":
        raise click.UsageError("--old tells the procurement story only")
    try:
        from gateway.demo.procurement.old import tell_old  # noqa: PLC0415
        from gateway.demo.procurement.story import tell  # noqa: PLC0415
        from gateway.demo.tour import run_demo, tell_of_a_held_call  # noqa: PLC0415
    except ImportError as error:
        fail(f"the demo needs the extra `demo` (in a clone: pip install '.[demo]'): {error.name} is missing")
    if story == "call":
        try:
            sys.exit(tell_of_a_held_call(url.rstrip("/"), issuer.rstrip("/")))
        except ValueError as error:
            raise click.UsageError(str(error)) from error
    told = None if story == "bank" else tell_old if old else tell
    sys.exit(run_demo(tour_only=tour, story=told))


class AuditDoor:
    """The way from `--config` to the record, for the audit's commands."""

    def audit_place(self, config: Path) -> Place:
        """What `audit` of a configuration names. Raises `ValueError` where it can't be read."""
        from gateway.audit.checkpoints import SigningKey  # noqa: PLC0415
        from gateway.audit.place import Place  # noqa: PLC0415
        from gateway.config import ConfigError  # noqa: PLC0415
        from gateway.config_file import load_settings  # noqa: PLC0415

        try:
            settings = load_settings(config)
            audit, database = settings.audit, settings.audit_database_url
        except ConfigError as error:
            raise ValueError(str(error)) from error
        chosen = audit.checkpoints
        text = os.environ.get(chosen.key_env, "") if chosen else ""
        # Who verifies need not hold the key; who holds it need not say which.
        key = SigningKey(text, chosen.key_env) if chosen and text else None
        return Place(audit.file, database, chosen.file if chosen else None, key)


if __name__ == "__main__":
    main(prog_name="ostiary")
