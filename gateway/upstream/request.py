"""What is sent to a replica: the prefix that all its requests share, the fields that were admitted, the body.

What the caller brought along (credentials, cookies, framing, forwarding headers) never travels, even if admission let
it through (contract.md sections 1, 5, 6); a field that is not exactly one line stops a request before its first byte.
"""

from __future__ import annotations

import functools
import re
from importlib.metadata import version

from gateway.contract.headers import PROTOCOL_VERSION, encode_value
from gateway.contract.passage import Call
from gateway.upstream.port import UpstreamInvalid
from gateway.upstream.target import NEVER_FORWARDED, ReplicaAddress, UpstreamTarget

Fields = tuple[tuple[bytes, bytes], ...]
Tail = tuple[bytes, bytes]
"""The end of a head, and a body, which is copied behind it only where it is small."""

_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e]*\r\n")
CLIENT_INFO = {"name": "ostiary", "version": version("ostiary")}
_SMALL = 1024
"""Bytes of header values up to which their lines are kept for the next call of the same kind."""
_OWN = (
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
    (b"mcp-protocol-version", PROTOCOL_VERSION.encode()),
)


def headers_of(call: Call) -> Fields:
    """The header lines of a question of the house."""
    named = () if call.name is None else ((b"mcp-name", encode_value(call.name)),)
    return (*_OWN, (b"mcp-method", call.method.encode()), *named)


def request_prefix(address: ReplicaAddress, target: UpstreamTarget) -> bytes:
    """The part of the head that is the same in every request to a replica."""
    lines = [f"POST {address.path} HTTP/1.1", f"host: {address.authority}", "accept-encoding: identity"]
    if target.credential_header:
        lines.append(f"{target.credential_header.lower()}: {target.credential_value}")
    return "".join(f"{line}\r\n" for line in lines).encode("ascii")


def request_tail(headers: Fields, body: bytes, own: bytes = b"") -> Tail:
    """The rest of a request: the admitted fields, the house's `own` lines (checked, each with its end), the body."""
    small = sum([len(value) for _, value in headers]) <= _SMALL
    fields = _few_fields(headers) if small else _write_fields(headers)
    return b"%b%bcontent-length: %d\r\n\r\n" % (fields, own, len(body)), body


def _write_fields(headers: Fields) -> bytes:
    """Header fields as lines. Raises `UpstreamInvalid` (nothing was sent) for one that is not exactly one line."""
    fields = []
    for name, value in headers:
        key = name.lower()
        if key in NEVER_FORWARDED or key.startswith((b"proxy-", b"x-forwarded-")):
            continue
        field = key + b": " + value + b"\r\n"
        if not _FIELD.fullmatch(field):
            raise UpstreamInvalid("an admitted header is not one line", sent=False)
        fields.append(field)
    return b"".join(fields)


_few_fields = functools.lru_cache(256)(_write_fields)
