"""A bank on the official SDK whose `pay` asks for a confirmation: `python -m tests.e2e.asking_server PORT FILE NAME`.

Every replica reads the others' states; a payment is a durable line in FILE. It knows nothing of any gateway.
Annotations are evaluated as they stand here: the SDK could not find a resolver by its name alone.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.server.request_state import RequestStateSecurity
from mcp.types import ToolAnnotations
from pydantic import BaseModel


class Sure(BaseModel):
    """What somebody says who is asked."""

    sure: bool


def build(file: Path, name: str) -> MCPServer[Any]:
    """The server."""
    server: MCPServer[Any] = MCPServer(
        "bank", log_level="WARNING", request_state_security=RequestStateSecurity(keys=[b"of all replicas".ljust(32)])
    )

    def note(what: str) -> None:
        handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, f"{name} {what}\n".encode())
        os.fsync(handle)
        os.close(handle)

    async def ask(to: str, amount: int) -> Elicit[Sure]:
        note(f"asked {to} {amount}")
        return Elicit(f"Pay {amount} to {to}?", Sure)

    @server.tool(name="pay_soon", annotations=ToolAnnotations(read_only_hint=False))
    @server.tool(annotations=ToolAnnotations(read_only_hint=False))
    async def pay(to: str, amount: int, sure: Annotated[Sure, Resolve(ask)]) -> str:
        """Pay, once somebody is sure."""
        note(f"{'paid' if sure.sure else 'left'} {to} {amount}")
        return "paid" if sure.sure else "left"

    @server.tool(annotations=ToolAnnotations(read_only_hint=False))
    async def give(to: str, amount: int) -> str:
        """Pay, and ask nobody."""
        note(f"paid {to} {amount}")
        return "paid"

    return server


def main(port: str, file: str, name: str) -> None:
    """Serve until the process is ended."""
    app = build(Path(file), name).streamable_http_app(streamable_http_path="/mcp", stateless_http=True)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
