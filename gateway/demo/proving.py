"""The bank with two ways to fail on demand, for `ostiary evidence --demo`: it shows what no healthy server shows.

`wait` takes its time and tells of its progress. A fault is a file in the books' directory; whichever replica meets it
first takes it away and dies: `die-on-receipt` once a call of a tool has arrived, `break-stream` in the middle of a
`wait`. `--lenient` serves a bank that hides a failure (a planted fault of the tests).
"""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.demo.bank import Books, Declined
from gateway.demo.doorstep import CREDENTIAL_ENV, Doorstep
from gateway.demo.loopback import require_loopback
from gateway.demo.place import Place, bank_data
from gateway.demo.servers import READS, build_payments, build_readonly, join_servers

DIE: Final = "die-on-receipt"
BREAK: Final = "break-stream"
FRESH_MS: Final = 400
"""How long this bank's lists stay fresh: short enough to wait for."""
LONGEST_S: Final = 10.0
STEP_S: Final = 0.5
"""Between two tellings of its progress."""


class Waited(TypedDict):
    """What `wait` answers."""

    seconds: float
    replica: str


@dataclass(frozen=True, slots=True)
class Lenient(Books):
    """Says of an account that does not exist that it is empty."""

    def balance(self, account: str) -> int:
        """The balance in cents."""
        try:
            return Books.balance(self, account)
        except Declined:
            return 0


class Frail:
    """Before a replica's servers: dies when a call arrives and somebody asked for that."""

    def __init__(self, app: ASGIApp, books: Books) -> None:
        self._app = app
        self._books = books

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or none any more."""
        called = scope["type"] == "http" and (b"mcp-method", b"tools/call") in scope["headers"]
        if called and take(self._books.directory / DIE):
            os._exit(70)
        await self._app(scope, receive, send)


def take(fault: Path) -> bool:
    """Take a fault's file away -> whether it was this process that did."""
    try:
        fault.unlink()
    except FileNotFoundError:
        return False
    return True


def offer_wait(server: MCPServer[Any], books: Books, replica: str) -> None:
    """Add the tool that takes its time."""

    @server.tool(annotations=READS)
    async def wait(seconds: float, ctx: Context[Any, Any]) -> Waited:
        """Wait, and say how far it is."""
        seconds = min(seconds, LONGEST_S)
        steps = max(1, round(seconds / STEP_S))
        for step in range(steps):
            await ctx.report_progress(step, steps)
            await asyncio.sleep(seconds / steps)
            if step and take(books.directory / BREAK):
                os._exit(70)
        return {"seconds": seconds, "replica": replica}


def build_replica(books: Books, replica: str, credential: str) -> ASGIApp:
    """One replica: both servers in one ASGI application."""
    readonly = build_readonly(books, replica, FRESH_MS)
    offer_wait(readonly, books, replica)
    app = join_servers({"readonly": readonly, "payments": build_payments(books, replica)})
    return Doorstep(Frail(app, books), books, replica, credential)


def _data(issuer_url: str) -> dict[str, Any]:
    data = bank_data(issuer_url)
    data["servers"]["readonly"]["tools"]["wait"] = {"effect": "read", "scopes": ["bank:read"]}
    return data


PROVING = Place(
    ("readonly", "payments"), "gateway.demo.proving", _data, {"payments:write": ("bank:read",)}, {"pins": "warn"}
)
"""The same bank, under the same rules, with `wait`; it is told where a definition is not as accepted."""


def main() -> None:
    """`python -m gateway.demo.proving`: serve one replica until told to stop."""
    parser = argparse.ArgumentParser(prog="gateway.demo.proving", description="One replica.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--replica", required=True, help="the name that each answer carries")
    parser.add_argument("--books", type=Path, required=True, help="the directory that all replicas share")
    parser.add_argument("--lenient", action="store_true", help="an account that does not exist holds nothing")
    options = parser.parse_args()
    books = Lenient(options.books) if options.lenient else Books(options.books)
    app = build_replica(books, options.replica, os.environ[CREDENTIAL_ENV])
    uvicorn.run(app, host=require_loopback(options.host), port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
