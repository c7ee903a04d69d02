"""The one command, `ostiary`; it reads the configuration and delegates.

Exit codes: 0 done (or: the answer is yes), 1 the answer is no, 2 it could not be asked.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from gateway.config import ConfigError, EmbeddedPolicySettings, Settings
from gateway.config_file import load_settings

if TYPE_CHECKING:
    from approvals.desk import Desk
    from gateway.audit.place import Place
    from gateway.pins.acceptance import Acceptance
    from gateway.registry.room import RegistryRoom

COULD_NOT_ASK = 2
ROOMS = {
    "approvals": "approvals.commands",
    "audit": "gateway.audit.commands",
    "evidence": "gateway.evidence.commands",
    "explain": "gateway.audit.explaining",
    "init": "gateway.beginning.commands",
    "pins": "gateway.pins.commands",
    "policy": "gateway.rehearsal.commands",
    "registry": "gateway.registry.commands",
}
"""Groups of commands that a room brings along: name -> its module, where the group has the same name."""

config_option = click.option(
    "--config",
    "config",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The configuration file (YAML).",
)


def fail(message: object) -> NoReturn:
    """Say on standard error what could not be asked, and exit 2."""
    click.echo(str(message), err=True)
    raise SystemExit(COULD_NOT_ASK)


def read_settings(config: Path) -> Settings:
    """The settings of `--config`, or exit 2 with every setting that is wrong."""
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


@click.group(cls=House, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ostiary")
@click.pass_context
def main(ctx: click.Context) -> None:
    """A gateway in front of unmodified MCP servers.

    Begin with `demo`, which shows what it does, or with `init`, which writes a configuration for a server of yours.

    Exit codes: 0 done (or: the answer is yes), 1 the answer is no, 2 it could not be asked.
    """
    if ctx.invoked_subcommand == "approvals":
        from approvals.commands import LocalDoor  # noqa: PLC0415 - see House

        ctx.obj = LocalDoor(open_desk, database=database_of)
    elif ctx.invoked_subcommand == "pins":
        from gateway.pins.commands import PinDoor  # noqa: PLC0415

        ctx.obj = PinDoor(open_pins)
    elif ctx.invoked_subcommand == "policy":
        from gateway.rehearsal.commands import PolicyDoor  # noqa: PLC0415

        ctx.obj = PolicyDoor(bundle_of, shadow_file_of, AuditDoor().audit_place)
    elif ctx.invoked_subcommand == "registry":
        from gateway.registry.room import RegistryDoor  # noqa: PLC0415

        ctx.obj = RegistryDoor(open_registry)
    else:
        ctx.obj = AuditDoor()


@main.command()
@config_option
@click.option("--host", default=None, help="Overrides listen.host.")
@click.option("--port", type=click.IntRange(0, 65535), default=None, help="Overrides listen.port.")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--watch", is_flag=True, help="Reload the configuration when the file changes, as SIGHUP does.")
def serve(*, config: Path, host: str | None, port: int | None, workers: int, watch: bool) -> None:
    """Serve: one supervisor and N worker processes. SIGHUP reloads the configuration."""
    from gateway.logs import set_up_logs  # noqa: PLC0415
    from gateway.serving.configuration import Configuration  # noqa: PLC0415 - the other commands need none of this
    from gateway.serving.listener import CannotServe  # noqa: PLC0415
    from gateway.serving.supervisor import Posts, Supervisor, command_of, stay_asked  # noqa: PLC0415

    try:
        text = config.read_bytes()
        settings = with_listen(load_settings(config, text), host, port)
    except OSError as error:
        fail(f"{config}: {error.strerror}")
    except ConfigError as error:
        fail(error)
    set_up_logs()
    # Not resolved: a mounted ConfigMap's name is a link, and what it leads to goes with the next version.
    file, home, limits = config.absolute(), ("--home", str(config.resolve().parent)), settings.limits
    posts = Posts(
        host=settings.listen.host,
        port=settings.listen.port,
        admin_host=settings.admin.host,
        admin_port=settings.admin.port,
        workers=workers,
        command=command_of("worker", file, *home, "--host", settings.listen.host, "--workers", str(workers)),
        configuration=Configuration(text, limits.grace_s, min(limits.drain_s, limits.grace_s)),
        file=file,
        judge=command_of("judge", file, *home),
        watch=watch,
    )

    async def supervise() -> int:
        code = await Supervisor(posts).run()
        stay_asked()
        return code

    try:
        sys.exit(asyncio.run(supervise()))
    except CannotServe as error:
        fail(f"{config}: {error}")


home_option = click.option("--home", type=click.Path(file_okay=False, path_type=Path), required=True)


@main.command(hidden=True)
@config_option
@home_option
@click.option("--host", required=True)
@click.option("--port", type=int, required=True)
@click.option("--workers", type=int, required=True)
@click.option("--text", type=click.Path(dir_okay=False, path_type=Path), required=True)
@click.option("--seat", type=int, required=True)
@click.option("--fd", type=int, required=True)
@click.option("--status-fd", type=int, required=True)
def worker(
    *, config: Path, home: Path, host: str, port: int, workers: int, text: Path, seat: int, fd: int, status_fd: int
) -> None:
    """One worker process; started by the supervisor, which is told what keeps it from starting."""
    from gateway.serving.configuration import digest_of  # noqa: PLC0415
    from gateway.serving.crew import CANNOT_START  # noqa: PLC0415
    from gateway.serving.status import Resigned  # noqa: PLC0415
    from gateway.serving.worker import StatusPipe, hold_to_supervisor, work  # noqa: PLC0415

    hold_to_supervisor(status_fd)
    pipe = StatusPipe(status_fd)
    gc.disable()  # until `work` has the house open: all that is made until then stays

    import uvloop  # noqa: PLC0415

    from gateway.app import build  # noqa: PLC0415
    from gateway.logs import set_up_logs  # noqa: PLC0415
    from gateway.opening import CannotStart  # noqa: PLC0415
    from gateway.telemetry import count_in_seat  # noqa: PLC0415

    set_up_logs()
    count_in_seat(seat)
    try:
        content = text.read_bytes()
        settings = with_listen(load_settings(config, content, home=home), host, port)
        house = build(settings, workers=workers, digest=digest_of(content))
    except (ConfigError, ValueError) as error:
        pipe.say(Resigned(str(error)))
        sys.exit(CANNOT_START)
    try:
        uvloop.run(work(house, fd, pipe))
    except CannotStart as error:
        pipe.say(Resigned(str(error)))
        sys.exit(CANNOT_START)


@main.command(hidden=True)
@config_option
@home_option
@click.option("--text", type=click.Path(dir_okay=False, path_type=Path), required=True)
@click.option("--coming", type=click.Path(dir_okay=False, path_type=Path), default=None)
@click.option("--note", "act", default="")
@click.option("--facts", default="{}")
def judge(*, config: Path, home: Path, text: Path, coming: Path | None, act: str, facts: str) -> None:
    """Judge a configuration that is to follow the running one, or record what became of it; for the supervisor."""
    import orjson  # noqa: PLC0415

    from gateway.serving import judge as room  # noqa: PLC0415

    running = text.read_bytes()
    if coming is None:
        said = {"why": room.note(config, running, act, orjson.loads(facts), home)}
    else:
        said = room.judge(config, running, coming.read_bytes(), home)
    click.echo(orjson.dumps(said).decode())


def with_listen(settings: Settings, host: str | None, port: int | None) -> Settings:
    """The settings with the command line's listening address."""
    listen = settings.listen
    changed = {"host": host if host is not None else listen.host, "port": port if port is not None else listen.port}
    return settings.model_copy(update={"listen": listen.model_copy(update=changed)})


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


