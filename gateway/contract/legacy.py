"""Clients of older revisions: their requests in the words of the revision that is served.

A request of 2025-11-25 or 2025-06-18 has no mirrored headers and nothing of the protocol's own in `_meta`. It becomes
an ordinary request before anything is judged, so there is one corridor for both; what a client of that revision can't
be told is an error that says so. No word of such a client about versions or capabilities is believed but those that
its session holds (specification 2025-11-25, basic/lifecycle and basic/transports).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from gateway.contract.bindings import check_bindings, mirror
from gateway.contract.envelope import PROTOCOL_META
from gateway.contract.headers import (
    CAPABILITIES_KEY,
    METHODS,
    PROTOCOL_VERSION,
    VERSION_KEY,
    decode_value,
    encode_value,
)
from gateway.contract.passage import Call, Envelope, Received, Reply, Tool
from gateway.contract.quirks import Quirk
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.reply import accepted_reply, result_reply

OLDER_VERSIONS: Final = ("2025-11-25", "2025-06-18")
"""The older revisions that can be served without anything stored, newest first. Earlier ones had batches."""

SESSION: Final = b"mcp-session-id"
VERSION: Final = b"mcp-protocol-version"
_METHOD, _NAME = b"mcp-method", b"mcp-name"
INITIALIZE: Final = "initialize"

CARRIED: Final = frozenset[str]()
"""Client capabilities that a server can use through us: none. In these revisions elicitation, sampling and roots are
requests to the client, whose answers would have to find a call that waits for them."""

_SERVED: Final = frozenset(
    {
        "tools/list", "tools/call", "prompts/list", "prompts/get", "resources/list", "resources/templates/list",
        "resources/read", "completion/complete",
    }
)  # fmt: skip
"""Requests that have the same name and form in both revisions."""

_NOTED: Final = frozenset(
    {
        "notifications/initialized", "notifications/cancelled", "notifications/progress",
        "notifications/roots/list_changed",
    }
)  # fmt: skip
"""A client's notifications: accepted, recorded, and without effect. Which worker has the call that a cancellation
names, nobody knows who keeps nothing; the client's closing of the connection still ends it."""

LONGEST_MIRRORED: Final = 16_384
"""Bytes that one call's mirrored headers may have. A client that writes them itself is bounded by the head's size."""

RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
"""The key of `_meta` that makes a request of 2025-11-25 part of a task. None is offered, and nothing proves whose it
would be."""

_NEWER_META: Final = frozenset(key for key in PROTOCOL_META if key.startswith("io.modelcontextprotocol/"))
_NEWER_PARAMS: Final = frozenset({"requestState", "inputResponses"})


