"""Tokens that came before, by the digest of their whole text: those that were verified, and those that never will be.

Invariant: what is known of a token ends with its key, and settles nothing that depends on the moment or the server. A
verified one is judged again each time; a hopeless one is refused only where it would be so if it were read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gateway.contract.passage import Identity
from gateway.issuers import Issuer
from gateway.keys import KeySource
from gateway.signatures import NOT_SIGNED, Key, invalid

EXPIRED = "the token is expired"


@dataclass(frozen=True, slots=True)
class Verified:
    """A token that was verified: what must be looked at again each time it comes. Times in epoch seconds."""

    identity: Identity
    audience: frozenset[str]
    not_before: float
    expires: float
    key: Key
    keys: KeySource


@dataclass(frozen=True, slots=True)
class Hopeless:
    """A token that was refused, and will be as long as its key is there: nobody signed it, or its time is over.

    `expired` is that of the latter, with the resource that it was shown for, and whether that was to be the only one:
    what is judged before the time depends on them. Nothing of its claims: strangers wrote them.
    """

    key: Key
    issuer: Issuer
    expired: tuple[float, str, bool] | None = None


class Remembered:
    """At most `most` verified tokens, of which the one goes first that was used least lately, and `most_hopeless` of
    the others. `clock` gives epoch seconds.
    """

    def __init__(self, most: int, most_hopeless: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._most_hopeless = most_hopeless
        self._clock = clock
        self._verified: OrderedDict[bytes, Verified] = OrderedDict()
        self._hopeless: OrderedDict[bytes, Hopeless] = OrderedDict()

    def find(self, digest: bytes) -> Verified | None:
        """The token, if it was verified by a key that is still there."""
        verified = self._verified.get(digest)
        return None if verified is None or verified.key.retired else verified

    def keep(self, digest: bytes, verified: Verified) -> None:
        """It was verified."""
        self._verified[digest] = verified
        self._verified.move_to_end(digest)  # it may have been there, by a key that is not any more
        if len(self._verified) > self._most:
            self._verified.popitem(last=False)

    def use(self, digest: bytes) -> None:
        """It was there, and accepted again."""
        self._verified.move_to_end(digest)

    def give_up(self, digest: bytes, hopeless: Hopeless) -> None:
        """It was refused, for good."""
        self._hopeless[digest] = hopeless
        if len(self._hopeless) > self._most_hopeless:
            self._hopeless.popitem(last=False)

    def recall(self, digest: bytes, resource: str, issuers: frozenset[str], alone: bool) -> None:
        """Refuse at once what would be refused for the same reason again, were it read: it is the same text.

        Raises `Refused(TOKEN_INVALID)`.
        """
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

    def forget(self) -> None:
        """All of them."""
        self._verified.clear()
        self._hopeless.clear()
