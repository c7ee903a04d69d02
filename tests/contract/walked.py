"""Passages as the corridor leaves them, for what reads them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from approvals.ticket import Asked, State, Ticket, Transition
from gateway.contract.passage import Call, Envelope, Identity, Passage, Received, Server, Tool
from gateway.contract.record import AuditKeys, Redactor
from gateway.contract.refusals import Refusal, Refused
from policies.verdict import Effect, Verdict

KEY = bytes(range(32))
KEY_TEXT = base64.urlsafe_b64encode(KEY).decode()
REDACTOR = Redactor(AuditKeys(KEY_TEXT))

SERVER = Server(
    name="readonly",
    path="/readonly/mcp",
    resource="https://mcp.example.com/readonly/mcp",
    metadata_url="https://mcp.example.com/.well-known/oauth-protected-resource/readonly/mcp",
    environment="production",
)
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}, "token": {"type": "string"}},
    "$defs": {"Deep": {"properties": {"inner": {"type": "string"}}}},
}
TOOL = Tool("read_file", "d" * 64, {}, {"name": "read_file", "inputSchema": SCHEMA})
ALLOW = Verdict(Effect.ALLOW, reasons=("readers_read",), revision="rev-1")


def walked(
    arguments: Mapping[str, Any] | None = None,
    *,
    decision_id: str = "d" * 32,
    name: str = "read_file",
    request_id: str | int = 7,
    verdict: Verdict | None = ALLOW,
    tool: Tool | None = TOOL,
) -> Passage:
    """A tool call that walked to the point of being written down."""
    passage = Passage(decision_id, 1_700_000_000.0, 1.0, server=SERVER)
    passage.identity = Identity("https://idp.example.com", "alice", "client-1", claims={"email": "alice@example.com"})
    given = {"path": "/srv/report.txt"} if arguments is None else arguments
    params = {"name": name, "arguments": given}
    passage.envelope = Envelope(b"{}", request_id, "tools/call", params, {})
    passage.call = Call(passage.envelope, "tool", "tools/call", name, given, {})
    passage.tool = tool
    passage.verdict = verdict
    passage.trace = ((b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)
    return passage


def ended(passage: Passage, outcome: str = "executed", latency_s: float = 0.0125) -> Passage:
    """The same passage after the server's answer."""
    passage.outcome, passage.status, passage.latency_s = outcome, 200, latency_s
    passage.replica, passage.result_digest = "http://10.0.0.1:8000/mcp", b"r" * 32
    return passage


def turned_away(refusal: Refusal = Refusal.TOKEN_MISSING, detail: str = "", decision_id: str = "f" * 32) -> Passage:
    """A request whose caller was never known."""
    passage = Passage(decision_id, 1_700_000_000.0, 1.0, server=SERVER)
    passage.refused = Refused(refusal, detail)
    return passage


def transition(comment: str = "", **changed: Any) -> Transition:
    """A person approved a ticket."""
    asked = Asked(
        issuer="https://idp.example.com",
        subject="alice",
        client="client-1",
        server="bank",
        resource="https://mcp.example.com/bank/mcp",
        environment="production",
        method="tools/call",
        name="transfer",
        arguments={"amount": 5},
        digest="a" * 64,
        tool_digest="b" * 64,
    )
    ticket = Ticket(
        id="t-1",
        state=State.APPROVED,
        asked=asked,
        justification="because",
        reasons=("large",),
        approvers=(),
        min_approvers=1,
        mask=(),
        decisions=(),
        uses=1,
        uses_left=1,
        runs=(),
        created_at=1.0,
        expires_at=2.0,
    )
    told = {"verb": "approve", "by": "https://idp.example.com|bob", "at": 1.0, "seen": "c" * 64, **changed}
    return Transition(ticket, comment=comment, **told)


def malformed(
    refusal: Refusal = Refusal.HEADER_MISMATCH,
    detail: str = "Mcp-Name header is missing",
    *,
    subject: str = "alice",
    method: str = "tools/call",
    decision_id: str = "e" * 32,
    request_id: str | int = 7,
) -> Passage:
    """A known caller's request that the contract turned away."""
    passage = Passage(decision_id, 1_700_000_000.0, 1.0, server=SERVER)
    passage.received = Received(SERVER, "POST", SERVER.path, ())
    passage.identity = Identity("https://idp.example.com", subject, "client-1")
    params = {"name": "read_file", "arguments": {"path": "/srv/report.txt"}}
    passage.envelope = Envelope(b"{}", request_id, method, params, {})
    passage.refuse(Refused(refusal, detail))
    return passage
