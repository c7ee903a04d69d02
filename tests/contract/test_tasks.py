"""What a server may say of a task: the extension's form, its owner's handle, and nothing of another task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.passage import Task
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.tasks import PAYLOADS, answer_of, created_task, told_of
from tests.support.upstream import a_call

SCHEMA = orjson.loads((Path(__file__).parents[1] / "vectors" / "tasks-extension.schema.json").read_bytes())
TASK = Task("handle", "upstream-id", "pay")
WORKING: Mapping[str, Any] = {
    "taskId": "upstream-id",
    "status": "working",
    "createdAt": "2026-07-28T10:00:00Z",
    "lastUpdatedAt": "2026-07-28T10:00:01Z",
    "ttlMs": 60_000,
    "pollIntervalMs": 500,
    "statusMessage": "counting",
}
ASKED = {
    "q": {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": "?", "requestedSchema": {"type": "object", "properties": {}}},
    }
}
DETAILED: dict[str, dict[str, Any]] = {
    "working": {**WORKING},
    "input_required": {**WORKING, "status": "input_required", "inputRequests": ASKED},
    "completed": {**WORKING, "status": "completed", "result": {"content": [], "isError": True}},
    "failed": {**WORKING, "status": "failed", "error": {"code": -32603, "message": "limit"}},
    "cancelled": {**WORKING, "status": "cancelled"},
}
CAPABLE: dict[str, Any] = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
GET = a_call(method="tasks/get", kind="task", capabilities=CAPABLE)


def valid(name: str, value: Any) -> bool:
    """Whether the published schema takes the value."""
    schema = {**SCHEMA, "$ref": f"#/$defs/{name}"}
    return bool(jsonschema_rs.validator_for(schema).is_valid(value))


def refused(result: Mapping[str, Any], **call: Any) -> str:
    with pytest.raises(Refused) as caught:
        told_of(a_call(method="tasks/get", kind="task", **{"capabilities": CAPABLE, **call}), TASK, result)
    assert caught.value.refusal is Refusal.UPSTREAM_INVALID
    assert not caught.value.data
    return caught.value.detail


def test_the_statuses_are_those_of_the_published_schema() -> None:
    """Each status of the extension has one row here."""
    assert {one["const"] for one in SCHEMA["$defs"]["TaskStatus"]["anyOf"]} == set(PAYLOADS)


@pytest.mark.parametrize("status", DETAILED)
def test_a_task_in_any_status_is_told_under_its_owners_handle(status: str) -> None:
    """The handle stands where the server's id stood; nothing else changes, and the published schema agrees."""
    asked = DETAILED[status]
    assert valid("DetailedTask", asked)
    told = told_of(GET, TASK, {"resultType": "complete", **asked})
    assert told == {"resultType": "complete", **asked, "taskId": "handle"}
    assert "upstream-id" not in orjson.dumps(told).decode()


@pytest.mark.parametrize("status", DETAILED)
def test_a_task_may_be_made_in_any_status(status: str) -> None:
    """`CreateTaskResult` needs no more than the task's state, but what it brings along has its form."""
    bare = {**WORKING, "status": status, "resultType": "task"}
    assert valid("CreateTaskResult", bare)
    assert created_task(GET, bare) == ("upstream-id", 60_000)
    assert created_task(GET, {**DETAILED[status], "ttlMs": None}) == ("upstream-id", None)
    payload = PAYLOADS[status]
    if payload is not None:
        with pytest.raises(Refused):
            created_task(GET, {**bare, payload: "x"})


