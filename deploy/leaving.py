"""For an MCP server on uvicorn that is restarted while it is called: copy it, and run your server by it.

    leaving.run(mcp.streamable_http_app(stateless_http=True), port=8000)

Uvicorn alone, told to end, closes connections on which a request may just have arrived, and nobody may send such a
call again. Here SIGTERM only begins the end. For `leave_s` everything is served as before, each answer says
`Connection: close`, and GET /ready says 503, so that a balancer takes another replica; after that uvicorn ends as it
always does, and nobody is sending any more. What is not answered within another `end_s` is cut off: subscriptions,
which uvicorn would wait for until it is killed. docs/operations.md, "A server behind the gateway is restarted".
"""

from __future__ import annotations

import signal
import time
from typing import Any

import uvicorn


class Leaving(uvicorn.Server):
    """A server that says for `leave_s` seconds that it ends, and then does."""

    def __init__(self, config: uvicorn.Config, leave_s: float) -> None:
        super().__init__(config)
        self.leave_s = leave_s
        self.ends_at = 0.0

    def handle_exit(self, sig: int, frame: Any) -> None:
        """The first SIGTERM is the beginning; a second one, or SIGINT, is meant at once."""
        if sig == signal.SIGTERM and not self.ends_at:
            self.ends_at = time.monotonic() + self.leave_s
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if self.ends_at and time.monotonic() >= self.ends_at:
            self.should_exit = True
        return await super().on_tick(counter)


def run(app: Any, *, leave_s: float = 10.0, end_s: int = 15, ready: str = "/ready", **options: Any) -> None:
    """Serve `app` (ASGI) with uvicorn's options until it is told to end, then `leave_s`, and `end_s` for the rest."""

    async def door(scope: Any, receive: Any, send: Any) -> None:
        async def tell(message: Any) -> None:
            if server.ends_at and message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() != b"connection"]
                message = {**message, "headers": [*kept, (b"connection", b"close")]}
            await send(message)

        if scope["type"] == "http" and scope["path"] == ready:
            await tell({"type": "http.response.start", "status": 503 if server.ends_at else 204})
            await send({"type": "http.response.body"})
        else:
            await app(scope, receive, tell if scope["type"] == "http" else send)

    server = Leaving(uvicorn.Config(door, timeout_graceful_shutdown=end_s, **options), leave_s)
    server.run()
