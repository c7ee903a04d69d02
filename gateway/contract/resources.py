"""Which URIs of a server may be named at all: its prefixes, and the one form in which a URI is judged.

A URI is held to the prefixes as it is, never repaired: one that a server might resolve, decode or fold to another is
outside, so that what was judged is what the server sees (RFC 3986 section 6.2; RFC 6570; server/resources). Nothing
here knows a scheme: `http://EXAMPLE.com:80/` and `note://Inbox` are both not in normal form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Any, Final
from unicodedata import category, normalize
from urllib.parse import unquote_to_bytes

LONGEST: Final = 8192
"""Characters of a URI or template that is looked at."""

_URI: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*):(?://(?P<authority>[^/?#]*))?(?P<rest>.*)", re.DOTALL)
_PLAIN: Final = re.compile(r"[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]*")
_HOST: Final = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._~!$&'()*+,;=-]*)(?::(?P<port>[1-9][0-9]{0,4}))?")
_PORTS: Final = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21"}
_ESCAPE: Final = re.compile(r"%(.{0,2})", re.DOTALL)
_NEVER_ESCAPED: Final = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"  # has a plain spelling
    b"/\\%;"  # would part, or escape, once more
)
_ESCAPES: Final = frozenset(f"{octet:02X}" for octet in range(0x20, 0x100) if octet not in {*_NEVER_ESCAPED, 0x7F})
_IN_QUERY: Final = re.compile(r"[?#]")
_PARAMETER: Final = re.compile(r"[?#&;]|%26")
_PARTS: Final = re.compile(r"[/?#;]")
_VARIABLE: Final = r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*(?::[0-9]+|\*)?"
_NEVER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")
_DOTS: Final = re.compile(r"(?:\A|[/?#;])[. ]+(?:\Z|[/?#;])")
_EXPRESSION: Final = re.compile(rf"\{{([+#./;?&]?){_VARIABLE}(?:,{_VARIABLE})*\}}")
_SAMPLES: Final = {"": "x", "+": "x", "#": "#x", ".": ".x", "/": "/x", ";": ";x", "?": "?x", "&": "&x"}


@dataclass(frozen=True, slots=True)
class Reach:
    """What of a server's resources may be named: what lies below one of `prefixes`, or is one.

    A prefix that ends with `/` admits itself and what lies below it, any other exactly itself; so the setting reads
    like a key of the policy's data.
    """

    prefixes: tuple[str, ...]

    def admits(self, uri: str) -> bool:
        """Whether a URI is in normal form and inside."""
        return self._covers(uri) and is_normal(uri)

    def admits_template(self, template: str) -> bool:
        """Whether all that a URI template can lead to begins inside, and no literal part of it leads out.

        What stands before the first expression must lie below a prefix, and the template with every expression
        replaced by a plain word must be admitted; nor may its own dots be a segment where expressions are empty
        (`..{name}`). What it is expanded to is judged again when it is read.
        """
        literal, brace, _ = template.partition("{")
        if not brace:
            return self.admits(template)
        if len(template) > LONGEST or not any(p[-1:] == "/" and _below(literal, p) for p in self.prefixes):
            return False
        bare = _EXPRESSION.sub(lambda found: "." if found[1] == "." else "", template)
        return not _DOTS.search(bare) and self.admits(_EXPRESSION.sub(lambda found: _SAMPLES[found[1]], template))

    def admits_reference(self, uri: str, values: Iterable[Any]) -> bool:
        """Whether a completion may be asked for: of a URI or template inside, with values that can't lead out."""
        return self.admits_template(uri) and all(map(_stays_below, values))

    def admits_asked(self, method: str, name: str | None, arguments: Mapping[str, Any]) -> bool:
        """Whether all resources that a request names are inside; `arguments` as in `Call`."""
        if method == "resources/read":
            return self.admits(name or "")
        if method == "subscriptions/listen":
            return all(map(self.admits, arguments["notifications"].get("resourceSubscriptions", ())))
        if method == "completion/complete" and "uri" in arguments["ref"]:
            known = arguments.get("context", {}).get("arguments", {})
            return self.admits_reference(arguments["ref"]["uri"], [arguments["argument"]["value"], *known.values()])
        return True

    def admits_item(self, method: str, item: Mapping[str, Any]) -> bool:
        """Whether a list may show an item that it identified already."""
        if method == "resources/list":
            return self.admits(item["uri"])
        return method != "resources/templates/list" or self.admits_template(item["uriTemplate"])

    def _covers(self, uri: str) -> bool:
        return any(uri == p or (p[-1:] == "/" and _below(uri, p)) for p in self.prefixes)


def is_normal(uri: str) -> bool:
    """Whether a URI has one reading: this one.

    Scheme and host in lower case, no user information, no port that goes without saying; no empty or dot segment,
    also none behind `?`, `#` or `;`; percent-encoded only what has to be, in UTF-8 and capitals, and never a
    separator, a control character or `%` itself; nothing that compatibility forms (NFKC), or dropping characters
    that nobody sees, would turn into those.
    """
    if len(uri) > LONGEST or not (found := _URI.fullmatch(uri)) or not _PLAIN.fullmatch(found["rest"]):
        return False
    authority = found["authority"]
    if authority is not None and not _is_normal_authority(found["scheme"], authority):
        return False
    return _stays_below(found["rest"].removeprefix("/"), escaped=True)


def check_prefix(prefix: str) -> str:
    """A configured prefix as it is. Raises `ValueError` for one that no URI in normal form could begin with."""
    if not is_normal(prefix):
        raise ValueError(
            "must be a URI in normal form: scheme:// and host in lower case, nothing to resolve or decode"
        )
    return prefix


def _below(uri: str, prefix: str) -> bool:
    """The next segment is not empty: `file:///etc` does not lie below `file://`.

    Below a prefix within a query there is no further parameter: a server may take the last `path` of two.
    """
    if not uri.startswith(prefix) or uri.startswith("/", len(prefix)):
        return False
    return not _IN_QUERY.search(prefix) or not _PARAMETER.search(uri, len(prefix))


def _is_normal_authority(scheme: str, authority: str) -> bool:
    found = _HOST.fullmatch(authority)
    if not found or (found["port"] and (found["port"] == _PORTS.get(scheme) or int(found["port"]) > 65535)):
        return False
    if not found["host"].startswith("["):
        return not found["host"] or bool(found["host"].strip("."))  # some take a first segment for the host
    try:
        return str(IPv6Address(found["host"][1:-1])) == found["host"][1:-1]
    except ValueError:
        return False


def _stays_below(text: Any, *, escaped: bool = False) -> bool:
    """Whether a text, put behind a `/`, names nothing above or beside it; `escaped`: as part of a URI."""
    if not isinstance(text, str):
        return False
    if escaped and "%" in text:
        if not all(found[1] in _ESCAPES for found in _ESCAPE.finditer(text)):
            return False
        try:
            text = unquote_to_bytes(text).decode()
        except UnicodeDecodeError:
            return False
    elif "%" in text:
        return False
    if not text.isascii():
        folded = "".join(
            one for one in normalize("NFKC", text) if category(one) != "Cf"
        )  # some drop what is not seen
        if len(_PARTS.findall(folded)) != len(_PARTS.findall(text)) or "%" in folded:
            return False
        text = folded
    return not (text.startswith("/") or "//" in text or _NEVER.search(text) or _DOTS.search(text))