@dataclass(frozen=True, slots=True)
class Session:
    """What was agreed on by an `initialize`: the revision, and the capabilities that both sides can use."""

    version: str
    capabilities: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A client of an older revision: what was agreed on, and, on `initialize`, the id of the session that begins."""

    session: Session
    begins: str = ""

    @property
    def version(self) -> str:
        """The older revision."""
        return self.session.version


@dataclass(frozen=True, slots=True)
class Heard:
    """Who speaks, as far as that is not plainly a client of the revision that is served; which quirks helped."""

    spoken: Spoken | None = None
    quirks: tuple[Quirk, ...] = ()


class Answered(Exception):  # noqa: N818 - what happened: there is nothing to forward
    """The house answers this by itself: `ping` and notifications of older revisions, what is about a held call."""

    def __init__(self, result: bytes = b"") -> None:
        """`result` is the whole response; nothing for a notification."""
        super().__init__()
        self.result = result
        self.status = 200 if result else 202

    def reply(self, decision_id: str) -> Reply:
        """What the client gets."""
        return result_reply(self.status, self.result, decision_id) if self.result else accepted_reply(decision_id)


def speaks_older(received: Received, envelope: Envelope) -> bool:
    """Whether a request is of an older revision: by what it says of its version, in head and body.

    Where either says the served one, or the body says any as only the served revision does, nothing is forgiven and a
    session is as meaningless as ever. Some clients mirror in every revision: that alone decides nothing.
    """
    if VERSION_KEY in envelope.meta:
        return False
    versions, has_session = [], False
    for name, value in received.headers:
        if name == VERSION:
            versions.append(value.decode("latin-1"))
        elif name == SESSION:
            has_session = True
        elif name.startswith(b"mcp") and name not in {_METHOD, _NAME}:
            return False
    if PROTOCOL_VERSION in versions:
        return False
    return has_session or envelope.method == INITIALIZE or any(version in OLDER_VERSIONS for version in versions)


def check_unmixed(received: Received, envelope: Envelope) -> None:
    """Raise `Refused(SESSION_MISMATCH)` for a member that an older client can't know: it claims what is sealed.

    And for a mirrored header that says another thing than the body: somebody on the way may have gone by it.
    """
    params = envelope.params
    method = METHODS.get(envelope.method)
    if received.values(_METHOD) not in ([], [envelope.method.encode()]):
        raise mismatch("Mcp-Method header does not equal the method", envelope)
    if names := received.values(_NAME):
        mirrored = method.mirrored if method is not None else None
        try:
            agrees = mirrored is not None and [decode_value(name) for name in names] == [params.get(mirrored)]
        except ValueError:
            agrees = False
        if not agrees:
            raise mismatch("Mcp-Name header does not equal the name", envelope)
    if not _NEWER_META.isdisjoint(envelope.meta) or not _NEWER_PARAMS.isdisjoint(params):
        raise mismatch("the body has members of a newer revision", envelope)
    if not isinstance(params.get("_meta", {}), dict):
        raise Refused(Refusal.PARAMS_INVALID, "params._meta")


def negotiate(envelope: Envelope) -> Session:
    """What an `initialize` leads to: the asked revision or else the newest older one, and the shared capabilities.

    Raises `Refused`: ENVELOPE_INVALID, PARAMS_INVALID.
    """
    if envelope.id is None:
        raise Refused(Refusal.ENVELOPE_INVALID, "a request without an id")
    params = envelope.params
    asked, declared, info = (params.get(name) for name in ("protocolVersion", "capabilities", "clientInfo"))
    if type(asked) is not str or type(declared) is not dict or type(info) is not dict:
        raise Refused(Refusal.PARAMS_INVALID, "protocolVersion, capabilities or clientInfo")
    version = asked if asked in OLDER_VERSIONS else OLDER_VERSIONS[0]
    return Session(version, {name: declared[name] for name in CARRIED & declared.keys()})


def modernise(spoken: Spoken, received: Received, envelope: Envelope) -> tuple[Received, Envelope]:
    """An older client's request as the corridor judges it, with the session's word in `_meta`.

    Raises `Answered` for what the house answers itself, `Refused` METHOD_UNKNOWN for what that revision does not have
    or what can't be served without anything stored, ENVELOPE_INVALID for a notification of neither kind,
    PARAMS_INVALID for a name that is missing or that no header can say.
    """
    method = envelope.method
    if envelope.id is None and method in _NOTED:
        raise Answered
    if envelope.id is None:
        raise Refused(Refusal.ENVELOPE_INVALID, "a notification that is not accepted, or a request without an id")
    if method == "ping":
        raise Answered(orjson.dumps({"jsonrpc": "2.0", "id": envelope.id, "result": {}}))
    if method != INITIALIZE and method not in _SERVED:
        raise Refused(Refusal.METHOD_UNKNOWN, f"not served to {spoken.version}")
    params: dict[str, Any] = {}
    if method == INITIALIZE:
        method = "server/discover"
    else:  # a receiver that does not offer tasks ignores that one is asked for
        params = {name: value for name, value in envelope.params.items() if name != "task"}
    capabilities = dict(spoken.session.capabilities)
    meta = {**envelope.meta, VERSION_KEY: PROTOCOL_VERSION, CAPABILITIES_KEY: capabilities}
    meta.pop(RELATED_TASK, None)
    params["_meta"] = meta
    raw = orjson.dumps({"jsonrpc": "2.0", "id": envelope.id, "method": method, "params": params})
    lines = [line for line in received.headers if not line[0].startswith(b"mcp")]
    lines += [(VERSION, PROTOCOL_VERSION.encode()), (_METHOD, method.encode())]
    if (mirrored := METHODS[method].mirrored) is not None:
        if not isinstance(name := params.get(mirrored), str):
            raise Refused(Refusal.PARAMS_INVALID, f"params.{mirrored}")
        lines.append((_NAME, _bounded(encode_value(name))))
    return replace(received, headers=tuple(lines)), Envelope(raw, envelope.id, method, params, meta)


def mirror_params(call: Call, tool: Tool | None) -> Call:
    """The call with the `Mcp-Param-*` lines that a client of the served revision would have sent.

    Raises `Refused(PARAMS_INVALID)` for arguments that no such line can say, or only one without end.
    """
    if tool is None or not tool.bindings:
        return call
    lines = mirror(tool.bindings, call.arguments)
    _bounded(b"".join(value for _, value in lines))
    try:
        check_bindings(tool.bindings, call.arguments, lines)
    except Refused as refused:  # not in the words of headers, which this client never sent
        raise Refused(Refusal.PARAMS_INVALID, refused.detail) from None
    return replace(call, param_headers=lines)


def mismatch(what: str, envelope: Envelope) -> Refused:
    """`Refused(SESSION_MISMATCH)` whose message says what is wrong."""
    row = Refusal.SESSION_MISMATCH
    sentence = f"{row.value.sentence[:-1]}: {what}."
    return Refused(row, what, message=sentence, request_id=envelope.id)


def _bounded(value: bytes) -> bytes:
    if len(value) > LONGEST_MIRRORED:
        raise Refused(Refusal.PARAMS_INVALID, "longer than a mirrored header may be")
    return value
