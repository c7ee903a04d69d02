"""`ostiary approvals …`: the API from a shell, or the store itself for a local administrator.

Exit 0: done; 1: the answer is no; 2: it could not be asked. The token comes from `OSTIARY_TOKEN` alone, never from
the command line, and goes in clear to nobody but this machine.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from approvals.acts import ACTS, METHODS
from approvals.ahead import read_file, wait_for, what_next
from approvals.clerks import NO, NOT_ASKED, Answered, ApiClerk, Clerk, LocalClerk, LocalDoor
from approvals.printing import as_json, line, paragraph, plain, sheet
from approvals.ticket import State, StoreUnavailable


@dataclass(frozen=True, slots=True)
class Asking:
    """How a command asks and prints."""

    clerk: Clerk
    json: bool

    def run(self, asking: Coroutine[Any, Any, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Ask; end the program with 1 or 2 where there is no good answer."""
        return _run(asking, as_json_=self.json)

    def print(self, ticket: Mapping[str, Any]) -> None:
        """One ticket."""
        click.echo(as_json(ticket) if self.json else sheet(ticket))


def _run(asking: Coroutine[Any, Any, Mapping[str, Any]], *, as_json_: bool) -> Mapping[str, Any]:
    try:
        return asyncio.run(asking)
    except Answered as fault:
        told = as_json(fault.shown()) if as_json_ else paragraph(": ".join(fault.shown().values()))
        click.echo(told, err=not as_json_)
        raise SystemExit(fault.code) from fault


def _asking(command: Callable[..., None]) -> Callable[..., None]:
    @click.option("--url", help="The gateway's public URL; the token is taken from OSTIARY_TOKEN.")
    @click.option(
        "--config", type=click.Path(path_type=Path), help="Work on the configured store, as local:UID@HOST."
    )
    @click.option("--json", "json_", is_flag=True, help="Print JSON.")
    @click.pass_context
    def wrapped(ctx: click.Context, /, url: str | None, config: Path | None, json_: bool, **more: Any) -> None:
        if (url is None) == (config is None):
            raise click.UsageError("give either --url or --config")
        if url is not None:
            token = os.environ.get("OSTIARY_TOKEN", "").strip()
            if not token:
                raise click.UsageError("OSTIARY_TOKEN is not set")
            clerk: Clerk = ApiClerk(url, token)
        else:
            door = ctx.find_object(LocalDoor)
            if door is None or config is None:
                raise click.UsageError("--config is not available here")
            clerk = LocalClerk(door, config)
        command(Asking(clerk, json_), **more)

    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__click_params__ = [  # type: ignore[attr-defined]
        *getattr(command, "__click_params__", []), *getattr(wrapped, "__click_params__", [])
    ]  # fmt: skip
    return wrapped


@click.group()
def approvals() -> None:
    """Look at tickets and decide them."""


@approvals.command("list")
@_asking
@click.option("--state", type=click.Choice([state.value for state in State]), help="Only tickets in this state.")
@click.option("--cursor", help="Where the last page ended.")
@click.option("--limit", type=click.IntRange(1, 100), default=50, show_default=True)
def list_(asking: Asking, state: str | None, cursor: str | None, limit: int) -> None:
    """List the tickets that you asked for or may decide."""
    found = asking.run(asking.clerk.page(state, cursor, limit))
    if asking.json:
        click.echo(as_json(found))
        return
    for ticket in found["tickets"]:
        click.echo(line(ticket))
    if found["next"]:
        click.echo(f"more: --cursor {plain(found['next'])}", err=True)


@approvals.command("show")
@_asking
@click.argument("ticket_id")
def show(asking: Asking, ticket_id: str) -> None:
    """Show a ticket."""
    asking.print(asking.run(asking.clerk.show(ticket_id)))


