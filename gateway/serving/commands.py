"""`ostiary serve`, and the processes that it starts: the supervisor's and the workers' own commands, and the judge's.

What a process loads it loads itself, here, so that none of them pays for what another one needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.options import config_option, fail
from gateway.serving.plain import load_plain
from gateway.serving.understudy import AHEAD, Understudy

if TYPE_CHECKING:
    from gateway.config import Settings
    from gateway.serving.supervisor import Posts


@click.command()
@config_option
@click.option("--host", default=None, help="Overrides listen.host.")
@click.option("--port", type=click.IntRange(0, 65535), default=None, help="Overrides listen.port.")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--watch", is_flag=True, help="Reload the configuration when the file changes, as SIGHUP does.")
def serve(*, config: Path, host: str | None, port: int | None, workers: int, watch: bool) -> None:
    """Serve: one supervisor and N worker processes. SIGHUP reloads the configuration."""
    from gateway.config import ConfigError  # noqa: PLC0415 - loaded by then; this process has had no use for it yet
    from gateway.serving.listener import CannotServe  # noqa: PLC0415

    gc.disable()  # what is loaded stays: there is nothing to collect in it
    try:
        code = asyncio.run(_supervise(config, host, port, workers, watch))
    except ConfigError as error:
        fail(error)
    except CannotServe as error:
        fail(f"{config}: {error}")
    sys.exit(code)


async def _supervise(config: Path, host: str | None, port: int | None, workers: int, watch: bool) -> int:
    """Serve until told to stop -> exit code. Raises `ConfigError` and `CannotServe`."""
    # They load what they serve with while the configuration is judged here: neither waits for the other.
    understudies: list[Understudy] = []
    try:
        with contextlib.suppress(OSError):  # workers start without them as well, and what is short is told then
            for _ in range(workers):
                understudies.append(await Understudy.call())
        posts = _read_posts(config, host, port, workers, watch)
        gc.freeze()
        gc.enable()
        from gateway.serving.supervisor import Supervisor, stay_asked  # noqa: PLC0415 - the other commands need none

        code = await Supervisor(posts, understudies).run()
        stay_asked()
        return code
    finally:
        for one in understudies:  # who plays is not among them any more
            await one.dismiss()


def _read_posts(config: Path, host: str | None, port: int | None, workers: int, watch: bool) -> Posts:
    """What the supervisor has to know of a configuration. Raises `ConfigError`; opens nothing."""
    load_plain("gateway.logs")
    from gateway.config import ConfigError  # noqa: PLC0415
    from gateway.config_file import load_settings  # noqa: PLC0415 - while the understudies load
    from gateway.logs import set_up_logs  # noqa: PLC0415
    from gateway.serving.configuration import Configuration  # noqa: PLC0415
    from gateway.serving.supervisor import Posts, command_of  # noqa: PLC0415

    try:
        text = config.read_bytes()
    except OSError as error:
        raise ConfigError(f"{config}: {error.strerror}") from error
    settings = with_listen(load_settings(config, text), host, port)
    set_up_logs()
    # Not resolved: a mounted ConfigMap's name is a link, and what it leads to goes with the next version.
    file, home, limits = config.absolute(), ("--home", str(config.resolve().parent)), settings.limits
    return Posts(
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


home_option = click.option("--home", type=click.Path(file_okay=False, path_type=Path), required=True)


@click.command(hidden=True)
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
    load_plain(*AHEAD)  # who was an understudy has
    from gateway.config import ConfigError  # noqa: PLC0415
    from gateway.config_file import read_settings  # noqa: PLC0415 - the other commands need none of this
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
        settings, texts = read_settings(config, text.read_bytes(), home=home)
        house = build(with_listen(settings, host, port), workers=workers, texts=texts)
    except (ConfigError, ValueError) as error:
        pipe.say(Resigned(str(error)))
        sys.exit(CANNOT_START)
    try:
        uvloop.run(work(house, fd, pipe))
    except CannotStart as error:
        pipe.say(Resigned(str(error)))
        sys.exit(CANNOT_START)


@click.command(hidden=True)
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
