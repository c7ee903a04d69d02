"""What a server says of itself now, asked over the gateway's own way to its configured replicas.

Nothing of a record is in it, and no URL of a record is ever asked. Texts are a server's own: hostile, and bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.catalog import Catalog
from gateway.contract.passage import Server, Tool
from gateway.upstream.port import Upstream

INFO: Final = "io.modelcontextprotocol/serverInfo"
LONGEST: Final = 4096
"""Characters of a text of the server's that are compared and shown."""

OFFERS: Final = ("tools", "prompts", "resources", "completions", "logging")


@dataclass(frozen=True, slots=True)
class Live:
    """What a server is now. `addresses`: where clients reach it, and its replicas. Empty texts: not said."""

    server: str
    addresses: tuple[str, ...]
    name: str
    version: str
    title: str
    description: str
    capabilities: frozenset[str]
    tools: Mapping[str, Tool]

    def document(self) -> dict[str, Any]:
        """For programs."""
        said = {name: getattr(self, name) for name in ("name", "version", "title", "description")}
        return {"addresses": list(self.addresses), **said, "offers": self.offers()}

    def offers(self) -> dict[str, Any]:
        """Capabilities and tools in the form that a publisher states them in (record.OFFERS)."""
        return {
            "capabilities": sorted(self.capabilities),
            "tools": {name: self.tools[name].digest for name in sorted(self.tools)},
        }


async def ask_live(upstream: Upstream, catalog: Catalog, server: Server, replicas: tuple[str, ...]) -> Live:
    """`server/discover`, and the whole of `tools/list`. Raises `UpstreamFault` subclasses."""
    result = await upstream.inquire(server, "server/discover", {})
    capabilities = _object(result.get("capabilities"))
    tools = await catalog.whole(server) if "tools" in capabilities else {}
    info = _object(_object(result.get("_meta")).get(INFO))
    return Live(
        server=server.name,
        addresses=(server.resource, *replicas),
        name=_text(info, "name"),
        version=_text(info, "version"),
        title=_text(info, "title"),
        description=_text(info, "description"),
        capabilities=frozenset(name for name in OFFERS if name in capabilities),
        tools=tools,
    )


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(info: Mapping[str, Any], member: str) -> str:
    text = info.get(member)
    return text[:LONGEST] if isinstance(text, str) else ""
