"""One of the lists that servers offer, whole: a snapshot for each server, as old as it may be.

Snapshots are refreshed when they expire, earlier for who may not rest on an old one or once the server said that the
list changed; whoever waits for a refresh shares it, and nobody who goes away ends it. A server that does not have the
list's method offers nothing, and is well (server/utilities/caching and pagination of the revision).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from gateway.contract.listing import MEMBERS, MOST_ITEMS
from gateway.contract.passage import Server
from gateway.contract.refusals import METHOD_NOT_FOUND
from gateway.upstream.port import Upstream, UpstreamFault, UpstreamInvalid, UpstreamTimeout

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class CatalogLimits:
    """Bounds of one server's listing (counts, bytes) and its times (seconds).

    A server's `ttlMs` counts between `shortest_s` and `longest_s`, or `pinned_s` where its definitions have to be
    accepted: so long a changed one may go unnoticed. After a failed refresh, and a pause of `failure_s`
    before the next, the last good snapshot serves until it is `stale_s` old (or `pinned_s` where definitions have to
    be accepted); and while one takes longer than `patience_s`.
    """

    pages: int = 100
    items: int = MOST_ITEMS
    listing_bytes: int = 16_777_216
    shortest_s: float = 2.0
    longest_s: float = 300.0
    pinned_s: float = 30.0
    stale_s: float = 900.0
    failure_s: float = 1.0
    refresh_s: float = 20.0
    patience_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[Item]):
    """One whole listing, without the names that were listed twice or whose definition can't be used: `left_out`."""

    items: Mapping[str, Item]
    taken_at: float
    fresh_until: float
    left_out: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Shelf(Generic[Item]):
    """What is known of one server, and the one refresh that may be under way.

    `changed_at` is when the server last said that the list is another now; `patient_until` is of the loop's clock.
    """

    snapshot: Snapshot[Item] | None = None
    refresh: asyncio.Task[Snapshot[Item]] | None = None
    patient_until: float = 0.0
    rest_until: float = 0.0
    changed_at: float = float("-inf")
    fault: UpstreamFault | None = None


