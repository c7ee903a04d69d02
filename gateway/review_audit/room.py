"""The room put together: the pages of the whole record and those of one's own refusals, over one reader."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI

from approvals.review.pages import Handler, Room
from approvals.review.visitors import RECORD, REFUSALS, WHY
from gateway.audit.place import Place
from gateway.audit.port import AuditSink
from gateway.review_audit.evidence import Evidence
from gateway.review_audit.hall import Hall
from gateway.review_audit.own import OwnPages
from gateway.review_audit.pages import CHARTS, EVIDENCE, AuditorsPages
from gateway.review_audit.reader import BOUNDS, Bounds, Reader
from gateway.review_audit.readings import Readings


class AuditPages:
    """The pages over the record at `place`. `room` says who is there, `sink` takes down that they looked.

    `key` signs evidence: the checkpoints' key as its variable holds it, or `""`.
    """

    def __init__(self, room: Room, place: Place, sink: AuditSink, *, key: str = "", bounds: Bounds = BOUNDS) -> None:
        self._reader = Reader(place, bounds)
        self._readings = Readings(sink.note)
        hall = Hall(room, self._reader, self._readings)
        self._own = OwnPages(hall)
        self._auditors = AuditorsPages(hall, sink, Evidence(place, key, asyncio.Lock()))

    def add_to(self, app: FastAPI) -> None:
        """Serve the pages below `/review`, beside what `app` has."""
        table: list[tuple[str, str, Handler]] = [
            ("GET", REFUSALS, self._own.refusals),
            ("GET", f"{WHY}/{{decision_id}}", self._own.why),
            ("GET", RECORD, self._auditors.timeline),
            ("GET", CHARTS, self._auditors.charts),
            ("POST", EVIDENCE, self._auditors.evidence),
            ("GET", f"{RECORD}/{{decision_id}}", self._auditors.story),
        ]
        for method, path, handler in table:
            app.add_route(path, handler, methods=[method])

    async def close(self) -> None:
        """Write what was counted; let a look that is under way end."""
        self._readings.close()
        await self._reader.close()
