"""Tasks over real processes: a server that checks no ownership gets an owner for every task from the gateway.

Two replicas share a store and number their tasks; the client is the official one. First the server alone shows what
it gives away; then the gateway in front of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, ElicitRequestParams, ElicitResult, Request, RequestParams, Result, TextContent
from pydantic import ConfigDict, Field

from tests.support.processes import eventually
from tests.support.stack import HOLD, Stack, body
from tests.support.task_server import Shelf

DATA = {
    "tools": {
        "count": {"effect": "read"},
        "ask": {"effect": "read"},
        "now": {"effect": "read"},
        "pay": {"effect": "write", "approval": HOLD},
    },
    "methods": {"subscriptions/listen": {}},
}


class TaskResult(Result):
    """A task's state, made or told."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = Field(alias="resultType")
    task_id: str = Field(alias="taskId")


class Told(Result):
    """What `tasks/get` answers."""

    model_config = ConfigDict(extra="allow")
    task_id: str = Field(alias="taskId")
    status: str
    result: dict[str, Any] | None = None
    asked: dict[str, Any] | None = Field(default=None, alias="inputRequests")


class TaskParams(RequestParams):
    """A task's id."""

    task_id: str = Field(alias="taskId")
    input_responses: dict[str, Any] | None = Field(default=None, alias="inputResponses")


class Get(Request[TaskParams, Literal["tasks/get"]]):
    """`tasks/get`, with the header that the transport wants."""

    method: Literal["tasks/get"] = "tasks/get"
    name_param = "taskId"


class Update(Request[TaskParams, Literal["tasks/update"]]):
    """`tasks/update`."""

    method: Literal["tasks/update"] = "tasks/update"
    name_param = "taskId"


class Cancel(Request[TaskParams, Literal["tasks/cancel"]]):
    """`tasks/cancel`."""

    method: Literal["tasks/cancel"] = "tasks/cancel"
    name_param = "taskId"


class Tasks(ClientExtension):
    """A client that sees its tasks through: it polls, answers, and returns the tool's result."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, says: Mapping[str, Any] | None = None) -> None:
        self._says = says or {"n": 7}

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """`resultType: "task"`."""
        return [ResultClaim(result_type="task", model=TaskResult, resolve=self.resolve)]

    async def resolve(self, made: TaskResult, ctx: ClaimContext) -> CallToolResult:
        """Poll until it is done."""
        async with asyncio.timeout(30):
            while True:
                told = await ctx.session.send_request(Get(params=TaskParams(taskId=made.task_id)), Told)
                assert told.task_id == made.task_id
                if told.status == "completed":
                    assert told.result is not None
                    return CallToolResult.model_validate(told.result)
                assert told.status in ("working", "input_required"), told
                if told.asked:
                    answers = {key: {"action": "accept", "content": self._says} for key in told.asked}
                    update = Update(params=TaskParams(taskId=made.task_id, inputResponses=answers))
                    await ctx.session.send_request(update, Result)
                await asyncio.sleep(0.01)


async def never_asked(context: Any, params: ElicitRequestParams) -> ElicitResult:
    """What declares the capability; tasks ask through their state."""
    raise AssertionError(f"a question that is not a task's: {context} {params}")


@contextlib.asynccontextmanager
async def connect(
    stack: Stack, server: str = "main", *, opens_pages: bool = True, **token: Any
) -> AsyncIterator[Client]:
    """The official client at the gateway; one that `opens_pages` would be sent to a held call's page instead."""
    bearer = stack.token(server, **token)
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {bearer}"}, timeout=30, trust_env=False) as http:
        transport = streamable_http_client(stack.endpoint(server), http_client=http)
        async with Client(
            transport,
            mode="2026-07-28",
            extensions=[Tasks()],
            elicitation_callback=never_asked if opens_pages else None,
        ) as client:
            yield client


@contextlib.asynccontextmanager
async def replica(file: Path, name: str) -> AsyncIterator[str]:
    """A replica's process -> its endpoint."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.task_server", str(file), name,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        port = int(await asyncio.wait_for(process.stdout.readline(), 60))
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Stack, Shelf, Sequence[str]]]:
    """Two careless replicas, and a gateway of two workers that fronts them under two names."""
    shelf = Shelf(folder / "tasks.db")
    async with contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(replica(folder / "tasks.db", name)) for name in ("one", "two")]
        for url in urls:
            await reachable(url)
        house = Stack(folder, {"main": urls, "other": urls}, workers=2, data=DATA)
        house.changes = {
            "identity": {
                "issuers": [
                    {
                        "issuer": house.issuer.name,
                        "jwks_file": "jwks.json",
                        "algorithms": ["ES256"],
                        "tenant_claim": "tenant",
                    }
                ]
            }
        }
        await stack.enter_async_context(house)
        yield house, shelf, urls


async def reachable(url: str) -> None:
    """A replica has bound its port before it serves it."""
    port = httpx.URL(url).port
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.05)


def capable(method: str, params: dict[str, Any], request_id: int = 1) -> dict[str, Any]:
    """A request of a client that can handle tasks and questions."""
    message = body(method, params, request_id)
    message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {
        "extensions": {"io.modelcontextprotocol/tasks": {}},
        "elicitation": {},
    }
    return message


def about(handle: str, method: str) -> dict[str, Any]:
    """A request about a task."""
    if method == "subscriptions/listen":
        return capable(method, {"notifications": {"taskIds": [handle]}})
    return capable(method, {"taskId": handle, **({"inputResponses": {}} if method == "tasks/update" else {})})


def text_of(result: CallToolResult) -> str:
    """A result's first text."""
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


