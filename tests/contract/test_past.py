"""Calls and answers between this revision and the earlier ones, without a wire."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import orjson
import pytest

from approvals.ticket import Claimed
from gateway.config import ServerSettings
from gateway.contract.guard import guard_answer
from gateway.contract.past import (
    PAST_VERSIONS,
    PastStream,
    call_of_the_past,
    headers_of_the_past,
    introduction,
    is_known_to_the_past,
    own_answer,
    present_answer,
    read_session_id,
    read_welcome,
)
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.stream import ResponseStream, StreamLimits, TooLarge
from tests.support.upstream import HEADERS, a_call, an_admitted

P = "io.modelcontextprotocol/"
MODERN = {f"{P}protocolVersion": "2026-07-28", f"{P}clientCapabilities": {}, f"{P}clientInfo": {"name": "x"}}
KEPT = {"progressToken": "p", "traceparent": "00-1", "tracestate": "a=b", "baggage": "c=d", "acme/x": 1}


def answered(result: Any, request_id: object = "ours", **more: Any) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": result, **more})


def told(data: bytes, meta: dict[str, Any] | None = None, method: str = "tools/call") -> tuple[bytes, PastStream]:
    call = a_call("theirs", meta=meta, method=method)
    stream = PastStream(call, call_of_the_past(an_admitted(call), "ours"))
    return stream.feed(data), stream


def event(message: Any, extra: bytes = b"") -> bytes:
    return extra + b"data: " + orjson.dumps(message) + b"\n\n"


def notification(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def test_the_configuration_offers_what_the_contract_speaks() -> None:
    """The revisions of `legacy_servers` are those that are spoken, and `off`."""
    annotation = ServerSettings.model_fields["legacy_servers"].annotation
    assert get_args(annotation) == ("off", *PAST_VERSIONS)


@pytest.mark.parametrize("request_id", ["theirs", 7, 2**53])
def test_a_call_goes_out_under_the_houses_id_without_what_is_modern(request_id: str | int) -> None:
    """Progress token, trace and foreign keys stay; version, capabilities, client, log level and the id do not."""
    call = a_call(request_id, meta={**MODERN, f"{P}logLevel": "info", **KEPT})
    asked = call_of_the_past(an_admitted(call), "ours")
    assert orjson.loads(asked.envelope.raw) == {
        "jsonrpc": "2.0", "id": "ours", "method": "tools/call",
        "params": {"name": "add", "arguments": {"a": 1}, "_meta": KEPT},
    }  # fmt: skip
    assert asked.envelope.id == "ours"
    assert call.envelope.id == request_id


def test_meta_that_was_all_modern_is_left_out() -> None:
    """An empty `_meta` is not sent; a notification keeps having no id."""
    asked = call_of_the_past(an_admitted(a_call(None, meta=MODERN)), "ours")
    assert orjson.loads(asked.envelope.raw)["params"] == {"name": "add", "arguments": {"a": 1}}
    assert asked.envelope.id is None
    assert "id" not in orjson.loads(asked.envelope.raw)


def test_what_was_approved_keeps_its_canonical_text() -> None:
    """A gated call's arguments leave as the text that was digested, byte for byte."""
    canonical = b'{"a":1e+21,"b":"\xc3\xa9"}'
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":%b,"_meta":%b}}' % (
        canonical,
        orjson.dumps(MODERN),
    )
    plain = an_admitted(body=body)
    gated = replace(plain, use=Claimed("ticket", "use"))
    raw = call_of_the_past(gated, "ours").envelope.raw
    assert b'"arguments":' + canonical in raw
    assert b"_meta" not in raw


