"""The three-way match as a task (tasks extension): created at once, worked at by whichever replica is free.

The server checks no ownership: whoever names a task gets it, and its ids are easy to guess. Most servers are like
that; the gateway in front has to see to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CallToolRequestParams, RequestParams
from pydantic import Field

from gateway.demo.procurement.documents import Documents, Match, Rejected

TASKS = "io.modelcontextprotocol/tasks"
TOOL = "match_invoice"
STAGE_S = 0.7
"""How long one stage takes: the documents come from three departments."""
TTL_MS = 600_000


class TaskParams(RequestParams):
    """What names a task."""

    task_id: str = Field(alias="taskId")


def report(match: Match, replica: str) -> dict[str, Any]:
    """The result of a match that is over."""
    found = {
        "invoice": match.invoice,
        "matches": not match.findings,
        "findings": list(match.findings),
        "worked_by": list(match.replicas),
        "answered_by": replica,
    }
    text = "; ".join(match.findings) or "order, receipt and invoice agree"
    return {"content": [{"type": "text", "text": text}], "structuredContent": found, "isError": False}


def describe(match: Match) -> dict[str, Any]:
    """The task of a match, without its result."""
    return {
        "taskId": f"match-{match.id}",
        "status": match.state,
        "statusMessage": f"stage {match.stage} of 3",
        "createdAt": _stamp(match.began),
        "lastUpdatedAt": _stamp(match.moved),
        "ttlMs": TTL_MS,
        "pollIntervalMs": 250,
    }


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


class MatchTasks(Extension):
    """Serves `match_invoice` as a task to the clients that declare the extension."""

    identifier = TASKS

    def __init__(self, documents: Documents, replica: str) -> None:
        self._documents = documents
        self._replica = replica

    def methods(self) -> Sequence[MethodBinding]:
        """`tasks/get` and `tasks/cancel`; a match asks for nothing, so there is no `tasks/update`."""
        return (
            MethodBinding("tasks/get", TaskParams, self._get),
            MethodBinding("tasks/cancel", TaskParams, self._cancel),
        )

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """A match begins, and its task is the answer; every other call goes on."""
        capabilities = ctx.session.client_capabilities
        if params.name != TOOL or capabilities is None or TASKS not in (capabilities.extensions or {}):
            return await call_next(ctx)
        try:
            match = self._documents.begin_match(str((params.arguments or {}).get("invoice")))
        except Rejected as rejected:
            return {"content": [{"type": "text", "text": str(rejected)}], "isError": True, "resultType": "complete"}
        return {"resultType": "task", **describe(match)}

    async def work(self) -> None:
        """Go on with whatever match nobody works at, one stage at a time, for ever."""
        while True:
            match = self._documents.claim_stage()
            await asyncio.sleep(STAGE_S if match else 0.1)
            if match:
                self._documents.finish_stage(match, self._replica)

    def _find(self, task_id: str) -> Match:
        try:
            return self._documents.match(int(task_id.removeprefix("match-")))
        except (Rejected, ValueError):
            raise MCPError(code=INVALID_PARAMS, message="there is no such task") from None

    async def _get(self, _ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        match = self._find(params.task_id)
        ended = (
            {"result": {"resultType": "complete", **report(match, self._replica)}}
            if match.state == "completed"
            else {}
        )
        return {"resultType": "complete", **describe(match), **ended}

    async def _cancel(self, _ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        self._documents.cancel_match(self._find(params.task_id).id)
        return {"resultType": "complete"}
