"""The way to a registry's HTTP API, and to a single record's URL: bounded in bytes, pages and time.

Only the URL that an operator named is asked. No redirect is followed, nothing is decompressed, no proxy is taken from
the environment, and a token leaves on `https://` (or loopback) alone. What an answer says is judged by listing.py.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

import orjson

from gateway.registry.asking import (
    Answered,
    ClientLimits,
    RegistryInvalid,
    RegistryRefused,
    RegistryUnavailable,
    ask_json,
    check_source,
    is_bearer,
)
from gateway.registry.listing import Entry, Page, Unreadable, read_entry, read_page
from gateway.serving.plain import load_plain

if TYPE_CHECKING:
    import httpx

VERSIONS: Final = ("v0.1", "v0")
"""Of the API, the stable one first. Both speak the same; v0 came before."""


@dataclass(slots=True)
class RegistryClient:
    """One registry, by its base URL. `token` goes with every request to it. An async context manager."""

    url: str
    token: str = field(default="", repr=False)
    limits: ClientLimits = field(default_factory=ClientLimits)
    tls: ssl.SSLContext | None = None
    _http: httpx.AsyncClient = field(init=False, repr=False)
    _version: str = ""

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")
        self._http = _open(self.url, self.limits, self.tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def entries(self, since: str = "", search: str = "") -> list[Entry]:
        """Every server that is listed, its newest version; those that changed `since` (RFC 3339), deleted ones too.

        Raises `RegistryFault` subclasses: also for a list that goes round, or on and on.
        """
        found: list[Entry] = []
        cursor, seen, size = "", {""}, 0
        asked = {"limit": "100", "version": "latest"}
        asked |= {"updated_since": since} if since else {}
        asked |= {"search": search} if search else {}
        try:
            async with asyncio.timeout(self.limits.all_s):
                for _ in range(self.limits.pages):
                    query = {**asked, "cursor": cursor} if cursor else asked
                    answer = await self._get("/servers", query)
                    page = await asyncio.to_thread(_page, answer)
                    found += page.entries
                    size += answer.size
                    if len(found) > self.limits.entries or size > self.limits.all_bytes:
                        raise RegistryInvalid("lists more than is read of a registry")
                    cursor = page.cursor
                    if not cursor:
                        return found
                    if cursor in seen or len(cursor) > self.limits.cursor:
                        raise RegistryInvalid("its pages go round, or its cursor is too long")
                    seen.add(cursor)
        except TimeoutError:
            raise RegistryUnavailable("took too long to list its servers") from None
        raise RegistryInvalid(f"has more than {self.limits.pages} pages")

    async def entry(self, name: str, version: str) -> Entry | None:
        """One version (`latest`: the newest) of a server, deleted ones too; `None` where there is none.

        Raises `RegistryFault` subclasses.
        """
        path = f"/servers/{quote(name, safe='')}/versions/{quote(version, safe='')}"
        try:
            answer = await self._get(path, {"include_deleted": "true"})
        except RegistryRefused as refused:
            if refused.status == 404:
                return None
            raise
        try:
            found = read_entry(answer.value)
        except Unreadable as error:
            raise RegistryInvalid(str(error)) from None
        if found.name != name or version not in ("latest", found.version):
            raise RegistryInvalid("answers with another record than was asked for")
        return found

    async def publish(self, document: Mapping[str, Any]) -> Answered:
        """Send one record, once. Raises `RegistryFault` subclasses."""
        await self._find_version()
        return await self._ask("POST", f"{self.url}/{self._version}/publish", body=orjson.dumps(document))

    async def exchange(self, method: str, proof: Mapping[str, str]) -> str:
        """A proof of a domain -> the registry's token. Raises `RegistryFault` subclasses."""
        await self._find_version()
        answer = await self._ask("POST", f"{self.url}/{self._version}/auth/{method}", body=orjson.dumps(proof))
        token = answer.value.get("registry_token") if isinstance(answer.value, dict) else None
        if not isinstance(token, str) or not is_bearer(token):
            raise RegistryInvalid("answers the proof with no token")
        return token

    async def _get(self, path: str, query: Mapping[str, str]) -> Answered:
        await self._find_version()
        return await self._ask("GET", f"{self.url}/{self._version}{path}", query)

    async def _find_version(self) -> None:
        """The newest version of the API that this registry speaks, found once."""
        if self._version:
            return
        for version in VERSIONS:
            try:
                answer = await self._ask("GET", f"{self.url}/{version}/servers", {"limit": "1"})
                await asyncio.to_thread(_page, answer)
            except RegistryRefused as refused:
                if refused.status == 404:
                    continue
                raise
            self._version = version
            return
        raise RegistryInvalid(f"has no /{'/servers nor /'.join(VERSIONS)}/servers: is its URL right?")

    async def _ask(
        self, method: str, url: str, query: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answered:
        headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "ostiary"}
        headers |= {"authorization": f"Bearer {self.token}"} if self.token else {}
        headers |= {"content-type": "application/json"} if body is not None else {}
        return await ask_json(self._http, method, url, self.limits, query=query, headers=headers, body=body)


async def fetch_record(url: str, limits: ClientLimits | None = None) -> Any:
    """The JSON value at a URL that the operator named: a record, or a registry's answer that holds one.

    Raises `RegistryFault` subclasses.
    """
    limits = limits or ClientLimits()
    headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "ostiary"}
    async with _open(url, limits) as http:
        return (await ask_json(http, "GET", url, limits, headers=headers)).value


def _open(url: str, limits: ClientLimits, tls: ssl.SSLContext | None = None) -> httpx.AsyncClient:
    """A client for one place. Raises `RegistryInvalid`."""
    load_plain("httpx")  # for commands: who serves has it since the start, where a registry is asked
    import httpx  # noqa: PLC0415

    if not check_source(url):
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which believes nobody, and is asked for nothing
    return httpx.AsyncClient(
        verify=tls or httpx.create_ssl_context(),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(limits.answer_s, connect=limits.connect_s),
    )


def _page(answer: Answered) -> Page:
    try:
        return read_page(answer.value)
    except Unreadable as error:
        raise RegistryInvalid(str(error)) from None
