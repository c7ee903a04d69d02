"""The guard of answers: what a server says to one call, held to the contract."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.guard import guard_answer
from gateway.contract.refusals import Refusal, Refused
from tests.support.upstream import a_call


def _text(**members: Any) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": 1, **members})


def _refused(body: bytes, **call: Any) -> str:
    with pytest.raises(Refused) as caught:
        guard_answer(a_call(**call), body)
    assert caught.value.refusal is Refusal.UPSTREAM_INVALID
    assert not caught.value.data, "a foreign answer reached what the caller may read"
    return caught.value.detail


GOOD = {"resultType": "complete", "content": []}


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (GOOD, "executed"),
        ({"content": []}, "executed"),  # an earlier version's server: absent means complete
        ({**GOOD, "isError": False}, "executed"),
        ({**GOOD, "isError": True}, "tool_error"),
        ({"resultType": "input_required", "requestState": "s"}, "input_required"),
    ],
)
def test_results_are_classified(result: dict[str, Any], outcome: str) -> None:
    """Each kind of result has one outcome in the record, and its text is kept as it came."""
    body = _text(result=result)
    guarded = guard_answer(a_call(), body)
    assert (guarded.outcome, guarded.raw, guarded.code) == (outcome, body, 0)
    assert guarded.result == result


def test_is_error_means_something_for_tools_only() -> None:
    """A resource may have a member called isError without its reading having failed."""
    body = _text(result={**GOOD, "isError": True})
    assert guard_answer(a_call(), body).outcome == "tool_error"
    assert guard_answer(a_call(method="resources/read", kind="resource"), body).outcome == "executed"


def test_an_error_is_passed_on_as_it_is() -> None:
    """A server's error keeps its code, message and data."""
    body = _text(error={"code": -32602, "message": "no such file", "data": {"path": "/x"}})
    guarded = guard_answer(a_call(), body)
    assert (guarded.outcome, guarded.code, guarded.raw) == ("rpc_error", -32602, body)
    assert guarded.result == {}


@pytest.mark.parametrize("request_id", [1, 0, -1, "", "1", "007", 9007199254740993, "x" * 200])
def test_only_the_callers_id_passes(request_id: str | int) -> None:
    """An answer carries the request's id: same type, same value (requirements UPS-03, RPC-08)."""
    call = a_call(request_id)
    assert guard_answer(call, _text(id=request_id, result=GOOD)).outcome == "executed"
    others = [None, True, 1.0, [request_id], 5, "other", str(request_id)]
    for other in others:
        if type(other) is type(request_id) and other == request_id:
            continue
        with pytest.raises(Refused):
            guard_answer(call, _text(id=other, result=GOOD))
    with pytest.raises(Refused):
        guard_answer(call, orjson.dumps({"jsonrpc": "2.0", "result": GOOD}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"[" + _text(result=GOOD) + b"]",
        b"\xef\xbb\xbf" + _text(result=GOOD),
        _text(result=GOOD) + b"{}",
        _text(result=GOOD)[:-1],
        b'{"jsonrpc":"2.0","id":2,"id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"result":{"resultType":"task"}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"a":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"a":"\xff"}}',
        _text(),
        _text(result=GOOD, error={"code": 1, "message": "x"}),
        _text(result=GOOD, error=None),
        _text(result=GOOD, method="tools/call"),
        _text(result=GOOD, Result={}),
        _text(result=None),
        _text(result=[]),
        orjson.dumps({"jsonrpc": "1.0", "id": 1, "result": GOOD}),
        orjson.dumps({"id": 1, "result": GOOD}),
        _text(result={"resultType": None}),
        _text(result={"resultType": "Complete"}),
        _text(result={"resultType": ["complete"]}),
        _text(result={"resultType": "partial"}),
        _text(result={**GOOD, "result_type": "task"}),
        _text(result={**GOOD, "RESULTTYPE": "task"}),
        _text(result={**GOOD, "cache_scope": "public"}),
        _text(result={**GOOD, "isError": "yes"}),
        _text(result={**GOOD, "isError": None}),
        _text(error=None),
        _text(error={"code": "1", "message": "x"}),
        _text(error={"code": True, "message": "x"}),
        _text(error={"code": 1.5, "message": "x"}),
        _text(error={"code": 2**53, "message": "x"}),
        _text(error={"code": -(2**63), "message": "x"}),
        _text(error={"code": 1}),
        _text(error={"code": 1, "message": "x", "extra": 1}),
    ],
)
def test_anything_else_is_not_delivered(body: bytes) -> None:
    """What is not exactly one answer to this request is refused whole."""
    assert guard_answer(a_call(), _text(result=GOOD)).outcome == "executed"
    _refused(body)


