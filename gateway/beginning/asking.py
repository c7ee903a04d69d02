"""What a server offers now, asked once, before there is a gateway: in this revision, else as an earlier one's client.

Of what it says of itself only names and hints are taken; they are a draft that a person reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from gateway.lobbies import catalog_lobby
from gateway.plan import Plan
from gateway.upstream.port import UpstreamFault

PAST: Final = ("off", "2025-11-25", "2025-06-18", "2025-03-26")


@dataclass(frozen=True, slots=True)
class Offer:
    """`tools`: name -> whether the server says that it only reads. `legacy`: the revision it had to be asked in.

    `fault`: why it could not be asked, else "".
    """

    tools: Mapping[str, bool]
    prompts: tuple[str, ...] = ()
    legacy: str = "off"
    fault: str = ""


async def ask(plans: Mapping[str, Plan]) -> Offer:
    """What the one server of these plans offers. `plans`: one for each entry of `PAST`, else alike."""
    fault = ""
    for legacy in PAST:
        try:
            return replace(await _ask(plans[legacy]), legacy=legacy)
        except UpstreamFault as error:
            fault = fault or str(error)  # what it said to a client of this revision
    return Offer({}, fault=fault)


async def _ask(plan: Plan) -> Offer:
    (server,) = plan.servers.values()
    async with catalog_lobby(plan) as catalog:
        tools = await catalog.whole(server)
        try:
            prompts = tuple(sorted(await catalog.whole_prompts(server)))
        except UpstreamFault:  # it has none, and says so with an error
            prompts = ()
    return Offer(
        {name: tool.annotations.get("readOnlyHint") is True for name, tool in sorted(tools.items())}, prompts
    )
