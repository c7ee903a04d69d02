"""Where requests may go (requirements UPS-02), and whose credential they carry."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any

import pytest

from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import UpstreamUnreachable
from gateway.upstream.target import ReplicaRefused, UpstreamTarget, check_address, check_replica_url
from tests.support.upstream import SERVER, ScriptedUpstream, an_admitted


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "authority"),
    [
        ("http://10.0.0.1:8000/mcp", "10.0.0.1", 8000, "/mcp", "10.0.0.1:8000"),
        ("https://files.example/mcp?x=1", "files.example", 443, "/mcp?x=1", "files.example"),
        ("http://127.0.0.1:1/", "127.0.0.1", 1, "/", "127.0.0.1:1"),
        ("http://localhost:9000/mcp", "localhost", 9000, "/mcp", "localhost:9000"),
        ("http://[::1]:80/mcp", "::1", 80, "/mcp", "[::1]:80"),
        ("http://[fd12::5]/a/b", "fd12::5", 80, "/a/b", "[fd12::5]"),
        ("http://MCP-1.Default.svc.cluster.local.:8/mcp", "mcp-1.default.svc.cluster.local.", 8, "/mcp", None),
        ("http://files.example", "files.example", 80, "/", "files.example"),
        ("http://64.ff9b.example/", "64.ff9b.example", 80, "/", "64.ff9b.example"),
    ],
)
def test_replicas_are_taken_apart_once(url: str, host: str, port: int, path: str, authority: str | None) -> None:
    """A plain URL gives one host, one port, one path and one Host header."""
    replica = check_replica_url(url)
    assert (replica.url, replica.host, replica.port, replica.path) == (url, host, port, path)
    assert replica.authority == (authority or f"{host}:{port}")


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.0.1",
        "[fe80::1]",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[::169.254.169.254]",
        "[64:ff9b::169.254.169.254]",
        "[2002:a9fe:a9fe::]",
        "[fd00:ec2::254]",
        "2852039166",
        "0xa9fea9fe",
        "0xA9.0xFE.0xA9.0xFE",
        "0251.0376.0251.0376",
        "169.254.43518",
        "169.16689662",
        "169.254.169.254.",
        "127.1",
        "0x7f000001",
        "2130706433",
        "0",
        "0.0.0.0",
        "[::]",
        "[::ffff:0.0.0.0]",
        "224.0.0.1",
        "255.255.255.255",
        "[ff02::1]",
        "100.100.100.200",
        "168.63.129.16",
        "metadata.google.internal",
        "METADATA.google.internal.",
        "999.1.1.1",
        "1.2.3.4.5",
        "[fe80::1%25eth0]",
    ],
)
def test_addresses_that_are_never_a_destination(host: str) -> None:
    """Metadata, link-local, unspecified and multicast addresses are refused in every spelling."""
    assert check_replica_url("http://10.1.2.3:80/mcp").host == "10.1.2.3"
    with pytest.raises(ReplicaRefused):
        check_replica_url(f"http://{host}:80/mcp")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "files.example/mcp",
        "ftp://files.example/",
        "file:///etc/passwd",
        "http:///mcp",
        "http://user:secret@files.example/",
        "http://@files.example/",
        "http://files.example/#x",
        "http://files.example:0/",
        "http://files.example:99999/",
        "http://files.example:x/",
        "http://files.example /mcp",
        "http://files.example/m\r\ncp",
        "http://files.example/a b",
        "http://files.example\\@169.254.169.254/",
        "http://files.example/a\\b",
        "http://ﬁles.example/",
        "http://[::1/",
        "http://-files.example/",
        "http://a..b/",
        'http://files.example/"x',
    ],
)
def test_what_is_not_a_plain_url_is_refused(url: str) -> None:
    """One spelling, one reading; nothing that two parsers would take apart differently."""
    with pytest.raises(ReplicaRefused) as caught:
        check_replica_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("text", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_a_destination_only_where_it_is_named(text: str, listed: bool) -> None:
    """A name that resolves to loopback leads nowhere; loopback in the configuration does."""
    address = ipaddress.ip_address(text)
    if listed:
        check_address(address, loopback=True)
    else:
        with pytest.raises(ReplicaRefused):
            check_address(address, loopback=False)


async def test_the_address_that_was_reached_is_judged_before_a_byte_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name turned to loopback (or a metadata service) after the configuration was read gets nothing."""
    async with ScriptedUpstream() as scripted:
        loop = asyncio.get_running_loop()
        create_connection = loop.create_connection

        async def rebound(factory: Any, host: str, port: int, **kw: Any) -> Any:
            return await create_connection(factory, "127.0.0.1", port, **kw)

        class Rebinding:
            """The running loop, but for names: they all resolve to this machine."""

            def __getattr__(self, name: str) -> Any:
                return rebound if name == "create_connection" else getattr(loop, name)

        monkeypatch.setattr("gateway.upstream.replicas.asyncio.get_running_loop", Rebinding)
        for host, reached in (("localhost", True), ("files.example", False)):
            replica = check_replica_url(f"http://{host}:{scripted.port}/mcp")
            upstream = HttpUpstream({SERVER.name: UpstreamTarget((replica,))})
            if reached:
                await (await upstream.forward(an_admitted())).close()
            else:
                with pytest.raises(UpstreamUnreachable) as caught:
                    await upstream.forward(an_admitted())
                assert caught.value.sent is False
            await upstream.close()
        assert len(scripted.seen) == 1


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Authorization", ""),
        ("Authorization", " Bearer x"),
        ("Authorization", "Bearer x\r\nX: y"),
        ("Authorization", "Bearer ü"),
        ("Author ization", "x"),
        ("X:", "x"),
        ("Host", "x"),
        ("content-length", "5"),
        ("Transfer-Encoding", "chunked"),
        ("Mcp-Name", "x"),
    ],
)
def test_a_credential_is_one_field_that_can_carry_it(header: str, value: str) -> None:
    """A credential with a line break, or under a name that frames or mirrors, stops the start; it is never shown."""
    replica = (check_replica_url("http://10.0.0.1/mcp"),)
    assert "Bearer" not in repr(UpstreamTarget(replica, "Authorization", "Bearer x"))
    with pytest.raises(ReplicaRefused) as caught:
        UpstreamTarget(replica, header, value)
    assert not value or value not in str(caught.value)


def test_a_server_has_a_replica() -> None:
    """No replicas is a mistake in the configuration, not an outage."""
    with pytest.raises(ReplicaRefused):
        UpstreamTarget(())


def test_the_c_librarys_spellings_are_all_caught() -> None:
    """Whatever `inet_aton` would take for an address is either its plain spelling or refused."""
    for text in ("1", "1.2", "1.2.3", "01.2.3.4", "0x1.2.3.4", "1.2.3.04"):
        assert socket.inet_aton(text)
        with pytest.raises(ReplicaRefused):
            check_replica_url(f"http://{text}/")
