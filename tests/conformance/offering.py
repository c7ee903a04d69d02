"""What the suite expects a server to offer without asking anything back: tools, resources, prompts, completion.

Names and contents are those that the suite's scenarios state for the server under test.
"""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import Message, UserMessage
from mcp.server.mcpserver.tools.base import Tool
from mcp.types import (
    AudioContent,
    Completion,
    CompletionArgument,
    CompletionContext,
    EmbeddedResource,
    ImageContent,
    PromptReference,
    ResourceLink,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel, Field

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
WAV = base64.b64encode(
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x40\x1f\0\0\1\0\x08\0data\0\0\0\0"
).decode()
KEYWORDS: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
"""The input schema that the suite wants to see again keyword by keyword."""


class Weather(BaseModel):
    """A structured result."""

    city: str
    celsius: float
    conditions: list[str]


def keywords_tool() -> Tool:
    """A tool whose input schema is given, not derived from its function."""

    def schema_tool() -> str:
        """Shows a schema of many keywords."""
        return "ok"

    tool = Tool.from_function(schema_tool, name="json_schema_2020_12_tool")
    return tool.model_copy(update={"parameters": KEYWORDS})


def text_resource(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    """A resource inside a result."""
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))


def picture() -> ImageContent:
    """The smallest of pictures."""
    return ImageContent(type="image", data=PNG, mime_type="image/png")


def says(text: str) -> list[Message]:
    """A prompt of one message of text."""
    return [UserMessage(content=TextContent(type="text", text=text))]


def offer_contents(server: MCPServer[Any]) -> None:
    """Tools that answer at once: one for each kind of content."""

    @server.tool()
    def test_simple_text() -> str:
        """A text."""
        return "This is a simple text response for testing."

    @server.tool()
    def test_image_content() -> list[ImageContent]:
        """A picture."""
        return [picture()]

    @server.tool()
    def test_audio_content() -> list[AudioContent]:
        """A sound."""
        return [AudioContent(type="audio", data=WAV, mime_type="audio/wav")]

    @server.tool()
    def test_embedded_resource() -> list[EmbeddedResource]:
        """A resource, whole."""
        return [text_resource("test://embedded-resource", "This is an embedded resource content.")]

    @server.tool()
    def test_resource_link() -> list[ResourceLink]:
        """A resource, named."""
        return [ResourceLink(type="resource_link", name="static text", uri="test://static-text")]

    @server.tool()
    def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
        """Text, picture and resource together."""
        return [
            TextContent(type="text", text="Multiple content types test:"),
            picture(),
            text_resource(
                "test://mixed-content-resource", json.dumps({"test": "data", "value": 123}), "application/json"
            ),
        ]

    @server.tool()
    def test_structured_content(city: str) -> Weather:
        """A structured result with an output schema."""
        return Weather(city=city, celsius=21.5, conditions=["dry", "windless"])

    @server.tool()
    def test_error_handling() -> str:
        """Never works."""
        raise ToolError("This tool intentionally returns an error for testing")

    @server.tool()
    def test_x_mcp_header(
        region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "nowhere",
    ) -> str:
        """An argument that a header mirrors."""
        return f"region: {region}"


def offer_work(server: MCPServer[Any]) -> None:
    """Tools that say something while they run, and those that change what is listed."""

    @server.tool()
    async def test_tool_with_logging(ctx: Context) -> str:
        """Logs three times."""
        for step in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.info(step)
        return "Tool with logging executed successfully"

    @server.tool()
    async def test_logging_tool(ctx: Context) -> str:
        """Logs once, if the caller wants logs."""
        await ctx.info("one line")
        return "logged"

    @server.tool()
    async def test_tool_with_progress(ctx: Context) -> str:
        """Reports progress three times."""
        for done in (0, 50, 100):
            await ctx.report_progress(done, 100, f"Completed step {done} of 100")
        return "all steps completed"

    @server.tool()
    async def test_trigger_tool_change(ctx: Context) -> str:
        """Adds a tool, takes it away, and tells who listens."""
        ctx.mcp_server.add_tool(lambda: "short-lived", name="test_short_lived_tool")
        ctx.mcp_server.remove_tool("test_short_lived_tool")
        await ctx.notify_tools_changed()
        return "tools changed"

    @server.tool()
    async def test_trigger_prompt_change(ctx: Context) -> str:
        """Tells who listens that the prompts changed."""
        await ctx.notify_prompts_changed()
        return "prompts changed"

    @server.tool()
    async def test_trigger_resource_update(ctx: Context) -> str:
        """Tells who listens that the watched resource changed."""
        await ctx.notify_resource_updated("test://watched-resource")
        return "resource updated"

    @server.tool()
    async def test_reconnection(ctx: Context) -> str:
        """Ends its stream in mid-call; the answer waits for who comes back."""
        await ctx.close_sse_stream()
        return "Reconnection test completed"


def offer_resources(server: MCPServer[Any]) -> None:
    """Resources, a template, and completion of its variable."""

    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        """A text."""
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        """Bytes."""
        return base64.b64decode(PNG)

    @server.resource("test://watched-resource", mime_type="text/plain")
    def watched_resource() -> str:
        """One that changes."""
        return "Watched resource content"

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template_data(id: str) -> str:  # noqa: A002 - the template's variable
        """One of many."""
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})

    @server.completion()  # type: ignore[no-untyped-call, untyped-decorator] # the SDK does not type it
    async def complete(
        ref: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion:
        known = [value for value in ("paris", "park", "party", "rome") if value.startswith(argument.value)]
        return Completion(values=known, total=len(known), has_more=False)


def offer_prompts(server: MCPServer[Any]) -> None:
    """Prompts of every kind of content."""

    @server.prompt()
    def test_simple_prompt() -> list[Message]:
        """No arguments."""
        return says("This is a simple prompt for testing.")

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> list[Message]:
        """Two arguments."""
        return says(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'")

    @server.prompt()
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:  # noqa: N803 - the suite's name
        """A resource inside."""
        return [
            UserMessage(content=text_resource(resourceUri, "Embedded resource content for testing.")),
            *says("Please process the embedded resource above."),
        ]

    @server.prompt()
    def test_prompt_with_image() -> list[Message]:
        """A picture inside."""
        return [UserMessage(content=picture()), *says("Please analyze the image above.")]
