"""The tasks extension for the fixture server: the SDK has none, but a place to plug one in.

Every replica shares one `Jobs`, as replicas of a real server share a store: what one started, the other can tell.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding, ToolBinding
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitResult,
    InputRequiredResult,
    RequestParams,
    TextContent,
)

from tests.conformance.asking import MODERN, form

EXTENSION = "io.modelcontextprotocol/tasks"
HEADER_MISMATCH = -32020
FINAL = frozenset({"completed", "failed", "cancelled"})


class TaskParams(RequestParams):
    """`tasks/get` and `tasks/cancel`."""

    task_id: str


class UpdateParams(TaskParams):
    """`tasks/update`."""

    input_responses: dict[str, Any]


def now() -> str:
    """The time, as tasks carry it."""
    return datetime.now(UTC).isoformat()


def text(said: str, *, is_error: bool = False) -> dict[str, Any]:
    """A tool's result."""
    result = CallToolResult(content=[TextContent(type="text", text=said)], is_error=is_error)
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


@dataclass
class Job:
    """One task: what it shows, and what it waits for."""

    task_id: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    created: str = field(default_factory=now)
    updated: str = field(default_factory=now)
    status: str = "working"
    outcome: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, ElicitRequest] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    runner: asyncio.Task[None] | None = None

    def move(self, status: str, **outcome: Any) -> None:
        """Go to a status."""
        self.status, self.outcome, self.updated = status, outcome, now()

    def shown(self) -> dict[str, Any]:
        """The members that a task has everywhere."""
        return {
            "taskId": self.task_id,
            "status": self.status,
            "createdAt": self.created,
            "lastUpdatedAt": self.updated,
            "ttlMs": 300_000,
            "pollIntervalMs": 100,
        }

    def detailed(self) -> dict[str, Any]:
        """The answer to `tasks/get`."""
        asked = {
            key: one.model_dump(by_alias=True, mode="json", exclude_none=True) for key, one in self.asked.items()
        }
        waiting = {"inputRequests": asked} if self.status == "input_required" else {}
        return {"resultType": "complete", **self.shown(), **self.outcome, **waiting}

    async def ask(self, **requests: ElicitRequest) -> dict[str, Any]:
        """Wait until each request has its answer -> the answers."""
        self.asked = dict(requests)
        self.move("input_required")
        await self.answered.wait()
        self.move("working")
        return self.answers

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Take the answers to what was asked; others are passed over."""
        for key in responses.keys() & self.asked.keys():
            self.answers[key] = responses[key]
            del self.asked[key]
        if self.answers and not self.asked:
            self.answered.set()


Work = Callable[[Job, Mapping[str, Any]], Awaitable[dict[str, Any]]]


async def compute(job: Job, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Take as long as one is told to."""
    await asyncio.sleep(float(arguments.get("seconds", 0)))
    return text(f"computed {arguments.get('label', '')}")


