"""The catalogue of tools: whole snapshots, shared refreshes, bounded patience."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.catalog import Catalog
from gateway.contract.fingerprint import digest_definition
from gateway.contract.passage import Admitted, Call, Server
from gateway.contract.refusals import Refusal, Refused
from gateway.definitions import Definitions
from gateway.pins.keeper import Pins
from gateway.snapshots import CatalogLimits
from gateway.upstream.http import HttpUpstream
from gateway.upstream.port import Answer, UpstreamFault, UpstreamInvalid, UpstreamTimeout, UpstreamUnreachable
from gateway.upstream.target import UpstreamTarget, check_replica_url
from tests.support.upstream import SERVER, Exchange, ScriptedUpstream, a_call, http, result_of


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


@dataclass
class Listings:
    """An upstream that only lists: pages by cursor. A fault in place of the pages is raised."""

    pages: list[dict[str, Any]] | UpstreamFault = field(default_factory=list)
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    gate: asyncio.Event | None = None

    method: str = "tools/list"

    async def inquire(self, server: Server, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        assert (method, server) == (self.method, SERVER)
        self.asked.append(params)
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.pages, UpstreamFault):
            raise self.pages
        return self.pages[int(params.get("cursor", "0") or "1")]

    def has_room(self, server: str, expected: int = 0) -> bool:
        """Always."""
        return bool(server) and expected >= 0

    async def forward(self, admitted: Admitted) -> Answer:
        raise AssertionError(f"the catalogue forwards nothing: {admitted}")

    async def listen(self, server: Server, wanted: Mapping[str, bool]) -> tuple[Call, Answer]:
        raise AssertionError(f"the catalogue listens to nothing: {server} {wanted}")

    async def close(self) -> None:
        """Nothing is open."""


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


LIMITS = CatalogLimits(pages=5, items=10, listing_bytes=10_000, shortest_s=2, longest_s=60, stale_s=100)


def calling(name: str) -> Call:
    """A call of this tool."""
    return replace(a_call(), name=name)


def _catalog(upstream: Listings) -> tuple[Catalog, Clock]:
    clock = Clock()
    return Catalog(upstream, LIMITS, clock), clock


async def test_all_pages_are_one_snapshot() -> None:
    """Tools of every page are found; their digest is that of the whole definition; an empty cursor is a cursor."""
    first, second = tool("add", annotations={"readOnlyHint": True}), tool("sub", description="x")
    upstream = Listings([{"tools": [first], "nextCursor": ""}, {"tools": [second], "ttlMs": 30000}])
    catalog, _ = _catalog(upstream)
    found = await catalog.look_up(SERVER, calling("add"))
    assert found is not None
    assert (found.name, found.digest, found.annotations) == ("add", digest_definition(first), {"readOnlyHint": True})
    assert found.definition == first
    other = await catalog.look_up(SERVER, calling("sub"))
    assert other is not None
    assert other.annotations == {}
    assert other.digest != digest_definition(tool("sub", description="y"))
    assert upstream.asked == [{}, {"cursor": ""}]
    assert await catalog.look_up(SERVER, calling("add")) is found
    assert upstream.asked == [{}, {"cursor": ""}], "a fresh snapshot was asked for again"


async def test_only_tool_calls_are_looked_up() -> None:
    """`look_up` asks for nothing where no tool is named."""
    upstream = Listings([{"tools": [tool("add")]}])
    catalog, _ = _catalog(upstream)
    assert await catalog.look_up(SERVER, a_call(method="resources/read", kind="resource")) is None
    assert upstream.asked == []
    found = await catalog.look_up(SERVER, a_call())
    assert found is not None
    assert found.name == "add"


@pytest.mark.parametrize(
    ("ttls", "fresh_s"),
    [([30000], 30), ([0], 2), ([None], 2), ([-5], 2), ([True], 2), ([999_999_999], 60), ([50000, 10000], 10)],
)
async def test_a_snapshot_expires(ttls: list[Any], fresh_s: float) -> None:
    """`ttlMs` counts, the shortest of all pages, between our bounds."""
    pages: list[dict[str, Any]] = [{"tools": [], "ttlMs": ttl} for ttl in ttls]
    pages[0]["tools"] = [tool("add")]
    if len(pages) == 2:
        pages[0]["nextCursor"] = "1"
    upstream = Listings(pages)
    catalog, clock = _catalog(upstream)
    await catalog.look_up(SERVER, calling("add"))
    clock.now += fresh_s - 0.01
    await catalog.look_up(SERVER, calling("add"))
    assert len(upstream.asked) == len(pages)
    clock.now += 0.02
    assert await catalog.look_up(SERVER, calling("add")) is not None
    assert len(upstream.asked) == 2 * len(pages)


async def test_a_changed_definition_has_another_digest_at_once_when_asked() -> None:
    """`confirm` makes a gated call see today's definition; `look_up` gives the snapshot's."""
    upstream = Listings([{"tools": [tool("add")], "ttlMs": 60000}])
    catalog, clock = _catalog(upstream)
    before = await catalog.look_up(SERVER, calling("add"))
    upstream.pages = [{"tools": [tool("add", description="now it deletes")], "ttlMs": 60000}]
    clock.now += 1
    assert await catalog.look_up(SERVER, calling("add")) == before
    after = await catalog.confirm(SERVER, calling("add"), 0.5)
    assert before is not None
    assert after is not None
    assert after.digest != before.digest


async def test_unknown_names_do_not_make_the_server_be_asked() -> None:
    """What a snapshot does not have is not there, until the snapshot expires or somebody must be sure of it."""
    upstream = Listings([{"tools": [tool("add")], "ttlMs": 60000}])
    catalog, clock = _catalog(upstream)
    for number in range(50):
        assert await catalog.look_up(SERVER, calling(f"made-up-{number}")) is None
        assert await catalog.confirm(SERVER, calling(f"made-up-{number}"), 5) is None
    assert len(upstream.asked) == 1
    upstream.pages = [{"tools": [tool("add"), tool("new")], "ttlMs": 60000}]
    clock.now += 6
    assert await catalog.look_up(SERVER, calling("new")) is None
    assert await catalog.confirm(SERVER, calling("new"), 5) is not None
    assert await catalog.confirm(SERVER, calling("made-up"), 5) is None
    assert len(upstream.asked) == 2


@pytest.mark.parametrize("kind", [UpstreamUnreachable, UpstreamTimeout, UpstreamInvalid])
async def test_what_cant_be_confirmed_is_a_fault(kind: type[UpstreamFault]) -> None:
    """An old snapshot confirms nothing, however good it still is for a look; the fault is the call's, unsent."""
    upstream = Listings([{"tools": [tool("add")], "ttlMs": 60000}])
    catalog, clock = _catalog(upstream)
    good = await catalog.confirm(SERVER, calling("add"), 5)
    assert good is not None
    upstream.pages = kind("down", sent=True, replica="http://r")
    clock.now += 4.9
    assert await catalog.confirm(SERVER, calling("add"), 5) is good
    clock.now += 0.2
    for _ in range(3):
        with pytest.raises(kind) as caught:
            await catalog.confirm(SERVER, calling("add"), 5)
        assert (caught.value.sent, caught.value.replica) == (False, "http://r")
        assert await catalog.look_up(SERVER, calling("add")) is good
    assert len(upstream.asked) == 2, "a server that is down was asked again at once"


