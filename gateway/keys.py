"""The keys of one issuer, kept fresh: from its JWKS URL, by discovery (RFC 8414), or from a local file.

Invariant: what is fetched and how often is decided by configuration and clock; an incoming token can at most bring
one refresh per cool-down forward. Good keys are kept when a refresh fails, but no longer than `stale_s`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from gateway.contract.refusals import Refusal, Refused
from gateway.signatures import Key, Signed, invalid, read_key_set, strict_object

if TYPE_CHECKING:
    import httpx

log = structlog.get_logger(__name__)

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class KeyUpkeep:
    """How keys are kept. All in seconds but `document_bytes`.

    `refresh_s`: between scheduled fetches (± 10 %), `poll_s`: between looks at a local file, `cooldown_s`: between
    fetches that unknown key ids bring forward, `stale_s`: how long good keys outlive failing refreshes,
    `deadline_s`: for one refresh as a whole, `retry_s`: before the first retry of a failed one (doubles up to 60).
    """

    refresh_s: float = 300.0
    poll_s: float = 5.0
    cooldown_s: float = 60.0
    stale_s: float = 3600.0
    deadline_s: float = 5.0
    retry_s: float = 1.0
    document_bytes: int = 512 * 1024


class KeysUnreadable(Exception):  # noqa: N818 - the room's own word
    """The issuer's document could not be had or is not what it must be. The text says which."""


Load = Callable[[], Awaitable[bytes]]


def is_secure_url(url: str) -> bool:
    """Whether `url` is https, or http to this very machine, without credentials or fragment."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    if parts.username is not None or "#" in url or not parts.hostname:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK_HOSTS)


def from_file(path: Path, limit: int) -> Load:
    """Read the set from a local file of at most `limit` bytes."""

    def read() -> bytes:
        if not path.is_file():  # a pipe would hold the thread for ever
            raise KeysUnreadable("there is no such file")
        with path.open("rb") as file:
            document = file.read(limit + 1)
        if len(document) > limit:
            raise KeysUnreadable("the document is too large")
        return document

    async def load() -> bytes:
        return await asyncio.to_thread(read)

    return load


def from_url(client: httpx.AsyncClient, url: str, limit: int) -> Load:
    """Fetch the set from `url`."""

    async def load() -> bytes:
        return await get_document(client, url, limit)

    return load


def from_discovery(client: httpx.AsyncClient, issuer: str, limit: int) -> Load:
    """Ask the issuer's metadata where the set is, then fetch it. Its `issuer` must be identical to ours."""

    async def load() -> bytes:
        for url in discovery_urls(issuer):
            try:
                document = await get_document(client, url, limit)
            except Absent:
                continue
            metadata = strict_object(document)
            jwks_uri = metadata.get("jwks_uri")
            if metadata.get("issuer") != issuer:
                raise KeysUnreadable("the metadata is another issuer's")
            if not isinstance(jwks_uri, str) or not is_secure_url(jwks_uri):
                raise KeysUnreadable("the metadata names no secure jwks_uri")
            return await get_document(client, jwks_uri, limit)
        raise KeysUnreadable("the issuer publishes no metadata")

    return load


def discovery_urls(issuer: str) -> tuple[str, ...]:
    """Where an issuer's metadata may be, in the order of the MCP authorization specification."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    urls = [f"{origin}/.well-known/{name}{path}" for name in ("oauth-authorization-server", "openid-configuration")]
    return (*urls, f"{origin}{path}/.well-known/openid-configuration") if path else tuple(urls)


class Absent(KeysUnreadable):
    """The server has no such document."""


async def get_document(client: httpx.AsyncClient, url: str, limit: int) -> bytes:
    """One GET, streamed into at most `limit` bytes. No redirects, no content coding."""
    async with client.stream("GET", url) as answer:
        if answer.status_code in (404, 410):
            raise Absent("there is no such document")
        if answer.status_code != 200:
            raise KeysUnreadable(f"the answer's status is {answer.status_code}")
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise KeysUnreadable("the answer is compressed")
        document = bytearray()
        async for piece in answer.aiter_raw(16384):
            document += piece
            if len(document) > limit:
                raise KeysUnreadable("the document is too large")
        return bytes(document)


def _in_words(fault: Exception) -> str:
    """Why keys could not be read, in words of ours: a library's text may hold what was fetched."""
    if isinstance(fault, KeysUnreadable):
        return str(fault)
    kind, words = type(fault).__name__, ""
    if kind == "ConnectError":  # httpx's, which is not loaded where all keys are in files
        words = "no connection"
    elif isinstance(fault, TimeoutError):
        words = "it took too long"
    elif isinstance(fault, ValueError):
        words = "it is no key set"
    return f"{words} ({kind})".lstrip()


