"""What each server offers, learnt from its own lists: what a call names that is not there, does not exist here.

A tool that is not in the snapshot does not exist for the corridor; one that is listed twice is nobody's. Whether
there is a tool of the name that is asked for changes nothing of when the server is asked. Prompts, and templates that
are completed, are looked for once the policy did not deny them. A resource needs no listing to be read (contract.md
section 4; server/prompts, server/resources of the revision).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.contract.passage import Call, Server, Tool
from gateway.contract.prompts import Prompt, check_prompt
from gateway.contract.refusals import Refusal, Refused
from gateway.definitions import Definitions
from gateway.prompts import Prompts
from gateway.snapshots import CatalogLimits, Snapshots
from gateway.upstream.port import Upstream, UpstreamFault

MISSED_S = 5.0
"""What a list that is older does not have is looked for once more."""


@dataclass(slots=True)
class Catalog:
    """All servers' lists. One per worker and event loop. `clock` is monotonic.

    `attend` is told of each server that was listed: it is in use.
    """

    upstream: Upstream
    limits: CatalogLimits = field(default_factory=CatalogLimits)
    clock: Callable[[], float] = time.monotonic
    definitions: Definitions = field(default_factory=Definitions)
    prompts: Prompts = field(default_factory=Prompts)
    attend: Callable[[Server], None] = lambda _: None
    _tools: Snapshots[Tool] = field(init=False)
    _prompts: Snapshots[Prompt] = field(init=False)
    _templates: Snapshots[bool] = field(init=False)

    def __post_init__(self) -> None:
        def now() -> float:
            return self.clock()

        async def read_tools(server: Server, items: list[Mapping[str, Any]]) -> Iterable[Tool | None]:
            return await self.definitions.read(server.name, items)

        async def read_prompts(server: Server, items: list[Mapping[str, Any]]) -> Iterable[Prompt | None]:
            return self.prompts.read(server.name, items)

        async def read_templates(_: Server, items: list[Mapping[str, Any]]) -> Iterable[bool]:
            return [True] * len(items)

        def see_tools(server: Server, tools: Mapping[str, Tool]) -> None:
            self.definitions.pins.met_all(server.name, tools)
            self.attend(server)

        def see(server: Server, _: Mapping[str, Any]) -> None:
            self.attend(server)

        def longest_s(server: Server) -> float:
            return limits.pinned_s if self.definitions.pins.enforced(server.name) else limits.longest_s

        def stale_s(server: Server) -> float:
            return limits.pinned_s if self.definitions.pins.enforced(server.name) else limits.stale_s

        upstream, limits = self.upstream, self.limits
        self._tools = Snapshots(upstream, "tools/list", read_tools, limits, now, longest_s, see_tools, stale_s)
        self.definitions.pins.when_in_doubt(self._tools.doubt)
        self._prompts = Snapshots(upstream, "prompts/list", read_prompts, limits, now, seen=see)
        self._templates = Snapshots(upstream, "resources/templates/list", read_templates, limits, now, seen=see)

    async def look_up(self, server: Server, call: Call) -> Tool | None:
        """The definition of the tool that is called, as in `Snapshots.find`; `None` where no tool is named.

        Raises `UpstreamFault` subclasses (`sent` is false: nothing of the call left) while there is no snapshot.
        """
        if call.kind != "tool" or call.name is None:
            return None
        return self._judged(server, await self._tools.find(server, call.name))

    async def confirm(self, server: Server, call: Call, within_s: float) -> Tool | None:
        """The definition of the called tool as it was at most `within_s` before now. Raises like `look_up`."""
        return self._judged(server, await self._tools.confirm(server, call.name or "", within_s))

    async def whole(self, server: Server) -> Mapping[str, Tool]:
        """All tools that a server offers now. Raises like `look_up`."""
        return await self._tools.whole(server)

    async def whole_prompts(self, server: Server) -> Mapping[str, Any]:
        """All prompts that a server offers now. Raises like `look_up`."""
        return await self._prompts.whole(server)

    def _judged(self, server: Server, tool: Tool | None) -> Tool | None:
        """The tool as the pins that are in force now have it: they may be others than when it was read."""
        return None if tool is None else self.definitions.pins.judge(server.name, tool)

    async def hold(self, server: Server, call: Call) -> None:
        """Hold a call of a prompt, or a completion, that the policy did not deny against what the server offers.

        Raises `Refused`: POLICY_DENIED for what is not there, PARAMS_INVALID for arguments that the prompt does not
        take; and like `look_up`.
        """
        if call.kind == "prompt":
            prompt = await self._seek(self._prompts, server, call.name or "")
            check_prompt(prompt, call.arguments)
        elif call.kind == "completion":
            ref = call.arguments["ref"]
            if "name" in ref:
                await self._seek(self._prompts, server, ref["name"])
            if "{" in ref.get("uri", ""):
                await self._seek(self._templates, server, ref["uri"])

    async def left_out(self, server: Server, method: str, names: Collection[str]) -> frozenset[str]:
        """Those of one page's names that can't be used by the whole list, of which other pages are a part.

        None while the server can't be asked: a list does not depend on it, and a call is refused all the same.
        """
        for one in self._lists():
            if one.method == method:
                try:
                    return await one.left_out(server, names, MISSED_S)
                except UpstreamFault:
                    break
        return frozenset()

    def expire(self, server: Server, method: str) -> bool:
        """The server says that the list of `method` is another now -> whether that is news (`Snapshots.expire`)."""
        return any(one.expire(server) for one in self._lists() if one.method == method)

    def _lists(self) -> tuple[Snapshots[Any], ...]:
        return self._tools, self._prompts, self._templates

    async def _seek(self, where: Snapshots[Any], server: Server, name: str) -> Any:
        found = await where.find(server, name)
        if found is None:
            found = await where.confirm(server, name, MISSED_S)
        if found is None:
            raise Refused(Refusal.POLICY_DENIED, "the server offers nothing of this name")
        return found

    async def close(self) -> None:
        """End what is under way."""
        tasks = [task for one in self._lists() for task in one.under_way()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