def bundle_of(config: Path) -> Path:
    """The folder of a configuration's bundle. Raises `ValueError` where it can't be read, or there is none."""
    try:
        policy = load_settings(config).policy
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if not isinstance(policy, EmbeddedPolicySettings):
        raise ValueError("policy.engine is opa: name the bundle's folder")  # noqa: TRY004 - a value of the file
    return policy.path


def shadow_file_of(config: Path) -> Path:
    """Where a configuration's shadow keeps its disagreements. Raises `ValueError` as above."""
    try:
        shadow = load_settings(config).policy.shadow
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if shadow is None:
        raise ValueError("policy.shadow is not set: nobody looks on")
    return shadow.file


class AuditDoor:
    """The way from `--config` to the record, for the audit's commands."""

    def audit_place(self, config: Path) -> Place:
        """What `audit` of a configuration names. Raises `ValueError` where it can't be read."""
        from gateway.audit.checkpoints import SigningKey  # noqa: PLC0415
        from gateway.audit.place import Place  # noqa: PLC0415

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


def database_of(config: Path) -> str:
    """Where a configuration keeps its tickets. Raises `ValueError` where it can't be read."""
    try:
        return load_settings(config).database_url
    except ConfigError as error:
        raise ValueError(str(error)) from error


@asynccontextmanager
async def open_desk(config: Path) -> AsyncIterator[Desk]:
    """A desk on the configured store, for a local administrator; its acts are records of a writer of their own."""
    from gateway.lobbies import desk_lobby  # noqa: PLC0415
    from gateway.opening import CannotStart  # noqa: PLC0415
    from gateway.plan import make_plan  # noqa: PLC0415

    try:
        async with desk_lobby(make_plan(load_settings(config))) as desk:
            yield desk
    except (ConfigError, ValueError, CannotStart) as error:
        raise click.ClickException(str(error)) from error


@asynccontextmanager
async def open_pins(config: Path, recorded: bool) -> AsyncIterator[Acceptance]:
    """The pins beside what the configured servers offer, for a local administrator."""
    from gateway.contract.pins import PinsUnreadable  # noqa: PLC0415
    from gateway.lobbies import pin_lobby  # noqa: PLC0415
    from gateway.logs import set_up_logs  # noqa: PLC0415
    from gateway.opening import CannotStart  # noqa: PLC0415
    from gateway.plan import make_plan  # noqa: PLC0415

    set_up_logs(logging.ERROR)
    try:
        async with pin_lobby(make_plan(load_settings(config)), recorded=recorded) as acceptance:
            yield acceptance
    except PinsUnreadable:
        raise
    except (ConfigError, ValueError, CannotStart) as error:
        raise click.ClickException(str(error)) from error


@asynccontextmanager
async def open_registry(config: Path, recorded: bool) -> AsyncIterator[RegistryRoom]:
    """Published records beside live servers and the private registry, for a local administrator."""
    from gateway.lobbies import registry_lobby  # noqa: PLC0415
    from gateway.logs import set_up_logs  # noqa: PLC0415
    from gateway.opening import CannotStart  # noqa: PLC0415
    from gateway.plan import make_plan  # noqa: PLC0415

    set_up_logs(logging.ERROR)

    def unfit(stanzas: bytes) -> str:
        try:
            make_plan(load_settings(config, admitted=False, stanzas=stanzas))
        except ConfigError as error:
            return str(error)
        return ""

    try:
        plan = make_plan(load_settings(config, admitted=False))
        async with registry_lobby(plan, unfit, recorded=recorded) as room:
            yield room
    except (ConfigError, CannotStart) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main(prog_name="ostiary")
