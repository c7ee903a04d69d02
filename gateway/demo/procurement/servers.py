"""A replica of the procurement server, built with the official SDK and knowing nothing of any gateway.

The same tools for both revisions: by MCP 2026-07-28 a question is a result, whose answer may come to any replica;
with `--sessions`, by 2025-11-25, it is a request on an open stream, and everything hangs on one process's memory.

Annotations are evaluated as they stand here: the SDK could not find a resolver by its name alone.
"""

import argparse
import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.server.request_state import RequestStateSecurity
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.types import ASGIApp

from gateway.demo.doorstep import CREDENTIAL_ENV, Arrivals, Doorstep
from gateway.demo.loopback import require_loopback
from gateway.demo.procurement.documents import THRESHOLD, Documents, Rejected, Requisition
from gateway.demo.procurement.matching import MatchTasks, report

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)


class Document(TypedDict):
    """A requisition, and the replica that said so."""

    number: int
    title: str
    total: int
    state: str
    replica: str


class Confirmation(BaseModel):
    """What somebody says who is asked about a large requisition."""

    confirm: bool = Field(description="Submit it?")


def build_server(documents: Documents, replica: str, state_key: bytes) -> tuple[MCPServer[Any], MatchTasks]:
    """The server, and the tasks that it works at."""
    tasks = MatchTasks(documents, replica)
    server: MCPServer[Any] = MCPServer(
        "procurement",
        title="Procurement",
        version="1.0.0",
        log_level="WARNING",
        extensions=[tasks],
        request_state_security=RequestStateSecurity(keys=[state_key]),
    )

    def show(found: Requisition) -> Document:
        return {
            "number": found.number,
            "title": found.title,
            "total": found.total,
            "state": found.state,
            "replica": replica,
        }

    @server.tool(annotations=WRITES)
    async def draft_requisition(title: str, quantity: int, unit_price: int) -> Document:
        """Write a requisition of one line, not yet submitted."""
        try:
            return show(documents.draft(title, quantity, unit_price))
        except Rejected as rejected:
            raise ToolError(str(rejected)) from None

    @server.tool(annotations=READS)
    async def get_requisition(number: int) -> Document:
        """A requisition as it stands."""
        try:
            return show(documents.requisition(number))
        except Rejected as rejected:
            raise ToolError(str(rejected)) from None

    async def confirm_large(number: int) -> Confirmation | Elicit[Confirmation]:
        try:
            found = documents.requisition(number)
        except Rejected as rejected:
            raise ToolError(str(rejected)) from None
        if found.total < THRESHOLD:
            return Confirmation(confirm=True)
        return Elicit(f"Requisition {number}, {found.title}, totals {found.total}. Submit it?", Confirmation)

    @server.tool(annotations=WRITES)
    async def submit_requisition(
        number: int, confirmation: Annotated[Confirmation, Resolve(confirm_large)]
    ) -> Document:
        """Submit a requisition. One of 50,000 or more is submitted only once somebody has confirmed it."""
        if not confirmation.confirm:
            return show(documents.requisition(number))
        try:
            return show(documents.submit(number, replica))
        except Rejected as rejected:
            raise ToolError(str(rejected)) from None

    @server.tool(annotations=READS)
    async def match_invoice(invoice: str) -> dict[str, Any]:
        """Match an invoice with its order and its goods receipt. Takes a while: best called as a task."""
        try:
            match = documents.begin_match(invoice)
        except Rejected as rejected:
            raise ToolError(str(rejected)) from None
        while match.state == "working":
            await asyncio.sleep(0.1)
            match = documents.match(match.id)
        found: dict[str, Any] = report(match, replica)["structuredContent"]
        return found

    return server, tasks


def build_replica(directory: Path, replica: str, credential: str, *, sessions: bool) -> ASGIApp:
    """One replica at `/procurement/mcp`. By the old revision it lets in everybody, for there is no gateway."""
    # All replicas, and those that take their places, read each other's states.
    server, tasks = build_server(Documents(directory), replica, credential.encode().ljust(32, b"."))
    part = server.streamable_http_app(streamable_http_path="/procurement/mcp", stateless_http=not sessions)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with server.session_manager.run():
            working = asyncio.create_task(tasks.work())
            yield
            working.cancel()

    app = Starlette(routes=part.routes, lifespan=lifespan)
    return app if sessions else Doorstep(app, Arrivals(directory), replica, credential)


def main() -> None:
    """`python -m gateway.demo.procurement.servers`: serve one replica until told to stop."""
    parser = argparse.ArgumentParser(prog="gateway.demo.procurement.servers", description="One replica.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--replica", required=True, help="the name that each answer carries")
    parser.add_argument("--books", type=Path, required=True, help="the directory that all replicas share")
    parser.add_argument("--sessions", action="store_true", help="by the revision of 2025-11-25, with sessions")
    options = parser.parse_args()
    app = build_replica(options.books, options.replica, os.environ[CREDENTIAL_ENV], sessions=options.sessions)
    uvicorn.run(app, host=require_loopback(options.host), port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
