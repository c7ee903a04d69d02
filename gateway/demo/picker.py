"""The development issuer's page: pick who you are. It says what it is, and needs no script."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from gateway.demo.people import Person

STYLE = """
:root{color-scheme:light dark;--ink:#1c2024;--paper:#fbfbf9;--card:#fff;--quiet:#5c636b;--line:#c9cdd2;
--warn:#7c2d12;--warnpaper:#fff3e6}
@media(prefers-color-scheme:dark){:root{--ink:#e8e9ea;--paper:#16181a;--card:#1f2225;--quiet:#a6acb3;--line:#4a5057;
--warn:#ffb98a;--warnpaper:#33211a}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:1.0625rem/1.5 system-ui,sans-serif}
.notice{background:var(--warnpaper);color:var(--warn);padding:.7rem 1.25rem;text-align:center;font-weight:600}
main{max-width:34rem;margin:0 auto;padding:2.5rem 1.25rem}h1{font-size:1.5rem;margin:0 0 .25rem}
p{margin:0 0 1.25rem;color:var(--quiet);overflow-wrap:anywhere}form{margin:0 0 .6rem}
button{display:block;width:100%;text-align:left;font:inherit;color:inherit;background:var(--card);cursor:pointer;
border:1px solid var(--line);border-radius:.5rem;padding:.8rem 1rem}button:hover{border-color:currentColor}
button:focus-visible{outline:3px solid currentColor;outline-offset:2px}button b{display:block}
button span{color:var(--quiet)}button.no{background:none;border-style:dashed}
"""
NOTICE = "Development issuer: anybody on this machine can be anybody here. Never trust it in production."


def picker(handle: str, client: str, people: Iterable[Person]) -> str:
    """The whole page; `handle` is the sign-in that goes on once somebody is picked."""

    def button(value: str, name: str, part: str, kind: str = "") -> str:
        return (
            f'<form method="post" action="/authorize"><input type="hidden" name="handle" value="{escape(handle)}">'
            f'<button name="person" value="{escape(value)}"{kind}><b>{escape(name)}</b>'
            f"<span>{escape(part)}</span></button></form>"
        )

    choices = "".join(button(person.subject, person.name, person.part) for person in people)
    choices += button("", "Nobody", "Go back without signing in", ' class="no"')
    return _page("Who are you?", f"<p>You are signing in to {escape(client)}.</p>{choices}")


def complaint(text: str) -> str:
    """Why nobody can sign in this way."""
    return _page("This can't go on", f"<p>{escape(text)}</p>")


def _page(title: str, content: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)} · development issuer</title><style>{STYLE}</style></head>"
        f'<body><div class="notice" role="note">{escape(NOTICE)}</div>'
        f"<main><h1>{escape(title)}</h1>{content}</main></body></html>"
    )
