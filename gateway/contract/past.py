"""Calls as servers of the revisions before 2026-07-28 know them, and what their answers mean in this one.

Such a server wants `initialize`, tells requests of a session apart by their ids alone, and may say things on a stream
that belong to no call. So each call goes out under an id of the house's own, without what only this revision knows;
of what comes back, the caller gets what this revision allows, under the id that it chose (revisions 2025-03-26,
2025-06-18 and 2025-11-25: basic/lifecycle, basic/transports).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.contract.fingerprint import effect_text
from gateway.contract.guard import EXECUTED, RPC_ERROR, TOOL_ERROR, Guarded, guard_message
from gateway.contract.headers import CAPABILITIES_KEY, PROTOCOL_VERSION, VERSION_KEY
from gateway.contract.legacy import RELATED_TASK
from gateway.contract.levels import LOG_LEVEL, LOG_MESSAGE, is_wanted, lowest_wanted
from gateway.contract.passage import Admitted, Call, Envelope
from gateway.contract.refusals import METHOD_NOT_FOUND, Refusal, Refused
from gateway.contract.stream import Comment, Event, EventParser, StreamLimits, encode_event
from gateway.contract.strict_json import NotStrict, read_strictly

PAST_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
"""The earlier revisions that are spoken to servers, newest first; those before have another transport."""

LISTS = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})
"""What may be asked twice."""

_UNCHANGED = LISTS | {"tools/call", "prompts/get", "resources/read", "completion/complete"}
"""The methods of this revision that the earlier ones have as well."""

_CACHEABLE = LISTS | {"resources/read"}
_PRESENT_META = frozenset({VERSION_KEY, CAPABILITIES_KEY, "io.modelcontextprotocol/clientInfo", LOG_LEVEL})
_STAYS = _PRESENT_META | {RELATED_TASK}
"""Keys of `_meta` that no old server gets."""

_OFFERED = ("tools", "prompts", "resources", "completions")
_SESSION_ID = re.compile(rb"[\x21-\x7e]{1,2048}")


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a server said to `initialize`: the version it speaks, and the same as a result of `server/discover`."""

    version: str
    discovery: Mapping[str, Any]


def is_known_to_the_past(call: Call) -> bool:
    """Whether a server of an earlier revision can be asked this: its own methods, and those of the configuration."""
    return call.method in _UNCHANGED or call.kind == "extension"


def introduction(version: str, client_info: Mapping[str, str]) -> dict[str, Any]:
    """The params of `initialize`. No capability: nothing that the server asks for could be passed on."""
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": dict(client_info)}


def read_welcome(result: Mapping[str, Any]) -> Welcome:
    """The result of `initialize`. Raises `Refused(UPSTREAM_INVALID)` for a version that is not spoken here.

    Of the capabilities, those are left that can be served: nothing that changes is told of, and no logging is set up.
    """
    version, offered = result.get("protocolVersion"), result.get("capabilities")
    if version not in PAST_VERSIONS:
        raise _invalid("initialize: answered with a version that is not spoken here")
    if not isinstance(offered, dict):
        raise _invalid("initialize: no capabilities")
    discovery: dict[str, Any] = {
        "supportedVersions": [PROTOCOL_VERSION],
        "capabilities": {name: {} for name in _OFFERED if isinstance(offered.get(name), dict)},
    }
    if isinstance(instructions := result.get("instructions"), str):
        discovery["instructions"] = instructions
    info = result.get("serverInfo")
    if isinstance(info, dict) and all(isinstance(info.get(name), str) for name in ("name", "version")):
        discovery["_meta"] = {"io.modelcontextprotocol/serverInfo": info}
    return Welcome(version, _complete(discovery, cacheable=True))


def read_session_id(values: Sequence[bytes]) -> bytes:
    """The `Mcp-Session-Id` lines of an answer to `initialize` -> the id, empty for a server without sessions.

    Raises `Refused(UPSTREAM_INVALID)` unless it is one value of visible ASCII, 2048 bytes at most.
    """
    if not values:
        return b""
    if len(values) > 1 or not _SESSION_ID.fullmatch(values[0]):
        raise _invalid("initialize: the session's id is not one value of visible ASCII")
    return values[0]


