"""FRM-07, 08, 11, ORG-01, ORG-03, HDR-06, 11, 14 on the wire, and G1, G4: what the corridor is given."""

from __future__ import annotations

import gzip

import pytest

from gateway.contract.passage import Reply
from gateway.contract.refusals import Refusal
from tests.edge.door import BODY, CANARY_REQUEST, MAIN, OpenDoor, head, post
from tests.support.http_raw import Answer, RawClient


def ask(door: OpenDoor, request: bytes) -> Answer:
    """One request on a connection of its own, after its positive twin has passed."""
    with RawClient(door.address) as client:
        assert client.ask(post()).status == 200, "the positive twin"
    door.corridor.served.clear()
    with RawClient(door.address) as client:
        return client.ask(request)


def replaced(line: bytes, by: bytes) -> bytes:
    """The request that passes, with one header line changed."""
    request = post()
    assert line in request
    return request.replace(line, by, 1)


TYPE = b"Content-Type: application/json"
ACCEPT = b"Accept: application/json, text/event-stream"


@pytest.mark.parametrize(
    "line",
    [
        TYPE,
        b"content-type: Application/JSON",
        TYPE + b"; charset=utf-8",
        TYPE + b" ;\t charset=\"UTF-8\" ; profile=x",
        TYPE + b";",
    ],
)  # fmt: skip
def test_json_is_accepted_however_it_is_spelled(door: OpenDoor, line: bytes) -> None:
    """Media types are compared ignoring case; parameters are allowed; UTF-8 is the one charset."""
    assert ask(door, replaced(TYPE, line)).status == 200


@pytest.mark.parametrize(
    "line",
    [
        b"X: y",
        b"Content-Type:",
        b"Content-Type: text/plain",
        b"Content-Type: application/x-www-form-urlencoded",
        b"Content-Type: multipart/form-data; boundary=x",
        b"Content-Type: application/jsonx",
        b"Content-Type: application/json-rpc",
        b"Content-Type: text/plain, application/json",
        b"Content-Type: application/json, text/plain",
        TYPE + b"; charset=utf-16",
        TYPE + b"; charset=utf-8; charset=utf-7",
        TYPE + b"; charset",
        TYPE + b"\r\n" + TYPE,
    ],
)
def test_only_json_in_utf8_is_a_body(door: OpenDoor, line: bytes) -> None:
    """FRM-07: what a browser can send without asking is 415, and nothing was called."""
    assert ask(door, replaced(TYPE, line)).status == 415
    assert door.corridor.served == []
    assert door.reasons() == ["content_unsupported"]


@pytest.mark.parametrize(
    "coding", [b"gzip", b"br", b"zstd", b"identity, gzip", b"gzip\r\nContent-Encoding: identity"]
)
def test_a_coded_body_is_not_read(door: OpenDoor, coding: bytes) -> None:
    """FRM-08: 415 that says `Accept-Encoding: identity`; nothing is inflated."""
    bomb = gzip.compress(b"0" * 1_000_000)
    answer = ask(door, post(b"Content-Encoding: " + coding, body=bomb))
    assert (answer.status, answer.values("accept-encoding")) == (415, ["identity"])
    assert door.corridor.served == []


def test_identity_is_no_coding(door: OpenDoor) -> None:
    """`Content-Encoding: identity` passes."""
    assert ask(door, post(b"Content-Encoding: Identity")).status == 200


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        (b"application/json, text/event-stream", 200),
        (b"application/json,text/event-stream;q=0.1", 200),
        (b"*/*", 200),
        (b"text/*, application/*", 200),
        (b"APPLICATION/JSON , Text/Event-Stream", 200),
        (b"application/json\r\nAccept: text/event-stream", 200),
        (b'application/json;a="x,y", text/event-stream', 200),
        (b"application/json", 406),
        (b"text/event-stream", 406),
        (b"text/html, */*;q=0", 406),
        (b"*/*, text/event-stream;q=0", 406),
        (b"application/json, text/event-stream;q=0.000", 406),
        (b"application/json, text/event-stream;q=2", 406),
        (b"application/json; text/event-stream", 406),
        (b"application/json text/event-stream", 406),
        (b"", 406),
    ],
)
def test_both_answers_must_be_accepted(door: OpenDoor, accept: bytes, status: int) -> None:
    """A client that does not accept JSON and an event stream is told so before its body is read."""
    assert ask(door, replaced(ACCEPT, b"Accept: " + accept)).status == status


def test_a_missing_accept_is_not_acceptable(door: OpenDoor) -> None:
    """The revision makes the header a must."""
    assert ask(door, replaced(ACCEPT, b"X: y")).status == 406


