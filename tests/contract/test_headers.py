"""HDR and RPC: header, body, version and method agree, or nothing else runs."""

from __future__ import annotations

import string
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.contract.envelope import parse_envelope
from gateway.contract.headers import METHODS, VERSIONS, decode_value, encode_value, match_headers
from gateway.contract.refusals import Refusal, Refused
from tests.contract.asking import (
    META,
    SERVER,
    TASKS_META,
    VERSION,
    Lines,
    ask,
    lines_of,
    message,
    received,
    refusal,
    replaced,
    without,
)

NAMED: dict[str, dict[str, Any]] = {
    "tools/call": {"name": "read_file", "arguments": {"path": "/etc/motd"}},
    "prompts/get": {"name": "read_file"},
    "resources/read": {"uri": "file:///etc/motd"},
    "tasks/get": {"taskId": "t"},
    "tasks/update": {"taskId": "t", "inputResponses": {"q": {"action": "accept"}}},
    "tasks/cancel": {"taskId": "t"},
}
RIGHT: dict[str, dict[str, Any]] = {
    **NAMED,
    "server/discover": {},
    "tools/list": {"cursor": "next"},
    "prompts/list": {},
    "resources/list": {},
    "resources/templates/list": {},
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}},
    "subscriptions/listen": {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["file:///a"]}},
}


TASKS = {"tasks/get", "tasks/update", "tasks/cancel"}


def meta_of(method: str) -> dict[str, Any]:
    """What a right client says about itself with this method."""
    return TASKS_META if method in TASKS else META


def published(name: str) -> dict[str, Any]:
    """The definitions of a published schema."""
    definitions: dict[str, Any] = orjson.loads((Path(__file__).parents[1] / "vectors" / name).read_bytes())["$defs"]
    return definitions


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_the_revision_is_served(method: str) -> None:
    """The right request of each method passes: the positive twin of everything below."""
    call = ask(message(method, params=RIGHT[method], meta=meta_of(method)))
    assert call.method == method
    assert call.kind == METHODS[method].kind
    assert call.name == next((value for value in NAMED.get(method, {}).values() if isinstance(value, str)), None)
    assert call.task_ids == (("t",) if method in TASKS else ())


def test_the_methods_are_those_of_the_published_schema() -> None:
    """The table is exactly `ClientRequest` of the revision's schema, and the requests of the tasks extension's."""
    schema = published("mcp-2026-07-28.schema.json")
    named = [schema[item["$ref"].rpartition("/")[2]] for item in schema["ClientRequest"]["anyOf"]]
    assert {request["properties"]["method"]["const"] for request in named} == set(METHODS) - TASKS
    requests = [
        request["allOf"][1]
        for name, request in published("tasks-extension.schema.json").items()
        if name.endswith("TaskRequest")
    ]
    assert {request["properties"]["method"]["const"] for request in requests} == TASKS
    for request in requests:
        needed = METHODS[request["properties"]["method"]["const"]].params.required
        assert set(request["properties"]["params"]["required"]) == set(needed)


@pytest.mark.parametrize("header", ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"])
@pytest.mark.parametrize("method", NAMED)
def test_a_missing_header_is_a_mismatch(method: str, header: str) -> None:
    """HDR-01: -32020, the header named."""
    request = message(method, params=NAMED[method])
    refused = refusal(request, without(lines_of(request), header))
    assert refused.refusal is Refusal.HEADER_MISMATCH
    assert refused.message == f"Header mismatch: {header} header is missing."


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Mcp-Name", "delete_all"),
        ("Mcp-Name", "READ_FILE"),
        ("Mcp-Name", ""),
        ("Mcp-Name", "read_file,read_file"),
        ("Mcp-Name", '"read_file"'),
        ("Mcp-Name", "read%5Ffile"),
        ("Mcp-Name", "=?base64?ZGVsZXRlX2FsbA==?="),
        ("Mcp-Method", "tools/list"),
        ("Mcp-Method", "Tools/Call"),
        ("Mcp-Method", "TOOLS/CALL"),
        ("Mcp-Method", "=?base64?dG9vbHMvY2FsbA==?="),
        ("MCP-Protocol-Version", "2025-11-25"),
        ("MCP-Protocol-Version", "v999"),
        ("MCP-Protocol-Version", "2026-07-28, 2026-07-28"),
        ("MCP-Protocol-Version", "=?base64?MjAyNi0wNy0yOA==?="),
    ],
)
def test_a_header_that_differs_from_the_body_is_a_mismatch(header: str, value: str) -> None:
    """HDR-02, HDR-03: no other value, other case or encoding of a header that has none."""
    refused = refusal(message(), replaced(lines_of(message()), header, value))
    assert refused.refusal is Refusal.HEADER_MISMATCH
    assert header in (refused.message or "")


