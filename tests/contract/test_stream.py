"""The SSE grammar against a plain WHATWG parser, and the rules of one response stream."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.stream import Comment, Event, EventParser, ResponseStream, StreamLimits, TooLarge, encode_event
from tests.contract.sse import Triple, whatwg
from tests.support.upstream import a_call, a_subscription


def _triples(found: list[Event | Comment]) -> list[Triple]:
    return [
        (
            item.kind.decode("utf-8", "replace") or "message",
            item.data.decode("utf-8", "replace"),
            item.last_id.decode("utf-8", "replace"),
        )
        for item in found
        if isinstance(item, Event)
    ]


def _cut(stream: bytes, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    pieces = []
    while stream:
        size = rng.choice([1, 1, 2, 3, 7, 64])
        pieces.append(stream[:size])
        stream = stream[size:]
    return pieces


def _parse(stream: bytes, seed: int) -> list[Event | Comment]:
    parser = EventParser(1 << 20)
    return [found for piece in _cut(stream, seed) for found in parser.feed(piece)]


_WORDS = b"data|event|id|retry|:|: |x|10| |id: 7\n|data: x\n\n".split(b"|")
_MARKS = [b"\r", b"\n", b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"\0", b"\x0b", b"\x0c", b"\x1c", b"\xff"]
_pieces = st.sampled_from([*_WORDS, *_MARKS, "\u2028".encode(), "\u0085".encode(), b'{"a":1}'])


@given(st.lists(_pieces, max_size=40).map(b"".join), st.integers(0, 1000))
def test_the_parser_sees_what_a_whatwg_parser_sees(stream: bytes, seed: int) -> None:
    """Same events, types, data and ids, wherever the bytes were cut (requirements UPS-05)."""
    assert _triples(_parse(stream, seed)) == whatwg(stream)


@given(st.lists(_pieces, max_size=40).map(b"".join), st.integers(0, 1000))
def test_what_is_written_anew_reads_the_same(stream: bytes, seed: int) -> None:
    """An event that leaves the gateway is read by a WHATWG parser as the one that came in."""
    sent_id = b""
    out = b""
    for found in _parse(stream, seed):
        if isinstance(found, Event):
            changed = found.last_id if found.last_id != sent_id else None
            sent_id = found.last_id
            out += encode_event(found.data, kind=found.kind, last_id=changed)
    assert whatwg(out) == whatwg(stream)


def _drain(parser: EventParser, stream: bytes) -> None:
    for start in range(len(stream)):
        assert list(parser.feed(stream[start : start + 1])) == []


def test_a_parser_holds_no_more_than_its_limit() -> None:
    """One endless line, one event of endless lines, one endless comment: each ends at the limit (UPS-07)."""
    assert len(list(EventParser(100).feed(b"data: " + b"x" * 90 + b"\n\n"))) == 1
    for stream in (b"data: " + b"x" * 200, b"data: x\n" * 40, b"data\n" * 40, b":" + b"x" * 200 + b"\n", b"x" * 200):
        with pytest.raises(TooLarge):
            _drain(EventParser(100), stream)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_events_limit_is_the_same_however_it_comes(size: int) -> None:
    """An event of one line counts as one whose line was cut anywhere: at the limit it is read, beyond it is not."""

    def parse(value: int) -> list[Event | Comment]:
        parser, stream = EventParser(100), b"data: 1\n\ndata: " + b"x" * value + b"\n\n"
        return [found for start in range(0, len(stream), size) for found in parser.feed(stream[start : start + size])]

    assert parse(92) == [Event(b"", b"1", b""), Event(b"", b"x" * 92, b"")]
    with pytest.raises(TooLarge):
        parse(93)


def test_a_line_that_drips_in_costs_no_more_than_its_size() -> None:
    """However small the pieces that the network makes of it, what waits for a line's end is its bytes (UPS-07)."""
    whole, size = EventParser(1 << 20), 1 << 19
    parser = EventParser(1 << 20)
    tracemalloc.start()
    try:
        for _ in range(size // 2):
            assert list(parser.feed(bytes((120, 121)))) == []
        assert tracemalloc.get_traced_memory()[0] < 2 * size
    finally:
        tracemalloc.stop()
    assert list(parser.feed(b"\n\n")) == list(whole.feed(b"xy" * (size // 2) + b"\n\n"))


def test_many_small_events_do_not_add_up_to_a_large_one() -> None:
    """The limit is one event's, not the stream's."""
    parser = EventParser(100)
    assert sum(len(list(parser.feed(b": hi\ndata: 0123456789\n\n"))) for _ in range(100)) == 200


PROGRESS: dict[str, Any] = {
    "jsonrpc": "2.0",
    "method": "notifications/progress",
    "params": {"progressToken": "t", "progress": 1},
}
RESULT = {"jsonrpc": "2.0", "id": 1, "result": {"resultType": "complete", "content": []}}
META = {"progressToken": "t"}


def _sse(*messages: Any) -> bytes:
    return b"".join(b"data: " + orjson.dumps(message) + b"\n\n" for message in messages)


def _stream(**call: Any) -> ResponseStream:
    return ResponseStream(a_call(meta=META, **call))


def _played(stream: ResponseStream, data: bytes, size: int = 10) -> bytes:
    out = b""
    for start in range(0, len(data), size):
        out += b"".join(stream.feed(data[start : start + size]))
        if stream.fault:
            break
    stream.finish()
    return out


def test_notifications_pass_and_the_response_is_held_for_the_guard() -> None:
    """Notifications leave as they come; the one response is guarded and leaves through `encode_final`."""
    stream = _stream()
    relayed = stream.feed(_sse(PROGRESS))
    assert [orjson.loads(data) for _, data, _ in whatwg(b"".join(relayed))] == [PROGRESS]
    assert stream.feed(_sse(RESULT)) == []
    stream.finish()
    assert stream.fault == ""
    assert stream.final is not None
    assert stream.final.outcome == "executed"
    assert whatwg(stream.encode_final(stream.final.raw)) == [("message", orjson.dumps(RESULT).decode(), "")]


@pytest.mark.parametrize(
    ("asked", "levels"),
    [
        (None, []),
        ("warning", ["warning", "error", "emergency"]),
        ("debug", ["debug", "info", "warning", "error", "emergency"]),
        ("emergency", ["emergency"]),
        ("Warning", []),
        ("all", []),
        (["debug"], []),
        (0, []),
    ],
)
def test_only_log_messages_that_were_asked_for_pass(asked: Any, levels: list[str]) -> None:
    """A request gets messages from the level on that its `_meta` names, none otherwise; nothing breaks for it."""
    call = a_call(meta=META if asked is None else {**META, "io.modelcontextprotocol/logLevel": asked})
    said = ["debug", "info", "warning", "error", "emergency", "ERROR", "", 7, None, ["error"]]
    logs: list[Any] = [_log(level=level, data="x") for level in said]
    logs += [_log(data="x"), {"jsonrpc": "2.0", "method": "notifications/message"}]
    stream = ResponseStream(call)
    shown = [orjson.loads(data) for _, data, _ in whatwg(b"".join(stream.feed(_sse(*logs, PROGRESS, RESULT))))]
    assert shown == [*[_log(level=level, data="x") for level in levels], PROGRESS]
    assert (stream.dropped, stream.fault) == (len(logs) - len(levels), "")
    assert stream.final is not None


def _log(**params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/message", "params": params}


def test_comments_pass() -> None:
    """Keep-alive comments reach the client, as comments."""
    assert _stream().feed(b": ping\r\n:\r\n") == [b": ping\n\n", b":\n\n"]


def test_the_response_keeps_its_event_type_and_id() -> None:
    """An explicit type `message` and an id travel along."""
    stream = _stream()
    stream.feed(b"event: message\nid: 9\n" + _sse(RESULT))
    assert stream.final is not None
    assert whatwg(stream.encode_final(stream.final.raw))[0][::2] == ("message", "9")


SUBSCRIPTION_META = {"io.modelcontextprotocol/subscriptionId": 1}
BROKEN: dict[str, Any] = {
    "request": _sse({"jsonrpc": "2.0", "id": 5, "method": "sampling/createMessage", "params": {}}),
    "request with the caller's id": _sse({"jsonrpc": "2.0", "id": 1, "method": "roots/list"}),
    "request with a null id": _sse({"jsonrpc": "2.0", "id": None, "method": "notifications/message"}),
    "other id": _sse({**RESULT, "id": 2}),
    "id of other type": _sse({**RESULT, "id": "1"}),
    "no id": _sse({"jsonrpc": "2.0", "result": {}}),
    "batch": _sse([RESULT]),
    "not JSON": b"data: hello\n\n",
    "byte order mark inside": b"data: \xef\xbb\xbf" + orjson.dumps(RESULT) + b"\n\n",
    "NUL": b"data: " + orjson.dumps(RESULT) + b"\0\n\n",
    "two names": b'data: {"jsonrpc":"2.0","id":2,"id":1,"result":{}}\n\n',
    "notification with a result": _sse({**PROGRESS, "result": {}}),
    "notification with a wrong version": _sse({**PROGRESS, "jsonrpc": "1.0"}),
    "notification with array params": _sse({**PROGRESS, "params": []}),
    "method without id": _sse({"jsonrpc": "2.0", "method": "tools/call", "params": {}}),
    "progress of another": _sse({**PROGRESS, "params": {"progressToken": "u", "progress": 1}}),
    "progress of nothing": _sse({**PROGRESS, "params": {"progress": 1}}),
    "progress without a number": _sse({**PROGRESS, "params": {"progressToken": "t"}}),
    "progress in words": _sse({**PROGRESS, "params": {"progressToken": "t", "progress": "NaN"}}),
    "progress that is true": _sse({**PROGRESS, "params": {"progressToken": "t", "progress": True}}),
    "progress that is not a number": _sse(PROGRESS).replace(b'progress":1', b'progress":NaN'),
    "progress without end": _sse(PROGRESS).replace(b'progress":1', b'progress":1e999'),
    "a total in words": _sse({**PROGRESS, "params": {"progressToken": "t", "progress": 1, "total": "x"}}),
    "a variant of the token": _sse({**PROGRESS, "params": {**PROGRESS["params"], "ProgressToken": "u"}}),
    "a subscription's": _sse(
        {
            "jsonrpc": "2.0",
            "method": "notifications/message",
            "params": {"_meta": {"io.modelcontextprotocol/subscriptionId": 1}},
        }
    ),
    "progress token of other type": _sse({**PROGRESS, "params": {"progressToken": 1, "progress": 1}}),
    "cancelled": _sse({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}),
    "another subscription": _sse(
        {"jsonrpc": "2.0", "method": "notifications/message", "params": {"_meta": {**SUBSCRIPTION_META, "x": 1}}}
    ).replace(b":1", b":2"),
    "response in an event that clients skip": b"event: other\n" + _sse(RESULT),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("size", [1, 10_000])
def test_a_broken_rule_ends_the_stream(data: bytes, size: int) -> None:
    """Nothing of what broke the rule is relayed, what came before it is, and nothing after it (UPS-03)."""
    good = _stream()
    assert orjson.dumps(PROGRESS) in _played(good, _sse(PROGRESS) + _sse(RESULT), size)
    assert good.fault == ""
    stream = _stream()
    out = _played(stream, _sse(PROGRESS) + data + _sse(PROGRESS, RESULT), size)
    assert [orjson.loads(text) for _, text, _ in whatwg(out)] == [PROGRESS]
    assert stream.fault
    assert stream.final is None
    assert stream.feed(_sse(RESULT)) == []


@pytest.mark.parametrize("after", [RESULT, PROGRESS])
def test_nothing_follows_the_response(after: Any) -> None:
    """A second response, or a late notification, makes the whole answer untrustworthy."""
    stream = _stream()
    stream.feed(_sse(RESULT, after))
    assert stream.fault
    assert stream.final is None


def test_comments_may_follow_the_response() -> None:
    """A keep-alive after the response is no message."""
    stream = _stream()
    stream.feed(_sse(RESULT) + b": bye\n\n")
    assert stream.final is not None


@pytest.mark.parametrize("data", [b"", b": ping\n\n", _sse(PROGRESS), _sse(RESULT)[:-1], b"data:\n\n"])
def test_an_end_without_a_response_is_a_fault(data: bytes) -> None:
    """A stream that just stops is never a clean end; an event without its blank line is none."""
    stream = _stream()
    stream.feed(data)
    stream.finish()
    assert stream.fault
    assert stream.final is None


def test_a_result_that_the_call_may_not_have_is_a_fault() -> None:
    """The guard's rules hold on streams as well."""
    stream = _stream(method="tools/list", kind="list")
    stream.feed(_sse({**RESULT, "result": {"resultType": "input_required", "requestState": "s"}}))
    assert stream.fault
    assert stream.final is None


def test_the_number_of_events_is_bounded_but_for_subscriptions() -> None:
    """A million small events end a call's stream; a subscription has no total (UPS-07)."""
    limits = StreamLimits(events=50)
    call = ResponseStream(a_call(meta=META), limits)
    assert len(call.feed(_sse(*[_progress(number) for number in range(50)]))) == 50
    assert call.feed(b": one more\n\n") == []
    assert call.fault
    listen = ResponseStream(a_subscription({"toolsListChanged": True}), limits)
    meta = {"_meta": SUBSCRIPTION_META}
    ack = {
        "jsonrpc": "2.0",
        "method": "notifications/subscriptions/acknowledged",
        "params": {**meta, "notifications": {"toolsListChanged": True}},
    }
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": meta}
    assert len(listen.feed(_sse(ack, *[changed] * 60))) == 61
    assert not listen.fault


def _progress(progress: Any, **more: Any) -> dict[str, Any]:
    return {**PROGRESS, "params": {"progressToken": "t", "progress": progress, **more}}


def test_progress_only_moves_on() -> None:
    """A step back, or none, is not shown; the call and its result are not lost for it."""
    stream = _stream()
    said = [_progress(number) for number in (-1, 0, 0.5, 0.5, 0.2, 1, 1.0, 7, 2**60, 3)]
    relayed = stream.feed(_sse(*said, RESULT))
    shown = [orjson.loads(data)["params"]["progress"] for _, data, _ in whatwg(b"".join(relayed))]
    assert shown == [-1, 0, 0.5, 1, 7, 2**60]
    assert stream.dropped == 4
    assert stream.final is not None


@pytest.mark.parametrize(
    "method",
    [
        "notifications/subscriptions/acknowledged",
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
        "notifications/tasks",
    ],
)
def test_what_belongs_to_subscriptions_does_not_travel_with_a_call(method: str) -> None:
    """Who did not subscribe is told of no change, task or resource; the call's own result is not lost for it."""
    stream = _stream()
    notification = {"jsonrpc": "2.0", "method": method, "params": {"uri": "file:///a", "taskId": "t"}}
    assert stream.feed(_sse(notification, RESULT)) == []
    assert (stream.dropped, stream.fault) == (1, "")
    assert stream.final is not None


@pytest.mark.parametrize(
    "stream",
    [
        b'data: {\rdata: "jsonrpc":"2.0",\r\ndata: "method":"notifications/x",\ndata: "params":{}}\r\r',
        'data: {"jsonrpc":"2.0","method":"notifications/x","params":{"data":"a\u2028b\ufeffc\u0085"}}\n\n'.encode(),
        b'event: mess\rage\ndata: {"jsonrpc":"2.0","method":"com.example/notifications/note"}\n\n',
        b'event: x\rid: y\rdata: {"jsonrpc":"2.0","method":"com.example/notifications/note"}\n\n',
        b'\xef\xbb\xbfdata: {"jsonrpc":"2.0","method":"com.example/notifications/note"}\n\n',
        b"id: 1\ndata:\n\n",
        b'retry: 1\ndata: {"jsonrpc":"2.0","method":"com.example/notifications/note"}\n\n',
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_the_clients_events_equal_the_upstreams(stream: bytes, seed: int) -> None:
    """Line endings, marks and fields in odd places make no event that was not there, and lose none (UPS-05)."""
    relay = _stream()
    out = b"".join(piece for data in _cut(stream, seed) for piece in relay.feed(data))
    assert relay.fault == ""
    assert whatwg(out) == whatwg(stream)
    assert len(whatwg(out)) == 1
