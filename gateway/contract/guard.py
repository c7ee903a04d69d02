"""A server's answer to one call, held to the contract before anything of it reaches the caller.

Exactly the caller's id, exactly one of result and error, a result type that this call may have; whatever else came is
`Refused(UPSTREAM_INVALID)` and none of it is delivered (contract.md sections 4, 5, 7; requirements UPS-03, G8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.contract.envelope import Reserved
from gateway.contract.listing import is_shared, keep_private
from gateway.contract.methods import declares_tasks
from gateway.contract.passage import Call
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.strict_json import NotStrict, read_strictly
from gateway.contract.subscription import SUBSCRIPTION_ID, same

EXECUTED = "executed"
TOOL_ERROR = "tool_error"
RPC_ERROR = "rpc_error"
INPUT_REQUIRED = "input_required"
TASK = "task"

UNDECLARED = "an input request that the client did not declare"
_ASKS_FOR_INPUT = frozenset({"tools/call", "resources/read", "prompts/get"})
_RESULT_MEMBERS = frozenset({"jsonrpc", "id", "result"})
_ERROR_MEMBERS = frozenset({"jsonrpc", "id", "error"})
_STEERING = Reserved(
    ("resultType", "requestState", "inputRequests", "isError", "taskId", "cacheScope", "_meta"),
    usual=("content", "structuredContent", "contents", "messages", "tools", "nextCursor", "ttlMs"),
)

_CAPABILITY_OF = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}

_LARGEST = 2**53 - 1
_OURS = frozenset(row.value.code for row in Refusal if row.value.code > 0)
_DEFINED = frozenset({-32020, -32021, -32022})


@dataclass(frozen=True, slots=True)
class Guarded:
    """An answer that may be delivered. `raw` is its text as it came; `message` the one reading of it.

    `outcome` is `executed`, `tool_error` (the tool ran and says that it failed), `rpc_error`, `input_required` or
    `task`.
    """

    outcome: str
    message: Mapping[str, Any]
    raw: bytes

    @property
    def code(self) -> int:
        """The error's code, 0 for a result."""
        return int(self.message["error"]["code"]) if self.outcome == RPC_ERROR else 0

    @property
    def result(self) -> Mapping[str, Any]:
        """The result; empty for an error."""
        found: Mapping[str, Any] = self.message.get("result", {})
        return found

    @property
    def request_state(self) -> str | None:
        """The server's `requestState`, where it gave one."""
        return self.result.get("requestState")

    def with_result(self, result: Mapping[str, Any]) -> bytes:
        """The answer's text with another result."""
        return orjson.dumps({**self.message, "result": result})

    def with_request_state(self, sealed: str) -> bytes:
        """The answer's text with a sealed `requestState` in the server's place, or added where it gave none.

        A seal is one caller's: no shared cache may keep it.
        """
        result = {**self.result, "requestState": sealed}
        return self.with_result(keep_private(result) if is_shared(result) else result)


def guard_answer(call: Call, body: bytes) -> Guarded:
    """The text of an answer -> what may be delivered. Raises `Refused(UPSTREAM_INVALID)`."""
    try:
        message = read_strictly(body)
    except NotStrict as found:
        raise _invalid(f"not strict JSON: {found}") from None
    return guard_message(call, message, body)


def guard_message(call: Call, message: Any, raw: bytes) -> Guarded:
    """An answer that was read strictly -> what may be delivered. Raises `Refused(UPSTREAM_INVALID)`."""
    if type(message) is not dict:
        raise _invalid("not one object")
    members = message.keys()
    if members not in (_RESULT_MEMBERS, _ERROR_MEMBERS):
        raise _invalid("not a JSON-RPC response with exactly one of result and error")
    if message["jsonrpc"] != "2.0":
        raise _invalid("jsonrpc is not 2.0")
    found, asked = message["id"], call.envelope.id
    if type(found) is not type(asked) or found != asked:
        raise _invalid("another id than the request's")
    if "error" in members:
        check_error(message["error"])
        return Guarded(RPC_ERROR, message, raw)
    return Guarded(_classify(call, message["result"]), message, raw)