@pytest.mark.parametrize("kind", [{}, {"resultType": "complete"}, {"resultType": "complete", "content": []}])
@pytest.mark.parametrize(
    "asks",
    [{"requestState": "raw"}, {"inputRequests": {"a": {"method": "elicitation/create", "params": {}}}}],
    ids=["state", "question"],
)
@pytest.mark.parametrize(
    ("method", "of"), [("tools/call", "tool"), ("prompts/get", "prompt"), ("resources/read", "resource")]
)
def test_a_result_that_does_not_say_that_it_asks_asks_nothing(
    method: str, of: str, asks: dict[str, Any], kind: dict[str, Any]
) -> None:
    """The official client takes what has no resultType for a question where it has its members: state and questions
    would reach it unsealed and undeclared. What is null asks nothing."""
    call: dict[str, Any] = {"method": method, "kind": of, "capabilities": {"elicitation": {}}}
    assert guard_answer(a_call(**call), _text(result={**asks, "resultType": "input_required"})).outcome != "executed"
    assert guard_answer(a_call(**call), _text(result={**kind, **dict.fromkeys(asks)})).outcome == "executed"
    _refused(_text(result={**kind, **asks}), **call)


def test_a_task_tells_what_it_asks_in_a_complete_result() -> None:
    """`tasks/get` is where a task's questions are; a state has no place there."""
    call: dict[str, Any] = {"method": "tasks/get", "kind": "task"}
    asks = {"resultType": "complete", "taskId": "t", "status": "input_required", "inputRequests": {}}
    assert guard_answer(a_call(**call), _text(result=asks)).outcome == "executed"
    _refused(_text(result={**asks, "requestState": "raw"}), **call)
    _refused(_text(result=asks), method="tasks/cancel", kind="task")


def test_a_task_is_for_a_tools_caller_that_can_handle_it() -> None:
    """No task for a client that did not declare the extension in this request, nor for any other request."""
    body = _text(result={"resultType": "task", "taskId": "t"})
    declared: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    assert guard_answer(a_call(capabilities=declared), body).outcome == "task"
    _refused(body)
    for method, kind in (("tasks/get", "task"), ("resources/read", "resource"), ("prompts/get", "prompt")):
        _refused(body, method=method, kind=kind, capabilities=declared)


@pytest.mark.parametrize("method", ["tools/list", "server/discover", "resources/list", "completion/complete"])
def test_input_is_asked_for_only_where_it_can_be(method: str) -> None:
    """Three methods may answer input_required; on any other it is no answer."""
    body = _text(result={"resultType": "input_required", "requestState": "s"})
    for allowed in ("tools/call", "resources/read", "prompts/get"):
        assert guard_answer(a_call(method=allowed), body).outcome == "input_required"
    _refused(body, method=method, kind="list")


ELICIT = {"method": "elicitation/create", "params": {"message": "?"}}
ELICIT_URL = {"method": "elicitation/create", "params": {"mode": "url", "url": "https://x"}}
SAMPLE = {"method": "sampling/createMessage", "params": {}}


