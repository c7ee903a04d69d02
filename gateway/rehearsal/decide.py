"""One request, decided and not made: the corridor's own walk, halted where it would consume, wait or forward.

Rooms that keep what came before (tickets, held calls, tasks) are closed: a request that goes on with an earlier one
can't be decided from outside, and is said to be so rather than guessed at.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, SupportsBytes, cast

import orjson

from gateway.budgets import Budgets
from gateway.catalog import Catalog
from gateway.contract.identity import Implications, identity_from_claims
from gateway.contract.legacy import Answered
from gateway.contract.passage import Identity, Passage, Received, Server
from gateway.contract.refusals import Refused
from gateway.delivery import TRANSLATED, translate
from gateway.eras import Eras
from gateway.grants import Grants
from gateway.handles import Handles
from gateway.legs import Needed
from gateway.pipeline import Corridor
from gateway.repeats import Repeats
from gateway.seals import Seals
from gateway.streams import Streams
from gateway.tokens import Tokens
from policies.around import Around
from policies.port import Engine, Policy
from policies.verdict import Verdict

MEMBERS: Final = {"server", "token", "claims", "headers", "body"}
KEYS_WITHIN_S: Final = 10.0


class CannotDecide(Exception):  # noqa: N818 - what it is
    """The request is none that can be decided here; the text says why."""


class Halted(Exception):  # noqa: N818 - where the walk ended
    """Here an approval's use would have been consumed."""

    def __init__(self, needed: Needed) -> None:
        super().__init__("an approval is needed")
        self.needed = needed


class ClosedRoom:
    """In the place of a room that holds state of other requests: whoever looks into it can't be decided here."""

    def __getattr__(self, name: str) -> Any:
        raise CannotDecide(f"the request goes on with an earlier one ({name}), which only the gateway itself can")


class Halting(Corridor):
    """The corridor up to the first room that would change something."""

    async def settle(self, passage: Passage, needed: Needed) -> None:  # noqa: ARG002 - the signature is the corridor's
        """Nothing is consumed."""
        raise Halted(needed)


@dataclass(frozen=True, slots=True)
class Claimed:
    """In the place of `Tokens`: these claims are believed, as if a token had been verified."""

    identity: Identity

    async def identify(self, _: Sequence[bytes], *, resource: str, issuers: frozenset[str]) -> Identity:
        """The claims' identity. Raises `CannotDecide` for an issuer that is not accepted."""
        if self.identity.issuer not in issuers:
            raise CannotDecide(f"claims.iss: {resource} accepts no token of that issuer")
        return self.identity


class Overheard(Around):
    """The policy, whose last question and verdict are kept to be shown."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.question = b""

    async def judge(self, question: SupportsBytes) -> Verdict:
        """See the port."""
        self.question = bytes(question)
        return await self._policy.judge(question)


@dataclass(slots=True)
class Request:
    """`{server, token | claims, headers, body}` as read: an `Arrival`. Framing, Host and Origin are not judged."""

    server: Server | None
    at: Server
    claims: Mapping[str, Any] | None
    headers: tuple[tuple[bytes, bytes], ...]
    content: bytes

    def receive(self) -> Received:
        """The head."""
        return Received(self.at, "POST", self.at.path, self.headers)

    async def body(self) -> bytes:
        """The whole body."""
        return self.content


def read_request(text: bytes, servers: Mapping[str, Server]) -> Request:
    """The file's text -> `Request`. `body` is JSON, or a text that is sent as it stands. Raises `CannotDecide`."""
    try:
        document = orjson.loads(text)
    except ValueError as error:
        raise CannotDecide(f"not JSON: {error}") from error
    if not isinstance(document, dict) or document.keys() - MEMBERS:
        raise CannotDecide(f"must be an object of {', '.join(sorted(MEMBERS))}")
    server = servers.get(str(document.get("server")))
    if server is None:
        raise CannotDecide(f"server: must be one of {', '.join(sorted(servers))}")
    token, claims, headers = document.get("token"), document.get("claims"), document.get("headers", {})
    if (token is None) is (claims is None) or not isinstance(claims if token is None else {}, dict):
        raise CannotDecide("either token (a text) or claims (an object) says who calls")
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise CannotDecide("headers: must be an object of texts")
    lines = [(name.lower().encode(), value.strip().encode()) for name, value in headers.items()]
    if token is not None:
        lines = [line for line in lines if line[0] != b"authorization"]
        lines.append((b"authorization", f"Bearer {token}".encode()))
    body = document.get("body")
    content = body.encode() if isinstance(body, str) else orjson.dumps(body)
    return Request(server, server, claims, tuple(lines), content)


