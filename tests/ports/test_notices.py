"""What servers tell of their lists: heard over real sockets, apart from any expiry, and never relied on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from gateway import notices
from gateway.catalog import Catalog
from gateway.notices import Notices, NoticeTimes
from gateway.snapshots import CatalogLimits
from gateway.upstream.http import HttpUpstream
from gateway.upstream.target import UpstreamTarget, check_replica_url
from tests.pipeline.house import tool, until
from tests.ports.test_catalog import calling
from tests.support.upstream import SERVER, SSE_HEAD, Exchange, ScriptedUpstream, chunk, http, result_of

ID = "io.modelcontextprotocol/subscriptionId"
QUICK = NoticeTimes(shortest_s=0.01, longest_s=0.02, again_s=0.02)


@dataclass
class Teller:
    """A server with one list, that tells of its changes on `streams`."""

    tools: list[dict[str, Any]] = field(default_factory=lambda: [tool("add")])
    capabilities: dict[str, Any] = field(default_factory=lambda: {"tools": {"listChanged": True}, "prompts": {}})
    asked: list[str] = field(default_factory=list)
    filters: list[Any] = field(default_factory=list)
    streams: list[Exchange] = field(default_factory=list)
    acknowledges: bool = True

    async def play(self, exchange: Exchange) -> None:
        """Answer the gateway."""
        message = orjson.loads(exchange.seen.body)
        method = message["method"]
        self.asked.append(method)
        if method == "server/discover":
            said = {"supportedVersions": ["2026-07-28"], "capabilities": self.capabilities}
            await exchange.send(http(200, result_of(exchange.id, **said)))
        elif method == "tools/list":
            await exchange.send(http(200, result_of(exchange.id, tools=self.tools, ttlMs=3_600_000)))
        elif method == "subscriptions/listen" and self.acknowledges:
            assert exchange.seen.values("authorization") == ["Bearer own"]
            self.filters.append(message["params"]["notifications"])
            await exchange.send(SSE_HEAD)
            await self.tell("notifications/subscriptions/acknowledged", exchange, notifications=self.filters[-1])
            self.streams.append(exchange)
            await exchange.gone(60)
        else:
            error = {"jsonrpc": "2.0", "id": exchange.id, "error": {"code": -32601, "message": "no"}}
            await exchange.send(http(404, orjson.dumps(error)))

    async def tell(self, method: str, exchange: Exchange | None = None, **params: Any) -> None:
        """A notification on the last stream."""
        exchange = exchange or self.streams[-1]
        message = {"jsonrpc": "2.0", "method": method, "params": {**params, "_meta": {ID: exchange.id}}}
        await exchange.send(chunk(b"data: " + orjson.dumps(message) + b"\n\n"))


@dataclass
class Heard:
    """A catalogue that hears a teller."""

    teller: Teller
    catalog: Catalog
    notices: Notices
    told: list[tuple[str, str]]
    pauses: list[float]

    async def offers(self, name: str) -> bool:
        """Whether the catalogue has a tool."""
        return await self.catalog.look_up(SERVER, calling(name)) is not None


@asynccontextmanager
async def hearing(teller: Teller, times: NoticeTimes = QUICK, shortest_s: float = 0.0) -> AsyncIterator[Heard]:
    """A catalogue whose lists live for an hour, and a server that tells of their changes."""
    told: list[tuple[str, str]] = []
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(min(seconds, 0.02))

    async with ScriptedUpstream(teller.play) as scripted:
        target = UpstreamTarget((check_replica_url(scripted.url),), "Authorization", "Bearer own")
        upstream = HttpUpstream({SERVER.name: target})
        catalog = Catalog(upstream, CatalogLimits(shortest_s=shortest_s, longest_s=3600))
        hearer = Notices(upstream, catalog.expire, lambda *one: told.append(one), times, pause)
        catalog.attend = hearer.attend
        try:
            yield Heard(teller, catalog, hearer, told, pauses)
        finally:
            await hearer.close()
            await catalog.close()
            await upstream.close()


async def test_a_change_is_known_before_the_list_expires() -> None:
    """The list lives for an hour; it is another the moment that its server says so, and only then."""
    async with hearing(Teller()) as heard:
        assert await heard.offers("add")
        await until(lambda: heard.notices.heard() == {SERVER.name: 1.0})
        assert await heard.offers("add")
        heard.teller.tools = [tool("new")]
        assert not await heard.offers("new"), "nobody said so yet"
        await heard.teller.tell("notifications/tools/list_changed")
        await until(lambda: heard.told == [(SERVER.name, "tools/list")])
        assert await heard.offers("new")
        assert not await heard.offers("add")
        assert heard.teller.filters == [{"toolsListChanged": True}]
        assert heard.teller.asked.count("server/discover") == 1


async def test_a_flood_of_changes_is_no_flood_of_questions() -> None:
    """A server can say so as often as it likes: its list is asked for once in the shortest time."""
    async with hearing(Teller(), shortest_s=3600) as heard:
        assert await heard.offers("add")
        await until(lambda: bool(heard.teller.streams))
        for _ in range(200):
            await heard.teller.tell("notifications/tools/list_changed")
            assert await heard.offers("add")
        await until(lambda: len(heard.told) == 200)
        assert heard.teller.asked.count("tools/list") == 1


async def test_who_talks_too_fast_is_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood on the gateway's own subscription is left in the socket: it takes no time from callers."""
    monkeypatch.setattr(notices, "PACE_BYTES", 1_000)
    monkeypatch.setattr(notices, "PACE_S", 0.5)
    async with hearing(Teller()) as heard:
        assert await heard.offers("add")
        await until(lambda: bool(heard.teller.streams))
        began = asyncio.get_running_loop().time()
        for _ in range(40):
            await heard.teller.tell("notifications/tools/list_changed", filler="x" * 16_384)
        await until(lambda: len(heard.told) == 40, within_s=30)
        assert asyncio.get_running_loop().time() - began > 1.0, "640 KB, of which a few buffers come at once"


