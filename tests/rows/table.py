"""Rows of the requirements as data: a good request, and the one thing about it that is broken.

Each row is held to the whole proof by test_refusals.py. A change is made to the wire's form, so nothing between a row
and the gateway can mend it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.contract.refusals import Refusal
from tests.rows.asking import Ask, encoded, spell, tool, version_of
from tests.rows.proof import NO_ID
from tests.support.stack import body

VERSION, METHOD, NAME = b"MCP-Protocol-Version", b"Mcp-Method", b"Mcp-Name"
VERSION_KEY, CAPABILITIES_KEY = (
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientCapabilities",
)
Change = Callable[[Ask], Ask]


@dataclass(frozen=True)
class Row:
    """One way to break a good request. `message` is that of the good one (default: a call of `read`).

    `judged`: the policy was asked although rows of this refusal mostly come before it.
    """

    name: str
    refusal: Refusal
    change: Change
    request_id: Any = 7
    message: Mapping[str, Any] | None = None
    judged: bool = False


def _without(name: bytes) -> Change:
    return lambda ask: ask.line(name)


def _says(name: bytes, *values: bytes) -> Change:
    return lambda ask: ask.line(name, *values)


def _body(text: bytes | str) -> Change:
    data = text.encode() if isinstance(text, str) else text
    return lambda ask: replace(ask, body=data)


def _swap(old: bytes, new: bytes) -> Change:
    def change(ask: Ask) -> Ask:
        assert ask.body.count(old) >= 1, (old, ask.body)
        return replace(ask, body=ask.body.replace(old, new, 1))

    return change


def _edit(change: Callable[[dict[str, Any]], object]) -> Change:
    return lambda ask: ask.edit(change)


def _again(name: bytes, value: bytes = b"") -> Change:
    """One more line of a header: the same value, or another."""
    return lambda ask: ask.more(name, value or ask.values(name)[0])


def _verb(verb: bytes) -> Change:
    return lambda ask: replace(ask, verb=verb, body=b"", length=-1)


def _path(path: bytes) -> Change:
    return lambda ask: replace(ask, target=path)


def _state(text: str) -> Change:
    return _edit(lambda message: message["params"].update(requestState=text))


def _cut(start: int, stop: int | None = None) -> Change:
    """A part of the credential."""
    return lambda ask: ask.line(b"Authorization", ask.values(b"Authorization")[0][start:stop])


def _member(key: str, how: str) -> Change:
    """A member of `_meta` that is missing or has another type."""
    if how == "missing":
        return _edit(lambda message: version_of(message).pop(key))
    return _edit(lambda message: version_of(message).update({key: None if how == "null" else []}))


def _both_versions(version: str) -> Change:
    return lambda ask: ask.line(VERSION, version.encode()).edit(
        lambda m: version_of(m).update({VERSION_KEY: version})
    )


def _becomes(method: str, params: Mapping[str, Any] | None = None, name: str | None = None) -> Change:
    """Another method, in header and body; `Mcp-Name` only where it is given."""

    def change(ask: Ask) -> Ask:
        changed = replace(ask, body=spell(body(method, params, 7))).line(METHOD, method.encode())
        return changed.line(NAME) if name is None else changed.line(NAME, name.encode())

    return change


def _one(*changes: Change) -> Change:
    def change(ask: Ask) -> Ask:
        for one in changes:
            ask = one(ask)
        return ask

    return change


TASK_REQUESTS: Mapping[str, Mapping[str, Any]] = {
    "tasks/get": {"taskId": "t"},
    "tasks/update": {"taskId": "t", "inputResponses": {}},
    "tasks/cancel": {"taskId": "t"},
}
_handles_tasks = _edit(
    lambda m: version_of(m).update({CAPABILITIES_KEY: {"extensions": {"io.modelcontextprotocol/tasks": {}}}})
)

PROMPT = body("prompts/get", {"name": "greet"}, 7)
RESOURCE = body("resources/read", {"uri": "demo://open"}, 7)
TOOLS = body("tools/list", {}, 7)
MISMATCH = Refusal.HEADER_MISMATCH

HDR = [
    *(
        Row(f"HDR-01 no {name.decode()} on {message['method']}", MISMATCH, _without(name), message=message)
        for message in (tool("read"), PROMPT, RESOURCE, TOOLS)
        for name in (VERSION, METHOD, NAME)
        if name != NAME or message is not TOOLS
    ),
    Row("HDR-02 a harmless name in the header", MISMATCH, _edit(lambda m: m["params"].update(name="hidden"))),
    Row("HDR-02 a harmless method in the header", MISMATCH, _says(METHOD, b"tools/list")),
    Row("HDR-02 a harmless method in the body", MISMATCH, _says(METHOD, b"tools/call"), message=TOOLS),
    Row("HDR-02 another case of the method", MISMATCH, _says(METHOD, b"Tools/Call")),
    Row("HDR-02 another case of the name", MISMATCH, _says(NAME, b"Read")),
    Row("HDR-02 the uri of another resource", MISMATCH, _says(NAME, b"demo://open/x"), message=RESOURCE),
    Row("HDR-02 an empty name", MISMATCH, _says(NAME, b"")),
    Row("HDR-03 the body is older", MISMATCH, _edit(lambda m: version_of(m).update({VERSION_KEY: "2025-11-25"}))),
    Row("HDR-03 the header is older", MISMATCH, _says(VERSION, b"2025-11-25")),
    Row("HDR-03 the body is from nowhere", MISMATCH, _edit(lambda m: version_of(m).update({VERSION_KEY: "v999"}))),
    *(
        Row(f"HDR-06 {name.decode()} twice, {how}", MISMATCH, _again(name, value))
        for name in (VERSION, METHOD, NAME)
        for how, value in (("equal", b""), ("different", b"x"))
    ),
    Row("HDR-06 twice in another case", MISMATCH, lambda ask: ask.more(b"mcp-NAME", b"read")),
    Row("HDR-06 two values in one line", MISMATCH, _says(NAME, b"read, read")),
    *(
        Row(f"HDR-08 {value!r}", MISMATCH, _says(NAME, value), message=tool("Hello"))
        for value in (
            b"=?base64?SGVsbG8?=",
            b"=?base64?SGVs!!!bG8=?=",
            b"=?base64?SGVsbG9=?=",
            b"=?base64?SGVsbG8=\t?=",
            b"=?base64?SGVs bG8=?=",
            b"=?base64?SGVsbG8-?=",
            b"=?base64??=",
            b"=?base64?=",
            b"=?BASE64?SGVsbG8=?=",
            b"=?base64?SGVsbG8=",
            b"=?base64?/w==?=",
        )
    ),
    Row(
        "HDR-08 a literal that had to be encoded",
        MISMATCH,
        _says(NAME, b"=?base64?SGVsbG8=?="),
        message=tool("=?base64?SGVsbG8=?="),
    ),
    *(
        Row(f"HDR-11 {value!r} in the name", MISMATCH, _says(NAME, value), message=message)
        for value, message in (
            (b"re\x01ad", tool("read")),
            (b"re\x7fad", tool("read")),
            (b"read\xe9", tool("read")),
            ("gr\u00fc\u00dfe".encode(), tool("gr\u00fc\u00dfe")),
        )
    ),
    Row("HDR-11 a control character in the method", MISMATCH, _says(METHOD, b"tools/call\x01")),
    Row("HDR-11 raw bytes in the version", MISMATCH, _says(VERSION, b"2026-07-28\xff")),
    Row(
        "HDR-13 a parameter's header twice",
        MISMATCH,
        lambda ask: ask.more(b"Mcp-Param-A", b"1").more(b"Mcp-Param-A", b"1"),
    ),
]

CAPABILITIES = b'"io.modelcontextprotocol/clientCapabilities":{}'
_DUPLICATES = {
    "name": (b'"name":"read"', b'"name":"read","name":"hidden"'),
    "name, escaped": (b'"name":"read"', b'"na\\u006de":"hidden","name":"read"'),
    "method": (b'"method":"tools/call"', b'"method":"tools/list","method":"tools/call"'),
    "id": (b'"id":7', b'"id":7,"id":8'),
    "params": (b'"params":', b'"params":{},"params":'),
    "arguments": (b'"arguments":', b'"arguments":{},"arguments":'),
    "a key of _meta": (CAPABILITIES, CAPABILITIES + b"," + CAPABILITIES),
    "an argument": (b'"arguments":{', b'"arguments":{"path":"a",'),
    "a member at depth": (b'"arguments":{', b'"arguments":{"a":[[{"b":{"c":1,"c":1}}]],'),
}
_VARIANTS = {
    "Method": (b'"method":"tools/call"', b'"method":"tools/call","Method":"tools/list"'),
    "PARAMS": (b'"params":', b'"PARAMS":{},"params":'),
    "request_state": (b'"arguments":', b'"request_state":"x","arguments":'),
    "Name": (b'"name":"read"', b'"name":"read","Name":"hidden"'),
    "clientcapabilities": (
        b'"io.modelcontextprotocol/clientInfo"',
        b'"io.modelcontextprotocol/clientcapabilities":{},"io.modelcontextprotocol/clientInfo"',
    ),
}
_ARGUMENT_TEXTS: Mapping[str, bytes] = {
    "0xFF": b'"\xff"',
    "overlong": b'"\xc0\xaf"',
    "CESU-8": b'"\xed\xa0\x80\xed\xb0\x80"',
    "cut UTF-8": b'"\xe2\x82"',
    "NaN": b"NaN",
    "-Infinity": b"-Infinity",
    "1e400": b"1e400",
    "5000 digits": b"1" * 5000,
    "a leading zero": b"01",
    "a plus": b"+1",
    "a lone surrogate": rb'"\ud800"',
    "surrogates in the wrong order": rb'"\udc00\ud800"',
    "a lone surrogate as a key": rb'{"\ud800":1}',
    "a control character": b'"\x01"',
    "a comment": b"1/**/",
    "a trailing comma": b"[1,]",
}
NOT_JSON, AMBIGUOUS = Refusal.BODY_NOT_JSON, Refusal.BODY_AMBIGUOUS
JSN = [
    *(
        Row(f"JSN-01 {name} twice", AMBIGUOUS, _swap(*pair), NO_ID if name == "id" else 7)
        for name, pair in _DUPLICATES.items()
    ),
    *(Row(f"JSN-01 a variant: {name}", AMBIGUOUS, _swap(*pair)) for name, pair in _VARIANTS.items()),
    *(
        Row(f"JSN-05 {name}", NOT_JSON, _swap(b'"arguments":{', b'"arguments":{"x":' + text + b","), NO_ID)
        for name, text in _ARGUMENT_TEXTS.items()
    ),
    Row("JSN-06 in a tool's name", NOT_JSON, _swap(b'"name":"read"', rb'"name":"read\ud800"'), NO_ID),
    Row("JSN-06 in the id", NOT_JSON, _swap(b'"id":7', rb'"id":"\ud800"'), NO_ID),
    Row("JSN-07 100 000 brackets", NOT_JSON, _body(b"[" * 100_000), NO_ID),
    Row(
        "JSN-07 1 200 objects",
        NOT_JSON,
        _swap(b'"arguments":{', b'"arguments":{"x":' + b'{"a":' * 1200 + b"1" + b"}" * 1200 + b","),
        NO_ID,
    ),
    Row(
        "JSN-07 as many keys as fit",
        NOT_JSON,
        _swap(b'"arguments":{', b'"arguments":{' + b"".join(b'"%d":0,' % n for n in range(300_000))),
        NO_ID,
    ),
    *(
        Row(f"JSN {name}", NOT_JSON, change, NO_ID)
        for name, change in {
            "nothing": _body(b""),
            "blanks": _body(b"  "),
            "half": lambda ask: replace(ask, body=ask.body[:-1]),
            "more behind it": lambda ask: replace(ask, body=ask.body + b"{}"),
            "a byte order mark": lambda ask: replace(ask, body=b"\xef\xbb\xbf" + ask.body),
            "UTF-16": lambda ask: replace(ask, body=ask.body.decode().encode("utf-16")),
            "single quotes": lambda ask: replace(ask, body=ask.body.replace(b'"', b"'")),
        }.items()
    ),
]

ENVELOPE = Refusal.ENVELOPE_INVALID
RPC = [
    *(
        Row(f"RPC-01 {text[:20]!r}", ENVELOPE, _body(text), NO_ID)
        for text in ("[]", "null", "42", '"x"', "true", "{}", '{"jsonrpc":"2.0"}')
    ),
    Row(
        "RPC-01 a batch", ENVELOPE, lambda ask: replace(ask, body=b"[" + ask.body + b"," + spell(TOOLS) + b"]"), NO_ID
    ),
    *(
        Row(f"RPC-03 id {text}", ENVELOPE, _swap(b'"id":7', b'"id":' + text.encode()), NO_ID)
        for text in ("null", "true", "1.5", "{}", "[]", "1e2")
    ),
    Row("RPC-03 jsonrpc 1.0", ENVELOPE, _edit(lambda m: m.update(jsonrpc="1.0"))),
    Row("RPC-03 no jsonrpc", ENVELOPE, _edit(lambda m: m.pop("jsonrpc"))),
    Row("RPC-03 a response", ENVELOPE, _body('{"jsonrpc":"2.0","id":7,"result":{}}')),
    Row("RPC-03 a request that is a response too", ENVELOPE, _edit(lambda m: m.update(result={}))),
    Row("RPC-03 no method", ENVELOPE, _edit(lambda m: m.pop("method"))),
    Row("RPC-03 a method that is none", ENVELOPE, _edit(lambda m: m.update(method=["tools/call"]))),
    Row("RPC-03 params an array", Refusal.PARAMS_INVALID, _edit(lambda m: m.update(params=[1]))),
    Row("RPC-03 a call without an id", ENVELOPE, _edit(lambda m: m.pop("id")), NO_ID),
    Row("RPC-04 no _meta", Refusal.META_MISSING, _edit(lambda m: m["params"].pop("_meta"))),
    Row("RPC-04 no params", Refusal.META_MISSING, _edit(lambda m: m.pop("params")), message=TOOLS),
    *(
        Row(f"RPC-04 {key.rpartition('/')[2]} {how}", Refusal.META_MISSING, _member(key, how))
        for key in (VERSION_KEY, CAPABILITIES_KEY)
        for how in ("missing", "null", "a list")
    ),
    *(
        Row(f"RPC-05 {version}", Refusal.VERSION_UNSUPPORTED, _both_versions(version))
        for version in ("v999.0.0", "2025-06-18", "2025-11-25", "2026-07-28x", "DRAFT-2026")
    ),
    *(
        Row(f"RPC-06 {method}", Refusal.METHOD_UNKNOWN, _becomes(method))
        for method in (
            "unknown/method",
            "initialize",
            "ping",
            "logging/setLevel",
            "resources/subscribe",
            "resources/unsubscribe",
            "roots/list",
            "sampling/createMessage",
            "tasks/list",
            "tasks/result",
            "Tools/List",
            "",
        )
    ),
    *(
        Row(f"{method} of a client without tasks", Refusal.CAPABILITY_MISSING, _becomes(method, params, "t"))
        for method, params in TASK_REQUESTS.items()
    ),
    Row(
        "a subscription to a task by a client without tasks",
        Refusal.CAPABILITY_MISSING,
        _becomes("subscriptions/listen", {"notifications": {"taskIds": ["t"]}}),
    ),
    Row(
        "RPC-06 a notification of nobody's",
        Refusal.METHOD_UNKNOWN,
        _one(_becomes("notifications/initialized"), _edit(lambda m: m.pop("id"))),
        NO_ID,
    ),
    Row(
        "RPC-06 a cancellation",
        Refusal.METHOD_UNKNOWN,
        _one(_becomes("notifications/cancelled", {"requestId": 7}), _edit(lambda m: m.pop("id"))),
        NO_ID,
    ),
    Row(
        "RPC-06 initialize of an old client",
        MISMATCH,
        lambda ask: _becomes("initialize", {"protocolVersion": "2025-06-18"})(ask).line(VERSION).line(METHOD),
    ),
    *(
        Row(f"params: {name}", Refusal.PARAMS_INVALID, _edit(change))
        for name, change in {
            "arguments a list": lambda m: m["params"].update(arguments=[]),
            "arguments null": lambda m: m["params"].update(arguments=None),
            "a member that is none of the method's": lambda m: m["params"].update(more=1),
            "requestState a number": lambda m: m["params"].update(requestState=1),
            "inputResponses a list": lambda m: m["params"].update(inputResponses=[]),
        }.items()
    ),
    Row(
        "params: a cursor that is none",
        Refusal.PARAMS_INVALID,
        _edit(lambda m: m["params"].update(cursor=1)),
        message=TOOLS,
    ),
    Row("params: no name", MISMATCH, _edit(lambda m: m["params"].pop("name"))),
]

HTTP = [
    *(
        Row(f"FRM-06 {verb.decode()}", Refusal.METHOD_NOT_POST, _verb(verb), NO_ID)
        for verb in (b"GET", b"DELETE", b"PUT", b"PATCH", b"OPTIONS", b"TRACE", b"PROPFIND")
    ),
    *(
        Row(f"FRM-06 {verb.decode()}", Refusal.REQUEST_MALFORMED, _verb(verb), NO_ID)
        for verb in (b"post", b"Post", b"CONNECT", b"POST\t")
    ),
    Row("FRM-01 two lengths", Refusal.REQUEST_MALFORMED, lambda ask: ask.more(b"Content-Length", b"7"), NO_ID),
    Row(
        "FRM-09 too many lines",
        Refusal.HEAD_TOO_LARGE,
        lambda ask: replace(ask, lines=ask.lines + ((b"X", b"y"),) * 200),
        NO_ID,
    ),
    Row("FRM-09 too long a line", Refusal.HEAD_TOO_LARGE, lambda ask: ask.more(b"X", b"y" * 100_000), NO_ID),
    Row(
        "FRM-09 a body that is announced too large",
        Refusal.BODY_TOO_LARGE,
        lambda ask: replace(ask, length=5_000_000),
        NO_ID,
    ),
    Row(
        "FRM-10 a body that does not come",
        Refusal.REQUEST_TIMEOUT,
        lambda ask: replace(ask, length=len(ask.body) + 9),
        NO_ID,
    ),
    *(
        Row(f"FRM-07 {value!r}", Refusal.CONTENT_UNSUPPORTED, _says(b"Content-Type", *value), NO_ID)
        for value in (
            (b"text/plain",),
            (b"application/x-www-form-urlencoded",),
            (b"multipart/form-data; boundary=x",),
            (),
            (b"application/json; charset=utf-16",),
            (b"application/json", b"text/plain"),
        )
    ),
    *(
        Row(f"FRM-08 {value.decode()}", Refusal.CONTENT_UNSUPPORTED, _says(b"Content-Encoding", value), NO_ID)
        for value in (b"gzip", b"br", b"zstd", b"identity, gzip")
    ),
    *(
        Row(f"Accept: {value!r}", Refusal.ACCEPT_UNSUPPORTED, _says(b"Accept", *value), NO_ID)
        for value in ((), (b"application/json",), (b"text/event-stream",), (b"*/*;q=0",))
    ),
    *(
        Row(f"path {path!r}", Refusal.SERVER_UNKNOWN, _path(path), NO_ID)
        for path in (
            b"/",
            b"/plain",
            b"/plain/mcp/",
            b"/plain//mcp",
            b"/Plain/mcp",
            b"/plain/%6dcp",
            b"/other/../plain/mcp",
            b"/metrics",
            b"/readyz",
            b"/docs",
            b"/openapi.json",
            b"/approval",
        )
    ),
    *(
        Row(f"ORG-01 Origin: {origin!r}", Refusal.ORIGIN_FORBIDDEN, _says(b"Origin", *origin), NO_ID)
        for origin in (
            (b"https://evil.example.com",),
            (b"https://app.example.com.evil.example",),
            (b"https://app.example.com:8443",),
            (b"http://app.example.com",),
            (b"https://APP.example.com",),
            (b"null",),
            (b"",),
            (b"https://app.example.com", b"https://app.example.com"),
        )
    ),
    *(
        Row(f"ORG-03 Host: {host!r}", Refusal.HOST_FORBIDDEN, _says(b"Host", host), NO_ID)
        for host in (b"evil.example.com", b"localhost", b"gw.example.com.", b"gw.example.com:81", b"127.0.0.1")
    ),
]

AUTH = [
    Row("JWT-01 no token", Refusal.TOKEN_MISSING, _without(b"Authorization"), NO_ID),
    Row("JWT-01 Basic", Refusal.TOKEN_MISSING, _says(b"Authorization", b"Basic YWxpY2U6c2VjcmV0"), NO_ID),
    Row("JWT-01 no scheme", Refusal.TOKEN_MISSING, _cut(7), NO_ID),
    Row("JWT-01 an empty one", Refusal.TOKEN_INVALID, _says(b"Authorization", b"Bearer"), NO_ID),
    Row("JWT-01 no token but rubbish", Refusal.TOKEN_INVALID, _says(b"Authorization", b"Bearer rubbish"), NO_ID),
    Row("JWT-01 two of them", Refusal.TOKEN_INVALID, _again(b"Authorization"), NO_ID),
    Row("JWT-01 a cut one", Refusal.TOKEN_INVALID, _cut(0, -4), NO_ID),
]

CALLS = [
    *(
        Row(
            f"policy: {name!r}",
            Refusal.POLICY_DENIED,
            _one(_becomes("tools/call", {"name": name}, "x"), _says(NAME, encoded(name))),
        )
        for name in ("hidden", "absent-and-unlisted", "absent", "r\u0435ad", "READ")
    ),
    Row("policy: a prompt", Refusal.POLICY_DENIED, _becomes("prompts/get", {"name": "secret"}, "secret")),
    Row(
        "policy: a resource",
        Refusal.POLICY_DENIED,
        _becomes("resources/read", {"uri": "demo://open/../x"}, "demo://open/../x"),
    ),
    Row(
        "policy: a method",
        Refusal.POLICY_DENIED,
        _becomes("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["demo://shut"]}}),
    ),
    Row("scope", Refusal.SCOPE_INSUFFICIENT, _becomes("tools/call", {"name": "narrow"}, "narrow")),
    Row(
        "approval",
        Refusal.APPROVAL_REQUIRED,
        _becomes("tools/call", {"name": "write", "arguments": {"row": "table"}}, "write"),
    ),
    Row(
        "approval that nobody could give",
        Refusal.APPROVAL_REFUSED,
        _becomes("tools/call", {"name": "nobody"}, "nobody"),
    ),
    *(
        Row(f"a state of {len(text)}: {text[:12]!r}", Refusal.STATE_NOT_ACCEPTED, _state(text))
        for text in ("", "x", "A" * 120, "AAAA=", "A" * 70_000, "\u0000")
    ),
    *(
        Row(f"{method} of nobody's task", Refusal.TASK_UNKNOWN, _one(_becomes(method, params, "t"), _handles_tasks))
        for method, params in TASK_REQUESTS.items()
    ),
    Row(
        "a closed method of nobody's task",
        Refusal.POLICY_DENIED,
        _one(
            _becomes("subscriptions/listen", {"notifications": {"taskIds": ["t"]}}),
            _handles_tasks,
        ),
    ),
    Row(
        "an approval beyond 2^53",
        Refusal.PARAMS_INVALID,
        _becomes("tools/call", {"name": "write", "arguments": {"n": 2**53}}, "write"),
        judged=True,
    ),
]

ROWS: dict[str, list[Row]] = {"http": HTTP, "auth": AUTH, "json": JSN, "rpc": RPC, "headers": HDR, "calls": CALLS}
"""Every row, by the room that it is mostly about."""