@pytest.mark.parametrize("version", ["2025-11-25", "v999"])
def test_a_mismatched_version_wins_over_an_unsupported_one(version: str) -> None:
    """HDR-03: the body's version differs from the header's, whichever of them is supported: -32020."""
    request = message(meta={**META, "io.modelcontextprotocol/protocolVersion": version})
    assert refusal(request).refusal is Refusal.HEADER_MISMATCH


@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
def test_names_ignore_case_and_values_ignore_outer_spaces(spell: Any) -> None:
    """HDR-04 and the SEP's case table: names in any case, values trimmed."""
    lines: Lines = [(spell(name), f"  {value!s}\t ") for name, value in lines_of(message())]
    assert ask(message(), lines).name == "read_file"


@pytest.mark.parametrize("header", ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"])
@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
@pytest.mark.parametrize("order", [1, -1])
def test_a_repeated_header_is_a_mismatch(header: str, method: str, order: int) -> None:
    """HDR-06: equal or different, first or last, on every method: never first-wins or last-wins."""
    request = message(method)
    lines = lines_of(request)
    right = dict(lines).get(header, "x")
    for pair in ([right, right], [right, "evil"][::order]):
        refused = refusal(request, replaced(lines, header, *pair))
        assert refused.refusal is Refusal.HEADER_MISMATCH
        assert refused.message == f"Header mismatch: {header} header was sent more than once."


@pytest.mark.parametrize("header", ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Mcp-Param-X"])
@pytest.mark.parametrize("value", [b"a\x01b", b"\x7f", b"caf\xe9", "é".encode(), b"a\x00", b"a\rb", b"a\nb"])
def test_raw_bytes_are_a_mismatch(header: str, value: bytes) -> None:
    """HDR-11: controls, DEL, Latin-1 and raw UTF-8, even where the body holds the same text."""
    lines = lines_of(message())
    assert refusal(message(), replaced(lines, header, value)).refusal is Refusal.HEADER_MISMATCH
    text = value.decode("utf-8", "replace")
    same = {
        "Mcp-Name": message(params={"name": text}),
        "Mcp-Method": message(text, params={}),
        "MCP-Protocol-Version": message(meta={**META, "io.modelcontextprotocol/protocolVersion": text}),
        "Mcp-Param-X": message(params={"name": "read_file", "arguments": {"x": text}}),
    }[header]
    assert refusal(same, replaced(lines, header, value)).refusal is Refusal.HEADER_MISMATCH


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("=?base64?SGVsbG8=?=", "Hello"),
        ("Hello", "Hello"),
        ("=?base64?SGVsbG8=", "=?base64?SGVsbG8="),
        ("SGVsbG8=?=", "SGVsbG8=?="),
        ("=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?="),
        ("=?base64?5pel5pys6Kqe?=", "日本語"),
        ("=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=", "=?base64?literal?="),
        ("my-tool-name", "my-tool-name"),
        ("my_tool_name", "my_tool_name"),
        ("us west 1", "us west 1"),
        ("a\tb", "a\tb"),
        ("", ""),
        ("=?base64??=", ""),
    ],
)
def test_an_encoded_name_is_decoded_before_it_is_compared(value: str, name: str) -> None:
    """HDR-08 and the SEP's decoding table: exact markers decode, everything else is literal."""
    request = message(params={"name": name})
    assert ask(request, replaced(lines_of(request), "Mcp-Name", value)).name == name


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("=?base64?SGVsbG8?=", "Hello"),
        ("=?base64?SGVs!!!bG8=?=", "Hello"),
        ("=?base64?SGVs bG8=?=", "Hello"),
        ("=?base64?SGVsbG9=?=", "Hello"),
        ("=?base64?SGVsbG8==?=", "Hello"),
        ("=?base64?SGVsbG8=SGVsbG8=?=", "HelloHello"),
        ("=?base64?4pyT_-?=", "✓"),
        ("=?base64?/w==?=", "\u00ff"),
        ("=?base64?7aCA?=", "x"),
        ("=?base64?=", "=?base64?="),
        ("=?base64?=", ""),
        ("=?base64?literal?=", "=?base64?literal?="),
        ("=?base64?SGVsbG8=?=", "=?base64?SGVsbG8=?="),
    ],
)
def test_a_malformed_encoding_equals_nothing(value: str, name: str) -> None:
    """HDR-08, G2: bad padding, alphabet, trailing bits or UTF-8, overlapping marks, a literal that looks encoded."""
    request = message(params={"name": name})
    assert ask(request).name == name
    assert refusal(request, replaced(lines_of(request), "Mcp-Name", value)).refusal is Refusal.HEADER_MISMATCH