def _classify(call: Call, result: Any) -> str:
    if type(result) is not dict:
        raise _invalid("the result is not an object")
    if meant := _STEERING.variant(result):
        raise _invalid(f"a variant of the reserved name {meant} in the result")
    # A server of an earlier version gives no resultType; clients must take that for "complete".
    kind = result.get("resultType", "complete")
    if kind == "complete":
        _check_asks_nothing(call, result)
        if call.kind == "subscription":
            _check_subscription(call, result)
        if call.method == "tools/call" and result.get("isError", False) is not False:
            if result["isError"] is not True:
                raise _invalid("isError is not a boolean")
            return TOOL_ERROR
        return EXECUTED
    if kind == "input_required":
        _check_input_required(call, result)
        return INPUT_REQUIRED
    if kind == "task" and call.method == "tools/call" and declares_tasks(call.capabilities):
        return TASK  # what it says of the task is held to the extension's rules in contract/tasks.py
    raise _invalid("a resultType that this request can't have")


def _check_subscription(call: Call, result: Mapping[str, Any]) -> None:
    """The result that ends a subscription names it, as every notification on its stream does."""
    meta = result.get("_meta")
    if type(meta) is not dict or not same(meta.get(SUBSCRIPTION_ID), call.envelope.id):
        raise _invalid("a result without the subscription's id")


def _check_asks_nothing(call: Call, result: Mapping[str, Any]) -> None:
    """Some readers tell a question by its members: a result that is none must not have them, but for a task's."""
    if result.get("requestState") is not None:
        raise _invalid("a requestState in a result that does not ask for input")
    if result.get("inputRequests") is not None and call.method != "tasks/get":
        raise _invalid("inputRequests in a result that does not ask for input")


def _check_input_required(call: Call, result: Mapping[str, Any]) -> None:
    if call.method not in _ASKS_FOR_INPUT:
        raise _invalid("input_required where no input can be asked for")
    requests, state = result.get("inputRequests"), result.get("requestState")
    if requests is None and state is None:
        raise _invalid("input_required with neither inputRequests nor requestState")
    if state is not None and type(state) is not str:
        raise _invalid("requestState is not a string")
    if requests is not None:
        check_input_requests(call, requests)


def check_input_requests(call: Call, requests: Any) -> None:
    """Hold what a server asks its client for against what the client declared in this request."""
    if type(requests) is not dict:
        raise _invalid("inputRequests is not an object")
    for request in requests.values():
        if type(request) is not dict or not _declared(call.capabilities, request):
            raise _invalid(UNDECLARED)


def capability_of(requests: Mapping[str, Any]) -> dict[str, Any]:
    """The capabilities that a client needs for these input requests, as it would declare them."""
    needed: dict[str, Any] = {}
    for request in requests.values():
        capability = needed.setdefault(_CAPABILITY_OF[request["method"]], {})
        if request["method"] == "elicitation/create":
            capability[request["params"].get("mode", "form")] = {}
    return needed


def _declared(capabilities: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    """Whether the client said, in this request, that it can fulfil this input request."""
    method = request.get("method")
    if type(method) is not str or method not in _CAPABILITY_OF:
        return False
    capability = capabilities.get(_CAPABILITY_OF[method])
    if type(capability) is not dict:
        return False
    if method != "elicitation/create":
        return True
    params = request.get("params")
    mode = params.get("mode", "form") if type(params) is dict else "form"
    return type(mode) is str and (mode in capability or (mode == "form" and "url" not in capability))


def check_error(error: Any) -> None:
    """A server's error is passed on as it is, but for codes that would be taken for another's word.

    Refused are the gateway's own codes, and those that this revision forbids: -32042 (an elicitation past the rules
    for it) and the undefined ones of -32020...-32099. Old servers' -32002 and -32000...-32019 pass: clients must cope
    with them. A code beyond +-(2^53 - 1) has no form in the record's chain (RFC 8785).
    """
    if type(error) is not dict or not error.keys() <= {"code", "message", "data"}:
        raise _invalid("the error is not an error object")
    code = error.get("code")
    if type(code) is not int or type(error.get("message")) is not str:
        raise _invalid("the error lacks an integer code or a message")
    if abs(code) > _LARGEST:
        raise _invalid("an error code that not every reader takes for the same")
    if code in _OURS:
        raise _invalid(f"an error code of the gateway's own: {code}")
    if -32099 <= code <= -32020 and code not in _DEFINED:
        raise _invalid(f"an error code that this revision forbids: {code}")


def _invalid(detail: str) -> Refused:
    return Refused(Refusal.UPSTREAM_INVALID, detail)
