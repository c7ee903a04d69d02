"""Older clients' requests in the served words, and the answers in theirs, held to the official schemas of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.bindings import read_bindings
from gateway.contract.envelope import parse_envelope
from gateway.contract.headers import CAPABILITIES_KEY, VERSION_KEY, match_headers
from gateway.contract.legacy import (
    LONGEST_MIRRORED,
    OLDER_VERSIONS,
    RELATED_TASK,
    Answered,
    Session,
    Spoken,
    check_unmixed,
    mirror_params,
    modernise,
    negotiate,
    speaks_older,
)
from gateway.contract.passage import Received, Tool
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.reply import refusal_reply
from gateway.contract.retelling import retell_answer, retell_refusal, session_line
from tests.contract.walked import SERVER

VECTORS = Path(__file__).parents[1] / "vectors"
SCHEMAS = {version: orjson.loads((VECTORS / f"mcp-{version}.schema.json").read_bytes()) for version in OLDER_VERSIONS}
OLD = OLDER_VERSIONS[0]
SPOKEN = Spoken(Session(OLD, {}))
INFO = {"name": "behind", "version": "3"}
CACHED = {"resultType": "complete", "ttlMs": 5, "cacheScope": "private"}
OBJECT = {"type": "object"}


def heard(*lines: tuple[str, str]) -> Received:
    """A head with these lines besides what every request has."""
    headers = (("host", "x"), ("accept", "*/*"), ("traceparent", "t"), *lines)
    return Received(SERVER, "POST", SERVER.path, tuple((name.encode(), value.encode()) for name, value in headers))


def said(method: str, params: Any = None, request_id: Any = 7) -> Any:
    """The envelope of an older client's message."""
    message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
    return parse_envelope(orjson.dumps(message if request_id is None else {**message, "id": request_id}))


def check(version: str, kind: str, result: Any) -> None:
    """Hold a result to the official schema of its revision."""
    schema = SCHEMAS[version]
    place = "$defs" if "$defs" in schema else "definitions"
    found = {"$schema": schema["$schema"], place: schema[place], "$ref": f"#/{place}/{kind}"}
    errors = [error.message for error in jsonschema_rs.validator_for(found).iter_errors(result)]
    assert not errors, errors


def retold(method: str, result: Any, version: str = OLD) -> Any:
    """A server's result as an older client gets it."""
    text = orjson.dumps({"jsonrpc": "2.0", "id": 7, "result": result})
    message = orjson.loads(retell_answer(Spoken(Session(version, {})), method, "bank", text))
    assert message.keys() == {"jsonrpc", "id", "result"}
    return message["result"]


TEXT = {"type": "text", "text": "t", "annotations": {"audience": ["user"], "priority": 0.5}}
TOOLS = [
    {"name": "plain", "inputSchema": OBJECT, "icons": [{"src": "https://x/i.png"}], "annotations": {"title": "P"}},
    {
        "name": "loose",
        "inputSchema": {**OBJECT, "properties": {"any": True, "none": False, "text": {"type": "string"}}},
    },
    {"name": "list", "inputSchema": OBJECT, "outputSchema": {"type": "array", "items": {"type": "integer"}}},
    {"name": "object", "inputSchema": OBJECT, "outputSchema": {**OBJECT, "properties": {"any": True}}},
]
ANSWERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "initialize": (
        "server/discover",
        "InitializeResult",
        {
            "supportedVersions": ["2026-07-28"],
            "instructions": "Go.",
            "_meta": {"io.modelcontextprotocol/serverInfo": INFO},
            "capabilities": {
                "tools": {"listChanged": True},
                "resources": {"subscribe": True},
                "logging": {},
                "extensions": {"x/y": {}},
            },
        },
    ),
    "tools": ("tools/list", "ListToolsResult", {"tools": TOOLS, "nextCursor": "c"}),
    "call": ("tools/call", "CallToolResult", {"content": [TEXT], "structuredContent": {"a": 1}, "isError": False}),
    "call with a list": ("tools/call", "CallToolResult", {"content": [TEXT], "structuredContent": [1, 2]}),
    "call with null": ("tools/call", "CallToolResult", {"content": [], "structuredContent": None}),
    "prompts": ("prompts/list", "ListPromptsResult", {"prompts": [{"name": "p", "arguments": [{"name": "a"}]}]}),
    "prompt": ("prompts/get", "GetPromptResult", {"messages": [{"role": "user", "content": TEXT}]}),
    "resources": ("resources/list", "ListResourcesResult", {"resources": [{"uri": "a://b", "name": "b", "size": 3}]}),
    "templates": (
        "resources/templates/list",
        "ListResourceTemplatesResult",
        {"resourceTemplates": [{"uriTemplate": "a://{b}", "name": "b"}]},
    ),
    "resource": ("resources/read", "ReadResourceResult", {"contents": [{"uri": "a://b", "text": "t"}]}),
    "completion": (
        "completion/complete",
        "CompleteResult",
        {"completion": {"values": ["v"], "total": 1, "hasMore": False}},
    ),
}


