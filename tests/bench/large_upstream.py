"""An upstream whose large answers were made before anybody asked, and the calls that ask for them.

    python -m tests.bench.large_upstream --port PORT

It looks at nothing of a request but its tool: `argument` takes a megabyte, `result` and `event` answer with one in
one piece, `stream` in 250 events; the same in ASCII under `argument-ascii` and so on; `long` and `slow` answer with
a stream of many megabytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import cast

import orjson
import uvloop

from tests.support.stack import DATA, body
from tests.support.upstream import SSE_HEAD, chunk, http, result_of

MEGABYTE = 1_000_000
LINE = "The quick brown fox jumps over the lazy dog, \u201cagain\u201d; and it counts: 0123456789.\n"
"""Not all of it is ASCII, and its end is escaped in JSON: the dearer kind of text."""

ASCII = "-ascii"
EVENT_BYTES = 4000
KINDS = ("argument", "result", "stream", "event")
CASES = (*KINDS, *(kind + ASCII for kind in KINDS))
LONG = {"long": 100, "slow": 20}
"""Tool -> megabytes of its stream."""

TOOLS = (*CASES, *LONG)
TOOLS_DATA = {**DATA, "tools": {name: {"effect": "read", "scopes": ["files:read"]} for name in TOOLS}}
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}, "number": {"type": "integer"}}}


def line_of(tool: str) -> str:
    """A line of the text that this tool is about; both kinds have the same length in characters."""
    return LINE.replace("\u201c", "'").replace("\u201d", "'") if tool.endswith(ASCII) else LINE


def text_of(tool: str) -> str:
    """A megabyte of such lines."""
    line = line_of(tool)
    return line * (MEGABYTE // len(line.encode()))


def call_of(tool: str) -> str:
    """The body of a call, `NUMBER` in its arguments."""
    arguments = {"number": 0, **({"text": text_of(tool)} if tool.startswith("argument") else {})}
    message = body("tools/call", {"name": tool, "arguments": arguments})
    message["params"]["_meta"]["progressToken"] = 1
    return orjson.dumps(message).decode().replace('"number":0', '"number":NUMBER', 1)


def progress(number: int, line: str = LINE) -> bytes:
    """A notification of `EVENT_BYTES`, as an event."""
    params = {"progressToken": 1, "progress": number, "message": line * (EVENT_BYTES // len(line))}
    return event(orjson.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))


def event(text: bytes) -> bytes:
    """One event."""
    return b"data: " + text + b"\n\n"


SMALL = result_of(1, content=[{"type": "text", "text": "x" * 200}])


def answer_of(tool: str) -> bytes:
    """What one of `CASES` answers."""
    kind = tool.removesuffix(ASCII)
    if kind == "argument":
        return http(200, SMALL)
    if kind == "stream":
        events = [progress(number, line_of(tool)) for number in range(MEGABYTE // EVENT_BYTES)]
        return SSE_HEAD + b"".join(map(chunk, [*events, event(SMALL)])) + chunk(b"")
    large = result_of(1, content=[{"type": "text", "text": text_of(tool)}])
    return http(200, large) if kind == "result" else SSE_HEAD + chunk(event(large)) + chunk(b"")


ANSWERS = {tool: answer_of(tool) for tool in CASES}


class Large(asyncio.BufferedProtocol):
    """One connection, one request at a time. The tool is read from `Mcp-Name`."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._room = memoryview(bytearray(1 << 18))
        self._head = b""
        self._left = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._stream: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._stream is not None:
            self._stream.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        if self._left:
            self._left -= nbytes
            if not self._left:
                self._answer(b"")
            return
        self._head += self._room[:nbytes]
        head, found, rest = self._head.partition(b"\r\n\r\n")
        if found:
            self._head = head.lower()
            at = self._head.index(b"content-length:") + 15
            self._left = int(self._head[at:].partition(b"\r\n")[0]) - len(rest)
            if not self._left:
                self._answer(rest)

    def _answer(self, whole: bytes) -> None:
        head, self._head = self._head, b""
        tool = head.partition(b"mcp-name:")[2].partition(b"\r\n")[0].strip().decode()
        if tool in LONG:
            self._stream = asyncio.get_running_loop().create_task(self._send(LONG[tool]))
        else:
            self.transport.write(ANSWERS.get(tool) or http(200, _list(whole)))

    async def _send(self, megabytes: int) -> None:
        self.transport.write(SSE_HEAD)
        for number in range(megabytes * MEGABYTE // EVENT_BYTES):
            await self._writable.wait()
            self.transport.write(chunk(progress(number)))
        self.transport.write(chunk(event(SMALL)) + chunk(b""))


def _list(question: bytes) -> bytes:
    tools = [{"name": name, "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}} for name in TOOLS]
    return result_of(json.loads(question)["id"], tools=tools, ttlMs=60000, cacheScope="public")


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Large, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(_serve(parser.parse_args().port))
