"""The reviewer's pages: what waits for a decision, one's own requests, a ticket, and the acts upon it.

Who somebody is comes from the visitors' port, what they may do from the desk; here is only what is shown and what a
form sends. Every act carries the session's key and the digest of what its page showed, and ends in a redirect.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from starlette.requests import Request
from starlette.responses import Response

from approvals.counter import MOST_CHARACTERS
from approvals.desk import Desk
from approvals.review import look
from approvals.review.body import BodyRefused
from approvals.review.faces import face, since
from approvals.review.forms import check_key, check_origin, field, only_fields, read_form
from approvals.review.sentences import DONE, MEANINGS, MOVED, STATES
from approvals.review.visitors import RECORD, RECORD_SCOPE, REFUSALS, SIGN_IN, SIGN_OUT, Visit, Visitors
from approvals.sieve import Sieve, Whose
from approvals.ticket import ActInvalid, MovedOn, State, TicketUnknown

HOME = "/review"
TICKETS = "/review/tickets"
PER_PAGE = 25
FORM_BYTES = 64 * 1024
MOST_NEXT = 2000
AGES: Mapping[str, tuple[str, float, bool]] = {
    "under-1h": ("asked for in the last hour", 3600.0, True),
    "under-1d": ("in the last day", 86400.0, True),
    "over-1h": ("more than an hour ago", 3600.0, False),
    "over-1d": ("more than a day ago", 86400.0, False),
}
OPEN, ANY = "open", "all"
FILTERS = ("state", "server", "name", "requester", "age")

Handler = Callable[[Request], Awaitable[Response]]


class SignInFirst(Exception):  # noqa: N818 - what a visitor has to do
    """Nobody signed in, or the session is over."""


class NoSignIn(Exception):  # noqa: N818 - what is missing
    """The configuration has no sign-in, so these pages are for nobody."""


@dataclass(frozen=True, slots=True)
class Room:
    """What all pages share. `origin`: scheme, host and port of `public_url`; no `visitors`: nobody can sign in."""

    desk: Desk
    visitors: Visitors | None
    origin: str
    clock: Callable[[], float] = time.time

    async def receive(self, request: Request) -> Visit:
        """The visit of this request. Raises `SignInFirst`, `NoSignIn`, and what the visitors' port raises."""
        if self.visitors is None:
            raise NoSignIn
        visit = await self.visitors.visit(request)
        if visit is None:
            raise SignInFirst
        request.state.visit, request.state.person = visit, visit.person
        return visit

    async def receive_form(self, request: Request, limit: int = FORM_BYTES) -> tuple[Visit, dict[str, str]]:
        """Likewise, with the fields of a form that one of this session's own pages sent, without its key."""
        check_origin(request, self.origin)
        visit = await self.receive(request)
        fields = await read_form(request, limit)
        check_key(fields.pop("form_key", ""), visit.form_key)
        return visit, fields


def frame(visit: Visit | None, here: str = "") -> dict[str, Any]:
    """What the frame of every page needs."""
    sees_record = visit is not None and RECORD_SCOPE in visit.person.scopes
    return {
        "visit": visit,
        "here": here,
        "sign_out": SIGN_OUT,
        "refusals": REFUSALS,
        "record": RECORD if sees_record else "",
    }


def sign_in(request: Request) -> Response:
    """Where somebody goes who has to sign in first, and comes back from."""
    path, query = request.url.path, request.url.query
    target = quote(path) + (f"?{query}" if query else "")
    return look.see_other(f"{SIGN_IN}?{urlencode({'next': target if len(target) <= MOST_NEXT else HOME})}")


