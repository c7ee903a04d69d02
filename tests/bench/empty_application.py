"""An ASGI application that does nothing but read a request and answer: the least that uvicorn costs."""

from __future__ import annotations

from typing import Any

ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","content":[{"type":"text","text":"' + b"x" * 200
ANSWER += b'"}]}}'
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())],
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Read the whole body, answer."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send(START)
    await send({"type": "http.response.body", "body": ANSWER})
