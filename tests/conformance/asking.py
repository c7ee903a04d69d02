"""What the suite expects of a server that needs something of its caller: elicitation, sampling, roots, capabilities.

A modern caller is asked by `input_required` and comes back with `inputResponses`. A caller of 2025-11-25 is asked
over the stream of its own call, so the tools of that revision's scenarios know both ways.
"""

from __future__ import annotations

import json
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import Message
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp.types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ClientCapabilities,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)

from tests.conformance.offering import says

MODERN = "2026-07-28"
DEFAULTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
}
ENUMS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {
            "type": "string",
            "oneOf": [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)],
        },
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {
            "type": "array",
            "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
        },
        "titledMulti": {
            "type": "array",
            "items": {"anyOf": [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]},
        },
    },
}


def form(message: str, **properties: str) -> ElicitRequest:
    """A form of required fields, each with its JSON type."""
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(text: str, max_tokens: int = 100) -> CreateMessageRequest:
    """One question to the caller's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=max_tokens))


def filled(ctx: Context, key: str) -> dict[str, Any] | None:
    """The fields of an accepted form, or `None` while it was not answered."""
    answer = (ctx.input_responses or {}).get(key)
    return dict(answer.content or {}) if isinstance(answer, ElicitResult) else None


def model_said(answer: object) -> str:
    """The text of a sampling result."""
    if isinstance(answer, CreateMessageResult | CreateMessageResultWithTools) and isinstance(
        answer.content, TextContent
    ):
        return answer.content.text
    return ""


def needs(ctx: Context, state: str | None = None, **requests: InputRequest) -> InputRequiredResult:
    """Ask. Raises `MCPError` where the caller did not declare that it can answer."""
    declared = ctx.client_capabilities or ClientCapabilities()
    able = {
        "elicitation": declared.elicitation is not None,
        "sampling": declared.sampling is not None,
        "roots": declared.roots is not None,
    }
    wanted = {request.method.partition("/")[0] for request in requests.values()}
    if lacking := {name for name in wanted if not able[name]}:
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            "this needs a capability that the caller does not have",
            {"requiredCapabilities": {name: {} for name in sorted(lacking)}},
        )
    return InputRequiredResult(input_requests=requests, request_state=state)


def ask_once(server: MCPServer[Any]) -> None:
    """Tools and a prompt that ask one thing, or several at once."""

    @server.tool()
    async def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
        """Asks for a name."""
        answer = filled(ctx, "user_name")
        if answer is None:
            return needs(ctx, user_name=form("What is your name?", name="string"))
        return f"Hello, {answer.get('name')}!"

    @server.tool()
    async def test_input_required_result_sampling(ctx: Context) -> str | InputRequiredResult:
        """Asks the caller's model."""
        answer = (ctx.input_responses or {}).get("capital_question")
        if answer is None:
            return needs(ctx, capital_question=sampling("What is the capital of France?"))
        return model_said(answer)

    @server.tool()
    async def test_input_required_result_list_roots(ctx: Context) -> str | InputRequiredResult:
        """Asks for the caller's roots."""
        answer = (ctx.input_responses or {}).get("client_roots")
        if not isinstance(answer, ListRootsResult):
            return needs(ctx, client_roots=ListRootsRequest())
        return f"{len(answer.roots)} root(s)"

    @server.tool()
    async def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequiredResult:
        """Asks three things at once."""
        if {"user_name", "greeting", "client_roots"} <= (ctx.input_responses or {}).keys():
            return "all three answered"
        return needs(
            ctx,
            "three-asked",
            user_name=form("What is your name?", name="string"),
            greeting=sampling("Generate a greeting", 50),
            client_roots=ListRootsRequest(),
        )

    @server.tool()
    async def test_input_required_result_capabilities(ctx: Context) -> InputRequiredResult:
        """Asks only for what the caller declared."""
        declared = ctx.client_capabilities
        requests: dict[str, InputRequest] = {}
        if declared is not None and declared.sampling is not None:
            requests["sample"] = sampling("Say hello", 50)
        if declared is not None and declared.elicitation is not None:
            requests["ask"] = form("What is your name?", name="string")
        return InputRequiredResult(input_requests=requests, request_state="asked-what-was-declared")

    @server.prompt()
    async def test_input_required_result_prompt(ctx: Context) -> list[Message] | InputRequiredResult:
        """A prompt that asks for its context."""
        answer = filled(ctx, "user_context")
        if answer is None:
            return needs(ctx, user_context=form("What context should the prompt use?", context="string"))
        return says(f"Use this context: {answer.get('context')}")


