"""Where webhooks go, and how one message gets there: one POST, no redirect, no proxy, never to an internal service.

A receiver's URL is judged like a replica's: its text when the configuration is read, and each address that its name
stands for before a connection is made, to that very address. The URL and the secrets are held here and shown nowhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from approvals.notify import NotDelivered
from approvals.telling import Hook, read_secrets
from gateway.lookups import Lookups
from gateway.serving.plain import load_plain
from gateway.upstream.target import Address, ReplicaAddress, ReplicaRefused, check_address, check_replica_url

if TYPE_CHECKING:
    import httpx

CONNECT_S = 3.0
ANSWER_S = 10.0
ADDRESSES = 3
"""Addresses of one name that are tried."""

GONE = 410


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver: who is told of what (`hook`), and where."""

    hook: Hook
    address: ReplicaAddress = field(repr=False)


def make_webhook(
    url: str, secrets: str, *, events: Iterable[str], form: Literal["json", "slack"], where: str
) -> Webhook:
    """Judge one receiver. Raises `ValueError` that names the setting `where` and quotes neither URL nor secret."""
    try:
        address = check_replica_url(url)
    except ReplicaRefused as error:
        raise ValueError(f"{where}.url: {str(error).replace('replica', 'webhook')}") from None
    if not address.secure and not address.on_loopback:
        raise ValueError(f"{where}.url: must be https:// (plain http:// is accepted on loopback only)")
    try:
        read = read_secrets(secrets) if secrets else ()
    except ValueError as error:
        raise ValueError(f"{where}.secret_env: {error}") from None
    if not read and form == "json":
        raise ValueError(f"{where}.secret_env: is missing: what is not signed, a receiver can't believe")
    name = f"{address.host}/{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    return Webhook(Hook(name, frozenset(events), form, read), address)


class WebhookSender:
    """Delivers (`approvals.notify.Send`). `tls`: whose certificates are believed, the system's by default."""

    def __init__(self, webhooks: Sequence[Webhook], *, tls: ssl.SSLContext | None = None) -> None:
        self._addresses = {webhook.hook.id: webhook.address for webhook in webhooks}
        self._tls = tls
        self._lookups = Lookups()
        if webhooks:  # now, not at the first message
            load_plain("httpx")

    @cached_property
    def _http(self) -> httpx.AsyncClient:
        import httpx  # noqa: PLC0415 - see `__init__`

        # A connection is never used again: two names at one address would share it, and its certificate.
        return httpx.AsyncClient(
            verify=self._tls or httpx.create_ssl_context(),
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    async def close(self) -> None:
        """Close what is open."""
        if "_http" in self.__dict__:  # made by the first message
            await self._http.aclose()

    async def __call__(self, hook_id: str, body: bytes, headers: Mapping[str, str]) -> None:
        """One attempt. Raises `NotDelivered`."""
        target = self._addresses[hook_id]
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._deliver(target, body, headers)
        except TimeoutError:
            raise NotDelivered("timeout") from None

    async def _deliver(self, target: ReplicaAddress, body: bytes, headers: Mapping[str, str]) -> None:
        import httpx  # noqa: PLC0415 - loaded by now

        why = "no_address"
        for address in (await self._resolve(target))[:ADDRESSES]:
            try:
                return await self._post(target, address, body, headers)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                why = "not_reached"
            except httpx.TimeoutException:
                raise NotDelivered("timeout") from None
            except httpx.HTTPError as error:
                raise NotDelivered(type(error).__name__.lower()) from None
        raise NotDelivered(why)

    async def _resolve(self, target: ReplicaAddress) -> list[Address]:
        """The addresses of the receiver's name. Raises `NotDelivered` for none, or for one that is no destination."""
        try:
            found = await self._lookups.find(target.host, target.port)
        except (OSError, UnicodeError):
            raise NotDelivered("no_address") from None
        addresses = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]
        try:
            for address in addresses:
                check_address(address, loopback=target.on_loopback)
        except ReplicaRefused:
            raise NotDelivered("address_refused") from None
        return list(dict.fromkeys(addresses))

    async def _post(self, target: ReplicaAddress, address: Address, body: bytes, headers: Mapping[str, str]) -> None:
        shown = f"[{address}]" if address.version == 6 else str(address)
        request = self._http.build_request(
            "POST",
            f"{'https' if target.secure else 'http'}://{shown}:{target.port}{target.path}",
            content=body,
            headers={**headers, "host": target.authority, "user-agent": "ostiary", "connection": "close"},
            extensions={"sni_hostname": target.host.rstrip(".")},
        )
        response = await self._http.send(request, stream=True)
        try:
            if not response.is_success:
                final = response.status_code == GONE
                raise NotDelivered(
                    f"status_{response.status_code}", final=final, retry_after_s=_retry_after(response)
                )
        finally:
            await response.aclose()  # unread: what a receiver says beside its status is nothing to us


def _retry_after(response: httpx.Response) -> float:
    """Seconds; a date, which nobody sends here, counts as nothing."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0