async def test_what_was_missed_while_nobody_listened_is_looked_up() -> None:
    """A stream that broke is opened again, and the list counts as changed: it may have."""
    async with hearing(Teller()) as heard:
        assert await heard.offers("add")
        await until(lambda: len(heard.teller.streams) == 1)
        assert await heard.offers("add")
        heard.teller.tools = [tool("new")]
        heard.teller.streams[0].reset()
        await until(lambda: len(heard.teller.streams) == 2)
        async with asyncio.timeout(5):
            while not await heard.offers("new"):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert heard.told == []


async def test_a_server_that_tells_of_nothing_is_not_subscribed_to() -> None:
    """It is asked again after a long while: it may have been replaced."""
    teller = Teller(capabilities={"tools": {}, "resources": {"listChanged": False}})
    async with hearing(teller) as heard:
        assert await heard.offers("add")
        await until(lambda: len(heard.pauses) >= 3)
        assert "subscriptions/listen" not in teller.asked
        assert all(0.5 * QUICK.again_s <= pause <= 1.5 * QUICK.again_s for pause in heard.pauses)
        teller.capabilities = {"tools": {"listChanged": True}}
        await until(lambda: bool(teller.streams))


async def test_attempts_grow_rare_and_scatter() -> None:
    """A server that promises to tell and does not is asked ever more rarely, never all workers at once."""
    times = NoticeTimes(shortest_s=1, longest_s=8)
    async with hearing(Teller(acknowledges=False), times) as heard:
        assert await heard.offers("add")
        await until(lambda: len(heard.pauses) >= 8)
        pauses = heard.pauses[:8]
        for pause, about in zip(pauses, (1, 2, 4, 8, 8, 8, 8, 8), strict=True):
            assert 0.5 * about <= pause <= 1.5 * about
        assert len(set(pauses)) == len(pauses)
        assert heard.notices.heard() == {SERVER.name: 0.0}
        assert await heard.offers("add"), "nothing rests on being told"


async def test_nothing_goes_on_afterwards() -> None:
    """`close` ends the task and the connection."""
    before = asyncio.all_tasks()
    async with hearing(Teller()) as heard:
        assert await heard.offers("add")
        await until(lambda: bool(heard.teller.streams))
        heard.notices.attend(SERVER)
        await heard.notices.close()
        assert not [task for task in asyncio.all_tasks() - before if "notices" in task.get_name()]
        await heard.teller.streams[0].gone()
    assert len(heard.teller.streams) == 1
