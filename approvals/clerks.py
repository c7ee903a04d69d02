"""Who carries a command to the desk: over the API, as whoever a token names, or to the store itself, as the
administrator of this machine.
"""

from __future__ import annotations

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

from approvals.approvers import Person, local_person
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
