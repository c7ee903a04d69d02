"""The port to a fronted server: only what was admitted and recorded is forwarded, and only once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from gateway.contract.passage import Admitted, Call, Server


class UpstreamFault(Exception):  # noqa: N818 - a fault of the server behind, told apart by its subclasses
    """The server behind gave no acceptable answer.

    `sent` is False only if provably not one byte of the request left. `status` is that of the answer that is none, 0
    where no status came. `code` is that of the JSON-RPC error that answered a question of the house's own, else 0.
    `retries`: how often it was sent again before this came of it.
    """

    retries = 0

    def __init__(self, detail: str, *, sent: bool, replica: str = "", status: int = 0, code: int = 0) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.sent = sent
        self.replica = replica
        self.status = status


class UpstreamUnreachable(UpstreamFault):
    """No replica took the connection, or it broke before an answer's head."""


class UpstreamFull(UpstreamFault):
    """Every replica has as many calls as it may have, and no more may wait; or one waited for too long."""


class UpstreamTimeout(UpstreamFault):
    """The deadline passed before the answer's head, or between two pieces of it."""


class UpstreamInvalid(UpstreamFault):
    """An answer came that is not one: status, media type, coding, framing, size."""


class Answer(Protocol):
    """A server's answer whose head was read and accepted: status 200 or 202, JSON or SSE, or a JSON-RPC error."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def streaming(self) -> bool:
        """True for `text/event-stream`, False for `application/json` (or an empty 202)."""
        ...

    @property
    def replica(self) -> str:
        """The URL of the replica that answered, as configured."""
        ...

    @property
    def retries(self) -> int:
        """How often the request was sent again before this came; 0 for all but repeatable ones."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, never decoded; raises `UpstreamFault` subclasses. Bounded buffering."""
        ...

    async def whole(self) -> bytes:
        """The body of an answer that is no stream, once it is all there; raises `UpstreamFault` subclasses."""
        ...

    def interrupt(self) -> None:
        """Abort the request at once, also while somebody waits for a piece: who waits gets an `UpstreamFault`."""
        ...

    def release(self) -> None:
        """The response was read: let the stream end by itself, so that its connection serves other calls.

        What still comes is dropped; a stream that does not end within a second is closed. Then `close` does nothing.
        """
        ...

    async def close(self) -> None:
        """Abort the request at once if it still runs (the server sees the connection close). Safe to call twice."""
        ...


class Upstream(Protocol):
    """All fronted servers behind one port."""

    async def forward(self, admitted: Admitted) -> Answer:
        """Send what was admitted to one healthy replica of its server; return when the answer's head is here.

        A replica that refuses the connection is passed over and the next is tried only while not one byte was
        sent. No redirects, no decompression, no cookies; after a byte, one retry of what admission calls repeatable,
        and none of anything else. Raises `UpstreamFault` subclasses.
        """
        ...

    def has_room(self, server: str, expected: int = 0) -> bool:
        """Whether a call to it, after those that are `expected`, would find a place, or one to wait in."""
        ...

    async def inquire(self, server: Server, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The house's own question (`tools/list`, `server/discover`, ...) with its own credentials -> `result`.

        Only for methods that change nothing. Raises `UpstreamFault` subclasses, a JSON-RPC error included.
        """
        ...

    async def listen(self, server: Server, wanted: Mapping[str, bool]) -> tuple[Call, Answer]:
        """The house's own subscription, with its own credentials -> what was asked, and its event stream.

        `wanted` is the request's filter. The stream has no end of its own; one that is silent for too long ends with
        `UpstreamTimeout`. Raises `UpstreamFault` subclasses.
        """
        ...

    async def close(self) -> None:
        """Close the pools."""
        ...