BROKEN: dict[str, dict[str, Any]] = {
    "another task": {**WORKING, "taskId": "upstream-ID"},
    "an empty id": {**WORKING, "taskId": ""},
    "an id that is none": {**WORKING, "taskId": 1},
    "a second id": {**WORKING, "task_id": "other"},
    "no status": {name: value for name, value in WORKING.items() if name != "status"},
    "an unknown status": {**WORKING, "status": "submitted"},
    "a status in another case": {**WORKING, "status": "Working"},
    "a list of statuses": {**WORKING, "status": ["working"]},
    "a second status": {**WORKING, "Status": "completed"},
    "a ttlMs that is text": {**WORKING, "ttlMs": "60000"},
    "a ttlMs that is true": {**WORKING, "ttlMs": True},
    "a ttlMs beyond doubles": {**WORKING, "ttlMs": 2**53},
    "a time that is a number": {**WORKING, "lastUpdatedAt": 1},
    "a pause that is text": {**WORKING, "pollIntervalMs": "1"},
    "a message that is none": {**WORKING, "statusMessage": {}},
    "completed without a result": {**WORKING, "status": "completed"},
    "failed without an error": {**WORKING, "status": "failed"},
    "input without a question": {**WORKING, "status": "input_required"},
    "a result that is text": {**DETAILED["completed"], "result": "done"},
    "an error that is none": {**DETAILED["failed"], "error": {"code": "x"}},
    "an error with a code of the gateway's": {**DETAILED["failed"], "error": {"code": 40302, "message": "x"}},
}
STRICTER: dict[str, dict[str, Any]] = {
    "a result before the end": {**WORKING, "result": {"content": []}},
    "a result and an error": {**DETAILED["failed"], "result": {"content": []}},
    "a question after the end": {**DETAILED["completed"], "inputRequests": ASKED},
    "a result that is a task": {**DETAILED["completed"], "result": {"resultType": "task", "taskId": "t"}},
    "a result that asks": {**DETAILED["completed"], "result": {"resultType": "input_required", "requestState": "s"}},
    "a result that asks without saying so": {**DETAILED["completed"], "result": {"requestState": "s"}},
    "a result with a question": {**DETAILED["completed"], "result": {"content": [], "inputRequests": {}}},
    "a result with two readings": {**DETAILED["completed"], "result": {"content": [], "is_error": True}},
    "isError that is text": {**DETAILED["completed"], "result": {"content": [], "isError": "yes"}},
    "a question that nobody can answer": {
        **DETAILED["input_required"],
        "inputRequests": {"q": {"method": "roots/list"}},
    },
}


@pytest.mark.parametrize("result", [*BROKEN.values(), *STRICTER.values()], ids=[*BROKEN, *STRICTER])
def test_anything_else_is_not_delivered(result: dict[str, Any]) -> None:
    """What is not exactly the state of the task that was asked for is refused whole."""
    refused({"resultType": "complete", **result})


@given(
    result=st.sampled_from(list(DETAILED.values())),
    name=st.sampled_from(list(WORKING)),
    value=st.none() | st.integers() | st.text() | st.booleans() | st.lists(st.text(), max_size=1),
)
def test_what_is_delivered_has_the_published_form(result: dict[str, Any], name: str, value: Any) -> None:
    """No member passes that the published schema refuses, whatever stands in one of them."""
    changed = {**result, name: value}
    try:
        told = told_of(GET, TASK, changed)
    except Refused:
        return
    assert valid("DetailedTask", {**WORKING, **told})


@pytest.mark.parametrize("name", ["createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs", "statusMessage"])
def test_what_only_informs_may_be_missing(name: str) -> None:
    """The call has run: its task is not kept from its caller because a server is sparing of words."""
    sparing = {one: value for one, value in WORKING.items() if one != name}
    assert created_task(GET, sparing) == ("upstream-id", None if name == "ttlMs" else 60_000)
    assert told_of(GET, TASK, sparing) == {**sparing, "taskId": "handle"}


def test_a_null_is_a_member_that_is_not_there() -> None:
    """Servers that write out what is not there are understood, and what leaves has the published form."""
    blank = dict.fromkeys(("statusMessage", "pollIntervalMs", "result", "error", "inputRequests", "ttlMs"))
    told = told_of(GET, TASK, {**WORKING, **blank})
    assert told == {name: value for name, value in WORKING.items() if name not in blank} | {
        "taskId": "handle",
        "ttlMs": None,
    }
    assert valid("DetailedTask", told)
    refused({**DETAILED["completed"], "result": None})


def test_input_is_asked_for_only_where_the_client_declared_it() -> None:
    """A poll that declares no elicitation is not shown one."""
    assert told_of(GET, TASK, DETAILED["input_required"])["inputRequests"] == ASKED
    refused(DETAILED["input_required"], capabilities={"extensions": CAPABLE["extensions"]})


def test_what_is_told_of_a_task_is_for_no_shared_cache() -> None:
    """G8: a task is its owner's."""
    assert told_of(GET, TASK, {**WORKING, "cacheScope": "public"})["cacheScope"] == "private"
    assert "cacheScope" not in told_of(GET, TASK, WORKING)


@pytest.mark.parametrize("method", ["tasks/update", "tasks/cancel"])
def test_an_acknowledgement_says_nothing_else(method: str) -> None:
    """`tasks/update` and `tasks/cancel` are answered by an empty result: a state would name the server's id."""
    call = a_call(method=method, kind="task", capabilities=CAPABLE)
    good = {"resultType": "complete", "_meta": {"x": 1}}
    assert answer_of(call, TASK, good) == good
    assert answer_of(call, TASK, {**good, **WORKING}) == good
