"""The sign-in's own few pages: plain, the same for everybody, with nothing in them that a request said."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape

from gateway.contract.refusals import Refusal

STYLE = """
:root{color-scheme:light dark;--page:#f6f7f5;--text:#1b211f;--quiet:#566260;--line:#d5dbd7;--deed:#17635e;
--focus:#0b57d0}
@media(prefers-color-scheme:dark){:root{--page:#121715;--text:#e9eeeb;--quiet:#a5b2ad;--line:#323b38;--deed:#7fd3c7;
--focus:#8ab4f8}}
body{margin:0;background:var(--page);color:var(--text);font:1.0625rem/1.55 system-ui,sans-serif}
header{border-bottom:1px solid var(--line);padding:.8rem 1.25rem;font-weight:700;text-align:center}
main{max-width:34rem;margin:0 auto;padding:10vh 1.25rem 2rem}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .75rem}
p{margin:0 0 1rem}small{color:var(--quiet);overflow-wrap:anywhere}
.deed{display:inline-block;margin:.25rem .75rem .5rem 0;padding:.6rem 1.1rem;border:1px solid currentColor;
border-radius:.4rem;color:var(--deed);background:none;text-decoration:none;font:inherit;font-weight:600;
overflow-wrap:anywhere;cursor:pointer}
.deed:focus-visible{outline:3px solid var(--focus);outline-offset:2px}
"""
_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

HEADERS: Mapping[str, str] = {
    "cache-control": "no-store",
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""What goes with every answer of the sign-in, redirections included."""

WITH_FORM = HEADERS["content-security-policy"].replace("form-action 'none'", "form-action 'self'")
"""The same for the one page that has a form."""

WORDS: Mapping[Refusal, tuple[str, str]] = {
    Refusal.SIGN_IN_REFUSED: (
        "The sign-in was not accepted",
        "It was called off at the issuer, took too long, was begun in another browser, or what the issuer answered "
        "is not accepted here. Nothing was done. Should it happen again: whoever runs the gateway finds the reason "
        "in its record, by the id below.",
    ),
    Refusal.SIGN_IN_UNAVAILABLE: (
        "Nobody can be signed in at the moment",
        "The issuer does not answer as it should. A session that you have is still there: try again in a while.",
    ),
    Refusal.KEYS_UNAVAILABLE: (
        "Nobody can be signed in at the moment",
        "The issuer's keys are not available. Try again in a while.",
    ),
    Refusal.APPROVALS_UNAVAILABLE: (
        "Nobody can be signed in at the moment",
        "The store of sessions is not available. Try again in a while.",
    ),
    Refusal.AUDIT_UNAVAILABLE: (
        "Nobody can be signed in at the moment",
        "The record can't be written, so nothing was done. Try again in a while.",
    ),
}
DEFECT = ("Something went wrong", "The gateway failed; nothing more is known here.")


def page(title: str, text: str, links: Sequence[tuple[str, str]] = (), decision_id: str = "") -> bytes:
    """A whole page. `links` are (path, words)."""
    deeds = "".join(f'<a class="deed" href="{escape(path)}">{escape(words)}</a>' for path, words in links)
    trace = f"<p><small>Decision {escape(decision_id)}</small></p>" if decision_id else ""
    return _whole(title, text, deeds + trace)


def farewell(name: str, path: str, form_key: str) -> bytes:
    """The page that ends a session: this one, or all of the person's."""
    name = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in name[:64])
    form = (
        f'<form method="post" action="{escape(path)}">'
        f'<input type="hidden" name="form_key" value="{escape(form_key)}">'
        '<button class="deed">Sign out</button>'
        '<button class="deed" name="everywhere" value="yes">Sign out everywhere</button>'
        '<a class="deed" href="/review">Stay</a></form>'
    )
    text = f"You are signed in as {name}. Everywhere: in all browsers where you are signed in here."
    return _whole("Sign out", text, form)


def _whole(title: str, text: str, more: str) -> bytes:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)} · Ostiary</title><style>{STYLE}</style></head>"
        f"<body><header>Ostiary</header><main><h1>{escape(title)}</h1><p>{escape(text)}</p>{more}</main></body></html>"
    ).encode()
