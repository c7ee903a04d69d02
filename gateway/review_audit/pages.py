"""The auditors' pages: the timeline, one request's story, charts, evidence. Each takes the scope `audit:read`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from approvals.counter import require
from approvals.review import look as leaving
from approvals.review.app import Wrong, wrong_page
from approvals.review.pages import FORM_BYTES
from approvals.review.visitors import RECORD, RECORD_SCOPE, Visit
from approvals.ticket import TicketUnknown
from gateway.audit.looking import Ended, shifted
from gateway.audit.port import AuditSink
from gateway.audit.query import Query
from gateway.audit.story import Record, place_of, tell
from gateway.contract.record import admin_record
from gateway.review_audit import faces
from gateway.review_audit.asked import FILTERS, KINDS, VERDICTS, Asked, link_to, read_asked
from gateway.review_audit.charts import HEIGHT, SERIES, WIDTH, Tally
from gateway.review_audit.evidence import Evidence, NoEvidence, blocks_of
from gateway.review_audit.hall import SPANS, Hall, cut, decision_of, onward
from gateway.review_audit.readings import without_secrets

CHARTS: Final = f"{RECORD}/charts"
EVIDENCE: Final = f"{RECORD}/evidence"
DAY_S: Final = 86_400.0
MOST_EVENTS: Final = 300
MOST_LINKS: Final = 60
"""Of a story's records so many are told, and so many shown as they are: a grant's ticket can have a thousand."""

OUTCOMES: Final = (
    "executed", "tool_error", "rpc_error", "input_required", "task", "answered", "replayed", "cancelled", "failed",
    "unknown",
)  # fmt: skip
NONE_MADE: Final = {
    "broken": "A chain of the record does not verify, so nothing of it is evidence. The command ostiary audit verify "
    "says where it breaks. That this was found is recorded.",
    "unreadable": "The record, or what belongs to it, could not be read. Try again; the reason is recorded.",
    "large": "That would be more than 64 MiB. Narrow the filters, or use the command ostiary audit export.",
    "slow": "Judging the whole record takes longer than a page may wait. Use the command ostiary audit export.",
}
_IN_A_NAME: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")


class AuditorsPages:
    """The handlers. `sink` takes down who took evidence."""

    def __init__(self, hall: Hall, sink: AuditSink, evidence: Evidence) -> None:
        self._hall = hall
        self._sink = sink
        self._evidence = evidence

    async def timeline(self, request: Request) -> Response:
        """All records that the filters hold of, newest first."""
        visit = await self._receive(request)
        asked = self._hall.asked(request)
        self._hall.readings.tell(visit.person.by, "timeline", asked.given)
        found = await self._hall.look(visit, asked, asked.query.read)
        context = self._context(asked, found.unread, RECORD) | onward(asked, found, RECORD)
        return self._hall.page("audit", visit, "audit", context | {"lines": [*map(faces.line_of, found.records)]})

    async def charts(self, request: Request) -> Response:
        """Verdicts over time, by tool and by reason."""
        visit = await self._receive(request)
        asked = self._hall.asked(request)
        self._hall.readings.tell(visit.person.by, "charts", asked.given)
        tally = Tally(asked.query)
        found = await self._hall.look(visit, asked, tally.read)
        context = self._context(asked, found.unread, CHARTS) | {
            "it": tally.charts(),
            "series": SERIES,
            "width": WIDTH,
            "height": HEIGHT,
            "partly": faces.when(found.reached) if found.ended is Ended.BOUND else "",
        }
        return self._hall.page("charts", visit, "audit", context)

    async def story(self, request: Request) -> Response:
        """One request: what was asked, decided, approved, sent and answered, and what of it was redacted."""
        visit = await self._receive(request)
        decision, at = decision_of(request)
        self._hall.readings.tell(visit.person.by, "story", {"decision": decision})
        told = await self._hall.story(visit, decision, at)
        own = [record for record in told.records if record.get("decision_id") == decision]
        if not own:
            raise TicketUnknown
        first, story = faces.line_of(own[0]), tell(told.records, decision, cut)
        context = {
            "decision": decision,
            "story": story,
            "events": story.events[:MOST_EVENTS],
            "whole": told.whole,
            "unread": told.unread,
            "first": first,
            "last": faces.line_of(own[-1]),
            "facts": faces.facts_of(own),
            "leaves": faces.leaves_of(own),
            "links": [faces.link_of(one, told.lines.get(place_of(one))) for one in told.records[:MOST_LINKS]],
            "number": len(told.records),
            "tickets": _tickets(own, first.time or self._hall.now()),
            "has_key": self._evidence.is_signed,
            "evidence": EVIDENCE,
            "when": faces.when,
        }
        return self._hall.page("story", visit, "audit", context)

    async def evidence(self, request: Request) -> Response:
        """A file of what the filters hold of, judged by `ostiary audit verify` on any machine."""
        request.state.verb = "audit"
        visit, fields = await self._hall.room.receive_form(request, FORM_BYTES)
        require(visit.person, RECORD_SCOPE)
        asked = read_asked(list(fields.items()), self._hall.room.clock())
        query = asked.query if {"since", "until"} & set(asked.given) else replace(asked.query, since=None, until=None)
        told = without_secrets(query.asked())
        try:
            file = await self._evidence.make(query)
        except NoEvidence as none:
            facts = {**told, "why": none.why, "detail": str(none)}
            self._sink.note(admin_record("evidence_refused", visit.person.by, facts))
            return wrong_page(visit, Wrong(409, none.why, "No evidence was made", NONE_MADE[none.why], {}))
        try:
            await self._sink.append(admin_record("evidence_taken", visit.person.by, told))
        except BaseException:
            file.close()
            raise
        saved = f'attachment; filename="evidence-{_stem(query)}.jsonl"'
        headers = {**leaving.KEPT, "content-disposition": saved}
        return StreamingResponse(blocks_of(file), 200, headers, media_type="application/x-ndjson")

    async def _receive(self, request: Request) -> Visit:
        visit = await self._hall.receive(request, "audit")
        require(visit.person, RECORD_SCOPE)
        return visit

    def _context(self, asked: Asked, unread: Sequence[str], path: str) -> dict[str, Any]:
        return {
            "asked": asked,
            "given": asked.given,
            "unread": unread,
            "path": path,
            "kinds": KINDS,
            "verdicts": VERDICTS,
            "outcomes": OUTCOMES,
            "spans": SPANS,
            "timeline": RECORD,
            "charts": CHARTS,
            "evidence": EVIDENCE,
            "narrowed": bool(set(asked.given) & set(FILTERS) - {"since", "until"}),
            "has_key": self._evidence.is_signed,
        }


def _tickets(records: Sequence[Record], at: str) -> list[tuple[str, str]]:
    """(ticket, the address of all its records about that time) of each that a request had to do with."""
    names = ("ticket", "answers_ticket")
    tickets = dict.fromkeys(told for record in records for name in names if (told := faces.text(record, name)))
    window = {"since": shifted(at, -DAY_S), "until": shifted(at, DAY_S)}
    return [(ticket, link_to(RECORD, ticket=ticket, **window)) for ticket in tickets]


def _stem(query: Query) -> str:
    """What the file is called by."""
    told = (query.decision, query.ticket)
    return next((one[:32] for one in told if one and _IN_A_NAME.fullmatch(one)), "record")
