"""AUD-01 in a flood: each refusal is counted in exactly one record, and nobody's flood hides anybody's refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.audit.commits import GroupCommit
from gateway.audit.flood import ACTORS_KINDS, ALL_KINDS, ALL_TIMES, MOST_ACTORS, STRANGERS_KINDS, Flood
from gateway.contract.folding import Kind, kind_of
from gateway.contract.passage import Passage
from gateway.contract.record import refusal_record
from gateway.contract.refusals import Refusal, Refused
from tests.contract.walked import REDACTOR, SERVER, malformed, turned_away
from tests.ports.test_audit import opened, outcome, records_of, whole

NOW = 1_764_000_000.25


class Told:
    """A flood as the sink drives it, at times that the test gives."""

    def __init__(self, beyond: int) -> None:
        self.now = NOW
        self.flood = Flood(beyond, lambda: self.now)
        self.alone: list[Mapping[str, Any]] = []

    def tell(self, passage: Passage, at: float = 100.0) -> bool:
        """A refusal at that second of the loop's clock -> whether it was folded."""
        kind = kind_of(passage)
        assert kind is not None
        taken = self.flood.takes(kind, lambda: refusal_record(passage, REDACTOR), at)
        if not taken:
            self.alone.append(refusal_record(passage, REDACTOR))
        return taken


def note(sink: GroupCommit, passage: Passage) -> None:
    """As the corridor does it."""
    kind = kind_of(passage)
    if kind is None or not sink.fold(kind, lambda: refusal_record(passage, REDACTOR)):
        sink.note(refusal_record(passage, REDACTOR))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def refusals_of(file: Path) -> list[dict[str, Any]]:
    return [record for record in records_of(file) if record["kind"] == "refusal"]


def test_a_shared_record_says_who_where_why_how_often_and_when() -> None:
    """Issuer, subject, client, server, code, count, first and last time; what was one request's own is left out."""
    told = Told(beyond=2)
    for nth in range(10):
        told.tell(malformed(request_id=nth, decision_id=f"{nth:032x}"))
        told.now += 0.125
    assert [record["request_id"] for record in told.alone] == [0, 1]
    (shared,) = told.flood.unfold()
    assert (shared["count"], shared["first"], shared["last"]) == (
        8, "2025-11-24T16:00:00.500Z", "2025-11-24T16:00:01.375Z",
    )  # fmt: skip
    alone = told.alone[0]
    for name in (
        "kind",
        "actor",
        "server",
        "resource",
        "environment",
        "method",
        "reasons",
        "status",
        "code",
        "detail",
    ):
        assert shared[name] == alone[name], name
        assert alone[name], name
    assert shared["decision_id"] == f"{2:032x}", "that of the first: who asks about it finds the others"
    assert [shared[name] for name in ("request_id", "trace_id", "name", "arguments", "arguments_hmac")] == [None] * 5
    assert told.flood.folded == 8
    assert told.flood.unfold() == []


def test_a_flood_leaves_everybody_else_alone() -> None:
    """Who is below the rate has a record of each refusal, whole, whatever others send."""
    told = Told(beyond=5)
    for nth in range(500):
        told.tell(malformed(request_id=nth))
        if nth % 100 == 0:
            assert not told.tell(malformed(subject="bob", request_id=f"bob-{nth}"))
            assert not told.tell(turned_away())
    bobs = [record for record in told.alone if (record["actor"] or {}).get("subject") == "bob"]
    assert [record["request_id"] for record in bobs] == [f"bob-{nth}" for nth in range(0, 500, 100)]
    (shared,) = told.flood.unfold()
    assert (shared["actor"]["subject"], shared["count"]) == ("alice", 495)


def test_a_flood_does_not_hide_its_own_callers_other_refusals() -> None:
    """Of another kind, what came once stands whole, and what came more often has a record and a count of its own."""
    told = Told(beyond=1)
    for nth in range(300):
        told.tell(malformed(request_id=nth))
    told.tell(malformed(Refusal.BODY_AMBIGUOUS, "twice", request_id="once"))
    for nth in range(3):
        told.tell(malformed(Refusal.META_MISSING, "no version", request_id=nth))
    records = {record["reasons"][0]: record for record in told.flood.unfold()}
    assert {reason: record["count"] for reason, record in records.items()} == {
        "header_mismatch": 299,
        "body_ambiguous": 1,
        "meta_missing": 3,
    }
    own = refusal_record(malformed(Refusal.BODY_AMBIGUOUS, "twice", request_id="once"), REDACTOR)
    assert records["body_ambiguous"] == own