@approvals.command("request", short_help="Ask for an approval ahead of the call.")
@_asking
@click.option("--server", required=True)
@click.option("--tool", help="A tool's name (tools/call).")
@click.option("--method", type=click.Choice(METHODS), default="tools/call", show_default=True)
@click.option("--name", help="A prompt's name or a resource's URI.")
@click.option("--arguments", type=click.File("rb"), help="A file with the arguments as one JSON object; - for stdin.")
@click.option("--vary", type=click.File("rb"), help="In their place a JSON Schema that arguments fit: a grant.")
@click.option("--justification", default="")
@click.option("--wait", is_flag=True, help="Until somebody decided; exit 1 unless it was approved.")
def request(
    asking: Asking,
    *,
    server: str,
    tool: str | None,
    method: str,
    name: str | None,
    arguments: Any,
    vary: Any,
    justification: str,
    wait: bool,
) -> None:
    """Ask for an approval ahead of the call: of exactly these arguments, or (--vary) of all that fit a schema."""
    if (tool is None) == (name is None):
        raise click.UsageError("give either --tool or --name")
    if vary is not None and (arguments is not None or method != "tools/call"):
        raise click.UsageError("--vary stands in the place of --arguments, and is for tools")
    try:
        given, schema = read_file(arguments, "--arguments"), read_file(vary, "--vary")
    except ValueError as fault:
        raise click.UsageError(str(fault)) from fault
    body = {
        "server": server,
        "method": method,
        "name": tool or name,
        "arguments": given or {},
        "justification": justification,
        **({} if schema is None else {"vary": schema}),
    }
    ticket = asking.run(asking.clerk.request(body))
    if wait and ticket["state"] == "pending":
        click.echo(what_next(ticket), err=True)
        ticket = asking.run(wait_for(ticket, asking.clerk.show))
    asking.print(ticket)
    if not asking.json:
        click.echo(what_next(ticket))
    if wait and ticket["state"] != "approved":
        raise SystemExit(NO)


@approvals.command("migrate", short_help="Bring the database to this version's revision.")
@click.option("--config", type=click.Path(path_type=Path), required=True, help="Whose database it is.")
@click.option("--check", is_flag=True, help="Only say whether there is something to migrate; exit 1 if so.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
@click.pass_context
def migrate(ctx: click.Context, config: Path, check: bool, json_: bool) -> None:
    """Bring the database of tickets to the revision that this ostiary uses."""
    door = ctx.find_object(LocalDoor)
    if door is None or door.database is None:
        raise click.UsageError("--config is not available here")
    told = _run(_migrate(door.database, config, check), as_json_=json_)
    click.echo(as_json(told) if json_ else paragraph(MIGRATED[told["state"]].format(**told)))
    raise SystemExit(NO if told["state"] == "behind" else 0)


MIGRATED: Mapping[str, str] = {
    "current": "the database has revision {newest}: nothing to do",
    "migrated": "the database was brought from {revision} to {newest}",
    "behind": "the database has revision {revision}, this ostiary uses {newest}",
}


async def _migrate(database: Callable[[Path], str], config: Path, check: bool) -> Mapping[str, Any]:
    from approvals.database import migrate as bring_up  # noqa: PLC0415
    from approvals.revisions import RevisionRefused, newest  # noqa: PLC0415 - most commands need no driver

    try:
        before = await bring_up(database(config), check=check)
    except RevisionRefused as fault:
        raise Answered(str(fault), NO) from fault
    except (StoreUnavailable, ValueError) as fault:
        raise Answered(str(fault), NOT_ASKED) from fault
    state = "current" if before.is_newest else "behind" if check else "migrated"
    return {"state": state, "revision": before.revision or "none", "newest": newest()}


def _verb(verb: str, help_: str) -> None:
    @approvals.command(verb, help=help_)
    @_asking
    @click.argument("ticket_id")
    @click.option("--comment", default="", help="What to write down with it.")
    @click.option(
        "--seen", default="", help="The digest that `show` printed: fails if the ticket has moved on since."
    )
    def command(asking: Asking, ticket_id: str, comment: str, seen: str) -> None:
        asking.print(asking.run(asking.clerk.act(verb, ticket_id, comment, seen)))


HELP: Mapping[str, str] = {
    "approve": "Approve a ticket.",
    "deny": "Deny a ticket; the same call is refused until it expires.",
    "revoke": "Take an approval back.",
    "withdraw": "Withdraw a ticket that you asked for, and give up its call.",
    "resolve": "Set a use of unknown outcome aside, with a note (--comment).",
    "justify": "Say more about why you ask (--comment), while the ticket waits.",
}

for _name in ACTS:
    _verb(_name, HELP[_name])
