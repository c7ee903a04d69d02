"""Whether a call fits a grant: its arguments both schemas of it, and the policy's answer today.

The schemas are other people's: size, work and patterns are bounded as for a tool's own, nothing is fetched, and what
can't be checked fits nothing. What the schema of a grant does not name may not be given; formats are asserted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from approvals.ticket import Covers, Granted, Terms
from gateway.contract.admission import policy_input
from gateway.contract.arguments import Contract
from gateway.contract.identity import Implications, missing_scopes
from gateway.contract.passage import Call, Identity, Server, Tool
from gateway.contract.schemas import Unusable
from policies.port import Policy
from policies.verdict import MAX_GRANT_BYTES, ApprovalTerms, Effect, Verdict

KEPT = 64
KEPT_BYTES = 16 << 20
"""Schemas that stay compiled, and what all of them may take."""

HEAVIEST = 4 << 20
"""What the patterns of one schema may take."""


def read_terms(verdict: Verdict) -> Terms:
    """The policy's terms, as the desk knows them."""
    terms = verdict.approval or ApprovalTerms()
    return Terms(terms.uses, terms.ttl_s, terms.approvers, terms.min_approvers, verdict.clear)


@dataclass(slots=True)
class Grants:
    """What grants cover. One per worker; remembers compiled schemas, boundedly."""

    implications: Implications = field(default_factory=dict)
    _compiled: OrderedDict[tuple[bytes, bool], Contract] = field(default_factory=OrderedDict)
    _weight: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def contract(self, schema: Mapping[str, Any], *, closed: bool) -> Contract:
        """The schema, compiled; `closed`: what it does not name is not admitted. Raises `Unusable`."""
        text = orjson.dumps(schema)
        key = (text, closed)
        if (kept := self._kept(key)) is not None:
            return kept
        if len(text) > MAX_GRANT_BYTES:
            raise Unusable(f"more than {MAX_GRANT_BYTES} bytes")
        async with self._turn:  # one at a time: whoever asks for grants takes no more than one thread, and its memory
            if (kept := self._kept(key)) is not None:
                return kept
            made = await asyncio.to_thread(Contract, schema, strict=closed, formats=True, heaviest=HEAVIEST)
            self._compiled[key] = made
            self._weight += made.weight
            while len(self._compiled) > KEPT or self._weight > KEPT_BYTES:
                self._weight -= self._compiled.popitem(last=False)[1].weight
        return made

    def _kept(self, key: tuple[bytes, bool]) -> Contract | None:
        if key in self._compiled:
            self._compiled.move_to_end(key)
        return self._compiled.get(key)

    async def admits(self, schema: Mapping[str, Any], call: Call, *, closed: bool) -> bool:
        """Whether the call's arguments fit a schema. One that is none fits nothing."""
        try:
            contract = await self.contract(schema, closed=closed)
        except Unusable:
            return False
        return contract.admits(call.arguments, call.envelope.raw)

    def covers(
        self, policy: Policy, server: Server, identity: Identity, call: Call, tool: Tool | None
    ) -> Covers | None:
        """Which grants this call may run under; `None` for a call that can run under none.

        Asks the policy about the very call as one under the grant: it has to want it approved, to allow a grant, and
        to bound it so that the arguments fit today's bounds as well. Raises what the policy raises.
        """
        if call.kind != "tool" or call.goes_on:
            return None

        async def grant_of(vary: Mapping[str, Any]) -> Granted | None:
            if not await self.admits(vary["schema"], call, closed=True):
                return None
            if not await self.admits(vary["bounds"], call, closed=False):
                return None
            question = policy_input("call", server, identity, call, tool, grant=vary["schema"])
            verdict = await policy.judge(question)
            bounds = None if verdict.approval is None else verdict.approval.grant
            if verdict.effect is not Effect.APPROVE or bounds is None:
                return None
            if missing_scopes(identity.scopes, verdict.scopes, self.implications):
                return None
            if not await self.admits(bounds, call, closed=False):
                return None
            return Granted(read_terms(verdict), verdict.mask)

        return grant_of