def test_what_admission_took_off_is_not_sent() -> None:
    """A server of 2025-11-25 would make a task of it, or take the call for part of one that is another's."""
    related = {"io.modelcontextprotocol/related-task": {"taskId": "t-1"}}
    call = a_call(meta={**MODERN, **KEPT, **related})
    params = {**call.envelope.params, "task": {"ttl": 1}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    asking = replace(call, envelope=replace(call.envelope, raw=orjson.dumps(message), params=params))
    admitted = an_admitted(asking, body=orjson.dumps({**message, "params": call.envelope.params}))
    sent = orjson.loads(call_of_the_past(admitted, "ours").envelope.raw)["params"]
    assert sent == {"name": "add", "arguments": {"a": 1}, "_meta": KEPT}


def test_modern_headers_stay_behind() -> None:
    """Media types and trace are kept; every `Mcp-*` line is left out, in any spelling."""
    lines = (*HEADERS, (b"Mcp-Param-Region", b"eu"), (b"traceparent", b"00-1"))
    assert headers_of_the_past(lines) == (
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
        (b"traceparent", b"00-1"),
    )


def test_only_methods_that_both_have_are_asked() -> None:
    """What is new in this revision is not sent to an old server; extensions of the configuration are."""
    assert is_known_to_the_past(a_call(method="tools/call"))
    assert is_known_to_the_past(a_call(method="acme/x", kind="extension"))
    for method, kind in (
        ("server/discover", "discover"),
        ("subscriptions/listen", "subscription"),
        ("tasks/get", "task"),
    ):
        assert not is_known_to_the_past(a_call(method=method, kind=kind))


def test_the_house_introduces_itself_with_no_capability() -> None:
    """Nothing that a server could ask of its client is offered: it could not be passed on."""
    assert introduction("2025-06-18", {"name": "o", "version": "1"}) == {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "o", "version": "1"},
    }  # fmt: skip


def test_a_welcome_becomes_a_discovery() -> None:
    """Version, serverInfo and instructions; of the capabilities what can be served, without what changes."""
    info = {"name": "old", "version": "1", "title": "Old"}
    offered: dict[str, Any] = {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True},
        "logging": {},
        "tasks": {},
    }
    found = read_welcome(
        {"protocolVersion": "2025-06-18", "capabilities": offered, "serverInfo": info, "instructions": "Be kind."}
    )
    assert found.version == "2025-06-18"
    assert found.discovery == {
        "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}, "resources": {}},
        "instructions": "Be kind.",
        "_meta": {f"{P}serverInfo": info}, "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
    }  # fmt: skip
    call = a_call(3, method="server/discover", kind="discover")
    assert orjson.loads(own_answer(call, found.discovery))["result"] == found.discovery


@pytest.mark.parametrize(
    "result",
    [
        {"protocolVersion": "2026-07-28", "capabilities": {}},
        {"protocolVersion": "2024-11-05", "capabilities": {}},
        {"protocolVersion": ["2025-06-18"], "capabilities": {}},
        {"capabilities": {}},
        {"protocolVersion": "2025-06-18"},
        {"protocolVersion": "2025-06-18", "capabilities": []},
    ],
)
def test_a_welcome_that_is_none_is_refused(result: dict[str, Any]) -> None:
    """A version that is not spoken here, or no capabilities: the server can't be used."""
    assert read_welcome({"protocolVersion": "2025-11-25", "capabilities": {}}).version == "2025-11-25"
    with pytest.raises(Refused) as caught:
        read_welcome(result)
    assert caught.value.refusal is Refusal.UPSTREAM_INVALID


def test_instructions_and_names_that_are_none_are_left_out() -> None:
    """What has another form than the revision's is not shown as a discovery's."""
    odd = {"instructions": 7, "serverInfo": {"name": "x"}}
    found = read_welcome({"protocolVersion": "2025-06-18", "capabilities": {"tools": True}, **odd}).discovery
    assert found.keys() == {"supportedVersions", "capabilities", "resultType", "ttlMs", "cacheScope"}
    assert found["capabilities"] == {}


