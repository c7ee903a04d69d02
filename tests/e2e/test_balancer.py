"""The example for nginx (deploy/nginx.conf) in front of gateways that come and go. test_rolling.py has real ones."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import orjson

from tests.support.nginx import balanced
from tests.support.ports import free_port
from tests.support.stack import body, call, headers_of
from tests.support.upstream import SSE_HEAD, Exchange, ScriptedUpstream, answer, chunk

FORGIVEN_S = 1


async def ask(port: int, message: dict[str, object]) -> tuple[bytes, asyncio.StreamWriter]:
    """The status line, and the connection, which is still open."""
    content = orjson.dumps(message)
    lines = {"Host": f"127.0.0.1:{port}", **headers_of(message), "Content-Length": len(content)}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /main/mcp HTTP/1.1\r\n" + head.encode() + b"\r\n" + content)
    return await reader.readline(), writer


async def serve(exchange: Exchange) -> None:
    """Subscriptions go on."""
    if b"subscriptions/listen" in exchange.seen.body:
        await exchange.send(SSE_HEAD + chunk(b": here\n\n"))
        await exchange.gone(60)
    else:
        await answer(exchange)


async def test_a_gateway_that_is_back_has_calls_whatever_subscriptions_it_was_given_first(tmp_path: Path) -> None:
    """OPS-01: nginx takes one that was out for back when a request that it tried is over. A subscription is no such
    request, or the other gateway's restart would leave nobody for calls."""
    front, port, loop = free_port(), free_port(), asyncio.get_running_loop()
    message = body("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    async with contextlib.AsyncExitStack() as stack:
        other = ScriptedUpstream(serve)
        await other.start()
        stack.push_async_callback(other.stop)
        errors = await stack.enter_async_context(
            balanced(tmp_path / "nginx", front, [port, other.port], "500ms", FORGIVEN_S)
        )

        async def expect(asked: dict[str, object]) -> None:
            line, writer = await ask(front, asked)
            stack.callback(writer.close)
            assert line.split()[1] == b"200", (line, errors.read_text())

        while "refused" not in errors.read_text():
            await expect(call("read", {}))
        async with ScriptedUpstream(serve, port) as back:
            until = loop.time() + FORGIVEN_S + 1.5
            while loop.time() < until:
                await expect(message)
                await asyncio.sleep(0.1)
            assert any(b"subscriptions/listen" in seen.body for seen in back.seen)
            await other.stop()
            for _ in range(3):
                await expect(call("read", {}))
