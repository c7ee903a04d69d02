"""A server that believes its headers, whatever they say: the rules that they must keep are the gateway's."""

from __future__ import annotations

import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
MIRRORED = (b"mcp-", b"content-length")


class Careless:
    """Writes the MCP headers of each request anew from its body, so that nothing behind it ever finds them wrong."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = await read(receive)
        kept = [line for line in scope["headers"] if not line[0].startswith(MIRRORED)]
        lines = [(name.encode(), value.encode()) for name, value in headers_of(json.loads(body)).items()]
        length = (b"content-length", str(len(body)).encode())
        told = False

        async def again() -> Message:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": body}

        await self._app({**scope, "headers": [*kept, *lines, length]}, again, send)


async def read(receive: Receive) -> bytes:
    """A request's whole body."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


def headers_of(message: dict[str, Any]) -> dict[str, str]:
    """The headers that a right client would have sent with this body, for the tools of this server."""
    params = message.get("params", {})
    headers = {
        "mcp-protocol-version": params.get("_meta", {}).get("io.modelcontextprotocol/protocolVersion", ""),
        "mcp-method": message["method"],
    }
    if message["method"] in NAMED:
        headers["mcp-name"] = str(params.get(NAMED[message["method"]]))
    region = params.get("arguments", {}).get("region")
    if region is not None:
        headers["mcp-param-region"] = region
    return headers
