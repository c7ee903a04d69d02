"""How a page leaves: rendered from a template in which everything is escaped, under headers that allow our own alone.

One style sheet, one small script and one icon, each under a name that holds its digest. Nothing is fetched from
anybody else, nothing inline runs, and no page is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from approvals.review.plainly import in_a_line, in_lines
from approvals.review.times import ago, moment, until

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
)
ALWAYS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with `no-referrer` a browser names the origin of our own forms as `null`
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
KEPT: Mapping[str, str] = {**ALWAYS, "cache-control": "no-store"}

ASSETS = "/review/assets/"
_KINDS = {
    "review.css": "text/css; charset=utf-8",
    "review.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of ours, and the path that changes with it."""

    path: str
    kind: str
    content: bytes


def _asset(name: str) -> Asset:
    content = (files("approvals.review") / "assets" / name).read_bytes()
    stem, _, suffix = name.partition(".")
    tag = hashlib.sha256(content).hexdigest()[:16]
    return Asset(f"{ASSETS}{stem}.{tag}.{suffix}", _KINDS[name], content)


_OURS = {name: _asset(name) for name in _KINDS}
_BY_PATH = {asset.path: asset for asset in _OURS.values()}

_environment = Environment(
    loader=PackageLoader("approvals.review"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_environment.filters |= {"line": in_a_line, "lines": in_lines, "moment": moment, "ago": ago, "until": until}
_environment.globals |= {"assets": {name.partition(".")[2]: asset.path for name, asset in _OURS.items()}}


def render(template: str, **context: Any) -> str:
    """A template (its name without the suffix) -> HTML. What is missing in the context is an error."""
    return _environment.get_template(f"{template}.html.jinja").render(context)


def renderer(package: str) -> Callable[..., str]:
    """`render` for a package that has templates of its own, which may use those that are here."""
    both = ChoiceLoader([PackageLoader(package), PackageLoader("approvals.review")])
    environment = _environment.overlay(loader=both)

    def render_there(template: str, **context: Any) -> str:
        return environment.get_template(f"{template}.html.jinja").render(context)

    return render_there


def page(html: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that a browser shows and nobody keeps."""
    return Response(html, status, {**KEPT, **(headers or {})}, media_type="text/html")


def see_other(where: str) -> Response:
    """Go on there with a GET: a page that is loaded again does nothing again."""
    return Response(None, 303, {**KEPT, "location": where})


def asset(path: str) -> Response | None:
    """One of our files, to be kept for as long as anybody likes; None for any other path."""
    found = _BY_PATH.get(path)
    if found is None:
        return None
    headers = {**ALWAYS, "cache-control": "public, max-age=31536000, immutable"}
    return Response(found.content, 200, headers, media_type=found.kind)
