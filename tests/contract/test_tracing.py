"""One trace through client, gateway and server (contract.md section 8; W3C Trace Context, W3C Baggage)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.contract.envelope import parse_envelope
from gateway.contract.headers import match_headers
from gateway.contract.passage import Passage
from gateway.contract.tracing import Span, begin_span, meta_of, retrace, trace_context
from tests.contract.asking import META, ask, lines_of, message, received

PARENT = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
OTHER = PARENT.replace("0af", "1af")
TRACED = {b"traceparent": PARENT.encode()}


@pytest.mark.parametrize(
    ("meta", "headers", "expected"),
    [
        ({"traceparent": PARENT}, {}, TRACED),
        ({}, {"traceparent": PARENT}, TRACED),
        ({"traceparent": PARENT, "tracestate": "a=1, b@c=2"}, {}, {**TRACED, b"tracestate": b"a=1, b@c=2"}),
        ({"traceparent": PARENT}, {"traceparent": OTHER, "tracestate": "x=y"}, TRACED),
        ({"traceparent": "nonsense"}, {"traceparent": PARENT}, {}),
        ({"traceparent": 7}, {}, {}),
        ({"traceparent": PARENT.upper()}, {}, {}),
        ({"traceparent": "00-" + "0" * 32 + "-00f067aa0ba902b7-01"}, {}, {}),
        ({"traceparent": PARENT + "\r\nX: y"}, {}, {}),
        ({"traceparent": PARENT, "tracestate": "a=1\r\nX: y"}, {}, TRACED),
        ({"traceparent": PARENT, "tracestate": "a=" + "x" * 600}, {}, TRACED),
        ({"traceparent": PARENT, "tracestate": ["a=1"]}, {}, TRACED),
    ],
)  # fmt: skip
def test_only_a_valid_trace_travels(
    meta: dict[str, Any], headers: dict[str, str], expected: dict[bytes, bytes]
) -> None:
    """contract.md section 8: `_meta` wins over headers; what is invalid is ignored, never an error."""
    request = message(meta={**META, **meta})
    head = received([*lines_of(request), *headers.items()])
    assert dict(trace_context(head, match_headers(head, parse_envelope(orjson.dumps(request))))) == expected
    doubled = received([*lines_of(message()), ("traceparent", PARENT), ("traceparent", PARENT)])
    assert trace_context(doubled, ask(message())) == ()


def traced(meta: dict[str, Any], *headers: tuple[str, str]) -> list[bytes]:
    """The baggage that goes on."""
    request = message(meta={**META, **meta})
    head = received([*lines_of(request), *headers])
    found = trace_context(head, match_headers(head, parse_envelope(orjson.dumps(request))))
    return [value for name, value in found if name == b"baggage"]


GOOD = [
    "userId=alice",
    "a=1,b=2 , c = 3",
    "key=value;prop=1;flag; x = y,next=",
    "k=%E2%82%AC%20%22",
    "a=b=c",
    ",".join(f"k{number}=v" for number in range(64)),
    "k=" + "x" * 8190,
]
BAD: list[Any] = [
    "", "a", "=b", "a=1,", ",a=1", "a=1,,b=2", "a b=1", "a=1 2", "k=" + " " * 8000 + "\x7f",
    'a="b"', "a=\\", "a=\u00fc", "a=1;", "a=1;=x", "a=1;b=\"",
    "a=1\r\nX: y", "a=1\n", "a=\x7f", "a=1;b c", ",".join(f"k{number}=v" for number in range(65)), "k=" + "x" * 8191,
    7, ["a=1"], {"a": "1"}, True,
]  # fmt: skip


@pytest.mark.parametrize("baggage", GOOD)
def test_valid_baggage_goes_on_as_it_came(baggage: str) -> None:
    """From `_meta` or from the headers, with a trace or without one; several header lines are one list."""
    assert traced({"baggage": baggage}) == [baggage.encode()]
    assert traced({}, ("baggage", baggage)) == [baggage.encode()]
    assert traced({"baggage": baggage, "traceparent": PARENT}, ("baggage", "other=1")) == [baggage.encode()]
    assert traced({"traceparent": PARENT}, ("baggage", "a=1"), ("Baggage", "b=2")) == [b"a=1,b=2"]


@pytest.mark.parametrize("baggage", BAD)
def test_invalid_baggage_is_ignored(baggage: Any) -> None:
    """Never an error, never a header; one that `_meta` has stands before that of the headers even so."""
    assert traced({"baggage": "a=1"}) == [b"a=1"]
    assert traced({"baggage": baggage}) == []
    assert traced({"baggage": baggage}, ("baggage", "a=1")) == []
    if isinstance(baggage, str) and baggage.isprintable():
        assert traced({}, ("baggage", baggage)) == []


def test_baggage_alone_is_no_trace() -> None:
    """The record's trace id is that of a traceparent, or empty."""
    passage = Passage("d", 0, 0)
    passage.trace = ((b"baggage", b"a=" + b"1" * 60),)
    assert passage.trace_id == ""
    passage.trace = ((b"traceparent", PARENT.encode()), *passage.trace)
    assert passage.trace_id == PARENT[3:35]


