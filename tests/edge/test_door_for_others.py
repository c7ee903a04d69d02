"""The door's connection under other applications, the edge on other servers, and the names that are served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.passage import Reply
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.reply import refusal_reply
from gateway.control import ControlDoor
from gateway.door.framing import DOOR, DoorLimits, Head, find_end, has_bare_line_end, read_head
from gateway.edge import Edge
from gateway.media import accepts_both_answers, is_json_in_utf8
from gateway.origins import accepted_hosts
from tests.edge.door import BODY, HOST, LIMITS, MAIN, StubCorridor, head, open_door, post
from tests.edge.test_streams import EVENT, streaming, wait_until
from tests.support.http_raw import RawClient

Message = MutableMapping[str, Any]


class Plain:
    """An application as the control plane's: it reads bodies and knows nothing of doors."""

    def __init__(self, _: object) -> None:
        self.bodies: list[bytes] = []

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        body = b""
        while scope["path"] != "/unread":
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if not message["more_body"]:
                break
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


def test_other_applications_have_the_same_door() -> None:
    """A broken, endless or slow body is answered for an application that can't; its next request is served."""
    plain = Plain(None)
    with open_door(LIMITS, wrap=lambda _: plain) as door:
        chunked = head(b"Transfer-Encoding: chunked") + b"\r\n\r\n"
        for data, status in [
            (post(), 200),
            (chunked + b"zz\r\n", 400),
            (chunked + b"1;" + b"a" * 9_000_000, 413),
            (head(b"Content-Length: 9") + b"\r\n\r\n{", 408),
            (post(), 200),
        ]:
            with RawClient(door.address) as client:
                answer = client.ask(data)
                assert (answer.status, answer.closes) == (status, status != 200)
        assert plain.bodies == [BODY, BODY]
        assert [reason for reason, _, _ in door.turned_away] == [
            "request_malformed",
            "body_too_large",
            "request_timeout",
        ]


class Waiting(Plain):
    """One that waits for the store, as it were, once it has the body; and notices nobody who leaves."""

    def __init__(self, _: object) -> None:
        super().__init__(_)
        self.begun = self.ended = 0

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Answer `/main/mcp`, hang on everything else."""
        if scope["path"] == "/main/mcp":
            await super().__call__(scope, receive, send)
            return
        self.begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1


async def _turn_away(refused: Refused) -> Reply:
    return refusal_reply(refused, request_id=None, server=None, decision_id="d")


def test_who_leaves_the_control_plane_is_not_served_on() -> None:
    """OPS-05: nothing is done any more for a client that broke off; a fault of a body is still answered."""
    waiting = Waiting(None)
    with open_door(LIMITS, wrap=lambda _: ControlDoor(waiting, [HOST], _turn_away)) as door:
        with RawClient(door.address) as client:
            assert [client.ask(post()).status for _ in range(2)] == [200, 200]
            client.send(head(b"Transfer-Encoding: chunked", path=b"/approvals/x") + b"\r\n\r\n")
            wait_until(lambda: waiting.begun == 1, 10)
            assert client.send(b"zz\r\n").read_head().status == 400
        wait_until(lambda: waiting.ended == 1, 10)
        clients = [RawClient(door.address).send(post(path=b"/approvals")) for _ in range(20)]
        wait_until(lambda: waiting.begun == 21, 10)
        assert waiting.ended == 1
        for one in clients:
            one.close()
        wait_until(lambda: waiting.ended == 21, 10)
        with RawClient(door.address) as client:
            assert client.ask(post()).status == 200


def test_a_body_that_an_application_left_unread_is_no_request() -> None:
    """Whatever answers before its body is there has its connection closed."""
    with open_door(LIMITS, wrap=Plain) as door, RawClient(door.address) as client:
        data = head(b"Content-Length: 4000", path=b"/unread") + b"\r\n\r\n"
        assert client.ask(data).status == 200
        client.send(post())
        assert client.rest() == b""


def test_a_refusal_ahead_of_its_body_can_be_read() -> None:
    """A reset would destroy it, and break off a client that is still sending: it is read on for a moment."""
    with open_door(LIMITS) as door:
        for size in (1000, 4_000_000):
            with RawClient(door.address) as client:
                refused = head(b"Content-Length: %d" % size).replace(b"Bearer good", b"Bearer bad")
                client.send(refused + b"\r\n\r\n")
                answer = client.read_answer()
                assert (answer.status, answer.closes) == (401, True)
                assert client.socket.recv(1) == b""
                client.socket.sendall(b"x" * size)
        assert door.corridor.served == []


async def test_who_is_slow_to_leave_takes_nothing_from_the_next_request() -> None:
    """A stream that is whole, but takes its time to close: the connection may be at its next request already."""

    class Slow:
        def __init__(self) -> None:
            self.closing, self.go_on = asyncio.Event(), asyncio.Event()

        def __aiter__(self) -> Slow:
            return self

        async def __anext__(self) -> bytes:
            raise StopAsyncIteration

        async def aclose(self) -> None:
            self.closing.set()
            await self.go_on.wait()

    slow = Slow()

    async def script(*_: object) -> Reply:
        return Reply(200, (), chunks=slow)

    class Kept:
        task: asyncio.Task[Any] | None = None
        fault, lost, request_complete = None, False, True
        loop = asyncio.get_running_loop()

    async def receive() -> Message:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(_: Message) -> None:
        pass

    kept = Kept()
    headers = (
        (b"host", HOST.encode()), (b"authorization", b"Bearer good"), (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
    )  # fmt: skip
    scope = {"method": "POST", "raw_path": MAIN.path.encode(), "headers": headers, "extensions": {DOOR: kept}}
    first = asyncio.ensure_future(Edge(StubCorridor(script), {MAIN.path: MAIN}, LIMITS, [HOST])(scope, receive, send))
    await slow.closing.wait()
    assert kept.task is first
    following = asyncio.ensure_future(asyncio.sleep(0))
    kept.task = following
    slow.go_on.set()
    await first
    assert kept.task is following
    await following


@pytest.mark.parametrize("fault", [(), (b"gw.example", b"gw.example"), (b"gw.example", b"evil.example")])
async def test_a_preflight_with_a_broken_framing_is_none(fault: tuple[bytes, ...]) -> None:
    """ORG-03, FRM-04: no Host, or two, is refused by the corridor on any server, before anybody asks for origins."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    edge = Edge(StubCorridor(), {MAIN.path: MAIN}, LIMITS, {HOST})
    asked = [(b"origin", b"https://app.example"), (b"access-control-request-method", b"POST")]
    for hosts, status in (((HOST.encode(),), 204), (fault, 400)):
        headers = [*asked, *((b"host", host) for host in hosts)]
        scope = {"method": "OPTIONS", "raw_path": MAIN.path.encode(), "headers": headers, "http_version": "1.1"}
        await edge(scope, receive, send)
        assert sent[-2]["status"] == status


