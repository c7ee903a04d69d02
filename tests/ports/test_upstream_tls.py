"""TLS towards replicas: who is believed, who the gateway is to them, and what a connection may be used for again."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import UpstreamUnreachable
from gateway.upstream.target import UpstreamLimits, UpstreamTarget, check_replica_url
from gateway.wires.pem import Files
from gateway.wires.watching import Wire
from tests.support.certificates import LOOPBACK, Authority, authority
from tests.support.upstream import SERVER, Exchange, ScriptedUpstream, an_admitted, answer, result_of

LIMITS = UpstreamLimits(connect_s=1.0, answer_s=5.0)
GOOD = result_of(1)


@dataclass
class Replica(ScriptedUpstream):
    """A server over TLS that writes down who its clients are."""

    clients: list[str] = field(default_factory=list)
    protocols: set[str | None] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.script = self._answer

    async def _answer(self, exchange: Exchange) -> None:
        shown = exchange.writer.get_extra_info("peercert") or {}
        self.clients.append(dict(part[0] for part in shown.get("subject", ())).get("commonName", ""))
        self.protocols.add(exchange.writer.get_extra_info("ssl_object").selected_alpn_protocol())
        await answer(exchange)

    @property
    def address(self) -> str:
        """Its URL."""
        return f"https://localhost:{self.port}/mcp"


def replica(
    folder: Path,
    *names: str,
    clients: Authority | None = None,
    begins_s: float = -99,
    lives_s: float = 9999,
) -> Replica:
    """A server whose certificate has these names and times; with `clients` it asks for theirs."""
    own = authority().sign(*(names or LOOPBACK), begins_s=begins_s, lives_s=lives_s).write(folder, "server")
    context = authority().server_context(own, clients)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return Replica(tls=context)


def wire(ca: Path | None, own: tuple[Path, Path] | None = None, name: str = "demo") -> Wire:
    """What a server's `tls` says, loaded."""
    cert, key = own or (None, None)
    made = Wire(Files(f"servers.{name}.tls", cert, key, ca))
    made.open()
    return made


def upstream(**targets: tuple[str, Wire]) -> HttpUpstream:
    """The way to servers, by name."""
    made = {name: UpstreamTarget((check_replica_url(url),), tls=secured) for name, (url, secured) in targets.items()}
    return HttpUpstream(made, LIMITS)


async def ask(one: HttpUpstream) -> bytes:
    """One call to the server `demo`."""
    found = await one.forward(an_admitted())
    try:
        return b"".join([piece async for piece in found.chunks()])
    finally:
        await found.close()


async def test_an_authority_of_ones_own_and_http_1_1(tmp_path: Path) -> None:
    """With `tls.ca` a server of that authority is spoken to, over one connection that is used again, in HTTP/1.1."""
    async with replica(tmp_path) as server:
        one = upstream(demo=(server.address, wire(authority().write(tmp_path))))
        for _ in range(3):
            assert await ask(one) == GOOD
        assert server.connections == 1
        assert server.protocols == {"http/1.1"}
        await one.close()


@asynccontextmanager
async def refusing(context: ssl.SSLContext) -> AsyncIterator[str]:
    """A server whose one handshake fails, as OpenSSL's and nginx do it: its alert reaches the client -> its URL.

    The handshake's failure is proof that no request was read. (asyncio's own servers forget to send the alert.)
    """

    def refuse() -> None:
        sock, _ = listener.accept()
        sock.settimeout(10)
        secured = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        with pytest.raises(ssl.SSLError):
            secured.do_handshake()
        with socket.socket(fileno=secured.detach()) as raw:
            raw.settimeout(10)
            while raw.recv(4096):  # what is left unread would be a reset
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        task = asyncio.create_task(asyncio.to_thread(refuse))
        yield f"https://localhost:{listener.getsockname()[1]}/mcp"
        await task


NOW = (-99, 999)
BAD: Mapping[str, tuple[str, tuple[float, float], str, str]] = {
    "wrong host name": ("x.example", NOW, "tests", "Hostname mismatch, certificate is not valid for 'localhost'"),
    "wrong authority": ("localhost", NOW, "strangers", "unable to get local issuer certificate"),
    "expired": ("localhost", (-99, -9), "tests", "certificate has expired"),
    "not valid yet": ("localhost", (99, 999), "tests", "certificate is not yet valid"),
}


@pytest.mark.parametrize("bad", BAD)
async def test_ups_02_a_server_that_is_not_who_it_should_be_gets_nothing(bad: str, tmp_path: Path) -> None:
    """UPS-02: another name, authority or time is unreachable, with the cause; not one byte of the call is sent."""
    name, (begins_s, lives_s), believed, why = BAD[bad]
    own = authority().sign(name, begins_s=begins_s, lives_s=lives_s).write(tmp_path, "server")
    async with refusing(authority().server_context(own)) as address:
        one = upstream(demo=(address, wire(authority(believed).write(tmp_path))))
        with pytest.raises(UpstreamUnreachable, match=re.escape(f"certificate verify failed: {why}")) as caught:
            await ask(one)
        assert caught.value.sent is False
        await one.close()


