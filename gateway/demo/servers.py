"""Two MCP servers of the demo, built with the official SDK and knowing nothing of any gateway.

`readonly` reads the books of a small bank, `payments` also moves money. One process serves both, each at its own
path; several processes are replicas of each other (MCP 2026-07-28 is stateless). They bind to loopback only and
take only the credential that the gateway holds, so going around the gateway ends here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import uvicorn
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from starlette.applications import Starlette
from starlette.types import ASGIApp

from gateway.demo.bank import OPENING, Books, Declined
from gateway.demo.doorstep import CREDENTIAL_ENV, Doorstep
from gateway.demo.loopback import require_loopback

CACHEABLE: tuple[CacheableMethod, ...] = ("server/discover", "tools/list", "prompts/list", "resources/list")
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
MOVES_MONEY = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)


class Balance(TypedDict):
    """What `get_balance` answers; amounts are in cents."""

    account: str
    balance_cents: int
    replica: str


class History(TypedDict):
    """What `list_transfers` answers."""

    account: str
    transfers: list[dict[str, Any]]
    replica: str


class Receipt(TypedDict):
    """What `transfer_funds` answers; `transfer_number` counts every transfer of the bank."""

    transfer_number: int
    from_account: str
    to_account: str
    amount_cents: int
    memo: str
    replica: str


def name_server(name: str, title: str, fresh_ms: int = 60_000) -> MCPServer[Any]:
    """An empty server whose lists stay fresh for a minute, or for as long as is said."""
    hint = CacheHint(ttl_ms=fresh_ms, scope="public")
    hints: dict[CacheableMethod, CacheHint] = dict.fromkeys(CACHEABLE, hint)
    return MCPServer(name, title=title, version="1.0.0", log_level="WARNING", cache_hints=hints)


def offer_reads(server: MCPServer[Any], books: Books, replica: str) -> None:
    """Add the two tools that only read."""

    @server.tool(annotations=READS)
    async def get_balance(account: str) -> Balance:
        """How much money an account holds."""
        try:
            return {"account": account, "balance_cents": books.balance(account), "replica": replica}
        except Declined as declined:
            raise ToolError(str(declined)) from None

    @server.tool(annotations=READS)
    async def list_transfers(account: str) -> History:
        """The transfers that an account took part in."""
        lines = [line for line in books.transfers() if account in (line["from_account"], line["to_account"])]
        return {"account": account, "transfers": lines, "replica": replica}


def build_readonly(books: Books, replica: str, fresh_ms: int = 60_000) -> MCPServer[Any]:
    """The read-only server: two read tools, one resource, one prompt."""
    server = name_server("readonly", "Bank, read only", fresh_ms)
    offer_reads(server, books, replica)

    @server.resource("bank://accounts", mime_type="text/plain", description="The accounts of this bank.")
    async def accounts() -> str:
        return "\n".join(OPENING)

    @server.prompt(description="Ask for a short report on one account.")
    def account_report(account: str) -> str:
        return f"Read the balance and the transfers of account {account}, then say in two sentences how it stands."

    return server


def build_payments(books: Books, replica: str) -> MCPServer[Any]:
    """The state-changing server: the two reads and one tool that moves money."""
    server = name_server("payments", "Bank, payments")
    offer_reads(server, books, replica)

    @server.tool(annotations=MOVES_MONEY)
    async def transfer_funds(from_account: str, to_account: str, amount_cents: int, memo: str = "") -> Receipt:
        """Move money from one account to another. This can't be undone."""
        try:
            number = books.transfer(from_account, to_account, amount_cents, memo, replica)
        except Declined as declined:
            raise ToolError(str(declined)) from None
        return {
            "transfer_number": number,
            "from_account": from_account,
            "to_account": to_account,
            "amount_cents": amount_cents,
            "memo": memo,
            "replica": replica,
        }

    return server


def build_replica(books: Books, replica: str, credential: str) -> ASGIApp:
    """One replica: both servers in one ASGI application, at `/readonly/mcp` and `/payments/mcp`."""
    servers = {"readonly": build_readonly(books, replica), "payments": build_payments(books, replica)}
    return Doorstep(join_servers(servers), books, replica, credential)


def join_servers(servers: Mapping[str, MCPServer[Any]]) -> Starlette:
    """Several servers in one ASGI application, each at `/NAME/mcp`."""
    parts = [
        server.streamable_http_app(streamable_http_path=f"/{name}/mcp", stateless_http=True)
        for name, server in servers.items()
    ]

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for server in servers.values():
                await stack.enter_async_context(server.session_manager.run())
            yield

    return Starlette(routes=[route for part in parts for route in part.routes], lifespan=lifespan)


def main() -> None:
    """`python -m gateway.demo.servers`: serve one replica until told to stop."""
    parser = argparse.ArgumentParser(prog="gateway.demo.servers", description="One replica.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--replica", required=True, help="the name that each answer carries")
    parser.add_argument("--books", type=Path, required=True, help="the directory that all replicas share")
    options = parser.parse_args()
    app = build_replica(Books(options.books), options.replica, os.environ[CREDENTIAL_ENV])
    uvicorn.run(app, host=require_loopback(options.host), port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