FRESH = bytes(range(1, 33))
OURS = "0102030405060708", "090a0b0c0d0e0f10"
CAME = ((b"traceparent", PARENT.encode()), (b"tracestate", b"a=1"), (b"baggage", b"k=v"))


def test_the_callers_trace_goes_on_under_our_span() -> None:
    """Its id and flags are kept, the parent of what is forwarded is the span of that; state and baggage stay."""
    span = begin_span(CAME, FRESH, 0.0)
    assert (span.trace_id, span.parent, span.sampled) == (PARENT[3:35], PARENT[36:52], True)
    assert (span.server, span.client) == OURS
    line = f"00-{PARENT[3:35]}-{OURS[1]}-01".encode()
    assert span.outgoing(CAME) == ((b"traceparent", line), *CAME[1:])


def test_a_trace_that_is_not_sampled_goes_on_as_it_came() -> None:
    """No span of ours is in it, so nobody is told to look for one."""
    came = ((b"traceparent", PARENT[:-1].encode() + b"0"), *CAME[1:])
    span = begin_span(came, FRESH, 1.0)
    assert not span.sampled
    assert span.outgoing(came) == came


@pytest.mark.parametrize(("ratio", "sampled"), [(0.0, False), (0.09, False), (0.1, True), (1.0, True)])
def test_a_trace_that_begins_here_says_whether_it_is_sampled(ratio: float, sampled: bool) -> None:
    """The share is taken by the trace's id; the server behind is told the choice either way."""
    span = begin_span((), FRESH, ratio)
    assert (span.parent, span.sampled) == ("", sampled)
    assert span.trace_id == FRESH[16:].hex()
    flags = b"01" if sampled else b"00"
    assert span.outgoing(()) == ((b"traceparent", f"00-{span.trace_id}-{OURS[1]}-".encode() + flags),)


def retraced(raw: bytes) -> tuple[bytes, Span]:
    """A body as it is sent on, the trace taken from it alone."""
    params = orjson.loads(raw)["params"]
    parent = params["_meta"].get("traceparent")
    came: Any = ((b"traceparent", parent.encode()),) if parent == PARENT else ()
    span = begin_span(came, FRESH, 1.0)
    return retrace(raw, params, meta_of(span, came, params["_meta"])), span


@pytest.mark.parametrize(
    "raw",
    [
        b'{"params":{"_meta":{"traceparent":"%b","x":1}, "n" : 1.50 , "big": 12345678901234567890123}}',
        b'{"params": {"n": 1e2, "_meta": {"a": {"traceparent": 1}, "traceparent" : "%b"}}}',
        b'{"params":{"a":{"traceparent":"%b","_meta":{"x":1}},"_meta":{"traceparent":"%b"}}}',
        b'{"params":{"a":{"_meta":{"x":1}},"t":"\\"_meta\\":{","_meta":{"k":"v"}}}',
    ],
)
def test_a_body_names_our_span_and_every_other_byte_is_as_it_came(raw: bytes) -> None:
    """In `_meta` alone: what looks like it in the arguments was judged, and is sent as it was judged."""
    raw = raw.replace(b"%b", PARENT.encode())
    changed, span = retraced(raw)
    ours = f"00-{span.trace_id}-{OURS[1]}-01"
    before, after = orjson.loads(raw), orjson.loads(changed)
    assert after["params"]["_meta"].pop("traceparent") == ours
    before["params"]["_meta"].pop("traceparent", None)
    assert after == before
    assert changed.replace(b'"traceparent":"%b",' % ours.encode(), b"").replace(ours.encode(), PARENT.encode()) in (
        raw,
        raw.replace(b'"traceparent":"%b",' % PARENT.encode(), b""),
    )


@pytest.mark.parametrize(
    "raw",
    [
        b'{"params":{"_meta":{"trace\\u0070arent":"%b"},"a":{"traceparent":"%b"}}}',
        b'{"params":{"_meta":{"traceparent":"nonsense"}}}',
        b'{"params":{"_meta":{"tracestate":"a=1"}}}',
        b'{"params":{"_meta":{}}}',
    ],
)
def test_a_body_whose_trace_is_not_found_so_stays_as_it_is(raw: bytes) -> None:
    """One that is spelled otherwise, or is none: the headers name our span, the body is not touched."""
    raw = raw.replace(b"%b", PARENT.encode())
    assert retraced(raw)[0] == raw
