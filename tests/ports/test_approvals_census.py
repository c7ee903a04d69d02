"""How many tickets wait, may be used or are unclear, on both databases: what `ostiary_tickets` shows."""

from __future__ import annotations

from pathlib import Path

from approvals.census import census
from approvals.ticket import Run
from tests.support.approvals import BOB, bench, effect


async def test_tickets_are_counted_by_what_is_to_be_done_about_them(where: Path | str) -> None:
    """Pending, approved, and uses whose end nobody knows until a person says; what is settled is in no count."""
    async with bench(where) as it:
        assert await census(it.store) == {"pending": 0, "approved": 0, "unclear": 0}
        await it.held(effect({"n": 1}))
        await it.held(effect({"n": 2}))
        await it.approved(effect({"n": 3}))
        denied = (await it.held(effect({"n": 4}))).ticket.id
        await it.desk.act("deny", BOB, denied)
        unclear = await it.approved(effect({"n": 5}))
        use = await it.claimed(effect({"n": 5}))
        await it.desk.sent(use)
        await it.desk.finish(use, Run.UNKNOWN)
        assert await census(it.store) == {"pending": 2, "approved": 1, "unclear": 1}
        await it.desk.act("resolve", BOB, unclear, comment="it happened")
        assert await census(it.store) == {"pending": 2, "approved": 1, "unclear": 0}
