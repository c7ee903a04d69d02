"""What follows from a verdict and from a tool's definition: refused here, or on to the approval and the admission.

Denied and absent share one refusal, so that a caller can't tell a hidden tool from one that does not exist
(contract.md section 4). `check_call` is the place where parameters' headers and arguments are held against the
tool's own definition: after the policy did not deny, before any ticket is read.
"""

from __future__ import annotations

from gateway.contract.bindings import check_bindings, without_nulls
from gateway.contract.passage import Call, OpenedTasks, Server, Tool
from gateway.contract.refusals import Refusal, Refused
from policies.verdict import Effect, Verdict

APPROVABLE = frozenset({"tools/call", "resources/read", "prompts/get"})
"""Methods whose call can wait for a person; `approve` on any other is a deny (design.md)."""


def check_reach(server: Server, call: Call) -> None:
    """Raise `Refused(POLICY_DENIED)` for a resource outside the server's prefixes: whoever asks, it is not there."""
    if server.reach is not None and not server.reach.admits_asked(call.method, call.name, call.arguments):
        raise Refused(Refusal.POLICY_DENIED, "outside resources.allow, or not in normal form")


def check_verdict(call: Call, verdict: Verdict) -> None:
    """Raise `Refused(POLICY_DENIED)` unless the verdict allows the call or asks for an approval of it."""
    if verdict.effect is Effect.ALLOW or (verdict.effect is Effect.APPROVE and call.method in APPROVABLE):
        return
    why = "approve is not possible here" if verdict.effect is Effect.APPROVE else ",".join(verdict.reasons)
    refused = Refused(Refusal.POLICY_DENIED, why)
    if verdict.disclose:
        refused.data["reasons"] = list(verdict.reasons)
    raise refused


def check_tasks(tasks: OpenedTasks) -> None:
    """Raise `Refused(TASK_UNKNOWN)` unless the caller owns every task that the request names, on this server."""
    if None in tasks.found:
        raise Refused(Refusal.TASK_UNKNOWN, tasks.why)


def check_offered(tool: Tool | None) -> Tool:
    """The tool, or `Refused`: POLICY_DENIED for one that its server does not offer, TOOL_QUARANTINED."""
    if tool is None:
        raise Refused(Refusal.POLICY_DENIED, "the server offers no tool of this name")
    if tool.quarantine:
        raise Refused(Refusal.TOOL_QUARANTINED, f"{tool.quarantine}: {tool.digest}")
    return tool


def check_call(call: Call, tool: Tool | None) -> None:
    """Hold a tool's call against the tool's own definition.

    Raises `Refused`: POLICY_DENIED for a tool that its server does not offer, TOOL_QUARANTINED, HEADER_MISMATCH,
    ARGUMENTS_INVALID.
    """
    if call.kind != "tool":
        return
    tool = check_offered(tool)
    arguments = call.arguments
    if tool.bindings:
        check_bindings(tool.bindings, arguments, call.param_headers)
        arguments = without_nulls(tool.bindings, arguments)
    if tool.contract is not None:
        tool.contract.check(arguments, call.envelope.raw)
