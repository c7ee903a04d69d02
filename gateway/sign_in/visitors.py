"""Who stands before a page: the session that a cookie names, and the person whom its access token names *now*.

A session carries no authority. Its token is verified for every request exactly like a bearer token of the approvals
API; where it ended, it is renewed if the issuer still gives one, and else the visit is over. One request alone renews
a token, whichever replica serves it: issuers take a refresh token that comes twice for a stolen one.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import orjson
from starlette.requests import Request

from approvals.review.visitors import Visit, comes_by_itself
from approvals.visits import Entry, Visits
from gateway.contract.identity import Implications
from gateway.contract.passage import Identity, Server
from gateway.contract.refusals import Refusal, Refused
from gateway.foresight import person_of
from gateway.sealing import NotSealed, Sealer
from gateway.sign_in.cookies import Cookie
from gateway.sign_in.provider import Granted, Provider, RefreshRefused
from gateway.tokens import Tokens

TOUCH_S = 60.0
RENEW_BEFORE_S = 20.0
LEASE_S = 20.0
LOOK_S = 0.1
MOST_RENEWALS = 1000


@dataclass(frozen=True, slots=True)
class Kept:
    """What a session keeps under seal. `renewable_at`: when the access token is as good as ended."""

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    form_key: str = field(repr=False)
    name: str
    renewable_at: float


@dataclass(frozen=True, slots=True)
class Session:
    """A session as it was found: its row, and what was under the seal."""

    entry: Entry
    kept: Kept


class Visitors:
    """The port of the pages (approvals/review/visitors.py), and where sessions begin and end."""

    def __init__(
        self,
        *,
        table: Visits,
        tokens: Tokens,
        providers: Mapping[str, Provider],
        resource: Server,
        implications: Implications,
        keys: Sequence[bytes],
        cookie: Cookie,
        session_s: float,
        idle_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._table = table
        self._tokens = tokens
        self._providers = providers
        self._resource = resource
        self._implications = implications
        self._sealer = Sealer(keys, "visits")
        self._cookie = cookie
        self._session_s = session_s
        self._idle_s = idle_s
        self._clock = clock
        self._renewals: dict[str, asyncio.Task[Session | None]] = {}

    async def visit(self, request: Request) -> Visit | None:
        """The visit of this request, or None. Raises `StoreUnavailable`, and `Refused` where nothing can be known:
        KEYS_UNAVAILABLE, SIGN_IN_UNAVAILABLE."""
        session = await self.find(request)
        if session is None:
            return None
        now, away = self._clock(), None
        if session.kept.refresh_token and now >= session.kept.renewable_at:
            try:
                session = await self._renewed(session)
            except Refused as refused:
                away = refused  # the token that is there may be good for some seconds yet
            if session is None:
                return None
        entry, kept = session.entry, session.kept
        try:
            identity = await self.identify(kept.access_token)
        except Refused as refused:
            if refused.refusal is not Refusal.TOKEN_INVALID:
                raise
            if away is not None:
                raise away from None
            await self._table.remove(entry.id)
            return None
        if (identity.issuer, identity.subject) != (entry.issuer, entry.subject):
            await self._table.remove(entry.id)
            return None
        if not comes_by_itself(request) and now - entry.seen_at > min(TOUCH_S, self._idle_s / 4):
            await self._table.touch(entry.id, now)
        return Visit(person_of(identity, self._implications), kept.form_key, entry.ends_at, kept.name)

    async def find(self, request: Request) -> Session | None:
        """The session of this request, whatever became of its token, or None."""
        secret = self._cookie.read(request)
        return None if secret is None else await self._look_up(_id_of(secret))

    async def _look_up(self, visit_id: str) -> Session | None:
        entry, now = await self._table.find(visit_id), self._clock()
        if entry is None or not now < entry.ends_at or not now < entry.seen_at + self._idle_s:
            return None
        try:
            return Session(entry, Kept(**orjson.loads(self._sealer.open(entry.sealed, entry.id.encode()))))
        except NotSealed:  # by a key that is not here any more
            return None

    async def identify(self, access_token: str) -> Identity:
        """Whom an access token names, by the rules of the approvals API. Raises `Refused`."""
        return await self._tokens.identify(
            [b"Bearer " + access_token.encode("ascii", "replace")],
            resource=self._resource.resource,
            issuers=self._resource.issuers,
            alone=True,
        )

    async def begin(self, request: Request, identity: Identity, granted: Granted, name: str) -> str:
        """A new session of a person -> the cookie's secret. It never has an earlier session's, which ends here.

        The forms of the same person's other tabs, which the earlier session gave them, go on being theirs.
        """
        secret, now = secrets.token_urlsafe(32), self._clock()
        before = await self.find(request)
        is_same = before is not None and (before.entry.issuer, before.entry.subject) == (
            identity.issuer,
            identity.subject,
        )
        form_key = before.kept.form_key if before is not None and is_same else secrets.token_urlsafe(32)
        kept = Kept(granted.access_token, granted.refresh_token, form_key, name, _renewable_at(identity))
        visit_id = _id_of(secret)
        entry = Entry(
            visit_id, identity.issuer, identity.subject, now, now, now + self._session_s, self._seal(visit_id, kept)
        )
        earlier = self._cookie.read(request)
        await self._table.add(entry, None if earlier is None else _id_of(earlier), now)
        return secret

    async def end(self, session: Session, *, everywhere: bool) -> int:
        """End a session, or all of its person's -> how many ended."""
        entry = session.entry
        if everywhere:
            return await self._table.remove_all(entry.issuer, entry.subject)
        return int(await self._table.remove(entry.id))

    def _seal(self, visit_id: str, kept: Kept) -> str:
        return self._sealer.seal(orjson.dumps(asdict(kept)), visit_id.encode())

    async def _renewed(self, session: Session) -> Session | None:
        """The session with a token that is good again, or None where it is over. Requests of one session share it."""
        name = session.entry.id
        flight = self._renewals.get(name)
        if flight is None:
            if len(self._renewals) >= MOST_RENEWALS:
                raise Refused(Refusal.SIGN_IN_UNAVAILABLE, "too many sessions are being renewed")
            flight = self._renewals[name] = asyncio.create_task(self._renew(session), name="renewal of a session")
            flight.add_done_callback(lambda done: self._renewal_ended(name, done))
        return await asyncio.shield(flight)  # a browser that goes away must not take the answer from the others

    def _renewal_ended(self, name: str, done: asyncio.Task[Session | None]) -> None:
        self._renewals.pop(name, None)
        if not done.cancelled():
            done.exception()  # everybody who waited may be gone

    async def _renew(self, session: Session) -> Session | None:
        entry, now = session.entry, self._clock()
        provider = self._providers.get(entry.issuer)
        if provider is None:  # signed in by an issuer that does not sign in any more
            await self._table.remove(entry.id)
            return None
        if not await self._table.lease(entry, now, now + LEASE_S):
            return await self._await_another(session)
        try:
            granted = await provider.renew(session.kept.refresh_token)
        except RefreshRefused:
            await self._table.remove(entry.id)
            return None
        except Refused as refused:
            if refused.refusal is Refusal.SIGN_IN_UNAVAILABLE:
                await self._table.release(entry)
                raise
            await self._table.remove(entry.id)  # what was given is of no usable form
            return None
        kept = replace(session.kept, access_token=granted.access_token, refresh_token=granted.refresh_token)
        try:
            kept = replace(kept, renewable_at=_renewable_at(await self.identify(granted.access_token)))
        except Refused:
            # Whoever asked for the visit says what is wrong with it. The refresh token must be kept all the same: the
            # earlier one is spent.
            kept = replace(kept, renewable_at=now)
        sealed = self._seal(entry.id, kept)
        if not await self._table.renew(entry, sealed):
            return None  # signed out meanwhile
        return Session(replace(entry, sealed=sealed, version=entry.version + 1), kept)

    async def _await_another(self, session: Session) -> Session | None:
        """Another replica renews: what it kept, or None where it found the session's end."""
        entry = session.entry
        for _ in range(round(LEASE_S / LOOK_S)):
            found = await self._look_up(entry.id)
            if found is None or found.entry.version != entry.version:
                return found
            if found.entry.lease_until <= self._clock():
                break
            await asyncio.sleep(LOOK_S)
        raise Refused(Refusal.SIGN_IN_UNAVAILABLE, "another replica did not renew the session in time")

    async def close(self) -> None:
        """Let renewals come to an end: their issuer has given a token that nobody else knows."""
        if self._renewals:
            await asyncio.wait(set(self._renewals.values()), timeout=LEASE_S)


def _id_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _renewable_at(identity: Identity) -> float:
    return identity.expires_at - RENEW_BEFORE_S
