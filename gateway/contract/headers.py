"""`Received` + `Envelope` -> `Call`: the mirrored headers agree with the body, or nothing else runs.

The order is the contract's: headers (-32020), `_meta` (-32602), version (-32022), method (404), the method's
parameters (-32602), the capability that they need (-32021). Which member a header mirrors is decided by the method
alone, an encoded value has exactly one spelling, and a header that was sent twice has none (contract.md sections 2-3;
rules G1, G2).
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from gateway.contract.envelope import PROTOCOL_META
from gateway.contract.methods import (
    EXTENSION,
    METHODS,
    REMOVED,
    TASKS_EXTENSION,
    UNGUARDED,
    Method,
    declares_tasks,
    task_ids_of,
)
from gateway.contract.passage import Call, Envelope, Received
from gateway.contract.refusals import Refusal, Refused

__all__ = [
    "CAPABILITIES_KEY",
    "METHODS",
    "PROTOCOL_VERSION",
    "VERSIONS",
    "VERSION_KEY",
    "decode_value",
    "encode_value",
    "match_headers",
]

VERSIONS = ("2026-07-28",)
"""The protocol versions that are served, newest first."""

PROTOCOL_VERSION = VERSIONS[0]
"""The version that the gateway itself speaks to the servers behind it."""

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
"""The two members of `params._meta` that every request must carry."""

_VERSION, _METHOD, _NAME, _PARAM = b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"mcp-param-"
_SPELLED = {_VERSION: "MCP-Protocol-Version", _METHOD: "Mcp-Method", _NAME: "Mcp-Name"}
_LEGAL_VALUE = re.compile(rb"[\t\x20-\x7e]*")
_NOT_ALPHANUMERIC = re.compile(rb"[^a-z0-9]")
_NOT_SHOWN = re.compile(r"[^a-z0-9._-]")
_ENCODED = ("=?base64?", "?=")


def match_headers(received: Received, envelope: Envelope) -> Call:
    """What is asked for, once headers, `_meta`, version, method and the method's parameters were found to agree.

    Notifications: the revision defines none that a client sends over HTTP. One is accepted only if the server's
    configuration lists its method; it needs no mirrored header and no `_meta`, but what is there must match. A
    message without an id whose method is a request's is ENVELOPE_INVALID, every other one METHOD_UNKNOWN.

    Raises `Refused`: ENVELOPE_INVALID, HEADER_MISMATCH, META_MISSING, VERSION_UNSUPPORTED, METHOD_UNKNOWN,
    PARAMS_INVALID, CAPABILITY_MISSING.
    """
    method = METHODS.get(envelope.method)
    asks = envelope.id is not None
    if method is not None and not asks:
        raise Refused(Refusal.ENVELOPE_INVALID, "a request without an id")
    mirrored, param_headers = _collect(received)
    version = envelope.meta.get(VERSION_KEY)
    _match(mirrored, envelope, method, version)
    capabilities = envelope.meta.get(CAPABILITIES_KEY)
    if asks and not (isinstance(version, str) and isinstance(capabilities, dict)):
        raise Refused(Refusal.META_MISSING, "protocolVersion or clientCapabilities")
    if not isinstance(version, str):
        if VERSION_KEY in envelope.meta:
            raise Refused(Refusal.META_MISSING, "protocolVersion")
        version = mirrored[_VERSION].decode() if _VERSION in mirrored else PROTOCOL_VERSION
    if version not in VERSIONS:
        raise Refused(Refusal.VERSION_UNSUPPORTED, supported=list(VERSIONS), requested=version)
    if method is None:
        if envelope.method not in received.server.methods or UNGUARDED.fullmatch(envelope.method):
            raise Refused(Refusal.METHOD_UNKNOWN)
        method = EXTENSION
    return _call(envelope, method, capabilities if isinstance(capabilities, dict) else {}, param_headers)


def _collect(received: Received) -> tuple[dict[bytes, bytes], tuple[tuple[bytes, bytes], ...]]:
    """The mirrored headers by lower-case name, and the `Mcp-Param-*` lines in their order; each at most once.

    A name that a server behind CGI-like rules would take for one of them (`Mcp_Name`, `mcp.param.x`) is refused.
    """
    mirrored: dict[bytes, bytes] = {}
    params: list[tuple[bytes, bytes]] = []
    for name, value in received.headers:
        if not name.startswith(b"mcp"):
            continue
        if name in _SPELLED:
            if name in mirrored:
                raise _mismatch(_SPELLED[name], "was sent more than once")
            mirrored[name] = value
        elif name.startswith(_PARAM):
            if len(name) == len(_PARAM) or not _LEGAL_VALUE.fullmatch(value):
                raise _mismatch(_shown(name), "has no name or holds bytes that a header must not hold")
            params.append((name, value))
        elif (plain := _NOT_ALPHANUMERIC.sub(b"-", name)) in _SPELLED or plain.startswith(_PARAM):
            raise _mismatch(_shown(name), "has a name that is only nearly one of the protocol's")
    if len(params) > 1:
        seen: set[bytes] = set()
        for name, _ in params:
            if (plain := _NOT_ALPHANUMERIC.sub(b"-", name)) in seen:
                raise _mismatch(_shown(name), "was sent more than once")
            seen.add(plain)
    return mirrored, tuple(params)


def _match(mirrored: dict[bytes, bytes], envelope: Envelope, method: Method | None, stated: Any) -> None:
    """Hold each mirrored header against its member of the body. Raises `Refused` naming the header."""
    asks = envelope.id is not None
    version, verb = mirrored.get(_VERSION), mirrored.get(_METHOD)
    if asks and (version is None or verb is None):
        raise _missing(_VERSION if version is None else _METHOD, envelope)
    if version is not None:
        _equal(_VERSION, _plain(version), stated)
    if verb is not None:
        _equal(_METHOD, _plain(verb), envelope.method)
    if method is not None and method.mirrored is not None:
        name = mirrored.get(_NAME)
        if name is None:
            raise _missing(_NAME, envelope)
        mirrors = envelope.params.get(method.mirrored)
        if not isinstance(mirrors, str):
            raise _mismatch("Mcp-Name", f"has no params.{method.mirrored} to equal")
        try:
            _equal(_NAME, decode_value(name), mirrors)
        except ValueError as error:
            raise _mismatch("Mcp-Name", f"is malformed: {error}") from None


def _equal(name: bytes, value: str | None, mirrors: Any) -> None:
    """A member of the body that is absent or no string is for the next check to refuse."""
    if value is None:
        raise _mismatch(_SPELLED[name], "holds bytes that a header must not hold")
    if isinstance(mirrors, str) and value != mirrors:
        raise _mismatch(_SPELLED[name], "does not equal the body's value")


def _shown(name: bytes) -> str:
    """A header's name as it came, fit for a message: short, and of a name's own characters."""
    return _NOT_SHOWN.sub("?", name[:64].decode("latin-1"))


def _missing(name: bytes, envelope: Envelope) -> Refused:
    if envelope.method != "initialize":
        return _mismatch(_SPELLED[name], "is missing")
    # A client of an older revision shows its user this text and nothing else.
    served = f"is missing; initialize is of an older MCP revision, served here: {', '.join(VERSIONS)}"
    return _mismatch(_SPELLED[name], served, supported=list(VERSIONS))


def _mismatch(name: str, what: str, **data: Any) -> Refused:
    text = f"{name} header {what}"
    return Refused(Refusal.HEADER_MISMATCH, text, message=f"Header mismatch: {text}.", **data)


def _call(
    envelope: Envelope, method: Method, capabilities: Mapping[str, Any], params: tuple[tuple[bytes, bytes], ...]
) -> Call:
    given = envelope.params
    if (misfit := method.params.misfit(given)) is not None:
        raise Refused(Refusal.PARAMS_INVALID, f"params.{misfit}")
    task_ids = task_ids_of(method, given)
    if task_ids is not None and not declares_tasks(capabilities):
        needed: dict[str, Any] = {"extensions": {TASKS_EXTENSION: {}}}
        raise Refused(Refusal.CAPABILITY_MISSING, "the tasks extension", requiredCapabilities=needed)
    task_ids = task_ids or ()
    meta = envelope.meta
    extra_meta = {} if meta.keys() <= PROTOCOL_META else {key: meta[key] for key in meta if key not in PROTOCOL_META}
    if method.mirrored is None:
        name = state = answers = None
        arguments = {key: value for key, value in given.items() if key != "_meta"}
    elif given.keys() <= method.members or given.keys() - method.members == {REMOVED.get(envelope.method)}:
        name, arguments = given[method.mirrored], given.get("arguments", {})
        state, answers = given.get("requestState"), given.get("inputResponses")
    else:
        raise Refused(Refusal.PARAMS_INVALID, "params has a member that the method does not define")
    return Call(
        envelope,
        method.kind,
        envelope.method,
        name,
        arguments,
        capabilities,
        state,
        answers,
        extra_meta,
        params,
        task_ids,
    )


def _plain(value: bytes) -> str | None:
    """The value as text, or `None` if it is not visible ASCII with spaces and tabs between."""
    if value.isascii() and (text := value.decode()).isprintable():
        return text
    return value.decode() if _LEGAL_VALUE.fullmatch(value) else None


def decode_value(value: bytes) -> str:
    """What a value of `Mcp-Name` or `Mcp-Param-*` stands for. Raises `ValueError` where it stands for nothing.

    `=?base64?...?=` holds UTF-8 in the standard alphabet, padded, in the one spelling that encoding gives; a value
    that lacks prefix or suffix is literal.
    """
    text = _plain(value)
    if text is None:
        raise ValueError("bytes that a header must not hold")
    prefix, suffix = _ENCODED
    if not (text.startswith(prefix) and text.endswith(suffix)):
        return text
    payload = text[len(prefix) : -len(suffix)]
    if len(text) < len(prefix) + len(suffix):  # "=?base64?=": the marks share a character
        raise ValueError("the marks of an encoded value overlap")
    decoded = b64decode(payload, validate=True)
    if b64encode(decoded).decode() != payload:
        raise ValueError("not the canonical Base64 spelling")
    return decoded.decode()


def encode_value(text: str) -> bytes:
    """The value of a header that stands for `text`: plain where visible ASCII and inner spaces can say it."""
    prefix, suffix = _ENCODED
    plain = text.isascii() and text.isprintable() and text == text.strip(" ")
    if plain and not (text.startswith(prefix) and text.endswith(suffix)):
        return text.encode()
    return f"{prefix}{b64encode(text.encode()).decode()}{suffix}".encode()
