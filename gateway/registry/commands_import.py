"""`ostiary registry import`: what the private registry lists beside what was admitted, and the admission of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gateway.contract.differences import lines, visible
from gateway.registry.admission import Look, Proposal
from gateway.registry.room import MovedOn, RegistryRoom
from gateway.registry.telling import NO, NOT_ASKED, config_option, door_of, end, json_option, run


@click.command(name="import", short_help="Show what a registry lists; admit it with --accept.")
@config_option
@click.argument("names", nargs=-1)
@click.option("--since", default="", help="Only what changed since this time (RFC 3339); what is gone is not seen.")
@click.option("--accept", "accepting", is_flag=True, help="Admit what is shown: exactly that, or nothing.")
@click.option("--seen", help="The digest that was printed for the same NAMES; else you are asked.")
@click.option("--as", "named", default="", help="The server's name in the configuration, for one NAME.")
@json_option
@click.pass_context
def import_(  # noqa: PLR0917 - one a parameter
    ctx: click.Context,
    config: Path,
    names: tuple[str, ...],
    since: str,
    accepting: bool,
    seen: str | None,
    named: str,
    as_json: bool,
) -> None:
    """Show what the registry lists of NAMES (default: of all) beside what was admitted; --accept admits it.

    Exit 1 where something that was admitted is listed otherwise now, or one of NAMES is not admitted as it is.
    """
    if accepting and not names:
        raise click.UsageError("--accept admits the NAMES that are said, never a whole registry")
    if accepting and seen is None and (as_json or not sys.stdin.isatty()):
        raise click.UsageError("--seen DIGEST (of the same command without --accept) says what is admitted")
    if named and len(names) != 1:
        raise click.UsageError("--as is for one NAME")

    async def ask() -> Look:
        async with door_of(ctx).open(config, accepting) as room:
            _can_ask(room, accepting, as_json)
            shown = await room.look(names, since)
            if (strange := sorted({*names} - {one.name for one in shown.proposals})) and not since:
                end("unknown", f"neither listed nor admitted: {strange[0]}", NOT_ASKED, as_json)
            if not accepting or not shown.open or _refused(shown):
                return shown
            if seen is None:
                click.echo("\n".join(_sheet(shown, names)))
                click.confirm("Admit this?", abort=True)
            elif seen != shown.seen:
                raise MovedOn("what is there now is not what was shown: look again")
            await room.accept(shown, named)
            return shown

    shown = run(ask, as_json)
    refused = _refused(shown)
    if accepting and not refused:
        _tell_done(shown, as_json)
        return
    click.echo(json.dumps(_document(shown), indent=2) if as_json else "\n".join(_sheet(shown, names)))
    sys.exit(NO if refused or shown.moved or (names and shown.open) else 0)


def _can_ask(room: RegistryRoom, accepting: bool, as_json: bool) -> None:
    if room.client is None:
        end("no_registry", "registry.url is not set: there is no registry to import from", NOT_ASKED, as_json)
    if accepting and room.shelf.servers is None:
        end("no_file", "registry.servers is not set: there is no file to write servers into", NOT_ASKED, as_json)


def _refused(shown: Look) -> list[Proposal]:
    """What can't be admitted: with it, nothing is."""
    return [one for one in shown.proposals if one.state == "unusable"]


def _tell_done(shown: Look, as_json: bool) -> None:
    done = [{"name": one.name, "state": one.state, "digest": one.digests[1]} for one in shown.open]
    if as_json:
        click.echo(json.dumps({"accepted": done, "seen": shown.seen}, indent=2))
        return
    for one in shown.open:
        click.echo(f"{'removed' if one.state == 'gone' else 'admitted'}: {visible(one.name)}")
    click.echo("send the gateway SIGHUP, then look at its tools: `ostiary pins show`" if done else "nothing to admit")


def _document(shown: Look) -> dict[str, Any]:
    return {"servers": [_one(proposal) for proposal in shown.proposals], "seen": shown.seen if shown.open else None}


def _one(one: Proposal) -> dict[str, Any]:
    return {
        "name": one.name,
        "state": one.state,
        "faults": list(one.faults),
        "warning": one.warning or None,
        "admitted": one.before
        and {"version": one.before.version, "status": one.before.status, "digest": one.before.digest},
        "listed": one.now
        and {"version": one.now.version, "status": one.now.status, "message": one.now.message or None},
        "differences": [{"path": found.path, "before": found.before, "after": found.after} for found in _shown(one)],
    }


def _shown(one: Proposal) -> list[Any]:
    return one.differences() if one.state in {"new", "changed", "unusable"} or one.before else []


def _sheet(shown: Look, names: tuple[str, ...]) -> Iterator[str]:
    """For a terminal: all differences of what was admitted or is named, a line for each of the others."""
    for one in shown.proposals:
        now = one.now
        version = visible(now.version) if now else "not listed"
        state = f", {now.status}" if now and now.status != "active" else ""
        yield f"{visible(one.name)} ({version}{state}): {one.state}"
        if now and now.message:
            yield f"    the registry says: {visible(now.message)}"
        if one.warning:
            yield f"    LOOK TWICE: {visible(one.warning)}"
        yield from (f"    can't be admitted: {visible(fault)}" for fault in one.faults)
        if one.state != "admitted" and (one.before or names):
            for found in _shown(one):
                yield from (f"    {line}" for line in lines(found))
    if names and shown.open and not _refused(shown):
        yield f"To admit exactly this, call the same with --accept --seen {shown.seen}"
