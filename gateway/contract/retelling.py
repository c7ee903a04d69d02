"""Answers in the words of an older revision: what its clients do not know is left out or said as they know it.

Comes last, after an answer was guarded and made fit for its caller; a refusal is retold like a server's own error
(specification 2025-11-25, schema and basic/transports).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from gateway.contract.legacy import SESSION, Spoken
from gateway.contract.passage import Passage, Reply
from gateway.contract.refusals import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    Refusal,
    Refused,
)
from gateway.contract.reply import refusal_reply

OFFERED: Final = ("tools", "prompts", "resources", "completions")
"""Server capabilities that reach an older client. Changes of lists, subscriptions and logging need a stream, or a
level that is kept for a session, and are not offered."""

_NEWER_RESULT: Final = frozenset({"resultType", "ttlMs", "cacheScope"})
_SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
_OWN_STATUS: Final = frozenset({Refusal.SESSION_MISMATCH, Refusal.SESSION_UNKNOWN})
_NEEDS_REVISION: Final = Refusal.REVISION_REQUIRED.value
_OLD_CODES: Final[Mapping[int, int]] = {
    HEADER_MISMATCH: INVALID_PARAMS,
    MISSING_CAPABILITY: _NEEDS_REVISION.code,
    UNSUPPORTED_VERSION: INTERNAL_ERROR,
}
"""Codes that the older revisions do not define -> what their clients get. The record keeps the first."""


def retell_answer(spoken: Spoken, method: str, name: str, text: bytes) -> bytes:
    """A guarded answer's text -> the same in the older revision. `name` is the server's, where it does not say one.

    Raises `Refused(UPSTREAM_INVALID)` where no answer of that revision can be made of it.
    """
    message = orjson.loads(text)
    if "error" in message:
        message["error"] = _retell_error(message["error"])
    else:
        message["result"] = _retell_result(spoken, method, name, message["result"])
    return orjson.dumps(message)


def retell_refusal(refused: Refused, reply: Reply) -> Reply:
    """A refusal as an older client can show it: an error of its own request, and no broken connection.

    Clients of these revisions take 404 for the end of their session and drop the call, or all of it, at any other
    status of 400 and above. What says something about session or token keeps its status.
    """
    message = orjson.loads(reply.body)
    if "result" in message:
        message["result"].pop("resultType")
    else:
        message["error"] = _retell_error(message["error"])
        page = refused.data.get("ticket", {}).get("page")
        if page and page not in message["error"]["message"]:
            message["error"]["message"] += f" {page}"
    status = reply.status
    if refused.refusal not in _OWN_STATUS and refused.refusal.value.challenge is None:
        if "id" in message:
            status = 200
        elif status == 404:
            status = 400
    return replace(reply, status=status, body=orjson.dumps(message))


def reply_of(passage: Passage, refused: Refused) -> Reply:
    """The one reply of a refusal, in the words of its caller's revision."""
    reply = refusal_reply(
        refused,
        request_id=passage.envelope.id if passage.envelope else refused.request_id,
        server=passage.server,
        decision_id=passage.decision_id,
    )
    return reply if passage.spoken is None else retell_refusal(refused, reply)


def session_line(spoken: Spoken | None) -> tuple[tuple[bytes, bytes], ...]:
    """The header that begins a session; nothing on all other answers."""
    return ((SESSION, spoken.begins.encode()),) if spoken is not None and spoken.begins else ()


def _retell_error(error: Mapping[str, Any]) -> dict[str, Any]:
    code = _OLD_CODES.get(error["code"], error["code"])
    message = _NEEDS_REVISION.sentence if code == _NEEDS_REVISION.code else error["message"]
    return {**error, "code": code, "message": message}


def _retell_result(spoken: Spoken, method: str, name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    if method == "server/discover":
        return _initialized(spoken, name, result)
    told = {key: value for key, value in result.items() if key not in _NEWER_RESULT}
    if method == "tools/list":
        told["tools"] = [_retell_tool(tool) for tool in result["tools"]]
    if method == "tools/call" and not isinstance(told.get("structuredContent", {}), dict):
        del told["structuredContent"]
    return told


def _initialized(spoken: Spoken, name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """A `server/discover` result as the result of `initialize`."""
    offers, meta = result.get("capabilities"), result.get("_meta")
    if not isinstance(offers, dict):
        raise Refused(Refusal.UPSTREAM_INVALID, "server/discover: result.capabilities is not an object")
    info = meta.get(_SERVER_INFO) if isinstance(meta, dict) else None
    if not isinstance(info, dict) or not all(type(info.get(key)) is str for key in ("name", "version")):
        info = {"name": name, "version": ""}
    told = {
        "protocolVersion": spoken.version,
        "capabilities": {key: {} for key in OFFERED if isinstance(offers.get(key), dict)},
        "serverInfo": info,
    }
    if isinstance(instructions := result.get("instructions"), str):
        told["instructions"] = instructions
    return told


def _retell_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A definition whose schemas have the form that older clients read; one stray tool makes them drop the list."""
    told = {**tool, "inputSchema": _plain_properties(tool["inputSchema"])}
    output = told.pop("outputSchema", None)
    if isinstance(output, dict) and output.get("type") == "object":
        told["outputSchema"] = _plain_properties(output)
    return told


def _plain_properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Each property's schema as an object: `true` and `false` in the words that mean the same."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return dict(schema)
    spelled: dict[bool, dict[str, Any]] = {True: {}, False: {"not": {}}}
    return {
        **schema,
        "properties": {
            name: spelled[inner] if isinstance(inner, bool) else inner for name, inner in properties.items()
        },
    }
