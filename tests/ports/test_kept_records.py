"""What the gateway has written down stays what it writes: records and log lines, byte for byte.

`tests/vectors/records` holds a chain and the log's lines of one fixed list of requests. Whoever means to change the
form of a record deletes the files, has this test write them anew, and reads the difference.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from approvals.ticket import Claimed, Held
from gateway import logs
from gateway.audit.jsonl import JsonlSettings, JsonlSink
from gateway.audit.verify import verify_file
from gateway.contract.legacy import Heard
from gateway.contract.passage import Admitted, Envelope, Identity, OpenedState, Passage, Task, Tool, Waits
from gateway.contract.quirks import Quirk
from gateway.contract.record import admin_record, approval_record, decision_record, outcome_record, refusal_record
from gateway.contract.refusals import Refusal, Refused
from gateway.logs import Outlet, RequestLog
from gateway.telemetry import Telemetry
from policies.verdict import Effect, Verdict
from tests.contract.walked import ALLOW, REDACTOR, SCHEMA, SERVER, ended, transition, turned_away, walked

KEPT = Path(__file__).parent.parent / "vectors" / "records"

HOSTILE = 'line\nbreak \x1b[31m \u2028 \u202e \ufeff back\\slash "quote" \ud800 ü 漢 😀 \ue000 \uffff'
TOKEN = "Bearer eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJlLXNpZ25hdHVyZQ"

ARGUMENTS: tuple[Mapping[str, Any], ...] = (
    {},
    {"path": "/srv/report.txt", "limit": 17, "token": "swordfish"},
    {"path": HOSTILE, "limit": 2**63, "": None, "a/b~c": True, HOSTILE.replace("\ud800", ""): 1.5},
    {"inner": {"inner": {"inner": [1, 2.0, -0.0, 1e300, 5e-324, None, False, "x", [], {}]}}},
    {"many": list(range(40)), "limit": {str(n): n for n in range(60)}},
    {f"k{n}": f"v{n}" for n in range(70)},
    {"path": ["".join(chr(97 + (n + m) % 26) for m in range(30)) for n in range(12)], "limit": ["é" * 200] * 16},
)
CLEAR = Verdict(
    Effect.ALLOW, reasons=("readers_read", HOSTILE), clear=("/path", "/limit", "/inner"), mask=("/inner/inner",),
    revision="rev-\n2",
)  # fmt: skip


def requests() -> Iterator[tuple[str, Passage]]:
    """(kind of record, passage) of all that a record can say of a request."""
    for n, arguments in enumerate(ARGUMENTS):
        for verdict in (ALLOW, CLEAR):
            yield "decision", walked(arguments, decision_id=f"{n:032x}", verdict=verdict)
            yield "outcome", ended(walked(arguments, decision_id=f"{n:032x}", verdict=verdict), latency_s=n / 7)
    for request_id in ("7", "a@b.example", "x" * 300, HOSTILE, "6f9619ff-8b86-d011-b42d-00c04fc964ff", 2**60, -1, 0):
        yield "decision", walked(request_id=request_id)
    for name in ("read_file", HOSTILE, TOKEN, "n" * 700, ""):
        yield "decision", walked(name=name)
        yield "decision", walked(name=name, tool=None)
    for uri in ("https://u:p@files.example/a?key=1#x", "file:///etc/passwd", "data:text/plain,secret", HOSTILE):
        passage = walked()
        assert passage.call is not None
        passage.call = replace(passage.call, kind="resource", method="resources/read", name=uri)
        passage.tool = None
        yield "decision", passage
        passage.admitted = Admitted("d", SERVER, Identity("i", "s"), passage.call, b"", ())
        yield "decision", passage
    for latency in (0.0, 1e-7, 0.001, 0.0123456, 1.0, 86400.5, -1.0, 1e12):
        yield "outcome", ended(walked(), latency_s=latency)
    for replica in (
        "",
        "http://10.0.0.1:8000/mcp",
        "https://user:word@10.0.0.1/mcp?key=secret",
        "http://[::1]:1/mcp",
    ):
        passage = ended(walked())
        passage.replica = replica
        yield "outcome", passage
    for outcome, status, code, retries, reason in (
        ("failed", 502, -32603, 2, ""), ("unknown", 0, 0, 0, ""), ("", 200, 0, 0, "too_long"),
        ("cancelled", 200, 0, 1, "gone"),
    ):  # fmt: skip
        passage = ended(walked(), outcome)
        passage.status, passage.code, passage.retries, passage.ended = status, code, retries, reason
        passage.result_digest = b""
        yield "outcome", passage
    refused = ended(walked())
    refused.refused = Refused(Refusal.UPSTREAM_INVALID, f"it said {TOKEN}\n")
    yield "outcome", refused
    yield from unusual()
    for refusal in Refusal:
        yield "refusal", turned_away(refusal, HOSTILE)
        passage = walked()
        passage.refused = Refused(refusal, f"see {TOKEN}")
        yield "refusal", passage


def unusual() -> Iterator[tuple[str, Passage]]:
    """Members that only some records have."""
    passage = walked()
    passage.server = replace(SERVER, past="2025-06-18", environment="")
    passage.identity = Identity("https://idp.example", HOSTILE, "", tenant="acme")
    passage.trace = ((b"traceparent", b"not one"),)
    passage.heard = Heard(None, (Quirk.ACCEPT_JSON_ONLY,))
    passage.key, passage.replay_of, passage.challenge = "key-1", "e" * 32, "error"
    yield "decision", passage
    passage = walked()
    passage.opened_state = OpenedState("s", 2, Claimed("t-1", "u-1"))
    yield "decision", passage
    passage.settled = Claimed("t-2", "u-2", answers=Claimed("t-3", "u-3"))
    yield "decision", passage
    passage = walked()
    passage.waits = Waits("t-4", "e" * 64)
    yield "decision", passage
    passage.opened_state = OpenedState(None, 1, Claimed("t-1", "u-1"), passage.waits)
    yield "outcome", ended(passage)
    passage = walked()
    passage.settled = Held("pending", transition().ticket)
    passage.refused = Refused(Refusal.APPROVAL_REQUIRED, "waits", reasons=["large"])
    yield "refusal", passage
    passage = walked()
    passage.errand = Task("h", "", "read_file", "t-5", "errand-1")
    yield "outcome", ended(passage)
    passage = walked(tool=Tool("read_file", "e" * 64, {}, {"inputSchema": {**SCHEMA, "properties": {HOSTILE: {}}}}))
    passage.envelope = Envelope(b"{}", 7, HOSTILE, {"uri": "file:///x?y", "arguments": {HOSTILE: HOSTILE}}, {})
    passage.call = None
    yield "decision", passage
    passage.envelope = Envelope(b"{}", None, "notifications/x", {"name": 5, "arguments": []}, {})
    yield "decision", passage


def records() -> Iterator[dict[str, Any]]:
    made = {"decision": decision_record, "outcome": outcome_record, "refusal": refusal_record}
    for kind, passage in requests():
        yield made[kind](passage, REDACTOR)
    yield approval_record(transition(HOSTILE), REDACTOR, "d" * 32)
    yield approval_record(transition("tool_changed", by="ostiary", use_id="u-1", leg=1), REDACTOR)
    yield admin_record("started", facts={"a": [1, True, None, HOSTILE], "b": 2**70, "c": 1.5})


def compare(file: str, found: bytes) -> None:
    kept = KEPT / file
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(found)
        pytest.fail(f"{kept} was not there, and was written anew")
    for number, (line, before) in enumerate(zip(found.splitlines(), kept.read_bytes().splitlines(), strict=True), 1):
        assert line == before, f"line {number} of {file}"
    assert found == kept.read_bytes()


async def test_records_on_disk_are_those_that_were_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same requests give the same file, byte for byte: record, redaction, order of members, chain and time."""
    now = 1_700_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    file = tmp_path / "audit.jsonl"
    sink = JsonlSink(JsonlSettings(file, deadline_s=20.0, folded_beyond=10_000))
    await sink.start()
    for number, record in enumerate(records()):
        now += number / 1024
        if number % 50 == 0:
            await sink.append(record)
        else:
            sink.note(record)
    await sink.close()
    assert verify_file(file, 0).whole
    compare("audit.jsonl", file.read_bytes())


def test_log_lines_are_those_that_were_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same requests give the same lines in the log, byte for byte."""
    monkeypatch.setattr(logs, "stamp", lambda: "2026-11-30T12:00:00.000000Z")
    made = {"decision": decision_record, "outcome": outcome_record, "refusal": refusal_record}
    file = tmp_path / "log"
    with file.open("wb") as out:
        telemetry = Telemetry(lines=RequestLog(Outlet(out.fileno())))
        for number, (kind, passage) in enumerate(requests()):
            passage.began = 1000.0
            if number % 3:
                passage.left = {"identify": 1000.001, "read": 1000.002, "judge": 1000.003, "settle": 1000.004}
            if number % 3 == 1 and kind == "outcome":
                passage.left |= {"record": 1000.0051, "forward": 1000.006}
            if number % 2:
                passage.left |= {"answer": 1000.0078} if "forward" in passage.left else {}
            telemetry.concluded(passage, made[kind](passage, REDACTOR))
    compare("log.jsonl", file.read_bytes())