@pytest.mark.parametrize(
    ("capabilities", "request_", "passes"),
    [
        ({"elicitation": {}}, ELICIT, True),
        ({"elicitation": {"form": {}}}, ELICIT, True),
        ({"elicitation": {"url": {}}}, ELICIT, False),
        ({"elicitation": {"url": {}}}, ELICIT_URL, True),
        ({"elicitation": {}}, ELICIT_URL, False),
        ({"elicitation": {"form": {}}}, ELICIT_URL, False),
        ({"elicitation": True}, ELICIT, False),
        ({}, ELICIT, False),
        ({}, SAMPLE, False),
        ({"sampling": {}}, SAMPLE, True),
        ({"roots": {}}, {"method": "roots/list"}, True),
        ({"sampling": {}, "elicitation": {}, "roots": {}}, {"method": "tools/call"}, False),
        ({"sampling": {}}, {"method": ["sampling/createMessage"]}, False),
        ({"sampling": {}}, "sampling/createMessage", False),
        ({"elicitation": {}}, {**ELICIT, "params": {"mode": "form"}}, True),
        ({"elicitation": {}}, {**ELICIT, "params": {"mode": ["form"]}}, False),
        ({"elicitation": {}}, {**ELICIT, "params": {"mode": {}}}, False),
        ({"elicitation": {}}, {**ELICIT, "params": {"mode": None}}, False),
    ],
)
def test_only_declared_input_is_asked_for(capabilities: dict[str, Any], request_: Any, passes: bool) -> None:
    """A server asks for what the client said, in this request, that it can give; nothing else is relayed."""
    body = _text(result={"resultType": "input_required", "inputRequests": {"one": request_}})
    if passes:
        assert guard_answer(a_call(capabilities=capabilities), body).outcome == "input_required"
    else:
        _refused(body, capabilities=capabilities)


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"requestState": 5},
        {"requestState": None, "inputRequests": None},
        {"inputRequests": []},
        {"inputRequests": "x", "requestState": "s"},
        {"request_state": "s"},
        {"requestState": "s", "request_state": "t"},
    ],
)
def test_input_required_says_what_it_needs(result: dict[str, Any]) -> None:
    """At least one of inputRequests (an object) and requestState (a string), under no second name."""
    good = {"resultType": "input_required", "requestState": "s"}
    assert guard_answer(a_call(), _text(result=good)).request_state == "s"
    _refused(_text(result={"resultType": "input_required", **result}))


def test_the_servers_state_is_replaced() -> None:
    """The caller gets the sealed requestState and never the server's own; everything else stays."""
    result = {"resultType": "input_required", "requestState": "secret", "inputRequests": {}, "_meta": {"a": 1}}
    sealed = orjson.loads(guard_answer(a_call(), _text(result=result)).with_request_state("sealed"))
    assert sealed == {"jsonrpc": "2.0", "id": 1, "result": {**result, "requestState": "sealed"}}
    without = {"resultType": "input_required", "inputRequests": {}}
    guarded = guard_answer(a_call(), _text(result=without))
    assert guarded.request_state is None
    assert orjson.loads(guarded.with_request_state("sealed"))["result"]["requestState"] == "sealed"


@pytest.mark.parametrize("code", [40302, 40303, 40304, 50202, 42901, -32042, -32023, -32099])
def test_codes_that_would_be_taken_for_anothers_word_are_refused(code: int) -> None:
    """A server can't speak as the gateway (40303 with a page to open), nor with codes that the revision forbids."""
    _refused(_text(error={"code": code, "message": "x", "data": {"ticket": {"page": "https://evil"}}}))


@pytest.mark.parametrize(
    "code", [-32700, -32600, -32601, -32602, -32603, -32002, -32000, -32020, -32021, -32022, 7, 404]
)
def test_other_codes_are_the_servers_own(code: int) -> None:
    """What the protocol defines, old servers' codes and applications' own pass unchanged."""
    assert guard_answer(a_call(), _text(error={"code": code, "message": "x"})).code == code


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


_asking = st.fixed_dictionaries(
    {"method": st.just("elicitation/create") | _json, "params": st.fixed_dictionaries({}, optional={"mode": _json})}
)
_result = st.fixed_dictionaries(
    {"resultType": st.just("input_required"), "inputRequests": st.dictionaries(st.text(max_size=2), _asking)},
    optional={"requestState": _json, "_meta": _json},
)
_error = st.fixed_dictionaries({"code": st.integers(-(2**63), 2**64 - 1) | _json, "message": st.text() | _json})
_answer = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "id": st.just(1)}, optional={"result": _result | _json, "error": _error | _json}
)


@given(
    st.dictionaries(st.sampled_from(["jsonrpc", "id", "result", "error", "method", "params"]), _json) | _answer,
)
def test_the_guard_accepts_or_refuses_and_nothing_else(message: dict[str, Any]) -> None:
    """No answer makes it fail in another way; what it accepts has the caller's id."""
    try:
        guarded = guard_answer(a_call(capabilities={"elicitation": {}}), orjson.dumps(message))
    except Refused as refused:
        found: object = refused.refusal
    else:
        found = guarded.message["id"]
    assert found in (Refusal.UPSTREAM_INVALID, 1)
    assert found is not True