class Snapshots(Generic[Item]):
    """The lists of one method, by server. `clock` is monotonic.

    `read` turns the items of one page, each of which is identified, into what is kept of each; `None` for one that
    can't be used. `longest_s` is how long a server's listing may count as fresh, `stale_s` how long one may serve
    that can't be refreshed, `seen` is shown each whole one.
    """

    def __init__(  # noqa: PLR0917 - all that one list differs in from another
        self,
        upstream: Upstream,
        method: str,
        read: Callable[[Server, list[Mapping[str, Any]]], Awaitable[Iterable[Item | None]]],
        limits: CatalogLimits,
        clock: Callable[[], float],
        longest_s: Callable[[Server], float] | None = None,
        seen: Callable[[Server, Mapping[str, Item]], None] = lambda _server, _items: None,
        stale_s: Callable[[Server], float] | None = None,
    ) -> None:
        self._upstream = upstream
        self.method = method
        self._member, self._key = MEMBERS[method]
        self._read = read
        self._limits = limits
        self._clock = clock
        self._longest_s = longest_s or (lambda _: limits.longest_s)
        self._seen = seen
        self._stale_s = stale_s or (lambda _: limits.stale_s)
        self._shelves: dict[str, _Shelf[Item]] = {}

    async def find(self, server: Server, name: str) -> Item | None:
        """What is offered under `name`, from a snapshot that is fresh or, while the server can't be asked, still
        good enough; `None` for what is not on offer exactly once.

        Raises `UpstreamFault` subclasses (`sent` is false) while there is no such snapshot.
        """
        return (self._fresh(server) or await self._current(server)).items.get(name)

    async def confirm(self, server: Server, name: str, within_s: float) -> Item | None:
        """What was offered under `name` at most `within_s` before now. Raises like `find`."""
        return (await self._young(server, within_s)).items.get(name)

    async def left_out(self, server: Server, names: Collection[str], within_s: float) -> frozenset[str]:
        """Those of `names` that the server lists in a way that they can't be used. Raises like `find`.

        A list that is older than `within_s` leaves nothing out before it was looked at once more.
        """
        found = (await self._current(server)).left_out.intersection(names)
        return (await self._young(server, within_s)).left_out.intersection(found) if found else found

    def _fresh(self, server: Server) -> Snapshot[Item] | None:
        """The snapshot, where nobody has to wait for another."""
        shelf = self._shelves.get(server.name)
        snapshot = None if shelf is None else shelf.snapshot
        if shelf is None or snapshot is None or self._fresh_until(shelf, snapshot) <= self._clock():
            return None
        return snapshot

    async def _current(self, server: Server) -> Snapshot[Item]:
        shelf = self._shelf(server)
        snapshot = shelf.snapshot
        if snapshot is None or self._fresh_until(shelf, snapshot) <= self._clock():
            good = snapshot is not None and snapshot.taken_at + self._stale_s(server) > self._clock()
            loop_time = asyncio.get_running_loop().time
            if shelf.refresh is None:
                shelf.patient_until = loop_time() + self._limits.patience_s
            elif good and snapshot is not None and loop_time() >= shelf.patient_until:
                return snapshot
            try:
                async with asyncio.timeout_at(shelf.patient_until if good else None):
                    snapshot = await self._renew(server, shelf)
            except (UpstreamFault, TimeoutError):
                snapshot = shelf.snapshot
                if snapshot is None or snapshot.taken_at + self._stale_s(server) <= self._clock():
                    raise
        return snapshot

    async def _young(self, server: Server, within_s: float) -> Snapshot[Item]:
        shelf = self._shelf(server)
        oldest = self._clock() - within_s
        snapshot = shelf.snapshot
        while snapshot is None or snapshot.taken_at <= oldest:  # twice at most: one that begins now is young enough
            snapshot = await self._renew(server, shelf)
        return snapshot

    async def whole(self, server: Server) -> Mapping[str, Item]:
        """All that a server offers now. Raises like `find`."""
        return (await self._renew(server, self._shelf(server))).items

    def expire(self, server: Server) -> bool:
        """The server says that the list is another now: whoever looks next waits for it -> whether that is news.

        However often it says so, the list is asked for no more often than every `shortest_s`.
        """
        shelf = self._shelf(server)
        news = shelf.snapshot is not None and shelf.changed_at < shelf.snapshot.taken_at
        shelf.changed_at = self._clock()
        return news

    def doubt(self, server: str) -> None:
        """What passed by shows something else than the list had: whoever looks next waits for it, as in `expire`."""
        shelf = self._shelves.get(server)
        if shelf is not None:
            shelf.changed_at = self._clock()

    def under_way(self) -> list[asyncio.Task[Snapshot[Item]]]:
        """The refreshes that run now."""
        return [shelf.refresh for shelf in self._shelves.values() if shelf.refresh is not None]

    def _fresh_until(self, shelf: _Shelf[Item], snapshot: Snapshot[Item]) -> float:
        if shelf.changed_at < snapshot.taken_at:
            return snapshot.fresh_until
        return min(snapshot.fresh_until, snapshot.taken_at + self._limits.shortest_s)

    def _shelf(self, server: Server) -> _Shelf[Item]:
        shelf = self._shelves.get(server.name)
        if shelf is None:
            shelf = self._shelves[server.name] = _Shelf()
        return shelf

    async def _renew(self, server: Server, shelf: _Shelf[Item]) -> Snapshot[Item]:
        """The result of the one refresh. Raises its fault, also during the pause that follows it."""
        task = shelf.refresh
        if task is None:
            if shelf.fault is not None and self._clock() < shelf.rest_until:
                raise _again(shelf.fault)
            work, name = self._refresh(server, shelf), f"{self.method} {server.name}"
            task = shelf.refresh = asyncio.create_task(work, name=name)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(task)
        except UpstreamFault as fault:
            raise _again(fault) from fault

    async def _refresh(self, server: Server, shelf: _Shelf[Item]) -> Snapshot[Item]:
        try:
            async with asyncio.timeout(self._limits.refresh_s):
                shelf.snapshot = snapshot = await self._list(server)
            self._seen(server, snapshot.items)
        except TimeoutError:
            fault: UpstreamFault = UpstreamTimeout(f"{self.method} took too long", sent=False)
        except UpstreamFault as found:
            fault = found
        else:
            shelf.fault = None
            return snapshot
        finally:
            shelf.refresh = None
        shelf.fault = fault
        shelf.rest_until = self._clock() + self._limits.failure_s
        raise fault

    async def _list(self, server: Server) -> Snapshot[Item]:
        """All pages. Raises `UpstreamInvalid` for a listing that is none or does not end."""
        limits = self._limits
        kept: dict[str, Item] = {}
        ambiguous: set[str] = set()
        cursors: set[str] = set()
        params: dict[str, str] = {}
        ttl_s = self._longest_s(server)
        count = size = 0
        taken_at = self._clock()
        for _ in range(limits.pages):
            try:
                page = await self._upstream.inquire(server, self.method, params)
            except UpstreamInvalid as fault:
                if fault.code != METHOD_NOT_FOUND or params:
                    raise
                return Snapshot({}, taken_at, taken_at + self._longest_s(server))
            items = page.get(self._member)
            if not isinstance(items, list):
                raise self._invalid(f"result.{self._member} is not an array")
            count += len(items)
            size += len(orjson.dumps(items))
            if count > limits.items or size > limits.listing_bytes:
                raise self._invalid("the listing is too large")
            ttl_s = min(ttl_s, _ttl_s(page))
            await self._shelve(server, items, kept, ambiguous)
            cursor = page.get("nextCursor")
            if cursor is None:
                fresh_until = taken_at + max(ttl_s, limits.shortest_s)
                return Snapshot(kept, taken_at, fresh_until, frozenset(ambiguous))
            if not isinstance(cursor, str) or cursor in cursors:
                raise self._invalid("the cursor is not a string, or came before")
            cursors.add(cursor)
            params = {"cursor": cursor}
        raise self._invalid("the listing has too many pages")

    async def _shelve(self, server: Server, items: list[Any], kept: dict[str, Item], ambiguous: set[str]) -> None:
        """Put one page's definitions where they can be found."""
        if not all(isinstance(item, dict) and isinstance(item.get(self._key), str) for item in items):
            raise self._invalid(f"an item without a {self._key}")
        for name, item in zip((item[self._key] for item in items), await self._read(server, items), strict=True):
            if item is None or name in kept or name in ambiguous:
                kept.pop(name, None)
                ambiguous.add(name)
            else:
                kept[name] = item

    def _invalid(self, detail: str) -> UpstreamInvalid:
        return UpstreamInvalid(f"{self.method}: {detail}", sent=False)


def _ttl_s(page: Mapping[str, Any]) -> float:
    """`ttlMs` in seconds; absent, negative or no integer counts as 0 (immediately stale)."""
    ttl = page.get("ttlMs")
    return max(ttl, 0) / 1000 if type(ttl) is int else 0.0


def _again(fault: UpstreamFault) -> UpstreamFault:
    """The fault of a refresh as one of the call that waits for it, of which nothing left."""
    return type(fault)(f"catalogue: {fault.detail}", sent=False, replica=fault.replica)
