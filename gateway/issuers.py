"""Whose tokens are accepted: the configured issuers, what each may sign, and their keys (contract.md section 6).

Invariant: an issuer is exactly one that was configured, and signs with its algorithms and keys alone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from gateway.contract.strict_json import NotStrict
from gateway.keys import KeySource, KeyUpkeep, from_discovery, from_file, from_url, is_secure_url
from gateway.serving.plain import load_plain
from gateway.signatures import ALGORITHMS, Signed, check_signature, invalid, read_compact, strict_object

if TYPE_CHECKING:
    import httpx

log = structlog.get_logger(__name__)

ACCESS_TOKEN_TYPE = "at+jwt"  # noqa: S105 - a media type, RFC 9068


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
class Issuer:
    """An issuer as verification needs it: `types` are the accepted `typ` values, as media types without prefix."""

    settings: IssuerSettings
    algorithms: frozenset[str]
    types: frozenset[str]
    keys: KeySource

    def check_algorithm(self, signed: Signed) -> None:
        """Raises `Refused(TOKEN_INVALID)` unless it signs with the token's algorithm."""
        if signed.alg not in self.algorithms:
            invalid("the algorithm is not accepted from this issuer")

    def check_type(self, signed: Signed) -> None:
        """Raises `Refused(TOKEN_INVALID)` unless the token says that it is an access token."""
        given = signed.header.get("typ")
        if given is None and "typ" not in signed.header:
            accepted = "" in self.types
        else:
            accepted = isinstance(given, str) and (kind := _media_type(given)) != "" and kind in self.types
        if not accepted:
            invalid("the token's typ is not that of an access token: at+jwt, or one of the issuer's token_types")


class Issuers:
    """The accepted issuers, by name. Made once of settings, started once, closed once; `monotonic` gives seconds that
    only grow. Raises ValueError for none, and for one that is configured twice.
    """

    def __init__(self, chosen: Iterable[IssuerSettings], upkeep: KeyUpkeep, monotonic: Callable[[], float]) -> None:
        self._upkeep = upkeep
        self._monotonic = monotonic
        settings = list(chosen)
        if not settings:
            raise ValueError("issuers: at least one must be configured")
        if len({one.issuer for one in settings}) != len(settings):
            raise ValueError("issuers: one is configured twice")
        self.by_name = {one.issuer: self._prepare(one) for one in settings}

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

    def _prepare(self, settings: IssuerSettings) -> Issuer:
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
            monotonic=self._monotonic,
        )
        types = frozenset(_media_type(name) for name in (ACCESS_TOKEN_TYPE, *settings.token_types))
        return Issuer(settings, frozenset(settings.algorithms), types, keys)

    @property
    def ready(self) -> bool:
        """Whether every issuer's keys were loaded; what fails later is `degraded`."""
        return all(issuer.keys.loaded for issuer in self.by_name.values())

    @property
    def degraded(self) -> tuple[str, ...]:
        """The issuers whose tokens get 503 now: no keys, or only stale ones."""
        return tuple(name for name, issuer in self.by_name.items() if not issuer.keys.fresh)

    def without_keys(self) -> dict[str, str]:
        """For `ostiary check`: issuer -> why its keys were never loaded."""
        sources = {name: issuer.keys for name, issuer in self.by_name.items()}
        return {name: keys.trouble or "it has no usable key" for name, keys in sources.items() if not keys.loaded}

    def key_ages(self) -> dict[str, float]:
        """For metrics: issuer -> seconds since its keys were last confirmed, where they ever were."""
        ages = {name: issuer.keys.age_s for name, issuer in self.by_name.items()}
        return {name: age for name, age in ages.items() if age < math.inf}

    def key_health(self) -> dict[str, bool]:
        """For metrics: issuer -> whether its keys were had when they were last asked for."""
        return {name: not issuer.keys.trouble for name, issuer in self.by_name.items()}

    async def start(self) -> None:
        """Load all keys, one deadline for all, and keep them fresh. An issuer that can't be reached is tried again
        in the background; `ready` says when all are there."""
        for issuer in self.by_name.values():
            if issuer.types != {ACCESS_TOKEN_TYPE}:
                log.warning("token_types_widened", issuer=issuer.settings.issuer, types=sorted(issuer.types))
        await asyncio.gather(*(issuer.keys.start() for issuer in self.by_name.values()))

    async def close(self) -> None:
        """Stop refreshing, close connections."""
        await asyncio.gather(*(issuer.keys.close() for issuer in self.by_name.values()))
        if "_http" in self.__dict__:  # made only where an issuer's keys come over the network
            await self._http.aclose()

    async def read_signed(self, text: str, issuer: str) -> tuple[Signed, dict[str, Any]]:
        """A JWS of `issuer`, by its keys and its algorithms -> its parts and claims, of which nothing else is known.

        Raises `Refused`: TOKEN_INVALID, KEYS_UNAVAILABLE.
        """
        signed = read_compact(text.encode("ascii", "replace"))
        claims = read_claims(signed)
        known = self.by_name.get(issuer)
        if known is None or claims.get("iss") != issuer:
            invalid("the statement is another issuer's")
        known.check_algorithm(signed)
        check_signature(signed, await known.keys.find(signed))
        return signed, claims


def read_claims(signed: Signed) -> dict[str, Any]:
    """What is claimed, by whom nobody knows yet. Raises `Refused(TOKEN_INVALID)`."""
    try:
        return strict_object(signed.payload)
    except NotStrict:
        invalid("the claims are not one strict JSON object")


def _media_type(name: str) -> str:
    """RFC 7515 section 4.1.9: compared without case, `application/` may be left out."""
    return name.lower().removeprefix("application/")
