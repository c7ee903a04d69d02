"""What each target begins with: good inputs, and the ones that a plausible defect would let pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.contract.fingerprint import digest_definition
from gateway.contract.headers import encode_value
from gateway.contract.pins import Pin, write_pins

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
REQUESTS: Sequence[tuple[str, str | None, Mapping[str, Any]]] = (
    ("tools/call", "add", {"name": "add", "arguments": {"a": 1}}),
    ("tools/call", "café", {"name": "café", "requestState": "s", "inputResponses": {}}),
    ("tools/list", None, {"cursor": "c"}),
    ("resources/read", "a:b", {"uri": "a:b"}),
    ("prompts/get", "g", {"name": "g", "arguments": {"x": "y"}}),
    ("server/discover", None, {}),
    ("x/y", None, {"a": 1}),
    (
        "completion/complete",
        None,
        {"ref": {"type": "ref/prompt", "name": "g"}, "argument": {"name": "a", "value": "b"}},
    ),
    ("subscriptions/listen", None, {"notifications": {"toolsListChanged": True}}),
)
"""Method, what `Mcp-Name` says, and params but for `_meta`."""


def spelt(value: Any) -> bytes:
    """Compact JSON."""
    return orjson.dumps(value)


def _request(method: str, params: Mapping[str, Any], **more: Any) -> bytes:
    return spelt({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **params}, **more})


def _with_headers(method: str, name: str | None, body: bytes) -> bytes:
    lines = [b"MCP-Protocol-Version: 2026-07-28", b"Mcp-Method: " + method.encode(), b"Mcp-Param-Region: eu"]
    if name is not None:
        lines.append(b"Mcp-Name: " + encode_value(name))
    return b"\n".join(lines) + b"\n\n" + body


def _event(**message: Any) -> bytes:
    return b"data: " + spelt({"jsonrpc": "2.0", **message}) + b"\n\n"


def _told(method: str, **params: Any) -> bytes:
    return _event(method=f"notifications/{method}", params=params)


OF_ONE = {"_meta": {"io.modelcontextprotocol/subscriptionId": 1}}
RESPONSE = _event(id=1, result={"resultType": "complete", "content": []})
STEP = _told("progress", progressToken="p", progress=1)
HEARD = _told("subscriptions/acknowledged", notifications={"toolsListChanged": True}, **OF_ONE)
CHANGED = _told("tools/list_changed", **OF_ONE)
END = _event(id=1, result={"resultType": "complete", **OF_ONE})
FORM = {"method": "elicitation/create", "params": {"mode": "url", "url": "https://x.example", "elicitationId": "e"}}
TASK = {"taskId": "t", "status": "working", "ttlMs": 1000, "createdAt": "2026-01-01T00:00:00Z"}
DEFINITIONS: Sequence[dict[str, Any]] = (
    {"name": "t", "description": "d", "inputSchema": {"type": "object"}},
    {"name": "t", "n": 1e300, "b": 2**63},
)
SCHEMAS: Sequence[tuple[dict[str, Any], dict[str, Any]]] = (
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"$ref": "#/$defs/x"}},
            "required": ["a"],
            "$defs": {"x": {"enum": ["q"]}},
        },
        {"a": 1, "b": "q"},
    ),
    (
        {"anyOf": [{"type": "object"}, {"not": {}}], "patternProperties": {"^a(?=b)": {"pattern": "(a)\\1"}}},
        {"ab": "aa"},
    ),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "if": {}, "then": {"minProperties": 1}}, {}),
    ({"$dynamicRef": "#m", "$defs": {"y": {"$dynamicAnchor": "m"}}, "unevaluatedProperties": False}, {"p": [1, 1]}),
    ({"properties": {"p": {"prefixItems": [{}], "contains": {}, "uniqueItems": True}}}, {"p": [1, 1]}),
    ({"type": "object", "properties": {"a": {}}}, {"b": 1}),
)


def _pin_file(definition: dict[str, Any]) -> bytes:
    pin = Pin(definition, digest_definition(definition), "local:0@host", "2026-01-01T00:00:00Z")
    return write_pins({"s": {"t": pin}})


SEEDS: Mapping[str, Sequence[bytes]] = {
    "json": [
        b'{"a":[1,-0,1.5e3,true,null,"\\u0041\\n"]}',
        b'{"a":1,"a":2}',
        b"1e400",
        b"[1e-400]",
        b"18446744073709551616",
        b" [ ] ",
        b'"\\ud83d\\ude00"',
        b'"\\ud800"',
        b"\xef\xbb\xbf{}",
        b"[" * 65 + b"]" * 65,
    ],
    "envelope": [
        *(_request(method, params) for method, _, params in REQUESTS),
        _request("tools/call", {}, Method="x"),
        b"[]",
        b'{"jsonrpc":"2.0","method":"notifications/x"}',
        b'{"jsonrpc": "2.0", "id": "a", "method": "m", "params": {"NAME": 1}}',
    ],
    "headers": [
        *(_with_headers(method, name, _request(method, params)) for method, name, params in REQUESTS),
        _with_headers("tools/call", "other", _request("tools/call", {"name": "add"})),
        b"=?base64?Y2Fmw6k=?=",
        b"=?base64?=",
        b"a\tb",
    ],
    "events": [
        b"\x06data: a\r\ndata: b\r\n\r\n",
        b"\x03\xef\xbb\xbfid: 1\nevent: e\ndata: a\ndata: b\r\n\r\n",
        b"\x00:c\rdata\r\rdata:x\n\nid:\0\n\n",
        b"\x02event: x\n\ndata: y\n\n",
    ],
    "stream": [
        b"\x00" + STEP + RESPONSE,
        b"\x02" + RESPONSE,
        b"\x04:k\n\n" + STEP + STEP + RESPONSE + RESPONSE,
        b"\x01" + HEARD + CHANGED + END,
        b"\x03" + CHANGED + HEARD,
    ],
    "answer": [
        spelt({"jsonrpc": "2.0", "id": 1, "result": {"resultType": "complete", "content": [], "isError": True}}),
        spelt({"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "x", "data": {}}}),
        spelt({"jsonrpc": "2.0", "id": 1, "result": {"resultType": "input_required", "inputRequests": {"a": FORM}}}),
        spelt({"jsonrpc": "2.0", "id": 1, "result": {"resultType": "task", "task": TASK}}),
        b'{"jsonrpc":"2.0","id":1,"id":1,"result":{"resultType":"complete"}}',
    ],
    "seals": [
        b"",
        b"\x00\x00A",
        b"\x40\x03A",
        b"\x60\x01A",
        b"\x20\x02=",
        *(bytes([end, 2, 61]) for end in range(70, 140)),
    ],
    "pins": [
        *map(_pin_file, DEFINITIONS),
        _pin_file(DEFINITIONS[0]).replace(b"\n", b" "),
        _pin_file(DEFINITIONS[0]).replace(b'"d"', b'"e"'),
    ],
    "differences": [
        spelt([{"a": "x\ny"}, {"a": "x\nz\u202e"}]),
        spelt([{"a": [1, {"b": 2}]}, {"a": [1.5]}]),
        spelt([{}, {"k/~": "\u0430"}]),
        spelt([{"a": "x" * 70}, {"a": "x" * 65 + "y"}]),
    ],
    "arguments": [spelt(pair) for pair in SCHEMAS],
}
