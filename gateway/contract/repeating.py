"""What may be sent a second time where it may have run already: what changes nothing, and nothing else.

A `tools/call` is one of them only where two say so: the tool's own definition, in the version that somebody accepted
(`idempotentHint`; a server may write anything there, and change it), and the configuration, by the tool's name. A
call that runs under an approval, a grant's included, is never repeated: its use is of one execution.
"""

from __future__ import annotations

from typing import Final

from gateway.contract.passage import Call, Server, Tool

REPEATABLE: Final = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "prompts/get",
    }
)
"""Discovery, lists and reads: the revision has them change nothing at their server."""


def is_repeatable(server: Server, call: Call, tool: Tool | None, *, gated: bool) -> bool:
    """Whether another attempt may follow one that may have reached its server.

    `gated`: the call consumed a use of an approval, or goes on under one. A call that goes on with an earlier one
    (answers, a state) is not repeatable either: its server may take a state once.
    """
    if gated or call.goes_on or call.envelope.id is None:
        return False
    if call.kind != "tool":
        return call.method in REPEATABLE
    return (
        call.name in server.idempotent_tools
        and tool is not None
        and tool.pinned
        and tool.annotations.get("idempotentHint") is True
    )
