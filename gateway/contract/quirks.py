"""Known deviations of real clients, each with a name: tolerated only where a server's `quirks` list it.

Strict is the default, and its refusal says which header is wrong. A quirk that helped is counted and stands in the
record. None changes what is judged or forwarded: that is the body alone, and what a header lacked is made from it.
"""

from __future__ import annotations

from enum import StrEnum, unique


@unique
class Quirk(StrEnum):
    """The name in the configuration, in the record and in the metric."""

    ACCEPT_JSON_ONLY = "accept_json_only"
    """`Accept` names `application/json` alone. The answer is one JSON object, whatever the server streams.

    Clients that ask for plain JSON: junjiem/dify-plugin-tools-mcp_sse#70, f/mcptools#69, G-Research/bobbit#503,
    OpenLiberty/open-liberty#35727, modelcontextprotocol/typescript-sdk#1944.
    """

    DISCOVER_WITHOUT_METHOD = "discover_without_method"
    """A `server/discover` of the revision that is served here comes without `Mcp-Method`.

    Clients that try this revision first, also through proxies that were made for stdio: railwayapp/cli#1172 (490
    refusals a day), agentgateway/agentgateway#3439. Every other method needs the header.
    """

    SESSION_WITHOUT_VERSION = "session_without_version"
    """A client of an older revision does not repeat `MCP-Protocol-Version` after `initialize`.

    Then its session says which one was agreed on: the client could not have made it. For `legacy_clients` only.
    modelcontextprotocol/csharp-sdk#495, HarperFast/harper#1611.
    """
