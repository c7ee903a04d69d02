"""What leaves by either door: the refusal as JSON-RPC body, status and headers, and the headers of good answers.

The caller reads the row's sentence, the allowed `data` and the decision's id; nothing of `detail`. Every value in a
header is one that cannot end its line or its quotes (contract.md sections 1, 6 and 7; RFC 6750; RFC 9728).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import orjson

from gateway.contract.passage import Reply, RequestId, Server
from gateway.contract.refusals import UNSUPPORTED_VERSION, Refusal, Refused

Headers = tuple[tuple[bytes, bytes], ...]

_NO_STORE = (b"cache-control", b"no-store")
_JSON = (b"content-type", b"application/json")
_SSE = (b"content-type", b"text/event-stream")
_SCOPE_TOKEN = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_ALSO: dict[Refusal, Headers] = {
    Refusal.METHOD_NOT_POST: ((b"allow", b"POST"),),
    Refusal.CONTENT_UNSUPPORTED: ((b"accept-encoding", b"identity"),),
}


def refusal_reply(
    refused: Refused, *, request_id: RequestId | None, server: Server | None, decision_id: str
) -> Reply:
    """The one reply of every refusal. Without `id` where none could be read or the message was a notification.

    `data` is what the refusing room allowed plus `decisionId`, but for -32022, whose `data` the contract closes:
    there, and on a result, the `Ostiary-Decision` header alone carries it. `data["requiredScopes"]` is the
    challenge's `scope` too.
    """
    row = refused.refusal.value
    if row.result:
        return result_reply(row.status, _tool_error(refused, request_id), decision_id)
    if refused.instead is not None:
        text = orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": refused.instead})
        return result_reply(200, text, decision_id)
    data = dict(refused.data)
    if row.code != UNSUPPORTED_VERSION:
        data["decisionId"] = decision_id
    error = {"code": row.code, "message": refused.message or row.sentence, "data": data}
    body: dict[str, object] = {"jsonrpc": "2.0", "error": error}
    if request_id is not None:
        body["id"] = request_id
    headers: Headers = (_JSON, _NO_STORE, _decision(decision_id), *_ALSO.get(refused.refusal, ()))
    if row.challenge is not None:
        required = data.get("requiredScopes") if row.status == 403 else None
        scopes: Sequence[str] = required or (server.scopes if server is not None else ())
        headers += ((b"www-authenticate", challenge(row.challenge, scopes, server)),)
    if after_s := refused.retry_after_s or row.retry_after_s:
        headers += ((b"retry-after", b"%d" % after_s),)
    return Reply(row.status, headers, orjson.dumps(body), close=row.close)


def _tool_error(refused: Refused, request_id: RequestId | None) -> bytes:
    """What a tool answers that could not use its arguments."""
    told = [{"type": "text", "text": refused.message or refused.refusal.value.sentence}]
    result = {"resultType": "complete", "content": told, "isError": True}
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": result})


def result_reply(status: int, body: bytes, decision_id: str, more: Headers = ()) -> Reply:
    """A server's whole answer, a JSON-RPC error of its own included. `body` is JSON text."""
    return Reply(status, (_JSON, _NO_STORE, _decision(decision_id), *more), body)


def accepted_reply(decision_id: str) -> Reply:
    """An accepted notification: 202 without a body."""
    return Reply(202, (_NO_STORE, _decision(decision_id)))


def stream_headers(decision_id: str) -> Headers:
    """The head of an event stream, which no proxy on the way may hold back."""
    return _SSE, _NO_STORE, (b"x-accel-buffering", b"no"), _decision(decision_id)


def _decision(decision_id: str) -> tuple[bytes, bytes]:
    return b"ostiary-decision", decision_id.encode("ascii")


def challenge(error: str, scopes: Sequence[str], server: Server | None) -> bytes:
    """`Bearer` with the RFC 6750 `error` (none if no token was sent), the scopes, and the RFC 9728 document's URL."""
    parts = []
    if error:
        parts.append(f"error={_quoted(error)}")
    if server is not None:
        parts.append(f"resource_metadata={_quoted(server.metadata_url)}")
    named = [scope for scope in dict.fromkeys(scopes) if _SCOPE_TOKEN.fullmatch(scope)]
    if named:
        parts.append(f"scope={_quoted(' '.join(named))}")
    return ("Bearer " + ", ".join(parts)).rstrip().encode("ascii")


def _quoted(text: str) -> str:
    """An RFC 9110 quoted-string. Raises `ValueError` for what no header may hold: it is the operator's own text."""
    if not (text.isascii() and text.isprintable()):
        raise ValueError("a challenge holds visible ASCII only")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