@pytest.mark.parametrize(
    "uri", ["file:///path/to/file%20name.txt", "https://example.com/resource?id=123", "note://ü/…"]
)
def test_a_resources_uri_is_mirrored(uri: str) -> None:
    """The SEP's table of special characters: `Mcp-Name` is `params.uri` on resources/read, never `params.name`."""
    request = message("resources/read", params={"uri": uri})
    assert ask(request).name == uri
    assert (
        refusal(request, replaced(lines_of(request), "Mcp-Name", "file:///other")).refusal is Refusal.HEADER_MISMATCH
    )


@pytest.mark.parametrize("member", [None, 42, {}, ["read_file"], ""])
def test_a_name_that_is_no_text_equals_no_header(member: Any) -> None:
    """HDR-02: a member that is absent or of another type can't be what a header mirrors."""
    params = {} if member is None else {"name": member}
    lines = replaced(lines_of(message()), "Mcp-Name", "read_file")
    assert refusal(message(params=params), lines).refusal is Refusal.HEADER_MISMATCH


@given(st.text() | st.text("=?base64AZ= ", max_size=30))
@example("=?base64??=")
@example("=?base64?=")
@example(" padded ")
@example("line1\r\nline2")
@example("\tindented")
@example("\x7f")
def test_encoding_and_decoding_are_inverse(text: str) -> None:
    """G2: every text survives the round trip, trimmed on the way or not, in legal bytes only."""
    value = encode_value(text)
    assert decode_value(value.strip(b" \t")) == text
    assert all(0x20 <= byte < 0x7F for byte in value)


@given(st.text("".join(sorted(string.ascii_letters + string.digits + "+/=?-_ \t\x00é")), max_size=24))
@example("SGVsbG9=")
@example("SGVsbG8")
def test_an_encoded_value_has_exactly_one_spelling(payload: str) -> None:
    """G2: whatever decodes between the marks is the one text that encoding gives."""
    try:
        text = decode_value(f"=?base64?{payload}?=".encode())
    except ValueError:
        return
    assert b64encode(text.encode()).decode() == payload


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("us-west1", "us-west1"),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        (" us-west1", "=?base64?IHVzLXdlc3Qx?="),
        ("us-west1 ", "=?base64?dXMtd2VzdDEg?="),
        (" us-west1 ", "=?base64?IHVzLXdlc3QxIA==?="),
        ("us west 1", "us west 1"),
        ("日本語", "=?base64?5pel5pys6Kqe?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("line1\r\nline2", "=?base64?bGluZTENCmxpbmUy?="),
        ("\tindented", "=?base64?CWluZGVudGVk?="),
        ("", ""),
    ],
)
def test_values_are_encoded_as_the_tables_say(text: str, value: str) -> None:
    """The encoding tables of the revision and of SEP-2243."""
    assert encode_value(text) == value.encode()


