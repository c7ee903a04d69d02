"""An issuer as whoever signs people in: where its endpoints are, and what it gives for a code or a refresh token.

Everything is asked over https (or of this machine), within a deadline and into bounded memory, without redirects.
The metadata is read again after some minutes; what was read last is good for as long as reading it again fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import structlog

from gateway.contract.refusals import Refusal, Refused
from gateway.contract.strict_json import NotStrict
from gateway.keys import Absent, KeysUnreadable, discovery_urls, get_document, is_secure_url
from gateway.sign_in.client import Client
from gateway.sign_in.protocol import code_request, renewal_request, revocation_request
from gateway.signatures import TOKEN_BYTES, strict_object

log = structlog.get_logger(__name__)

T = TypeVar("T")

ENDPOINTS = ("authorization_endpoint", "token_endpoint")

ERRORS = frozenset(
    {
        "access_denied", "account_selection_required", "consent_required", "interaction_required", "invalid_grant",
        "invalid_request", "invalid_scope", "invalid_target", "login_required", "server_error",
        "temporarily_unavailable", "unsupported_grant_type", "unsupported_response_type",
    }
)  # fmt: skip
"""Names of RFC 6749, RFC 8707 and OpenID Connect Core."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of what an issuer is asked: seconds, and bytes of an answer. `fresh_s`: how long metadata is not read again,
    `pause_s`: how long an issuer whose metadata could not be had is left alone."""

    deadline_s: float = 5.0
    document_bytes: int = 256 * 1024
    fresh_s: float = 300.0
    pause_s: float = 2.0
    in_flight: int = 32


BOUNDS = Bounds()


class RefreshRefused(Exception):  # noqa: N818 - the issuer's no
    """The issuer does not renew this token any more."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What the issuer's metadata says of signing in. `says_who`: its responses name it (RFC 9207)."""

    authorization: str
    token: str
    revocation: str
    methods: tuple[str, ...]
    says_who: bool


@dataclass(frozen=True, slots=True)
class Granted:
    """What came for a code or a refresh token; `id_token` and `refresh_token` are empty where there was none."""

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    id_token: str = field(repr=False)