@pytest.mark.parametrize("parser", ["h11", "httptools"])
def test_the_edge_on_another_server(parser: str) -> None:
    """Elsewhere the edge still judges the head, keeps it, bounds the body in size and time, and cancels."""
    with open_door(LIMITS, http=parser) as door:
        chunk = b"%x\r\n%b\r\n" % (len(BODY), BODY)
        trailer = (
            head(b"Transfer-Encoding: chunked", b"Mcp-Name: good")
            + b"\r\n\r\n"
            + chunk
            + b"0\r\nMcp-Name: evil\r\n\r\n"
        )
        for data, status in [
            (post(), 200),
            (post(b"Mcp_Name: evil"), 400),
            (post().replace(b"gw.example", b"a@gw.example"), 400),
            (post().replace(b"HTTP/1.1", b"HTTP/1.0", 1), 400),
            (post(*[b"X: y"] * 100), 431),
            (post(path=b"/none"), 404),
            (post().replace(b"good", b"evil"), 401),
            (head(b"Content-Length: 5000000") + b"\r\n\r\n", 413),
            (head(b"Content-Length: 9") + b"\r\n\r\n{", 408),
            *([(trailer, 200)] if parser == "h11" else []),
        ]:
            with RawClient(door.address) as client:
                assert client.ask(data).status == status
        # httptools hands uvicorn a trailer that came with its head before any application runs: no snapshot that is
        # taken in ASGI can undo that, which is why `Connection` keeps the head itself.
        names = [received.values(b"mcp-name") for received, _ in door.corridor.served]
        assert names == ([[], [b"good"]] if parser == "h11" else [[]])


@pytest.mark.parametrize("parser", ["h11", "httptools"])
def test_the_client_going_away_on_another_server(parser: str) -> None:
    """The watcher stands in for the connection that would have told."""
    ended: list[float] = []

    async def endless() -> Any:
        try:
            while True:
                yield EVENT
                await asyncio.sleep(0.01)
        finally:
            ended.append(time.monotonic())

    with open_door(LIMITS, streaming(endless), http=parser) as door:
        client = RawClient(door.address)
        client.send(post()).read_head()
        began = time.monotonic()
        client.close()
        wait_until(lambda: bool(ended))
        assert ended[0] - began < 1.0


def test_a_shutdown_ends_what_is_served() -> None:
    """A stream that does not end is cancelled when the grace time is over; the server stops."""
    ended = []

    async def endless() -> Any:
        try:
            while True:
                yield EVENT
                await asyncio.sleep(0.05)
        finally:
            ended.append(1)

    with open_door(LIMITS, streaming(endless)) as door:
        client = RawClient(door.address)
        client.send(post()).read_head()
    assert ended == [1]
    client.close()


