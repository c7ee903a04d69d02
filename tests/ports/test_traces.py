"""Spans of requests at a real OTLP receiver: what is in them, what is not, and what becomes of those without room."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.contract.passage import Call, Passage
from gateway.contract.record import outcome_record, refusal_record
from gateway.contract.refusals import Refusal, Refused
from gateway.signals.durations import BOUNDS, ROOMS, rooms_of
from gateway.signals.span_export import SpanExport
from gateway.signals.traces import Traces
from gateway.streams import Streams
from gateway.telemetry import CountedPolicy, Telemetry
from tests.contract.walked import REDACTOR, ended, turned_away, walked
from tests.ports.test_telemetry import Oracle, Sink, Visits
from tests.support.otlp import Receiver, receiving, texts

CANARY = "sk-canary-7f3a9c2e51"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


def begun(traces: Traces, passage: Passage) -> Passage:
    """A passage as a traced corridor leaves it: forwarded, answered after 10 ms."""
    passage.span = traces.begin(passage.trace)
    moments = ("identify", "read", "judge", "settle", "record", "forward", "answer")
    passage.left = {room: passage.began + 0.001 * n for n, room in enumerate(moments, 1)}
    passage.committed = passage.sent = True
    return passage


def told(receiver: Receiver, *passages: Passage) -> list[Any]:
    """What arrives of these."""
    export = SpanExport(receiver.traces_url, {"x-key": "k"})
    export.start()
    traces = Traces(export, 1.0)
    for passage in passages:
        traces.concluded(begun(traces, passage), outcome_record(passage, REDACTOR))
    export.close()
    assert export.lost == 0
    return receiver.spans


def test_a_call_is_two_spans_by_the_conventions(receiver: Receiver) -> None:
    """SERVER under the caller's span, CLIENT under that; names, ids, times and attributes as the page says."""
    server, client = told(receiver, ended(walked(arguments={"path": CANARY})))
    assert (server.kind, client.kind) == (2, 3)
    assert server.name == client.name == "tools/call read_file"
    assert server.trace_id.hex() == client.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert server.parent_span_id.hex() == "b7ad6b7169203331"
    assert client.parent_span_id == server.span_id != client.span_id
    assert server.end_time_unix_nano - server.start_time_unix_nano == 12_500_000
    assert client.start_time_unix_nano - server.start_time_unix_nano == pytest.approx(5_000_000, abs=1000)
    assert client.end_time_unix_nano - client.start_time_unix_nano == pytest.approx(2_000_000, abs=1000)
    shared = {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "read_file",
        "mcp.protocol.version": "2026-07-28",
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "network.protocol.version": "1.1",
        "ostiary.server": "readonly",
    }
    assert texts(client) == {**shared, "server.address": "10.0.0.1", "server.port": "8000"}
    assert texts(server) == {
        **shared,
        "jsonrpc.request.id": "7",
        "http.response.status_code": "200",
        "ostiary.decision_id": "d" * 32,
        "ostiary.outcome": "executed",
        "ostiary.policy.revision": "rev-1",
        "ostiary.verdict": "allow",
    }
    assert (server.status.code, client.status.code) == (0, 0)
    assert receiver.headers == ["k"]
    (resource,) = receiver.resources
    assert resource["service.name"] == "ostiary"
    assert resource.keys() == {"service.name", "service.version", "service.instance.id"}


@pytest.mark.parametrize(
    ("outcome", "code", "error"),
    [("tool_error", 0, "tool_error"), ("rpc_error", -32602, "-32602"), ("cancelled", 0, "cancelled")],
)
def test_what_went_wrong_is_the_spans_error(receiver: Receiver, outcome: str, code: int, error: str) -> None:
    """`error.type` and the status; the code where there is one; no word of the server's."""
    passage = ended(walked(), outcome)
    passage.code = code
    for span in told(receiver, passage):
        assert texts(span)["error.type"] == error
        assert texts(span).get("rpc.response.status_code") == (str(code) if code else None)
        assert (span.status.code, span.status.message) == (2, "")


def test_a_refusal_is_one_span_with_the_tables_sentence(receiver: Receiver) -> None:
    """Nothing was forwarded, so there is no client span; `detail` is for the record alone."""
    export = SpanExport(receiver.traces_url, {})
    export.start()
    traces, passage = Traces(export, 1.0), walked()
    passage.span = traces.begin(passage.trace)
    passage.refuse(Refused(Refusal.POLICY_DENIED, CANARY))
    traces.concluded(passage, refusal_record(passage, REDACTOR))
    export.close()
    (span,) = receiver.spans
    assert texts(span)["error.type"] == texts(span)["rpc.response.status_code"] == "40302"
    assert texts(span)["ostiary.reason"] == "policy_denied"
    assert span.status.message == Refusal.POLICY_DENIED.value.sentence
    assert CANARY.encode() not in span.SerializeToString()