async def fail(job: Job, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A tool that ran, and says that it did not work."""
    await asyncio.sleep(0.2)
    return text("the job did not work", is_error=True)


async def break_down(job: Job, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A tool that never came to a result."""
    await asyncio.sleep(0.1)
    raise MCPError(-32603, "the job broke down")


async def confirm(job: Job, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Ask once, then do it."""
    answers = await job.ask(confirm=form(f"Delete {arguments.get('filename')}?", confirm="boolean"))
    return text(f"confirmed: {answers['confirm'].get('action')}")


async def ask_twice(job: Job, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Ask two things at once."""
    answers = await job.ask(first=form("A name?", name="string"), second=form("Sure?", confirm="boolean"))
    return text(f"{len(answers)} answers")


async def greet_later(job: Job, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Say what was gathered before the task was made."""
    return text(f"Hello, {arguments['gathered']}!")


WORK: dict[str, Work] = {
    "slow_compute": compute,
    "failing_job": fail,
    "protocol_error_job": break_down,
    "confirm_delete": confirm,
    "multi_input": ask_twice,
    "test_tool_with_task": greet_later,
}


def greet(name: str) -> str:
    """Never a task."""
    return f"Hello, {name}!"


async def slow_compute(seconds: float = 0, label: str = "") -> str:
    """A task for who knows tasks, a wait for who does not."""
    await asyncio.sleep(min(seconds, 5))
    return f"computed {label}"


def failing_job() -> str:
    """A task only."""
    raise NotImplementedError


def protocol_error_job() -> str:
    """A task only."""
    raise NotImplementedError


def confirm_delete(filename: str = "") -> str:
    """A task only."""
    raise NotImplementedError


def multi_input() -> str:
    """A task only."""
    raise NotImplementedError


def test_tool_with_task() -> str:
    """Asks first, and becomes a task then."""
    raise NotImplementedError


class Jobs(Extension):
    """All tasks of all replicas."""

    identifier = EXTENSION

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}

    def tools(self) -> Sequence[ToolBinding]:
        """What may become a task, and what never does."""
        functions: list[Callable[..., Any]] = [
            greet, slow_compute, failing_job, protocol_error_job, confirm_delete, multi_input, test_tool_with_task,
        ]  # fmt: skip
        return [ToolBinding(function) for function in functions]

    def methods(self) -> Sequence[MethodBinding]:
        """The three methods on a task."""
        only = frozenset({MODERN})
        return [
            MethodBinding("tasks/get", TaskParams, self.get, only),
            MethodBinding("tasks/update", UpdateParams, self.update, only),
            MethodBinding("tasks/cancel", TaskParams, self.cancel, only),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Make a task of a call that may be one."""
        work = WORK.get(params.name)
        if work is None or (params.name == "slow_compute" and not declared(ctx)):
            return await call_next(ctx)
        require(ctx)
        arguments = dict(params.arguments or {})
        if params.name == "test_tool_with_task":
            answer = (params.input_responses or {}).get("user_name")
            if not isinstance(answer, ElicitResult):
                return InputRequiredResult(
                    input_requests={"user_name": form("What is your name?", name="string")},
                    request_state="before-the-task",
                )
            arguments["gathered"] = (answer.content or {}).get("name")
        job = Job()
        self.jobs[job.task_id] = job
        job.runner = asyncio.create_task(run(job, work, arguments))
        return {"resultType": "task", **job.shown()}

    async def get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        """How a task stands."""
        return self.find(ctx, params).detailed()

    async def update(self, ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> HandlerResult:
        """Answers to what a task asked."""
        job = self.find(ctx, params)
        if job.status == "input_required":
            job.answer(params.input_responses)
        return {"resultType": "complete"}

    async def cancel(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        """Stop a task; one that has ended stays as it is."""
        job = self.find(ctx, params)
        if job.status not in FINAL:
            job.move("cancelled")
            if job.runner is not None:
                job.runner.cancel()
        return {"resultType": "complete"}

    def find(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> Job:
        """A task of a caller who knows tasks and says the same in the header. Raises `MCPError`."""
        require(ctx)
        header = getattr(ctx.request, "headers", {}).get("mcp-name")
        if header != params.task_id:
            raise MCPError(HEADER_MISMATCH, "the header Mcp-Name is not the taskId")
        if params.task_id not in self.jobs:
            raise MCPError(INVALID_PARAMS, "there is no such task")
        return self.jobs[params.task_id]


async def run(job: Job, work: Work, arguments: Mapping[str, Any]) -> None:
    """Do a task's work and keep how it ended."""
    try:
        job.move("completed", result=await work(job, arguments))
    except MCPError as error:
        job.move("failed", error={"code": error.error.code, "message": error.error.message})


def declared(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether the caller knows tasks."""
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and EXTENSION in (capabilities.extensions or {})


def require(ctx: ServerRequestContext[Any, Any]) -> None:
    """Turn away a caller who does not know tasks."""
    if not declared(ctx):
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            "this needs the tasks extension",
            {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
        )
