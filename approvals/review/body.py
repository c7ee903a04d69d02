"""A request body, read under limits; as JSON: one reading, known members of known types and sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request

from approvals.reading import Unreadable, read_text

BODY_S = 15.0


class BodyRefused(Exception):  # noqa: N818 - the reader's own no
    """The body was not accepted: HTTP `status` and a stable name."""

    def __init__(self, status: int, name: str) -> None:
        super().__init__(name)
        self.status = status
        self.name = name


async def read_object(request: Request, limit: int) -> dict[str, Any]:
    """The body as one JSON object. Raises `BodyRefused` (400, 408, 413, 415)."""
    kind, _, charset = request.headers.get("content-type", "").partition(";")
    charset = charset.strip().lower().replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise BodyRefused(415, "content_unsupported")
    return parse_object(await read_bytes(request, limit))


async def read_bytes(request: Request, limit: int) -> bytes:
    """The body as it was sent. Raises `BodyRefused` (400, 408, 413, 415)."""
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise BodyRefused(415, "content_unsupported")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise BodyRefused(413, "body_too_large")
    except TimeoutError as fault:
        raise BodyRefused(408, "request_timeout") from fault
    except ClientDisconnect as fault:
        raise BodyRefused(400, "body_not_json") from fault
    return bytes(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """JSON text as one object: no member twice, not too deep. Raises `BodyRefused`."""
    try:
        return read_text(body)
    except Unreadable as fault:
        raise BodyRefused(400, f"body_{fault}") from fault


def text(body: Mapping[str, Any], name: str, most: int, *, default: str | None = None) -> str:
    """A member that is a string of at most `most` characters. Raises `BodyRefused`."""
    value = body.get(name, default)
    if not isinstance(value, str):
        raise BodyRefused(400, f"{name}_invalid")
    if len(value) > most:
        raise BodyRefused(400, f"{name}_too_long")
    return value


def only(body: Mapping[str, Any], *names: str) -> None:
    """Refuse members that are not among `names`."""
    if not body.keys() <= set(names):
        raise BodyRefused(400, "member_unknown")
