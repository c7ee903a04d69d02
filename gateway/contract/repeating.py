"""What may be sent a second time where it may have run already: what changes nothing, and nothing else.

A `tools/call` is one of them only where two say so: the tool's own definition, in the version that somebody accepted
(`idempotentHint`; a server may write anything there, and change it), and the configuration, by the tool's name. A
call that runs under an approval, a grant's included, is never repeated: its use is of one execution. Nor is one under
an idempotency key: that it is sent once is what its caller was promised.
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


def is_repeatable(server: Server, call: Call, tool: Tool | None, *, once: bool) -> bool:
    """Whether another attempt may follow one that may have reached its server.

    `once`: the call consumed a use of an approval, goes on under one, or has an idempotency key. A call that goes on
    with an earlier one (answers, a state) is not repeatable either: its server may take a state once.
    """
    if once or call.goes_on or call.envelope.id is None:
        return False
    if call.kind != "tool":
        return call.method in REPEATABLE
    return (
        call.name in server.idempotent_tools
        and tool is not None
        and tool.pinned
        and tool.annotations.get("idempotentHint") is True
    )