def test_one_clock_serves_all_connections() -> None:
    """No timer is left behind, and connections that ended are forgotten."""
    with open_door(LIMITS, StubCorridor()) as door:
        for _ in range(50):
            with RawClient(door.address) as client:
                assert client.ask(post()).status == 200
        protocol = door.server.config.http_protocol_class
        wait_until(lambda: not protocol.watch.connections)  # type: ignore[attr-defined]
        assert isinstance(door.server, uvicorn.Server)
        assert not door.server.server_state.connections


HOSTS = [
    (
        ("https://gw.example", "127.0.0.1", 8080, []),
        "gw.example gw.example:443 gw.example: 127.0.0.1:8080",
        "gw.example:80 127.0.0.1 localhost:8080",
    ),
    (("http://gw.example", "::1", 80, []), "gw.example gw.example:80 [::1] [::1]:80", "gw.example:443 ::1"),
    (
        ("https://GW.example:8443", "0.0.0.0", 1, ["alias", "b:9"]),
        "gw.example:8443 alias alias:443 b:9",
        "gw.example b b:443",
    ),
]


@pytest.mark.parametrize(("configured", "accepted", "refused"), HOSTS)
def test_accepted_hosts_are_laid_out(
    configured: tuple[str, str, int, list[str]], accepted: str, refused: str
) -> None:
    """ORG-03: the configured names, with the default port of their scheme spelled or not, and no other."""
    hosts = accepted_hosts(*configured)
    assert set(accepted.split()) <= hosts
    assert not set(refused.split()) & hosts


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "http://gw.example",
        "gw.example/x",
        "a@gw.example",
        "gw example",
        " gw.example",
        "gw:x",
        "[::1",
        "gw:70000",
    ],
)
def test_a_host_entry_that_is_no_authority_is_an_error(entry: str) -> None:
    """A name that could never be met is found at start, and told with its setting."""
    with pytest.raises(ValueError, match=r"^allowed_hosts: not an authority: "):
        accepted_hosts("https://gw.example", "127.0.0.1", 1, [entry])


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """No bytes make the reading of a head fail in another way than a refusal."""
    whole = data + b"\r\n\r\n"
    found: Head | Refusal
    try:
        found = read_head(whole, find_end(whole), DoorLimits())
    except Refused as refused:
        found = refused.refusal
    assert isinstance(found, Head) or found in {Refusal.REQUEST_MALFORMED, Refusal.HEAD_TOO_LARGE}


_NAMES = st.sampled_from([b"X", b"Mcp-Name", b"mcp-method", b"Upgrade", b"Connection", b"Accept", b"x_y"])
_VALUES = st.binary(max_size=12).filter(lambda value: not set(value) & {0, 10, 13})


@given(st.lists(st.tuples(_NAMES, _VALUES), max_size=8))
def test_a_tamed_head_is_as_long_as_the_one_that_came(lines: list[tuple[bytes, bytes]]) -> None:
    """What the parser is fed in its place has the same lines, the same length, and no value of its own."""
    data = post(*[name + b": " + value for name, value in lines])
    end = find_end(data)
    try:
        found = read_head(data, end, DoorLimits())
    except Refused:
        return
    assert found.length == len(BODY)
    assert [(n.lower(), v.strip(b" \t")) for n, v in lines] == list(found.headers[4:-1])
    if found.tamed is not None:
        assert len(found.tamed) == end
        assert found.tamed.count(b"\r\n") == data[:end].count(b"\r\n")
        assert b"upgrade:" not in found.tamed.lower()


@given(st.binary(max_size=60).map(lambda data: data.replace(b"x", b"\r\n").replace(b"y", b"\n")), st.data())
def test_a_lone_line_feed_is_found_in_any_packets(data: bytes, draw: st.DataObject) -> None:
    """Looking only at what is new finds exactly what looking at all of it finds."""
    whole = data.count(b"\n") != data.count(b"\r\n")
    cut = draw.draw(st.integers(0, len(data)))
    assert (has_bare_line_end(data[:cut]) or has_bare_line_end(data, cut)) == whole


@given(st.binary(max_size=60))
def test_media_types_never_fail(value: bytes) -> None:
    """Any bytes are acceptable or not; nothing else happens."""
    assert accepts_both_answers(value) in {True, False}
    assert is_json_in_utf8(value) in {True, False}


def test_servers_paths_are_ascii() -> None:
    """A path that no request could spell is an error at start, not a server that never answers."""
    from gateway.edge import Edge

    with pytest.raises(UnicodeEncodeError):
        Edge(StubCorridor(), {"/café": MAIN}, DoorLimits(), [])