def test_names_are_those_that_a_server_offers(receiver: Receiver) -> None:
    """AUD-02, AUD-08: a made-up tool, prompt, method or a URI is nowhere; ten of each are one span name a method."""
    passages = []
    for n in range(10):
        for kind, method in (("tool", "tools/call"), ("prompt", "prompts/get"), ("resource", "resources/read")):
            passage = ended(walked(tool=None), "rpc_error")
            assert passage.call is not None
            passage.call = Call(passage.call.envelope, kind, method, f"{CANARY}{n}", {}, {})
            passages.append(passage)
        passage = ended(walked(tool=None))
        assert passage.call is not None
        passage.call = replace(passage.call, method=f"{CANARY}/{n}", name=None)
        passages.append(passage)
    spans = told(receiver, *passages)
    assert {span.name for span in spans} == {"tools/call", "prompts/get", "resources/read", "_OTHER"}
    assert not [span for span in spans if CANARY.encode() in span.SerializeToString()]


def test_a_prompt_that_was_answered_has_its_name(receiver: Receiver) -> None:
    """The server knows it: it answered with it."""
    passage = ended(walked(tool=None))
    assert passage.call is not None
    passage.call = Call(passage.call.envelope, "prompt", "prompts/get", "greet", {}, {})
    assert {span.name for span in told(receiver, passage)} == {"prompts/get greet"}


def test_a_receiver_that_hangs_delays_nobody_and_losses_are_counted(receiver: Receiver) -> None:
    """Bounded; a call's end waits for nothing; what is lost is in the metrics, and so is what was sent."""
    receiver.hang = threading.Event()
    export = SpanExport(receiver.traces_url, {}, max_waiting=20)
    export.start()
    registry = CollectorRegistry()
    telemetry = Telemetry(registry)
    telemetry.traces = traces = Traces(export, 1.0)
    began = time.perf_counter()
    for _ in range(50):
        passage = begun(traces, ended(walked()))
        telemetry.concluded(passage, outcome_record(passage, REDACTOR))
    assert time.perf_counter() - began < 1.0
    assert (export.waiting, export.lost) == (20, 80)
    receiver.hang.set()
    end = time.monotonic() + 20
    while export.waiting:
        assert time.monotonic() < end
        time.sleep(0.01)
    telemetry.carry_over(Sink(), CountedPolicy(Oracle(), telemetry), Visits(), Streams())
    assert registry.get_sample_value("ostiary_spans_lost_total") == 80
    assert registry.get_sample_value("ostiary_spans_sent_total") == 20
    export.close()


WITHOUT = """
import gateway.app, sys
mine = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto", "google.protobuf", "requests")
print([name for name in sys.modules if name in mine])
"""


def test_without_a_receiver_nothing_of_opentelemetry_is_loaded() -> None:
    """Off is off: neither SDK nor exporter is imported (FastAPI itself imports the bare API)."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_rooms_of_a_request_add_up_to_its_time() -> None:
    """Each room once, in order, wherever it ended; the rest is the room's in which it was refused."""
    whole = begun(Traces(SpanExport("http://127.0.0.1:9/v1/traces", {}), 1.0), ended(walked()))
    assert [room for room, _ in rooms_of(whole)] == [room for room in ROOMS if room != "hold"]
    assert sum(seconds for _, seconds in rooms_of(whole)) == pytest.approx(whole.latency_s)
    refused = turned_away(Refusal.POLICY_DENIED)
    refused.left, refused.latency_s = {"identify": refused.began + 0.25, "read": refused.began + 0.5}, 2.0
    assert list(rooms_of(refused)) == [("identify", 0.25), ("read", 0.25), ("judge", pytest.approx(1.5))]


def test_the_rooms_are_counted_as_a_histogram() -> None:
    """Counted in memory, carried over once: bounded buckets, the exact sum, and nothing twice."""
    registry = CollectorRegistry()
    telemetry = Telemetry(registry)
    for _ in range(3):
        passage = turned_away(Refusal.TOKEN_INVALID)
        passage.latency_s = 0.02
        telemetry.concluded(passage, refusal_record(passage, REDACTOR))
    for _ in range(2):
        telemetry.carry_over(Sink(), CountedPolicy(Oracle(), telemetry), Visits(), Streams())
    here = {"room": "identify"}
    assert registry.get_sample_value("ostiary_room_seconds_count", here) == 3
    assert registry.get_sample_value("ostiary_room_seconds_sum", here) == pytest.approx(0.06)
    at = {
        str(bound): registry.get_sample_value("ostiary_room_seconds_bucket", {**here, "le": str(bound)})
        for bound in BOUNDS
    }
    assert (at["0.01"], at["0.05"], at["30.0"]) == (0, 3, 3)
