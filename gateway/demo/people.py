"""Who lives in the demo: a developer, two reviewers, somebody who may only look, and somebody who may do nothing.

Names, clients, groups and the scopes that they get when they sign in are all that the development issuer knows; what
each may do is the policy's business.
"""

from __future__ import annotations

from dataclasses import dataclass

NOTICE = "development issuer: gives a token to anyone on this machine; never trust it in production"
REVIEWERS = "payments-reviewers"
EVERYTHING = ("approvals:read", "approvals:request", "approvals:decide")
RECORD = "audit:read"


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody the development issuer knows. `groups` travel in the token's claim of that name; `scopes` are what a
    token holds at most that they get by signing in."""

    subject: str
    name: str
    part: str
    client_id: str
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] = EVERYTHING


PEOPLE = {
    person.subject: person
    for person in (
        # Alice is a reviewer too: that she can't approve her own call is the gateway's doing, no missing role.
        Person("alice", "Alice", "developer; her AI agent makes the calls", "alice-agent", (REVIEWERS,)),
        Person("bob", "Bob", "reviewer", "review-console", (REVIEWERS,)),
        Person("dora", "Dora", "a second reviewer", "review-console", (REVIEWERS,)),
        Person("carol", "Carol", "auditor who may only read", "carol-agent", scopes=("approvals:read", RECORD)),
        Person("eve", "Eve", "works here too, and has no rights", "eve-agent", scopes=()),
    )
}