async def test_a_tool_that_is_listed_twice_is_nobodys() -> None:
    """Which of two definitions was approved could not be told; a definition without a schema is none."""
    pages: list[dict[str, Any]] = [
        {"tools": [tool("add"), tool("twice"), {"name": "bare"}], "nextCursor": "1", "ttlMs": 60000},
        {"tools": [tool("twice"), tool("twice", description="b")], "ttlMs": 60000},
    ]
    upstream = Listings(pages)
    catalog, clock = _catalog(upstream)
    assert await catalog.look_up(SERVER, calling("add")) is not None
    clock.now += 6
    assert await catalog.look_up(SERVER, calling("twice")) is None
    assert await catalog.look_up(SERVER, calling("bare")) is None
    assert len(upstream.asked) == 2


BAD_PAGES: list[list[dict[str, Any]]] = [
    [{}],
    [{"tools": {}}],
    [{"tools": ["add"]}],
    [{"tools": [{"inputSchema": {}}]}],
    [{"tools": [], "nextCursor": 5}],
    [{"tools": [], "nextCursor": "0"}],
    [{"tools": [], "nextCursor": "1"}, {"tools": [], "nextCursor": "1"}],
    [{"tools": [], "nextCursor": str(number + 1)} for number in range(9)],
    [{"tools": [tool(f"t{number}") for number in range(11)]}],
    [{"tools": [tool("add", description="x" * 10_001)]}],
]


