"""An MCP server on the official SDK that runs tools as tasks and checks no ownership at all: who names a task has it.

Its ids are numbers, in order. Several processes over one store are replicas of each other. `python -m
tests.support.task_server STORE REPLICA` listens on a free port and prints it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CallToolRequestParams, RequestParams
from pydantic import Field
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
FINAL = ("completed", "failed", "cancelled")
QUESTION = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "How many?",
        "requestedSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
}


class Shelf:
    """The tasks, and which requests arrived where; one SQLite file for all replicas."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with self._open() as store:
            store.execute("PRAGMA journal_mode=WAL")
            store.execute(
                "CREATE TABLE IF NOT EXISTS task (id INTEGER PRIMARY KEY, state TEXT, polls INTEGER DEFAULT 0)"
            )
            store.execute("CREATE TABLE IF NOT EXISTS arrival (replica TEXT, method TEXT, task TEXT)")

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        store = sqlite3.connect(self._file, timeout=20, isolation_level="IMMEDIATE")
        try:
            with store:
                yield store
        finally:
            store.close()

    def arrive(self, replica: str, method: str, task_id: str) -> None:
        """Write down a request."""
        with self._open() as store:
            store.execute("INSERT INTO arrival VALUES (?, ?, ?)", (replica, method, task_id))

    def arrivals(self) -> list[tuple[str, str, str]]:
        """All requests for tools and tasks: replica, method, task."""
        with self._open() as store:
            return list(store.execute("SELECT replica, method, task FROM arrival ORDER BY rowid"))

    def make(self, tool: str) -> dict[str, Any]:
        """A new task's state."""
        now = datetime.now(UTC).isoformat()
        state: dict[str, Any] = {
            "status": "working",
            "createdAt": now,
            "lastUpdatedAt": now,
            "ttlMs": 60_000,
            "pollIntervalMs": 10,
        }
        if tool == "ask":
            state |= {"status": "input_required", "inputRequests": {"q": QUESTION}}
        with self._open() as store:
            number = store.execute("INSERT INTO task (state) VALUES ('{}')").lastrowid
            state["taskId"] = str(number)
            store.execute("UPDATE task SET state = ? WHERE id = ?", (json.dumps(state), number))
        return state

    def poll(self, task_id: str) -> dict[str, Any]:
        """A task's state; work is done once it was asked for twice. Whose it is, nobody asks."""
        with self._open() as store:
            row = store.execute(
                "UPDATE task SET polls = polls + 1 WHERE id = ? RETURNING state, polls", (task_id,)
            ).fetchone()
            if row is None:
                raise MCPError(INVALID_PARAMS, "Failed to retrieve task: Task not found")
            state: dict[str, Any] = json.loads(row[0])
            if state["status"] == "working" and row[1] > 2:
                state = self._end(store, state, "counted")
        return state

    def answer(self, task_id: str, responses: dict[str, Any]) -> None:
        """The input that a task waited for."""
        with self._open() as store:
            state = self._find(store, task_id)
            if state["status"] == "input_required" and "q" in responses:
                del state["inputRequests"]
                self._end(store, state, f"asked: {responses['q']['content']['n']}")

    def cancel(self, task_id: str) -> None:
        """Give a task up."""
        with self._open() as store:
            state = self._find(store, task_id)
            if state["status"] not in FINAL:
                state.pop("inputRequests", None)
                self._keep(store, {**state, "status": "cancelled"})

    def _find(self, store: sqlite3.Connection, task_id: str) -> dict[str, Any]:
        row = store.execute("SELECT state FROM task WHERE id = ?", (task_id,)).fetchone()
        if row is None:
            raise MCPError(INVALID_PARAMS, "Failed to retrieve task: Task not found")
        state: dict[str, Any] = json.loads(row[0])
        return state

    def _end(self, store: sqlite3.Connection, state: dict[str, Any], text: str) -> dict[str, Any]:
        result = {"content": [{"type": "text", "text": text}], "isError": False}
        return self._keep(store, {**state, "status": "completed", "result": result})

    @staticmethod
    def _keep(store: sqlite3.Connection, state: dict[str, Any]) -> dict[str, Any]:
        store.execute("UPDATE task SET state = ? WHERE id = ?", (json.dumps(state), state["taskId"]))
        return state