def test_the_rate_is_of_a_second() -> None:
    """Below it nothing is folded, for however long; the next second begins anew."""
    told = Told(beyond=3)
    for second in range(10):
        for _ in range(3):
            assert not told.tell(malformed(), 100.0 + second)
        assert told.tell(malformed(), 100.5 + second)
    assert [record["count"] for record in told.flood.unfold()] == [10]


def test_one_callers_kinds_are_bounded_and_its_last_record_names_the_reasons() -> None:
    """Whoever makes up ever other details fills a bounded number of records, all of them under that name."""
    told = Told(beyond=0)
    for nth in range(500):
        told.tell(malformed(detail=f"detail {nth}"))
    told.tell(malformed(Refusal.META_MISSING))
    told.tell(malformed(subject="bob"))
    records = told.flood.unfold()
    assert len(records) == ACTORS_KINDS + 2
    assert [record["count"] for record in records if record["actor"]["subject"] == "bob"] == [1]
    (last,) = [record for record in records if record["count"] > 1]
    assert (last["count"], last["actor"]["subject"]) == (501 - ACTORS_KINDS, "alice")
    assert last["reasons"] == ["header_mismatch", "meta_missing"]
    assert (last["server"], last["code"], last["method"], last["detail"]) == (None, None, None, None)


def test_a_callers_last_record_claims_no_servers_revision() -> None:
    """What is of several servers does not say the first one's earlier revision."""
    told, passage = Told(beyond=0), malformed()
    passage.server = replace(SERVER, name="older", past="2025-06-18")
    for nth in range(2 * ACTORS_KINDS):
        assert passage.refused is not None
        passage.refused = Refused(Refusal.HEADER_MISMATCH, f"detail {nth}")
        told.tell(passage)
    *alone, last = told.flood.unfold()
    assert {record["upstream_revision"] for record in alone} == {"2025-06-18"}
    assert (last["count"], last["server"], last.get("upstream_revision")) == (ACTORS_KINDS, None, None)


def test_strangers_kinds_are_bounded() -> None:
    """What nobody is known for is told apart by server, reason and detail, as far as there is room."""
    told = Told(beyond=0)
    for nth in range(2000):
        told.tell(turned_away(Refusal.TOKEN_INVALID if nth % 2 else Refusal.TOKEN_MISSING, f"{nth % 1000}"))
    records = told.flood.unfold()
    assert len(records) == STRANGERS_KINDS + 1
    assert sum(record["count"] for record in records) == 2000
    assert sorted({record["count"] for record in records}) == [2, 2000 - 2 * STRANGERS_KINDS]
    assert records[-1]["reasons"] == ["token_missing", "token_invalid"]


def test_so_many_callers_that_no_room_is_left_are_counted_in_the_last_record() -> None:
    """Memory is bounded: what exceeds it falls into one record, which says how many callers were in it."""
    told, callers = Told(beyond=0), ALL_KINDS + 700
    for nth in range(2 * callers):
        told.tell(malformed(subject=f"user-{nth % callers}"))
    for nth in range(10):
        told.tell(turned_away(detail=str(nth)))
    records = told.flood.unfold()
    assert len(records) == ALL_KINDS + 1 + 10, "strangers have a room of their own"
    (last,) = [record for record in records if "actors" in record]
    assert (last["actors"], last["count"], last["actor"], last["reasons"]) == (700, 1400, None, ["header_mismatch"])
    assert sum(record["count"] for record in records) == 2 * callers + 10
    assert {record["count"] for record in records if record["actor"]} == {2}
    told.tell(malformed())
    assert len(told.flood.unfold()) == 1, "the next second has room again"


def test_callers_beyond_those_that_can_be_counted_are_folded_at_once() -> None:
    """So many in a second that their rates can't be kept apart: each is told by name as long as there is room."""
    told = Told(beyond=MOST_ACTORS)
    for nth in range(MOST_ACTORS):
        assert not told.tell(malformed(subject=f"user-{nth}"))
    assert told.tell(malformed(subject="one more", request_id="whole"))
    assert not told.tell(malformed(subject="user-0")), "who is counted has a rate still"
    (record,) = told.flood.unfold()
    assert (record["actor"]["subject"], record["request_id"], record["count"]) == ("one more", "whole", 1)