METHODS = ("tasks/get", "tasks/update", "tasks/cancel", "subscriptions/listen")


@pytest.mark.timeout(180)
async def test_tasks_through_the_gateway(tmp_path: Path) -> None:
    """Made, polled over both replicas, answered, cancelled, followed, approved: by the official client, unchanged."""
    async with running(tmp_path) as (stack, shelf, _):
        async with connect(stack, tenant="acme") as client:
            for _ in range(4):
                assert text_of(await client.call_tool("count", {})) == "counted"
            assert text_of(await client.call_tool("ask", {})) == "asked: 7"
            assert text_of(await client.call_tool("now", {})) == "done"
            polled = {(where, task) for where, method, task in shelf.arrivals() if method == "tasks/get"}
            assert {where for where, _ in polled} == {"one", "two"}
            assert {task for _, task in polled} == {"1", "2", "3", "4", "5"}, "the server hears its own ids"

            made = await client.session.call_tool("count", {}, allow_claimed=True)
            assert isinstance(made, TaskResult)
            handle = made.task_id
            await client.session.send_request(Cancel(params=TaskParams(taskId=handle)), Result)
            told = await client.session.send_request(Get(params=TaskParams(taskId=handle)), Told)
            assert (told.status, told.task_id) == ("cancelled", handle)

        token = stack.token("main", tenant="acme")
        discovered = (await stack.post("main", body("server/discover"), token)).json()["result"]
        assert "io.modelcontextprotocol/tasks" in discovered["capabilities"]["extensions"]
        made_anew = await stack.post("main", capable("tools/call", {"name": "count", "arguments": {}}), token)
        handle = made_anew.json()["result"]["taskId"]
        followed = await stack.post("main", about(handle, "subscriptions/listen"), token)
        events = [json.loads(line[6:]) for line in followed.text.splitlines() if line.startswith("data: ")]
        assert events[0]["params"]["notifications"] == {"taskIds": [handle]}
        assert {event["params"]["taskId"] for event in events[1:-1]} == {handle}
        assert events[-2]["params"]["result"]["content"][0]["text"] == "counted"
        assert events[-1]["result"]["resultType"] == "complete"

        await approve_and_pay(stack, token, shelf)


async def approve_and_pay(stack: Stack, token: str, shelf: Shelf) -> None:
    """A held call is a task of the gateway's, then of its server, under one id; the approval is used once."""
    approvals = {"Authorization": f"Bearer {stack.person('bob', tenant='acme')}"}
    async with httpx.AsyncClient(trust_env=False, headers=approvals, base_url=stack.url) as http:

        async def pending() -> str:
            async with asyncio.timeout(30):
                while not (found := (await http.get("/approvals?state=pending")).json()["tickets"]):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            return str(found[0]["id"])

        async with connect(stack, opens_pages=False, tenant="acme") as client:
            paying = asyncio.create_task(client.call_tool("pay", {"cents": 5}))
            ticket = await pending()
            before = len(shelf.arrivals())
            yes = await http.post(f"/approvals/{ticket}/approve", json={"comment": "fine"})
            assert yes.status_code == 200, yes.text
            assert text_of(await paying) == "counted"
        assert len(calls_of(shelf, before)) == 1
        assert [run["state"] for run in (await http.get(f"/approvals/{ticket}")).json()["runs"]] == ["executed"]

        pay = capable("tools/call", {"name": "pay", "arguments": {"cents": 5}})
        handle = (await stack.post("main", pay, token)).json()["result"]["taskId"]
        assert (await stack.post("main", pay, token)).json()["result"]["taskId"] == handle
        assert await pending() != ticket
        yes = await http.post(f"/approvals/{await pending()}/approve", json={"comment": "fine"})
        assert yes.status_code == 200, yes.text
        async with asyncio.timeout(30):
            while len(calls_of(shelf, before)) < 2:
                told = await stack.post("main", about(handle, "tasks/get"), token)
                assert told.json()["result"]["taskId"] == handle, told.text
                await asyncio.sleep(0.01)
        await until_relayed(stack, handle, token)
        assert (await stack.post("main", about(handle, "tasks/update"), token)).json()["error"]["code"] == 40302
        assert (await stack.post("main", about(handle, "tasks/cancel"), token)).status_code == 200

        other = capable("tools/call", {"name": "pay", "arguments": {"cents": 6}})
        handle = (await stack.post("main", other, token)).json()["result"]["taskId"]
        ticket = await pending()
        assert (await stack.post("main", about(handle, "tasks/update"), token)).status_code == 200
        assert (await stack.post("main", about(handle, "tasks/cancel"), token)).status_code == 200
        assert (await http.get(f"/approvals/{ticket}")).json()["state"] == "withdrawn"
        told = await stack.post("main", about(handle, "tasks/get"), token)
        assert told.json()["result"]["status"] == "cancelled"
        assert len(calls_of(shelf, before)) == 2