@pytest.mark.parametrize(
    "values",
    [[b""], [b"a b"], [b"a\tb"], [b"a\x7f"], [b"\xff"], [b"a\r\nx: y"], [b"a" * 10_240], [b"a", b"a"]],
    ids=repr,
)
def test_a_session_id_is_one_value_of_visible_ascii(values: list[bytes]) -> None:
    """Control characters, spaces, 10 KB or two lines are no id; none at all is a server without sessions."""
    assert read_session_id([b"!dab5c8e2-7343~"]) == b"!dab5c8e2-7343~"
    assert read_session_id([]) == b""
    with pytest.raises(Refused):
        read_session_id(values)


@pytest.mark.parametrize("method", ["tools/list", "resources/read", "tools/call", "prompts/get"])
def test_a_result_becomes_one_of_this_revision(method: str) -> None:
    """The caller's id, `resultType`, and where this revision wants them `ttlMs` and `cacheScope`: never shared."""
    call = a_call(7, method=method)
    asked = call_of_the_past(an_admitted(call), "ours")
    given = {"content": [], "_meta": {"a": 1}, "ttlMs": 9, "cacheScope": "public"}
    found = orjson.loads(present_answer(call, guard_answer(asked, answered(given))))
    wanted = {"ttlMs": 0, "cacheScope": "private"} if method in ("tools/list", "resources/read") else {}
    assert found == {"jsonrpc": "2.0", "id": 7, "result": {**given, "resultType": "complete", **wanted}}


def test_a_task_of_2025_11_25_is_no_result() -> None:
    """Nobody asked for one, nobody could ask how it ends, and its id is not sealed: not executed, but unknown."""
    call = a_call(7)
    asked = call_of_the_past(an_admitted(call), "ours")
    task = {"taskId": "t-1", "status": "working"}
    whole = {"content": [], "task": task}  # a tool's own member, as any result may have
    assert b'"task"' in present_answer(call, guard_answer(asked, answered(whole)))
    with pytest.raises(Refused, match="task") as caught:
        present_answer(call, guard_answer(asked, answered({"task": task})))
    assert caught.value.refusal is Refusal.UPSTREAM_INVALID


def test_an_error_keeps_code_message_and_data() -> None:
    """Old codes pass; the id is the caller's."""
    call = a_call("x")
    error = {"code": -32002, "message": "not found", "data": {"uri": "u"}}
    body = orjson.dumps({"jsonrpc": "2.0", "id": "ours", "error": error})
    guarded = guard_answer(call_of_the_past(an_admitted(call), "ours"), body)
    assert orjson.loads(present_answer(call, guarded)) == {"jsonrpc": "2.0", "id": "x", "error": error}


def test_an_old_server_can_not_ask_for_input() -> None:
    """A result that only this revision has is refused, even where the client declared that it could answer."""
    call = a_call(7, capabilities={"elicitation": {}})
    asked = call_of_the_past(an_admitted(call), "ours")
    guarded = guard_answer(asked, answered({"resultType": "input_required", "requestState": "s"}))
    assert guarded.outcome == "input_required"
    with pytest.raises(Refused):
        present_answer(call, guarded)


def test_a_method_that_the_past_lacks_is_answered_as_unknown() -> None:
    """-32601 under the caller's id."""
    found = orjson.loads(own_answer(a_call(5, method="subscriptions/listen"), None))
    assert (found["id"], found["error"]["code"]) == (5, -32601)


