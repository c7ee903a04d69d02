"""One request's records, found within a look's bounds: around the time that a link names, else hunted for backwards.

With `mine`, records of others do not exist: what is found, and how long it took, is the same for a foreign id and for
one that nobody ever had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from approvals.approvers import Person
from gateway.audit.looking import Budget, Ended, Wanted, look, shifted
from gateway.audit.query import Query, read_record
from gateway.audit.story import MOST, Record, gather, place_of, reason_of
from gateway.audit.trail import Chain
from gateway.contract.printable import printable

HUNTED_S: Final = 7 * 86_400.0
AROUND_S: Final = 60.0
BESIDE_S: Final = 86_400.0
"""How long before and after a request its ticket's moves and its end are looked for."""

Party = tuple[str, str, str]
"""Issuer, subject and tenant (`""` for none) of somebody, as records name them."""


@dataclass(frozen=True, slots=True)
class Told:
    """A story's records and their lines, by (writer, number). `whole` is false where the bound ended the search."""

    records: Sequence[Record]
    lines: Mapping[tuple[str, str], bytes]
    whole: bool
    unread: Sequence[str]


def party_of(person: Person) -> Party | None:
    """Somebody as records name them; None for names so long that records cut them: two could look the same."""
    told = (printable(person.issuer, 257), printable(person.subject, 257), printable(person.tenant, 257))
    return told if all(len(one) <= 256 for one in told) else None


def is_of(record: Record, party: Party) -> bool:
    """Whether it was they who acted, or whose ticket it is; a record that names no tenant is of any."""
    who = record.get("requester" if record.get("kind") == "approval" else "actor")
    issuer, subject, tenant = party
    if not isinstance(who, dict) or (who.get("issuer"), who.get("subject")) != (issuer, subject):
        return False
    return bool(who.get("tenant", tenant) == tenant)


def find_story(
    chains: Sequence[Chain], budget: Budget, decision: str, *, at: str, now: str, mine: Party | None = None
) -> Told:
    """All that is found of a decision. `at` is about when it was, `""` if nobody knows: then it is hunted for."""
    finder = _Finder(chains, budget, mine)
    if not at:
        hunted = finder.find(Query(decision=decision), shifted(now, -HUNTED_S), now, limit=1)
        if not hunted:
            return finder.told([])
        at = str(hunted[0].get("time"))
        latency = hunted[0].get("latency_ms")
        begun = shifted(at, -latency / 1000) if isinstance(latency, int | float) else at
    else:
        begun = at
    since, until = shifted(begun, -AROUND_S), shifted(at, AROUND_S)

    def find(query: Query) -> Sequence[Record]:
        if query.decision is None:
            return finder.find(query, shifted(begun, -BESIDE_S), shifted(at, BESIDE_S))
        own = finder.find(query, since, until)
        if own and not any(record.get("kind") in ("outcome", "refusal") for record in own):
            own = [*finder.find(query, until, shifted(at, BESIDE_S)), *own]  # it took its time
        return own

    return finder.told(gather(find, decision))


class _Finder:
    """Looks with one budget. What they found, by (writer, number), and whether they read all that they should."""

    def __init__(self, chains: Sequence[Chain], budget: Budget, mine: Party | None) -> None:
        self.chains = chains
        self.budget = budget
        self.mine = mine
        self.lines: dict[tuple[str, str], bytes] = {}
        self.whole = True
        self.unread: dict[str, None] = {}

    def find(self, query: Query, since: str, until: str, limit: int = MOST) -> Sequence[Record]:
        query = replace(query, since=since, until=until)
        wanted, is_hunt = self._wanted(query), limit == 1
        found = look(self.chains, wanted, self.budget, since=since, until=until, limit=limit, at_once=is_hunt)
        self.whole = self.whole and (found.ended is Ended.WINDOW or is_hunt)
        self.unread |= dict.fromkeys(found.unread)
        for line, record in zip(found.lines, found.records, strict=True):
            self.lines[place_of(record)] = line
        return found.records

    def _wanted(self, query: Query) -> Wanted:
        party = self.mine
        if party is None:
            return query.read
        return lambda line: record if (record := query.read(line)) and is_of(record, party) else None

    def told(self, records: Sequence[Record]) -> Told:
        return Told(records, self.lines, self.whole and not self.budget.is_spent, list(self.unread))


def refused_to(query: Query, party: Party, refusals: frozenset[str]) -> Wanted:
    """What the gateway refused to somebody: before anything was forwarded, or on the answer's way back."""

    def wanted(line: bytes) -> Record | None:
        if b'"kind":"refusal"' not in line and b'"kind":"outcome"' not in line:
            return None
        record = read_record(line)
        if record.get("kind") not in ("refusal", "outcome") or not is_of(record, party):
            return None
        return record if reason_of(record) in refusals and query.matches(record) else None

    return wanted
