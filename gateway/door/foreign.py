"""The door's guarantees on an ASGI server that is not ours: slower, and only as good as that server's parser.

For tests of other parsers and for who embeds the application elsewhere; connection.py is what we serve with.
Same invariants for the edge: an immutable head, a body within its time, cancellation when the client goes away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.contract.refusals import Refusal, Refused
from gateway.door.framing import DoorLimits, Headers, judge_framing, refuse_aliases, trim_line

Message = MutableMapping[str, Any]


class ForeignDoor:
    """Stands in for a `Connection` during one request. Replaces `scope["headers"]` by a snapshot of them."""

    def __init__(
        self, scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Message]], limits: DoorLimits
    ):
        self.task: asyncio.Task[Any] | None = None
        self.fault: Refused | None = None
        self.lost = False
        self.request_complete = False
        self._receive = receive
        self.loop = asyncio.get_running_loop()
        self._deadline = self.loop.time() + limits.body_s
        self._watching: asyncio.Task[None] | None = None
        # Some servers append a trailer's fields to the live list: what counts is what is here now.
        headers: Headers = tuple([trim_line(name, value) for name, value in scope["headers"]])
        scope["headers"] = headers
        try:
            if len(headers) > limits.head_lines or sum(len(n) + len(v) + 4 for n, v in headers) > limits.head_bytes:
                raise Refused(Refusal.HEAD_TOO_LARGE)
            if scope["http_version"] not in {"1.1", "2", "3"}:
                raise Refused(Refusal.REQUEST_MALFORMED, "HTTP version")
            refuse_aliases(headers)
            judge_framing(headers)
        except Refused as refused:
            self.fault = refused

    async def receive(self) -> Message:
        """The server's next message; sets `fault` when the body does not come in time."""
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            self.fault = Refused(Refusal.REQUEST_TIMEOUT, "body")
            return {"type": "http.request", "body": b"", "more_body": True}
        if message["type"] == "http.disconnect":
            self.lost = True
        elif not message.get("more_body", False):
            self.request_complete = True
            self._watching = self.loop.create_task(self._watch())
        return message

    async def _watch(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect" and self.task is not None:
            self.lost = True
            self.task.cancel()
