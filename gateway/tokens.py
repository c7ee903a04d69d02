"""Bearer token -> who calls: exactly one credential, one reading, one issuer, one audience (contract.md section 6).

Invariant: an `Identity` leaves only for a token whose signature, type, issuer, audience and times were checked for
this server at this moment (RFC 9068, RFC 8725); whatever else happens is a refusal, never a nameless caller.
A token that is remembered is judged again each time it comes. Signatures are checked in turns, so that whoever floods
us with forged ones keeps nobody waiting whose token is known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any

from gateway.contract.identity import identity_from_claims, read_audience, read_time
from gateway.contract.passage import Identity
from gateway.contract.refusals import Refusal, Refused
from gateway.issuers import Issuer, Issuers, IssuerSettings, read_claims
from gateway.keys import KeyUpkeep
from gateway.remembered import EXPIRED, Hopeless, Remembered, Verified
from gateway.signatures import NOT_SIGNED, TOKEN_BYTES, Key, check_signature, invalid, read_compact
from gateway.turns import Turns

MAX_LEEWAY_S = 60.0
CHECKS = 8
"""Signatures that are checked in one turn of the loop: half a millisecond of ES256, four of ES384 or ES512."""
UPKEEP = KeyUpkeep()


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
        upkeep: KeyUpkeep = UPKEEP,
        remember: int = 4096,
        remember_hopeless: int = 1024,
        waiting: int = 1000,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= leeway_s <= MAX_LEEWAY_S:
            raise ValueError(f"leeway_s: must lie within 0 and {MAX_LEEWAY_S:.0f}")
        self.issuers = Issuers(issuers, upkeep, monotonic)
        self._leeway_s = leeway_s
        self._waiting = waiting
        self._clock = clock
        self._known = Remembered(remember, remember_hopeless, clock)
        self._turns = Turns(CHECKS)

    async def start(self) -> None:
        """Load all issuers' keys: see `Issuers.start`."""
        await self.issuers.start()

    async def close(self) -> None:
        """Close the issuers, forget every token."""
        await self.issuers.close()
        self._known.forget()

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
            verified = self._known.find(digest)
            if verified is None:
                verified = await self._verify(token, digest, resource, issuers, alone)
                self._known.keep(digest, verified)
            else:
                self._judge(verified, resource, issuers, alone)
                self._known.use(digest)
            return verified.identity  # noqa: TRY300 - no line of this may run outside the net below
        except Refused:
            raise
        except Exception as fault:  # a token that breaks the verifier is not verified; it must not become a 500
            raise Refused(Refusal.TOKEN_INVALID, f"the verification failed: {type(fault).__name__}") from fault

    def _judge(self, verified: Verified, resource: str, issuers: frozenset[str], alone: bool) -> None:
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

    async def _verify(
        self, token: bytes, digest: bytes, resource: str, issuers: frozenset[str], alone: bool
    ) -> Verified:
        """Read, find the key, hear the claims, check the signature; only then believe what they say.

        What its own claims rule out is refused before the arithmetic, which costs more than all the rest: so a flood
        of old tokens is cheap. One that is shown again is not even read again, as long as its key is there.
        """
        self._known.recall(digest, resource, issuers, alone)
        signed = read_compact(token)
        claims = read_claims(signed)
        name = claims.get("iss")
        issuer = self.issuers.by_name.get(name) if isinstance(name, str) and name in issuers else None
        if issuer is None:
            invalid("the issuer is not accepted here")
        issuer.check_algorithm(signed)
        issuer.check_type(signed)
        key = await issuer.keys.find(signed)
        verified = self._believe(claims, issuer, key)
        try:
            self._judge(verified, resource, issuers, alone)
            await self._wait_for_turn()
            self._judge(verified, resource, issuers, alone)  # time has passed, and keys may have
            if key.retired:
                invalid("the token's key was withdrawn before its signature was checked")
            self._known.recall(digest, resource, issuers, alone)
            twin = self._known.find(digest)  # the same text, shown by others, whose turn came before
            if twin is None or twin.key is not key:
                check_signature(signed, key)
        except Refused as refused:
            if refused.detail == NOT_SIGNED:
                self._known.give_up(digest, Hopeless(key, issuer))
            elif refused.detail == EXPIRED:
                self._known.give_up(digest, Hopeless(key, issuer, (verified.expires, resource, alone)))
            raise
        return verified

    async def _wait_for_turn(self) -> None:
        """Until a signature may be checked. Raises `Refused(OVERLOADED)`.

        Checks stand together in a turn of the loop also because what comes between two of them finds its caches full
        of the curve's tables: together, a refusal costs a tenth less.
        """
        if len(self._turns) >= self._waiting:
            raise Refused(Refusal.OVERLOADED, "too many tokens wait for the check of their signature")
        await self._turns.take()

    def _believe(self, claims: dict[str, Any], issuer: Issuer, key: Key) -> Verified:
        """Claims -> what is remembered of the token, once its signature was found good: until then, nothing."""
        if "cnf" in claims:
            invalid("the token is bound to a key and can't be used as a plain bearer token")
        settings, leeway = issuer.settings, self._leeway_s
        expires, issued = read_time(claims, "exp"), read_time(claims, "iat", default=-math.inf)
        began = min(self._clock(), issued) if "iat" in claims else self._clock()
        if expires - began > settings.max_lifetime_s + leeway:
            invalid("the token lives too long")
        return Verified(
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
