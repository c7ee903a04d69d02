"""Hostile and odd requests as data: rows FRM-01, 02, 04, 06, 11 of the requirements, byte for byte.

The same table is run against the door (test_framing.py) and against each parser that uvicorn offers
(parser_evidence.py). Every one of them that hides a second request hides the canary, whose path is `/canary/mcp`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.edge.door import BODY, CANARY_REQUEST, HOST, head, post

MALFORMED = frozenset({400})
"""The door's answer; nobody was called."""

SERVED = frozenset({200})
"""One request, framed as the RFC says."""


@dataclass(frozen=True)
class Row:
    """What is sent, and which statuses are right for its first answer. `body` is what the right reading serves."""

    name: str
    data: bytes
    right: frozenset[int] = MALFORMED
    body: bytes | None = None


def _chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


def _te(line: bytes, *more: bytes, body: bytes | None = None) -> bytes:
    return head(line, *more) + b"\r\n\r\n" + (_chunked(BODY) if body is None else body)


SMUGGLED = b"0\r\n\r\n" + CANARY_REQUEST
"""A body that ends at once for who reads chunks, and goes on with the canary."""

LENGTHS = [
    Row(
        "Content-Length and chunked",
        head(b"Content-Length: %d" % len(SMUGGLED), b"Transfer-Encoding: chunked") + b"\r\n\r\n" + SMUGGLED,
    ),
    Row(
        "chunked and Content-Length",
        head(b"Transfer-Encoding: chunked", b"Content-Length: 4") + b"\r\n\r\n" + _chunked(CANARY_REQUEST),
    ),
    *(
        Row(
            f"Content-Length: {value.decode('latin-1')}",
            head(b"Content-Length: " + value) + b"\r\n\r\n" + BODY[:7] + CANARY_REQUEST,
        )
        for value in (b"7, 7", b"+7", b"-7", b"0x7", b"1_0", b"7.0", b"7 7", b"", b"7;", b"\xb27", b"9" * 30)
    ),
    Row(
        "two equal Content-Length",
        head(b"Content-Length: 7", b"Content-Length: 7") + b"\r\n\r\n" + BODY[:7] + CANARY_REQUEST,
    ),
    Row(
        "two Content-Length",
        head(b"Content-Length: 7", b"Content-Length: 8") + b"\r\n\r\n" + BODY[:8] + CANARY_REQUEST,
    ),
    Row(
        "Content_Length beside Content-Length",
        head(b"Content_Length: 0", b"Content-Length: 7") + b"\r\n\r\n" + BODY[:7],
    ),
]

