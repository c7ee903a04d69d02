"""Rows of tickets as `Filed`: what is sealed is opened, and has to agree with what is kept in clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import Select, select

from approvals.approvers import Person, is_at_home
from approvals.filed import Filed, Open
from approvals.outbox import Outbox
from approvals.schema import tickets, uses
from approvals.statements import DECISIONS
from approvals.ticket import Asked, Run, State, Ticket, Unreadable
from approvals.transaction import Transaction
from approvals.vault import Vault, effect_of

MOST_EARLIER = 10


class Opening:
    """One transaction's rows."""

    def __init__(self, connection: Transaction, vault: Vault, outbox: Outbox | None = None) -> None:
        self.connection = connection
        self._vault = vault
        self._outbox = outbox
        self.has_news = False
        self._is_postgresql = connection.dialect.name == "postgresql"

    def _bond(self, row: Any) -> dict[str, Any]:
        bond: dict[str, Any] = orjson.loads(self._vault.open(row.bond, row.id, "bond"))
        return bond

    async def _said(self, ticket_ids: Sequence[str]) -> dict[str, list[Mapping[str, Any]]]:
        if not ticket_ids:
            return {}
        said: dict[str, list[Mapping[str, Any]]] = {}
        for row in await self.connection.rows(DECISIONS, {"ids": list(ticket_ids)}):
            one = orjson.loads(self._vault.open(row.sealed, row.ticket_id, "decision"))
            if one["id"] != row.id:
                raise Unreadable(f"ticket {row.ticket_id}: a decision was copied in the database")
            said.setdefault(row.ticket_id, []).append({**one, "at": row.at})
        return said

    async def _whole(self, query: Select[Any], *, earlier: bool = False) -> list[Filed]:
        rows = (await self.connection.execute(query)).all()
        said = await self._said([row.id for row in rows])
        ran: dict[str, list[Mapping[str, Any]]] = {}
        runs = (
            select(uses).where(uses.c.ticket_id.in_([row.id for row in rows])).order_by(uses.c.claimed_at, uses.c.id)
        )
        for run in (await self.connection.execute(runs)).all():
            one = {"use": run.id, "state": run.state, "at": run.at, "resolved": run.resolved_at is not None}
            ran.setdefault(run.ticket_id, []).append(one)
        filed = []
        for row in rows:
            shown = orjson.loads(self._vault.open(row.shown, row.id, "shown"))
            before = await self._earlier(row) if earlier else ()
            filed.append(
                self._filed(
                    row,
                    self._bond(row),
                    None,
                    shown=shown,
                    said=said.get(row.id, ()),
                    ran=ran.get(row.id, ()),
                    earlier=before,
                )
            )
        return filed

    async def _earlier(self, row: Any) -> tuple[Mapping[str, Any], ...]:
        query = select(uses.c.ticket_id, uses.c.state, uses.c.at).join(tickets, tickets.c.id == uses.c.ticket_id)
        query = query.where(
            tickets.c.lookup == row.lookup, tickets.c.id != row.id, uses.c.claimed_at <= row.created_at
        )
        found = (await self.connection.execute(query.order_by(uses.c.at.desc()).limit(MOST_EARLIER))).all()
        return tuple({"ticket": one.ticket_id, "state": one.state, "at": one.at} for one in found)

    def _filed(
        self,
        row: Any,
        bond: Mapping[str, Any],
        asked: Asked | None,
        *,
        shown: Mapping[str, Any] | None = None,
        said: Sequence[Mapping[str, Any]] = (),
        ran: Sequence[Mapping[str, Any]] = (),
        earlier: tuple[Mapping[str, Any], ...] = (),
    ) -> Filed:
        effect = _effect(row, bond, asked, shown)
        try:
            state = State(row.state)
            reasons, approvers, mask = (tuple(orjson.loads(text)) for text in (row.reasons, row.approvers, row.mask))
        except (ValueError, TypeError) as fault:
            raise Unreadable(f"ticket {row.id} was changed in the database") from fault
        ticket = Ticket(
            id=row.id, state=state, asked=effect, justification=shown["justification"] if shown else "",
            reasons=reasons, approvers=approvers, min_approvers=row.min_approvers, mask=mask,
            decisions=tuple({key: one[key] for key in ("by", "verb", "comment", "at")} for one in said),
            uses=row.uses, uses_left=row.uses_left, runs=tuple(ran), created_at=row.created_at,
            expires_at=row.expires_at, earlier=earlier,
        )  # fmt: skip
        if stated(ticket) != bond["stated"] or effect_of(effect).hex() != bond["effect"]:
            raise Unreadable(f"ticket {row.id} was changed in the database")
        running = None
        if row.running is not None:
            running = Open(row.running, Run(row.run_state), row.run_lease, row.run_leg, row.run_effect or "")
        return Filed(
            ticket=ticket,
            version=row.version,
            parties=tuple((issuer, subject) for issuer, subject in bond["parties"]),
            running=running,
            approvals=tuple(
                person
                for person in (_person(one["who"]) for one in said if one["verb"] == "approve")
                if is_at_home(person, effect.issuer, effect.tenant)
            ),
        )


def _effect(row: Any, bond: Mapping[str, Any], asked: Asked | None, shown: Mapping[str, Any] | None) -> Asked:
    """What the ticket is of. What is shown of it comes from `asked`, where somebody asks for just that, else from
    what was unsealed; a ticket that was found for its state alone shows nothing.
    """
    if asked is not None:
        arguments, meta, tool = asked.arguments, asked.shown_meta, asked.tool
    elif shown is not None:
        arguments, meta, tool = shown["arguments"], shown["meta"], shown.get("tool", {})  # older ones name no tool
    else:
        arguments, meta, tool = {}, {}, {}
    return Asked(
        row.issuer, row.subject, row.client, row.server, row.resource, row.environment, row.method, row.name,
        arguments=arguments, digest=bond["digest"], tool_digest=row.tool_digest, shown_meta=meta,
        tenant=bond.get("tenant", ""),  # older ones name none
        tool=tool, vary=bond.get("vary"),
    )  # fmt: skip


def stated(ticket: Ticket) -> list[Any]:
    """What people say yes to beside the effect: sealed as well, because it is kept in clear to be asked for."""
    return [ticket.asked.tool_digest, ticket.uses, ticket.created_at, ticket.expires_at, list(ticket.mask)]


def _person(who: Mapping[str, Any]) -> Person:
    scopes, groups = frozenset(who["scopes"]), frozenset(who["groups"])
    claims = {"act": who["act"]}  # all that is looked at again: who acted for them
    return Person(
        who["issuer"], who["subject"], who["client"], scopes, groups, claims,
        local=who["local"], tenant=who.get("tenant", ""),  # none in a decision of before decisions named it
    )  # fmt: skip
