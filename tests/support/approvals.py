"""Parts for tests of approvals: people, effects, a clock set by hand, a journal that can fail, desks on a file."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import rfc8785

from approvals.approvers import Person
from approvals.desk import Desk
from approvals.store import Store
from approvals.ticket import Asked, Claimed, Held, State, Terms, Transition

ISSUER = "https://people.example"
OTHER_ISSUER = "https://other.example"
PAGE = "https://mcp.example/review"
KEY = bytes(range(32))
SCOPES = frozenset({"approvals:read", "approvals:request", "approvals:decide"})
TERMS = Terms(uses=1, ttl_s=3600, approvers=("group:payers",), min_approvers=1)


def person(name: str, *, issuer: str = ISSUER, groups: Sequence[str] = (), scopes: frozenset[str] = SCOPES) -> Person:
    """Somebody with every scope of the approvals API and these groups."""
    return Person(issuer, name, client="cli", scopes=scopes, groups=frozenset(groups))


ALICE = person("alice")
BOB = person("bob", groups=["payers"])
CAROL = person("carol", groups=["payers"])
MALLORY = person("mallory")


def digest(**parts: Any) -> str:
    """SHA-256 of the RFC 8785 form, as the house makes it."""
    return hashlib.sha256(rfc8785.dumps(parts)).hexdigest()


def effect(arguments: Mapping[str, Any] | None = None, **changes: str) -> Asked:
    """Alice's call of `pay`, with these changes."""
    arguments = {"amount": 100, "to": "IBAN"} if arguments is None else arguments
    parts: dict[str, Any] = {
        "issuer": ISSUER,
        "subject": "alice",
        "client": "agent",
        "server": "bank",
        "resource": "https://mcp.example/bank/mcp",
        "environment": "production",
        "method": "tools/call",
        "name": "pay",
    } | {key: value for key, value in changes.items() if key != "tool_digest"}
    return Asked(
        **parts,
        arguments=arguments,
        digest=digest(**parts, arguments=arguments),
        tool_digest=changes.get("tool_digest", "tool-1"),
    )


def grant_of(asked: Asked, vary: Mapping[str, Any], bounds: Mapping[str, Any] | None = None) -> Asked:
    """A grant of calls like this one."""
    both = {"schema": vary, "bounds": bounds or {}}
    parts = {name: getattr(asked, name) for name in ("issuer", "subject", "client", "server", "resource")}
    return replace(asked, arguments={}, vary=both, digest=digest(**parts, name=asked.name, vary=both))


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Journal:
    """Keeps every transition; raises `broken` instead where it is set."""

    def __init__(self) -> None:
        self.kept: list[Transition] = []
        self.broken: Exception | None = None

    async def __call__(self, transition: Transition) -> None:
        if self.broken is not None:
            raise self.broken
        self.kept.append(transition)

    @property
    def verbs(self) -> list[str]:
        """The verbs, in order."""
        return [transition.verb for transition in self.kept]


class Bench:
    """A desk on a store, with its clock and its journal."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.store = store
        self.clock: Clock = options.setdefault("clock", Clock())
        self.journal = Journal()
        given: dict[str, Any] = {"page_url": PAGE, "issuers": [ISSUER]}
        self.desk = Desk(store, self.journal, **(given | options))

    async def settle(self, asked: Asked | None = None, *, terms: Terms = TERMS, **more: Any) -> Claimed | Held:
        """What the corridor asks."""
        more = {"claims": {}, "reasons": ("large_payment",), "mask": ()} | more
        return await self.desk.settle(effect() if asked is None else asked, terms=terms, **more)

    async def held(self, asked: Asked | None = None, **more: Any) -> Held:
        """Settle, and be held."""
        settled = await self.settle(asked, **more)
        assert isinstance(settled, Held)
        return settled

    async def claimed(self, asked: Asked | None = None, **more: Any) -> Claimed:
        """Settle, and have a use."""
        settled = await self.settle(asked, **more)
        assert isinstance(settled, Claimed)
        return settled

    async def approved(self, asked: Asked | None = None, *, by: Person = BOB, **more: Any) -> str:
        """Hold the call, and have it approved -> the ticket's id."""
        held = await self.held(asked, **more)
        assert held.why == "pending"
        shown = await self.desk.act("approve", by, held.ticket.id)
        assert shown["state"] == State.APPROVED
        return held.ticket.id


@asynccontextmanager
async def bench(
    where: Path | str, *, keys: Sequence[bytes] = (KEY,), limit_s: float = 2.0, **options: Any
) -> AsyncIterator[Bench]:
    """A started store on this file, or database, with a desk before it."""
    clock = options.setdefault("clock", Clock())
    url = where if isinstance(where, str) else f"sqlite:///{where}"
    store = Store(url, keys, limit_s=limit_s, clock=clock)
    await store.start()
    try:
        yield Bench(store, **options)
    finally:
        await store.close()


def contents(path: Path) -> bytes:
    """Every byte that the database keeps: file, log and index."""
    return b"".join(file.read_bytes() for file in path.parent.glob(path.name + "*"))