def test_a_name_on_a_method_that_has_none_is_ignored() -> None:
    """HDR-13: `Mcp-Name: x` on tools/list decides nothing and names nothing."""
    request = message("tools/list")
    plain = ask(request)
    named = ask(request, [*lines_of(request), ("Mcp-Name", "x")])
    assert (named.name, named.arguments, named.param_headers) == (None, plain.arguments, ())


def test_unknown_parameter_headers_are_collected_unchanged() -> None:
    """HDR-13: `Mcp-Param-*` lines are kept in order and as sent, names with any token characters included."""
    params = [("Mcp-Param-Foo", "v"), ("Mcp-Param-user_id", "=?base64?SGVsbG8?="), ("Mcp-Param-Empty", "")]
    call = ask(message(), [*lines_of(message()), *params])
    assert call.param_headers == tuple((name.lower().encode(), value.encode()) for name, value in params)


@pytest.mark.parametrize(
    "names",
    [
        ("Mcp-Param-Foo", "mcp-param-FOO"),
        ("Mcp-Param-user_id", "Mcp-Param-User-Id"),
        ("Mcp-Param-a.b", "Mcp-Param-a-b"),
    ],
)
def test_a_repeated_parameter_header_is_a_mismatch(names: tuple[str, str]) -> None:
    """HDR-06, HDR-14: twice the same name, also in the eyes of a reader that folds punctuation."""
    lines = lines_of(message())
    ask(message(), [*lines, (names[0], "v")])
    refused = refusal(message(), [*lines, (names[0], "v"), (names[1], "v")])
    assert refused.refusal is Refusal.HEADER_MISMATCH
    assert refused.message == f"Header mismatch: {names[1].lower()} header was sent more than once."


@pytest.mark.parametrize(
    "name",
    [
        "Mcp_Name",
        "MCP_NAME",
        "Mcp.Name",
        "Mcp_Method",
        "MCP_Protocol-Version",
        "mcp-protocol_version",
        "Mcp_Param_Foo",
        "Mcp-Param_Foo",
        "Mcp-Param-",
    ],
)
def test_an_alias_of_a_header_is_a_mismatch(name: str) -> None:
    """HDR-14: a name that CGI-like readers take for one of the protocol's is refused."""
    assert refusal(message(), [*lines_of(message()), (name, "evil")]).refusal is Refusal.HEADER_MISMATCH


@pytest.mark.parametrize(
    "line",
    [
        ("Connection", "Mcp-Name, close"),
        ("X-Mcp-Name", "evil"),
        ("Mcp-Session-Id", "s"),
        ("Mcp-Namespace", "x"),
        ("Last-Event-ID", "3"),
    ],
)
def test_other_headers_change_nothing(line: tuple[str, str]) -> None:
    """G1: a `Connection` list removes no header, and headers of sessions and of others decide nothing."""
    call = ask(message(), [*lines_of(message()), line])
    assert (call.name, call.param_headers) == ("read_file", ())


@pytest.mark.parametrize(
    "meta",
    [
        None,
        42,
        {},
        {key: value for key, value in META.items() if "protocolVersion" not in key},
        {key: value for key, value in META.items() if "clientCapabilities" not in key},
        {**META, "io.modelcontextprotocol/protocolVersion": 20260728},
        {**META, "io.modelcontextprotocol/clientCapabilities": []},
        {**META, "io.modelcontextprotocol/clientCapabilities": None},
    ],
)
def test_required_metadata(meta: Any) -> None:
    """RPC-04: without `_meta`, version or capabilities, or with another type: -32602."""
    assert refusal(message(meta=meta), lines_of(message())).refusal is Refusal.META_MISSING


def test_client_info_is_optional() -> None:
    """RPC-04, the positive twin: `_meta` without clientInfo is served."""
    assert (
        ask(message(meta={key: value for key, value in META.items() if "clientInfo" not in key})).name == "read_file"
    )


