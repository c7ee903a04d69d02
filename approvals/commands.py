"""`ostiary approvals …`: the API from a shell, or the store itself for a local administrator.

Exit 0: done; 1: the answer is no; 2: it could not be asked. The token comes from `OSTIARY_TOKEN` alone, never from
the command line, and goes in clear to nobody but this machine.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import click
import httpx
import orjson

from approvals.acts import ACTS, METHODS
from approvals.ahead import read_file, wait_for, what_next
from approvals.approvers import Person, local_person
from approvals.printing import as_json, line, paragraph, plain, sheet
from approvals.ticket import ActInvalid, MovedOn, NotAllowed, State, StoreUnavailable, TicketUnknown

if TYPE_CHECKING:
    from approvals.desk import Desk

TIMEOUT_S = 10.0
NO = 1
NOT_ASKED = 2
LOCAL_WORDS: Mapping[str, str] = {
    "not_locally": "approving from this machine needs approvals.local_approve; whoever asks, withdraws or resolves "
    "needs a token (--url)",
}
"""What `--config` answers, in words. The API brings its own."""


def _administrator() -> Person:
    return local_person(os.getuid(), socket.gethostname())


@dataclass(frozen=True, slots=True)
class LocalDoor:
    """How the house lets a local administrator in: it puts one of these into the command's context (`ctx.obj`).

    `open(config_file)` yields a desk on the configured store whose acts are recorded; `database(config_file)` is the
    store's URL.
    """

    open: Callable[[Path], AbstractAsyncContextManager[Desk]]
    person: Person = field(default_factory=_administrator)
    database: Callable[[Path], str] | None = None


class Answered(Exception):  # noqa: N818 - it was asked, and this is the answer
    """The answer is no, or there is none: a stable name, an exit code, and a sentence where there is one."""

    def __init__(self, name: str, code: int, message: str = "") -> None:
        super().__init__(name)
        self.name = name
        self.code = code
        self.message = message

    def shown(self) -> dict[str, str]:
        """What `--json` prints."""
        return {"error": self.name} | ({"message": self.message} if self.message else {})


class Clerk(Protocol):
    """Whoever carries a command to the desk. All raise `Answered`."""

    async def page(self, state: str | None, cursor: str | None, limit: int) -> Mapping[str, Any]:
        """`{tickets, next}`."""
        ...

    async def show(self, ticket_id: str) -> Mapping[str, Any]:
        """A ticket."""
        ...

    async def request(self, body: Mapping[str, Any], /) -> Mapping[str, Any]:
        """A ticket, asked for ahead of the call."""
        ...

    async def act(self, verb: str, ticket_id: str, comment: str, seen: str) -> Mapping[str, Any]:
        """The ticket after the act."""
        ...


class ApiClerk:
    """Over HTTP, as whoever the token names."""

    def __init__(self, url: str, token: str) -> None:
        try:
            parts, _ = httpx.URL(url), urlsplit(url).port
        except (httpx.InvalidURL, ValueError) as error:
            raise click.UsageError(f"--url is no URL: {error}") from error
        loopback = parts.host in ("127.0.0.1", "::1", "localhost")
        if parts.scheme != "https" and not (parts.scheme == "http" and loopback):
            raise click.UsageError("--url must be https (or http on this machine): a token would travel in clear")
        # Proxies and authorities of the environment are for https: in clear, a proxy would read the token.
        self._options: dict[str, Any] = {"timeout": TIMEOUT_S, "trust_env": parts.scheme == "https"}
        self._url = url.rstrip("/").removesuffix("/approvals") + "/approvals"
        self._headers = {"authorization": f"Bearer {token}", "accept": "application/json"}

    async def page(self, state: str | None, cursor: str | None, limit: int) -> Mapping[str, Any]:
        """`GET /approvals`."""
        given = {"state": state, "cursor": cursor, "limit": str(limit)}
        return await self._ask("GET", "", params={name: one for name, one in given.items() if one is not None})

    async def show(self, ticket_id: str) -> Mapping[str, Any]:
        """`GET /approvals/{id}`."""
        return await self._ask("GET", f"/{_segment(ticket_id)}")

    async def request(self, body: Mapping[str, Any], /) -> Mapping[str, Any]:
        """`POST /approvals`."""
        return await self._ask("POST", "", json=body)

    async def act(self, verb: str, ticket_id: str, comment: str, seen: str) -> Mapping[str, Any]:
        """`POST /approvals/{id}/{verb}`."""
        return await self._ask("POST", f"/{_segment(ticket_id)}/{verb}", json={"comment": comment, "seen": seen})

    async def _ask(self, method: str, path: str, **more: Any) -> Mapping[str, Any]:
        try:
            async with httpx.AsyncClient(headers=self._headers, **self._options) as client:
                reply = await client.request(method, self._url + path, **more)
            answer = orjson.loads(reply.content)
        except (httpx.HTTPError, orjson.JSONDecodeError) as fault:
            raise Answered(f"no answer from {self._url}: {fault}", NOT_ASKED) from fault
        if not isinstance(answer, dict):
            raise Answered("no answer that could be read", NOT_ASKED)
        if reply.is_success:
            return answer
        name, message = _words(answer, reply)
        if reply.status_code == httpx.codes.UNAUTHORIZED:
            message = f"{message} OSTIARY_TOKEN has to be a token for {self._url}.".lstrip()
        asked = reply.status_code in (403, 404, 409, 422, 429)
        raise Answered(name, NO if asked else NOT_ASKED, message)


def _words(answer: Mapping[str, Any], reply: httpx.Response) -> tuple[str, str]:
    """(name, sentence) of a refusal: the API's own words, or those of the door in front of it (a JSON-RPC error)."""
    error, message = answer.get("error", reply.status_code), str(answer.get("message", ""))
    if isinstance(error, dict):
        data = error.get("data")
        decision = data.get("decisionId") if isinstance(data, dict) else None
        return str(error.get("code")), f"{error.get('message')}" + (f" (decision {decision})" if decision else "")
    if error == "insufficient_scope":
        needed = re.search(r'\bscope="([^"]*)"', reply.headers.get("www-authenticate", ""))
        message += f" Needed: {needed[1]}" if needed else ""
    return f"{error}: {answer['why']}" if answer.get("why") else str(error), message


