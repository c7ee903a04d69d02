"""A server on the official SDK and uvicorn, restarted while it is called.

`python -m tests.support.sdk_server PORT FILE NAME [LEAVE_S]`: each call appends "NAME n" to FILE, which several may
share. With LEAVE_S it is run by deploy/leaving.py, without it as the SDK's users run theirs.
"""

import os
import runpy
import sys
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import MCPServer

LEAVING = Path(__file__).parents[2] / "deploy/leaving.py"


def main(port: str, file: str, name: str, leave_s: str = "") -> None:
    """Serve until SIGTERM."""
    book = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    server: MCPServer[None] = MCPServer("ledger", log_level="WARNING")

    @server.tool()
    async def note(n: int) -> str:
        """Write a number down."""
        os.write(book, f"{name} {n}\n".encode())
        return "noted"

    app = server.streamable_http_app(streamable_http_path="/mcp", stateless_http=True)
    if leave_s:
        run = runpy.run_path(str(LEAVING))["run"]
        run(app, leave_s=float(leave_s), end_s=1, host="127.0.0.1", port=int(port), log_level="critical")
    else:
        uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="critical", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
