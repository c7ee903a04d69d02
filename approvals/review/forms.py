"""What a page's form sends, read strictly: from this origin, urlencoded, bounded, each known field once.

A form acts for whoever is signed in, so it must come from a page that was given to them: it carries the session's
key, and the browser says where it comes from.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection, Mapping
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from approvals.review.body import BodyRefused, read_bytes

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
MOST_FIELDS = 100


class NotFromHere(Exception):  # noqa: N818 - what the browser said of the form
    """The form was not sent by one of these pages, or not by this session's."""


def check_origin(request: Request, origin: str) -> None:
    """Raises `NotFromHere` unless the browser says that one of our own pages sent this.

    Every browser names a form's `Origin`; what those that know `Sec-Fetch-Site` say there has to agree.
    """
    sites, origins = request.headers.getlist("sec-fetch-site"), request.headers.getlist("origin")
    if origins != [origin] or sites not in ([], ["same-origin"]):
        raise NotFromHere


def check_key(given: str, form_key: str) -> None:
    """Raises `NotFromHere` unless the form carries the session's key. In constant time."""
    if not form_key or not hmac.compare_digest(given.encode(), form_key.encode()):
        raise NotFromHere


async def read_form(request: Request, limit: int) -> dict[str, str]:
    """The fields of an urlencoded body of at most `limit` bytes, line ends as `\\n`. Raises `BodyRefused`."""
    kind, _, charset = request.headers.get("content-type", "").partition(";")
    charset = charset.strip().lower().replace('"', "")
    if kind.strip().lower() != "application/x-www-form-urlencoded" or charset not in ("", "charset=utf-8"):
        raise BodyRefused(415, "content_unsupported")
    return parse_form(await read_bytes(request, limit))


def parse_form(body: bytes) -> dict[str, str]:
    """`a=1&b=2` -> the fields. Raises `BodyRefused` for a field twice, a wrong escape, or what is no UTF-8."""
    if not body.isascii() or _BAD_ESCAPE.search(body):
        raise BodyRefused(400, "form_malformed")
    pairs = body.split(b"&") if body else []
    if len(pairs) > MOST_FIELDS:
        raise BodyRefused(400, "form_malformed")
    fields: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition(b"=")
        if not equals:
            raise BodyRefused(400, "form_malformed")
        key = _text(name)
        if key in fields:
            raise BodyRefused(400, "form_ambiguous")
        fields[key] = _text(value).replace("\r\n", "\n").replace("\r", "\n")
    return fields


def _text(raw: bytes) -> str:
    try:
        return unquote_to_bytes(raw.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError as fault:
        raise BodyRefused(400, "form_malformed") from fault


def field(fields: Mapping[str, str], name: str, most: int) -> str:
    """A field of at most `most` characters, `""` where it was not sent. Raises `BodyRefused`."""
    value = fields.get(name, "")
    if len(value) > most:
        raise BodyRefused(400, f"{name}_too_long")
    return value


def only_fields(fields: Collection[str], *names: str) -> None:
    """Refuse fields that the page's form does not have."""
    if not set(fields) <= set(names):
        raise BodyRefused(400, "field_unknown")
