"""Who lives in the demo: a developer, a reviewer, and somebody who may only look.

Names, clients and groups are all that the development issuer knows; what each may do is the policy's business.
"""

from __future__ import annotations

from dataclasses import dataclass

NOTICE = "development issuer: gives a token to anyone on this machine; never trust it in production"
REVIEWERS = "payments-reviewers"


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody the development issuer knows. `groups` travel in the token's claim of that name."""

    subject: str
    name: str
    part: str
    client_id: str
    groups: tuple[str, ...] = ()


PEOPLE = {
    person.subject: person
    for person in (
        # Alice is a reviewer too: that she can't approve her own call is the gateway's doing, no missing role.
        Person("alice", "Alice", "developer; her AI agent makes the calls", "alice-agent", (REVIEWERS,)),
        Person("bob", "Bob", "reviewer", "review-console", (REVIEWERS,)),
        Person("carol", "Carol", "auditor who may only read", "carol-agent"),
    )
}
