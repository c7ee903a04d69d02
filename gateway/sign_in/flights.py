"""A sign-in on its way: what has to come back unchanged, sealed into a cookie of the very browser that began it.

Nothing of it is stored, so every replica can go on with it, and whoever has not begun it can't end it: neither with
somebody else's code (login CSRF) nor in another browser. One browser has one sign-in on its way at a time.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import orjson

from gateway.contract.refusals import Refusal, Refused
from gateway.sealing import NotSealed, Sealer

FLIGHT_S = 600.0
"""How long somebody may take at the issuer's page."""
HOME = "/review"
_PLACE = re.compile(r"/review(?:[/?][A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?")
_OWN = re.compile(r"/review/(?:sign-in|sign-out|callback)(?:[/?].*)?")
_BINDING = b"flight"


@dataclass(frozen=True, slots=True)
class Flight:
    """`state`, `nonce` and `verifier` are 256 random bits each; `place` is where the browser goes afterwards."""

    issuer: str
    place: str
    ends_at: float
    state: str
    nonce: str
    verifier: str


class Flights:
    """Begins and ends them."""

    def __init__(self, keys: Sequence[bytes], label: str = "sign-in") -> None:
        self._sealer = Sealer(keys, label)

    def begin(self, issuer: str, place: str, now: float) -> tuple[Flight, str]:
        """A new flight and the cookie's value."""
        parts = (secrets.token_urlsafe(32) for _ in range(3))
        flight = Flight(issuer, safe_place(place), now + FLIGHT_S, *parts)
        return flight, self._sealer.seal(orjson.dumps(asdict(flight)), _BINDING)

    def end(self, cookie: str, state: str, now: float) -> Flight:
        """The flight that this browser began under this state. Raises `Refused(SIGN_IN_REFUSED)`."""
        try:
            flight = Flight(**orjson.loads(self._sealer.open(cookie, _BINDING)))
        except NotSealed as fault:
            raise Refused(Refusal.SIGN_IN_REFUSED, f"no sign-in of this browser: {fault}") from fault
        if not now < flight.ends_at:
            raise Refused(Refusal.SIGN_IN_REFUSED, "the sign-in took too long")
        if not secrets.compare_digest(flight.state.encode(), state.encode("utf-8", "surrogatepass")):
            raise Refused(Refusal.SIGN_IN_REFUSED, "the state is not that of this browser's sign-in")
        return flight


def safe_place(place: str) -> str:
    """`place` if it is a page of ours, in a spelling that no browser reads as anything else; else the front page."""
    strange = len(place) > 1024 or "//" in place or ".." in place or not _PLACE.fullmatch(place)
    return HOME if strange or _OWN.fullmatch(place) else place