@pytest.mark.parametrize("version", OLDER_VERSIONS)
@pytest.mark.parametrize("name", ANSWERS)
def test_answers_have_the_form_of_the_older_revision(name: str, version: str) -> None:
    """Every kind of result is one of that revision's schema, without what only the newer one has."""
    method, kind, result = ANSWERS[name]
    told = retold(method, {**CACHED, **result}, version)
    check(version, kind, told)
    assert not told.keys() & CACHED.keys()


def test_the_schemas_would_tell() -> None:
    """The twin: untranslated, the results that need a translation are none of the older revision."""
    for name in ("initialize", "tools", "call with a list", "call with null"):
        _, kind, result = ANSWERS[name]
        with pytest.raises(AssertionError):
            check(OLD, kind, {**CACHED, **result})


def test_initialize_says_who_serves_and_no_more_than_can_be_served() -> None:
    """Name and instructions are the server's; of its capabilities only those, and only their bare presence."""
    method, _, result = ANSWERS["initialize"]
    assert retold(method, result) == {
        "protocolVersion": OLD,
        "capabilities": {"tools": {}, "resources": {}},
        "serverInfo": INFO,
        "instructions": "Go.",
    }
    for meta in ({}, {"_meta": 3}, {"_meta": {"io.modelcontextprotocol/serverInfo": {"name": 1}}}):
        bare = retold(method, {"capabilities": {}, **meta})
        assert bare == {"protocolVersion": OLD, "capabilities": {}, "serverInfo": {"name": "bank", "version": ""}}
        check(OLD, "InitializeResult", bare)


@pytest.mark.parametrize("result", [{}, {"capabilities": None}, {"capabilities": []}], ids=str)
def test_a_discovery_without_capabilities_is_no_answer(result: Any) -> None:
    """Nothing is made up for a server."""
    with pytest.raises(Refused) as refused:
        retold("server/discover", result)
    assert refused.value.refusal is Refusal.UPSTREAM_INVALID


@given(st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(), st.lists))
def test_nothing_else_of_a_result_changes(value: Any) -> None:
    """What a server says in members of its own passes as it is."""
    content = [{"type": "text", "text": "t", "_meta": {"x/y": value}}]
    assert retold("tools/call", {**CACHED, "content": content, "_meta": {"a/b": value}}) == {
        "content": content, "_meta": {"a/b": value},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "told"), [(-32020, -32602), (-32021, 40001), (-32022, -32603), (-32602, -32602), (7, 7)]
)
def test_codes_are_those_that_the_older_revision_knows(code: int, told: int) -> None:
    """A server's error keeps its data; one that only the newer revision has becomes what it means there."""
    text = orjson.dumps({"jsonrpc": "2.0", "id": 7, "error": {"code": code, "message": "m", "data": {"a": 1}}})
    error = orjson.loads(retell_answer(SPOKEN, "tools/call", "bank", text))["error"]
    assert (error["code"], error["data"]) == (told, {"a": 1})
    assert ("2026-07-28" in error["message"]) == (told == 40001)


