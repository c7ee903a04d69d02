"""The seal of a `requestState` that passes through a caller's hands, bound to its owner.

A seal is opened only for the same issuer, subject, tenant, server, method, name and arguments, before its expiry, and
has one spelling (contract.md section 5). Inside are the server's own state, the number of the leg, the approval that
the call runs under, and the ticket that it waits for: what a caller says of these counts for nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson

from approvals.ticket import Claimed
from gateway.contract.passage import Call, Identity, OpenedState, Server, Waits
from gateway.contract.refusals import Refusal, Refused
from gateway.sealing import NotSealed, Sealer

STATE_TTL_S = 3600.0


class Seals:
    """Seals and opens `requestState`."""

    def __init__(self, keys: Sequence[bytes], *, label: str = "request-state") -> None:
        self._sealer = Sealer(keys, label)

    @staticmethod
    def _binding(identity: Identity, server: Server, call: Call) -> bytes:
        # A JSON array keeps the parts apart whatever they hold. orjson writes one form per value; sorting makes the
        # order of members meaningless, as RFC 8785 has it, and integers beyond 2^53 stay exact.
        arguments = hashlib.sha256(orjson.dumps(call.arguments, option=orjson.OPT_SORT_KEYS)).hexdigest()
        caller = [identity.issuer, identity.subject, identity.tenant]
        return orjson.dumps([*caller, server.name, server.resource, call.method, call.name, arguments])

    def seal_state(
        self, state: OpenedState, identity: Identity, server: Server, call: Call, expires_at: float
    ) -> str:  # fmt: skip
        """What the next leg needs to know -> text that only this caller can bring back, until `expires_at`."""
        payload: dict[str, Any] = {"exp": expires_at, "state": state.value, "leg": state.leg}
        if (use := state.use) is not None:
            payload["use"] = [use.ticket_id, use.use_id, use.leg, use.effect]
        if (waits := state.waits) is not None:
            payload["waits"] = [waits.ticket_id, waits.effect, waits.answers]
        return self._sealer.seal(orjson.dumps(payload), self._binding(identity, server, call))

    def open_state(self, text: str, identity: Identity, server: Server, call: Call, now: float) -> OpenedState:
        """The sealed text -> what it was made of.

        Raises `Refused(STATE_NOT_ACCEPTED)` for anything forged, foreign, moved, expired or spelt otherwise.
        """
        try:
            payload = orjson.loads(self._sealer.open(text, self._binding(identity, server, call)))
        except NotSealed as error:
            raise Refused(Refusal.STATE_NOT_ACCEPTED, f"seal: {error}") from error
        if payload["exp"] <= now:
            raise Refused(Refusal.STATE_NOT_ACCEPTED, "seal: expired")
        use = None
        if "use" in payload:
            ticket_id, use_id, leg, effect = payload["use"]
            use = Claimed(ticket_id, use_id, leg, payload["exp"], effect)
        waits = Waits(*payload["waits"]) if "waits" in payload else None
        return OpenedState(payload["state"], payload["leg"], use, waits, payload["exp"])
