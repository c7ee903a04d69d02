"""The official clients notice nothing of the gateway: all that the fixture server offers, directly and through it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ListRootsResult,
    LoggingMessageNotificationParams,
    PromptReference,
    ResourceTemplateReference,
    Root,
    TextContent,
)
from pydantic import BaseModel, FileUrl

from tests.conformance import stage, suite

TYPESCRIPT = Path(__file__).parents[1] / "e2e" / "typescript"
CALLS: dict[str, dict[str, Any]] = {
    "test_simple_text": {},
    "test_image_content": {},
    "test_audio_content": {},
    "test_embedded_resource": {},
    "test_resource_link": {},
    "test_multiple_content_types": {},
    "test_structured_content": {"city": "Zürich"},
    "test_error_handling": {},
    "test_x_mcp_header": {"region": "eu-west, or nöt"},
    "test_tool_with_progress": {},
    "test_logging_tool": {},
    "greet": {"name": "Ada"},
    "slow_compute": {"seconds": 0, "label": "at once"},
    "test_input_required_result_elicitation": {},
    "test_input_required_result_sampling": {},
    "test_input_required_result_list_roots": {},
    "test_input_required_result_multiple_inputs": {},
    "test_input_required_result_request_state": {},
    "test_input_required_result_multi_round": {},
    "test_streaming_elicitation": {},
    "test_elicitation": {"message": "Who are you?"},
    "test_elicitation_sep1034_defaults": {},
    "test_elicitation_sep1330_enums": {},
    "test_sampling": {"prompt": "Say something"},
    "test_missing_capability": {},
}
"""Every tool that a client without the tasks extension can call, with arguments."""
RESOURCES = ("test://static-text", "test://static-binary", "test://template/7/data", "test://nowhere")
PROMPTS: dict[str, dict[str, str]] = {
    "test_simple_prompt": {},
    "test_prompt_with_arguments": {"arg1": "one", "arg2": "zwei"},
    "test_prompt_with_embedded_resource": {"resourceUri": "test://static-text"},
    "test_prompt_with_image": {},
    "test_input_required_result_prompt": {},
}
CHANGES = {
    "test_trigger_tool_change": "ToolsListChanged()",
    "test_trigger_prompt_change": "PromptsListChanged()",
    "test_trigger_resource_update": "ResourceUpdated(uri='test://watched-resource')",
}


async def fill(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Accept every form."""
    return ElicitResult(action="accept", content={"name": "Ada", "color": "green", "ok": True, "context": "tests"})


async def sample(context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
    """A model that knows one sentence."""
    return CreateMessageResult(role="assistant", content=TextContent(type="text", text="So it is."), model="parrot")


async def roots(context: ClientRequestContext) -> ListRootsResult:
    """One root."""
    return ListRootsResult(roots=[Root(uri=FileUrl("file:///work"))])


async def attempt(asked: Awaitable[BaseModel]) -> Any:
    """The result as it would be written, or the error."""
    try:
        return (await asked).model_dump(by_alias=True, mode="json")
    except MCPError as error:
        return {"error": error.error.model_dump(by_alias=True, mode="json")}


async def python_client(url: str, token: str) -> dict[str, Any]:
    """All that the Python client can get from the server at `url`."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    logged: list[Any] = []

    async def note_log(params: LoggingMessageNotificationParams) -> None:
        logged.append(params.model_dump(by_alias=True, mode="json"))

    async with (
        httpx2.AsyncClient(headers=headers, timeout=30, trust_env=False) as http,
        Client(
            streamable_http_client(url, http_client=http),
            elicitation_callback=fill,
            sampling_callback=sample,
            list_roots_callback=roots,
            logging_callback=note_log,
            log_level="debug",
            mode="auto",
        ) as client,
    ):
        return {**await look_at_everything(client), "logged": logged}


async def look_at_everything(client: Client) -> dict[str, Any]:
    """Capabilities, lists, calls with their progress, resources, prompts, completions, subscriptions."""
    seen: dict[str, Any] = {
        "version": client.protocol_version,
        "capabilities": client.server_capabilities.model_dump(by_alias=True, mode="json"),
        "tools": await attempt(client.list_tools()),
        "prompts": await attempt(client.list_prompts()),
        "resources": await attempt(client.list_resources()),
        "templates": await attempt(client.list_resource_templates()),
    }
    reported: list[Any] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reported.append((progress, total, message))

    for name, arguments in CALLS.items():
        seen[name] = await attempt(client.call_tool(name, arguments, progress_callback=note))
    seen["progress"] = reported
    for uri in RESOURCES:
        seen[uri] = await attempt(client.read_resource(uri))
    for name, given in PROMPTS.items():
        seen[name] = await attempt(client.get_prompt(name, given))
    template = ResourceTemplateReference(type="ref/resource", uri="test://template/{id}/data")
    prompt = PromptReference(type="ref/prompt", name="test_prompt_with_arguments")
    seen["completed template"] = await attempt(client.complete(template, {"name": "id", "value": "par"}))
    seen["completed prompt"] = await attempt(client.complete(prompt, {"name": "arg1", "value": "r"}, {"arg2": "x"}))
    async with client.listen(
        tools_list_changed=True, prompts_list_changed=True, resource_subscriptions=["test://watched-resource"]
    ) as subscription:
        seen["honored"] = subscription.honored.model_dump(by_alias=True, mode="json")
        for trigger in CHANGES:
            await client.call_tool(trigger, {})
            async with asyncio.timeout(20):
                seen[trigger] = repr(await anext(subscription))
    return seen


async def typescript_client(url: str, token: str) -> dict[str, Any]:
    """All that the TypeScript client can get from the server at `url`."""
    node = shutil.which("node")
    if node is None or not (TYPESCRIPT / "node_modules/@modelcontextprotocol/client").is_dir():
        suite.missing("the TypeScript client is not installed: npm ci --prefix tests/e2e/typescript")
    process = await asyncio.create_subprocess_exec(
        str(node), "surface.mjs", cwd=TYPESCRIPT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    plan = {
        "url": url,
        "token": token,
        "calls": CALLS,
        "resources": RESOURCES,
        "prompts": PROMPTS,
        "triggers": list(CHANGES),
    }
    try:
        said, _ = await asyncio.wait_for(process.communicate(json.dumps(plan).encode()), 90)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    seen: dict[str, Any] = json.loads(said)
    return seen


Look = Callable[[str, str], Awaitable[dict[str, Any]]]


@pytest.mark.parametrize("look", [python_client, typescript_client])
async def test_a_client_sees_the_same_through_the_gateway(look: Look, tmp_path: Path) -> None:
    """Results, errors, progress, questions and notifications are those of the server, member by member."""
    async with stage.fixture_server(tmp_path) as replicas:
        direct = await look(replicas[0], "")
        async with await stage.gateway(tmp_path, replicas) as house:
            through = await look(house.endpoint(stage.NAME), stage.token(house))
    assert direct["version"] == "2026-07-28"
    refused = {name for name in (*CALLS, *PROMPTS) if "error" in direct[name]}
    assert not refused, {name: direct[name] for name in refused}
    assert direct["progress"]
    assert direct.get("logged", True)
    assert through.keys() == direct.keys()
    different = {name: (direct[name], through[name]) for name in direct if direct[name] != through[name]}
    assert not different, json.dumps(different, indent=1)[:6000]
