"""Bearer token -> who calls: exactly one credential, one reading, one issuer, one audience (contract.md section 6).

Invariant: an `Identity` leaves only for a token whose signature, type, issuer, audience and times were checked for
this server at this moment (RFC 9068, RFC 8725); whatever else happens is a refusal, never a nameless caller.
Verified tokens are remembered by the digest of their whole text; a hit is judged again. Of those that time or their
signature rules out, no more is remembered than that. Signatures are checked in turns, so that whoever floods us with
forged ones keeps nobody waiting whose token is known.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from gateway.contract.identity import identity_from_claims, read_audience, read_time
from gateway.contract.passage import Identity
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.strict_json import NotStrict
from gateway.keys import KeySource, Upkeep, from_discovery, from_file, from_url, is_secure_url
from gateway.serving.plain import load_plain
from gateway.signatures import (
    ALGORITHMS,
    NOT_SIGNED,
    TOKEN_BYTES,
    Key,
    Signed,
    check_signature,
    invalid,
    read_compact,
    strict_object,
)
from gateway.turns import Turns

if TYPE_CHECKING:
    import httpx

log = structlog.get_logger(__name__)

MAX_LEEWAY_S = 60.0
ACCESS_TOKEN_TYPE = "at+jwt"  # noqa: S105 - a media type, RFC 9068
EXPIRED = "the token is expired"
CHECKS = 8
"""Signatures that are checked in one turn of the loop: half a millisecond of ES256, four of ES384 or ES512."""
UPKEEP = Upkeep()


@dataclass(frozen=True, slots=True)
class IssuerSettings:
    """One authorization server whose tokens are accepted. Raises ValueError naming the setting that can't be.

    Keys come from `jwks_uri`, or from `jwks_file`, or, where neither is given, from where the issuer's metadata says.
    `token_types` are accepted `typ` values besides `at+jwt` (`""`: no `typ` at all). `max_lifetime_s` bounds `exp`
    counted from now and from `iat`.
    """

    issuer: str
    algorithms: tuple[str, ...] = ("ES256", "RS256")
    jwks_uri: str | None = None
    jwks_file: Path | None = None
    token_types: tuple[str, ...] = ()
    tenant_claim: str = ""
    groups_claim: str = "groups"
    max_lifetime_s: float = 86400.0

    def __post_init__(self) -> None:
        if not self.issuer:
            raise ValueError("issuer: must not be empty")
        if not self.algorithms:
            raise ValueError(f"algorithms of {self.issuer}: at least one must be named")
        for name in self.algorithms:
            if name not in ALGORITHMS:
                raise ValueError(f"algorithms of {self.issuer}: {name!r} is none of {', '.join(ALGORITHMS)}")
        if self.jwks_uri is not None and self.jwks_file is not None:
            raise ValueError(f"jwks_uri and jwks_file of {self.issuer}: only one can be given")
        if self.jwks_uri is not None and not is_secure_url(self.jwks_uri):
            raise ValueError(f"jwks_uri of {self.issuer}: must be https, or http to this machine")
        if (
            self.jwks_uri is None
            and self.jwks_file is None
            and not (is_secure_url(self.issuer) and "?" not in self.issuer)
        ):
            raise ValueError(f"issuer {self.issuer}: discovery needs an https URL without a query")
        if not 0 < self.max_lifetime_s < math.inf:
            raise ValueError(f"max_lifetime_s of {self.issuer}: must be a positive number of seconds")


@dataclass(frozen=True, slots=True)
class _Issuer:
    """An issuer as verification needs it."""

    settings: IssuerSettings
    algorithms: frozenset[str]
    types: frozenset[str]
    keys: KeySource


@dataclass(frozen=True, slots=True)
class _Verified:
    """A token that was verified: what must be looked at again each time it comes. Times in epoch seconds."""

    identity: Identity
    audience: frozenset[str]
    not_before: float
    expires: float
    key: Key
    keys: KeySource


@dataclass(frozen=True, slots=True)
class _Hopeless:
    """A token that was refused, and will be as long as its key is there: nobody signed it, or its time is over.

    `expired` is that of the latter, with the resource that it was shown for, and whether that was to be the only one:
    what is judged before the time depends on them. Nothing of its claims: strangers wrote them.
    """

    key: Key
    issuer: _Issuer
    expired: tuple[float, str, bool] | None = None


class Tokens:
    """The accepted issuers, their keys, and the tokens that were verified lately.

    Bound for life to the settings that it was made of: another configuration is another `Tokens`, with nothing
    remembered. `clock` gives epoch seconds, `monotonic` seconds that only grow; `remember` bounds what is
    remembered of good tokens, `remember_hopeless` of those that never will be, `waiting` how many wait to be checked.
    Raises ValueError for settings that would accept too much or nothing.
    """

    def __init__(
        self,
        issuers: Iterable[IssuerSettings],
        *,
        leeway_s: float = 30.0,
        upkeep: Upkeep = UPKEEP,
        remember: int = 4096,
        remember_hopeless: int = 1024,
        waiting: int = 1000,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= leeway_s <= MAX_LEEWAY_S:
            raise ValueError(f"leeway_s: must lie within 0 and {MAX_LEEWAY_S:.0f}")
        self._leeway_s = leeway_s
        self._upkeep = upkeep
        self._remember = remember
        self._remember_hopeless = remember_hopeless
        self._waiting = waiting
        self._clock = clock
        self._monotonic = monotonic
        chosen = list(issuers)
        if not chosen:
            raise ValueError("issuers: at least one must be configured")
        if len({settings.issuer for settings in chosen}) != len(chosen):
            raise ValueError("issuers: one is configured twice")
        self._issuers = {settings.issuer: self._prepare(settings, monotonic) for settings in chosen}
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()
        self._hopeless: OrderedDict[bytes, _Hopeless] = OrderedDict()
        self._turns = Turns(CHECKS)

    @cached_property
    def _http(self) -> httpx.AsyncClient:
        load_plain("httpx")  # at the start, where an issuer is asked for its keys
        import httpx  # noqa: PLC0415

        # No redirects; no proxy, cookie or .netrc from the environment. SSL_CERT_FILE and SSL_CERT_DIR are honoured.
        return httpx.AsyncClient(
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            verify=httpx.create_ssl_context(),
            follow_redirects=False,
            trust_env=False,
            timeout=self._upkeep.deadline_s,
        )

    def _prepare(self, settings: IssuerSettings, monotonic: Callable[[], float]) -> _Issuer:
        upkeep, limit = self._upkeep, self._upkeep.document_bytes
        if settings.jwks_file is not None:
            load = from_file(settings.jwks_file, limit)
        elif settings.jwks_uri is not None:
            load = from_url(self._http, settings.jwks_uri, limit)
        else:
            load = from_discovery(self._http, settings.issuer, limit)
        local = settings.jwks_file is not None
        keys = KeySource(
            settings.issuer,
            load,
            upkeep,
            interval_s=upkeep.poll_s if local else upkeep.refresh_s,
            cooldown_s=None if local else upkeep.cooldown_s,
            monotonic=monotonic,
        )
        types = frozenset(_media_type(name) for name in (ACCESS_TOKEN_TYPE, *settings.token_types))
        return _Issuer(settings, frozenset(settings.algorithms), types, keys)

    @property
    def ready(self) -> bool:
        """Whether every issuer's keys were loaded; what fails later is `degraded`."""
        return all(issuer.keys.loaded for issuer in self._issuers.values())

    @property
    def degraded(self) -> tuple[str, ...]:
        """The issuers whose tokens get 503 now: no keys, or only stale ones."""
        return tuple(name for name, issuer in self._issuers.items() if not issuer.keys.fresh)

    def without_keys(self) -> dict[str, str]:
        """For `ostiary check`: issuer -> why its keys were never loaded."""
        sources = {name: issuer.keys for name, issuer in self._issuers.items()}
        return {name: keys.trouble or "it has no usable key" for name, keys in sources.items() if not keys.loaded}

    def key_ages(self) -> dict[str, float]:
        """For metrics: issuer -> seconds since its keys were last confirmed, where they ever were."""
        ages = {name: issuer.keys.age_s for name, issuer in self._issuers.items()}
        return {name: age for name, age in ages.items() if age < math.inf}

    def key_health(self) -> dict[str, bool]:
        """For metrics: issuer -> whether its keys were had when they were last asked for."""
        return {name: not issuer.keys.trouble for name, issuer in self._issuers.items()}

    async def start(self) -> None:
        """Load all keys, one deadline for all, and keep them fresh. An issuer that can't be reached is tried again
        in the background; `ready` says when all are there."""
        for issuer in self._issuers.values():
            if issuer.types != {ACCESS_TOKEN_TYPE}:
                log.warning("token_types_widened", issuer=issuer.settings.issuer, types=sorted(issuer.types))
        await asyncio.gather(*(issuer.keys.start() for issuer in self._issuers.values()))

    async def close(self) -> None:
        """Stop refreshing, close connections, forget every token."""
        await asyncio.gather(*(issuer.keys.close() for issuer in self._issuers.values()))
        if "_http" in self.__dict__:  # made only where an issuer's keys come over the network
            await self._http.aclose()
        self._verified.clear()
        self._hopeless.clear()

    async def identify(
        self, authorization: Sequence[bytes], *, resource: str, issuers: frozenset[str], alone: bool = False
    ) -> Identity:
        """All values of the `Authorization` header -> who calls, if the token is meant for `resource` and comes from
        one of `issuers`. `alone`: and is meant for nothing else, so that it opens no second door.

        Raises `Refused`: TOKEN_MISSING (no bearer token was sent), TOKEN_INVALID, KEYS_UNAVAILABLE, OVERLOADED (it is
        unknown, and too many such wait for their check). Nothing else.
        """
        try:
            token = _bearer(authorization)
            digest = sha256(token).digest()
            verified = self._verified.get(digest)
            if verified is None or verified.key.retired:
                verified = await self._verify(token, digest, resource, issuers, alone)
                self._keep(digest, verified)
            else:
                self._judge(verified, resource, issuers, alone)
                self._verified.move_to_end(digest)
            return verified.identity  # noqa: TRY300 - no line of this may run outside the net below
        except Refused:
            raise
        except Exception as fault:  # a token that breaks the verifier is not verified; it must not become a 500
            raise Refused(Refusal.TOKEN_INVALID, f"the verification failed: {type(fault).__name__}") from fault

    async def read_signed(self, text: str, issuer: str) -> tuple[Signed, dict[str, Any]]:
        """A JWS of `issuer`, by its keys and its algorithms -> its parts and claims, of which nothing else is known.

        Raises `Refused`: TOKEN_INVALID, KEYS_UNAVAILABLE.
        """
        signed = read_compact(text.encode("ascii", "replace"))
        try:
            claims = strict_object(signed.payload)
        except NotStrict:
            invalid("the claims are not one strict JSON object")
        known = self._issuers.get(issuer)
        if known is None or claims.get("iss") != issuer:
            invalid("the statement is another issuer's")
        if signed.alg not in known.algorithms:
            invalid("the algorithm is not accepted from this issuer")
        check_signature(signed, await known.keys.find(signed))
        return signed, claims

    def _judge(self, verified: _Verified, resource: str, issuers: frozenset[str], alone: bool) -> None:
        """Everything that depends on the moment and the server. Never awaits."""
        if not verified.keys.fresh:
            raise Refused(Refusal.KEYS_UNAVAILABLE, f"no fresh keys of {verified.identity.issuer}")
        if verified.identity.issuer not in issuers:
            invalid("the issuer is not accepted here")
        if resource not in verified.audience:
            invalid("the token is for another audience")
        if alone and len(verified.audience) != 1:
            invalid("the token is for other audiences as well")
        now = self._clock()
        # Written so that a time that is no number fails too.
        if not now < verified.expires:
            invalid(EXPIRED)
        if not now >= verified.not_before:
            invalid("the token is not valid yet")

    def _keep(self, digest: bytes, verified: _Verified) -> None:
        self._verified[digest] = verified
        self._verified.move_to_end(digest)
        if len(self._verified) > self._remember:
            self._verified.popitem(last=False)

    async def _verify(
        self, token: bytes, digest: bytes, resource: str, issuers: frozenset[str], alone: bool
    ) -> _Verified:
        """Read, find the key, hear the claims, check the signature; only then believe what they say.

        What its own claims rule out is refused before the arithmetic, which costs more than all the rest: so a flood
        of old tokens is cheap. One that is shown again is not even read again, as long as its key is there.

        Checks stand together in a turn of the loop also because what comes between two of them finds its caches full
        of the curve's tables: together, a refusal costs a tenth less.
        """
        self._recall(digest, resource, issuers, alone)
        signed = read_compact(token)
        try:
            claims = strict_object(signed.payload)
        except NotStrict:
            invalid("the claims are not one strict JSON object")
        name = claims.get("iss")
        issuer = self._issuers.get(name) if isinstance(name, str) and name in issuers else None
        if issuer is None:
            invalid("the issuer is not accepted here")
        if signed.alg not in issuer.algorithms:
            invalid("the algorithm is not accepted from this issuer")
        _check_type(signed, issuer)
        key = await issuer.keys.find(signed)
        verified = self._believe(claims, issuer, key)
        try:
            self._judge(verified, resource, issuers, alone)
            if len(self._turns) >= self._waiting:
                raise Refused(Refusal.OVERLOADED, "too many tokens wait for the check of their signature")
            await self._turns.take()
            self._judge(verified, resource, issuers, alone)  # time has passed, and keys may have
            if key.retired:
                invalid("the token's key was withdrawn before its signature was checked")
            self._recall(digest, resource, issuers, alone)
            twin = self._verified.get(digest)  # the same text, shown by others, whose turn came before
            if twin is None or twin.key is not key:
                check_signature(signed, key)
        except Refused as refused:
            if refused.detail == NOT_SIGNED:
                self._give_up(digest, _Hopeless(key, issuer))
            elif refused.detail == EXPIRED:
                self._give_up(digest, _Hopeless(key, issuer, (verified.expires, resource, alone)))
            raise
        return verified

    def _give_up(self, digest: bytes, hopeless: _Hopeless) -> None:
        self._hopeless[digest] = hopeless
        if len(self._hopeless) > self._remember_hopeless:
            self._hopeless.popitem(last=False)

    def _recall(self, digest: bytes, resource: str, issuers: frozenset[str], alone: bool) -> None:
        """Refuse at once what would be refused for the same reason again, were it read: it is the same text."""
        known = self._hopeless.get(digest)
        if known is None:
            return
        if known.key.retired:
            del self._hopeless[digest]  # another key may go by its name
            return
        if not known.issuer.keys.fresh or known.issuer.settings.issuer not in issuers:
            return
        if known.expired is None:
            self._hopeless.move_to_end(digest)
            invalid(NOT_SIGNED)
        expires, *shown_for = known.expired
        if shown_for == [resource, alone] and not self._clock() < expires:
            self._hopeless.move_to_end(digest)
            invalid(EXPIRED)

    def _believe(self, claims: dict[str, Any], issuer: _Issuer, key: Key) -> _Verified:
        """Claims -> what is remembered of the token, once its signature was found good: until then, nothing."""
        if "cnf" in claims:
            invalid("the token is bound to a key and can't be used as a plain bearer token")
        settings, leeway = issuer.settings, self._leeway_s
        expires, issued = read_time(claims, "exp"), read_time(claims, "iat", default=-math.inf)
        began = min(self._clock(), issued) if "iat" in claims else self._clock()
        if expires - began > settings.max_lifetime_s + leeway:
            invalid("the token lives too long")
        return _Verified(
            identity=identity_from_claims(claims, settings.tenant_claim, settings.groups_claim),
            audience=read_audience(claims),
            not_before=max(issued, read_time(claims, "nbf", default=-math.inf)) - leeway,
            expires=expires + leeway,
            key=key,
            keys=issuer.keys,
        )


def _bearer(authorization: Sequence[bytes]) -> bytes:
    """The one credential. Another scheme counts as none, as RFC 6750 section 3.1 has it."""
    if not authorization:
        raise Refused(Refusal.TOKEN_MISSING, "no Authorization header")
    if len(authorization) != 1:
        invalid("more than one Authorization header")
    credential = authorization[0]
    if len(credential) > TOKEN_BYTES + 16:
        invalid("the token is too long")
    scheme, _, token = credential.partition(b" ")
    if scheme.lower() != b"bearer":
        raise Refused(Refusal.TOKEN_MISSING, "the Authorization header is not of the Bearer scheme")
    return token.lstrip(b" ")


def _media_type(name: str) -> str:
    """RFC 7515 section 4.1.9: compared without case, `application/` may be left out."""
    return name.lower().removeprefix("application/")


def _check_type(signed: Signed, issuer: _Issuer) -> None:
    given = signed.header.get("typ")
    if given is None and "typ" not in signed.header:
        accepted = "" in issuer.types
    else:
        accepted = isinstance(given, str) and (kind := _media_type(given)) != "" and kind in issuer.types
    if not accepted:
        invalid("the token's typ is not that of an access token: at+jwt, or one of the issuer's token_types")
