"""What servers tell of their lists while they change: a subscription of the gateway's own for each server in use.

A list that is said to have changed is asked for anew by whoever looks next. Nothing rests on being told: while a
server can't be heard, and for one that does not offer it, its lists are as current as their `ttlMs` makes them. One
connection and one task a server and worker (basic/patterns/subscriptions of the revision).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from gateway.beside import tell_if_broken
from gateway.contract.discovery import announces
from gateway.contract.passage import Server
from gateway.contract.stream import ResponseStream, StreamLimits
from gateway.contract.subscription import ACKNOWLEDGED
from gateway.upstream.port import Upstream, UpstreamFault

LISTS: Mapping[str, tuple[str, str, str]] = {
    "notifications/tools/list_changed": ("tools", "toolsListChanged", "tools/list"),
    "notifications/prompts/list_changed": ("prompts", "promptsListChanged", "prompts/list"),
    "notifications/resources/list_changed": ("resources", "resourcesListChanged", "resources/templates/list"),
}
"""Notification -> the capability that offers it, the filter's member that asks for it, the list that changed."""

EVENT_BYTES = 65_536

PACE_BYTES, PACE_S = 65_536, 1.0
"""So much of one stream is read in such a time (s): five hundred notices, and none of a flood's cost."""


@dataclass(frozen=True, slots=True)
class NoticeTimes:
    """Seconds; each pause is taken times 0.5 to 1.5, so that workers and gateways do not come all at once.

    A stream that lasted for `steady_s` was a good one: the next attempt comes after `shortest_s`, else after a pause
    that doubles up to `longest_s`. A server that offers nothing is asked again after `again_s`.
    """

    shortest_s: float = 1.0
    longest_s: float = 60.0
    steady_s: float = 30.0
    again_s: float = 300.0


@dataclass(slots=True)
class Notices:
    """All servers in use. One per worker and event loop.

    `expire` is told which list changed and says whether that is news; `told` counts (server, list's method).
    """

    upstream: Upstream
    expire: Callable[[Server, str], bool]
    told: Callable[[str, str], None] = lambda _server, _method: None
    times: NoticeTimes = field(default_factory=NoticeTimes)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _heard: set[str] = field(default_factory=set)

    def attend(self, server: Server) -> None:
        """Hear what this server has to tell from now on. Does nothing where that is under way."""
        if server.name not in self._tasks:
            task = asyncio.create_task(self._attend(server), name=f"notices {server.name}")
            task.add_done_callback(tell_if_broken("notices"))
            self._tasks[server.name] = task

    def heard(self) -> dict[str, float]:
        """For metrics: server in use -> 1 while it would tell of changes."""
        return {name: float(name in self._heard) for name in self._tasks}

    async def close(self) -> None:
        """Hear nothing more."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _attend(self, server: Server) -> None:
        clock, times = asyncio.get_running_loop().time, self.times
        pause_s, said = times.shortest_s, ""
        while True:
            began, why = clock(), ""
            try:
                if not (wanted := await self._offered(server)):
                    await self._rest(times.again_s)
                    continue
                why = await self._hear(server, wanted)
            except UpstreamFault as fault:
                why = fault.detail
            if server.name in self._heard:
                self._heard.discard(server.name)
                said = ""
                if clock() - began >= times.steady_s:
                    pause_s = times.shortest_s
            if why != said:  # else once, not once a minute
                log = structlog.get_logger("notices")
                log.info("changes_not_heard", server=server.name, reason=why, again_in_s=pause_s)
            said = why
            await self._rest(pause_s)
            pause_s = min(pause_s * 2, times.longest_s)

    async def _rest(self, seconds: float) -> None:
        await self.sleep(seconds * random.uniform(0.5, 1.5))  # noqa: S311 - spreads load, guards nothing

    async def _offered(self, server: Server) -> dict[str, bool]:
        """The filter of what the server says that it tells of."""
        said = await self.upstream.inquire(server, "server/discover", {})
        return {member: True for capability, member, _ in LISTS.values() if announces(said, capability)}

    async def _hear(self, server: Server, wanted: Mapping[str, bool]) -> str:
        """One subscription to its end -> why it ended. Raises `UpstreamFault`."""

        def hear(message: dict[str, Any]) -> dict[str, Any] | None:
            if message["method"] == ACKNOWLEDGED:
                self._heard.add(server.name)
                for _, member, method in LISTS.values():
                    if member in wanted:  # it may have changed while nobody listened
                        self.expire(server, method)
                return message
            if message["method"] in LISTS:
                self._take(server, LISTS[message["method"]][2])
            return None

        call, answer = await self.upstream.listen(server, wanted)
        try:
            stream = ResponseStream(call, StreamLimits(event_bytes=EVENT_BYTES), hear)
            clock = asyncio.get_running_loop().time
            began, taken = clock(), 0
            async for piece in answer.chunks():
                stream.feed(piece)
                if stream.final is not None or stream.fault:
                    break
                taken += len(piece)
                if taken > PACE_BYTES:  # nothing is read ahead: who talks faster waits
                    await asyncio.sleep(max(began + PACE_S - clock(), 0))
                    began, taken = clock(), 0
            return stream.fault or "the server ended it"
        finally:
            await answer.close()

    def _take(self, server: Server, method: str) -> None:
        self.told(server.name, method)
        if self.expire(server, method):
            structlog.get_logger("notices").info("list_changed", server=server.name, method=method)
