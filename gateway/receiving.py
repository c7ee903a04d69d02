"""The control plane put together: its door and its metadata from the start, what people need once somebody comes.

Where people sign in, that is at the start: they will come, and what is wrong with it is to be known then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

import structlog

from gateway.asgi import Asgi, Receive, Scope, Send
from gateway.control import (
    ControlDoor,
    Documents,
    metadata_documents,
    statement_documents,
)
from gateway.reception import Behind, Reception

Open = Callable[[], Awaitable[Asgi]]


async def open_control(behind: Behind, opened: AsyncExitStack) -> ControlDoor:
    """The control plane behind its door. What was opened is closed by the stack `opened`."""
    plan, reception = behind.plan, Reception(behind)
    documents = {
        **metadata_documents(plan.servers.values(), plan.approvals),
        **statement_documents(plan.statement_keys),
    }

    async def open_parlour() -> Asgi:
        open_it = await asyncio.to_thread(_load_parlour)  # the loop serves calls meanwhile
        return open_it(reception, documents, opened)

    late = Late(open_parlour)
    opened.push_async_callback(late.close)
    if plan.settings.sign_in is not None:
        await late.open()
    return ControlDoor(Documents(documents, late), plan.hosts, reception.turn_away)


def _load_parlour() -> Callable[[Reception, Mapping[str, bytes], AsyncExitStack], Asgi]:
    from gateway.parlour import open_parlour  # noqa: PLC0415 - a sixth of a second, and 20 MB: see above

    return open_parlour


class Late:
    """An application that is opened once, when it is asked for the first time; who comes meanwhile waits for that."""

    def __init__(self, open_it: Open) -> None:
        self._open_it = open_it
        self._opening: asyncio.Task[Asgi] | None = None
        self._app: Asgi | None = None

    async def open(self) -> Asgi:
        """The application, opened by now. Raises what opening it raises; whoever comes next tries again."""
        if self._app is not None:
            return self._app
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open())
        # Whoever waits may leave; the others still want it.
        return await asyncio.shield(self._opening)

    async def _open(self) -> Asgi:
        self._app = app = await self._open_it()  # also where nobody waits for it any more
        structlog.get_logger("house").info("control_plane_opened")
        return app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await (self._app or await self.open())(scope, receive, send)

    async def close(self) -> None:
        """Nothing is opened any more behind whoever closes the rest."""
        if self._opening is not None and not self._opening.done():
            await asyncio.wait({self._opening})
