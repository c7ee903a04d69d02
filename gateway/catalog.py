"""What each server offers: a snapshot of its whole `tools/list`, with the digest of every definition.

A tool that is not in the snapshot does not exist for the corridor; one that is listed twice is nobody's. Snapshots
are refreshed when they expire, and earlier for who may not rest on an old one; whoever waits for a refresh shares it,
and nobody who goes away ends it. Whether there is a tool of the name that is asked for changes nothing of when the
server is asked (contract.md section 4; server/utilities/caching and pagination of the revision).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.contract.passage import Call, Server, Tool
from gateway.definitions import Definitions
from gateway.upstream.port import Upstream, UpstreamFault, UpstreamInvalid, UpstreamTimeout


@dataclass(frozen=True, slots=True)
class CatalogLimits:
    """Bounds of one server's listing (counts, bytes) and its times (seconds).

    A server's `ttlMs` counts between `shortest_s` and `longest_s`. After a failed refresh, and a pause of `failure_s`
    before the next, the last good snapshot serves until it is `stale_s` old.
    """

    pages: int = 100
    tools: int = 5000
    listing_bytes: int = 16_777_216
    shortest_s: float = 2.0
    longest_s: float = 300.0
    stale_s: float = 900.0
    failure_s: float = 1.0
    refresh_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One whole listing, without the names that were listed twice or whose definition can't be used."""

    tools: Mapping[str, Tool]
    taken_at: float
    fresh_until: float


@dataclass(slots=True)
class _Shelf:
    """What is known of one server, and the one refresh that may be under way."""

    snapshot: Snapshot | None = None
    refresh: asyncio.Task[Snapshot] | None = None
    rest_until: float = 0.0
    fault: UpstreamFault | None = None


@dataclass(slots=True)
class Catalog:
    """All servers' tools. One per worker and event loop. `clock` is monotonic."""

    upstream: Upstream
    limits: CatalogLimits = CatalogLimits()
    clock: Callable[[], float] = time.monotonic
    definitions: Definitions = field(default_factory=Definitions)
    _shelves: dict[str, _Shelf] = field(default_factory=dict)

    async def look_up(self, server: Server, call: Call) -> Tool | None:
        """The definition of the tool that is called, from a snapshot that is fresh or, while the server can't be
        asked, still good enough; `None` for no tool, or for one that is not on offer exactly once.

        Raises `UpstreamFault` subclasses (`sent` is false: nothing of the call left) while there is no such snapshot.
        """
        if call.kind != "tool" or call.name is None:
            return None
        shelf = self._shelf(server)
        snapshot = shelf.snapshot
        if snapshot is None or snapshot.fresh_until <= self.clock():
            try:
                snapshot = await self._renew(server, shelf)
            except UpstreamFault:
                snapshot = shelf.snapshot
                if snapshot is None or snapshot.taken_at + self.limits.stale_s <= self.clock():
                    raise
        return snapshot.tools.get(call.name)

    async def confirm(self, server: Server, call: Call, within_s: float) -> Tool | None:
        """The definition of the called tool as it was at most `within_s` before now. Raises like `look_up`."""
        shelf = self._shelf(server)
        oldest = self.clock() - within_s
        snapshot = shelf.snapshot
        while snapshot is None or snapshot.taken_at <= oldest:  # twice at most: one that begins now is young enough
            snapshot = await self._renew(server, shelf)
        return snapshot.tools.get(call.name or "")

    async def close(self) -> None:
        """End what is under way."""
        tasks = [shelf.refresh for shelf in self._shelves.values() if shelf.refresh is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _shelf(self, server: Server) -> _Shelf:
        shelf = self._shelves.get(server.name)
        if shelf is None:
            shelf = self._shelves[server.name] = _Shelf()
        return shelf

    async def _renew(self, server: Server, shelf: _Shelf) -> Snapshot:
        """The result of the one refresh. Raises its fault, also during the pause that follows it."""
        task = shelf.refresh
        if task is None:
            if shelf.fault is not None and self.clock() < shelf.rest_until:
                raise _again(shelf.fault)
            task = shelf.refresh = asyncio.create_task(self._refresh(server, shelf), name=f"catalog {server.name}")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(task)
        except UpstreamFault as fault:
            raise _again(fault) from fault

    async def _refresh(self, server: Server, shelf: _Shelf) -> Snapshot:
        try:
            async with asyncio.timeout(self.limits.refresh_s):
                shelf.snapshot = snapshot = await self._list(server)
        except TimeoutError:
            fault: UpstreamFault = UpstreamTimeout("tools/list took too long", sent=False)
        except UpstreamFault as found:
            fault = found
        else:
            shelf.fault = None
            return snapshot
        finally:
            shelf.refresh = None
        shelf.fault = fault
        shelf.rest_until = self.clock() + self.limits.failure_s
        raise fault

    async def _list(self, server: Server) -> Snapshot:
        """All pages. Raises `UpstreamInvalid` for a listing that is none or does not end."""
        limits = self.limits
        tools: dict[str, Tool] = {}
        ambiguous: set[str] = set()
        cursors: set[str] = set()
        params: dict[str, str] = {}
        ttl_s = limits.longest_s
        count = size = 0
        taken_at = self.clock()
        for _ in range(limits.pages):
            page = await self.upstream.inquire(server, "tools/list", params)
            items = page.get("tools")
            if not isinstance(items, list):
                raise _invalid("result.tools is not an array")
            count += len(items)
            size += len(orjson.dumps(items))
            if count > limits.tools or size > limits.listing_bytes:
                raise _invalid("the listing is too large")
            ttl_s = min(ttl_s, _ttl_s(page))
            await self._shelve(server, items, tools, ambiguous)
            cursor = page.get("nextCursor")
            if cursor is None:
                fresh_until = taken_at + max(ttl_s, limits.shortest_s)
                return Snapshot(tools, taken_at, fresh_until)
            if not isinstance(cursor, str) or cursor in cursors:
                raise _invalid("the cursor is not a string, or came before")
            cursors.add(cursor)
            params = {"cursor": cursor}
        raise _invalid("the listing has too many pages")

    async def _shelve(self, server: Server, items: list[Any], tools: dict[str, Tool], ambiguous: set[str]) -> None:
        """Put one page's definitions where they can be found."""
        if not all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in items):
            raise _invalid("a tool without a name")
        read = await self.definitions.read(server.name, items)
        for name, tool in zip((item["name"] for item in items), read, strict=True):
            if tool is None or name in tools or name in ambiguous:
                tools.pop(name, None)
                ambiguous.add(name)
            else:
                tools[name] = tool


def _ttl_s(page: Mapping[str, Any]) -> float:
    """`ttlMs` in seconds; absent, negative or no integer counts as 0 (immediately stale)."""
    ttl = page.get("ttlMs")
    return max(ttl, 0) / 1000 if type(ttl) is int else 0.0


def _again(fault: UpstreamFault) -> UpstreamFault:
    """The fault of a refresh as one of the call that waits for it, of which nothing left."""
    return type(fault)(f"catalogue: {fault.detail}", sent=False, replica=fault.replica)


def _invalid(detail: str) -> UpstreamInvalid:
    return UpstreamInvalid(f"tools/list: {detail}", sent=False)
