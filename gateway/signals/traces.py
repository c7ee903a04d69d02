"""OpenTelemetry traces, without OpenTelemetry: which requests have spans, and what stands in them.

Two spans a request, by the semantic conventions for MCP: `SERVER` of what came, `CLIENT` of what was forwarded for
it. Only a request whose caller is known and whose body could be read has any: strangers make no spans. No argument,
token, URI or made-up name has a way in (row AUD-02): names are those of methods and of what a server offers. What
sends them (gateway/signals/span_export.py) is loaded where `telemetry.traces.endpoint` is set, and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from gateway.contract.headers import METHODS, PROTOCOL_VERSION
from gateway.contract.passage import Passage
from gateway.contract.printable import printable
from gateway.contract.tracing import Lines, Span, begin_span
from gateway.signals.durations import OWN_ANSWERS

MAX_NAME: Final = 128
_KNOWN_TO_ITS_SERVER: Final = frozenset({"executed", "input_required", "task"})
_WELL: Final = _KNOWN_TO_ITS_SERVER | OWN_ANSWERS


@dataclass(frozen=True, slots=True)
class Ended:
    """One span that has ended: times in nanoseconds since the epoch, ids in hex, `failure` as the status tells it."""

    client: bool
    name: str
    trace_id: str
    span_id: str
    parent: str
    began: int
    ended: int
    attributes: Mapping[str, str | int]
    failed: bool
    failure: str = ""


class Spans(Protocol):
    """Who takes spans away."""

    sent: int
    lost: int

    @property
    def waiting(self) -> int:
        """Spans that the receiver does not have yet."""
        ...

    def take(self, items: Sequence[Ended]) -> None:
        """Must not block."""
        ...


class Traces:
    """Begins a request's spans and tells of them when it has ended."""

    def __init__(self, spans: Spans, sample: float) -> None:
        """`sample`: the share of traces that begin here and are exported, 0 to 1; a caller's own flag is kept."""
        self.spans = spans
        self._sample = sample

    def begin(self, came: Lines) -> Span:
        """The ids of a request's spans. `came`: the caller's valid trace, as header lines."""
        return begin_span(came, os.urandom(32), self._sample)

    def concluded(self, passage: Passage, record: Mapping[str, Any]) -> None:
        """A request has ended; `record` is its last one. Must not block."""
        span = passage.span
        if span is not None and span.sampled and passage.call is not None:
            self.spans.take(ended_spans(span, passage, record))


def ended_spans(span: Span, passage: Passage, record: Mapping[str, Any]) -> list[Ended]:
    """The spans of a request that has ended: the server's and, where something was forwarded, the client's."""
    began, latency = int(passage.time * 1e9), int(passage.latency_s * 1e9)
    shared = _shared(passage)
    name = " ".join(
        str(shared[key]) for key in ("mcp.method.name", "gen_ai.tool.name", "gen_ai.prompt.name") if key in shared
    )
    kind, why = _failure(passage)
    failed = {"error.type": kind} if kind else {}
    if passage.code:
        failed["rpc.response.status_code"] = str(passage.code)
    heard = passage.spoken.version if passage.spoken is not None else PROTOCOL_VERSION
    own = {**shared, **_own(passage, record), "mcp.protocol.version": heard, **failed}
    spans = [
        Ended(False, name, span.trace_id, span.server, span.parent, began, began + latency, own, bool(kind), why)
    ]
    left = passage.left
    if "record" in left and passage.outcome and passage.outcome not in OWN_ANSWERS:
        sent = began + int((left["record"] - passage.began) * 1e9)
        until = began + int((left["answer"] - passage.began) * 1e9) if "answer" in left else began + latency
        past = passage.server.past if passage.server is not None else ""
        there = {**shared, **_replica(passage.replica), "mcp.protocol.version": past or PROTOCOL_VERSION, **failed}
        spans.append(Ended(True, name, span.trace_id, span.client, span.server, sent, until, there, bool(kind), why))
    return spans


def _shared(passage: Passage) -> dict[str, str | int]:
    """What is asked for. A tool's name is one that its server lists, a prompt's one that its server answered to."""
    call, server = passage.call, passage.server
    method = call.method if call is not None else ""
    known = method in METHODS or (server is not None and method in server.methods)
    found: dict[str, str | int] = {
        "mcp.method.name": method if known else "_OTHER",
        "network.transport": "tcp",
        "network.protocol.name": "http",
        "network.protocol.version": "1.1",
    }
    if server is not None:
        found["ostiary.server"] = server.name
    if method == "tools/call":
        found["gen_ai.operation.name"] = "execute_tool"
    if passage.tool is not None:
        found["gen_ai.tool.name"] = printable(passage.tool.name, MAX_NAME)
    elif call is not None and call.kind == "prompt" and passage.outcome in _KNOWN_TO_ITS_SERVER:
        found["gen_ai.prompt.name"] = printable(str(call.name), MAX_NAME)
    return found


def _own(passage: Passage, record: Mapping[str, Any]) -> dict[str, str | int]:
    """What the gateway made of it. Ids and revisions are the record's own words, redacted where it redacts them."""
    found: dict[str, str | int] = {"ostiary.decision_id": passage.decision_id}
    for name, member in (
        ("jsonrpc.request.id", "request_id"), ("ostiary.verdict", "verdict"), ("ostiary.ticket", "ticket"),
        ("ostiary.policy.revision", "policy_revision"),
    ):  # fmt: skip
        if record.get(member) is not None:
            found[name] = str(record[member])
    if passage.status:
        found["http.response.status_code"] = passage.status
    if passage.outcome:
        found["ostiary.outcome"] = passage.outcome
    if passage.refused is not None:
        found["ostiary.reason"] = passage.refused.refusal.reason
    return found


def _failure(passage: Passage) -> tuple[str, str]:
    """`error.type` (empty: it went well) and the status' text: the table's sentence, never a server's words."""
    if passage.refused is not None:
        return str(passage.code or passage.refused.refusal.value.code), passage.refused.refusal.value.sentence
    if passage.code:
        return str(passage.code), ""
    return ("", "") if passage.outcome in _WELL else (passage.outcome or "_OTHER", "")


def _replica(url: str) -> dict[str, str | int]:
    """Where it went: configured, and without what its URL may hold besides."""
    parts = urlsplit(url)
    if not parts.hostname:
        return {}
    return {"server.address": parts.hostname, "server.port": parts.port or (443 if parts.scheme == "https" else 80)}