@pytest.mark.parametrize(
    "path",
    [
        b"/",
        b"/main",
        b"/main/mcp/",
        b"//main/mcp",
        b"/main//mcp",
        b"/main/./mcp",
        b"/x/../main/mcp",
        b"/main%2fmcp",
        b"/main/%6dcp",
        b"/MAIN/mcp",
        b"/main/mcp;v=1",
        b"/main/mcp%00",
        b"/main\\mcp",
        b"//evil.example/main/mcp",
        b"/canary/mcp/../../main/mcp",
    ],
)
def test_a_path_is_compared_exactly(door: OpenDoor, path: bytes) -> None:
    """G4: no decoding, no normalising, no prefix: another spelling is another path."""
    assert ask(door, post(path=path)).status == 404
    assert door.reasons() == ["server_unknown"]


def test_a_query_does_not_change_the_path(door: OpenDoor) -> None:
    """The query is no part of the name of a server, and nothing is read from it."""
    assert ask(door, post(path=b"/main/mcp?access_token=secret&x=/canary/mcp")).status == 200
    received, _ = door.corridor.served[0]
    assert received.path == "/main/mcp"
    assert received.server == MAIN


@pytest.mark.parametrize("host", [b"gw.example", b"GW.Example"])
def test_a_host_of_the_list_is_served(door: OpenDoor, host: bytes) -> None:
    """ORG-03: names are compared ignoring case, as names are."""
    assert ask(door, replaced(b"Host: gw.example", b"Host: " + host)).status == 200


@pytest.mark.parametrize(
    "host",
    [b"evil.example", b"gw.example.evil.example", b"xgw.example", b"gw.example.", b"gw.example:81", b"127.0.0.1"],
)
def test_another_host_is_not_served(door: OpenDoor, host: bytes) -> None:
    """ORG-03, G4: exactly the configured names; `X-Forwarded-Host` is not one."""
    request = replaced(
        b"Host: gw.example", b"Host: " + host + b"\r\nX-Forwarded-Host: gw.example\r\nForwarded: host=gw.example"
    )
    assert ask(door, request).status == 403
    assert door.reasons() == ["host_forbidden"]


def test_an_allowed_origin_is_echoed(door: OpenDoor) -> None:
    """ORG-01, ORG-03: only the configured origin, never a wildcard, never credentials."""
    answer = ask(door, post(b"Origin: https://app.example"))
    assert answer.status == 200
    assert answer.values("access-control-allow-origin") == ["https://app.example"]
    assert answer.values("access-control-allow-credentials") == []
    assert ask(door, post()).values("access-control-allow-origin") == []


@pytest.mark.parametrize(
    "origin",
    [
        b"https://evil.example",
        b"http://app.example",
        b"https://app.example:443",
        b"https://app.example/",
        b"https://APP.example",
        b"https://app.example.evil.example",
        b"https://app.example\r\nOrigin: https://evil.example",
        b"https://app.example\r\nOrigin: https://app.example",
        b"https://app.example, https://evil.example",
        b"null",
        b"",
        b"https://gw.example",
    ],
)
def test_another_origin_is_refused(door: OpenDoor, origin: bytes) -> None:
    """ORG-01: DNS rebinding is 403, whatever token comes with it, before the token is looked at."""
    answer = ask(door, post(b"Origin: " + origin))
    assert answer.status == 403
    assert answer.values("access-control-allow-origin") == []
    assert door.reasons() == ["origin_forbidden"]


def preflight(origin: bytes, *lines: bytes) -> bytes:
    """What a browser asks before it posts."""
    asked = [b"Origin: " + origin, b"Access-Control-Request-Method: POST", *lines]
    return b"\r\n".join([b"OPTIONS /main/mcp HTTP/1.1", b"Host: gw.example", *asked]) + b"\r\n\r\n"


def test_a_preflight_of_an_allowed_origin_is_answered(door: OpenDoor) -> None:
    """ORG-03: a page of a configured origin may ask; nobody is called."""
    answer = ask(
        door, preflight(b"https://app.example", b"Access-Control-Request-Headers: authorization, mcp-method")
    )
    assert answer.status == 204
    assert answer.values("access-control-allow-origin") == ["https://app.example"]
    assert answer.values("access-control-allow-methods") == ["POST"]
    assert answer.values("access-control-allow-headers") == ["authorization, mcp-method"]
    assert answer.values("cache-control") == ["no-store"], "like every answer of an MCP endpoint"
    assert door.corridor.walked == [("POST", "/main/mcp")], "only the twin"