def calls_of(shelf: Shelf, before: int) -> list[tuple[str, str, str]]:
    """The calls of tools that arrived since."""
    return [arrival for arrival in shelf.arrivals()[before:] if arrival[1] == "tools/call"]


async def until_relayed(stack: Stack, handle: str, token: str) -> None:
    """Wait until the poll of a held call is answered by its server."""
    async with asyncio.timeout(30):
        told: dict[str, Any] = {}
        while told.get("pollIntervalMs") != 10:
            told = (await stack.post("main", about(handle, "tasks/get"), token)).json()["result"]


@pytest.mark.timeout(180)
async def test_handle_theft(tmp_path: Path) -> None:
    """Another's task, another tenant's, another server's, a guess: each looks like one that does not exist.

    Byte for byte but for the decision's id, and in the same time; the server, which would tell anybody, is not asked.
    """
    async with running(tmp_path) as (stack, shelf, urls):
        alice = stack.token("main", tenant="acme")
        made = await stack.post("main", capable("tools/call", {"name": "count", "arguments": {}}), alice)
        handle = made.json()["result"]["taskId"]
        assert await take_from_the_server(urls[0]) == "1", "the server itself gives the task to anybody"

        thefts: dict[str, tuple[str, str, str]] = {
            "another user": ("main", stack.token("main", "mallory", tenant="acme"), handle),
            "another tenant": ("main", stack.token("main", tenant="globex"), handle),
            "another server": ("other", stack.token("other", tenant="acme"), handle),
            "the server's id": ("main", stack.token("main", "mallory", tenant="acme"), "1"),
            "the owner with the server's id": ("main", alice, "1"),
            "a guess": ("main", alice, "2"),
            "a changed one": ("main", alice, handle[:-1] + ("A" if handle[-1] != "A" else "Q")),
            "nothing at all": ("main", alice, "786512e2-9e0d-44bd-8f29-789f320fe840"),
        }
        took: dict[str, list[float]] = {name: [] for name in thefts}
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            for method in METHODS:
                good = await stack.post("main", about(handle, method), alice, http)
                assert good.status_code == 200, (method, good.text)
                before, replies = len(shelf.arrivals()), {}
                for name, (server, token, text) in thefts.items():
                    for _ in range(7):
                        began = time.perf_counter()
                        answer = await stack.post(server, about(text, method), token, http)
                        took[name].append(time.perf_counter() - began)
                        replies[name] = bare(answer)
                assert replies["nothing at all"][0] == 400
                assert replies["nothing at all"][2]["error"]["code"] == -32602
                assert all(reply == replies["nothing at all"] for reply in replies.values()), (method, replies)
                assert len(shelf.arrivals()) == before, "the server was asked"
        typical = {name: statistics.median(times) for name, times in took.items()}
        assert max(typical.values()) < 3 * min(typical.values()) + 0.02, typical

        expected = 7 * len(thefts) * len(METHODS)
        refusals: list[dict[str, Any]] = []

        def all_there() -> bool:
            written = [*stack.records(0), *stack.records(1)]
            refusals[:] = [record for record in written if record["kind"] == "refusal"]
            return len(refusals) == expected

        await eventually("every theft is in the record", all_there)
        assert {record["reasons"][0] for record in refusals} == {"task_unknown"}
        assert all(record["verdict"] == "allow" and record["detail"].startswith("handle: ") for record in refusals)
        async with connect(stack, subject="mallory", tenant="acme") as client:
            with pytest.raises(MCPError) as caught:
                await client.session.send_request(Get(params=TaskParams(taskId=handle)), Told)
        assert (caught.value.error.code, caught.value.error.message) == (-32602, "There is no such task.")


async def take_from_the_server(url: str) -> str:
    """Ask a replica itself for task 1, without any credential -> the task that it tells of."""
    message = about("1", "tasks/get")
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tasks/get",
        "Mcp-Name": "1",
    }
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(url, json=message, headers=headers)
    return str(answer.json()["result"]["taskId"])


def bare(answer: httpx.Response) -> tuple[int, list[str], dict[str, Any], int]:
    """An answer without the one id that differs."""
    document = copy.deepcopy(answer.json())
    document["error"]["data"].pop("decisionId")
    return answer.status_code, sorted(answer.headers), document, len(answer.content)
