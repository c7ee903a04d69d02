"""Who may say yes: people from verified tokens, the policy's approver strings, and the rule that joins them.

An approver entry that cannot be read, or that can match nobody, is an error and never silence; comparison is exact,
always by issuer and value together (design.md, "What a policy is asked and answers").
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from approvals.ticket import Terms, Unapprovable

LOCAL = "local"
KINDS = ("user", "group", "scope")
MAX_ACTORS = 8

Party = tuple[str, str]
"""(issuer, subject): one person or program, as a verified token names it."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody at the counter, from a verified token; `local` marks an administrator at the machine itself.

    `groups` are the exact names of the token's groups claim, `scopes` the granted scopes after `scope_implies`;
    `tenant` is that of the token, `""` where none is configured for its issuer.
    """

    issuer: str
    subject: str
    client: str = ""
    scopes: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = field(default_factory=dict)
    local: bool = False
    tenant: str = ""

    @property
    def party(self) -> Party:
        """Issuer and subject: two tokens of one person through two clients are still one person."""
        return (self.issuer, self.subject)

    @property
    def by(self) -> str:
        """How a record names them: `ISSUER|SUBJECT` or `local:UID@HOST`."""
        return f"{LOCAL}:{self.subject}" if self.local else f"{self.issuer}|{self.subject}"


def local_person(uid: int, host: str) -> Person:
    """The administrator who works on the store itself, as `local:UID@HOST`."""
    return Person(issuer=LOCAL, subject=f"{uid}@{host}", local=True)


@dataclass(frozen=True, slots=True)
class Approver:
    """One readable entry: `kind` is `user`, `group` or `scope`; `issuer` is always known."""

    kind: str
    issuer: str
    value: str

    @property
    def entry(self) -> str:
        """The one spelling, with the issuer: `kind:ISSUER|VALUE`."""
        return f"{self.kind}:{self.issuer}|{self.value}"


def read_approver(entry: str, issuers: Sequence[str]) -> Approver:
    """`kind:ISSUER|VALUE`, or bare `kind:VALUE` where `issuers` has exactly one. Raises `Unapprovable`.

    The issuer ends at the first `|`: a subject that contains one (`auth0|7`) needs the full form, so that a mistyped
    issuer is never taken for a subject whom nobody is.
    """
    kind, colon, rest = entry.partition(":")
    if not colon or kind not in KINDS:
        raise Unapprovable(f"approver {entry!r} does not start with user:, group: or scope:")
    issuer, bar, value = rest.partition("|")
    if not bar:
        if len(issuers) != 1:
            raise Unapprovable(f"approver {entry!r} names no issuer, and not exactly one is configured for approvals")
        issuer, value = issuers[0], rest
    elif issuer not in issuers:
        raise Unapprovable(f"approver {entry!r} names an issuer that is not configured for approvals")
    if not value or value != value.strip() or not value.isprintable():
        raise Unapprovable(f"approver {entry!r} can match nobody")
    if kind == "scope" and any(character.isspace() for character in value):
        raise Unapprovable(f"approver {entry!r} names a scope with a space in it, which no token can carry")
    return Approver(kind, issuer, value)


def read_terms(terms: Terms, issuers: Sequence[str], parties: Collection[Party] = ()) -> tuple[Approver, ...]:
    """The approvers of `terms`, each one readable, and enough of them beside `parties` to reach the quorum.

    Raises `Unapprovable`; what fails with no parties fails for everybody.
    """
    for name, number in (("uses", terms.uses), ("ttl_s", terms.ttl_s), ("min_approvers", terms.min_approvers)):
        if number < 1:
            raise Unapprovable(f"{name} must be at least 1, not {number!r}")
    if not terms.approvers:
        raise Unapprovable("the terms name no approver")
    approvers = tuple(dict.fromkeys(read_approver(entry, issuers) for entry in terms.approvers))
    if all(approver.kind == "user" for approver in approvers):
        others = [approver for approver in approvers if (approver.issuer, approver.value) not in parties]
        if len(others) < terms.min_approvers:
            raise Unapprovable(
                f"{terms.min_approvers} approvers are needed, and only {len(others)} could ever decide"
            )
    return approvers


def is_at_home(person: Person, issuer: str, tenant: str) -> bool:
    """Whether this person may know of what somebody of this issuer and tenant asked: nobody of another tenant may.

    Whoever comes from an issuer that knows no tenants (a central one) is of no other one; a tenant's name means
    something within its own issuer alone.
    """
    return not tenant or person.local or person.tenant == (tenant if person.issuer == issuer else "")


def may_decide(approvers: Iterable[Approver], person: Person) -> bool:
    """Whether an entry names this person: same issuer, and the exact subject, group or scope."""
    for approver in approvers:
        if approver.issuer != person.issuer or person.local:
            continue
        if approver.kind == "user":
            matches = approver.value == person.subject
        else:
            matches = approver.value in (person.groups if approver.kind == "group" else person.scopes)
        if matches:
            return True
    return False


def filed_entry(approver: Approver, issuer: str, tenant: str) -> str:
    """The entry as it is filed with a ticket of somebody of this issuer and tenant.

    With the tenant that a person has to be of (`is_at_home`), after a line feed, which no entry has; of a tenant a
    digest, because an index's entry is bounded.
    """
    if not tenant:
        return approver.entry
    return _within(approver.entry, tenant if approver.issuer == issuer else "")


def _within(entry: str, tenant: str) -> str:
    return f"{entry}\n{hashlib.sha256(tenant.encode()).hexdigest() if tenant else ''}"


def entries_of(person: Person) -> list[str]:
    """Every entry that would name this person, as it may be filed: what a list of tickets is filtered by."""
    if person.local:
        return []
    named = [Approver("user", person.issuer, person.subject)]
    named += [Approver("group", person.issuer, group) for group in sorted(person.groups)]
    named += [Approver("scope", person.issuer, scope) for scope in sorted(person.scopes)]
    # No entry has another value (`read_approver`), and a database may not take one (PostgreSQL: NUL).
    plain = [approver.entry for approver in named if approver.value.isprintable()]
    return plain + [_within(entry, person.tenant) for entry in plain]


def parties_to(issuer: str, subject: str, claims: Mapping[str, Any]) -> tuple[Party, ...]:
    """Everybody who asks when this token asks: its subject and, by delegation (RFC 8693 `act`), its actors.

    None of them may approve. An actor without an `iss` is one of the token's own issuer.
    """
    parties = [(issuer, subject)]
    actor = claims.get("act")
    for _ in range(MAX_ACTORS):
        if not isinstance(actor, Mapping):
            break
        name = actor.get("sub")
        home = actor.get("iss", issuer)
        if isinstance(name, str) and isinstance(home, str):
            parties.append((home, name))
        actor = actor.get("act")
    return tuple(dict.fromkeys(parties))


def asks_as_well(person: Person, parties: Collection[Party], client: Party) -> bool:
    """Whether a decision by this person would be one of those who ask: then there are no four eyes.

    Not only by name: a token that somebody of `parties` (or the requester's program, `client`, under its own name)
    holds for another person is theirs, and so is one that was issued to a program which asked in its own name. That
    two people use the same program says nothing.
    """
    own = set(parties_to(person.issuer, person.subject, person.claims))
    return not own.isdisjoint({*parties, client}) or (person.issuer, person.client) in parties


def enough(
    approvals: Iterable[Person],
    approvers: Sequence[Approver],
    minimum: int,
    parties: Collection[Party],
    *,
    client: Party = (LOCAL, ""),
    local: bool,
) -> bool:
    """Whether these people, by the claims they had when they approved, still make the quorum (`agreeing`)."""
    return agreeing(approvals, approvers, parties, client=client, local=local) >= minimum


def agreeing(
    approvals: Iterable[Person],
    approvers: Sequence[Approver],
    parties: Collection[Party],
    *,
    client: Party = (LOCAL, ""),
    local: bool,
) -> int:
    """How many of these people count, by the claims they had when they approved.

    `client`: the requester's program. `local`: whether a local administrator may approve at all; all of them together
    count once. Nobody counts twice by acting for another one who is counted.
    """
    people: dict[Party, set[Party]] = {}
    for person in approvals:
        if person.local and local:
            people[LOCAL, ""] = set()
        elif may_decide(approvers, person) and not asks_as_well(person, parties, client):
            actors = parties_to(person.issuer, person.subject, person.claims)
            people.setdefault(person.party, set()).update(actors)
    return sum(people.keys().isdisjoint(actors - {who}) for who, actors in people.items())