class KeySource:
    """One issuer's keys. `find` is the only way to one.

    `trouble` says in words why the last load failed, and is empty after one that did not.
    `cooldown_s` None (a local file) means that unknown key ids never bring a refresh forward: the poll is enough.
    """

    def __init__(
        self,
        issuer: str,
        load: Load,
        upkeep: KeyUpkeep,
        *,
        interval_s: float,
        cooldown_s: float | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.issuer = issuer
        self.trouble = ""
        self._load = load
        self._upkeep = upkeep
        self._interval_s = interval_s
        self._cooldown_s = cooldown_s
        self._monotonic = monotonic
        self._document = b""
        self._keys: tuple[Key, ...] = ()
        self._by_kid: Mapping[str | None, tuple[Key, ...]] = MappingProxyType({})
        self._loaded = False
        self._good_until = float("-inf")
        self._brought_forward = float("-inf")
        self._flight: asyncio.Task[bool] | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def loaded(self) -> bool:
        """Whether there were keys, once."""
        return self._loaded

    @property
    def fresh(self) -> bool:
        """Whether there are keys that may be believed now."""
        return bool(self._keys) and self._monotonic() < self._good_until

    @property
    def age_s(self) -> float:
        """Seconds since the keys were last confirmed; since ever (`inf`) where they never were."""
        return self._monotonic() - (self._good_until - self._upkeep.stale_s)

    async def start(self) -> None:
        """Try to load once (bounded by the deadline), then keep the keys fresh in the background."""
        good = await self.refresh()
        self._watch = asyncio.create_task(self._keep(good), name=f"keys of {self.issuer}")

    async def close(self) -> None:
        """Stop refreshing."""
        tasks = [task for task in (self._watch, self._flight) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def find(self, signed: Signed) -> Key:
        """The one key that the token names and that is made for its algorithm.

        Raises `Refused`: KEYS_UNAVAILABLE while there are no keys or only stale ones, else TOKEN_INVALID.
        """
        if not self.fresh:
            raise Refused(Refusal.KEYS_UNAVAILABLE, f"no fresh keys of {self.issuer}")
        key = self._pick(signed)
        if key is None and await self._look_again():
            key = self._pick(signed)
        if key is None:
            invalid("no key of the issuer fits the token")
        return key

    def _pick(self, signed: Signed) -> Key | None:
        candidates = self._keys if signed.kid is None else self._by_kid.get(signed.kid, ())
        fitting = [key for key in candidates if signed.alg in key.algorithms]
        if len(fitting) > 1:
            invalid("more than one key of the issuer fits the token")
        return fitting[0] if fitting else None

    async def _look_again(self) -> bool:
        """Refresh because of an unknown key id, if the cool-down allows it. True when the keys were read again."""
        if self._cooldown_s is None:
            return False
        if self._flight is None:
            now = self._monotonic()
            if now - self._brought_forward < self._cooldown_s:
                return False
            self._brought_forward = now
        return await self.refresh()

    async def refresh(self) -> bool:
        """Load the set now; whoever asks while a load is under way shares it. False when it failed."""
        if self._flight is None or self._flight.done():
            self._flight = asyncio.create_task(self._fly(), name=f"refresh of the keys of {self.issuer}")
        # Shielded: a caller that goes away must not take the answer from the others.
        return await asyncio.shield(self._flight)

    async def _fly(self) -> bool:
        try:
            async with asyncio.timeout(self._upkeep.deadline_s):
                document = await self._load()
            if document != self._document:
                self._replace(await asyncio.to_thread(read_key_set, document))
                self._document = document
            self._good_until = self._monotonic() + self._upkeep.stale_s
            self.trouble = ""
        except Exception as fault:  # noqa: BLE001 - whatever broke, the last good keys stay and the watch goes on
            self.trouble = _in_words(fault)
            log.warning("keys_not_refreshed", issuer=self.issuer, reason=self.trouble)
            return False
        finally:
            self._flight = None
        return True

    def _replace(self, read: tuple[Key, ...]) -> None:
        """Take over a set. Keys that stay keep their identity, keys that are gone are retired at once."""
        held = {key.mark: key for key in self._keys}
        self._keys = tuple(held.pop(key.mark, key) for key in read)
        for gone in held.values():
            gone.retired = True
        by_kid: dict[str | None, tuple[Key, ...]] = {}
        for key in self._keys:
            by_kid[key.kid] = (*by_kid.get(key.kid, ()), key)
        self._by_kid = by_kid
        self._loaded = self._loaded or bool(self._keys)
        log.info("keys_loaded", issuer=self.issuer, keys=len(self._keys), retired=len(held))

    async def _keep(self, good: bool) -> None:
        retry_s = self._upkeep.retry_s
        while True:
            if good:
                retry_s, pause = self._upkeep.retry_s, self._interval_s
            else:
                pause, retry_s = min(retry_s, self._interval_s), min(retry_s * 2, 60.0)
            # Jitter keeps many workers from asking in step; it is no secret.
            await asyncio.sleep(pause * random.uniform(0.9, 1.1))  # noqa: S311
            good = await self.refresh()
