"""People of one tenant neither see, count nor decide what somebody of another one asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from approvals.approvers import entries_of, filed_entry, is_at_home, local_person, read_approver
from approvals.ledger import Ledger
from approvals.sieve import Sieve, Whose
from approvals.ticket import NotAllowed, State, TicketUnknown
from gateway.contract.identity import identity_from_claims
from gateway.foresight import person_of
from tests.support.approvals import ALICE, BOB, CAROL, ISSUER, OTHER_ISSUER, TERMS, Bench, bench, effect, person

BLUE, RED = replace(BOB, tenant="blue"), replace(BOB, tenant="red")
RED_CAROL = replace(CAROL, tenant="red")
CENTRAL = person("root", issuer=OTHER_ISSUER, groups=["central"])
CENTRAL_RED = replace(CENTRAL, tenant="red")
BOTH = replace(TERMS, approvers=(f"group:{ISSUER}|payers", f"group:{OTHER_ISSUER}|central"))


@pytest.fixture
async def it(where: Path | str) -> AsyncIterator[Bench]:
    """A desk for people of two issuers, on a fresh store."""
    async with bench(where, issuers=[ISSUER, OTHER_ISSUER]) as made:
        yield made


def asked(amount: int = 1, tenant: str = "red") -> Any:
    """A call of alice's in this tenant."""
    return replace(effect({"amount": amount}, tenant=tenant), tenant=tenant)


async def listed(it: Bench, who: Any, whose: Whose = Whose.ALL) -> set[str]:
    """What this person is shown by the queue, and, where it is not narrowed, by the list as well."""
    lines, _ = await it.desk.queue(who, Sieve(whose=whose))
    found = {one["id"] for one in lines}
    if whose is Whose.ALL:
        assert found == {one["id"] for one in (await it.desk.page(who))[0]}
    return found


async def refuse(it: Bench, who: Any, ticket_id: str) -> None:
    """Nothing that this person asks about the ticket is answered otherwise than for one that is not there."""
    for look in (it.desk.show, it.desk.look):
        with pytest.raises(TicketUnknown):
            await look(who, ticket_id)
    for verb in ("approve", "deny", "revoke", "withdraw", "justify", "resolve"):
        with pytest.raises(TicketUnknown):
            await it.desk.act(verb, who, ticket_id, comment="because")


async def tamper(it: Bench, *statements: str) -> None:
    """Whoever can write the database, or an earlier gateway that filed no tenant."""

    async def work(ledger: Ledger) -> None:
        for statement in statements:
            await ledger.connection.execute(text(statement))

    await it.store.write(work)


async def test_the_same_group_of_another_tenant_sees_and_decides_nothing(it: Bench) -> None:
    """Two tenants, one group's name: list, queue, look, every act. What has no tenant is everybody's."""
    red, blue, plain = [(await it.held(asked(1, tenant), terms=BOTH)).ticket.id for tenant in ("red", "blue", "")]
    assert await listed(it, RED) == {red, plain}
    assert await listed(it, BLUE) == {blue, plain}
    assert await listed(it, BOB) == {plain}, "nobody's token of this issuer is without a tenant where it has some"
    await refuse(it, BLUE, red)
    await refuse(it, RED, blue)
    await refuse(it, BOB, red)
    assert (await it.desk.act("approve", RED, red))["state"] == State.APPROVED
    assert (await it.desk.act("approve", RED, plain))["state"] == State.APPROVED
    assert (await it.claimed(asked(1, "red"), terms=BOTH)).ticket_id == red
    assert (await it.held(asked(1, "blue"), terms=BOTH)).why == "pending"


async def test_ones_own_tickets_are_those_of_the_tenant_that_one_is_in(it: Bench) -> None:
    """Who works in two tenants under one subject finds in each what was asked for there, and takes back only that."""
    red, blue = [(await it.held(asked(1, tenant), terms=BOTH)).ticket.id for tenant in ("red", "blue")]
    in_red, in_blue = replace(ALICE, tenant="red"), replace(ALICE, tenant="blue")
    for whose in (Whose.ALL, Whose.OWN):
        assert await listed(it, in_red, whose) == {red}
        assert await listed(it, in_blue, whose) == {blue}
    await refuse(it, in_blue, red)
    assert (await it.desk.look(in_red, red)).is_own
    assert (await it.desk.act("withdraw", in_red, red))["state"] == State.WITHDRAWN
    with pytest.raises(NotAllowed, match="not_your_request"):
        await it.desk.request(in_blue, asked(2, "red"), BOTH, reasons=(), mask=())
    assert (await it.desk.request(in_red, asked(2, "red"), BOTH, reasons=(), mask=()))[1]


async def test_a_central_approver_decides_for_every_tenant_unless_they_have_one_themselves(it: Bench) -> None:
    """Another issuer's people, whom the policy names with their issuer, decide where that issuer knows no tenants."""
    red, blue = [(await it.held(asked(1, tenant), terms=BOTH)).ticket.id for tenant in ("red", "blue")]
    assert await listed(it, CENTRAL) == {red, blue}
    assert await listed(it, CENTRAL_RED) == set(), "a tenant of one issuer is none of another's"
    await refuse(it, CENTRAL_RED, red)
    assert (await it.desk.act("approve", CENTRAL, red))["state"] == State.APPROVED
    await it.claimed(asked(1, "red"), terms=BOTH)


