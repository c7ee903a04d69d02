"""The strict reading of a request head: one grammar, one reading, or a refusal (RFC 9112; requirements FRM-01..11).

Sans-IO. The head is judged as bytes before the HTTP parser sees it, because parsers forgive: each of those that
uvicorn offers lets something through (docs/http-parser.md). What passes here has exactly one framing, one Host, and a
header tuple that nothing later can change. Whatever somebody could read in another way is `REQUEST_MALFORMED`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.contract.refusals import Refusal, Refused

Headers = tuple[tuple[bytes, bytes], ...]

DOOR: Final = "ostiary.door"
"""The key in `scope["extensions"]` under which an ASGI application finds its `gateway.door.connection.Connection`."""


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """What one connection may cost. Sizes in bytes, times in seconds.

    `head_s` runs from the connection, or from the first byte of a further head, to the head's end; `body_s` from
    there to the last byte of the body; `idle_s` is a kept-alive connection's rest. `quiet_s` is the silence on an
    event stream after which a comment is sent, `stall_s` how long a client may leave the answer unread (taking less
    than 64 KiB of it), `linger_s` how long the unread rest of a refused request is thrown away so that the refusal
    can be read. `connections` is per worker, and so is `unread_bytes`: what all clients together may leave unread
    before the slowest are cut.
    """

    head_bytes: int = 65_536
    head_lines: int = 100
    body_bytes: int = 4_194_304
    connections: int = 16_384
    unread_bytes: int = 268_435_456
    head_s: float = 10.0
    body_s: float = 25.0
    idle_s: float = 75.0
    quiet_s: float = 15.0
    stall_s: float = 60.0
    linger_s: float = 2.0


class Framing(NamedTuple):
    """How long the body is (as in `Head`), and what the client hopes for besides an answer."""

    length: int | None
    expects_continue: bool
    upgrades: bool


class Head(NamedTuple):
    """A request head with exactly one reading.

    `path` is the request target up to the query, as it was sent: nothing is decoded or normalised. `headers` are
    (lower-cased name, value without surrounding optional whitespace) in order of arrival. `length` is the body's size
    by `Content-Length`, 0 where there is no body, and `None` for a chunked one. `tamed` is what the parser is fed in
    place of the bytes that came: without an offer to upgrade, which would end the request at its head for it, and
    without control characters in values that are checked later.
    """

    method: bytes
    path: bytes
    query: bytes
    headers: Headers
    length: int | None
    expects_continue: bool
    tamed: bytes | None = None


def _grammar(token: bytes) -> re.Pattern[bytes]:
    line = token + rb":[\t\x20-\x7e\x80-\xff]*+\r\n"
    return re.compile(rb"(" + _TOKEN + rb") (/[!\"$-~]*+) HTTP/1\.1\r\n((?:" + line + rb")*+)\r\n")


_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_HEAD: Final = _grammar(_TOKEN)
_PLAIN_HEAD: Final = _grammar(rb"[0-9A-Za-z-]++")  # nearly every request: no name that needs a second look
_AUTHORITY: Final = re.compile(rb"(?:[0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")

# A control character in a mirrored header is for the header contract to name (-32020), not a fault of the framing.
_MIRRORED_LINE: Final = re.compile(rb"^mcp-(?:protocol-version|method|name):[^\r\n\0]*+\r\n", re.M | re.I)
_UPGRADE_LINE: Final = re.compile(rb"^upgrade:", re.M | re.I)
_CONTROL: Final = re.compile(rb"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]")

_ONCE: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect", b"upgrade"})
_NO_ALIAS: Final = _ONCE | {
    b"accept", b"authorization", b"connection", b"content-encoding", b"content-type", b"cookie", b"origin",
    b"proxy-authorization", b"trailer", b"upgrade",
}  # fmt: skip

# Only for the audit's detail: the first that is found names the fault. The grammar above is what decides.
_FAULTS: Final = (
    (re.compile(rb"(?<!\r)\n"), "bare LF"),
    (re.compile(rb"\r(?!\n)"), "bare CR"),
    (re.compile(rb"\0"), "NUL"),
    (re.compile(rb"\n[\t ]"), "folded line, or a line that begins with space"),
    (re.compile(rb"\A[^\r]* HTTP/1\.0\r"), "HTTP/1.0"),
    (re.compile(rb"\A(?!" + _TOKEN + rb" /[!\"$-~]*+ HTTP/1\.1\r)"), "request line"),
    (re.compile(rb"\n[^\r:]*[\t ]:"), "space before colon"),
    (re.compile(rb"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]"), "control character"),
)


def find_end(data: bytes | bytearray, searched: int = 0) -> int:
    """Where the head in `data` ends (behind its empty line), or -1. The first `searched` bytes hold no end."""
    at = data.find(b"\r\n\r\n", max(0, searched - 3))
    return -1 if at < 0 else at + 4


def has_bare_line_end(data: bytes | bytearray, searched: int = 0) -> bool:
    """Whether an unfinished head holds a lone LF: its end would never come in the form that we accept."""
    start = max(0, searched - 1)
    return data.count(b"\n", start) != data.count(b"\r\n", start) + (start > 0 and data[start : start + 1] == b"\n")


def read_head(data: bytes, end: int, limits: DoorLimits) -> Head:
    """Read the head `data[:end]` (its empty line included).

    Raises `Refused`: `HEAD_TOO_LARGE` by size or number of lines, `REQUEST_MALFORMED` for everything that is not
    plainly one HTTP/1.1 request in origin-form with one framing and one Host.
    """
    if end > limits.head_bytes:
        raise Refused(Refusal.HEAD_TOO_LARGE, f"{end} bytes")
    tamed: bytes | None = None
    match = _PLAIN_HEAD.fullmatch(data, 0, end)
    plain = match is not None
    if match is None:
        match = _HEAD.fullmatch(data, 0, end)
    if match is None:
        tamed = _MIRRORED_LINE.sub(lambda line: _CONTROL.sub(b"?", line[0]), data[:end])
        match = _HEAD.fullmatch(tamed)
    if match is None:
        raise Refused(Refusal.REQUEST_MALFORMED, _name_fault(data[:end]))
    method, target, _ = match.groups()
    if method == b"CONNECT":
        raise Refused(Refusal.REQUEST_MALFORMED, "CONNECT")
    start, stop = match.span(3)
    lines = data[start:stop].split(b"\r\n")
    lines.pop()  # behind the last line's CRLF
    if len(lines) > limits.head_lines:
        raise Refused(Refusal.HEAD_TOO_LARGE, f"{len(lines)} header lines")
    # In line, where `trim_line` says it once more for other servers: this is the hottest loop of the door.
    headers = tuple(
        [(name.lower(), value.strip(b" \t")) for name, _, value in [row.partition(b":") for row in lines]]
    )
    if not plain:
        refuse_aliases(headers)
    length, expects_continue, upgrades = judge_framing(headers)
    if upgrades:  # as long as before, so that `end` stays where it is
        tamed = _UPGRADE_LINE.sub(b"x-grade:", data[:end] if tamed is None else tamed)
    path, _, query = target.partition(b"?")
    return Head(method, path, query, headers, length, expects_continue, tamed)


def trim_line(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """A header line as the house compares it: the name in lower case, the value without optional whitespace."""
    return name.lower(), value.strip(b" \t")


def refuse_aliases(headers: Headers) -> None:
    """Raise `Refused(REQUEST_MALFORMED)` for a name that an underscore makes look like one that decides.

    CGI-like readers take `Mcp_Name` for `Mcp-Name`. `Mcp-Param-user_id` is a name of its own (the header contract
    refuses two that such a reader would take for one).
    """
    for name, _ in headers:
        if b"_" in name:
            dashed = name.replace(b"_", b"-")
            if dashed in _NO_ALIAS or (dashed.startswith(b"mcp-") and not name.startswith(b"mcp-param-")):
                raise Refused(Refusal.REQUEST_MALFORMED, "a look-alike of a header that decides")


def judge_framing(headers: Headers) -> Framing:
    """The framing of an HTTP/1.1 request, from its header lines.

    Raises `Refused(REQUEST_MALFORMED)` for two framings, one that is not spelled exactly, and a doubled or missing
    Host.
    """
    once = dict(headers)
    if len(once) != len(headers):
        names = [name for name, _ in headers if name in _ONCE]
        if len(names) != len(set(names)):
            raise Refused(Refusal.REQUEST_MALFORMED, "a line twice: " + b", ".join(sorted(names)).decode())
    host = once.get(b"host")
    if host is None:
        raise Refused(Refusal.REQUEST_MALFORMED, "no Host")
    if not _AUTHORITY.fullmatch(host):
        raise Refused(Refusal.REQUEST_MALFORMED, "Host is not an authority")
    length = once.get(b"content-length")
    coding = once.get(b"transfer-encoding")
    expects_continue = b"expect" in once and once[b"expect"].lower() == b"100-continue"
    upgrades = b"upgrade" in once
    if coding is not None:
        if length is not None:
            raise Refused(Refusal.REQUEST_MALFORMED, "Content-Length and Transfer-Encoding")
        if coding.lower() != b"chunked":
            raise Refused(Refusal.REQUEST_MALFORMED, "Transfer-Encoding other than chunked")
        return Framing(None, expects_continue, upgrades)
    if length is None:
        return Framing(0, expects_continue, upgrades)
    if not _LENGTH.fullmatch(length):
        raise Refused(Refusal.REQUEST_MALFORMED, "Content-Length is not a number")
    return Framing(int(length), expects_continue, upgrades)


def _name_fault(head: bytes) -> str:
    return next((fault for pattern, fault in _FAULTS if pattern.search(head)), "header line")
