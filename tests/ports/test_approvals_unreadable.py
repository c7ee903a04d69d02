"""A ticket that was changed in the database is nobody's approval, and in nobody else's way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from approvals import finding, ledger, running
from approvals.ledger import Ledger
from tests.support.approvals import BOB, Bench, bench, effect

CHANGES = ("bond = x", "expires_at = expires_at - 1", "reasons = '['", "mask = '7'")


@pytest.fixture
async def it(where: Path | str) -> AsyncIterator[Bench]:
    """A desk on a fresh store."""
    async with bench(where) as made:
        yield made


async def change(it: Bench, ticket_id: str, how: str) -> None:
    """Somebody writes the database."""

    async def work(ledger: Ledger) -> None:
        how_ = how.replace("= x", "= substr(bond, 2)")
        await ledger.connection.execute(text(f"UPDATE tickets SET {how_} WHERE id = :id"), {"id": ticket_id})

    await it.store.write(work)


@pytest.mark.parametrize("how", CHANGES)
async def test_a_ticket_that_was_changed_keeps_no_other_one_alive(
    it: Bench, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are overdue expire, also behind more changed ones than a batch holds; the changed ones are told."""
    monkeypatch.setattr(ledger, "BATCH", 1)
    changed = [(await it.held(effect({"amount": n}))).ticket.id for n in (1, 2, 3)]
    it.clock.now += 1
    good = (await it.held(effect({"amount": 4}))).ticket.id
    for ticket_id in changed:
        await change(it, ticket_id, how)
    it.clock.now += 4000
    with capture_logs() as logs:
        assert await it.desk.sweep() == 1
    (told,) = [one for one in logs if one["event"] == "tickets_unreadable"]
    assert (told["tickets"], told["count"]) == (sorted(changed), 3)
    assert [one.ticket.id for one in it.journal.kept if one.verb == "expire"] == [good]
    with capture_logs() as logs:
        assert await it.desk.sweep() == 0
    assert [one["event"] for one in logs] == ["tickets_unreadable"]


async def test_a_use_of_a_changed_ticket_keeps_no_other_one_open(it: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lapsed uses become unknown, whatever was done to the tickets of others."""
    monkeypatch.setattr(finding, "BATCH", 1)
    tickets = [await it.approved(effect({"amount": n})) for n in (1, 2, 3)]
    for n in (1, 2, 3):
        await it.claimed(effect({"amount": n}))
    for ticket_id in tickets[:2]:
        await change(it, ticket_id, "bond = x")
    it.clock.now += 301
    with capture_logs() as logs:
        assert await it.desk.sweep() == 1
    assert (await it.desk.show(BOB, tickets[2]))["runs"][0]["state"] == "unknown"
    assert {one["event"]: one["count"] for one in logs} == {"uses_unreadable": 2}


async def test_a_turn_over_changed_tickets_ends(it: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, one turn passes over a bounded number of them."""
    monkeypatch.setattr(ledger, "BATCH", 1)
    monkeypatch.setattr(running, "MOST_UNREADABLE", 2)
    for n in (1, 2, 3):
        await change(it, (await it.held(effect({"amount": n}))).ticket.id, "bond = x")
    it.clock.now += 4000
    with capture_logs() as logs:
        assert await it.desk.sweep() == 0
    assert [one["count"] for one in logs] == [2]