async def test_a_server_that_speaks_no_tls_or_hangs_gets_nothing(tmp_path: Path) -> None:
    """Plain HTTP where TLS is configured, and a handshake without an end: unreachable in time, nothing sent."""
    ca = authority().write(tmp_path)
    async with ScriptedUpstream() as plain:
        one = upstream(demo=(plain.url.replace("http:", "https:"), wire(ca)))
        with pytest.raises(UpstreamUnreachable, match="no connection") as caught:
            await ask(one)
        assert caught.value.sent is False
        assert plain.seen == []
        await one.close()

    gone = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set()

    hanging = await asyncio.start_server(hang, "127.0.0.1", 0)
    one = upstream(demo=(f"https://127.0.0.1:{hanging.sockets[0].getsockname()[1]}/mcp", wire(ca)))
    async with hanging, asyncio.timeout(10):
        with pytest.raises(UpstreamUnreachable, match="no connection in time") as caught:
            await ask(one)
        assert caught.value.sent is False
        await one.close()
        await gone.wait()


async def test_the_gateways_own_certificate_is_shown(tmp_path: Path) -> None:
    """A server that asks for a client's certificate sees the configured one."""
    clients = authority("clients")
    own = clients.sign("gateway").write(tmp_path, "gateway")
    async with replica(tmp_path, clients=clients) as server:
        one = upstream(demo=(server.address, wire(authority().write(tmp_path), own)))
        assert await ask(one) == GOOD
        assert server.clients == ["gateway"]
        await one.close()


@pytest.mark.parametrize("shows", ["nothing", "a stranger's"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_without_the_certificate_that_is_asked_for_nothing_runs(
    shows: str, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    """No client certificate, or another authority's: unreachable with the server's own reason; no request is read.

    By TLS 1.3 the server says no only once the client believes it is connected: the call then counts as sent.
    """
    own = None if shows == "nothing" else authority("strangers").sign("gateway").write(tmp_path, "gateway")
    context = authority().server_context(
        authority().sign(*LOOPBACK).write(tmp_path, "server"), clients=authority("clients")
    )
    context.maximum_version = version
    async with refusing(context) as address:
        one = upstream(demo=(address, wire(authority().write(tmp_path), own)))
        with pytest.raises(UpstreamUnreachable) as caught:
            await ask(one)
        reason = r"certificate required|handshake failure" if shows == "nothing" else "unknown ca"
        assert re.search(rf"alert ({reason})", caught.value.detail), caught.value.detail
        assert caught.value.sent is (version is ssl.TLSVersion.TLSv1_3)
        await one.close()


async def test_g8_a_connection_is_used_under_the_credentials_that_it_began_with(tmp_path: Path) -> None:
    """G8: after a replaced certificate the idle connection is not used again; another server's never is."""
    clients = authority("clients")
    ca = authority().write(tmp_path)
    own = clients.sign("before").write(tmp_path, "gateway")
    async with replica(tmp_path, clients=clients) as server:
        secured = wire(ca, own)
        other = wire(ca, clients.sign("other").write(tmp_path, "other"), "other")
        one = upstream(demo=(server.address, secured), other=(server.address, other))
        assert await ask(one) == GOOD
        assert await ask(one) == GOOD
        assert (server.connections, server.clients) == (1, ["before", "before"])
        clients.sign("after").write(tmp_path, "gateway")
        while secured.look() != "":
            pass
        assert await ask(one) == GOOD
        assert await ask(one) == GOOD
        assert (server.connections, server.clients[2:]) == (2, ["after", "after"])
        await one.inquire(SERVER.__class__("other", "/other", "r", "m"), "tools/list", {})
        assert server.clients[4:] == ["other"]
        assert server.connections == 3
        await one.close()


async def test_a_connection_in_use_while_certificates_change_is_not_kept(tmp_path: Path) -> None:
    """What was running goes on to its end; its connection then serves nobody else."""
    clients = authority("clients")
    own = clients.sign("before").write(tmp_path, "gateway")
    going, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(exchange: Exchange) -> None:
        going.set()
        await go_on.wait()
        await answer(exchange)

    async with replica(tmp_path, clients=clients) as server:
        quick, server.script = server.script, slowly
        secured = wire(authority().write(tmp_path), own)
        one = upstream(demo=(server.address, secured))
        running = asyncio.create_task(ask(one))
        await asyncio.wait_for(going.wait(), 10)
        clients.sign("after").write(tmp_path, "gateway")
        while secured.look() != "":
            pass
        go_on.set()
        assert await asyncio.wait_for(running, 10) == GOOD
        server.script = quick
        assert await ask(one) == GOOD
        assert server.clients == ["after"]
        await one.close()