@pytest.mark.parametrize(
    "request_bytes",
    [
        preflight(b"https://evil.example"),
        preflight(b"null"),
        preflight(b"https://app.example").replace(b"/main/mcp", b"/canary/mcp"),
        preflight(b"https://app.example").replace(b"gw.example", b"evil.example"),
        preflight(b"https://app.example", b"Origin: https://evil.example"),
        preflight(b"https://app.example").replace(b"Method: POST", b"Method: DELETE"),
    ],
)
def test_another_preflight_is_just_a_method(door: OpenDoor, request_bytes: bytes) -> None:
    """ORG-03, FRM-06: OPTIONS is 405 without a word on origins."""
    answer = ask(door, request_bytes)
    assert answer.status == 405
    assert not [name for name, _ in answer.headers if name.startswith("access-control")]


def test_repeated_headers_reach_the_header_contract(door: OpenDoor) -> None:
    """HDR-06: two lines are two lines; nothing is joined, dropped or reordered on the way."""
    assert ask(door, post(b"Mcp-Name: one", b"MCP-NAME:  two ", b"Mcp-Method: a", b"Mcp-Method: a")).status == 200
    received, _ = door.corridor.served[0]
    assert received.values(b"mcp-name") == [b"one", b"two"]
    assert received.values(b"mcp-method") == [b"a", b"a"]


@pytest.mark.parametrize("value", [b"a\x01b", b"a\x7f", b"\x1b[2J", b"caf\xe9", "café".encode(), b"a\tb"])
@pytest.mark.parametrize("name", [b"Mcp-Name", b"mcp-method", b"MCP-Protocol-Version"])
def test_raw_bytes_of_a_mirrored_header_reach_the_header_contract(door: OpenDoor, name: bytes, value: bytes) -> None:
    """HDR-11: the value arrives as it was sent, so that it can be refused by name, with the request's id."""
    assert ask(door, post(name + b": " + value)).status == 200
    received, body = door.corridor.served[0]
    assert received.values(name.lower()) == [value]
    assert body == BODY


@pytest.mark.parametrize(
    "line", [b"Mcp-Name: a\0b", b"Mcp-Param-X: a\x01b", b"X-Mcp-Name: \x01", b"X: y\r\n mcp-name: \x01"]
)
def test_other_raw_bytes_are_malformed(door: OpenDoor, line: bytes) -> None:
    """Only values that are checked later may hold a control character, and none may hold NUL."""
    assert ask(door, post(line)).status == 400
    assert door.corridor.served == []


@pytest.mark.parametrize(
    "name", [b"Mcp_Name", b"mcp_method", b"MCP_Protocol-Version", b"Content_Type", b"X_Forwarded-For"]
)
def test_alias_headers_change_nothing(door: OpenDoor, name: bytes) -> None:
    """HDR-14: a look-alike of a header that decides is 400; another stays a header of its own."""
    answer = ask(door, post(name + b": evil", b"Mcp-Name: good"))
    if name == b"X_Forwarded-For":
        assert answer.status == 200
        assert door.corridor.served[0][0].values(b"x-forwarded-for") == []
    else:
        assert answer.status == 400
        assert door.corridor.served == []


def test_a_parameters_own_underscore_is_no_alias(door: OpenDoor) -> None:
    """HDR-13: a tool may annotate `x-mcp-header: user_id`; only a look-alike of the prefix is refused."""
    assert ask(door, post(b"Mcp-Param-user_id: 7")).status == 200
    assert door.corridor.served[0][0].values(b"mcp-param-user_id") == [b"7"]
    assert ask(door, post(b"Mcp_Param-user_id: 7")).status == 400


def test_a_trailer_is_no_header(door: OpenDoor) -> None:
    """G1: fields behind a chunked body are dropped; the snapshot is of the head, immutable, and taken before."""
    chunked = b"\r\n\r\n" + b"%x\r\n%b\r\n" % (len(BODY), BODY)
    trailer = b"0\r\nMcp-Name: evil\r\nAuthorization: Bearer evil\r\nX-Trailer: 1\r\n\r\n"
    assert ask(door, head(b"Transfer-Encoding: chunked", b"Mcp-Name: good") + chunked + trailer).status == 200
    received, body = door.corridor.served[0]
    assert isinstance(received.headers, tuple)
    assert received.values(b"mcp-name") == [b"good"]
    assert received.values(b"authorization") == [b"Bearer good"]
    assert received.values(b"x-trailer") == []
    assert body == BODY


def test_connection_options_remove_nothing(door: OpenDoor) -> None:
    """G1: a `Connection` list that names a header does not take it out of the snapshot."""
    assert ask(door, post(b"Mcp-Name: good", b"Connection: keep-alive, mcp-name, authorization")).status == 200
    assert door.corridor.served[0][0].values(b"mcp-name") == [b"good"]


