"""What may be done about a ticket, by whom and when: the verbs as a table, with the scope that each needs.

Read by the counter, the API and the command line alike; nothing heavy is imported here, so that a command starts at
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from approvals.ticket import MOVES, State

METHODS = ("tools/call", "resources/read", "prompts/get")
"""The methods whose call can wait for a person."""

READ = "approvals:read"
REQUEST = "approvals:request"
DECIDE = "approvals:decide"


@dataclass(frozen=True, slots=True)
class Act:
    """What a verb needs: a scope, the ticket's states that admit it, and whether a local administrator may do it."""

    scope: str
    states: frozenset[State]
    local: bool = False


def _from(verb: str) -> frozenset[State]:
    return frozenset(state for state, verbs in MOVES.items() if verb in verbs)


ACTS: Mapping[str, Act] = {
    "approve": Act(DECIDE, _from("approve"), local=True),
    "deny": Act(DECIDE, _from("deny"), local=True),
    "revoke": Act(DECIDE, _from("revoke"), local=True),
    "withdraw": Act(REQUEST, _from("withdraw")),
    "resolve": Act(DECIDE, frozenset(State)),
    "justify": Act(REQUEST, frozenset({State.PENDING})),
}