def test_a_stream_is_told_anew() -> None:
    """Priming events, ids and times to retry are dropped; comments, progress and the response arrive, once."""
    data = (
        b"id: e-0\nretry: 500\ndata: \n\n: still here\n\n"
        + event(notification("notifications/progress", progressToken="p", progress=1), b"event: message\nid: e-1\n")
        + event({"jsonrpc": "2.0", "id": "ours", "result": {"content": []}}, b"id: e-2\n")
        + event({"jsonrpc": "2.0", "id": "ours", "result": {"content": ["again"]}})
    )
    found, stream = told(data, {"progressToken": "p"})
    assert stream.answered
    assert b"e-" not in found
    assert b"retry" not in found
    assert found.startswith(b": still here\n\n")
    reader = ResponseStream(a_call("theirs", meta={"progressToken": "p"}))
    assert len(reader.feed(found)) == 2
    assert not reader.fault
    assert reader.final is not None
    assert reader.final.result == {"content": [], "resultType": "complete"}


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_cuts_change_nothing(cut: int) -> None:
    """However the bytes arrive, the same is told."""
    data = event(notification("notifications/progress", progressToken="p", progress=1)) + event(
        {"jsonrpc": "2.0", "id": "ours", "result": {}}
    )
    whole, _ = told(data)
    call = a_call("theirs")
    stream = PastStream(call, call_of_the_past(an_admitted(call), "ours"))
    assert b"".join(stream.feed(data[at : at + cut]) for at in range(0, len(data), cut)) == whole


@pytest.mark.parametrize(
    ("method", "params", "asked", "passes"),
    [
        ("notifications/progress", {"progressToken": "p", "progress": 1}, None, True),
        ("notifications/message", {"level": "error", "data": "x"}, "warning", True),
        ("notifications/message", {"level": "warning", "data": "x"}, "warning", True),
        ("notifications/message", {"level": "info", "data": "x"}, "warning", False),
        ("notifications/message", {"level": "emergency", "data": "x"}, None, False),
        ("notifications/message", {"level": ["info"], "data": "x"}, "debug", False),
        ("notifications/message", {"level": "info", "data": "x"}, ["debug"], False),
        ("notifications/tools/list_changed", {}, None, False),
        ("notifications/resources/updated", {"uri": "u"}, None, False),
        ("notifications/cancelled", {"requestId": "ours"}, None, False),
        ("notifications/tasks/status", {}, None, False),
        ("acme/anything", {}, None, False),
    ],
)
def test_only_notifications_of_a_call_are_told(method: str, params: dict[str, Any], asked: Any, passes: bool) -> None:
    """Progress, and messages at or above the level that the call asked for; everything else is dropped."""
    found, stream = told(event(notification(method, **params)), {f"{P}logLevel": asked} if asked else None)
    assert (orjson.loads(found[6:]) == notification(method, **params)) if passes else found == b""
    assert not stream.answered


@pytest.mark.parametrize(
    "data",
    [
        event({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {}}),
        event({"jsonrpc": "2.0", "id": "ours", "method": "ping"}),
        event({"jsonrpc": "2.0", "id": "theirs", "result": {}}),
        event({"jsonrpc": "2.0", "id": "ours", "result": {}}, b"event: other\n"),
        event([{"jsonrpc": "2.0", "id": "ours", "result": {}}]),
        event({"jsonrpc": "2.0", "id": "ours", "result": {"resultType": "task"}}),
        b'data: {"jsonrpc":"2.0","id":"ours","id":"ours","result":{}}\n\n',
        b"data: nonsense\n\n",
    ],
    ids=["sampling", "ping", "callers-id", "unread-event", "batch", "task", "two-readings", "not-json"],
)
def test_a_stream_that_can_not_go_on_is_refused(data: bytes) -> None:
    """Requests of the server, foreign ids (the caller's own is one), unread events, batches, what is not JSON."""
    found, stream = told(event({"jsonrpc": "2.0", "id": "ours", "result": {}}))
    assert stream.answered
    assert found
    with pytest.raises(Refused):
        told(data)


def test_a_stream_is_bounded() -> None:
    """Events that are dropped count, and one that is too large ends the stream."""
    call = a_call("theirs")
    asked = call_of_the_past(an_admitted(call), "ours")
    dropped = event(notification("notifications/tools/list_changed"))
    stream = PastStream(call, asked, StreamLimits(events=3))
    assert stream.feed(dropped * 3) == b""
    with pytest.raises(Refused):
        stream.feed(dropped)
    with pytest.raises(TooLarge):
        PastStream(call, asked, StreamLimits(event_bytes=100)).feed(b"data: " + b"x" * 200)
