"""TLS in front of the door: what is spoken there, and what those who do not speak it cost (docs/tls.md)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.contract.passage import Received, Reply
from gateway.door import threshold
from gateway.serving.departure import Departure
from gateway.upstream.target import Fixed
from gateway.wires.pem import Files, load
from tests.edge.door import LIMITS, MAIN, OpenDoor, StubCorridor, head, open_door, post
from tests.support.certificates import LOOPBACK, Pair, authority
from tests.support.http_raw import RawClient
from tests.support.upstream import eventually

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
"""The beginning of a ClientHello."""


class Shown:
    """A certificate that can be replaced (`Secured`)."""

    def __init__(self, folder: Path, pair: Pair, client_ca: Path | None = None) -> None:
        self.folder, self.client_ca = folder, client_ca
        self.show(pair)

    def show(self, pair: Pair) -> None:
        """From now on, this one."""
        files = Files("listen.tls", *pair.write(self.folder, "shown"), self.client_ca, serves=True)
        self.context = load(files).context


def client(*, own: tuple[Path, Path] | None = None, **settings: Any) -> ssl.SSLContext:
    """An ordinary client that believes the tests' authority; `settings` are the context's."""
    context = authority().client_context(own)
    for name, value in settings.items():
        setattr(context, name, value)
    return context


def ask(door: OpenDoor, tls: ssl.SSLContext | None = None, request: bytes | None = None) -> int:
    """One request over a connection of its own -> its status."""
    with RawClient(door.address, tls=tls or client()) as one:
        return one.send(request or post(b"Connection: close")).read_answer().status


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    """What the door shows."""
    return Shown(tmp_path, authority().sign(*LOOPBACK))


@contextmanager
def tls_door(shown: Shown, **options: Any) -> Iterator[OpenDoor]:
    """The door behind it. A good request passes before the test and after it."""
    with open_door(secured=shown, **options) as door:
        if shown.client_ca is None:
            assert ask(door) == 200
            asyncio.run(eventually(lambda: door.began == ["completed"]))
            door.began.clear()
        yield door
        if shown.client_ca is None:
            assert ask(door) == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_are_spoken_with_forward_secrecy(shown: Shown, version: ssl.TLSVersion) -> None:
    """TLS 1.2 and 1.3, authenticated encryption with forward secrecy, http/1.1 and nothing else, no ticket."""
    tls = client(minimum_version=version, maximum_version=version)
    tls.set_alpn_protocols(["h2", "http/1.1"])
    with tls_door(shown) as door, RawClient(door.address, tls=tls) as one:
        for _ in range(2):
            assert one.send(post()).read_answer().status == 200
        sock = cast("ssl.SSLSocket", one.socket)
        assert sock.version() == version.name.replace("TLSv1_", "TLSv1.")
        assert sock.selected_alpn_protocol() == "http/1.1"
        assert sock.compression() is None
        chosen = sock.cipher()
        assert chosen is not None
        assert chosen[0].startswith(("TLS_", "ECDHE-"))
        assert "GCM" in chosen[0] or "POLY1305" in chosen[0]
        assert sock.session is None or not sock.session.has_ticket
        assert not sock.session_reused


@pytest.mark.parametrize(
    ("version", "ciphers"),
    [
        (ssl.TLSVersion.TLSv1_1, "ALL:@SECLEVEL=0"),
        (ssl.TLSVersion.TLSv1_2, "AES256-GCM-SHA384"),
        (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES256-SHA384:ECDHE-ECDSA-AES128-SHA"),
    ],
    ids=["TLS 1.1", "no forward secrecy", "CBC"],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_what_is_outdated_is_not_spoken(shown: Shown, version: ssl.TLSVersion, ciphers: str) -> None:
    """An old version or a cipher without forward secrecy or authentication ends in the handshake, and is counted."""
    tls = client(minimum_version=ssl.TLSVersion.MINIMUM_SUPPORTED, maximum_version=version)
    tls.set_ciphers(ciphers)
    with tls_door(shown) as door:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(door, tls)
        asyncio.run(eventually(lambda: door.began == ["failed"]))


def test_plain_http_is_told_so_recorded_and_costs_nothing(shown: Shown) -> None:
    """HTTP without TLS is 400 naming https, once refused, once counted; no request of it is read."""
    with tls_door(shown) as door:
        served = len(door.corridor.served)
        with RawClient(door.address) as one:
            answer = one.send(post()).read_answer()
            assert answer.status == 400
            assert answer.closes
            assert "https://" in answer.json()["error"]["message"]
            assert answer.json()["error"]["data"]["decisionId"] == "d-1"
            with pytest.raises((EOFError, ConnectionError)):
                one.send(post()).read_answer()
        assert [(reason, detail) for reason, detail, _ in door.turned_away] == [
            ("request_malformed", "plain HTTP where TLS is spoken")
        ]
        asyncio.run(eventually(lambda: door.began == ["plain"]))
        assert len(door.corridor.served) == served


@pytest.mark.parametrize(
    ("said", "result"),
    [(b"\x80\x2e\x01", "failed"), (b"\0" * 64, "failed"), (b"\x16\x03\x01\x00\x01\x00" * 9, "failed"), (b"", "gone")],
)
def test_what_is_no_tls_is_dropped(shown: Shown, said: bytes, result: str) -> None:
    """Neither TLS nor HTTP gets no answer, and leaves nothing; no refusal is recorded of what is no request."""
    with tls_door(shown) as door:
        with socket.create_connection(door.address, 5) as sock:
            if said:
                sock.sendall(said)
                with contextlib.suppress(ConnectionError):  # what was not read is reset
                    assert sock.recv(4096)[:1] in (b"", b"\x15")  # at most an alert
        asyncio.run(eventually(lambda: door.began == [result]))
        assert door.turned_away == []


@pytest.mark.parametrize("pieces", [1, 9], ids=["at once", "byte by byte"])
@pytest.mark.parametrize(("length", "result"), [(16_385, "failed"), (16_384, "late")])
def test_a_greeting_that_announces_too_much_is_no_greeting(
    shown: Shown, length: int, result: str, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library makes room for all that a greeting announces: one of no ordinary size is dropped before."""
    monkeypatch.setattr(threshold, "HANDSHAKE_S", 0.5 if result == "late" else 10)
    said = b"\x16\x03\x01\x02\x00\x01" + length.to_bytes(3)
    with tls_door(shown) as door, socket.create_connection(door.address, 5) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(said), -(-len(said) // pieces)):
            sock.sendall(said[at : at + -(-len(said) // pieces)])
            time.sleep(0.01 if pieces > 1 else 0)
        with pytest.raises((EOFError, ConnectionError)):
            raise EOFError(sock.recv(1))
        asyncio.run(eventually(lambda: door.began == [result]))


def test_a_greeting_in_pieces_is_heard_out(shown: Shown) -> None:
    """An ordinary one byte by byte, and one that ends after four: served, and gone. Nobody is busy meanwhile."""
    with tls_door(shown) as door:
        with socket.create_connection(door.address, 5) as sock:
            sock.sendall(HELLO[:4])
            time.sleep(0.1)
            busy = time.process_time()
            time.sleep(0.3)
            assert time.process_time() - busy < 0.15, "it is waited for, not asked for"
        asyncio.run(eventually(lambda: door.began == ["gone"]))
        into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client().wrap_bio(into, out, server_hostname="127.0.0.1")
        with socket.create_connection(door.address, 5) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with pytest.raises(ssl.SSLWantReadError):
                tls.do_handshake()
            hello = out.read()
            for at in range(12):
                sock.sendall(hello[at : at + 1])
                time.sleep(0.005)
            sock.sendall(hello[12:])
            pump(sock, tls.do_handshake, into, out)
            assert tls.version() == "TLSv1.3"
        asyncio.run(eventually(lambda: door.began == ["gone", "completed"]))


@pytest.mark.parametrize("said", [b"", HELLO], ids=["silent", "begun"])
def test_frm_10_a_slow_handshake_is_bounded_in_time(
    shown: Shown, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FRM-10: who does not finish its handshake in time is gone, whether it says nothing or a byte now and then."""
    assert threshold.HANDSHAKE_S + 10 <= 15  # with the head's own time (limits.head_s)
    monkeypatch.setattr(threshold, "HANDSHAKE_S", 0.4)
    with tls_door(shown) as door:
        began = time.monotonic()
        with RawClient(door.address, timeout_s=10) as one:
            one.send(said)
            if said:
                one.drip(b"\0" * 100, 0.1)
            with pytest.raises((EOFError, ConnectionError)):
                one.read_answer()
        assert 0.3 < time.monotonic() - began < 5
        asyncio.run(eventually(lambda: door.began == ["late"]))


def test_handshakes_are_bounded_in_number_and_the_quick_pass(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many hang, the oldest makes room: a client that shakes hands at once is served meanwhile."""
    monkeypatch.setattr(threshold, "COMING", 8)
    with tls_door(shown) as door:
        hanging = [socket.create_connection(door.address, 5) for _ in range(12)]
        try:
            for sock in hanging[::2]:
                sock.sendall(HELLO)
            for _ in range(4):
                assert ask(door) == 200
            asyncio.run(eventually(lambda: door.began.count("displaced") == 5))
            for sock in hanging[:5]:
                with pytest.raises((EOFError, ConnectionError)):
                    raise EOFError(sock.recv(1))
            hanging[-1].setblocking(False)
            with pytest.raises(BlockingIOError):
                hanging[-1].recv(1)
            asyncio.run(eventually(lambda: door.began.count("completed") == 4))
        finally:
            for sock in hanging:
                sock.close()


def test_who_hangs_does_not_hold_up_the_end(shown: Shown) -> None:
    """A stop drops who has not shaken hands: it was promised nothing."""
    with open_door(secured=shown) as door:
        silent = socket.create_connection(door.address, 5)
        begun = socket.create_connection(door.address, 5)
        begun.sendall(HELLO)
        assert ask(door) == 200
        ended = time.monotonic()
    assert time.monotonic() - ended < 4
    for sock in (silent, begun):
        with sock, pytest.raises((EOFError, ConnectionError)):
            raise EOFError(sock.recv(1))


def test_a_new_certificate_is_for_new_connections(shown: Shown) -> None:
    """The next handshake shows the new certificate; a connection that is open goes on under the old one."""
    with tls_door(shown) as door, RawClient(door.address, tls=client()) as before:
        assert before.send(post()).read_answer().status == 200
        first = cast("ssl.SSLSocket", before.socket).getpeercert()
        shown.show(authority().sign(*LOOPBACK))
        with RawClient(door.address, tls=client()) as after:
            assert after.send(post()).read_answer().status == 200
            second = cast("ssl.SSLSocket", after.socket).getpeercert()
        assert before.send(post()).read_answer().status == 200
        assert first
        assert second
        assert first["serialNumber"] != second["serialNumber"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_outlives_its_certificate(shown: Shown, version: ssl.TLSVersion) -> None:
    """Whoever brings a session of before the replacement shakes hands anew; by TLS 1.3 it is so at any time."""
    tls = client(minimum_version=version, maximum_version=version)

    def is_resumed(session: ssl.SSLSession | None) -> bool:
        with socket.create_connection(door.address, 5) as sock:
            secured = tls.wrap_socket(sock, server_hostname="127.0.0.1", session=session)
            with secured:
                return bool(secured.session_reused)

    with tls_door(shown) as door, RawClient(door.address, tls=tls) as one:
        assert one.send(post()).read_answer().status == 200
        session = cast("ssl.SSLSocket", one.socket).session
        assert is_resumed(session) is (version is ssl.TLSVersion.TLSv1_2)
        shown.show(authority().sign(*LOOPBACK))
        assert not is_resumed(session)


def test_clients_certificates_are_asked_for_where_it_is_set(tmp_path: Path) -> None:
    """With `client_ca` only who shows a certificate of that authority gets as far as a request."""
    clients, strangers = authority("clients"), authority("strangers")
    own = clients.sign("client").write(tmp_path, "client")
    other = strangers.sign("client").write(tmp_path, "other")
    expired = clients.sign("client", begins_s=-7200, lives_s=-3600).write(tmp_path, "expired")
    shown = Shown(tmp_path, authority().sign(*LOOPBACK), clients.write(tmp_path, "clients"))
    with tls_door(shown) as door:
        assert ask(door, client(own=own)) == 200
        for bad in (None, other, expired):
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                ask(door, client(own=bad))
        assert ask(door, client(own=own)) == 200
        asyncio.run(eventually(lambda: sorted(door.began) == ["completed"] * 2 + ["failed"] * 3))
        assert len(door.corridor.served) == 2


def test_the_door_behind_it_is_the_same(shown: Shown) -> None:
    """Framing, refusals that can be read though the body is not, early bytes: as without TLS."""
    with tls_door(shown, limits=LIMITS) as door:
        large = head(b"Content-Length: 99999999") + b"\r\n\r\n" + b"x" * 300_000
        assert ask(door, request=large) == 413
        assert ask(door, request=head(b"Content-Length: +7") + b"\r\n\r\n1234567") == 400
        served = len(door.corridor.served)
        with RawClient(door.address, tls=client()) as one:
            assert one.send(post() + post()).read_answer().status == 200
            with pytest.raises((EOFError, ConnectionError)):
                one.read_answer()
        assert len(door.corridor.served) == served + 1


def test_a_large_answer_comes_whole(shown: Shown) -> None:
    """Flow control over TLS: ten megabytes to a client that reads late."""

    async def much(_received: Received, _body: bytes) -> Reply:
        return Reply(200, ((b"content-type", b"application/json"),), b"7" * 10_000_000)

    with open_door(secured=shown, corridor=StubCorridor(much)) as door, RawClient(door.address, tls=client()) as one:
        assert one.send(post()).read_answer().body == b"7" * 10_000_000
        assert [received.server for received, _ in door.corridor.served] == [MAIN]


async def test_without_a_descriptor_it_waits_and_goes_on(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that has no descriptor left costs a pause, not the listener."""
    monkeypatch.setattr(threshold, "PAUSE_S", 0.05)

    class Short(socket.socket):
        failures = 2

        def accept(self) -> tuple[socket.socket, Any]:
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    met: asyncio.Queue[str] = asyncio.Queue()
    with Short() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        one = threshold.Threshold(
            Fixed(shown.context), asyncio.Protocol, on_refused=lambda *_: "d", count=met.put_nowait
        )
        one.open(listener)
        loop = asyncio.get_running_loop()
        name = listener.getsockname()
        transport, _ = await loop.create_connection(
            asyncio.Protocol, *name, ssl=client(), server_hostname="127.0.0.1", ssl_handshake_timeout=10
        )
        assert await asyncio.wait_for(met.get(), 10) == "completed"
        transport.abort()
        one.close()
        await one.wait_closed()
        assert listener.failures == 0


@pytest.mark.parametrize("how", [Departure.retire, Departure.leave], ids=["retires", "leaves"])
def test_ops_01_a_handshake_that_goes_on_while_the_worker_leaves_is_served(
    shown: Shown, how: Callable[[Departure], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-01: who is half through its handshake when the listener closes is served, for the last time.

    The client could not tell a broken connection from a call that ran.
    """
    monkeypatch.setattr(threshold, "LAST_S", 20.0)
    with open_door(secured=shown) as door, socket.create_connection(door.address, 10) as sock:
        door.server.config.timeout_graceful_shutdown = 20
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client().wrap_bio(incoming, outgoing, server_hostname=door.address[0])
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        hello = outgoing.read()
        sock.sendall(hello[:100])
        asyncio.run(eventually(lambda: door.server.started and threshold_of(door).coming == 1))
        begin(door, how)
        assert threshold_of(door).closed is (how is Departure.retire)
        sock.sendall(hello[100:])
        pump(sock, tls.do_handshake, incoming, outgoing)
        tls.write(post())
        sock.sendall(outgoing.read())
        answer = pump(sock, lambda: tls.read(65_536), incoming, outgoing)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close\r\n" in answer.lower()


def threshold_of(door: OpenDoor) -> threshold.Threshold:
    """What accepts for the door."""
    return cast("threshold.Threshold", door.server.servers[0])


def begin(door: OpenDoor, how: Callable[[Departure], None]) -> None:
    """Let the door's server leave; it has begun when this returns."""
    begun = threading.Event()
    protocol: Any = door.server.config.http

    class House:
        def drain(self) -> None:
            """Nothing goes on for ever."""

    def leave() -> None:
        how(Departure(House(), door.server, protocol.watch, 5.0))
        begun.set()

    door.loop.call_soon_threadsafe(leave)
    assert begun.wait(10)


def pump(sock: socket.socket, step: Callable[[], Any], incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> Any:
    """Do a step of TLS over the socket, as often as it wants to read."""
    while True:
        try:
            return step()
        except ssl.SSLWantReadError:
            pass
        finally:
            sock.sendall(outgoing.read())
        data = sock.recv(65_536)
        assert data, "cut off"
        incoming.write(data)
