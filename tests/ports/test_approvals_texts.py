"""What strangers write and a database may not take: the same word on both databases, never `unavailable`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from approvals.sieve import Sieve
from approvals.ticket import State, Unapprovable
from approvals.visits import Entry, Visits
from gateway.contract.identity import MEMBER_BYTES
from tests.support.approvals import ALICE, BOB, SCOPES, TERMS, bench, effect, person

NUL = "a\0b"
LONG_ISSUER = "https://" + "i" * 500 + ".example"


async def test_a_name_that_a_database_can_not_keep_opens_no_ticket(where: Path | str) -> None:
    """A tool or URI with a NUL in its name is `unapprovable`, at the call and ahead of it; any other one is held."""
    async with bench(where) as it:
        for name in ("a\x01b", "a\x7f\u202eb", "\U0001f4b6" * 2000):
            assert (await it.held(effect(name=name))).why == "pending"
        verbs = it.journal.verbs
        held = await it.held(effect(name=NUL))
        assert held.why == "unapprovable"
        assert "NUL" in held.detail
        with pytest.raises(Unapprovable, match="NUL"):
            await it.desk.request(ALICE, effect(name=NUL), TERMS, reasons=(), mask=())
        assert it.journal.verbs == verbs


async def test_text_that_is_sealed_may_be_any(where: Path | str) -> None:
    """Arguments, their names, reasons, masks, justifications and comments come back as they were written."""
    async with bench(where) as it:
        asked = effect({NUL: NUL, "\U0010ffff": "\ud7ff\ue000"})
        held = await it.held(asked, reasons=(NUL,), mask=(f"/{NUL}",))
        await it.desk.act("justify", ALICE, held.ticket.id, comment=NUL)
        shown = await it.desk.act("deny", BOB, held.ticket.id, comment=NUL)
        assert NUL in shown["justification"]
        assert shown["reasons"] == [NUL]
        assert [one["comment"] for one in shown["decisions"]] == [NUL, NUL]
        assert (await it.held(asked)).why == "denied"


async def test_groups_and_scopes_that_no_entry_can_name_are_in_nobodys_way(where: Path | str) -> None:
    """A token's odd group or scope names nobody, and its bearer reads and decides as without it."""
    odd = person("bob", groups=["payers", NUL, "\u202epayers"], scopes=SCOPES | {NUL})
    async with bench(where) as it:
        held = await it.held()
        assert (await it.desk.show(odd, held.ticket.id))["id"] == held.ticket.id
        assert [one["id"] for one in (await it.desk.page(odd))[0]] == [held.ticket.id]
        assert [one["id"] for one in (await it.desk.queue(odd, Sieve()))[0]] == [held.ticket.id]
        assert (await it.desk.act("approve", odd, held.ticket.id))["state"] == State.APPROVED
        await it.claimed()


async def test_the_longest_names_fit_into_every_index(where: Path | str) -> None:
    """Subject, client and approvers as long as tokens and policies may have them, of what compresses badly."""
    wide = "".join(chr(0x10000 + number * 7919 % 0x9FFF) for number in range(MEMBER_BYTES // 4))
    longest = "".join(chr(0x4E00 + number * 7919 % 0x4FFF) for number in range(500 - len("user:")))
    terms = replace(TERMS, approvers=(f"user:{longest}", "group:payers"))
    async with bench(where, issuers=[LONG_ISSUER]) as it:
        asked = effect(issuer=LONG_ISSUER, subject=wide, client=wide)
        held = await it.held(asked, terms=terms)
        assert held.why == "pending"
        boss = person(longest, issuer=LONG_ISSUER)
        assert (await it.desk.act("approve", boss, held.ticket.id))["state"] == State.APPROVED
        await it.claimed(asked, terms=terms)
        entry = Entry("v", LONG_ISSUER, wide, 1.0, 1.0, 2.0, "sealed")
        await Visits(it.store).add(entry, None, 1.0)
        assert await Visits(it.store).find("v") == entry
