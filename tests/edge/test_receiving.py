"""What people need is opened once somebody comes for it; what clients ask for before they have a token is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from gateway.asgi import Asgi
from gateway.control import Documents
from gateway.receiving import Late

Told = list[MutableMapping[str, Any]]


async def nothing() -> MutableMapping[str, Any]:
    return {"type": "http.request"}


async def ask(app: Asgi, path: str, method: str = "GET") -> Told:
    said: Told = []

    async def send(message: MutableMapping[str, Any]) -> None:
        said.append(message)

    await app({"type": "http", "method": method, "raw_path": path.encode()}, nothing, send)
    return said


def answering(text: bytes) -> Asgi:
    async def app(_scope: Any, _receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        await send({"type": "text", "body": text})

    return app


async def test_a_document_is_answered_with_nothing_else_open() -> None:
    """Metadata asks nothing of what is opened for people; another method or path is theirs to answer."""
    app = Documents({"/.well-known/thing": b"{}"}, answering(b"rest"))
    start, body = await ask(app, "/.well-known/thing")
    assert start["status"] == 200
    assert (b"content-type", b"application/json") in start["headers"]
    assert (b"cache-control", b"public, max-age=300") in start["headers"]
    assert body["body"] == b"{}"
    for path, method in (("/.well-known/thing", "POST"), ("/.well-known/thin", "GET"), ("/approvals", "GET")):
        assert [one["body"] for one in await ask(app, path, method)] == [b"rest"]


class SlowOpening:
    """Says that it has begun, waits until it may go on, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.opened, self.begun, self.go_on = 0, asyncio.Event(), asyncio.Event()

    async def __call__(self) -> Asgi:
        """The opening."""
        self.opened += 1
        self.begun.set()
        await self.go_on.wait()
        return answering(b"there")


async def test_it_is_opened_once_and_whoever_leaves_takes_it_from_nobody() -> None:
    """Two who come at once wait for one opening, and it goes on when the first of them breaks off."""
    slow = SlowOpening()
    late = Late(slow)
    first, second = (asyncio.create_task(ask(late, "/approvals")) for _ in range(2))
    await slow.begun.wait()
    first.cancel()
    await asyncio.wait({first})
    slow.go_on.set()
    assert [one["body"] for one in await second] == [b"there"]
    assert [one["body"] for one in await ask(late, "/approvals")] == [b"there"]
    assert first.cancelled()
    assert slow.opened == 1


async def test_what_was_opened_for_somebody_who_left_is_open() -> None:
    """It goes on when the only one who came for it breaks off, and is not opened once more for the next."""
    slow = SlowOpening()
    late = Late(slow)
    first = asyncio.create_task(ask(late, "/approvals"))
    await slow.begun.wait()
    first.cancel()
    await asyncio.wait({first})
    slow.go_on.set()
    await late.close()
    assert [one["body"] for one in await ask(late, "/approvals")] == [b"there"]
    assert slow.opened == 1


async def test_what_could_not_be_opened_is_tried_again() -> None:
    """A failure is told to who waits for it, and the next one finds it opened if it can be by then."""
    tries = 0

    async def open_it() -> Asgi:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("no descriptor is left")
        return answering(b"there")

    late = Late(open_it)
    with pytest.raises(OSError, match="no descriptor is left"):
        await ask(late, "/approvals")
    assert [one["body"] for one in await ask(late, "/approvals")] == [b"there"]


async def test_nothing_is_opened_behind_whoever_closes() -> None:
    """Who closes waits for an opening that is under way: what it opens can still be closed."""
    steps: list[str] = []

    async def open_it() -> Asgi:
        await asyncio.sleep(0)
        steps.append("opened")
        return answering(b"there")

    late = Late(open_it)
    asking = asyncio.create_task(ask(late, "/approvals"))
    await asyncio.sleep(0)
    await late.close()
    steps.append("closed")
    await asking
    assert steps == ["opened", "closed"]
