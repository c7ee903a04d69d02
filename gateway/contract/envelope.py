"""Bytes -> `Envelope`: strict JSON, one reading, one message (contract.md section 2; JSON-RPC 2.0).

Whoever executes the message later, strict or lenient, reads what was judged here: a name that only a lenient reader
would take for a reserved one (`Method`, `PARAMS`, `request_state`) is refused where it would be taken for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from unicodedata import normalize

from gateway.contract.passage import Envelope, RequestId
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.strict_json import NotStrict, TwoReadings, read_strictly

_PROTOCOL = "io.modelcontextprotocol/"
PROTOCOL_META = frozenset(
    {
        _PROTOCOL + "protocolVersion",
        _PROTOCOL + "clientCapabilities",
        _PROTOCOL + "clientInfo",
        _PROTOCOL + "logLevel",
        "progressToken",
        "traceparent",
        "tracestate",
        "baggage",
    }
)
"""The keys of a request's `_meta` that are the protocol's own; all others are the caller's."""

RESERVED: Mapping[str, frozenset[str]] = {
    "message": frozenset({"jsonrpc", "id", "method", "params", "result", "error"}),
    "params": frozenset(
        {
            "_meta", "name", "arguments", "uri", "requestState", "inputResponses", "taskId", "cursor", "ref",
            "argument", "context", "notifications",
        }
    ),
    "_meta": PROTOCOL_META,
    "ref": frozenset({"type", "name", "uri", "title"}),
    "argument": frozenset({"name", "value"}),
    "context": frozenset({"arguments"}),
    "notifications": frozenset(
        {"toolsListChanged", "promptsListChanged", "resourcesListChanged", "resourceSubscriptions", "taskIds"}
    ),
}  # fmt: skip
"""Where a name is reserved, and which. The places below `params` are named by their member."""


def fold(name: str) -> str:
    """The name as the most lenient reader known takes it.

    Case by Unicode folding (Go's encoding/json: U+017F for s, U+212A for k) and by Java's char rules (U+0130, U+0131
    for i), `_` and `-` dropped (the Python SDK reads `request_state` for `requestState` and `meta` for `_meta`), cut
    at NUL (C); compatibility forms and outer space as by readers that normalise (NFKC) or trim.
    """
    name = normalize("NFKC", name.partition("\0")[0]).strip().upper().casefold().replace("\u0307", "")
    return name.replace("_", "").replace("-", "")


class Reserved:
    """Names that decide something in an answer, and what a lenient reader would take for one of them."""

    def __init__(self, names: Iterable[str], usual: Iterable[str] = ()) -> None:
        """`usual` are further names that nearly every object has: where there are no others, nothing is folded."""
        self._meant = {fold(name): name for name in names}
        self._known = frozenset(self._meant.values()) | {name for name in usual if fold(name) not in self._meant}

    def variant(self, members: Mapping[str, Any]) -> str | None:
        """The reserved name that one of the members' names, spelled otherwise, could be taken for, if any."""
        if members.keys() <= self._known:
            return None
        for name in members:
            if (meant := self._meant.get(fold(name), name)) != name:
                return meant
        return None


_FOLDED = {place: {fold(name) for name in names} for place, names in RESERVED.items()}
_NESTED = frozenset(RESERVED) - {"message", "params"}


def parse_envelope(body: bytes) -> Envelope:
    """One JSON-RPC request or notification. Raises `Refused`, with the request's id wherever it could be read.

    BODY_NOT_JSON: not strict JSON (depth, size and ranges included). BODY_AMBIGUOUS: more than one reading.
    ENVELOPE_INVALID: a batch, a response, a wrong `jsonrpc`, `id` or `method`. PARAMS_INVALID: `params` is no object.
    """
    try:
        message = read_strictly(body)
    except TwoReadings as found:
        unread = "id" in found.twice
        raise Refused(
            Refusal.BODY_AMBIGUOUS, str(found), request_id=None if unread else readable_id(found.document)
        ) from None
    except NotStrict as found:
        raise Refused(Refusal.BODY_NOT_JSON, str(found), request_id=readable_id(found.document)) from None
    if not isinstance(message, dict):
        raise Refused(Refusal.ENVELOPE_INVALID, "not one object")
    request_id = readable_id(message)
    _check_names("message", message, request_id)
    method, params = message.get("method"), message.get("params", {})
    if message.get("jsonrpc") != "2.0":
        raise Refused(Refusal.ENVELOPE_INVALID, "jsonrpc is not 2.0", request_id=request_id)
    if request_id is None and "id" in message:
        raise Refused(Refusal.ENVELOPE_INVALID, "id is neither a string nor an integer")
    if "result" in message or "error" in message:
        raise Refused(Refusal.ENVELOPE_INVALID, "a response, not a request", request_id=request_id)
    if not isinstance(method, str):
        raise Refused(Refusal.ENVELOPE_INVALID, "method is not a string", request_id=request_id)
    if not isinstance(params, dict):
        raise Refused(Refusal.PARAMS_INVALID, "params is not an object", request_id=request_id)
    _check_names("params", params, request_id)
    for place, members in params.items():
        if place in _NESTED and isinstance(members, dict):
            _check_names(place, members, request_id)
    meta = params.get("_meta")
    return Envelope(body, request_id, method, params, meta if isinstance(meta, dict) else {})


def readable_id(message: Any) -> RequestId | None:
    """The id of what claims to be a message, or `None`: absent, or not a string or an integer."""
    found = message.get("id") if isinstance(message, dict) else None
    return found if isinstance(found, (str, int)) and not isinstance(found, bool) else None


def _check_names(place: str, members: dict[str, Any], request_id: RequestId | None) -> None:
    """Refuse a name that is not reserved at this place but that a lenient reader would take for one that is."""
    reserved = RESERVED[place]
    if members.keys() <= reserved:
        return
    folded = _FOLDED[place]
    for name in members:
        if name not in reserved and fold(name) in folded:
            # A variant of `id` leaves two candidates for the id itself.
            known = None if place == "message" and fold(name) == "id" else request_id
            raise Refused(Refusal.BODY_AMBIGUOUS, f"a variant of a reserved name in {place}", request_id=known)
