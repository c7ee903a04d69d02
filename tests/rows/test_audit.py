"""The record of everything: completeness, secrets, injection, tampering, bounded metrics (AUD-01, 02, 04, 05, 08)."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.contract.refusals import Refusal
from tests.rows.asking import encoded, spell, tool
from tests.rows.proof import passes
from tests.rows.stage import House, at_once
from tests.rows.table import METHOD, NAME, ROWS
from tests.rows.test_approvals import change
from tests.rows.test_upstream import DONE, asking_first, body, eliciting, rpc
from tests.support.http_raw import RawClient
from tests.support.stack import body as stack_body
from tests.support.upstream import Exchange

FOLDED_S = 1.1
"""After this long without one, an unknown caller's refusal is a record of its own again (gateway/audit/flood.py)."""

MEMBERS = {
    "kind", "seq", "prev", "hash", "writer", "time", "decision_id", "request_id", "trace_id", "actor", "server",
    "resource", "environment", "replica", "method", "name", "arguments", "verdict", "reasons", "policy_revision",
    "ticket", "status", "code", "latency_ms", "outcome", "arguments_hmac", "result_hmac", "key_id", "count",
}  # fmt: skip


def ended(house: House, decision: str) -> str:
    """The outcome of a call, of which there is exactly one decision and one end."""
    decided, end = house.await_records(decision, "decision", "outcome")
    assert decided.keys() & end.keys() >= MEMBERS
    assert (
        decided["actor"] == end["actor"] == {"issuer": house.stack.issuer.name, "subject": "alice", "client": "tests"}
    )
    assert decided["verdict"] in ("allow", "approve")
    assert decided["policy_revision"] == end["policy_revision"] != ""
    assert decided["resource"] == house.stack.endpoint("odd")
    assert decided["arguments_hmac"]
    assert decided["seq"] < end["seq"]
    outcome: str = end["outcome"]
    # Of a call that was given up before an answer's head, nobody was told which replica had it.
    assert outcome == "cancelled" or str(end["replica"]).startswith("http://127.0.0.1:")
    return outcome


async def _hang(exchange: Exchange) -> None:
    await exchange.gone(20)


