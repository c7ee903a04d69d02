"""A sign-in on its way: what has to come back unchanged, sealed into a cookie of the very browser that began it.

Nothing of it is stored, so every replica can go on with it, and whoever has not begun it can't end it: neither with
somebody else's code (login CSRF) nor in another browser. Several tabs of one browser may each have one on its way, in
a cookie of its own; there are so many and no more, and one more takes the place of the one that has the least time.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import unquote

import orjson
from starlette.requests import Request

from gateway.contract.refusals import Refusal, Refused
from gateway.sealing import NotSealed, Sealer
from gateway.sign_in.cookies import Cookie

FLIGHT_S = 600.0
"""How long somebody may take at the issuer's page."""
AT_ONCE = 6
"""Sign-ins that one browser may have on their way; each takes about 700 bytes of every request's head meanwhile."""
HOME = "/review"
_PLACE = re.compile(r"/review(?:[/?][A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?")
_OWN = re.compile(r"/review/(?:sign-in|sign-out|callback)(?:/.*)?", re.DOTALL)
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
    """Begins and ends them. What a browser is to do with a cookie is the value of a `Set-Cookie`."""

    def __init__(self, keys: Sequence[bytes], public_url: str, label: str = "sign-in") -> None:
        self._sealer = Sealer(keys, label)
        self._cookies = [Cookie.of(public_url, f"ostiary-sign-in-{number}") for number in range(AT_ONCE)]

    def begin(self, request: Request, issuer: str, place: str, now: float) -> tuple[Flight, str]:
        """A new flight, and its `Set-Cookie`."""
        parts = (secrets.token_urlsafe(32) for _ in range(3))
        flight = Flight(issuer, safe_place(place), now + FLIGHT_S, *parts)
        held = {cookie: one.ends_at for cookie, one in self._in(request) if isinstance(one, Flight)}
        # By chance, so that tabs which are opened in one moment seldom take one another's place.
        free = [cookie for cookie in self._cookies if not now < held.get(cookie, 0.0)]
        cookie = secrets.choice(free) if free else min(held, key=lambda one: held[one])
        return flight, cookie.write(self._sealer.seal(orjson.dumps(asdict(flight)), _BINDING), FLIGHT_S)

    def end(self, request: Request, state: str) -> tuple[Flight, str]:
        """The flight that this browser began under this state, and the `Set-Cookie` that ends it: it is tried once.

        Whether it is still in time is for `in_time` to say. Raises `Refused(SIGN_IN_REFUSED)`, and no flight ends.
        """
        found = list(self._in(request))
        for cookie, one in found:
            if isinstance(one, Flight) and secrets.compare_digest(
                one.state.encode(), state.encode("utf-8", "surrogatepass")
            ):
                return one, cookie.clear()
        if not found:
            raise Refused(Refusal.SIGN_IN_REFUSED, "no sign-in was begun in this browser")
        if faults := [str(one) for _, one in found if not isinstance(one, Flight)]:
            raise Refused(Refusal.SIGN_IN_REFUSED, f"no sign-in of this browser: {faults[0]}")
        raise Refused(Refusal.SIGN_IN_REFUSED, "the state is not that of a sign-in of this browser")

    def _in(self, request: Request) -> Iterator[tuple[Cookie, Flight | NotSealed]]:
        """Every flight that the request carries, in its cookie, or why what is there is none."""
        for cookie in self._cookies:
            value = cookie.read(request)
            if value is None:
                continue
            try:
                yield cookie, Flight(**orjson.loads(self._sealer.open(value, _BINDING)))
            except NotSealed as fault:
                yield cookie, fault


def in_time(flight: Flight, now: float) -> None:
    """Raises `Refused(SIGN_IN_REFUSED)` for one that took too long."""
    if not now < flight.ends_at:
        raise Refused(Refusal.SIGN_IN_REFUSED, "the sign-in took too long")


def safe_place(place: str) -> str:
    """`place` if it is a page of ours, in a spelling that no browser reads as anything else; else the front page."""
    path = unquote(place.partition("?")[0])  # as routes are found, and as some readers of an address have it
    strange = (
        len(place) > 1024
        or not _PLACE.fullmatch(place)
        or any(one in text for one in ("//", "..") for text in (place, path))
    )
    return HOME if strange or _OWN.fullmatch(path) else place
