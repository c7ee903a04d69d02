"""A request as a value: the lines and bytes that go on the wire, and the ways to break exactly one thing of it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.support.stack import body, headers_of

Lines = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Ask:
    """One HTTP request. `length` None counts the body; a number says so whatever it is; -1 sends no such line."""

    target: bytes
    lines: Lines
    body: bytes = b""
    verb: bytes = b"POST"
    length: int | None = None

    def line(self, name: bytes, *values: bytes) -> Ask:
        """The request with these values of a header and no others; none: without it."""
        kept = tuple(one for one in self.lines if one[0].lower() != name.lower())
        return replace(self, lines=(*kept, *((name, value) for value in values)))

    def more(self, name: bytes, value: bytes) -> Ask:
        """The request with one more header line."""
        return replace(self, lines=(*self.lines, (name, value)))

    def values(self, name: bytes) -> list[bytes]:
        """All values of a header."""
        return [value for key, value in self.lines if key.lower() == name.lower()]

    @property
    def message(self) -> Any:
        """The body, read."""
        return json.loads(self.body)

    def edit(self, change: Callable[[dict[str, Any]], object]) -> Ask:
        """The request with a changed body and the same headers."""
        message = self.message
        change(message)
        return replace(self, body=spell(message))

    def encode(self) -> bytes:
        """What goes on the wire."""
        lines = [b"%b: %b\r\n" % line for line in self.lines]
        if self.length is None:
            lines.append(b"Content-Length: %d\r\n" % len(self.body))
        elif self.length >= 0:
            lines.append(b"Content-Length: %d\r\n" % self.length)
        return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (self.verb, self.target, b"".join(lines), self.body)


def spell(message: Any) -> bytes:
    """JSON as clients write it."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()


def encoded(text: str) -> bytes:
    """The Base64 sentinel of a header value."""
    return b"=?base64?%b?=" % base64.b64encode(text.encode())


def compose(target: str, host: str, message: Mapping[str, Any], token: str, **lines: str) -> Ask:
    """A good request for a message; `lines` are further headers."""
    named = {**headers_of(message, token), **lines}
    name = named.get("Mcp-Name", "")
    if not (name.isascii() and name.isprintable()) or (name.startswith("=?base64?") and name.endswith("?=")):
        named["Mcp-Name"] = encoded(name).decode()
    pairs = tuple((name.encode(), value.encode("latin-1")) for name, value in {"Host": host, **named}.items())
    return Ask(target.encode(), pairs, spell(message))


def tool(name: str, request_id: Any = 7, **arguments: Any) -> dict[str, Any]:
    """A `tools/call`."""
    return body("tools/call", {"name": name, "arguments": arguments}, request_id)


def version_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """`_meta`, for rows that break it."""
    meta: dict[str, Any] = message["params"]["_meta"]
    return meta