OUTCOMES: dict[str, Any] = {
    "executed": body(lambda i: rpc(i, result=DONE)),
    "tool_error": body(lambda i: rpc(i, result={**DONE, "isError": True})),
    "rpc_error": body(lambda i: rpc(i, error={"code": -32602, "message": "no"})),
    "input_required": asking_first,
    "unknown": _hang,
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_call_is_one_decision_and_one_end(house: House, outcome: str) -> None:
    """AUD-01: each outcome, plain and approved; who, what, by which revision, on which replica."""
    message = eliciting(arguments={"outcome": outcome})
    with house.behind["odd"][0].playing(OUTCOMES[outcome]):
        answer = house.ask(house.good(message, "odd"))
    assert ended(house, answer.values("ostiary-decision")[0]) == outcome
    gated = eliciting("write", arguments={"outcome": outcome, **change()["params"]["arguments"]})
    ticket = house.approved("odd", gated)
    with house.behind["odd"][0].playing(OUTCOMES[outcome]):
        answer = house.call("odd", gated)
    decision = answer.values("ostiary-decision")[0]
    assert ended(house, decision) == outcome
    assert {record["ticket"] for record in house.records_of(decision)} == {ticket}


def test_a_client_that_leaves_is_one_decision_and_one_end(house: House) -> None:
    """AUD-01, UPS-09: `cancelled`, and the use of an approval is unknown."""
    here = threading.Event()

    async def slow(exchange: Exchange) -> None:
        here.set()
        await exchange.gone(20)

    gated = change()
    ticket = house.approved("odd", gated)
    with house.behind["odd"][0].playing(slow), RawClient(house.address, 30) as client:
        client.send(house.good(gated, "odd").encode())
        assert here.wait(20)
    passes(house)
    (decision,) = [one for one in house.records() if one["kind"] == "decision" and one["ticket"] == ticket]
    assert ended(house, decision["decision_id"]) == "cancelled"
    assert house.call("odd", gated).json()["error"]["code"] == 40304


@pytest.mark.provokes(Refusal.CLIENT_GONE)
def test_a_client_that_leaves_before_its_decision_is_one_refusal(house: House) -> None:
    """AUD-01: whoever goes away inside the body is not served, and is in the record as far as they were known."""
    passes(house, house.good(server="odd"))
    before, earlier = len(house.forwarded()), len(_gone(house))
    with RawClient(house.address, 30) as client:
        client.send(house.good(server="odd").encode()[:-1])
    limit = time.monotonic() + 20
    while len(_gone(house)) == earlier:
        assert time.monotonic() < limit
        time.sleep(0.01)
    passes(house)
    (record,) = _gone(house)[earlier:]
    assert (record["kind"], record["status"], record["code"]) == ("refusal", 499, 49901)
    assert (record["server"], record["actor"]["subject"], record["name"], record["count"]) == (
        "odd",
        "alice",
        None,
        1,
    )
    assert [one["kind"] for one in house.records_of(record["decision_id"])] == ["refusal"]
    assert len(house.forwarded()) == before + 1


def _gone(house: House) -> list[dict[str, Any]]:
    return [one for one in house.records() if one["reasons"][:1] == ["client_gone"]]


def test_every_refusal_of_the_table_is_exactly_one_record(house: House) -> None:
    """AUD-01, RPC-07, as a matrix in one go: N refusals are N records of as many decisions, and nothing else."""
    passes(house)
    time.sleep(FOLDED_S)  # a flood of another test's: what belongs to its second is written together
    start = len(house.records())
    told: dict[str, Refusal] = {}
    chosen = {
        row.refusal: row for rows in ROWS.values() for row in rows if row.refusal is not Refusal.REQUEST_TIMEOUT
    }
    assert len(chosen) > 18
    for refusal, row in chosen.items():
        answer = house.ask(row.change(house.good(row.message)))
        told[answer.values("ostiary-decision")[0]] = refusal
    passes(house)
    new = [one for one in house.records()[start:] if one["kind"] == "refusal"]
    assert {one["decision_id"]: one["reasons"][0] for one in new} == {
        decision: refusal.reason for decision, refusal in told.items()
    }
    assert len(new) == len(told)
    assert all(one.keys() >= MEMBERS for one in new)


def test_the_search_for_secrets_finds_what_is_there(house: House) -> None:
    """AUD-02: a planted word that does stand in the record is found; so the others, looked for all along, do not."""
    passes(house)
    assert len(house.secrets) > 5
    text = b"".join(file.read_bytes() for file in [*house.audit_files, house.stack.folder / "gateway.log"])
    assert b"alice" in text
    assert b"tools/call" in text
    house.secrets.add(b"tools/call")
    try:
        assert house.planted_in(text) == [b"tools/call"]
    finally:
        house.secrets.discard(b"tools/call")


def test_values_are_kept_as_keyed_hmacs_only(house: House) -> None:
    """AUD-02: argument values, equal ones as equal tags, never in clear and never as a plain hash."""

    def shape(value: str) -> dict[str, Any]:
        answer = passes(house, house.good(tool("read", path=value, other=value + "x")))
        record = house.await_records(answer.values("ostiary-decision")[0], "decision", "outcome")[0]
        text = json.dumps(record)
        assert value not in text
        assert hashlib.sha256(value.encode()).hexdigest()[:16] not in text
        found: dict[str, Any] = record["arguments"]
        return found

    one, again, other = shape("planted-value-1"), shape("planted-value-1"), shape("planted-value-2")
    assert one == again
    assert one != other
    assert all(leaf["type"] == "string" for leaf in one.values())


HOSTILE = 'tool\r\n{"kind":"forged"}\x1b[2J\u2028\u202e\x00\\u0041'


def test_a_record_is_one_line_whatever_a_caller_writes(house: House) -> None:
    """AUD-04: line breaks, ANSI, U+2028, bidi in a tool's name, in a method, in an id, in a User-Agent, in a kid."""
    asks = [
        house.good(tool(HOSTILE)).line(NAME, encoded(HOSTILE)),
        house.good(tool("read", HOSTILE)),
        house.good(tool("read")).edit(lambda m: m.update(method=HOSTILE)),
        house.good().line(b"User-Agent", b"x\x1b[2J"),
        house.good().line(b"User-Agent", "\u202e".encode()),
        house.good(token=house.plant(house.stack.issuer.mint("x", header={"kid": HOSTILE}))),
        house.good().line(METHOD, b"tools/call\x1b[2J"),
    ]
    for ask in asks:
        house.ask(ask)
    passes(house)
    for file in [*house.audit_files, house.stack.folder / "gateway.log"]:
        raw = file.read_bytes()
        assert b'forged":' not in raw
        assert not [char for char in (b"\x1b", b"\0", b"\r", "\u2028".encode(), "\u202e".encode()) if char in raw]
        for line in raw.splitlines():
            record = json.loads(line)
            assert record.get("kind") != "forged"
            assert not [char for char in "\x1b\0\r\n\u2028\u202e" if char in json.dumps(record, ensure_ascii=False)]
    verified = house.ostiary("audit", "verify", "--config", str(house.stack.config))
    assert verified.returncode == 0, verified.stdout + verified.stderr


def _flip(lines: list[bytes]) -> list[bytes]:
    at = lines[4].index(b'"time":"2') + 8
    return [*lines[:4], lines[4][:at] + b"3" + lines[4][at + 1 :], *lines[5:]]


TAMPERED: dict[str, tuple[Any, int]] = {
    "a byte flipped": (_flip, 5),
    "one deleted": (lambda lines: lines[:4] + lines[5:], 5),
    "two swapped": (lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]], 5),
    "one twice": (lambda lines: [*lines[:5], lines[4], *lines[5:]], 6),
    "the head cut off": (lambda lines: lines[3:], 1),
    "a line that is none": (lambda lines: [*lines[:4], b"{}\n", *lines[4:]], 5),
    "a blank line": (lambda lines: [*lines[:4], b"\n", *lines[4:]], 5),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_found_at_its_place(house: House, tmp_path: Path, name: str) -> None:
    """AUD-05: `ostiary audit verify` exits 1 and names the first bad record; of the untouched copy it says whole."""
    for _ in range(6):
        house.await_records(passes(house).values("ostiary-decision")[0], "decision", "outcome")
    lines = (house.stack.folder / "audit.jsonl").read_bytes().splitlines(keepends=True)[:12]
    assert len(lines) > 8
    change_of, seq = TAMPERED[name]
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_bytes(b"".join(lines))
    bad.write_bytes(b"".join(change_of(lines)))
    found = house.ostiary("audit", "verify", "--json", "--file", str(good), "--file", str(bad))
    assert found.returncode == 1, found.stdout + found.stderr
    reports = [json.loads(line) for line in found.stdout.splitlines()]
    whole, broken = sorted(reports, key=lambda report: "bad" in str(report))
    assert "bad.jsonl" not in str(whole)
    told = json.dumps(broken)
    assert str(seq) in told, told


