"""`ostiary pins show | accept`: a person looks at what changed in servers' definitions, and answers for it.

Exit codes: 0 all is as accepted (or was accepted), 1 it is not (or it moved on since it was shown), 2 it could not be
asked. What a server says of its tools is hostile: it is printed with nothing hidden, and nothing is cut.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from gateway.audit.port import AuditUnavailable
from gateway.contract.differences import differences, lines, visible
from gateway.contract.pins import Deviation, PinsUnreadable
from gateway.pins.acceptance import Acceptance, Look, MovedOn, Shelf, Unknown

NO: Final = 1
NOT_ASKED: Final = 2


@dataclass(frozen=True, slots=True)
class PinDoor:
    """How the house lets a local administrator in (`ctx.obj`): `open(config_file, recorded)`.

    It raises `ClickException` where the configuration or the record can't be opened.
    """

    open: Callable[[Path, bool], AbstractAsyncContextManager[Acceptance]]


@click.group()
def pins() -> None:
    """Look at changed definitions of tools, and accept them."""


_config = click.option(
    "--config", type=click.Path(path_type=Path), required=True, help="The gateway's configuration."
)
_server = click.option(
    "--server", "servers", multiple=True, help="Only this server. Default: all that are not `pins: off`."
)
_tools = click.argument("tools", nargs=-1)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@pins.command(short_help="Show definitions that are not as accepted.")
@_config
@_server
@_tools
@_json
@click.pass_context
def show(ctx: click.Context, config: Path, servers: tuple[str, ...], tools: tuple[str, ...], as_json: bool) -> None:
    """Show every tool whose definition is not as accepted, and what is different about it."""

    async def ask() -> Look:
        async with _door(ctx).open(config, False) as acceptance:
            return await acceptance.look(servers, tools)

    look = _run(ask, as_json)
    click.echo(_document(look) if as_json else "\n".join(_sheet(look)))
    if not look.complete:
        sys.exit(NOT_ASKED)
    sys.exit(NO if look.found else 0)


@pins.command()
@_config
@_server
@_tools
@click.option("--seen", help="The digest that `show` printed for the same servers and tools; else you are asked.")
@_json
@click.pass_context
def accept(  # noqa: PLR0917 - one a parameter
    ctx: click.Context,
    config: Path,
    servers: tuple[str, ...],
    tools: tuple[str, ...],
    seen: str | None,
    as_json: bool,
) -> None:
    """Accept what `show` shows: exactly that, or nothing."""
    if seen is None and (as_json or not at_terminal()):
        raise click.UsageError("--seen DIGEST (of `pins show`) says what is accepted")

    async def ask() -> Look:
        async with _door(ctx).open(config, True) as acceptance:
            look = await acceptance.look(servers, tools)
            if not look.complete or not look.found:
                return look
            if seen is None:
                click.echo("\n".join(_sheet(look)))
                click.confirm("Accept this?", abort=True)
            elif seen != look.seen:
                raise MovedOn("what is there now is not what was shown: look again")
            await acceptance.accept(look, f"local:{os.getuid()}@{socket.gethostname()}")
            return look

    look = _run(ask, as_json)
    if not look.complete:
        click.echo(_document(look) if as_json else "\n".join(_sheet(look)))
        sys.exit(NOT_ASKED)
    done = [
        {"server": one.server, "tool": one.tool, "state": one.state, "digest": one.digests[1]} for one in look.found
    ]
    if as_json:
        click.echo(json.dumps({"accepted": done, "seen": look.seen}, indent=2))
        return
    for one in look.found:
        click.echo(f"accepted: {one.server} {one.state} {visible(one.tool)}")
    if not done:
        click.echo("nothing to accept")


def at_terminal() -> bool:
    """Whether somebody is there to be asked."""
    return sys.stdin.isatty()


def _door(ctx: click.Context) -> PinDoor:
    door = ctx.find_object(PinDoor)
    if door is None:
        raise click.UsageError("--config is not available here")
    return door


def _run(ask: Callable[[], Any], as_json: bool) -> Look:
    """Ask; end the program with 1 or 2 where there is no good answer."""
    try:
        look: Look = asyncio.run(ask())
    except MovedOn as error:
        _end("moved_on", str(error), NO, as_json)
    except Unknown as error:
        _end("unknown", str(error), NOT_ASKED, as_json)
    except PinsUnreadable as error:
        _end("pins_unreadable", f"pins.file: {error}", NOT_ASKED, as_json)
    except BlockingIOError:
        _end("busy", "pins.file: somebody else accepts at this moment", NOT_ASKED, as_json)
    except OSError as error:
        _end("pins_unavailable", f"pins.file: {error}", NOT_ASKED, as_json)
    except AuditUnavailable as error:
        _end("audit_unavailable", f"nothing was accepted: {error}", NOT_ASKED, as_json)
    except click.ClickException as error:
        _end("not_opened", error.message, NOT_ASKED, as_json)
    return look


def _end(name: str, message: str, code: int, as_json: bool) -> NoReturn:
    told = json.dumps({"error": name, "message": message}, indent=2) if as_json else visible(message)
    click.echo(told, err=not as_json)
    sys.exit(code)


def _document(look: Look) -> str:
    """The look as JSON in ASCII alone."""
    return json.dumps(
        {"servers": [_shelf(shelf) for shelf in look.shelves], "seen": look.seen if look.complete else None}, indent=2
    )


def _shelf(shelf: Shelf) -> dict[str, Any]:
    return {
        "server": shelf.server,
        "mode": shelf.mode,
        "fault": shelf.fault or None,
        "as_accepted": shelf.kept,
        "tools": [_tool(one) for one in shelf.found],
    }


def _tool(one: Deviation) -> dict[str, Any]:
    before, now = one.before, one.now
    return {
        "tool": one.tool,
        "state": one.state,
        "accepted": before and {"digest": before.digest, "by": before.accepted_by, "at": before.accepted_at},
        "offered": now and {"digest": now.digest},
        "differences": [
            {"path": found.path, "before": found.before, "after": found.after} for found in _differences(one)
        ],
    }


def _differences(one: Deviation) -> list[Any]:
    """Of what changed, its places; of what is new, all its members; of what is gone, nothing: it was seen once."""
    if one.now is None:
        return []
    return differences(one.before.definition if one.before else {}, one.now.definition)


def _sheet(look: Look) -> Iterator[str]:
    """The look for a terminal."""
    for shelf in look.shelves:
        if shelf.fault:
            yield f"{shelf.server} (pins: {shelf.mode}): could not be asked: {visible(shelf.fault)}"
            continue
        yield f"{shelf.server} (pins: {shelf.mode}): {shelf.kept} as accepted, {len(shelf.found)} not"
        for one in shelf.found:
            yield ""
            yield f"  {one.state}: {visible(one.tool)}"
            if one.before is not None:
                pin = one.before
                yield f"    accepted {pin.digest} by {visible(pin.accepted_by)} at {visible(pin.accepted_at)}"
            if one.now is not None:
                yield f"    offered  {one.now.digest}"
            for found in _differences(one):
                yield from (f"    {line}" for line in lines(found))
    if look.found and look.complete:
        yield ""
        yield f"To accept exactly this, call `pins accept` with the same words and --seen {look.seen}"