def call_of_the_past(admitted: Admitted, request_id: str) -> Call:
    """The admitted call as an earlier revision has it; `envelope.raw` is the body that is sent.

    `params` are those that were admitted, without this revision's own `_meta` keys; progress token and trace stay,
    and what a person approved keeps its canonical text. What admission took off (`task`) a server of then would obey.
    """
    call = admitted.call
    gated = admitted.use is not None
    anew = admitted.body is not call.envelope.raw
    params = dict(orjson.loads(admitted.body)["params"] if anew else call.envelope.params)
    given = params.pop("_meta", None)
    meta = {key: value for key, value in given.items() if key not in _STAYS} if isinstance(given, dict) else {}
    if meta:
        params["_meta"] = meta
    sent = dict(params)
    if gated and "arguments" in params:
        sent["arguments"] = orjson.Fragment(effect_text(params["arguments"]))
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": call.method, "params": sent}
    if call.envelope.id is not None:
        message["id"] = request_id
    asked_id = None if call.envelope.id is None else request_id
    return replace(call, envelope=Envelope(orjson.dumps(message), asked_id, call.method, params, meta))


def headers_of_the_past(headers: Sequence[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """The admitted header lines without those that only this revision has: media types and trace."""
    return tuple(line for line in headers if not line[0].lower().startswith(b"mcp-"))


def present_answer(call: Call, guarded: Guarded) -> bytes:
    """An old server's guarded answer -> its text for the caller: the caller's id, and what this revision demands.

    Raises `Refused(UPSTREAM_INVALID)` for a result that no earlier revision has, and for a task of 2025-11-25.
    """
    if guarded.outcome == RPC_ERROR:
        return orjson.dumps({**guarded.message, "id": call.envelope.id})
    if guarded.outcome not in (EXECUTED, TOOL_ERROR):
        raise _invalid(f"a result of an earlier revision that says {guarded.outcome}")
    if call.method == "tools/call" and "task" in guarded.result and "content" not in guarded.result:
        raise _invalid("a task that nobody asked for: it may run, and nobody could ask how it ended")
    result = _complete(guarded.result, cacheable=call.method in _CACHEABLE)
    return orjson.dumps({"jsonrpc": "2.0", "id": call.envelope.id, "result": result})


def own_answer(call: Call, discovery: Mapping[str, Any] | None) -> bytes:
    """What the house answers in an old server's place: what it is, or (`None`) that it does not know the method."""
    if discovery is not None:
        return orjson.dumps({"jsonrpc": "2.0", "id": call.envelope.id, "result": discovery})
    error = {"code": METHOD_NOT_FOUND, "message": f"The server speaks a revision that has no {call.method}."}
    return orjson.dumps({"jsonrpc": "2.0", "id": call.envelope.id, "error": error})


class PastStream:
    """An old server's event stream, told anew as one of this revision.

    Dropped: event ids, priming events and times to retry (nothing here can be resumed), and notifications that no
    call of this revision has. A request of the server's ends the stream: nobody could answer it. `answered` once the
    response was there; what follows it is dropped. `code` is that of a response that is an error, else 0.
    """

    __slots__ = ("_asked", "_call", "_count", "_level", "_limits", "_parser", "answered", "code")

    def __init__(self, call: Call, asked: Call, limits: StreamLimits | None = None) -> None:
        self._call = call
        self._asked = asked
        self._limits = limits or StreamLimits()
        self._parser = EventParser(self._limits.event_bytes)
        self._count = 0
        self._level = lowest_wanted(call.envelope.meta)
        self.answered = False
        self.code = 0

    def feed(self, data: bytes) -> bytes:
        """Bytes of the server -> bytes of a stream of this revision. Raises `Refused`, `TooLarge`."""
        ready: list[bytes] = []
        for found in self._parser.feed(data):
            if self.answered:
                break
            self._count += 1
            if self._count > self._limits.events:
                raise _invalid("too many events")
            ready.append(b":" + found.text + b"\n\n" if isinstance(found, Comment) else self._tell(found))
        return b"".join(ready)

    def _tell(self, event: Event) -> bytes:
        if not event.data:
            return b""
        try:
            message = read_strictly(event.data)
        except NotStrict as why:
            raise _invalid(f"an event that is not strict JSON: {why}") from None
        if type(message) is dict and "method" in message:
            if "id" in message:
                raise _invalid("a request from the server")
            return encode_event(event.data) if event.is_message and self._belongs(message) else b""
        if not event.is_message:
            raise _invalid("a response in an event that clients do not read")
        guarded = guard_message(self._asked, message, event.data)
        text = present_answer(self._call, guarded)
        self.answered, self.code = True, guarded.code
        return encode_event(text)

    def _belongs(self, message: Mapping[str, Any]) -> bool:
        """Whether a notification is one that this revision knows on the stream of a call."""
        if message["method"] == LOG_MESSAGE:
            return is_wanted(message, self._level)
        return bool(message["method"] == "notifications/progress")


def _complete(result: Mapping[str, Any], *, cacheable: bool) -> dict[str, Any]:
    kept = {"ttlMs": 0, "cacheScope": "private"} if cacheable else {}
    return {**result, "resultType": "complete", **kept}


def _invalid(detail: str) -> Refused:
    return Refused(Refusal.UPSTREAM_INVALID, detail)