@pytest.mark.parametrize("pages", BAD_PAGES)
async def test_a_listing_that_is_none_is_a_fault(pages: list[dict[str, Any]]) -> None:
    """No array, no names, cursors in a circle, too many pages, tools or bytes: no snapshot at all."""
    good = [{"tools": [tool("add")]}]
    upstream = Listings(good)
    catalog, clock = _catalog(upstream)
    assert await catalog.look_up(SERVER, calling("add")) is not None
    upstream.pages = pages
    clock.now += 200
    with pytest.raises(UpstreamInvalid) as caught:
        await catalog.look_up(SERVER, calling("add"))
    assert caught.value.sent is False
    assert len(upstream.asked) <= 1 + LIMITS.pages


@pytest.mark.parametrize("kind", [UpstreamUnreachable, UpstreamTimeout, UpstreamInvalid])
async def test_the_last_good_snapshot_serves_for_a_while(kind: type[UpstreamFault]) -> None:
    """While the server can't be asked the old listing counts, up to a bound; then the fault does, and it heals."""
    upstream = Listings([{"tools": [tool("add")]}])
    catalog, clock = _catalog(upstream)
    good = await catalog.look_up(SERVER, calling("add"))
    upstream.pages = kind("down", sent=True, replica="http://r")
    clock.now += 99
    assert await catalog.look_up(SERVER, calling("add")) == good
    clock.now += 2
    with pytest.raises(kind) as caught:
        await catalog.look_up(SERVER, calling("add"))
    assert (caught.value.sent, caught.value.replica) == (False, "http://r")
    asked = len(upstream.asked)
    for _ in range(20):
        with pytest.raises(kind):
            await catalog.look_up(SERVER, calling("add"))
    assert len(upstream.asked) == asked, "a server that is down was asked again at once"
    upstream.pages = [{"tools": [tool("add")]}]
    clock.now += 1.1
    assert await catalog.look_up(SERVER, calling("add")) is not None


async def test_a_server_that_was_never_listed_is_a_fault() -> None:
    """Without a first listing there is nothing to fall back on."""
    catalog, _ = _catalog(Listings(UpstreamUnreachable("down", sent=False)))
    with pytest.raises(UpstreamUnreachable):
        await catalog.look_up(SERVER, calling("add"))


async def test_one_refresh_serves_all_who_wait() -> None:
    """A hundred calls at once ask the server once."""
    upstream = Listings([{"tools": [tool("add")]}], gate=asyncio.Event())
    catalog, _ = _catalog(upstream)
    waiting = [asyncio.create_task(catalog.look_up(SERVER, calling("add"))) for _ in range(100)]
    await asyncio.sleep(0.01)
    assert upstream.gate is not None
    upstream.gate.set()
    found = await asyncio.gather(*waiting)
    assert all(each is found[0] is not None for each in found)
    assert len(upstream.asked) == 1


async def test_who_goes_away_does_not_end_the_others_refresh() -> None:
    """Cancelling the call that began a refresh leaves it to those who wait, and to nobody if nobody does."""
    upstream = Listings([{"tools": [tool("add")]}], gate=asyncio.Event())
    catalog, _ = _catalog(upstream)
    first = asyncio.create_task(catalog.look_up(SERVER, calling("add")))
    await asyncio.sleep(0)
    second = asyncio.create_task(catalog.look_up(SERVER, calling("add")))
    await asyncio.sleep(0.01)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert upstream.gate is not None
    upstream.gate.set()
    assert await second is not None
    assert len(upstream.asked) == 1


async def test_a_refresh_has_a_deadline() -> None:
    """A server that answers page after page for ever, or never, does not hold the calls for ever."""
    upstream = Listings([{"tools": []}], gate=asyncio.Event())
    catalog = Catalog(upstream, CatalogLimits(refresh_s=0.05))
    with pytest.raises(UpstreamTimeout):
        await catalog.look_up(SERVER, calling("add"))


async def test_close_ends_a_refresh() -> None:
    """Nothing is under way afterwards; whoever waited is let go."""
    upstream = Listings([{"tools": []}], gate=asyncio.Event())
    catalog, _ = _catalog(upstream)
    waiting = asyncio.create_task(catalog.look_up(SERVER, calling("add")))
    await asyncio.sleep(0.01)
    await catalog.close()
    with pytest.raises((asyncio.CancelledError, UpstreamFault)):
        await waiting
    assert len(asyncio.all_tasks()) == 1


async def test_over_real_sockets() -> None:
    """The catalogue on the real upstream: pages by cursor, own credential, one reading."""

    async def listing(exchange: Exchange) -> None:
        page: dict[str, Any] = {"tools": [tool("sub")], "ttlMs": 1000}
        if b"cursor" not in exchange.seen.body:
            page = {"tools": [tool("add")], "ttlMs": 1000, "nextCursor": "more"}
        await exchange.send(http(200, result_of(exchange.id, **page)))

    async with ScriptedUpstream(listing) as scripted:
        target = UpstreamTarget((check_replica_url(scripted.url),), "Authorization", "Bearer own")
        upstream = HttpUpstream({SERVER.name: target})
        catalog = Catalog(upstream)
        assert await catalog.look_up(SERVER, calling("sub")) is not None
        assert [seen.values("authorization") for seen in scripted.seen] == [["Bearer own"]] * 2
        await catalog.close()
        await upstream.close()


