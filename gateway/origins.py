"""Which hosts and origins are served: compared exactly, after parsing, against configuration (requirements G4, ORG).

Sans-IO. All spellings that RFC 9110 section 4.2.3 calls equal are laid out once at start; a request is one look-up.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from urllib.parse import urlsplit

HOST_CHARACTERS = frozenset(string.ascii_lowercase + string.digits + "-._:")
DEFAULT_PORTS = {"http": 80, "https": 443}


def accepted_hosts(public_url: str, host: str, port: int, allowed_hosts: Iterable[str] = ()) -> frozenset[str]:
    """The `Host` values that are served: the authority of `public_url`, of the listener, and `allowed_hosts`.

    In lower case. Where the port is the default one of `public_url`'s scheme (of `http` for the listener), the forms
    without it and with an empty one are equal. Raises `ValueError` for an entry that is not an authority.
    """
    parts = urlsplit(public_url)
    listener = f"[{host}]" if ":" in host and not host.startswith("[") else host
    spelled: set[str] = set()
    spelled |= _spellings(parts.netloc, parts.scheme, "public_url")
    spelled |= _spellings(f"{listener}:{port}", "http", "listen.host")
    for entry in allowed_hosts:
        spelled |= _spellings(entry, parts.scheme, "allowed_hosts")
    return frozenset(spelled)


def _spellings(authority: str, scheme: str, setting: str) -> set[str]:
    try:
        parts = urlsplit(f"//{authority}")
        hostname, port = parts.hostname or "", parts.port
    except ValueError:
        hostname, port = "", None
    name = f"[{hostname}]" if ":" in hostname else hostname
    # Spelled again from its parts it must be what it was: no user, no path, no space, nothing that a Host can't be.
    spelled = name if port is None else f"{name}:{port}"
    if not hostname or spelled != authority.lower() or not set(hostname) <= HOST_CHARACTERS:
        raise ValueError(f"{setting}: not an authority: {authority!r}")
    default = DEFAULT_PORTS.get(scheme)
    port = port or default
    if port != default:
        return {f"{name}:{port}"}
    return {name, f"{name}:", f"{name}:{port}"}


def origin_of(public_url: str) -> str:
    """The origin as a browser writes it: without the default port of its scheme."""
    parts = urlsplit(public_url)
    shortest = min(_spellings(parts.netloc, parts.scheme, "public_url"), key=len)
    return f"{parts.scheme}://{shortest}"


def cors_headers(origin: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """What an answer to a page of an allowed origin carries. Never a wildcard, never credentials."""
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"ostiary-decision, www-authenticate, retry-after, mcp-session-id"),
        (b"vary", b"Origin"),
    )


def preflight_headers(origin: bytes, requested: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """The answer to a page of an allowed origin that asks whether it may POST with the headers `requested`."""
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", b"POST"),
        (b"access-control-allow-headers", requested),
        (b"access-control-max-age", b"600"),
        (b"cache-control", b"no-store"),
        (b"vary", b"Origin, Access-Control-Request-Headers"),
    )