class Pages:
    """The handlers, by path and method (`table`)."""

    def __init__(self, room: Room) -> None:
        self._room = room

    def table(self) -> list[tuple[str, str, Handler]]:
        """(method, path, handler) of each page."""
        return [
            ("GET", HOME, self.queue),
            ("GET", f"{HOME}/mine", self.mine),
            ("GET", f"{HOME}/lines", self.lines),
            ("GET", f"{TICKETS}/{{ticket_id}}", self.ticket),
            ("GET", f"{TICKETS}/{{ticket_id}}/arguments.json", self.arguments),
            ("GET", f"{TICKETS}/{{ticket_id}}/standing", self.standing),
            ("POST", f"{TICKETS}/{{ticket_id}}/{{verb}}", self.act),
        ]

    async def queue(self, request: Request) -> Response:
        """What waits for this person's decision; by the filter, also what was decided."""
        return await self._list(request, Whose.OTHERS, "queue")

    async def mine(self, request: Request) -> Response:
        """What this person asked for."""
        return await self._list(request, Whose.OWN, "mine")

    async def lines(self, request: Request) -> Response:
        """The lines of a list alone, for the script that keeps it fresh; unchanged ones are not sent again."""
        request.state.comes_by_itself = True
        visit = await self._room.receive(request)
        whose = Whose.OWN if request.query_params.get("of") == "mine" else Whose.OTHERS
        context = await self._context(request, visit, whose)
        html = look.render("_lines", **context)
        tag = f'"{hashlib.sha256(html.encode()).hexdigest()[:32]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(None, 304, {**look.KEPT, "etag": tag})
        return look.page(html, headers={"etag": tag})

    async def _list(self, request: Request, whose: Whose, here: str) -> Response:
        visit = await self._room.receive(request)
        context = await self._context(request, visit, whose)
        return look.page(look.render("queue", **context, **frame(visit, here)))

    async def _context(self, request: Request, visit: Visit, whose: Whose) -> dict[str, Any]:
        asked = _asked(request)
        now = self._room.clock()
        sieve = _sieve(asked, whose, now)
        lines, following = await self._room.desk.queue(
            visit.person, sieve, cursor=asked.get("cursor"), limit=PER_PAGE
        )
        kept = {name: asked[name] for name in FILTERS if asked.get(name)}
        path = f"{HOME}/mine" if whose is Whose.OWN else HOME
        of = {"of": "mine"} if whose is Whose.OWN else {}
        at = {"cursor": asked["cursor"]} if asked.get("cursor") else {}
        return {
            "lines": lines,
            "now": now,
            "is_mine": whose is Whose.OWN,
            "asked": kept,
            "narrowed": bool(kept),
            "states": STATES,
            "state": _wanted(asked, whose),
            "ages": AGES,
            "path": path,
            "fresh": f"{HOME}/lines?{urlencode({**of, **kept, **at})}",
            "next": f"{path}?{urlencode({**kept, 'cursor': following})}" if following else "",
            "first": f"{path}?{urlencode(kept)}" if at else "",
        }

    async def ticket(self, request: Request) -> Response:
        """One ticket, as whoever may decide it or as whoever asked sees it."""
        visit = await self._room.receive(request)
        sight = await self._room.desk.look(visit.person, request.path_params["ticket_id"])
        html = look.render(
            "ticket", face=face(sight), states=STATES, meanings=MEANINGS, most=MOST_CHARACTERS,
            me=visit.person.by, **frame(visit, "mine" if sight.is_own else "queue"),
        )  # fmt: skip
        return look.page(html)

    async def arguments(self, request: Request) -> Response:
        """The whole of what the page may have cut, as a file: masked like the page."""
        visit = await self._room.receive(request)
        shown = await self._room.desk.show(visit.person, request.path_params["ticket_id"])
        names = ("arguments", "meta", "tool", "vary")
        content = orjson.dumps({name: shown[name] for name in names if name in shown})
        saved = f'attachment; filename="{shown["id"]}.json"'
        return Response(content, 200, {**look.KEPT, "content-disposition": saved}, media_type="application/json")

    async def standing(self, request: Request) -> Response:
        """The state and the digest of a ticket, for the script that watches an open page."""
        request.state.comes_by_itself = True
        visit = await self._room.receive(request)
        shown = await self._room.desk.show(visit.person, request.path_params["ticket_id"])
        content = orjson.dumps({"state": shown["state"], "digest": shown["digest"]})
        return Response(content, 200, look.KEPT, media_type="application/json")

    async def act(self, request: Request) -> Response:
        """Approve, deny, revoke, withdraw, justify or resolve; then back to the ticket."""
        verb, ticket_id = request.path_params["verb"], request.path_params["ticket_id"]
        if verb not in DONE:
            raise TicketUnknown
        visit, fields = await self._room.receive_form(request)
        only_fields(fields, "seen", "comment", "at")
        comment, seen = field(fields, "comment", MOST_CHARACTERS).strip(), field(fields, "seen", 128)
        at = field(fields, "at", 20)
        if not seen:
            raise BodyRefused(400, "seen_missing")
        try:
            await self._room.desk.act(verb, visit.person, ticket_id, comment=comment, seen=seen)
        except MovedOn as moved:
            shown = await self._room.desk.show(visit.person, ticket_id)
            now = self._room.clock()
            shown_at = float(at) / 1000 if at.isascii() and at.isdigit() else now
            html = look.render(
                "stale", ticket=shown, verb=verb, why=MOVED.get(moved.why, ""), events=since(shown, shown_at),
                states=STATES, meanings=MEANINGS, comment=comment, me=visit.person.by, **frame(visit),
            )  # fmt: skip
            request.state.page = look.page(html)
            raise
        return look.see_other(f"{TICKETS}/{ticket_id}")


def _asked(request: Request) -> dict[str, str]:
    """The filters of a list. Raises `ActInvalid` for what no list has."""
    given = request.query_params
    known = {*FILTERS, "cursor", "of"}
    texts_are_plain = all(len(one) <= 512 and (one.isprintable() or not one) for one in given.values())
    if len(given) != len(given.multi_items()) or not set(given) <= known or not texts_are_plain:
        raise ActInvalid("query_invalid")
    asked = {name: one.strip() for name, one in given.items() if one.strip()}
    if asked.get("state", OPEN) not in (*STATES, OPEN, ANY) or asked.get("age", "") not in ("", *AGES):
        raise ActInvalid("query_invalid")
    return asked


def _wanted(asked: Mapping[str, str], whose: Whose) -> str:
    return asked.get("state", ANY if whose is Whose.OWN else OPEN)


def _sieve(asked: Mapping[str, str], whose: Whose, now: float) -> Sieve:
    wanted = _wanted(asked, whose)
    after = until = None
    if "age" in asked:
        _, seconds, is_newer = AGES[asked["age"]]
        after, until = (now - seconds, None) if is_newer else (None, now - seconds)
    return Sieve(
        state=None if wanted in (OPEN, ANY) else State(wanted),
        open=wanted == OPEN,
        whose=whose,
        server=asked.get("server", ""),
        name=asked.get("name", ""),
        requester=asked.get("requester", ""),
        after=after,
        until=until,
    )
