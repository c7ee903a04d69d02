"""What the record's pages share: who is there, the reader, the note that they looked, and how a page leaves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from approvals.review import look as leaving
from approvals.review.pages import Room, frame
from approvals.review.visitors import Visit
from approvals.ticket import ActInvalid, TicketUnknown
from gateway.audit.looking import Ended, Found, Wanted, look, shifted, write_cursor
from gateway.audit.query import moment
from gateway.contract.refusals import Refusal, Refused
from gateway.review_audit.asked import AHEAD_S, Asked, read_asked, read_moment
from gateway.review_audit.faces import when
from gateway.review_audit.reader import Reader, RecordUnreadable, Work
from gateway.review_audit.readings import Readings
from gateway.review_audit.telling import Party, Told, find_story

T = TypeVar("T")

PER_PAGE: Final = 50
SPANS: Final = {"1h": "last hour", "24h": "last day", "7d": "7 days", "30d": "30 days"}
UNREADABLE: Final = "The record can't be read at the moment. Nothing is lost by that; try again in a while."
_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")
_render = leaving.renderer("gateway.review_audit")


@dataclass(frozen=True, slots=True)
class Hall:
    """One for all pages of the record. `room` knows the visitors."""

    room: Room
    reader: Reader
    readings: Readings
    render: Any = field(default=_render, repr=False)

    async def receive(self, request: Request, verb: str) -> Visit:
        """The visit; should it be turned away, its record says what it wanted: `approvals/VERB`."""
        request.state.verb = verb
        return await self.room.receive(request)

    def asked(self, request: Request, *only: str) -> Asked:
        """What the address asks for; `only` these, if any are named. Raises `ActInvalid`."""
        items = request.query_params.multi_items()
        if only and not {name for name, _ in items} <= set(only):
            raise ActInvalid("query_invalid")
        return read_asked(items, self.room.clock())

    async def look(self, visit: Visit, asked: Asked, wanted: Wanted, limit: int = PER_PAGE) -> Found:
        """A look at the window and the place that the address names."""

        def work(chains: Any, budget: Any) -> Found:
            since, until, places = asked.since, asked.until, asked.places
            return look(chains, wanted, budget, since=since, until=until, limit=limit, places=places)

        return await self._read(visit, work)

    async def story(self, visit: Visit, decision: str, at: str, mine: Party | None = None) -> Told:
        """One request's records, all or `mine`."""
        now = shifted(self.now(), AHEAD_S)
        return await self._read(
            visit, lambda chains, budget: find_story(chains, budget, decision, at=at, now=now, mine=mine)
        )

    async def _read(self, visit: Visit, work: Work[T]) -> T:
        try:
            return await self.reader.read(visit.person.by, work)
        except RecordUnreadable as error:
            raise Refused(Refusal.AUDIT_UNAVAILABLE, f"can't be read: {error}", message=UNREADABLE) from error

    def now(self) -> str:
        """As the record writes it."""
        return moment("0s", datetime.fromtimestamp(self.room.clock(), UTC))

    def page(self, template: str, visit: Visit, here: str, context: Mapping[str, Any]) -> Response:
        """A page of this package's templates."""
        return leaving.page(self.render(template, **context, **frame(visit, here)))


def decision_of(request: Request) -> tuple[str, str]:
    """The id in the path and the time that the link names. Raises `TicketUnknown` for what is no id."""
    decision, given = request.path_params["decision_id"], request.query_params.multi_items()
    if not _ID.fullmatch(decision):
        raise TicketUnknown
    if [name for name, _ in given] not in ([], ["at"]):
        raise ActInvalid("query_invalid")
    return decision, read_moment(given[0][1] if given else "")


def onward(asked: Asked, found: Found, path: str) -> dict[str, str]:
    """The links to older records and back, and how far a look came that its bound ended."""
    more = found.ended is not Ended.WINDOW
    window = {"since": asked.since, "until": asked.until}
    return {
        "next": asked.link(path, **window, cursor=write_cursor(found.places)) if more else "",
        "first": asked.link(path) if asked.places else "",
        "reached": when(found.reached) if found.ended is Ended.BOUND else "",
    }


def cut(text: str, most: int) -> str:
    """Pages make texts plain themselves; a story's are only kept short."""
    return text[:most]
