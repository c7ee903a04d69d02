"""The head of an answer: what is accepted as one, and nothing else of it travels on.

No redirect, no upgrade, no content coding, no framing that two readers would see differently; of the header fields
only the media type is read, and none is relayed (contract.md section 1; requirements UPS-01, UPS-08).
"""

from __future__ import annotations

from enum import Enum

Headers = list[tuple[bytes, bytes]]


class HeadRefused(Exception):  # noqa: N818 - a past participle, like the house's
    """The answer's head is not one that is accepted. The text says why and quotes no value but the status."""


class Kind(Enum):
    """What follows an accepted head."""

    JSON = "application/json"
    STREAM = "text/event-stream"
    NOTHING = ""


_KINDS = {b"application/json": Kind.JSON, b"text/event-stream": Kind.STREAM}
_ONCE = frozenset({b"content-type", b"content-length", b"transfer-encoding", b"content-encoding"})
_OWN_CREDENTIAL_REFUSED = frozenset({401, 407})


def accept_head(status: int, version: str, headers: Headers, *, notification: bool) -> Kind:
    """Status, version and fields of an answer -> what its body is. Raises `HeadRefused`.

    A request is answered by 200 (JSON or stream), or by 4xx or 5xx with JSON, whose body must then be a JSON-RPC
    error; 401 and 407 speak of the gateway's own credential and concern no caller. A notification is answered by 202,
    or by 4xx or 5xx with JSON.
    """
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        key = name.lower()
        if key in _ONCE:
            if key in fields:
                raise HeadRefused(f"{key.decode()} stands twice")
            fields[key] = value.strip(b" \t")
    _check_framing(version, fields)
    if status == 202 and notification:
        return Kind.NOTHING
    if (status != 200 and not 400 <= status <= 599) or (status == 200 and notification):
        raise HeadRefused(f"status {status}")
    if status in _OWN_CREDENTIAL_REFUSED:
        raise HeadRefused(f"status {status}: the server refuses the gateway's own credential")
    kind = _media(fields.get(b"content-type"))
    if kind is None:
        raise HeadRefused(f"status {status} with a media type that is neither JSON nor an event stream")
    if status != 200 and kind is not Kind.JSON:
        raise HeadRefused(f"status {status} with an event stream")
    return kind


def is_framed(headers: Headers) -> bool:
    """Whether the body's end is told by its framing, and not by the end of the connection."""
    return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in headers)


def _check_framing(version: str, fields: dict[bytes, bytes]) -> None:
    if version not in ("1.1", "1.0"):
        raise HeadRefused("neither HTTP/1.1 nor HTTP/1.0")
    transfer = fields.get(b"transfer-encoding")
    if transfer is not None and (version == "1.0" or transfer.lower() != b"chunked"):
        raise HeadRefused("a transfer coding other than chunked")
    if transfer is not None and b"content-length" in fields:
        raise HeadRefused("both a length and a transfer coding")
    if fields.get(b"content-encoding", b"identity").lower() != b"identity":
        raise HeadRefused("a content coding, though identity was asked for")


def _media(value: bytes | None) -> Kind | None:
    """The media type, compared ignoring case; parameters are allowed, a charset only if it is UTF-8."""
    if value is None:
        return None
    kind = _KINDS.get(value)
    if kind is not None:
        return kind
    media, _, parameters = value.partition(b";")
    for parameter in parameters.split(b";"):
        name, _, charset = parameter.partition(b"=")
        if name.strip().lower() == b"charset" and charset.strip().strip(b'"').lower() not in (b"utf-8", b"utf8"):
            return None
    return _KINDS.get(media.strip().lower())
