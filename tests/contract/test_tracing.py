"""One trace through client, gateway and server (contract.md section 8; W3C Trace Context, W3C Baggage)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.contract.envelope import parse_envelope
from gateway.contract.headers import match_headers
from gateway.contract.passage import Passage
from gateway.contract.tracing import trace_context
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
