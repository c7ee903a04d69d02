"""Prompts, resources, completions, changes and traces between the official client and an official server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts import Prompt
from mcp.shared.exceptions import MCPError
from mcp.types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
    TextContent,
    ToolAnnotations,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.support.stack import Stack

LISTS: tuple[CacheableMethod, ...] = (
    "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read",
)  # fmt: skip
HOUR = CacheHint(ttl_ms=3_600_000, scope="public")
READS = {"effect": "read"}
DATA: dict[str, Any] = {
    "methods": {"server/discover": {}, "completion/complete": {}, "subscriptions/listen": {}},
    "tools": {"grow": READS},
    "prompts": {"report": {}, "absent": {}},
    "resources": {"file:///srv/data/": {}, "file:///etc/": {}},
}
README, TEMPLATE = "file:///srv/data/readme", "file:///srv/data/notes/{name}"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def build() -> MCPServer[Any]:
    """A server that offers more than its gateway lets through, and whose prompt learns an argument."""
    server = MCPServer[Any]("offers", version="1.0.0", log_level="ERROR", cache_hints=dict.fromkeys(LISTS, HOUR))

    def report(account: str, tone: str = "dry") -> str:
        return f"Report on {account}, {tone}."

    prompt = Prompt.from_function(report)
    assert prompt.arguments is not None
    tone = prompt.arguments.pop()
    server.add_prompt(prompt)

    @server.prompt()
    def hidden() -> str:
        return "canary"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def grow(ctx: Context[Any, Any]) -> str:
        """The prompt takes a tone from now on."""
        assert prompt.arguments is not None
        prompt.arguments.append(tone)
        await ctx.notify_prompts_changed()
        return "grown"

    @server.resource(README, mime_type="text/x-rst", title="Read me")
    async def readme() -> str:
        return "read"

    @server.resource("file:///etc/passwd")
    async def passwd() -> str:
        return "canary"

    @server.resource(TEMPLATE, mime_type="application/x-note")
    async def note(name: str) -> str:
        return f"note {name}"

    @server.resource("file:///etc/{name}.conf")
    async def conf(name: str) -> str:
        return f"canary {name}"

    @server.completion()  # type: ignore[no-untyped-call,untyped-decorator]
    async def complete(
        ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, _: CompletionContext | None
    ) -> Completion:
        return Completion(values=[f"{ref.type} {argument.value}"])

    return server


@dataclass
class Looking:
    """Writes down what arrives at a server: headers and body."""

    app: ASGIApp
    seen: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}

        async def look() -> Message:
            message = await receive()
            if message["type"] == "http.request" and message["body"]:
                self.seen.append((headers, orjson.loads(message["body"])))
            return message

        await self.app(scope, look, send)

    def of(self, method: str) -> list[tuple[dict[str, str], dict[str, Any]]]:
        """What came of one method for callers."""
        return [one for one in self.seen if one[1]["method"] == method and one not in self.own(method)]

    def own(self, method: str) -> list[tuple[dict[str, str], dict[str, Any]]]:
        """What the gateway asked for itself."""
        named = [one for one in self.seen if one[1]["method"] == method]
        return [one for one in named if str(one[1]["id"]).startswith("ostiary-")]


@contextlib.asynccontextmanager
async def behind() -> AsyncIterator[tuple[Looking, str]]:
    """The server on a port of its own -> what it saw, and its endpoint."""
    looking = Looking(build().streamable_http_app(streamable_http_path="/mcp", stateless_http=True))
    config = uvicorn.Config(looking, port=0, timeout_graceful_shutdown=1, log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(30):
            while not server.started:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield looking, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        await serving


@contextlib.asynccontextmanager
async def gateway(folder: Path, url: str) -> AsyncIterator[Stack]:
    """A gateway that lets nothing below /etc through, whatever its policy says."""
    settings = {"resources": {"allow": ["file:///srv/data/"]}}
    async with Stack(folder, {"offers": [url]}, data=DATA, settings=settings) as stack:
        yield stack


@contextlib.asynccontextmanager
async def connect(stack: Stack, mode: str = "auto") -> AsyncIterator[Client]:
    """The client as an application makes it, with its cache."""
    headers = {"Authorization": f"Bearer {stack.token('offers')}"}
    async with httpx2.AsyncClient(headers=headers, timeout=30, trust_env=False) as http:
        transport = streamable_http_client(stack.endpoint("offers"), http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


async def refused(code: int, asking: Any) -> MCPError:
    """The error that a request must meet."""
    with pytest.raises(MCPError) as caught:
        await asking
    assert caught.value.error.code == code, caught.value
    return caught.value


async def test_what_is_offered_is_what_can_be_had(tmp_path: Path) -> None:
    """Resources, templates, prompts, completions: shown and usable, or neither; MIME types as the server has them."""
    async with behind() as (looking, url), gateway(tmp_path, url) as stack, connect(stack) as client:
        offered = client.server_capabilities
        assert offered.prompts is not None
        assert offered.resources is not None
        assert offered.experimental is None
        resources = (await client.list_resources()).resources
        assert [(each.uri, each.mime_type, each.title) for each in resources] == [(README, "text/x-rst", "Read me")]
        templates = (await client.list_resource_templates()).resource_templates
        assert [(each.uri_template, each.mime_type) for each in templates] == [(TEMPLATE, "application/x-note")]
        read = await client.read_resource(README)
        assert [(each.uri, each.mime_type) for each in read.contents] == [(README, "text/x-rst")]
        note = await client.read_resource("file:///srv/data/notes/one")
        assert note.contents[0].mime_type == "application/x-note"
        before = len(looking.of("resources/read"))
        for uri in (
            "file:///etc/passwd",
            "file:///etc/x.conf",
            "file:///srv/data/notes/%2e%2e",
            "file:///srv/data/../x",
        ):
            await refused(40302, client.read_resource(uri))
        assert len(looking.of("resources/read")) == before

        prompts = (await client.list_prompts()).prompts
        assert [prompt.name for prompt in prompts] == ["report"]
        got = await client.get_prompt("report", {"account": "payroll"})
        assert isinstance(got.messages[0].content, TextContent)
        assert got.messages[0].content.text == "Report on payroll, dry."
        before = len(looking.of("prompts/get"))
        hidden, absent = (
            await refused(40302, client.get_prompt("hidden")),
            await refused(40302, client.get_prompt("absent")),
        )
        assert hidden.error.message == absent.error.message
        assert "account" in (await refused(-32602, client.get_prompt("report"))).error.message
        unknown = await refused(-32602, client.get_prompt("report", {"account": "a", "tone": "dry"}))
        assert "tone" in unknown.error.message
        assert len(looking.of("prompts/get")) == before

        argument = {"name": "account", "value": "pay"}
        found = await client.complete(PromptReference(type="ref/prompt", name="report"), argument)
        assert found.completion.values == ["ref/prompt pay"]
        template = ResourceTemplateReference(type="ref/resource", uri=TEMPLATE)
        found = await client.complete(template, {"name": "name", "value": "on"})
        assert found.completion.values == ["ref/resource on"]
        before = len(looking.of("completion/complete"))
        await refused(40302, client.complete(template, {"name": "name", "value": "../../etc/"}))
        await refused(40302, client.complete(PromptReference(type="ref/prompt", name="hidden"), argument))
        for uri in ("file:///etc/{name}.conf", "file:///srv/data/other/{name}"):
            await refused(40302, client.complete(ResourceTemplateReference(type="ref/resource", uri=uri), argument))
        assert len(looking.of("completion/complete")) == before


async def test_a_prompt_that_its_server_changed_is_another_within_seconds(tmp_path: Path) -> None:
    """The list lives for an hour; the server says that it changed, and the gateway knows."""
    async with behind() as (looking, url), gateway(tmp_path, url) as stack, connect(stack) as client:
        toned = {"account": "payroll", "tone": "warm"}
        await refused(-32602, client.get_prompt("report", toned))
        async with asyncio.timeout(30):
            # Once it listens, the gateway asks anew: until then the list may have changed unheard.
            while len(looking.own("subscriptions/listen")) < 1 or len(looking.own("prompts/list")) < 2:
                await refused(-32602, client.get_prompt("report", toned))
                await asyncio.sleep(0.1)
        await client.call_tool("grow")
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(MCPError):
                    got = await client.get_prompt("report", toned)
                    break
                await asyncio.sleep(0.1)
        assert isinstance(got.messages[0].content, TextContent)
        assert got.messages[0].content.text == "Report on payroll, warm."
        assert '"list_changed"' in stack.log()


async def test_one_trace_goes_through_client_gateway_and_server(tmp_path: Path) -> None:
    """The client's trace id is the server's and the record's; baggage travels in the body and as a header."""
    meta: Any = {"traceparent": PARENT, "tracestate": "a=1", "baggage": "user=alice,tier=gold;x=y"}
    async with behind() as (looking, url), gateway(tmp_path, url) as stack, connect(stack) as client:
        await client.get_prompt("report", {"account": "payroll"}, meta=meta)
        ((headers, message),) = looking.of("prompts/get")
        assert {name: headers[name] for name in meta} == meta
        assert {name: message["params"]["_meta"][name] for name in meta} == meta
        async with asyncio.timeout(30):
            while len(found := [one for one in stack.records() if one.get("method") == "prompts/get"]) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert [(one["kind"], one["trace_id"]) for one in found] == [("decision", TRACE), ("outcome", TRACE)]
        wrong: Any = {"baggage": "not baggage", "traceparent": "x"}
        await client.get_prompt("report", {"account": "payroll"}, meta=wrong)
        headers, _ = looking.of("prompts/get")[-1]
        assert not {"traceparent", "tracestate", "baggage"} & headers.keys()
