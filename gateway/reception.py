"""The house behind the approvals API and the pages: its tokens, its policy, its refusals and its record.

API and pages belong to the leaf room, which knows nothing of tokens, corridor or chain; here it is told who somebody
is, what a call would need, and where a refusal is written down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastapi import FastAPI, Request, Response

from approvals.approvers import Person
from approvals.desk import Desk, StoreUnavailable, TooManyTickets
from approvals.review.api import TurnedAway, approvals_api, caller
from approvals.review.app import review_pages
from approvals.review.asking import Told
from approvals.review.visitors import Visitors
from gateway.contract.passage import Reply, Server
from gateway.contract.record import MAX_STRANGE_NAME, refusal_record
from gateway.contract.redaction import printable
from gateway.contract.refusals import Refused
from gateway.contract.reply import challenge
from gateway.control import caller_of, refused_as
from gateway.delivery import TRANSLATED, translate
from gateway.foresight import Foresight, person_of
from gateway.origins import origin_of
from gateway.pipeline import Corridor

HOUSE_WORDS = tuple(word for word in TRANSLATED if word not in {StoreUnavailable, TooManyTickets})
"""What the approvals API leaves to the house to refuse; its own words it renders itself."""

TOLD_HEADERS = (b"ostiary-decision", b"retry-after")


class Reception:
    """Where people are received; `resource` is the approvals API as a protected resource."""

    def __init__(self, corridor: Corridor, resource: Server) -> None:
        self._corridor = corridor
        self._resource = resource

    def approvals_api(self, desk: Desk, foresight: Foresight, body_bytes: int) -> FastAPI:
        """The approvals API with the house behind it: its tokens, its policy, its refusals and its record."""

        async def authenticate(headers: Sequence[tuple[bytes, bytes]]) -> Person:
            identity = await self._corridor.tokens.identify(
                [value for name, value in headers if name == b"authorization"],
                resource=self._resource.resource,
                issuers=self._resource.issuers,
                alone=True,
            )
            return person_of(identity, self._corridor.implications)

        async def refuse(request: Request, error: Exception) -> Response:
            refused = error if isinstance(error, Refused) else translate(error)
            reply = await self.turn_away(refused, caller(request))
            headers = {name.decode(): value.decode() for name, value in reply.headers}
            return Response(reply.body, reply.status, headers)

        return approvals_api(
            desk,
            authenticate,
            foresight.plan,
            refuse=dict.fromkeys((Refused, *HOUSE_WORDS), refuse),
            challenge=lambda scopes: challenge("insufficient_scope", scopes, self._resource).decode(),
            tell=self.write_down,
            body_bytes=body_bytes,
        )

    def review_pages(self, desk: Desk, foresight: Foresight, visitors: Visitors | None, public_url: str) -> FastAPI:
        """The reviewer's pages with the same house behind them; without `visitors` nobody can sign in to them."""

        async def explain(request: Request, error: Exception) -> Told:
            refused = error if isinstance(error, Refused) else translate(error)
            reply = await self.turn_away(refused, caller(request))
            kept = {name.decode(): value.decode() for name, value in reply.headers if name in TOLD_HEADERS}
            row = refused.refusal.value
            return Told(max(row.status, 400), refused.message or row.sentence, kept)

        return review_pages(
            desk,
            visitors,
            foresight,
            origin=origin_of(public_url),
            words=(Refused, *HOUSE_WORDS),
            explain=explain,
            tell=self.write_down,
        )

    async def turn_away(self, refused: Refused, person: Person | None = None) -> Reply:
        """A refusal of the control plane, recorded like any other."""
        passage = self._corridor.open_passage(self._resource)
        passage.identity = caller_of(person)
        return await self._corridor.turn_away(passage, refused)

    def write_off(self, refused: Refused) -> str:
        """A refusal that somebody else renders, recorded like any other -> its decision id."""
        passage = self._corridor.open_passage(self._resource)
        self._corridor.write_off(passage, refused)
        return passage.decision_id

    def write_down(self, turned: TurnedAway) -> Mapping[str, str]:
        """What the approvals API refused by itself: who wanted what of which ticket, and why not."""
        passage = self._corridor.open_passage(self._resource)
        passage.identity = caller_of(turned.person)
        passage.refuse(refused_as(turned.status, turned.name, turned.ticket_id))
        passage.status = turned.status
        record = refusal_record(passage, self._corridor.redactor) | {"code": None}
        record["method"] = printable(f"approvals/{turned.verb}", MAX_STRANGE_NAME)
        record["ticket"] = printable(turned.ticket_id, MAX_STRANGE_NAME) or None
        self._corridor.sink.note(record)
        self._corridor.observer.concluded(passage, record)
        return {"ostiary-decision": passage.decision_id}