@pytest.mark.parametrize("refusal", [row for row in Refusal if not row.value.result], ids=lambda row: row.reason)
def test_a_refusal_never_looks_like_a_lost_session(refusal: Refusal) -> None:
    """A request's error has status 200 but for session and token; a notification's is an HTTP error, not 404."""
    told = {}
    for request_id in (7, None):
        refused = Refused(refusal)
        reply = refusal_reply(refused, request_id=request_id, server=SERVER, decision_id="d")
        told[request_id] = retell_refusal(refused, reply)
        error = orjson.loads(told[request_id].body)["error"]
        assert not -32099 <= error["code"] <= -32020
        assert told[request_id].headers == reply.headers
    own = refusal in {Refusal.SESSION_UNKNOWN, Refusal.SESSION_MISMATCH} or refusal.value.challenge is not None
    assert told[7].status == (refusal.value.status if own else 200)
    assert (told[None].status == 404) == (refusal is Refusal.SESSION_UNKNOWN)


def test_arguments_that_do_not_fit_are_told_as_the_tool_would() -> None:
    """The one refusal that is a result has the older form, too."""
    refused = Refused(Refusal.ARGUMENTS_INVALID, message="no")
    reply = retell_refusal(refused, refusal_reply(refused, request_id=7, server=SERVER, decision_id="d"))
    result = orjson.loads(reply.body)["result"]
    assert result == {"content": [{"type": "text", "text": "no"}], "isError": True}
    check(OLD, "CallToolResult", result)


# Requests


@pytest.mark.parametrize(
    ("method", "params", "shown"),
    [
        ("tools/call", {"name": "a b", "arguments": {"x": 1.0}, "_meta": {"progressToken": 1, "x/y": 2}}, "a b"),
        ("tools/call", {"name": "pay", "task": {"ttl": 1}}, "pay"),
        ("tools/call", {"name": "pay", "_meta": {RELATED_TASK: {"taskId": "t"}}}, "pay"),
        ("prompts/get", {"name": "gr\u00fc\u00dfe"}, "gr\u00fc\u00dfe"),
        ("resources/read", {"uri": "a://b"}, "a://b"),
        ("tools/list", {"cursor": "c"}, None),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": "v"}},
            None,
        ),
    ],
)
def test_a_request_agrees_with_its_headers_by_construction(method: str, params: Any, shown: str | None) -> None:
    """What the corridor judges is what the client said, under the session's word, with headers that match."""
    lines = [("mcp-session-id", "s"), ("mcp-protocol-version", OLD)]
    received, envelope = modernise(SPOKEN, heard(*lines), said(method, params))
    call = match_headers(received, envelope)
    assert (call.method, call.name, call.capabilities) == (method, shown, {})
    assert parse_envelope(envelope.raw) == envelope, "what is judged is what is sent"
    expected = {name: value for name, value in params.items() if name not in {"task", "_meta"}}
    assert {name: value for name, value in envelope.params.items() if name != "_meta"} == expected
    own = {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {}}
    told = {key: value for key, value in params.get("_meta", {}).items() if key != RELATED_TASK}
    assert envelope.meta == {**told, **own}
    assert not received.values(b"mcp-session-id")
    assert received.values(b"traceparent") == [b"t"]


LINES = st.sampled_from(
    [
        ("mcp-session-id", "s"),
        ("mcp-protocol-version", OLD),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-method", "tools/list"),
        ("mcp-name", "pay"),
        ("mcp-name", "=?base64?cGF5?="),
        ("mcp-param-x", "y"),
    ]
)
VALUES: list[Any] = ["pay", {}, {"a": 1}, 3, None, {VERSION_KEY: OLD}, {CAPABILITIES_KEY: {"elicitation": {}}}]
OWN_FAULTS = {Refusal.SESSION_MISMATCH, Refusal.METHOD_UNKNOWN, Refusal.ENVELOPE_INVALID, Refusal.PARAMS_INVALID}
NAMES = st.sampled_from(
    ["tools/call", "tools/list", "resources/read", "prompts/get", "initialize", "ping", "server/discover"]
)
PARAMS = st.dictionaries(
    st.sampled_from(["name", "uri", "arguments", "cursor", "task", "requestState", "_meta", "taskId"]),
    st.sampled_from(VALUES),
)


