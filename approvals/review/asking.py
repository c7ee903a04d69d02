"""Asking before calling: a server, one of its tools that the person may call, its arguments, and why.

What is typed is planned by the house exactly as the call would be judged; the ticket is then found by the very call,
if the program that the page names makes it. Nothing is consumed and nothing is forwarded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response

from approvals.acts import REQUEST
from approvals.approvers import Person
from approvals.counter import MOST_CHARACTERS, require
from approvals.review import look
from approvals.review.api import Planned
from approvals.review.body import BodyRefused
from approvals.review.fields import WHOLE, Field, FieldInvalid, arguments_in, arguments_of, fields_of
from approvals.review.forms import field, only_fields
from approvals.review.pages import HOME, TICKETS, Handler, Room, frame
from approvals.review.sentences import MOVED
from approvals.review.visitors import Visit
from approvals.sieve import Sieve, Whose
from approvals.ticket import ActInvalid, MovedOn, TicketUnknown, Unapprovable

ASK_BYTES = 1024 * 1024
MOST_TOOLS = 200
MOST_CLIENT = 256
TOOL_CALL = "tools/call"
NOT_NEEDED = "This call needs no approval, or nobody could give one under the policy's terms."


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool that a person may call, as its server lists it."""

    name: str
    title: str
    description: str
    schema: Any


class Offers(Protocol):
    """What the house knows of servers and tools, for one person. Raises the house's own words."""

    def servers(self, person: Person) -> Sequence[tuple[str, str]]:
        """(name, environment) of the servers that take this person's issuer."""
        ...

    async def tools(self, person: Person, server: str) -> Sequence[Offer]:
        """The tools that this person may call there, in the server's order."""
        ...

    async def plan(
        self, person: Person, server: str, method: str, name: str, arguments: Mapping[str, Any]
    ) -> Planned:
        """The effect of the call, the policy's terms, its reasons and its mask."""
        ...


@dataclass(frozen=True, slots=True)
class Told:
    """What the house says of its own refusal: status, a sentence for people, and headers (its record's id, say)."""

    status: int
    sentence: str
    headers: Mapping[str, str]


Explain = Callable[[Request, Exception], Awaitable[Told]]
"""The house's own exception -> what a person is told of it. Writes its record."""


@dataclass(frozen=True, slots=True)
class Filled:
    """What stands in the form, and what is wrong with it."""

    client: str
    typed: Mapping[str, str]
    justification: str = ""
    fault: str = ""
    status: int = 200
    headers: Mapping[str, str] | None = None


class Asking:
    """The handlers of `/review/request`."""

    def __init__(
        self, room: Room, offers: Offers, house: tuple[type[Exception], ...], explain: Explain | None
    ) -> None:
        self._room = room
        self._offers = offers
        self._house = house
        self._explain = explain

    def table(self) -> list[tuple[str, str, Handler]]:
        """(method, path, handler) of each page."""
        return [("GET", f"{HOME}/request", self.choose), ("POST", f"{HOME}/request", self.ask)]

    async def choose(self, request: Request) -> Response:
        """The servers; the tools of one; the form of one."""
        visit = await self._room.receive(request)
        require(visit.person, REQUEST)
        given = request.query_params
        known = {"server", "tool", "as", "find"}
        if len(given) != len(given.multi_items()) or not set(given) <= known:
            raise ActInvalid("query_invalid")
        if not given.get("server"):
            servers = self._offers.servers(visit.person)
            return look.page(look.render("servers", servers=servers, **frame(visit, "request")))
        tools = await self._offers.tools(visit.person, given["server"])
        if not given.get("tool"):
            sought = given.get("find", "")[:200].casefold()
            found = [one for one in tools if sought in f"{one.name} {one.title}".casefold()]
            html = look.render(
                "tools", server=given["server"], tools=found[:MOST_TOOLS], total=len(tools), found=len(found),
                find=given.get("find", "")[:200], **frame(visit, "request"),
            )  # fmt: skip
            return look.page(html)
        offer = _named(tools, given["tool"])
        filled = Filled(await self._program_of(visit.person), {})
        return self._form(visit, given["server"], offer, given.get("as") == "json", filled)

    async def _program_of(self, person: Person) -> str:
        """The program that called for this person last, as far as one was held: seldom is it that of the pages."""
        lines, _ = await self._room.desk.queue(person, Sieve(whose=Whose.OWN), limit=1)
        return lines[0]["requester"]["client"] if lines else ""

    def _form(self, visit: Visit, server: str, offer: Offer, as_json: bool, filled: Filled) -> Response:
        fields = fields_of(offer.schema)
        html = look.render(
            "request", server=server, offer=offer, fields=None if as_json else fields,
            can_be_fields=fields is not None, schema=_pretty(offer.schema), filled=filled,
            most=MOST_CHARACTERS, whole=WHOLE, **frame(visit, "request"),
        )  # fmt: skip
        return look.page(html, filled.status, filled.headers)

    async def ask(self, request: Request) -> Response:
        """Open the ticket, or show the form again with what is wrong."""
        visit, typed = await self._room.receive_form(request, ASK_BYTES)
        require(visit.person, REQUEST)
        server, name = field(typed, "server", 256), field(typed, "tool", 8192)
        offer = _named(await self._offers.tools(visit.person, server), name)
        fields = None if WHOLE in typed else fields_of(offer.schema)
        keys = (WHOLE,) if fields is None else tuple(one.key for one in fields)
        only_fields(typed, "server", "tool", "client", "justification", *keys)
        client = field(typed, "client", MOST_CLIENT).strip()
        if not client.isprintable():
            raise BodyRefused(400, "client_invalid")
        justification = field(typed, "justification", MOST_CHARACTERS).strip()
        filled = Filled(client, typed, justification)
        try:
            if not client:
                raise FieldInvalid("the program that will make the call: this has to be given")
            arguments = _arguments(fields, typed)
            # The call will come from the program that is named here, and is another effect from any other.
            person = replace(visit.person, client=client)
            effect, terms, reasons, mask = await self._offers.plan(person, server, TOOL_CALL, name, arguments)
            ticket, _ = await self._room.desk.request(
                person, effect, terms, reasons=reasons, mask=mask, justification=justification
            )
        except FieldInvalid as fault:
            filled = replace(filled, fault=str(fault), status=422)
        except (MovedOn, Unapprovable) as fault:
            said = MOVED.get(fault.why, "") if isinstance(fault, MovedOn) else NOT_NEEDED
            request.state.page = self._form(visit, server, offer, fields is None, replace(filled, fault=said))
            raise
        except self._house as fault:
            if self._explain is None:
                raise
            told = await self._explain(request, fault)
            filled = replace(filled, fault=told.sentence, status=told.status, headers=told.headers)
        else:
            return look.see_other(f"{TICKETS}/{ticket['id']}")
        return self._form(visit, server, offer, fields is None, filled)


def _named(tools: Sequence[Offer], name: str) -> Offer:
    for one in tools:
        if one.name == name:
            return one
    raise TicketUnknown


def _arguments(fields: tuple[Field, ...] | None, typed: Mapping[str, str]) -> dict[str, Any]:
    return arguments_in(typed.get(WHOLE, "")) if fields is None else arguments_of(fields, typed)


def _pretty(schema: Any) -> str:
    return orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode()
