"""W3C trace context and baggage: one trace through client, gateway and server (contract.md section 8).

A valid one goes on as it came, from `params._meta` or, where that has none, from the headers; an invalid one is
ignored, never an error. The body's own members travel with the body. No decision rests on any of it.
"""

from __future__ import annotations

import re

from gateway.contract.passage import Call, Received

MOST_BAGGAGE = 8192
"""Bytes of baggage that go on, and 64 members: what W3C Baggage (3.3.2) asks of everybody, and no more."""

_PARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_STATE_MEMBER = re.compile(r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{1,256}")
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_VALUE = r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*+"
_PROPERTY = rf";[ \t]*+{_NAME}[ \t]*+(?:=[ \t]*+{_VALUE}[ \t]*+)?"
_BAGGAGE_MEMBER = re.compile(rf"[ \t]*+{_NAME}[ \t]*+=[ \t]*+{_VALUE}[ \t]*+(?:{_PROPERTY})*+")

Lines = tuple[tuple[bytes, bytes], ...]


def trace_context(received: Received, call: Call) -> Lines:
    """`traceparent`, `tracestate` and `baggage` as header lines, in this order; each only where it is valid.

    W3C Trace Context, version 00. A `tracestate` belongs to its `traceparent`; baggage stands for itself.
    """
    return _trace(received, call) + _baggage(received, call)


def _trace(received: Received, call: Call) -> Lines:
    meta = call.envelope.meta
    parent, state = meta.get("traceparent"), meta.get("tracestate")
    if parent is None:
        parent, state = _single(received, b"traceparent"), _single(received, b"tracestate")
    if not isinstance(parent, str) or not _PARENT.fullmatch(parent):
        return ()
    line = (b"traceparent", parent.encode())
    if not isinstance(state, str) or len(state) > 512:
        return (line,)
    members = state.split(",")
    if len(members) > 32 or not all(_STATE_MEMBER.fullmatch(member.strip(" \t")) for member in members):
        return (line,)
    return line, (b"tracestate", state.strip(" \t").encode())


def _baggage(received: Received, call: Call) -> Lines:
    found = call.envelope.meta.get("baggage")
    if found is None:
        lines = received.values(b"baggage")  # several lines are one list (RFC 9110, 5.2)
        found = b",".join(lines).decode("latin-1") if lines else None
    if not isinstance(found, str) or len(found) > MOST_BAGGAGE:
        return ()
    members = found.split(",")
    if len(members) > 64 or not all(map(_BAGGAGE_MEMBER.fullmatch, members)):
        return ()
    return ((b"baggage", found.strip(" \t").encode()),)


def _single(received: Received, name: bytes) -> str | None:
    values = received.values(name)
    return values[0].decode("latin-1") if len(values) == 1 else None
