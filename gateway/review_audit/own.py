""" "Why was I refused?": for everybody who signs in, their own refusals, and one of them in words.

No scope is needed, for nothing is shown but records whose actor they are. What their request's answer did not tell
them is not told here either: no detail, no verdict and no reason of the policy but where it was disclosed to them.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from approvals.review.visitors import REFUSALS, WHY
from approvals.ticket import TicketUnknown
from gateway.audit.story import Story, reason_of, refusal_words, tell
from gateway.contract.refusals import Refusal
from gateway.review_audit import faces
from gateway.review_audit.hall import SPANS, Hall, cut, decision_of, onward
from gateway.review_audit.telling import party_of, refused_to

SHOWN: Final = frozenset({Refusal.HEADER_MISMATCH.reason, Refusal.SCOPE_INSUFFICIENT.reason})
"""Refusals whose caller was told what the record's `detail` says."""

_MISSING: Final = "missing scopes: "


class OwnPages:
    """The handlers."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall

    async def refusals(self, request: Request) -> Response:
        """What was refused to this person, newest first."""
        hall = self._hall
        visit = await hall.receive(request, "explain")
        asked = hall.asked(request, "since", "until", "cursor")
        hall.readings.tell(visit.person.by, "own refusals", {})
        party = party_of(visit.person)
        wanted = refused_to(asked.query, party, frozenset(refusal_words())) if party else lambda _: None
        found = await hall.look(visit, asked, wanted)
        context = {
            "lines": [(faces.line_of(one), sentence_of(reason_of(one))) for one in found.records],
            "why": WHY,
            "is_unread": bool(found.unread),
            "spans": SPANS,
            "asked": asked,
            "path": REFUSALS,
        }
        return hall.page("refusals", visit, "refusals", context | onward(asked, found, REFUSALS))

    async def why(self, request: Request) -> Response:
        """One of this person's own. A foreign id is answered like one that nobody ever had."""
        hall = self._hall
        visit = await hall.receive(request, "explain")
        decision, at = decision_of(request)
        hall.readings.tell(visit.person.by, "own refusal", {})
        party = party_of(visit.person)
        if party is None:
            raise TicketUnknown
        told = await hall.story(visit, decision, at, party)
        own = [record for record in told.records if record.get("decision_id") == decision]
        if not own:
            raise TicketUnknown
        story = tell(told.records, decision, cut)
        refused = next((record for record in own if record.get("kind") == "refusal"), own[-1])
        context = {
            "decision": decision,
            "story": story,
            "first": faces.line_of(own[0]),
            "refused": faces.line_of(refused),
            "status": faces.text(refused, "status"),
            "code": faces.text(refused, "code"),
            "sentence": sentence_of(story.reason),
            "detail": story.detail if story.reason in SHOWN else "",
            "missing": _missing(story),
            "reasons": story.reasons if refused.get("disclosed") is True else [],
            "lines": [faces.line_of(one) for one in told.records],
            "whole": told.whole and not told.unread,
        }
        return hall.page("why", visit, "refusals", context)


def sentence_of(reason: str) -> str:
    """What every caller may read of a refusal."""
    return next((one.value.sentence for one in Refusal if one.reason == reason), "")


def _missing(story: Story) -> list[str]:
    is_told = story.reason == Refusal.SCOPE_INSUFFICIENT.reason and story.detail.startswith(_MISSING)
    return story.detail.removeprefix(_MISSING).split() if is_told else []
