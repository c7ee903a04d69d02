"""How a webhook is reached: one POST to where the configuration says, and nowhere else (UPS-02, for webhooks)."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from approvals.notify import NotDelivered
from gateway import webhooks
from gateway.upstream.target import ReplicaAddress
from gateway.webhooks import Webhook, WebhookSender, make_webhook
from tests.support.upstream import Exchange, ScriptedUpstream, eventually, http

SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()
HEADERS = {"content-type": "application/json", "webhook-id": "msg_1", "webhook-timestamp": "1"}


def webhook(url: str, **more: Any) -> Webhook:
    """A judged one."""
    given: dict[str, Any] = {"secrets": SECRET, "events": ["new"], "form": "json", "where": "approvals.webhooks[0]"}
    return make_webhook(url, **(given | more))


async def says(exchange: Exchange, status: int = 200, extra: str = "") -> None:
    """An answer, and the end of the connection."""
    await exchange.send(http(status, b"secret of the receiver", extra=extra + "Connection: close\r\n"))
    exchange.writer.close()


@asynccontextmanager
async def sender(*made: Webhook, tls: ssl.SSLContext | None = None) -> AsyncIterator[WebhookSender]:
    """One that is closed afterwards."""
    one = WebhookSender(made, tls=tls)
    try:
        yield one
    finally:
        await one.close()


async def deliver(one: Webhook, tls: ssl.SSLContext | None = None) -> str:
    """One attempt -> why it was not delivered, or `""`."""
    async with sender(one, tls=tls) as send:
        try:
            await send(one.hook.id, b'{"type":"ticket.new"}', HEADERS)
        except NotDelivered as fault:
            return fault.why
    return ""


async def test_a_message_is_one_post(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was signed, to the configured path and Host; the environment's proxies are not asked."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with ScriptedUpstream(says) as receiver:
        url = f"http://127.0.0.1:{receiver.port}/in/tickets?key=1"
        assert await deliver(webhook(url)) == ""
    (seen,) = receiver.seen
    assert seen.line == "POST /in/tickets?key=1 HTTP/1.1"
    assert seen.body == b'{"type":"ticket.new"}'
    assert seen.values("host") == [f"127.0.0.1:{receiver.port}"]
    assert [seen.values(name) for name in HEADERS] == [[value] for value in HEADERS.values()]
    assert not seen.values("authorization")
    assert not seen.values("cookie")


@pytest.mark.parametrize(
    ("status", "extra", "why", "final", "wait"),
    [
        (204, "", "", False, 0),
        (302, "Location: http://127.0.0.1:{port}/elsewhere\r\n", "status_302", False, 0),
        (307, "Location: http://127.0.0.1:{port}/elsewhere\r\n", "status_307", False, 0),
        (400, "", "status_400", False, 0),
        (410, "", "status_410", True, 0),
        (429, "Retry-After: 120\r\n", "status_429", False, 120),
        (503, "Retry-After: 1e9\r\n", "status_503", False, 0),
        (503, "Retry-After: -5\r\n", "status_503", False, 0),
    ],
)
async def test_only_a_2xx_is_a_yes(status: int, extra: str, why: str, final: bool, wait: float) -> None:
    """A redirect is not followed, whatever it says; what the receiver writes is read by nobody."""

    async def script(exchange: Exchange) -> None:
        await says(exchange, status, extra.format(port=receiver.port))

    async with ScriptedUpstream(script) as receiver:
        one = webhook(f"http://localhost:{receiver.port}/")
        async with sender(one) as send:
            if not why:
                await send(one.hook.id, b"{}", HEADERS)
            else:
                with pytest.raises(NotDelivered) as caught:
                    await send(one.hook.id, b"{}", HEADERS)
                assert (caught.value.why, caught.value.final, caught.value.retry_after_s) == (why, final, wait)
    assert len(receiver.seen) == 1


async def test_a_receiver_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for beyond the bound, also where byte after byte comes."""
    monkeypatch.setattr(webhooks, "ANSWER_S", 0.3)

    async def drip(exchange: Exchange) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 1000:
            await exchange.send(bytes([byte]))
            await asyncio.sleep(0.05)

    async with ScriptedUpstream(drip) as receiver:
        assert await deliver(webhook(f"http://127.0.0.1:{receiver.port}/")) == "timeout"


