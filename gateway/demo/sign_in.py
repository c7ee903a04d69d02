"""Sign-in at the development issuer: OpenID Connect's code flow for pretend people, as strict as a real one.

Clients are registered with their one redirect URI, PKCE with S256 is required, a code is taken once and for a minute,
a refresh token once as well: whoever brings one again ends all that came of the same sign-in. Nothing is ever stored.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

from gateway.demo.people import PEOPLE

V = TypeVar("V")

HANDLE_S = 600.0
CODE_S = 60.0
TOKEN_S = 300
MOST = 1000


class NotSigned(ValueError):  # noqa: N818 - OAuth's error
    """An OAuth error: `name` as the specifications have it, and a sentence."""

    def __init__(self, name: str, text: str = "") -> None:
        super().__init__(text or name)
        self.name = name


@dataclass(frozen=True, slots=True)
class Asked:
    """An authorization request that can be answered, and by whom it was once somebody was picked."""

    client: str
    redirect_uri: str
    scopes: tuple[str, ...]
    challenge: str
    state: str
    nonce: str
    resource: str
    until: float
    person: str = ""
    family: str = ""

    def granted(self) -> str:
        """The scopes of the access token: what was asked for, and what this person may have."""
        may = PEOPLE[self.person].scopes
        return " ".join(scope for scope in self.scopes if scope in may)

    def back(self, **answer: str) -> str:
        """Where the browser goes with the answer."""
        glue = "&" if urlsplit(self.redirect_uri).query else "?"
        return self.redirect_uri + glue + urlencode(answer | ({"state": self.state} if self.state else {}))


class SignIns:
    """What is on its way: requests that wait for a person, codes, refresh tokens. Bounded, the oldest go first.

    `clients`: id -> redirect URI. `token_s`: how long an access token lives.
    """

    def __init__(self, issuer: str, clients: Mapping[str, str], token_s: int = TOKEN_S) -> None:
        self.issuer = issuer
        self.clients = dict(clients)
        self.token_s = token_s
        self._waiting: OrderedDict[str, Asked] = OrderedDict()
        self._codes: OrderedDict[str, Asked] = OrderedDict()
        self._refresh: OrderedDict[str, Asked] = OrderedDict()
        self._spent: OrderedDict[str, str] = OrderedDict()

    def ask(self, query: Mapping[str, str]) -> str:
        """A browser comes from a client -> the handle under which the request waits.

        Raises `NotSigned` before anything is sent anywhere: an unknown client or redirect URI is told to nobody.
        """
        client, back = query.get("client_id", ""), query.get("redirect_uri", "")
        if client not in self.clients or not hmac.compare_digest(self.clients[client].encode(), back.encode()):
            raise NotSigned("invalid_request", "No client with this redirect URI is registered here.")
        scopes = tuple(query.get("scope", "").split())
        if query.get("response_type") != "code" or "openid" not in scopes:
            raise NotSigned("invalid_request", "Only response_type=code with the scope openid is served.")
        if query.get("code_challenge_method") != "S256" or len(query.get("code_challenge", "")) != 43:
            raise NotSigned("invalid_request", "PKCE with S256 is required.")
        resource = query.get("resource", "")
        if urlsplit(resource).scheme not in {"http", "https"}:
            raise NotSigned("invalid_target", "A resource is required: what the access token is for (RFC 8707).")
        handle = secrets.token_urlsafe(32)
        asked = Asked(
            client, back, scopes, query["code_challenge"], query.get("state", ""), query.get("nonce", ""), resource,
            time.time() + HANDLE_S,
        )  # fmt: skip
        _keep(self._waiting, handle, asked)
        return handle

    def pick(self, handle: str, person: str) -> str:
        """Somebody was picked (nobody, where `person` is empty) -> where the browser goes. Raises `NotSigned`."""
        asked = self._waiting.pop(handle, None)
        if asked is None or asked.until < time.time():
            raise NotSigned("invalid_request", "This sign-in is over already; begin again where you came from.")
        if person not in PEOPLE:
            return asked.back(error="access_denied", iss=self.issuer)
        code = secrets.token_urlsafe(32)
        family = secrets.token_urlsafe(12)
        _keep(self._codes, code, replace(asked, person=person, family=family, until=time.time() + CODE_S))
        return asked.back(code=code, iss=self.issuer)

    def redeem(self, form: Mapping[str, str]) -> tuple[Asked, str]:
        """A code -> for whom and what, and a refresh token. Raises `NotSigned`."""
        code = form.get("code", "")
        asked = self._codes.pop(code, None)
        if asked is None:
            self._end_family(self._spent.get(code))
            raise NotSigned("invalid_grant", "no such code, or it was taken already")
        _keep(self._spent, code, asked.family)
        if asked.until < time.time():
            raise NotSigned("invalid_grant", "the code is too old")
        if (form.get("client_id"), form.get("redirect_uri")) != (asked.client, asked.redirect_uri):
            raise NotSigned("invalid_grant", "the code is another client's")
        if not hmac.compare_digest(asked.challenge.encode(), _s256(form.get("code_verifier", ""))):
            raise NotSigned("invalid_grant", "the code verifier does not fit")
        _same_resource(asked, form)
        return asked, self._give_refresh(asked)

    def renew(self, form: Mapping[str, str]) -> tuple[Asked, str]:
        """A refresh token -> for whom and what, and the next one. Raises `NotSigned`."""
        token = form.get("refresh_token", "")
        asked = self._refresh.pop(token, None)
        if asked is None or form.get("client_id") != asked.client:
            self._end_family(asked.family if asked else self._spent.get(token))
            raise NotSigned("invalid_grant", "no such refresh token, or it was used already")
        _keep(self._spent, token, asked.family)
        _same_resource(asked, form)
        return asked, self._give_refresh(asked)

    def revoke(self, form: Mapping[str, str]) -> None:
        """End a refresh token and all that came of its sign-in. An unknown one is no error (RFC 7009)."""
        asked = self._refresh.get(form.get("token", ""))
        if asked is not None and form.get("client_id") == asked.client:
            self._end_family(asked.family)

    def _give_refresh(self, asked: Asked) -> str:
        token = secrets.token_urlsafe(32)
        _keep(self._refresh, token, asked)
        return token

    def _end_family(self, family: str | None) -> None:
        for token in [token for token, asked in self._refresh.items() if asked.family == family]:
            del self._refresh[token]


def _keep(kept: OrderedDict[str, V], name: str, value: V) -> None:
    kept[name] = value
    while len(kept) > MOST:
        kept.popitem(last=False)


def _same_resource(asked: Asked, form: Mapping[str, str]) -> None:
    if form.get("resource", asked.resource) != asked.resource:
        raise NotSigned("invalid_target", "the sign-in was for another resource")


def _s256(verifier: str) -> bytes:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