def test_no_100_before_the_token(door: OpenDoor) -> None:
    """FRM-11: a bad token is answered without `100 Continue`, and the body that was held back is never a request."""
    bad = head(b"Expect: 100-continue", b"Content-Length: %d" % len(CANARY_REQUEST)).replace(b"good", b"evil")
    with RawClient(door.address) as client:
        answer = client.ask(bad + b"\r\n\r\n")
        assert (answer.status, answer.interim, answer.closes) == (401, (), True)
        client.send(CANARY_REQUEST)
        assert client.rest() == b""
    with RawClient(door.address) as client:
        good = head(b"Expect: 100-continue", b"Content-Length: %d" % len(BODY))
        client.send(good + b"\r\n\r\n")
        assert client._until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert client.ask(BODY).status == 200
    assert [path for _, path in door.corridor.walked] == ["/main/mcp", "/main/mcp"]


def test_no_100_for_a_body_that_is_too_large(door: OpenDoor) -> None:
    """A body that will be refused by its length is not invited."""
    with RawClient(door.address) as client:
        answer = client.ask(head(b"Expect: 100-continue", b"Content-Length: 5000000") + b"\r\n\r\n")
        assert (answer.status, answer.interim, answer.closes) == (413, (), True)


def test_an_unread_body_is_never_a_request(door: OpenDoor) -> None:
    """FRM-11: after an early refusal the connection is closed; the refusal can be read, whatever still comes."""
    big = CANARY_REQUEST * 2000
    with RawClient(door.address) as client:
        answer = client.ask((head(b"Content-Length: %d" % len(big)) + b"\r\n\r\n" + big).replace(b"good", b"evil", 1))
        assert (answer.status, answer.closes) == (401, True)
        assert client.rest() == b""
    assert [path for _, path in door.corridor.walked] == ["/main/mcp"]


def test_a_refusal_with_its_body_read_keeps_the_connection(door: OpenDoor) -> None:
    """Only what can't be told apart any more costs the connection: a whole request that is refused does not."""
    with RawClient(door.address) as client:
        assert client.ask(post().replace(b"good", b"evil")).status == 401
        assert client.ask(post()).status == 200


def test_checks_come_in_order(door: OpenDoor) -> None:
    """Framing, path, method, Host, Origin, token, Accept, Content-Type, size: the first fault is the answer."""
    faults = [
        (b" HTTP/1.1", b" HTTP/1.2", 400),
        (b"/main/mcp", b"/none/mcp", 404),
        (b"POST", b"PUT", 405),
        (b"Host: gw.example", b"Host: evil.example", 403),
        (b"\r\nAccept", b"\r\nOrigin: https://evil.example\r\nAccept", 403),
        (b"Bearer good", b"Bearer evil", 401),
        (ACCEPT, b"Accept: text/html", 406),
        (TYPE, b"Content-Type: text/plain", 415),
        (b"Content-Length: %d" % len(BODY), b"Content-Length: 9000000", 413),
    ]
    for at, (_, _, status) in enumerate(faults):
        request = post()
        for good, bad, _ in reversed(faults[at:]):
            request = request.replace(good, bad, 1)
        assert ask(door, request).status == status


def test_every_refusal_before_a_scope_is_on_record(door: OpenDoor) -> None:
    """What the framing refuses is told to the house with the peer, and its answer names the record."""
    with RawClient(door.address) as client:
        answer = client.ask(post(b"X: \0"))
        mine = client.socket.getsockname()
    assert answer.values("ostiary-decision") == ["d-1"]
    assert answer.json()["error"]["data"] == {"decisionId": "d-1"}
    assert answer.values("cache-control") == ["no-store"]
    [(reason, detail, peer)] = door.turned_away
    assert (reason, detail, peer) == (Refusal.REQUEST_MALFORMED.reason, "NUL", mine)


def test_answers_disclose_no_software(door: OpenDoor) -> None:
    """No `Server` header."""
    with RawClient(door.address) as client:
        assert client.ask(post()).values("server") == []


def test_a_notification_is_answered_without_a_body(door: OpenDoor) -> None:
    """202 with nothing in it, and the connection goes on."""

    async def accept(*_: object) -> Reply:
        return Reply(202, ())

    door.corridor.script = accept
    try:
        with RawClient(door.address) as client:
            answer = client.ask(post())
            assert (answer.status, answer.body, answer.closes) == (202, b"", False)
            assert client.ask(post()).status == 202
    finally:
        door.corridor.script = None