async def test_a_list_that_changed_is_asked_for_before_it_expires() -> None:
    """Apart from `ttlMs`: who looks next waits for the new list; a flood of such news is no flood of questions."""
    upstream = Listings([{"tools": [tool("add")], "ttlMs": 60000}])
    catalog, clock = _catalog(upstream)
    assert await catalog.look_up(SERVER, calling("add")) is not None
    upstream.pages = [{"tools": [tool("new")], "ttlMs": 60000}]
    clock.now += 3
    assert await catalog.look_up(SERVER, calling("new")) is None, "the list is not known to have changed"
    catalog.expire(SERVER, "tools/list")
    assert await catalog.look_up(SERVER, calling("new")) is not None
    assert len(upstream.asked) == 2
    for _ in range(100):
        catalog.expire(SERVER, "tools/list")
        await catalog.look_up(SERVER, calling("new"))
    assert len(upstream.asked) == 2, "it was asked again within the shortest time"
    clock.now += LIMITS.shortest_s
    await catalog.look_up(SERVER, calling("new"))
    await catalog.look_up(SERVER, calling("new"))
    assert len(upstream.asked) == 3


async def test_a_change_during_a_refresh_is_not_lost() -> None:
    """The list that was under way may be the old one."""
    upstream = Listings([{"tools": [tool("add")], "ttlMs": 60000}], gate=asyncio.Event())
    catalog, clock = _catalog(upstream)
    looking = asyncio.create_task(catalog.look_up(SERVER, calling("add")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(upstream.asked) == 1
    catalog.expire(SERVER, "tools/list")
    assert upstream.gate is not None
    upstream.gate.set()
    assert await looking is not None
    clock.now += LIMITS.shortest_s
    await catalog.look_up(SERVER, calling("add"))
    assert len(upstream.asked) == 2


def asking(method: str, kind: str, **arguments: Any) -> Call:
    """A call that is no tool's."""
    return replace(a_call(method=method, kind=kind), name=arguments.pop("name", None), arguments=arguments)


PROMPT = {"name": "report", "arguments": [{"name": "account", "required": True}, {"name": "tone"}]}


async def test_a_prompt_is_held_to_what_its_server_lists() -> None:
    """The one that is there passes; one that is not is looked for once more in a list that is not quite fresh."""
    upstream = Listings([{"prompts": [PROMPT], "ttlMs": 60000}], method="prompts/list")
    catalog, clock = _catalog(upstream)
    await catalog.hold(SERVER, asking("prompts/get", "prompt", name="report", account="a"))
    new = asking("prompts/get", "prompt", name="new")
    for _ in range(20):
        with pytest.raises(Refused) as caught:
            await catalog.hold(SERVER, new)
        assert (caught.value.refusal, caught.value.message) == (Refusal.POLICY_DENIED, None)
    assert len(upstream.asked) == 1
    upstream.pages = [{"prompts": [PROMPT, {"name": "new"}], "ttlMs": 60000}]
    clock.now += 5.1
    await catalog.hold(SERVER, new)
    assert len(upstream.asked) == 2
    await catalog.hold(SERVER, asking("tools/list", "list"))
    await catalog.hold(SERVER, asking("resources/read", "resource", name="u://x"))
    assert len(upstream.asked) == 2


async def test_a_completion_is_of_what_its_server_lists() -> None:
    """A prompt, or a template; a URI without expressions needs no listing, like one that is read."""
    template = "file:///{name}"
    upstream = Listings([{"resourceTemplates": [{"uriTemplate": template}]}], method="resources/templates/list")
    catalog, _ = _catalog(upstream)

    def completing(**ref: str) -> Call:
        return asking("completion/complete", "completion", ref={"type": "t", **ref}, argument={})

    await catalog.hold(SERVER, completing(uri=template))
    await catalog.hold(SERVER, completing(uri="file:///x"))
    with pytest.raises(Refused):
        await catalog.hold(SERVER, completing(uri="file:///{other}"))
    upstream.method, upstream.pages = "prompts/list", [{"prompts": [PROMPT]}]
    await catalog.hold(SERVER, completing(name="report"))
    with pytest.raises(Refused):
        await catalog.hold(SERVER, completing(name="other"))


@pytest.mark.parametrize("kind", [UpstreamUnreachable, UpstreamTimeout, UpstreamInvalid])
async def test_a_server_without_the_method_offers_nothing_and_is_well(kind: type[UpstreamFault]) -> None:
    """-32601 is an empty list, asked for again in its time; every other fault stays a fault."""
    upstream = Listings(UpstreamInvalid("no such method", sent=True, code=-32601), method="prompts/list")
    catalog, clock = _catalog(upstream)
    call = asking("prompts/get", "prompt", name="report", account="a")
    with pytest.raises(Refused) as caught:
        await catalog.hold(SERVER, call)
    assert caught.value.refusal is Refusal.POLICY_DENIED
    upstream.pages = [{"prompts": [PROMPT]}]
    clock.now += LIMITS.longest_s + 1
    await catalog.hold(SERVER, call)
    upstream.pages = kind("down", sent=True)
    clock.now += LIMITS.stale_s + 1
    with pytest.raises(kind):
        await catalog.hold(SERVER, call)


async def test_a_page_in_the_middle_is_no_empty_list() -> None:
    """A server that lost its method between two pages has no list at all."""
    upstream = Listings([{"prompts": [PROMPT], "nextCursor": "1"}], method="prompts/list")
    catalog, _ = _catalog(upstream)
    inquire = upstream.inquire

    async def forgetful(server: Server, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if params:
            raise UpstreamInvalid("no such method", sent=True, code=-32601)
        return await inquire(server, method, params)

    catalog, _ = _catalog(upstream)
    upstream.inquire = forgetful  # type: ignore[method-assign]
    with pytest.raises(UpstreamInvalid):
        await catalog.hold(SERVER, asking("prompts/get", "prompt", name="report"))


async def test_the_error_of_a_server_without_the_method_is_known_over_real_sockets() -> None:
    """404 or 200 with -32601: the SDKs answer either way."""

    async def listing(exchange: Exchange) -> None:
        error = {"jsonrpc": "2.0", "id": exchange.id, "error": {"code": -32601, "message": "Method not found"}}
        await exchange.send(http(404 if exchange.nth == 1 else 200, orjson.dumps(error)))

    async with ScriptedUpstream(listing) as scripted:
        upstream = HttpUpstream({SERVER.name: UpstreamTarget((check_replica_url(scripted.url),))})
        for _ in range(2):
            with pytest.raises(UpstreamInvalid) as caught:
                await upstream.inquire(SERVER, "prompts/list", {})
            assert caught.value.code == -32601
        await upstream.close()


async def test_nobody_waits_long_for_a_list_while_the_last_is_good() -> None:
    """A server whose list hangs holds calls up for a moment, once, and no longer serves what is too old."""
    upstream = Listings([{"tools": [tool("add")], "ttlMs": 0}])
    clock = Clock()
    catalog = Catalog(upstream, replace(LIMITS, patience_s=0.05), clock)
    assert await catalog.look_up(SERVER, calling("add")) is not None
    upstream.gate = asyncio.Event()
    clock.now += 3
    for _ in range(3):
        assert await catalog.look_up(SERVER, calling("add")) is not None
    assert len(upstream.asked) == 2, "one refresh, that still hangs"
    clock.now += LIMITS.stale_s
    waiting = asyncio.create_task(catalog.look_up(SERVER, calling("add")))
    await asyncio.wait({waiting}, timeout=0.3)
    assert not waiting.done()
    upstream.gate.set()
    assert await waiting is not None
    await catalog.close()


async def test_where_definitions_have_to_be_accepted_no_old_list_serves(tmp_path: Path) -> None:
    """A server that hides its list can't have a definition run for a quarter of an hour that nobody can see."""
    clock = Clock()
    for mode, late in (("warn", 31.0), ("enforce", 29.0), ("enforce", 31.0)):
        upstream = Listings([{"tools": [tool("add")], "ttlMs": 0}])
        pins = Pins({SERVER.name: mode}, tmp_path / "none")  # type: ignore[dict-item]
        catalog = Catalog(upstream, replace(LIMITS, pinned_s=30), clock, Definitions(pins=pins))
        assert await catalog.look_up(SERVER, calling("add")) is not None
        upstream.pages = UpstreamTimeout("away", sent=False)
        clock.now += late
        if (mode, late) == ("enforce", 31.0):
            with pytest.raises(UpstreamTimeout):
                await catalog.look_up(SERVER, calling("add"))
        else:
            assert await catalog.look_up(SERVER, calling("add")) is not None