async def test_what_is_no_answer_is_a_failure() -> None:
    """Bytes that are no HTTP, a connection that is dropped, a port where nobody listens."""

    async def garbage(exchange: Exchange) -> None:
        await exchange.send(b"\x00\x01garbage\r\n\r\n")
        exchange.writer.close()

    async def drops(exchange: Exchange) -> None:
        exchange.reset()

    async with ScriptedUpstream(garbage) as receiver:
        url = f"http://127.0.0.1:{receiver.port}/"
        assert await deliver(webhook(url)) == "remoteprotocolerror"
        receiver.script = drops
        assert await deliver(webhook(url)) in ("readerror", "remoteprotocolerror")
    assert await deliver(webhook(url)) == "not_reached"


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "fe80::1", "100.100.100.200", "::ffff:169.254.169.254", "0.0.0.0", "127.0.0.1", "224.0.0.1"],
)
async def test_a_name_that_leads_inside_is_not_followed(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """UPS-02: of a name each address is judged when it is used; one that is no destination stops them all."""
    good = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 443))
    bad = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, 443, 0, 0))

    def resolve(*_: Any, **__: Any) -> list[Any]:
        return [good, bad]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert await deliver(webhook("https://hooks.example/")) == "address_refused"


async def test_a_name_without_address_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What can't be resolved is tried again later, like anything else."""

    def resolve(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(8, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert await deliver(webhook("https://hooks.example/")) == "no_address"


async def test_a_resolver_that_hangs_keeps_nothing_that_others_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attempts fail in time, all on one thread; what else leaves the event loop, and another receiver, go on."""
    monkeypatch.setattr(webhooks, "ANSWER_S", 0.2)
    answered, resolve = threading.Event(), socket.getaddrinfo
    asked: list[str] = []

    def hang(host: str, *more: Any, **named: Any) -> Any:
        if host == "hooks.example":
            asked.append(host)
            answered.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "in vain")
        return resolve(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    hanging = webhook("https://hooks.example/")
    async with ScriptedUpstream(says) as receiver:
        well = webhook(f"http://127.0.0.1:{receiver.port}/")
        async with sender(hanging, well) as send:
            tries = [send(hanging.hook.id, b"{}", HEADERS) for _ in range(64)]
            whys = await asyncio.gather(*tries, return_exceptions=True)
            assert {getattr(why, "why", why) for why in whys} == {"timeout"}
            assert asked == ["hooks.example"]
            monkeypatch.setattr(webhooks, "ANSWER_S", 30)  # which others have, however busy the machine is
            async with asyncio.timeout(30):
                assert await asyncio.to_thread(lambda: "free") == "free"
                await send(well.hook.id, b"{}", HEADERS)
            answered.set()
            await eventually(lambda: not send._lookups._under_way)
            with pytest.raises(NotDelivered, match="no_address"):
                await send(hanging.hook.id, b"{}", HEADERS)
    assert len(receiver.seen) == 1


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("name", ["localhost", "other.example"])
async def test_the_certificate_is_that_of_the_name(
    certificate: Callable[[str], tuple[ssl.SSLContext, ssl.SSLContext]], name: str, trusted: bool
) -> None:
    """Though the connection goes to an address: only a trusted certificate for the configured name is spoken to."""
    tls, trusting = certificate(name)
    async with ScriptedUpstream(says, tls=tls) as receiver:
        why = await deliver(webhook(f"https://localhost:{receiver.port}/"), trusting if trusted else None)
    assert why == ("" if trusted and name == "localhost" else "not_reached")
    assert len(receiver.seen) == (why == "")


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example/", "ftp://hooks.example/", "https://169.254.169.254/", "https://[fe80::1]/", "canary",
        "https://0xa9fea9fe/", "https://metadata.google.internal/", "https://user:canary@hooks.example/",
        "https://hooks.example/#canary", "https://hooks.example/a b", "http://10.0.0.1/",
    ],
)  # fmt: skip
def test_a_url_that_is_no_receiver_is_refused(url: str) -> None:
    """UPS-02: by its setting's name and without quoting it: a webhook's URL can be a secret."""
    with pytest.raises(ValueError, match=r"approvals\.webhooks\[0\]\.url") as caught:
        webhook(url)
    assert "canary" not in str(caught.value)
    assert webhook("https://hooks.example/tickets").address == ReplicaAddress(
        "https://hooks.example/tickets", "hooks.example", 443, "/tickets", True, "hooks.example"
    )


def test_what_is_signed_by_nobody_is_for_chat_alone() -> None:
    """A JSON receiver could not believe it; and neither URL nor secret is shown by what names a webhook."""
    with pytest.raises(ValueError, match="secret_env"):
        webhook("https://hooks.example/", secrets="")
    with pytest.raises(ValueError, match="secret_env: secret 1"):
        webhook("https://hooks.example/", secrets="canary")
    one = webhook("https://hooks.example/canary", secrets="", form="slack")
    assert "canary" not in repr(one)
    assert one.hook.id.startswith("hooks.example/")
    assert one.hook.id != webhook("https://hooks.example/other").hook.id
    assert SECRET not in repr(webhook("https://hooks.example/"))
