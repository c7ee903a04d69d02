"""The legs of a conversation: what a request goes on with, and what it needs to go on.

A server may answer a call by asking for input; the caller then repeats the call with the answers and the state that
it was given (contract.md section 5). Which leg that is, and whether a person approved the call, is read from our own
seal alone. A leg of an approved call runs under the use that waits for it, once (design.md, "What an approval is").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from approvals.desk import Desk, Origin
from approvals.ticket import Asked, Claimed, Covers, Held
from gateway.contract.admission import policy_input
from gateway.contract.fingerprint import describe_effect
from gateway.contract.judgement import check_verdict
from gateway.contract.passage import Call, Identity, OpenedState, Server, Tool
from gateway.contract.refusals import Refusal, Refused
from gateway.grants import Grants, read_terms
from gateway.seals import Seals
from policies.port import Policy
from policies.verdict import Effect, Verdict

ANSWERS_ALONE: Final = "The inputResponses came without the requestState that was given with the question."

SAID: Final[Mapping[str, str]] = {
    "waiting": (
        "This call was approved and has begun; its server waits for an answer. Repeat it with the inputResponses and "
        "the requestState, or withdraw its ticket."
    ),
    "in_flight": "This call was approved and is running; it is not run twice.",
    "unknown": "This call was approved and sent, and its outcome is unknown; it is not run again.",
    "continued": "This leg of the call was continued already; it is not run twice.",
    "denied": "A person denied this call.",
    "revoked": "This call's approval was revoked; start the call anew.",
    "expired": "This call's approval, or the time to give it, has expired; start the call anew.",
    "withdrawn": "The request for this call's approval was withdrawn; start the call anew.",
    "used": "This call's approval was used already; start the call anew.",
    "tool_changed": "The tool has changed since this call was approved; start the call anew.",
    "approvers_changed": "The approval that this call began with would not do today; start the call anew.",
    "terms_tightened": "The approval that this call began with would not do today; start the call anew.",
}
"""What the requester is told of an approval that can't be used, by `Held.why`; else the row's own sentence."""


def open_leg(
    seals: Seals, call: Call, identity: Identity, server: Server, now: float
) -> tuple[OpenedState | None, Refused | None]:
    """What the call goes on with (`None`: nothing), or why that is not accepted: the corridor raises it in its turn.

    Answers without a state go on with nothing: to the policy they are part of a call that begins now.
    """
    if call.request_state is None:
        return None, None
    try:
        return seals.open_state(call.request_state, identity, server, call, now), None
    except Refused as refused:
        return None, refused


def is_approved(opened: OpenedState | None) -> bool:
    """Whether the request goes on with a call that a person approved."""
    return opened is not None and opened.use is not None


def refusal_of(held: Held, ticket: Mapping[str, Any]) -> Refused:
    """Why nothing was consumed, as the requester may read it: `ticket` is theirs."""
    detail = held.detail or held.why
    return Refused(Refusal.APPROVAL_REFUSED, detail, message=SAID.get(held.why), why=held.why, ticket=ticket)


@dataclass(frozen=True, slots=True)
class Needed:
    """What the desk is asked for: a use for the request's effect, the leg of the use that it runs under, or both.

    `scopes` are those that the call would need if it began now, beside what this leg of it needs. `covers` tells of a
    grant whether this call may run under it.
    """

    identity: Identity
    verdict: Verdict
    begun: Asked
    asked: Asked
    origin: Origin | None
    scopes: tuple[str, ...] = ()
    covers: Covers | None = None

    async def settle(self, desk: Desk, waited_for: str = "") -> Claimed | Held:
        """To be run to its end. Raises what the desk raises; then nothing may run."""
        verdict, claims = self.verdict, self.identity.claims
        if self.origin is not None and verdict.effect is Effect.ALLOW:
            settled = await desk.go_on(self.begun, self.origin, claims=claims)
        else:
            settled = await desk.settle(
                self.asked,
                claims=claims,
                terms=read_terms(verdict),
                reasons=verdict.reasons,
                mask=verdict.mask,
                origin=self.origin,
                waited_for=waited_for,
                covers=self.covers,
            )
        return settled if isinstance(settled, Held) else replace(settled, effect=self.begun.digest)


async def find_needed(  # noqa: PLR0917 - in the order in which the corridor learns them
    policy: Policy,
    server: Server,
    identity: Identity,
    call: Call,
    tool: Tool | None,
    verdict: Verdict,
    opened: OpenedState | None,
    volatile_meta: frozenset[str],
    grants: Grants,
) -> Needed:
    """What this verdict asks of the desk. Raises `Refused`, and what the policy raises.

    Of a leg the policy is asked once more as if the call began now: one that could not begin does not go on either,
    and its terms are those that the approval is held to. The gateway gives a state with every question, and a client
    must bring it back: where a person has to say yes, answers without one are nobody's.
    """
    if opened is None and call.goes_on:
        detail = "inputResponses without a requestState"
        raise Refused(Refusal.STATE_NOT_ACCEPTED, detail, message=ANSWERS_ALONE)
    if opened is None:
        asked = describe_effect(identity, server, call, tool, volatile_meta)
        covers = None if asked.shown_meta else grants.covers(policy, server, identity, call, tool)
        return Needed(identity, verdict, asked, asked, None, covers=covers)
    whole = replace(call, request_state=None, input_responses=None)
    begun = describe_effect(identity, server, whole, tool, volatile_meta)
    asked = describe_effect(identity, server, call, tool, volatile_meta, opened)
    if opened.use is None:
        return Needed(identity, verdict, begun, asked, None)
    if opened.use.effect != begun.digest:
        raise Refused(Refusal.STATE_NOT_ACCEPTED, "another effect than the one that was approved")
    first = await policy.judge(policy_input("call", server, identity, whole, tool))
    check_verdict(call, first)
    terms = read_terms(first) if first.effect is Effect.APPROVE else None
    return Needed(identity, verdict, begun, asked, Origin(opened.use, terms), first.scopes)