class TaskParams(RequestParams):
    """What `tasks/get` and `tasks/cancel` take."""

    task_id: str = Field(alias="taskId")


class UpdateParams(TaskParams):
    """What `tasks/update` takes."""

    input_responses: dict[str, Any] = Field(alias="inputResponses")


class Tasks(Extension):
    """The extension, as carelessly as can be."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, shelf: Shelf, replica: str) -> None:
        self._shelf = shelf
        self._replica = replica

    def methods(self) -> list[MethodBinding]:
        """The three methods."""
        return [
            MethodBinding("tasks/get", TaskParams, self._get),
            MethodBinding("tasks/update", UpdateParams, self._update),
            MethodBinding("tasks/cancel", TaskParams, self._cancel),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Every tool becomes a task, but for `now`."""
        if params.name == "now":
            return await call_next(ctx)
        state = self._shelf.make(params.name)
        self._shelf.arrive(self._replica, "tools/call", state["taskId"])
        return {"resultType": "task", **state}

    async def _get(self, _ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        self._shelf.arrive(self._replica, "tasks/get", params.task_id)
        return {"resultType": "complete", **self._shelf.poll(params.task_id)}

    async def _update(self, _ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> HandlerResult:
        self._shelf.arrive(self._replica, "tasks/update", params.task_id)
        self._shelf.answer(params.task_id, params.input_responses)
        return {"resultType": "complete"}

    async def _cancel(self, _ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        self._shelf.arrive(self._replica, "tasks/cancel", params.task_id)
        self._shelf.cancel(params.task_id)
        return {"resultType": "complete"}


class Listening:
    """`subscriptions/listen` to tasks, which the SDK does not offer: in front of its application."""

    def __init__(self, app: ASGIApp, shelf: Shelf, replica: str) -> None:
        self._app = app
        self._shelf = shelf
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take the one method, pass on all others."""
        headers = dict(scope.get("headers", ()))
        if headers.get(b"mcp-method") != b"subscriptions/listen":
            await self._app(scope, receive, send)
            return
        asked = await Request(scope, receive).json()
        await StreamingResponse(self._tell(asked), media_type="text/event-stream")(scope, receive, send)

    async def _tell(self, asked: dict[str, Any]) -> AsyncIterator[bytes]:
        meta = {SUBSCRIPTION_ID: asked["id"]}
        ids = asked["params"]["notifications"]["taskIds"]
        acknowledged = {"notifications": {"taskIds": ids}, "_meta": meta}
        yield _event(method="notifications/subscriptions/acknowledged", params=acknowledged)
        waiting = list(ids)
        while waiting:
            for task_id in list(waiting):
                self._shelf.arrive(self._replica, "subscriptions/listen", task_id)
                state = self._shelf.poll(task_id)
                yield _event(method="notifications/tasks", params={**state, "_meta": meta})
                if state["status"] in FINAL:
                    waiting.remove(task_id)
            await asyncio.sleep(0.01)
        yield _event(id=asked["id"], result={"resultType": "complete", "_meta": meta})


def _event(**message: Any) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n"


def build(file: Path, replica: str) -> ASGIApp:
    """One replica."""
    shelf = Shelf(file)
    server: MCPServer[Any] = MCPServer(
        "tasks", version="1", log_level="WARNING", extensions=[Tasks(shelf, replica)], subscriptions=False
    )

    @server.tool(structured_output=False)
    async def count() -> str:
        """Work that takes a while."""
        return ""

    @server.tool(structured_output=False)
    async def ask() -> str:
        """Work that needs an answer."""
        return ""

    @server.tool(structured_output=False)
    async def pay() -> str:
        """Work that a person must approve."""
        return ""

    @server.tool(structured_output=False)
    async def now() -> str:
        """No task at all."""
        return "done"

    return Listening(server.streamable_http_app(stateless_http=True), shelf, replica)


def main() -> None:
    """Serve until the process is ended."""
    file, replica = Path(sys.argv[1]), sys.argv[2]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(build(file, replica), log_level="warning", lifespan="on")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