def ask_with_state(server: MCPServer[Any]) -> None:
    """Tools that hand the caller a state to bring back."""

    @server.tool()
    async def test_input_required_result_request_state(ctx: Context) -> str | InputRequiredResult:
        """Wants its state back."""
        if ctx.request_state == "first-round" and filled(ctx, "confirm") is not None:
            return "state-ok: confirmed"
        return needs(ctx, "first-round", confirm=form("Please confirm", ok="boolean"))

    @server.tool()
    async def test_input_required_result_tampered_state(ctx: Context) -> str | InputRequiredResult:
        """Wants its state back untouched; the SDK seals it."""
        if ctx.request_state is not None:
            return f"state-ok: {ctx.request_state}"
        return needs(ctx, "untouched", confirm=form("Please confirm", ok="boolean"))

    @server.tool()
    async def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
        """Asks twice; the second question knows the first answer."""
        state = json.loads(ctx.request_state or "{}")
        name, color = filled(ctx, "step1"), filled(ctx, "step2")
        if state.get("round") == 2 and color is not None:
            return f"{state['name']} likes {color.get('color')}."
        if state.get("round") == 1 and name is not None:
            state = json.dumps({"round": 2, "name": name.get("name")})
            return needs(ctx, state, step2=form("Step 2: What is your favorite color?", color="string"))
        return needs(ctx, json.dumps({"round": 1}), step1=form("Step 1: What is your name?", name="string"))

    @server.tool()
    async def test_missing_capability(ctx: Context) -> str:
        """Can't work for a caller without sampling."""
        declared = ctx.client_capabilities
        if declared is None or declared.sampling is None:
            raise MCPError(
                MISSING_REQUIRED_CLIENT_CAPABILITY,
                "this tool needs the caller's sampling",
                {"requiredCapabilities": {"sampling": {}}},
            )
        return "sampling is declared"

    @server.tool()
    async def test_streaming_elicitation(ctx: Context) -> str | InputRequiredResult:
        """Streams progress, then asks."""
        await ctx.report_progress(1, 2)
        answer = filled(ctx, "user_name")
        if answer is None:
            return needs(ctx, user_name=form("What is your name?", name="string"))
        return f"Hello, {answer.get('name')}!"


async def elicited(ctx: Context, request: ElicitRequest) -> ElicitResult | InputRequiredResult:
    """Ask for a form, in whichever way the caller's revision has."""
    if ctx.protocol_version == MODERN:
        answer = (ctx.input_responses or {}).get("form")
        return answer if isinstance(answer, ElicitResult) else needs(ctx, form=request)
    result: ElicitResult = await ctx.session.send_request(
        request, ElicitResult, metadata=ServerMessageMetadata(ctx.request_id)
    )
    return result


def ask_both_ways(server: MCPServer[Any]) -> None:
    """The tools of 2025-11-25's scenarios."""

    @server.tool()
    async def test_sampling(prompt: str, ctx: Context) -> str | InputRequiredResult:
        """Asks the caller's model."""
        request = sampling(prompt)
        if ctx.protocol_version == MODERN:
            modern = (ctx.input_responses or {}).get("sample")
            return needs(ctx, sample=request) if modern is None else f"LLM response: {model_said(modern)}"
        answer = await ctx.session.send_request(
            request, CreateMessageResult, metadata=ServerMessageMetadata(ctx.request_id)
        )
        return f"LLM response: {model_said(answer)}"

    @server.tool()
    async def test_elicitation(message: str, ctx: Context) -> str | InputRequiredResult:
        """Asks its caller for a name and an address."""
        answer = await elicited(ctx, form(message, username="string", email="string"))
        if isinstance(answer, InputRequiredResult):
            return answer
        return f"User response: action={answer.action}, content={json.dumps(answer.content)}"

    @server.tool()
    async def test_elicitation_sep1034_defaults(ctx: Context) -> str | InputRequiredResult:
        """A form with a default for every primitive type."""
        request = ElicitRequest(
            params=ElicitRequestFormParams(message="Please review your details", requested_schema=DEFAULTS)
        )
        answer = await elicited(ctx, request)
        if isinstance(answer, InputRequiredResult):
            return answer
        return f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}"

    @server.tool()
    async def test_elicitation_sep1330_enums(ctx: Context) -> str | InputRequiredResult:
        """A form with every kind of choice."""
        request = ElicitRequest(params=ElicitRequestFormParams(message="Please choose", requested_schema=ENUMS))
        answer = await elicited(ctx, request)
        if isinstance(answer, InputRequiredResult):
            return answer
        return f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}"
