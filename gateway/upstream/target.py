"""Where a server's requests go: replicas from configuration alone, and the addresses that are never a destination.

A replica's URL is judged twice: its text when the configuration is read, and the address that was really reached
before the first byte is sent, so that no name can be turned towards a metadata service (requirements UPS-02).
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from gateway.wires.statements import Stating

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_PATH = re.compile(r"/[!$&'()*+,;=:@/?._~%0-9A-Za-z-]*")
_NAME = re.compile(r"(?=.{1,253}$)[0-9a-z_](?:[0-9a-z_-]{0,62})(?:\.[0-9a-z_](?:[0-9a-z_-]{0,62}))*\.?")
_NUMERIC = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+))*\.?")
_METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data"})
_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",
        "fd00:ec2::254",
        "fd20:ce::254",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
    )
)
_CREDENTIAL_NEVER = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "content-type", "accept", "accept-encoding", "te"}
)

NEVER_FORWARDED = frozenset(
    b"authorization cookie cookie2 host connection keep-alive proxy-connection te trailer transfer-encoding upgrade"
    b" content-length content-encoding accept-encoding expect forwarded via x-real-ip mcp-session-id last-event-id"
    b" origin referer".split()
)
"""Fields of the caller's that no server sees; besides those that start with `proxy-` or `x-forwarded-`."""

_STATED_NEVER = ("mcp-", "proxy-", "x-forwarded-", "content-", "sec-", "access-control-")
_TRACE = frozenset({"traceparent", "tracestate", "baggage"})

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class ReplicaRefused(ValueError):  # noqa: N818 - a past participle, like the house's
    """A replica's URL or address that is not a destination. The text says why, and never holds a secret."""


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """A checked replica. `url` is as configured, `host` unbracketed and lower-case, `authority` the Host header."""

    url: str
    host: str
    port: int
    path: str
    secure: bool
    authority: str

    @property
    def on_loopback(self) -> bool:
        """Whether the configuration names loopback itself; a name that merely resolves to it does not count."""
        address = _literal(self.host)
        return address.is_loopback if address is not None else self.host.rstrip(".") == "localhost"


def check_replica_url(url: str) -> ReplicaAddress:
    """The URL of a replica, or `ReplicaRefused`.

    `http` or `https`, a host, no user, no fragment. Link-local, metadata, unspecified and multicast addresses are
    refused in every spelling (IPv4-mapped, NAT64, 6to4, decimal, octal, hexadecimal, short forms).
    """
    if not url.isascii() or any(character <= " " or character == "\x7f" for character in url) or "\\" in url:
        raise ReplicaRefused("the URL of a replica is visible ASCII without backslashes")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ReplicaRefused("not a URL") from None
    if parts.scheme not in ("http", "https"):
        raise ReplicaRefused("the URL of a replica is http or https")
    if "@" in parts.netloc or "#" in url:
        raise ReplicaRefused("the URL of a replica holds no user and no fragment")
    if port == 0:
        raise ReplicaRefused("port 0 is no destination")
    host = (parts.hostname or "").lower()
    address = _literal(host)
    if address is None and (":" in host or _NUMERIC.fullmatch(host)):
        raise ReplicaRefused("not an address in its plain spelling")
    if address is None and not _NAME.fullmatch(host):
        raise ReplicaRefused("not a host name")
    if host.rstrip(".") in _METADATA_NAMES:
        raise ReplicaRefused("a metadata service is no destination")
    if address is not None:
        check_address(address, loopback=True)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not _PATH.fullmatch(path):
        raise ReplicaRefused("not a path")
    secure = parts.scheme == "https"
    shown = f"[{host}]" if ":" in host else host
    authority = shown if port is None else f"{shown}:{port}"
    return ReplicaAddress(url, host, port or (443 if secure else 80), path, secure, authority)


def check_address(address: Address, *, loopback: bool) -> None:
    """An address that a connection goes to, or `ReplicaRefused`. `loopback`: whether loopback was listed as such."""
    for seen in readings_of(address):
        if seen in _METADATA:
            raise ReplicaRefused("a metadata service is no destination")
        if seen.is_link_local:
            raise ReplicaRefused("a link-local address is no destination")
        if seen.is_unspecified or seen.is_multicast or seen == ipaddress.IPv4Address(0xFFFFFFFF):
            raise ReplicaRefused("an unspecified or multicast address is no destination")
        if seen.is_loopback and not loopback:
            raise ReplicaRefused("loopback is a destination only where the configuration names it")