CODINGS = [
    *(
        Row(f"Transfer-Encoding: {value.decode('latin-1')}", _te(b"Transfer-Encoding: " + value))
        for value in (
            b"xchunked",
            b"identity, chunked",
            b"chunked, identity",
            b"chunked, chunked",
            b"identity",
            b"gzip, chunked",
            b"chunked;q=1",
            b'"chunked"',
            b"",
        )
    ),
    Row("two Transfer-Encoding", _te(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity")),
    Row("two Transfer-Encoding: chunked", _te(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked")),
    Row(
        "Transfer_Encoding", _te(b"Transfer_Encoding: chunked", b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED)
    ),
    Row("Transfer-Encoding in HTTP/1.0", _te(b"Transfer-Encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0", 1)),
    Row("bare-LF chunks", _te(b"Transfer-Encoding: chunked", body=b"2\n{}\n0\n\n" + CANARY_REQUEST)),
    Row("bare-LF chunk end", _te(b"Transfer-Encoding: chunked", body=b"2\r\n{}\n0\r\n\r\n" + CANARY_REQUEST)),
    Row("no CRLF behind a chunk", _te(b"Transfer-Encoding: chunked", body=b"2\r\n{}0\r\n\r\n" + CANARY_REQUEST)),
    Row(
        "chunk longer than its size",
        _te(b"Transfer-Encoding: chunked", body=b"2\r\n{}{}\r\n0\r\n\r\n" + CANARY_REQUEST),
    ),
    *(
        Row(
            f"chunk size {size.decode()}",
            _te(b"Transfer-Encoding: chunked", body=size + b"\r\n{}\r\n0\r\n\r\n" + CANARY_REQUEST),
        )
        for size in (b"0x2", b"+2", b"-2", b" 2", b"2 ", b"2_", b"", b"g", b"1" * 20)
    ),
    Row("chunked", _te(b"Transfer-Encoding: chunked"), SERVED, BODY),
    Row("Chunked", _te(b"Transfer-Encoding: Chunked"), SERVED, BODY),
    Row(
        "chunked in pieces with an extension",
        _te(b"Transfer-Encoding: chunked", body=b"2;a=b\r\n" + BODY[:2] + b"\r\n" + _chunked(BODY[2:])),
        SERVED,
        BODY,
    ),
    Row(
        "chunked with a trailer",
        _te(
            b"Transfer-Encoding: chunked",
            body=_chunked(BODY, end=b"0\r\nMcp-Name: evil\r\nAuthorization: Bearer evil\r\n\r\n"),
        ),
        SERVED,
        BODY,
    ),
    Row("a request behind a chunked one", _te(b"Transfer-Encoding: chunked") + CANARY_REQUEST, SERVED, BODY),
]

_BYTES = (0x01, 0x04, 0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x1F, 0x20, 0x7F, 0xA0, 0xFF)
_TE = b"Transfer-Encoding: chunked"
_MUTATIONS: dict[str, tuple[bytes, bytes]] = {
    "midspace": (b"Transfer-Encoding:", b"chunked"),
    "postspace": (b"Transfer-Encoding", b": chunked"),
    "prespace": (b"", _TE),
    "endspace": (_TE, b""),
    "xprespace": (b"X: X", _TE),
    "endspacex": (_TE, b"X: X"),
    "rxprespace": (b"X: X\r", _TE),
    "xnprespace": (b"X: X", b"\n" + _TE),
    "endspacerx": (_TE + b"\r", b"X: X"),
    "endspacexn": (_TE, b"\nX: X"),
}
MUTATED_LINES: dict[str, bytes] = {
    "nameprefix1": b" " + _TE,
    "tabprefix1": b"Transfer-Encoding:\tchunked",
    "tabprefix2": b"Transfer-Encoding\t:\tchunked",
    "space1": b"Transfer-Encoding : chunked",
    **{
        f"{family}-{byte:02x}": before + bytes([byte]) + behind
        for byte in _BYTES
        for family, (before, behind) in _MUTATIONS.items()
    },
}
"""The 134 spellings that defparam/smuggler tries by default (configs/default.py, MIT, (c) 2020 Evan Custodio)."""


def _mutated() -> list[Row]:
    """Each spelling with a length that goes on to the end, with one that ends before the canary, and with none."""
    rows = []
    long, short = b"Content-Length: %d" % len(SMUGGLED), b"Content-Length: 5"
    for name, line in MUTATED_LINES.items():
        # A line that is a header of its own (a value with obs-text) leaves one framing: by length, which is right.
        rows.append(Row(f"{name}, long", head(line, long) + b"\r\n\r\n" + SMUGGLED, SERVED | MALFORMED, SMUGGLED))
        rows.append(
            Row(f"{name}, short", head(line, short) + b"\r\n\r\n" + SMUGGLED, SERVED | MALFORMED, SMUGGLED[:5])
        )
        rows.append(Row(f"{name}, none", head(line) + b"\r\n\r\n" + SMUGGLED, SERVED | MALFORMED, b""))
    return rows


MUTATIONS = _mutated()

_REQUEST = post()
_HOST_LINE = b"Host: " + HOST.encode()

LINES = [
    Row("no Host", head(b"Content-Length: 0", host=None) + b"\r\n\r\n"),
    Row("two Hosts", post(b"Host: other.example")),
    Row("two equal Hosts", post(_HOST_LINE)),
    *(
        Row(f"Host: {value.decode('latin-1')}", head(b"Content-Length: 0", host=value) + b"\r\n\r\n")
        for value in (
            b"gw.example/health?x=",
            b"gw.example#",
            b"a@gw.example",
            b"gw.example, evil",
            b"",
            b"gw.example:80:80",
            b"[::1",
            b"gw.example\\",
            b"gw.example:x",
            b"gw%2eexample",
            b"gw .example",
        )
    ),
    Row("folded line", post(b"X: a\r\n b")),
    Row("folded Transfer-Encoding", _te(b"Transfer-Encoding:\r\n chunked")),
    Row("folded first line", _REQUEST.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\n X: y\r\n", 1)),
    Row("bare-LF head", _REQUEST.replace(b"\r\n", b"\n")),
    Row("one bare LF", _REQUEST.replace(b"\r\nAccept", b"\nAccept", 1)),
    Row("bare-LF end", head(b"Content-Length: 0") + b"\n\n"),
    Row("bare CR in a value", post(b"X: a\rContent-Length: 0")),
    Row("NUL in a value", post(b"X: a\0b")),
    Row("control character in a value", post(b"X: a\x01b")),
    Row("space before colon", post(b"X : y")),
    Row("space before Content-Length's colon", head(b"Content-Length : 5") + b"\r\n\r\n" + BODY[:5]),
    Row("line without colon", post(b"nonsense")),
    Row("line without a name", post(b": x")),
    Row("name that is no token", post(b"X(y): z")),
    Row("look-alike of a mirrored header", post(b"Mcp_Name: evil")),
    Row("look-alike of Authorization", post(b"Proxy_Authorization: x")),
    Row("absolute-form", _REQUEST.replace(b"POST /main/mcp", b"POST http://gw.example/main/mcp", 1)),
    Row(
        "absolute-form of another host", _REQUEST.replace(b"POST /main/mcp", b"POST http://evil.example/main/mcp", 1)
    ),
    Row("authority-form", _REQUEST.replace(b"POST /main/mcp", b"CONNECT gw.example:443", 1)),
    Row("CONNECT with a path", _REQUEST.replace(b"POST", b"CONNECT", 1)),
    Row("asterisk-form", _REQUEST.replace(b"POST /main/mcp", b"OPTIONS *", 1)),
    Row("fragment", _REQUEST.replace(b"/main/mcp", b"/main/mcp#x", 1)),
    Row("two spaces in the request line", _REQUEST.replace(b"POST /", b"POST  /", 1)),
    Row("tab in the request line", _REQUEST.replace(b"POST /", b"POST\t/", 1)),
    Row("space at the request line's end", _REQUEST.replace(b"HTTP/1.1\r\n", b"HTTP/1.1 \r\n", 1)),
    Row("raw UTF-8 in the path", _REQUEST.replace(b"/main/mcp", "/main/mcp\u00e9".encode(), 1)),
    Row("HTTP/0.9", b"POST /main/mcp\r\n\r\n"),
    Row("HTTP/1.0", _REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0", 1)),
    Row("HTTP/1.2", _REQUEST.replace(b"HTTP/1.1", b"HTTP/1.2", 1)),
    Row("HTTP/2.0 on a plain connection", _REQUEST.replace(b"HTTP/1.1", b"HTTP/2.0", 1)),
    Row("http/1.1", _REQUEST.replace(b"HTTP/1.1", b"http/1.1", 1)),
    Row("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"),
    Row("TLS on a plain connection", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 30 + b"\n"),
    Row("an empty line before the request", b"\r\n" + _REQUEST, SERVED, BODY),
    Row(
        "names in any case, space around values",
        _REQUEST.replace(b"Content-Type: application/json", b"cONTENT-tYPE:\t application/json \t", 1),
        SERVED,
        BODY,
    ),
    Row("obs-text in a value that decides nothing", post(b"X-Name: caf\xe9"), SERVED, BODY),
    Row("X_Name", post(b"X_Name: y"), SERVED, BODY),
]

METHODS = [
    *(
        Row(method.decode(), head(method=method) + b"\r\n\r\n", frozenset({405}))
        for method in (b"GET", b"DELETE", b"HEAD", b"PUT", b"OPTIONS", b"PATCH", b"TRACE")
    ),
    *(
        Row(method.decode(), post().replace(b"POST", method, 1))
        for method in (b"post", b"Post", b"POSTX", b"P", b"(POST")
    ),
    Row("a request behind a GET", head(method=b"GET") + b"\r\n\r\n" + CANARY_REQUEST, frozenset({405})),
]

UPGRADES = [
    Row(
        "Upgrade: h2c with a body",
        post(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"),
        SERVED,
        BODY,
    ),
    Row(
        "Upgrade: h2c, a request behind it",
        post(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AA") + CANARY_REQUEST,
        SERVED,
        BODY,
    ),
    Row(
        "Upgrade: h2c and chunked",
        _te(b"Transfer-Encoding: chunked", b"Connection: Upgrade", b"Upgrade: h2c") + CANARY_REQUEST,
        SERVED,
        BODY,
    ),
    Row(
        "Upgrade: websocket",
        post(
            b"Connection: Upgrade",
            b"Upgrade: websocket",
            b"Sec-WebSocket-Version: 13",
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
        SERVED,
        BODY,
    ),
    Row("a request behind another", _REQUEST + CANARY_REQUEST, SERVED, BODY),
    Row("a request behind one that closes", post(b"Connection: close") + CANARY_REQUEST, SERVED, BODY),
    Row("half a request behind another", _REQUEST + CANARY_REQUEST[:40], SERVED, BODY),
    Row(
        "longer than its Content-Length",
        head(b"Content-Length: 7") + b"\r\n\r\n" + BODY[:7] + CANARY_REQUEST,
        SERVED,
        BODY[:7],
    ),
]

ROWS: dict[str, list[Row]] = {
    "FRM-01 lengths": LENGTHS,
    "FRM-02 codings": CODINGS,
    "FRM-02 mutations": MUTATIONS,
    "FRM-04 lines": LINES,
    "FRM-06 methods": METHODS,
    "FRM-11 upgrades": UPGRADES,
}