def test_many_floods_at_once_write_a_bounded_number_of_records() -> None:
    """Beyond ten times the rate, of whomever, all is folded by caller and kind; what came once stands whole."""
    told = Told(beyond=10)
    for nth in range(1000):
        told.tell(malformed(subject=f"user-{nth % 100}"))
    assert len(told.alone) == 10 * ALL_TIMES
    assert told.tell(malformed(subject="bob", request_id="bobs"))
    *others, bobs = told.flood.unfold()
    assert (bobs["count"], bobs["request_id"]) == (1, "bobs")
    assert len(others) == 100
    assert sum(record["count"] for record in others) + len(told.alone) == 1000


async def test_a_flood_is_in_the_record_and_told_within_a_second(file: Path) -> None:
    """The sink writes what was folded by itself, tells of it, and closes with nothing left; its chain verifies."""
    sink, said, both = await opened(file, folded_beyond=0), [], asyncio.Event()

    def hear(record: Mapping[str, Any]) -> None:
        said.append(record["count"])
        if len(said) == 2:
            both.set()

    sink.told = hear
    for nth in range(500):
        note(sink, turned_away(decision_id=f"{nth:032x}"))
        note(sink, malformed(decision_id=f"{nth + 500:032x}"))
    assert sink.folded == 1000
    async with asyncio.timeout(20):
        await both.wait()
    for _ in range(3):
        note(sink, malformed())
    assert said == [500, 500]
    await sink.close()
    assert said == [500, 500, 3]
    found = refusals_of(file)
    assert [(record["count"], record["actor"] is None) for record in found] == [(500, True), (500, False), (3, False)]
    whole(file)


async def test_a_fold_that_finds_no_room_is_lost_with_all_that_it_counts(file: Path) -> None:
    """What is told as lost is the number of refusals, not that of the records that would have held them."""
    sink = await opened(file, folded_beyond=0, max_notes=1)
    for _ in range(500):
        note(sink, turned_away())
    sink.note(outcome(1))  # takes the only place
    await sink.close()
    assert sink.lost == 500


async def test_what_strangers_share_fills_no_more_than_their_half_of_the_room(file: Path) -> None:
    """While nothing can be written, kinds that strangers make up leave the other half to what became of calls."""
    sink = await opened(file, folded_beyond=0, max_notes=40)
    for nth in range(100):
        note(sink, turned_away(detail=f"detail {nth % 50}"))
    sink._unfold()
    assert sink.lost == 60, "thirty of fifty kinds, each of two"
    for nth in range(20):
        sink.note(outcome(nth))
    assert sink.lost == 60
    await sink.close()
    assert len(refusals_of(file)) == 20
    whole(file)


def test_lengths_of_a_strangers_choice_hide_no_other_stranger() -> None:
    """A thousand heads that are too long are one kind, whose record claims none of their lengths."""
    told = Told(beyond=0)
    for nth in range(1000):
        told.tell(turned_away(Refusal.HEAD_TOO_LARGE, f"{70_000 + nth} bytes"))
    for _ in range(3):
        told.tell(turned_away(Refusal.TOKEN_INVALID, "the token is expired"))
    large, expired = told.flood.unfold()
    assert (large["reasons"], large["count"], large["detail"]) == (["head_too_large"], 1000, None)
    assert (expired["server"], expired["count"], expired["detail"]) == ("readonly", 3, "the token is expired")


def test_a_ticket_that_one_stranger_named_is_not_said_to_be_all_the_others() -> None:
    """Without a token anybody may name any ticket at the approvals API: a shared record names none."""
    told, passage = Told(beyond=0), turned_away()
    assert (kind := kind_of(passage)) is not None
    for ticket in ("ticket-1", "ticket-2"):
        record = refusal_record(passage, REDACTOR) | {"ticket": ticket}
        assert told.flood.takes(kind, lambda made=record: made, 100.0)  # type: ignore[misc]
    (shared,) = told.flood.unfold()
    assert (shared["count"], shared["ticket"]) == (2, None)
    assert told.flood.takes(kind, lambda: record, 100.0)
    assert told.flood.unfold() == [record], "what came once is told whole"


async def test_a_sink_that_does_not_run_folds_nothing(file: Path) -> None:
    """Before its start and after its end nobody would ever unfold it: it is counted as lost at once."""
    sink = await opened(file, folded_beyond=0)
    await sink.close()
    note(sink, turned_away())
    assert (sink.lost, sink.folded) == (1, 0)


def test_a_kind_is_no_other_than_the_last_one() -> None:
    """The records that take what has no room are marked by an empty reason, which no refusal has."""
    assert all(Kind(None, "", refusal.reason, "").reason for refusal in Refusal)