@pytest.mark.parametrize("version", ["v999.0.0", "2025-06-18", "2026-07-29", "", "2026-07-28 "])
def test_an_unsupported_version_names_the_supported_ones(version: str) -> None:
    """RPC-05: header and body agree on another version: -32022 with exactly `supported` and `requested`."""
    request = message(meta={**META, "io.modelcontextprotocol/protocolVersion": version})
    refused = refusal(request, replaced(lines_of(request), "MCP-Protocol-Version", version))
    if version.strip() != version:  # a header can't hold it, so nothing can agree with it
        assert refused.refusal is Refusal.HEADER_MISMATCH
        return
    assert refused.refusal is Refusal.VERSION_UNSUPPORTED
    assert refused.data == {"supported": [VERSION], "requested": version}


@pytest.mark.parametrize(
    "method",
    [
        "unknown/method",
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/list",
        "tasks/result",
        "Tasks/get",
        "Tools/call",
        "tools/call ",
        "",
        "rpc.discover",
    ],
)
def test_unknown_and_removed_methods(method: str) -> None:
    """RPC-06: with modern headers they are -32601, HTTP 404."""
    request = message(method, params={"taskId": "t"})
    expected = Refusal.HEADER_MISMATCH if method != method.strip() else Refusal.METHOD_UNKNOWN
    assert refusal(request).refusal is expected


@pytest.mark.parametrize("header", ["MCP-Protocol-Version", "Mcp-Method", "both"])
def test_a_legacy_initialize_reads_what_is_supported(header: str) -> None:
    """RPC-06: an old client's handshake is -32020 whose message and data name the versions."""
    request = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}},
    }
    lines = lines_of(request)
    for name in ("MCP-Protocol-Version", "Mcp-Method") if header == "both" else (header,):
        lines = without(lines, name)
    refused = refusal(request, lines)
    assert refused.refusal is Refusal.HEADER_MISMATCH
    assert refused.data == {"supported": list(VERSIONS)}
    assert VERSION in (refused.message or "")


def test_extension_methods_are_those_that_the_configuration_lists() -> None:
    """A method of an extension is served only where it is listed, and shows all of its params to the policy."""
    server = replace(SERVER, methods=frozenset({"x/y", "tasks/list", "notifications/cancelled"}))
    request = message("x/y", params={"name": "n", "uri": "u", "arguments": {"a": 1}, "requestState": "s", "z": 2})
    assert refusal(request).refusal is Refusal.METHOD_UNKNOWN
    call = ask(request, server=server)
    assert (call.kind, call.name, call.request_state) == ("extension", None, None)
    assert call.arguments == {"name": "n", "uri": "u", "arguments": {"a": 1}, "requestState": "s", "z": 2}
    assert refusal(message("tasks/list", params={"taskId": "t"}), server=server).refusal is Refusal.METHOD_UNKNOWN
    assert refusal(message("notifications/cancelled", id=None), server=server).refusal is Refusal.METHOD_UNKNOWN


@pytest.mark.parametrize("method", METHODS)
def test_a_request_without_an_id_is_never_executed(method: str) -> None:
    """A message without an id whose method is a request's is -32600, headers right or not."""
    request = message(method, id=None, params=RIGHT[method])
    assert refusal(request).refusal is Refusal.ENVELOPE_INVALID
    assert refusal(request, []).refusal is Refusal.ENVELOPE_INVALID


