"""What the registry's commands share: their options, the way into the house, and how they end.

Exit codes: 0 all is in order (or was done), 1 it is not, 2 it could not be asked.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import click

from gateway.audit.port import AuditUnavailable
from gateway.contract.differences import visible
from gateway.registry.asking import RegistryFault
from gateway.registry.flaws import Flaw, usable
from gateway.registry.lock import LockUnreadable
from gateway.registry.namespaces import NoPublisher
from gateway.registry.record import LARGEST
from gateway.registry.room import MovedOn, RegistryDoor, Unfit
from gateway.registry.validation import validate as find_flaws

NO: Final = 1
NOT_ASKED: Final = 2

Told = TypeVar("Told")

config_option = click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The gateway's configuration."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
publisher_option = click.option(
    "--publisher", default="", help="Whose namespace it has to be: a domain that was verified, or github:LOGIN."
)
private_option = click.option(
    "--private", is_flag=True, help="For a private registry: addresses of a private network are all right."
)


def read_file(file: Path, as_json: bool) -> bytes:
    """A record's text, one byte more than a record may have at most; or exit 2."""
    try:
        with file.open("rb") as stream:
            return stream.read(LARGEST + 1)
    except OSError as error:
        end("unreadable", f"{file}: {error.strerror}", NOT_ASKED, as_json)


def flaws_of(text: bytes, publisher: str, as_json: bool, *, private: bool, exact: bool = False) -> list[Flaw]:
    """What is wrong with it; or exit 2 for a publisher that is none."""
    try:
        return find_flaws(text, publisher, private=private, exact=exact)
    except NoPublisher as error:
        end("publisher", f"--publisher: {error}", NOT_ASKED, as_json)


def flaw_lines(file: Path, flaws: list[Flaw]) -> Iterator[str]:
    """Flaws for a terminal."""
    for one in flaws:
        kind = "note" if one.note else "FAIL"
        yield f"{kind} {file}: {visible(one.pointer) or '/'}: {visible(one.what)} [{one.rule}] -> {one.mend}"
    if usable(flaws):
        yield f"ok   {file}"


def door_of(ctx: click.Context) -> RegistryDoor:
    """The way into the house."""
    door = ctx.find_object(RegistryDoor)
    if door is None:
        raise click.UsageError("--config is not available here")
    return door


def run(ask: Callable[[], Awaitable[Told]], as_json: bool) -> Told:
    """Ask; end the program with 1 or 2 where there is no good answer."""

    async def asked() -> Told:
        return await ask()

    try:
        return asyncio.run(asked())
    except MovedOn as error:
        end("moved_on", str(error), NO, as_json)
    except Unfit as error:
        end("unfit", f"nothing was admitted, for the configuration would not be read any more: {error}", NO, as_json)
    except RegistryFault as error:
        end("registry", f"the registry {error}", NOT_ASKED, as_json)
    except LockUnreadable as error:
        end("lock_unreadable", f"registry.lock: {error}", NOT_ASKED, as_json)
    except BlockingIOError:
        end("busy", "registry.lock: somebody else accepts at this moment", NOT_ASKED, as_json)
    except OSError as error:
        end("unavailable", str(error), NOT_ASKED, as_json)
    except AuditUnavailable as error:
        end("audit_unavailable", f"nothing was accepted: {error}", NOT_ASKED, as_json)
    except click.ClickException as error:
        end("not_opened", error.message, NOT_ASKED, as_json)


def end(name: str, message: str, code: int, as_json: bool) -> NoReturn:
    """Say why there is no good answer, and exit. The name is for programs, the message for people."""
    told = json.dumps({"error": name, "message": message}, indent=2) if as_json else visible(message)
    click.echo(told, err=not as_json)
    sys.exit(code)