class LocalClerk:
    """On the store itself, as the administrator at this machine."""

    def __init__(self, door: LocalDoor, config: Path) -> None:
        self._door = door
        self._config = config

    async def page(self, state: str | None, cursor: str | None, limit: int) -> Mapping[str, Any]:
        """All tickets."""

        async def ask(desk: Desk) -> Mapping[str, Any]:
            wanted = None if state is None else State(state)
            found, following = await desk.page(self._door.person, state=wanted, cursor=cursor, limit=limit)
            return {"tickets": found, "next": following}

        return await self._ask(ask)

    async def show(self, ticket_id: str) -> Mapping[str, Any]:
        """Any ticket."""
        return await self._ask(lambda desk: desk.show(self._door.person, ticket_id))

    async def request(self, _body: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Not from here: only whoever will call can ask."""
        raise Answered("not_locally", NO, LOCAL_WORDS["not_locally"])

    async def act(self, verb: str, ticket_id: str, comment: str, seen: str) -> Mapping[str, Any]:
        """Deny, revoke, and approve where the configuration allows it."""
        return await self._ask(
            lambda desk: desk.act(verb, self._door.person, ticket_id, comment=comment, seen=seen)
        )  # fmt: skip

    async def _ask(self, ask: Callable[[Desk], Coroutine[Any, Any, Mapping[str, Any]]]) -> Mapping[str, Any]:
        try:
            async with self._door.open(self._config) as desk:
                return await ask(desk)
        except TicketUnknown as fault:
            raise Answered("not_found", NO) from fault
        except (NotAllowed, MovedOn) as fault:
            raise Answered(fault.why, NO, LOCAL_WORDS.get(fault.why, "")) from fault
        except click.ClickException as fault:
            raise Answered(fault.message, NOT_ASKED) from fault
        except (ActInvalid, StoreUnavailable) as fault:
            raise Answered(str(fault), NOT_ASKED) from fault
        except Exception as fault:  # whatever the house raises: its configuration, its record
            raise Answered(f"{type(fault).__name__}: {fault}", NOT_ASKED) from fault


def _segment(ticket_id: str) -> str:
    if not ticket_id.isascii() or not ticket_id.replace("-", "").replace("_", "").isalnum():
        raise Answered("not_found", NO)
    return ticket_id


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