def identify_claims(claims: Mapping[str, Any], tenant_claim: str, groups_claim: str) -> Claimed:
    """Raises `CannotDecide` for claims that no token could have."""
    try:
        return Claimed(identity_from_claims({"exp": time.time() + 3600, **claims}, tenant_claim, groups_claim))
    except Refused as refused:
        raise CannotDecide(f"claims: {refused.detail}") from refused


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The rooms that a decision takes, open. `claims`: issuer -> the names of its tenant and groups claims."""

    engine: Engine
    tokens: Tokens
    catalog: Catalog
    seals: Seals
    handles: Handles
    eras: Eras
    implications: Implications
    volatile_meta: frozenset[str]
    servers: Mapping[str, Server]
    claims: Mapping[str, tuple[str, str]]
    record: Callable[[str, str, Mapping[str, Any]], Awaitable[None]]

    async def decide(self, text: bytes, by: str) -> tuple[dict[str, Any], bytes]:
        """A request's file -> what would become of it (`decide`), and the policy's question; recorded as done `by`.

        Raises `CannotDecide`, `AuditUnavailable`.
        """
        request = read_request(text, self.servers)
        tokens: Any = self.tokens
        if request.claims is not None:
            tokens = identify_claims(request.claims, *self.claims.get(str(request.claims.get("iss")), ("", "groups")))
        else:
            await self._keys()
        overheard, closed = Overheard(self.engine), cast(Any, ClosedRoom())
        corridor = Halting(
            tokens=tokens,
            catalog=self.catalog,
            policy=overheard,
            desk=closed,
            challenges=closed,
            grants=Grants(self.implications),
            repeats=Repeats(),  # a key is read, and nobody looks what stands under it
            budgets=Budgets(),  # full, and nobody else's: what others have used is not looked at
            holding=closed,
            errands=closed,
            seals=self.seals,
            handles=self.handles,
            eras=self.eras,
            sink=closed,
            delivery=cast(Any, SimpleNamespace(streams=Streams(), expect=_nothing, spawn=None)),
            redactor=closed,
            implications=self.implications,
            observer=closed,
            volatile_meta=self.volatile_meta,
        )
        told = await decide(corridor, overheard, request)
        refusal = told["refusal"]
        facts = {"server": request.at.name, "verdict": told["verdict"] or "", "revision": told["revision"]}
        facts |= {"refusal": refusal["name"] if refusal else "", "claims": request.claims is not None}
        await self.record("decide", by, facts)
        return told, overheard.question

    async def _keys(self) -> None:
        """A moment for issuers' keys to come; without them the refusal says so."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KEYS_WITHIN_S):
                while not self.tokens.issuers.ready:  # noqa: ASYNC110 - a command that looks once
                    await asyncio.sleep(0.05)


async def decide(corridor: Halting, overheard: Overheard, request: Request) -> dict[str, Any]:
    """Walk -> `{decision_id, forwarded, verdict, refusal, approval, policy, revision}`. Raises `CannotDecide`.

    `forwarded`: whether it would be, now. `refusal`: `{name, status, code, sentence, detail}` or null.
    """
    passage = corridor.open_passage(request.server)
    refused: Refused | None = None
    forwarded = needed = False
    try:
        await corridor.walk(request, passage)
        forwarded = True
    except Halted:
        needed = True
    except Answered:
        raise CannotDecide("the gateway itself answers this request") from None
    except Refused as found:
        refused = found
    except tuple(TRANSLATED) as error:
        refused = translate(error)
    verdict = passage.verdict
    return {
        "decision_id": passage.decision_id,
        "forwarded": forwarded,
        "verdict": verdict.effect.value if verdict else None,
        "refusal": _refusal(refused),
        "approval": "needed" if needed else None,
        "policy": _plain(verdict) if verdict else None,
        "revision": verdict.revision if verdict else overheard.revision,
    }


def _nothing(*_: object) -> None:
    """No place at a server is looked at: nothing is sent."""


def _refusal(refused: Refused | None) -> dict[str, Any] | None:
    if refused is None:
        return None
    row = refused.refusal.value
    return {
        "name": refused.refusal.reason, "status": row.status, "code": row.code, "sentence": row.sentence,
        "detail": refused.detail,
    }  # fmt: skip


def _plain(verdict: Verdict) -> dict[str, Any]:
    """The policy's answer, without what it did not say."""
    found = orjson.loads(orjson.dumps(verdict))
    return {name: value for name, value in found.items() if name != "revision" and value not in (None, [])}