def readings_of(address: Address) -> list[Address]:
    """The address and the IPv4 addresses that it may stand for."""
    found: list[Address] = [address]
    if isinstance(address, ipaddress.IPv6Address):
        found += [mapped for mapped in (address.ipv4_mapped, address.sixtofour) if mapped is not None]
        if address.packed[:12] in (b"\x00d\xff\x9b" + bytes(8), bytes(12)) and int(address) > 1:
            found.append(ipaddress.IPv4Address(address.packed[12:]))
    return found


def _literal(host: str) -> Address | None:
    """A host as an address in its plain spelling; others are read as the C library would, and refused."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    if _NUMERIC.fullmatch(host):
        try:
            packed = socket.inet_aton(host.rstrip("."))
        except OSError:
            return None
        check_address(ipaddress.IPv4Address(packed), loopback=False)
    return None


class Secured(Protocol):
    """How replicas are known, and how the gateway shows itself to them."""

    @property
    def context(self) -> ssl.SSLContext:
        """What a new connection begins with. One that began with another is not used again."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same for as long as the process lives: the system's authorities."""

    context: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class UpstreamTarget:
    """One fronted server: its replicas and the gateway's own credential towards it.

    `credential_header` is empty where there is none. `tls` verifies the replicas' certificates; `None` is the
    system's trust store. `stating`: who tells the server of its callers. The credential is not part of the repr.
    """

    replicas: tuple[ReplicaAddress, ...]
    credential_header: str = ""
    credential_value: str = ""
    tls: Secured | None = None
    stating: Stating | None = None

    def __post_init__(self) -> None:
        if not self.replicas:
            raise ReplicaRefused("a server has at least one replica")
        if self.stating is not None:
            self._check_header(self.stating.header)
        if not self.credential_header:
            return
        if not _TOKEN.fullmatch(self.credential_header) or self.credential_header.lower() in _CREDENTIAL_NEVER:
            raise ReplicaRefused("credentials.header: the credential's header is not one that can carry it")
        if self.credential_header.lower().startswith("mcp-"):
            raise ReplicaRefused("credentials.header: the credential's header is one of the protocol's own")
        if not _VALUE.fullmatch(self.credential_value):
            raise ReplicaRefused("credentials.value_env: the credential is empty or not visible ASCII")

    def _check_header(self, header: str) -> None:
        """The statement's header is nothing that is sent, or that a server reads, for another reason."""
        name = header.lower()
        taken = {self.credential_header.lower()} | _CREDENTIAL_NEVER | _TRACE
        if not _TOKEN.fullmatch(name) or "_" in name or "." in name:
            raise ReplicaRefused(
                "forward_identity.header: the statement's header is not a name that is read alike everywhere"
            )
        if name in taken or name.encode() in NEVER_FORWARDED or name.startswith(_STATED_NEVER):
            raise ReplicaRefused(
                "forward_identity.header: the statement's header is one that is sent, or dropped, for another reason"
            )

    def __repr__(self) -> str:
        return f"UpstreamTarget({', '.join(replica.url for replica in self.replicas)})"


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """Bounds of one exchange (seconds, bytes, counts).

    `answer_s`: from the request to the answer's head, and again for the whole of a JSON body. `quiet_s`: between two
    pieces of a stream, or while its reader takes none; a subscription has no such bound. `idle_s` stays below the 5 s
    after which common servers close idle connections. Of `read_bytes` (one read of a
    socket), a stream whose client has stopped holds three, in all below 1 MiB (OPS-03).
    """

    connect_s: float = 2.0
    answer_s: float = 120.0
    quiet_s: float = 300.0
    inquire_s: float = 10.0
    idle_s: float = 4.0
    idle_connections: int = 64
    connections: int = 12_000
    head_bytes: int = 65_536
    head_lines: int = 100
    interim_answers: int = 8
    result_bytes: int = 16_777_216
    buffer_bytes: int = 65_536
    read_bytes: int = 131_072
