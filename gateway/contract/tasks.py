"""What a server may say of a task, and under which id its owner hears it (tasks extension; contract.md section 5).

The server's own id stays behind: what creates a task, tells of one or announces one carries the handle that the owner
holds. A member that is there has the extension's form, or nothing is delivered (`Refused(UPSTREAM_INVALID)`). What
only informs may be missing: the call has run, and a task that its caller never hears of is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.contract.envelope import Reserved
from gateway.contract.guard import check_error, check_input_requests
from gateway.contract.listing import is_shared, keep_private
from gateway.contract.passage import Admitted, Call, Task
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.subscription import ACKNOWLEDGED, TASK_CHANGED, BrokenError, Rewrite

PAYLOADS: Mapping[str, str | None] = {
    "working": None,
    "input_required": "inputRequests",
    "completed": "result",
    "failed": "error",
    "cancelled": None,
}
"""A task's status -> the member that comes with it, and with no other."""

_TEXTS = ("createdAt", "lastUpdatedAt", "statusMessage")
_NUMBERS = ("ttlMs", "pollIntervalMs")
_NAMES = Reserved(("taskId", "status", "resultType", *_TEXTS, *_NUMBERS, *(one for one in PAYLOADS.values() if one)))
_ACKNOWLEDGEMENT = frozenset({"resultType", "_meta"})
_RESULT_NAMES = Reserved(("resultType", "isError", "requestState", "inputRequests", "taskId"))
_LARGEST = 2**53 - 1


def created_task(call: Call, result: Mapping[str, Any]) -> tuple[str, int | None]:
    """A `CreateTaskResult` -> the server's id of the task and its time to live in milliseconds (`None`: no end)."""
    check_task(call, result, whole=False)
    return result["taskId"], result.get("ttlMs")


def with_handle(members: Mapping[str, Any], handle: str) -> dict[str, Any]:
    """What is said of a task, under the id that its owner holds; for no shared cache.

    A null stands for a member that is not there, but in `ttlMs`, where the extension gives it a meaning.
    """
    told = {name: value for name, value in members.items() if value is not None or name == "ttlMs"}
    told["taskId"] = handle
    return keep_private(told) if is_shared(told) else told


def answer_of(call: Call, task: Task, result: Mapping[str, Any]) -> dict[str, Any]:
    """The result of `tasks/get`, `tasks/update` or `tasks/cancel` as its caller gets it."""
    if call.method == "tasks/get":
        return told_of(call, task, result)
    # An acknowledgement is empty. A server that adds the task's state would name it by an id of its own.
    return {name: result[name] for name in result if name in _ACKNOWLEDGEMENT}


def told_of(call: Call, task: Task, members: Mapping[str, Any]) -> dict[str, Any]:
    """What a server tells of this very task, under its owner's handle."""
    check_task(call, members, whole=True)
    if members["taskId"] != task.id:
        raise _invalid("another task than the one that was asked for")
    return with_handle(members, task.handle)


def rewrite_tasks(admitted: Admitted) -> Rewrite | None:
    """How a subscription's notifications name the tasks that it is about: as their owner does (see subscription.py).

    A task that the caller did not name is dropped; an acknowledged one breaks the stream, as its own rules have it.
    """
    named: dict[str, Task] = {}
    for task in admitted.tasks:
        if not task.held:  # of those its owner hears by asking
            named.setdefault(task.id, task)
    if not named:
        return None

    def rewrite(message: dict[str, Any]) -> dict[str, Any] | None:
        method, params = message["method"], message.get("params", {})
        if method == ACKNOWLEDGED:
            honoured = params["notifications"]
            if "taskIds" not in honoured:
                return message
            handles = [named[one].handle if one in named else one for one in honoured["taskIds"]]
            return {**message, "params": {**params, "notifications": {**honoured, "taskIds": handles}}}
        if method != TASK_CHANGED:
            return message
        about = params.get("taskId")
        if type(about) is not str or about not in named:
            return None
        try:
            return {**message, "params": told_of(admitted.call, named[about], params)}
        except Refused as refused:
            raise BrokenError(refused.detail) from None

    return rewrite


def check_task(call: Call, members: Mapping[str, Any], *, whole: bool) -> None:
    """Hold what is said of a task to its form. `whole`: what its status brings along must be there.

    Raises `Refused(UPSTREAM_INVALID)`.
    """
    if meant := _NAMES.variant(members):
        raise _invalid(f"a variant of a task's {meant}")
    if type(members.get("taskId")) is not str or not members["taskId"]:
        raise _invalid("a task without an id")
    for name in _TEXTS:
        if members.get(name) is not None and type(members[name]) is not str:
            raise _invalid(f"a task's {name} is not a string")
    for name in _NUMBERS:
        if members.get(name) is not None and not _is_integer(members[name]):
            raise _invalid(f"a task's {name} is not an integer")
    status = members.get("status")
    if type(status) is not str or status not in PAYLOADS:
        raise _invalid("a task in no known status")
    brings = PAYLOADS[status]
    if any(members.get(one) is not None for one in PAYLOADS.values() if one is not None and one != brings):
        raise _invalid("a task with what belongs to another status")
    if brings is None:
        return
    if members.get(brings) is not None:
        _check_payload(call, brings, members[brings])
    elif whole:
        raise _invalid(f"a task without its {brings}")


def _check_payload(call: Call, name: str, payload: Any) -> None:
    if name == "inputRequests":
        check_input_requests(call, payload)
    elif name == "error":
        check_error(payload)
    else:
        _check_final(payload)


def _check_final(result: Any) -> None:
    """The tool's own result: final, and with one reading of what says so."""
    if type(result) is not dict:
        raise _invalid("a task's result is not an object")
    if meant := _RESULT_NAMES.variant(result):
        raise _invalid(f"a variant of the reserved name {meant} in a task's result")
    asks = result.get("requestState") is not None or result.get("inputRequests") is not None
    if asks or result.get("resultType", "complete") != "complete":
        raise _invalid("a task's result that is not final")
    if type(result.get("isError", False)) is not bool:
        raise _invalid("isError is not a boolean")


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) <= _LARGEST


def _invalid(detail: str) -> Refused:
    return Refused(Refusal.UPSTREAM_INVALID, detail)