@given(st.lists(LINES, max_size=4), NAMES, PARAMS, st.none() | st.integers(-(2**63), 2**64 - 1) | st.text())
def test_whatever_an_older_client_sends_is_judged_as_it_is_forwarded(
    lines: list[tuple[str, str]], method: str, params: dict[str, Any], request_id: Any
) -> None:
    """No mix of heads and bodies gets through translated with another word than the session's, or disagreeing."""
    received, envelope = heard(*lines), said(method, params, request_id)
    if not speaks_older(received, envelope):
        return
    call = None
    fault = None
    try:
        check_unmixed(received, envelope)
        received, envelope = modernise(SPOKEN, received, envelope)
        call = match_headers(received, envelope)
    except (Answered, Refused) as found:
        fault = found
    if call is None:
        assert method == "ping" if isinstance(fault, Answered) else getattr(fault, "refusal", None) in OWN_FAULTS
        return
    assert parse_envelope(envelope.raw) == envelope
    assert (call.capabilities, call.request_state, call.input_responses) == ({}, None, None)
    assert envelope.meta[VERSION_KEY] == "2026-07-28"
    assert call.method == ("server/discover" if method == "initialize" else method)


@pytest.mark.parametrize("asked", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", "2026-07-28", "", "x"])
def test_the_newest_common_revision_is_agreed_on(asked: str) -> None:
    """The asked one where it is served in older words, else the newest of those; no capability that can't be used."""
    declared: dict[str, Any] = {
        "elicitation": {"form": {}},
        "sampling": {},
        "roots": {},
        "experimental": {"x": {}},
        "extensions": {"a": {}},
    }
    envelope = said("initialize", {"protocolVersion": asked, "capabilities": declared, "clientInfo": {"name": "n"}})
    session = negotiate(envelope)
    assert session == Session(asked if asked in OLDER_VERSIONS else OLD, {})
    _, discover = modernise(Spoken(session, "s"), heard(), envelope)
    assert discover.method == "server/discover"
    assert discover.params.keys() == {"_meta"}


@pytest.mark.parametrize("member", ["protocolVersion", "capabilities", "clientInfo"])
@pytest.mark.parametrize("value", [None, 3, []], ids=str)
def test_an_initialize_that_is_none_begins_nothing(member: str, value: Any) -> None:
    """Every member has to be there in its type."""
    params = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": {}}
    assert negotiate(said("initialize", params)).version == OLD
    with pytest.raises(Refused) as refused:
        negotiate(said("initialize", {**params, member: value}))
    assert refused.value.refusal is Refusal.PARAMS_INVALID
    with pytest.raises(Refused):
        negotiate(said("initialize", params, request_id=None))


@pytest.mark.parametrize(
    ("method", "lines", "older"),
    [
        ("initialize", [], True),
        ("initialize", [("mcp-protocol-version", "2024-11-05")], True),
        ("initialize", [("mcp-protocol-version", "2026-07-28")], False),
        ("initialize", [("mcp-method", "initialize")], True),
        ("tools/call", [("mcp-method", "tools/call"), ("mcp-name", "x")], False),
        ("tools/call", [("mcp-method", "x"), ("mcp-protocol-version", OLD)], True),
        ("tools/call", [], False),
        ("tools/call", [("mcp-session-id", "s")], True),
        ("tools/call", [("mcp-protocol-version", OLD)], True),
        ("tools/call", [("mcp-protocol-version", "1900-01-01")], False),
        ("tools/call", [("mcp-protocol-version", OLD), ("mcp-protocol-version", "2026-07-28")], False),
        ("tools/call", [("mcp-session-id", "s"), ("mcp-protocol-version", "2026-07-28")], False),
        *[("tools/call", [("mcp-session-id", "s"), (name, "x")], False) for name in (
            "mcp-param-x", "mcp.name", "mcp",
        )],
    ],
)  # fmt: skip
def test_what_a_request_says_of_its_version_decides(method: str, lines: list[tuple[str, str]], older: bool) -> None:
    """Nobody gets older treatment for a request that claims the newer revision, in its head or in its body."""
    assert speaks_older(heard(*lines), said(method)) is older
    for version in (OLD, "2026-07-28"):
        assert not speaks_older(heard(*lines), said(method, {"_meta": {VERSION_KEY: version}}))


@pytest.mark.parametrize(
    "params",
    [*({"_meta": {f"io.modelcontextprotocol/{key}": "x"}} for key in (
        "clientCapabilities", "clientInfo", "logLevel",
    )), {"requestState": "x"}, {"inputResponses": {}}],
    ids=str,
)  # fmt: skip
def test_no_member_of_the_newer_revision_is_believed(params: Any) -> None:
    """Refused rather than overwritten: it can only be meant to say another thing than the session."""
    check_unmixed(heard(), said("tools/call", {"_meta": {"progressToken": 1, "a/b": 1}}))
    with pytest.raises(Refused) as refused:
        check_unmixed(heard(), said("tools/call", params))
    assert refused.value.refusal is Refusal.SESSION_MISMATCH


@pytest.mark.parametrize(
    ("lines", "agree"),
    [
        ([("mcp-method", "tools/call"), ("mcp-name", "pay")], True),
        ([("mcp-name", "=?base64?cGF5?=")], True),
        ([("mcp-method", "tools/list")], False),
        ([("mcp-method", "tools/call"), ("mcp-method", "tools/call")], False),
        ([("mcp-name", "other")], False),
        ([("mcp-name", "pay"), ("mcp-name", "pay")], False),
        ([("mcp-name", "=?base64?cGF5=?=")], False),
        ([("mcp-name", "")], False),
    ],
)
def test_a_mirrored_header_agrees_in_every_revision(lines: list[tuple[str, str]], agree: bool) -> None:
    """Somebody on the way may have gone by it: what is sent says what the body says, once."""
    envelope = said("tools/call", {"name": "pay"})
    if agree:
        check_unmixed(heard(*lines), envelope)
    else:
        with pytest.raises(Refused) as refused:
            check_unmixed(heard(*lines), envelope)
        assert refused.value.refusal is Refusal.SESSION_MISMATCH


def test_what_no_header_can_say_is_refused() -> None:
    """A name or an argument that would make a header without end: the client of today is bounded by its own head."""
    good, long = "n" * LONGEST_MIRRORED, "n" * (LONGEST_MIRRORED + 1)
    modernise(SPOKEN, heard(), said("resources/read", {"uri": good}))
    with pytest.raises(Refused) as refused:
        modernise(SPOKEN, heard(), said("resources/read", {"uri": long}))
    assert refused.value.refusal is Refusal.PARAMS_INVALID
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    tool = Tool("pay", "d", {}, {"name": "pay", "inputSchema": schema}, read_bindings(schema))

    def call(region: str) -> Any:
        return match_headers(
            *modernise(SPOKEN, heard(), said("tools/call", {"name": "pay", "arguments": {"region": region}}))
        )

    assert mirror_params(call(good), tool).param_headers == ((b"mcp-param-region", good.encode()),)
    with pytest.raises(Refused):
        mirror_params(call(long), tool)


def test_what_the_house_answers_itself() -> None:
    """An empty result for a ping, 202 for a notification; a header begins a session on no other answer."""
    with pytest.raises(Answered) as answered:
        modernise(SPOKEN, heard(), said("ping", request_id="p"))
    assert orjson.loads(answered.value.reply("d").body) == {"jsonrpc": "2.0", "id": "p", "result": {}}
    with pytest.raises(Answered) as answered:
        modernise(SPOKEN, heard(), said("notifications/initialized", request_id=None))
    assert (answered.value.reply("d").status, answered.value.reply("d").body) == (202, b"")
    assert session_line(None) == session_line(SPOKEN) == ()
    assert session_line(Spoken(SPOKEN.session, "s")) == ((b"mcp-session-id", b"s"),)
