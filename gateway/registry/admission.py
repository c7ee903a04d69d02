"""What a registry lists, beside what somebody admitted of it: new, changed, deprecated, deleted, or as it was.

Admitted is exactly what was shown: a look has a digest of its own. Nothing here asks a server that a record names:
until its stanza is in the configuration, and its tools were accepted (docs/pins.md), its URL is data.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.contract.differences import Difference, differences
from gateway.contract.fingerprint import digest, digest_definition
from gateway.registry.addresses import variables_of
from gateway.registry.flaws import Flaw
from gateway.registry.listing import Entry, newest
from gateway.registry.lock import Lock, Locked
from gateway.registry.validation import judge

State = Literal["admitted", "new", "changed", "gone", "unusable"]

LONGEST: Final = 64
"""Characters of the name under which the gateway fronts a server."""

TOLERATED: Final = frozenset({"schema-missing"})
"""Flaws of a record that keep it from being published, and nobody from reading it."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One server of the registry: what was admitted of it (`before`), and what is listed (`now`).

    `faults` are why what is listed can't be admitted.
    """

    name: str
    before: Locked | None
    now: Entry | None
    faults: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """What it is. One that the registry marks as deleted is gone."""
        if self.now is None or self.now.status == "deleted":
            return "gone"
        if self.before is not None and self._now() == self._then():
            return "admitted"
        if self.faults:
            return "unusable"
        return "new" if self.before is None else "changed"

    @property
    def warning(self) -> str:
        """Why to look twice, else empty: what nobody who publishes does to a version (it is published once, and newer
        ones follow), or that the server would be asked elsewhere, with its credentials.
        """
        if self.state != "changed" or self.before is None or self.now is None:
            return ""
        then, now = self.before.version, self.now.version
        if then == now:
            same = digest_definition(self.now.document) == self.before.digest
            return "" if same else "the same version with other contents: a version is published once"
        if _is_older(now, then):
            return f"older than {then}, which was admitted"
        stays = set(urls_of(self.before.record)) <= set(urls_of(self.now.document))
        return "" if stays else "a remote is gone: calls and the credentials of the server may go to another one"

    def _now(self) -> tuple[str, str]:
        return ("", "") if self.now is None else (digest_definition(self.now.document), self.now.status)

    def _then(self) -> tuple[str, str]:
        return ("", "") if self.before is None else (self.before.digest, self.before.status)

    @property
    def digests(self) -> tuple[str, str]:
        """Of what was admitted and of what is listed, their states included; empty where there is nothing."""
        return tuple(":".join(one) if any(one) else "" for one in (self._then(), self._now()))  # type: ignore[return-value]

    def differences(self) -> list[Difference]:
        """Every place of the record that differs, and the state that the registry gives it."""
        before = {} if self.before is None else {"record": self.before.record, "status": self.before.status}
        now = {} if self.now is None else {"record": self.now.document, "status": self.now.status}
        return differences(before, now)


def _is_older(one: str, other: str) -> bool:
    """By MAJOR.MINOR.PATCH; of other versions nobody knows."""
    found = [re.match(r"v?([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})", text) for text in (one, other)]
    numbers = [tuple(map(int, match.groups())) for match in found if match]
    return len(numbers) == 2 and numbers[0] < numbers[1]


@dataclass(frozen=True, slots=True)
class Look:
    """What was shown."""

    proposals: tuple[Proposal, ...]

    @property
    def open(self) -> list[Proposal]:
        """What can be accepted: admissions, changes, and removals of what was admitted."""
        return [
            one
            for one in self.proposals
            if one.state in {"new", "changed"} or (one.state == "gone" and one.before is not None)
        ]

    @property
    def moved(self) -> list[Proposal]:
        """What was admitted and is not so any more."""
        return [one for one in self.proposals if one.before is not None and one.state != "admitted"]

    @property
    def seen(self) -> str:
        """The digest of exactly what can be accepted."""
        return digest([[one.name, *one.digests] for one in self.open])


def look(
    entries: Sequence[Entry], lock: Lock, names: Collection[str], *, private: bool, whole: bool, publisher: str = ""
) -> Look:
    """All that is listed or admitted, or these names alone. `whole`: what is not listed is gone."""
    found, doubts = newest(entries)
    known = {*found, *doubts, *lock}
    proposals = []
    for name in sorted(known & set(names) if names else known):
        now, before = found.get(name), lock.get(name)
        if now is None and name not in doubts and not whole:
            continue
        faults = [doubts[name]] if name in doubts else list(unfit(now, publisher, private=private)) if now else []
        if name in doubts:
            now = next(one for one in entries if one.name == name)
        proposals.append(Proposal(name, before, now, tuple(faults)))
    return Look(tuple(proposals))


def unfit(entry: Entry, publisher: str, *, private: bool) -> Iterable[str]:
    """Why a record can't be admitted."""
    if entry.fault:
        yield entry.fault
        return
    flaws = [flaw for flaw in judge(entry.document, publisher, private=private) if not flaw.note]
    yield from (_line(flaw) for flaw in flaws if flaw.rule not in TOLERATED)
    if entry.status == "unknown":
        yield "the registry gives it a state that is none"
    if not any(flaw.rule in {"schema", "schema-unknown"} for flaw in flaws) and not urls_of(entry.document):
        yield "no remote is streamable-http at a URL without variables and query: there is nothing to front"


def _line(flaw: Flaw) -> str:
    return f"{flaw.rule}: {flaw.pointer or '/'} {flaw.what}"


def urls_of(record: Mapping[str, Any]) -> list[str]:
    """Where a record's server can be reached by a gateway."""
    remotes = record.get("remotes", ())
    urls = [one["url"] for one in remotes if one.get("type") == "streamable-http"]
    return [url for url in urls if not variables_of(url) and "?" not in url]


def accept(  # noqa: PLR0917 - all that an acceptance is made of
    lock: Lock, found: Iterable[Proposal], by: str, at: str, taken: Collection[str], named: str = ""
) -> dict[str, Locked]:
    """The lock after these proposals were accepted. `taken`: servers of the configuration; `named`: for the one."""
    after = dict(lock)
    for one in found:
        if one.now is None or one.state == "gone":
            after.pop(one.name, None)
            continue
        used = {*taken, *(kept.server for name, kept in after.items() if name != one.name)}
        server = one.before.server if one.before else named or server_name(one.name, used)
        document = one.now.document
        after[one.name] = Locked(
            server, one.now.version, one.now.status, document, digest_definition(document), by, at
        )
    return after


def server_name(name: str, used: Collection[str]) -> str:
    """The name under which the gateway fronts a record: its own in a setting's letters, and unique."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:LONGEST].rstrip("-") or "server"
    if plain not in used:
        return plain
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{plain[: LONGEST - 9].rstrip('-')}-{mark}"