def test_tail_shows_what_was_written_last(house: House) -> None:
    """`ostiary audit tail` prints one line a record, of the last ones."""
    decision = passes(house).values("ostiary-decision")[0]
    house.await_records(decision, "decision", "outcome")
    shown = house.ostiary("audit", "tail", "--config", str(house.stack.config), "--json", "-n", "20")
    assert shown.returncode == 0, shown.stderr
    assert decision in shown.stdout
    assert not house.planted_in(shown.stdout.encode())


def test_a_flood_of_strangers_is_counted_to_the_last(house: House) -> None:
    """design.md: unauthenticated refusals beyond a rate fold into records with a count; none is lost or twice."""
    passes(house)
    house.records()
    start, asks = len(house.records()), 600
    lost = house.good().line(b"Authorization").encode()

    def hammer(_: int) -> list[int]:
        with RawClient(house.address, 60) as client:
            return [client.ask(lost).status for _ in range(asks // 4)]

    assert at_once(4, hammer) == [[401] * (asks // 4)] * 4
    end = time.monotonic() + 20
    while True:
        passes(house)
        refusals = [one for one in house.records()[start:] if one["kind"] == "refusal"]
        # An earlier test's folded refusals may still come; they have reasons of their own.
        found = [one for one in refusals if one["reasons"] == ["token_missing"]]
        if sum(one["count"] for one in found) >= asks or time.monotonic() > end:
            break
        time.sleep(0.1)
    assert sum(one["count"] for one in found) == asks
    time.sleep(1.1)  # the second in which strangers' refusals are folded is over: the next test's are records again


def test_a_known_callers_flood_is_counted_to_the_last_under_its_name(house: House) -> None:
    """AUD-01: malformed requests beyond a rate share records of their caller and kind, and lines of the log; each is
    counted in the metrics, and what the same caller is refused for otherwise meanwhile has its own record."""
    passes(house)
    start, logged, asks = len(house.records()), len(house.stack.log()), 600
    counted = sum_of(house, "header_mismatch")
    wrong = house.good().line(b"Mcp-Name", b"another").encode()
    vain = house.good().line(b"Mcp-Protocol-Version", b"another").encode()

    def hammer(_: int) -> list[int]:
        with RawClient(house.address, 60) as client:
            return [client.ask(wrong).status for _ in range(asks // 4)] + [client.ask(vain).status]

    assert at_once(4, hammer) == [[400] * (asks // 4 + 1)] * 4
    end = time.monotonic() + 20
    detail = "Mcp-Name header does not equal the body's value"
    while True:
        refusals = [one for one in house.records()[start:] if one["kind"] == "refusal"]
        found = [one for one in refusals if one["detail"] == detail]
        others = [one for one in refusals if one["actor"] and one["detail"] != detail]
        told = sum(one["count"] for one in found), sum(one["count"] for one in others)
        if told >= (asks, 4) or time.monotonic() > end:
            break
        time.sleep(0.1)
    assert told == (asks, 4)
    assert {json.dumps([one["actor"], one["server"], one["code"], one["reasons"]]) for one in found} == {
        json.dumps([found[0]["actor"], found[0]["server"], -32020, ["header_mismatch"]])
    }
    assert found[0]["actor"]["subject"]
    shared = [one for one in found if one["count"] > 1]
    assert all(one["first"] <= one["last"] <= one["time"] for one in shared)
    lines = [json.loads(line) for line in house.stack.log()[logged:].splitlines() if line.endswith("}")]
    mine = [line for line in lines if line.get("event") == "request" and line.get("detail") == detail]
    assert sum(line.get("count", 1) for line in mine) == asks
    assert len(mine) == len(found)
    assert sum_of(house, "header_mismatch") - counted == asks + 4
    verified = house.ostiary("audit", "verify", "--config", str(house.stack.config))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    if shared:  # a machine that is slow enough has no second with more than 200
        told_of = house.ostiary("explain", "--config", str(house.stack.config), shared[0]["decision_id"])
        assert f", {shared[0]['count']} times from {shared[0]['first']}" in told_of.stdout, told_of.stdout
        searched = house.ostiary(
            "audit", "search", "--config", str(house.stack.config), "--reason", "header_mismatch", "--json",
            "--who", shared[0]["actor"]["subject"],
        )  # fmt: skip
        assert shared[0]["hash"] in searched.stdout


def sum_of(house: House, reason: str) -> float:
    """How many requests the metrics count that ended so."""
    return sum(
        float(line.rpartition(" ")[2])
        for line in house.metrics().splitlines()
        if line.startswith("ostiary_requests_total{") and f'reason="{reason}"' in line
    )


def series(house: House) -> set[str]:
    """The names and labels of every time series."""
    return {line.rpartition(" ")[0] for line in house.metrics().splitlines() if not line.startswith("#")}


def test_strangers_make_no_new_metrics(house: House) -> None:
    """AUD-08, small: 500 made-up methods, names, key ids and paths add at most 50 series, of `other`."""
    passes(house)
    before = series(house)
    for number in range(125):
        word = f"made-up-{number}-{os.urandom(3).hex()}"
        for ask in (
            house.good(tool(word)),
            replace(house.good(), body=spell(stack_body(word))).line(METHOD, word.encode()),
            house.good(token=house.plant(house.stack.issuer.mint("x", header={"kid": word}))),
        ):
            assert house.ask(ask).status in (401, 403, 404)
        lost = house.good().encode().replace(b"/plain/mcp", f"/{word}".encode(), 1)
        assert house.ask(lost).status == 404
    new = series(house) - before
    assert len(new) <= 50
    assert not [one for one in new if "made-up" in one]
    assert [one for one in before | new if 'method="other"' in one]