async def test_an_administrator_at_the_machine_sees_every_tenant(it: Bench) -> None:
    """Who works on the store itself lists, shows and denies whatever is in it."""
    red, blue = [(await it.held(asked(1, tenant), terms=BOTH)).ticket.id for tenant in ("red", "blue")]
    root = local_person(0, "host")
    assert await listed(it, root) == {red, blue}
    assert (await it.desk.act("deny", root, blue))["state"] == State.DENIED


async def test_a_comparison_is_with_no_call_of_another_tenant(it: Bench) -> None:
    """What another tenant's people approved last is not told, to nobody but whoever may see both."""
    other = (await it.held(asked(1, "blue"), terms=BOTH)).ticket.id
    await it.desk.act("approve", BLUE, other)
    ticket_id = (await it.held(asked(2, "red"), terms=BOTH)).ticket.id
    assert (await it.desk.look(RED, ticket_id)).before is None
    before = (await it.desk.look(CENTRAL, ticket_id)).before
    assert before is not None
    assert before["id"] == other


async def test_what_is_filed_without_a_tenant_is_held_to_the_sealed_one(it: Bench) -> None:
    """A ticket of an earlier gateway's, or one filed otherwise since: nobody of another tenant sees it."""
    red = await it.approved(asked(1, "red"), by=RED, terms=BOTH)
    assert (await it.desk.look(RED, red)).agreed == 1
    entry = f"group:{ISSUER}|payers"
    await tamper(
        it, "UPDATE tickets SET tenant = ''", f"UPDATE eligible SET entry = '{entry}' WHERE entry LIKE '{entry}%'"
    )
    assert await listed(it, RED) == {red}
    assert await listed(it, BLUE) == set()
    assert await listed(it, replace(ALICE, tenant="blue")) == set()
    await refuse(it, BLUE, red)
    await refuse(it, replace(ALICE, tenant="blue"), red)
    ticket_id = (await it.held(asked(2, "blue"), terms=BOTH)).ticket.id
    assert (await it.desk.look(BLUE, ticket_id)).before is None


async def test_a_quorum_is_of_people_of_the_tenant(it: Bench) -> None:
    """A yes that was sealed for somebody of another tenant counts for nothing at the call."""
    terms = replace(BOTH, min_approvers=2)
    red = (await it.held(asked(1, "red"), terms=terms)).ticket.id
    await it.desk.act("approve", RED, red)
    assert (await it.desk.look(RED_CAROL, red)).agreed == 1
    filed = await it.store.read(lambda ledger: ledger.whole(red))
    assert filed is not None

    async def slip_in(ledger: Ledger) -> bool:  # as a gateway that knew of no tenants let them
        said = {"comment": "", "seen": "", "target": State.APPROVED, "now": it.clock.now}
        return await ledger.decide(filed, "approve", replace(CAROL, tenant="blue"), **said)  # type: ignore[arg-type]

    assert await it.store.write(slip_in)
    assert (await it.desk.look(RED_CAROL, red)).agreed == 1
    assert (await it.held(asked(1, "red"), terms=terms)).why == "pending"
    assert (await it.desk.show(RED, red))["state"] == State.REVOKED


async def test_the_tenant_is_that_of_the_verified_token(it: Bench) -> None:
    """What the claims say under another name than the configured one makes nobody of a tenant."""
    claims = {"iss": ISSUER, "sub": "bob", "client_id": "cli", "exp": 1, "groups": ["payers"], "tid": "red"}
    claims |= {"scope": " ".join(BOB.scopes), "tenant": "blue"}
    red = (await it.held(asked(1, "red"), terms=BOTH)).ticket.id
    named = {claim: person_of(identity_from_claims(claims, claim), {}) for claim in ("tid", "tenant", "")}
    assert {claim: who.tenant for claim, who in named.items()} == {"tid": "red", "tenant": "blue", "": ""}
    assert (await it.desk.show(named["tid"], red))["id"] == red
    await refuse(it, named["tenant"], red)
    await refuse(it, named[""], red)


LONG = "r" * 1024
TENANTS = ("", "red", "blue", "\u00e9", LONG)


@pytest.mark.parametrize("tenant", TENANTS)
@pytest.mark.parametrize("who", [*(replace(BOB, tenant=one) for one in TENANTS), CENTRAL, CENTRAL_RED])
def test_what_is_found_by_its_entry_is_what_the_rule_admits(tenant: str, who: Any) -> None:
    """The filed entry and the rule in words are one: for each person and each tenant of a ticket."""
    issuers = [ISSUER, OTHER_ISSUER]
    for text_of in (f"group:{ISSUER}|payers", f"group:{OTHER_ISSUER}|central"):
        approver = read_approver(text_of, issuers)
        names = approver.issuer == who.issuer
        found = filed_entry(approver, ISSUER, tenant) in entries_of(who)
        assert found is (names and is_at_home(who, ISSUER, tenant))
        assert len(filed_entry(approver, ISSUER, tenant)) < len(approver.entry) + 70