class Provider:
    """One issuer. Bound to one `Client`, the gateway as this issuer knows it."""

    def __init__(
        self,
        client: Client,
        http: httpx.AsyncClient,
        *,
        bounds: Bounds = BOUNDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self._http = http
        self._bounds = bounds
        self._monotonic = monotonic
        self._endpoints: Endpoints | None = None
        self._look_at = float("-inf")
        self._why = ""
        self._looking = asyncio.Lock()
        self._asking = asyncio.Semaphore(bounds.in_flight)

    async def endpoints(self) -> Endpoints:
        """Where its endpoints are. Raises `Refused(SIGN_IN_UNAVAILABLE)` while that can't be known."""
        async with self._looking:  # whoever comes meanwhile finds what the first one found
            if self._monotonic() >= self._look_at:
                try:
                    self._endpoints = await self._within(self._discover)
                    self._look_at = self._monotonic() + self._bounds.fresh_s
                except Refused as refused:
                    self._why = refused.detail
                    self._look_at = self._monotonic() + self._bounds.pause_s
        if self._endpoints is None:
            raise Refused(Refusal.SIGN_IN_UNAVAILABLE, self._why)
        return self._endpoints

    async def redeem(self, code: str, verifier: str) -> Granted:
        """The tokens for a code. Raises `Refused`: SIGN_IN_REFUSED (it is not taken), SIGN_IN_UNAVAILABLE."""
        found = await self.endpoints()
        headers, form = code_request(found.token, self.client, found.methods, code=code, verifier=verifier)
        status, answer = await self._ask(found.token, headers, form)
        if status != 200:
            raise Refused(Refusal.SIGN_IN_REFUSED, f"the code was not taken: {_error(status, answer)}")
        return _granted(answer)

    async def renew(self, refresh_token: str) -> Granted:
        """A new access token, with the refresh token to use next. Raises `RefreshRefused` where the issuer ends it,
        `Refused(SIGN_IN_UNAVAILABLE)` where nothing is known."""
        found = await self.endpoints()
        headers, form = renewal_request(found.token, self.client, found.methods, refresh_token=refresh_token)
        status, answer = await self._ask(found.token, headers, form)
        if status != 200:
            raise RefreshRefused(_error(status, answer))
        granted = _granted(answer)
        return Granted(granted.access_token, granted.refresh_token or refresh_token, granted.id_token)

    async def revoke(self, refresh_token: str) -> bool:
        """Tell the issuer that a refresh token is not needed any more -> whether it heard. Raises nothing for it."""
        try:
            found = await self.endpoints()
            if not found.revocation:
                return False
            headers, form = revocation_request(
                found.revocation, self.client, found.methods, refresh_token=refresh_token
            )
            status, _ = await self._ask(found.revocation, headers, form, reads=False)
        except Refused:
            return False
        return status == 200

    async def _discover(self) -> Endpoints:
        issuer = self.client.issuer
        for url in reversed(discovery_urls(issuer)):  # OpenID Connect's own before OAuth's
            try:
                document = await get_document(self._http, url, self._bounds.document_bytes)
            except Absent:
                continue
            metadata = strict_object(document)
            if metadata.get("issuer") != issuer:
                raise KeysUnreadable("the metadata is another issuer's")
            return _read_metadata(metadata)
        raise KeysUnreadable("the issuer publishes no metadata")

    async def _ask(
        self, url: str, headers: Mapping[str, str], form: str, *, reads: bool = True
    ) -> tuple[int, Mapping[str, Any]]:
        """POST a form -> status and object; an answer that is neither a success nor a client's error is none."""

        async def post() -> tuple[int, Mapping[str, Any]]:
            async with self._http.stream("POST", url, headers=dict(headers), content=form) as answer:
                if answer.status_code != 200 and not (400 <= answer.status_code < 500 and answer.status_code != 429):
                    raise KeysUnreadable(f"the answer's status is {answer.status_code}")
                if not reads:
                    return answer.status_code, {}
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise KeysUnreadable("the answer is compressed")
                document = bytearray()
                async for piece in answer.aiter_raw(16384):
                    document += piece
                    if len(document) > self._bounds.document_bytes:
                        raise KeysUnreadable("the answer is too large")
            try:
                return answer.status_code, strict_object(bytes(document))
            except NotStrict:
                if answer.status_code == 200:
                    raise
                return answer.status_code, {}

        return await self._within(post)

    async def _within(self, work: Callable[[], Awaitable[T]]) -> T:
        """One errand to the issuer, in time or not at all. Raises `Refused(SIGN_IN_UNAVAILABLE)` in words of ours."""
        try:
            async with asyncio.timeout(self._bounds.deadline_s), self._asking:
                return await work()
        except KeysUnreadable as fault:
            why = str(fault)
        except TimeoutError:
            why = "it took too long"
        except (httpx.HTTPError, NotStrict, OSError) as fault:
            why = type(fault).__name__
        log.warning("sign_in_unavailable", issuer=self.client.issuer, reason=why)
        raise Refused(Refusal.SIGN_IN_UNAVAILABLE, f"{self.client.issuer}: {why}")


def _read_metadata(metadata: Mapping[str, Any]) -> Endpoints:
    """Raises `KeysUnreadable` for an issuer with which nobody can be signed in safely."""
    places = [metadata.get(name) for name in ENDPOINTS]
    if not all(isinstance(place, str) and is_secure_url(place) for place in places):
        raise KeysUnreadable("the metadata names no secure authorization and token endpoint")
    proofs = metadata.get("code_challenge_methods_supported")
    if proofs is not None and "S256" not in _texts(proofs):
        raise KeysUnreadable("the issuer does not support PKCE with S256")
    revocation = metadata.get("revocation_endpoint")
    return Endpoints(
        authorization=str(places[0]),
        token=str(places[1]),
        revocation=revocation if isinstance(revocation, str) and is_secure_url(revocation) else "",
        methods=_texts(metadata.get("token_endpoint_auth_methods_supported")),
        says_who=metadata.get("authorization_response_iss_parameter_supported") is True,
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()


def _granted(answer: Mapping[str, Any]) -> Granted:
    """A successful answer of the token endpoint (RFC 6749 section 5.1)."""
    found = {name: answer.get(name, "") for name in ("access_token", "refresh_token", "id_token")}
    kind = answer.get("token_type")
    if not isinstance(kind, str) or kind.lower() != "bearer" or not found["access_token"]:
        raise Refused(Refusal.SIGN_IN_REFUSED, "the issuer gave no bearer token")
    if not all(isinstance(text, str) and len(text) <= TOKEN_BYTES and text.isascii() for text in found.values()):
        raise Refused(Refusal.SIGN_IN_REFUSED, "the issuer gave a token of no usable form")
    return Granted(**found)


def _error(status: int, answer: Mapping[str, Any]) -> str:
    """The name of an error answer, if it is one that OAuth knows: a text of somebody else's is not repeated.

    Raises `Refused(SIGN_IN_UNAVAILABLE)` where it is the gateway that the issuer does not take.
    """
    name = answer.get("error")
    if status == 401 or name in {"invalid_client", "unauthorized_client"}:
        raise Refused(Refusal.SIGN_IN_UNAVAILABLE, "the issuer does not accept the gateway as its client")
    return name if isinstance(name, str) and name in ERRORS else "another error"