def test_notifications() -> None:
    """None is defined over HTTP: unknown unless listed; a listed one needs no headers, but those sent must match."""
    server = replace(SERVER, methods=frozenset({"notifications/x"}))
    note = {"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": 1}}
    for method in ("notifications/x", "notifications/cancelled", "notifications/initialized"):
        assert refusal({**note, "method": method}, []).refusal is Refusal.METHOD_UNKNOWN
    call = ask(note, [], server)
    assert (call.kind, call.envelope.id, call.arguments) == ("extension", None, {"a": 1})
    assert (
        ask(note, [("Mcp-Method", "notifications/x"), ("MCP-Protocol-Version", VERSION)], server).kind == "extension"
    )
    assert refusal(note, [("Mcp-Method", "tools/call")], server).refusal is Refusal.HEADER_MISMATCH
    assert refusal(note, [("Mcp-Method", "notifications/x")] * 2, server).refusal is Refusal.HEADER_MISMATCH
    assert refusal(note, [("MCP-Protocol-Version", "v9")], server).refusal is Refusal.VERSION_UNSUPPORTED
    untyped = message("notifications/x", id=None, meta={"io.modelcontextprotocol/protocolVersion": 7})
    assert refusal(untyped, [], server).refusal is Refusal.META_MISSING
    stated = message("notifications/x", id=None, meta={"io.modelcontextprotocol/protocolVersion": "v9"})
    assert refusal(stated, [], server).refusal is Refusal.VERSION_UNSUPPORTED
    assert refusal(stated, [("MCP-Protocol-Version", VERSION)], server).refusal is Refusal.HEADER_MISMATCH


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("tools/call", {"arguments": []}),
        ("tools/call", {"arguments": None}),
        ("tools/call", {"arguments": "x"}),
        ("tools/call", {"requestState": {}}),
        ("tools/call", {"requestState": None}),
        ("tools/call", {"inputResponses": []}),
        ("tools/call", {"uri": "file:///etc/motd"}),
        ("tools/call", {"Task": {"ttl": 1}}),
        ("tools/call", {"task": {"ttl": 1}, "tasks": {}}),
        ("prompts/get", {"task": {"ttl": 1}}),
        ("resources/read", {"task": {"ttl": 1}}),
        ("prompts/get", {"arguments": 1}),
        ("prompts/get", {"uri": "x"}),
        ("resources/read", {"requestState": 1}),
        ("resources/read", {"name": "read_file"}),
        ("resources/read", {"arguments": {}}),
        ("tools/list", {"cursor": 1}),
        ("completion/complete", {"ref": None}),
        ("completion/complete", {"ref": {"type": 1}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": {}}}),
        ("completion/complete", {"argument": {"name": "a"}}),
        ("completion/complete", {"argument": {"name": "a", "value": 1}}),
        ("completion/complete", {"context": {"arguments": []}}),
        ("subscriptions/listen", {"notifications": None}),
        ("subscriptions/listen", {"notifications": {"toolsListChanged": 1}}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": "file:///a"}}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": [1]}}),
        ("subscriptions/listen", {"notifications": {"taskIds": "t"}}),
        ("subscriptions/listen", {"notifications": {"taskIds": [1]}}),
        ("subscriptions/listen", {"notifications": {"taskIds": ["t"] * 129}}),
        ("tasks/get", {"inputResponses": {}}),
        ("tasks/get", {"name": "read_file"}),
        ("tasks/get", {"requestState": "s"}),
        ("tasks/update", {"inputResponses": []}),
        ("tasks/update", {"arguments": {}}),
        ("tasks/cancel", {"reason": "x"}),
    ],
)
def test_parameters_that_steer_a_decision_have_their_type(method: str, change: dict[str, Any]) -> None:
    """RPC-03: -32602 for a wrong type, and for a member that would be executed without having been judged."""
    meta = meta_of(method)
    assert ask(message(method, params=RIGHT[method], meta=meta)).method == method
    assert refusal(message(method, params={**RIGHT[method], **change}, meta=meta)).refusal is Refusal.PARAMS_INVALID


LISTEN = {"notifications": {"taskIds": ["t", "u"]}}


@pytest.mark.parametrize(
    "capabilities",
    [
        {},
        {"extensions": None},
        {"extensions": []},
        {"extensions": {}},
        {"extensions": {"io.modelcontextprotocol/tasks": None}},
        {"extensions": {"io.modelcontextprotocol/tasks": True}},
        {"extensions": {"IO.modelcontextprotocol/tasks": {}}},
        {"tasks": {}},
    ],
)
@pytest.mark.parametrize("method", [*sorted(TASKS), "subscriptions/listen"])
def test_tasks_are_for_clients_that_declare_them(method: str, capabilities: dict[str, Any]) -> None:
    """-32021 names what is missing, on every request about a task and on a subscription to one."""
    params = LISTEN if method == "subscriptions/listen" else RIGHT[method]
    declared = ask(message(method, params=params, meta=TASKS_META))
    assert declared.task_ids == (("t", "u") if params is LISTEN else ("t",))
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": capabilities}
    refused = refusal(message(method, params=params, meta=meta))
    assert refused.refusal is Refusal.CAPABILITY_MISSING
    assert refused.data == {"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}


def test_a_subscription_to_no_task_needs_no_declaration() -> None:
    """Only who asks for tasks has to declare them; and asking for none of them by name is asking for tasks."""
    assert ask(message("subscriptions/listen", params=RIGHT["subscriptions/listen"])).task_ids == ()
    empty = message("subscriptions/listen", params={"notifications": {"taskIds": []}})
    assert refusal(empty).refusal is Refusal.CAPABILITY_MISSING
    assert ask({**empty, "params": {**empty["params"], "_meta": TASKS_META}}).task_ids == ()


@pytest.mark.parametrize("method", ["completion/complete", "subscriptions/listen"])
def test_required_parameters(method: str) -> None:
    """A method without its required parameters is -32602."""
    assert refusal(message(method, params={})).refusal is Refusal.PARAMS_INVALID


def test_what_the_call_holds() -> None:
    """Arguments, retry members, capabilities and the caller's own `_meta` keys, each in its place."""
    extra = {"com.example/tenant": "t", "io.modelcontextprotocol/role": "admin"}
    own = {"progressToken": 1, "traceparent": "x", "io.modelcontextprotocol/logLevel": "info"}
    capabilities: dict[str, Any] = {"elicitation": {"url": {}}}
    meta = {**META, **extra, **own, "io.modelcontextprotocol/clientCapabilities": capabilities}
    params = {
        "name": "read_file",
        "arguments": {"a": 1},
        "requestState": "s",
        "inputResponses": {"q": {"action": "accept"}},
    }
    call = ask(message(meta=meta, params=params))
    assert call.arguments == {"a": 1}
    assert (call.request_state, call.input_responses) == ("s", {"q": {"action": "accept"}})
    assert call.extra_meta == extra
    assert call.capabilities == capabilities
    assert (
        ask(message("subscriptions/listen", params=RIGHT["subscriptions/listen"])).arguments
        == RIGHT["subscriptions/listen"]
    )


def test_the_order_of_the_checks() -> None:
    """headers, `_meta`, version, method, parameters: each is named once all those before it are right."""
    version = "io.modelcontextprotocol/protocolVersion"
    request = message("nothing/known", params={}, meta={version: 7})
    lines = replaced(lines_of(request), "Mcp-Method", "tools/list")
    assert refusal(request, lines).refusal is Refusal.HEADER_MISMATCH
    lines = replaced(lines_of(request), "MCP-Protocol-Version", "v1")
    assert refusal(request, lines).refusal is Refusal.META_MISSING
    request["params"]["_meta"] = {**META, version: "v1"}
    assert refusal(request, lines).refusal is Refusal.VERSION_UNSUPPORTED
    request["params"]["_meta"] = META
    assert refusal(request).refusal is Refusal.METHOD_UNKNOWN
    request["method"] = "completion/complete"
    assert refusal(request).refusal is Refusal.PARAMS_INVALID


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["Mcp-Name", "Mcp-Method", "MCP-Protocol-Version", "Mcp_Name", "Mcp-Param-A", "Connection"]
            ),
            st.sampled_from(["read_file", "tools/call", VERSION, "=?base64?cmVhZF9maWxl?=", "x", ""]),
        ),
        max_size=5,
    )
)
def test_whatever_headers_are_sent_the_call_is_the_bodys(lines: list[tuple[str, str | bytes]]) -> None:
    """G2: a request that is let through has exactly one line per header, and asks for what the body says."""
    request = message()
    head = received(lines)
    try:
        call = match_headers(head, parse_envelope(orjson.dumps(request)))
    except Refused as refused:
        call = None
        reason = refused.refusal
    if call is None:
        assert reason is Refusal.HEADER_MISMATCH
        return
    assert (call.method, call.name, call.arguments) == ("tools/call", "read_file", {"path": "/etc/motd"})
    assert all(len(head.values(name)) == 1 for name in (b"mcp-name", b"mcp-method", b"mcp-protocol-version"))
