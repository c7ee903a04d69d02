"""W3C trace context and baggage: one trace through client, gateway and server (contract.md section 8).

A valid one goes on as it came, from `params._meta` or, where that has none, from the headers; an invalid one is
ignored, never an error. The body's own members travel with the body. No decision rests on any of it. Where the
gateway's own spans are exported, what goes on names the span of its call instead, in the headers and in `_meta`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.contract.passage import Call, Received

_MOST_PLACES = 4
"""Of what looks like the place in a body, how many are tried."""

MOST_BAGGAGE = 8192
"""Bytes of baggage that go on, and 64 members: what W3C Baggage (3.3.2) asks of everybody, and no more."""

_PARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_STATE_MEMBER = re.compile(r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{1,256}")
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_VALUE = r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*+"
_PROPERTY = rf";[ \t]*+{_NAME}[ \t]*+(?:=[ \t]*+{_VALUE}[ \t]*+)?"
_BAGGAGE_MEMBER = re.compile(rf"[ \t]*+{_NAME}[ \t]*+=[ \t]*+{_VALUE}[ \t]*+(?:{_PROPERTY})*+")

Lines = tuple[tuple[bytes, bytes], ...]
"""Header lines: names in lower case, and values."""


@dataclass(frozen=True, slots=True)
class Span:
    """The gateway's two spans of one request, as W3C Trace Context writes ids: `server` of the request, `client` of
    what is forwarded for it. `parent` is the caller's span, empty for a trace that begins here."""

    trace_id: str
    parent: str
    server: str
    client: str
    sampled: bool
    flags: str

    def outgoing(self, came: Lines) -> Lines:
        """The header lines that go upstream instead of those that came: the next span's parent is ours.

        A trace of the caller's that is not sampled goes on as it came: no span of ours would be found in it.
        """
        if self.parent and not self.sampled:
            return came
        line = (b"traceparent", f"00-{self.trace_id}-{self.client}-{self.flags}".encode())
        return line, *[other for other in came if other[0] != b"traceparent"]


def begin_span(came: Lines, fresh: bytes, ratio: float) -> Span:
    """Go on with the caller's trace, as sampled as it is, or begin one, of which the share `ratio` is sampled.

    `came` is what `trace_context` found, `fresh` 32 random bytes.
    """
    server, client = fresh[:8].hex(), fresh[8:16].hex()
    if came and came[0][0] == b"traceparent":
        _, trace_id, parent, flags = came[0][1].decode("ascii").split("-")
        return Span(trace_id, parent, server, client, bool(int(flags, 16) & 1), flags)
    sampled = int.from_bytes(fresh[24:]) < ratio * 2**64
    return Span(fresh[16:].hex(), "", server, client, sampled, "01" if sampled else "00")


def meta_of(span: Span, came: Lines, meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """`params._meta` with the same parent as the headers: whoever reads both prefers these (contract.md section 8).

    As it came where it holds a trace that is none.
    """
    ours = {name.decode(): value.decode() for name, value in span.outgoing(came) if name != b"baggage"}
    if "traceparent" not in meta and "tracestate" not in meta:
        return {**ours, **meta}
    if came and meta.get("traceparent") == came[0][1].decode("latin-1"):
        return {**meta, "traceparent": ours["traceparent"]}
    return meta


def retrace(raw: bytes, params: Mapping[str, Any], wanted: Mapping[str, Any]) -> bytes:
    """`raw` with `wanted` as its `_meta` (`meta_of`); every other byte stays as it came and was judged.

    What was changed is read again: where the place is not found so, nothing is changed.
    """
    meta: Mapping[str, Any] = params.get("_meta", {})
    if wanted == meta:
        return raw
    if "traceparent" in meta:
        places = re.finditer(rb'"traceparent"\s*:\s*"([0-9a-f-]{55})"', raw)
        spans, text = [place.span(1) for place in places], str(wanted["traceparent"]).encode()
    else:
        added = {name: value for name, value in wanted.items() if name not in meta}
        places = re.finditer(rb'"_meta"\s*:\s*\{(?!\s*\})', raw)
        spans, text = [(place.end(), place.end()) for place in places], orjson.dumps(added)[1:-1] + b","
    for begin, end in spans[:_MOST_PLACES]:
        changed = raw[:begin] + text + raw[end:]
        try:
            read = orjson.loads(changed)
        except ValueError:  # within a text
            continue
        if read.get("params") == {**params, "_meta": wanted}:
            return changed
    return raw


def trace_context(received: Received, call: Call) -> Lines:
    """`traceparent`, `tracestate` and `baggage` as header lines, in this order; each only where it is valid.

    W3C Trace Context, version 00. A `tracestate` belongs to its `traceparent`; baggage stands for itself.
    """
    found = _trace(received, call)
    return found + baggage if (baggage := _baggage(received, call)) else found


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
