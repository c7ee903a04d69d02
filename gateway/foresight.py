"""What a call would need, asked before it is made: the approvals API's way into the policy.

The same question, the same effect and the same tool definition as the corridor's own, so that a ticket that was
opened ahead is found by the very call. Nothing is consumed and nothing is forwarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from approvals.approvers import Person
from approvals.desk import Terms
from approvals.review.asking import Offer
from approvals.ticket import Asked, Unapprovable
from gateway.contract.admission import policy_input
from gateway.contract.bindings import mirror
from gateway.contract.envelope import parse_envelope
from gateway.contract.fingerprint import describe_effect, describe_grant, described
from gateway.contract.headers import PROTOCOL_VERSION, encode_value, match_headers
from gateway.contract.identity import Implications
from gateway.contract.judgement import check_call, check_offered, check_verdict
from gateway.contract.passage import Call, Identity, Received, Server, Tool
from gateway.contract.refusals import Refusal, Refused
from gateway.contract.schemas import Unusable
from gateway.grants import read_terms
from gateway.pipeline import Corridor
from policies.question import Candidates
from policies.verdict import Effect, PolicyUnavailable

NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
META = {
    "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def grant(scopes: frozenset[str], implies: Implications) -> frozenset[str]:
    """The scopes that a token grants: its own, and those that they imply."""
    return scopes | {scope for scope, granters in implies.items() if not granters.isdisjoint(scopes)}


def person_of(identity: Identity, implies: Implications) -> Person:
    """A verified caller of the approvals API, as the desk knows people."""
    return Person(
        issuer=identity.issuer,
        subject=identity.subject,
        client=identity.client_id,
        scopes=grant(identity.scopes, implies),
        groups=identity.groups,
        claims=identity.claims,
        tenant=identity.tenant,
    )


class Foresight:
    """Plans a call for a person who wants an approval before making it."""

    def __init__(self, corridor: Corridor, servers: Mapping[str, Server]) -> None:
        self._corridor = corridor
        self._servers = {server.name: server for server in servers.values()}

    async def plan(
        self,
        person: Person,
        server_name: str,
        method: str,
        name: str,
        arguments: Mapping[str, Any],
        *,
        vary: Mapping[str, Any] | None = None,
    ) -> tuple[Asked, Terms, Sequence[str], Sequence[str]]:
        """The effect that the call would have, and the policy's terms for it; with `vary` those of a grant, which has
        no arguments.

        Raises `Refused(POLICY_DENIED)` for a server, a tool or a call that the person would be denied,
        `Unapprovable` where no approval is needed or no grant is given, and what the policy and the upstream raise.
        """
        server, identity = self._ask_as(person, server_name)
        params = {"_meta": META, NAMED_BY[method]: name}
        if method != "resources/read":
            params["arguments"] = arguments
        call = _call(server, method, params, (b"mcp-name", encode_value(name)))
        if vary is not None:
            return await self._plan_grant(server, identity, call, vary)
        tool, verdict = await self._corridor.judge(server, identity, call)
        check_verdict(call, verdict)
        if tool is not None:  # as the client will send it
            call = replace(call, param_headers=mirror(tool.bindings, call.arguments))
        try:
            check_call(call, tool)
        except Refused as refused:
            if refused.refusal is not Refusal.ARGUMENTS_INVALID:
                raise
            # Here a person asks, no model calls: what a call would be told as its result is an error.
            raise Refused(Refusal.PARAMS_INVALID, refused.detail, message=refused.message) from None
        await self._corridor.catalog.hold(server, call)
        if verdict.effect is not Effect.APPROVE:
            raise Unapprovable("this call needs no approval")
        terms = read_terms(verdict)
        effect = describe_effect(identity, server, call, tool, self._corridor.volatile_meta)
        return effect, terms, verdict.reasons, verdict.mask

    async def _plan_grant(
        self, server: Server, identity: Identity, call: Call, vary: Mapping[str, Any]
    ) -> tuple[Asked, Terms, Sequence[str], Sequence[str]]:
        grants = self._corridor.grants
        try:
            await grants.contract(vary, closed=True)
        except Unusable as fault:
            raise Refused(Refusal.PARAMS_INVALID, f"vary: {fault}", message=f"vary can't be used: {fault}.") from None
        tool, verdict = await self._corridor.judge(server, identity, call, grant=vary)
        check_verdict(call, verdict)
        tool = check_offered(tool)
        bounds = None if verdict.approval is None else verdict.approval.grant
        if verdict.effect is not Effect.APPROVE or bounds is None:
            raise Unapprovable("the policy gives no grant of this tool")
        try:
            await grants.contract(bounds, closed=False)
        except Unusable as fault:
            raise PolicyUnavailable(f"the policy's answer is malformed: `approval.grant.schema`: {fault}") from None
        effect = describe_grant(identity, server, call, tool, {"schema": vary, "bounds": bounds})
        return effect, read_terms(verdict), verdict.reasons, verdict.mask

    def servers(self, person: Person) -> Sequence[tuple[str, str]]:
        """(name, environment) of the servers that take this person's issuer, in the configuration's order."""
        return [(one.name, one.environment) for one in self._servers.values() if person.issuer in one.issuers]

    async def tools(self, person: Person, server_name: str) -> Sequence[Offer]:
        """The tools that this person would find in the server's list, in its order. Raises like `plan`."""
        server, identity = self._ask_as(person, server_name)
        corridor = self._corridor
        usable = {name: tool for name, tool in (await corridor.catalog.whole(server)).items() if not tool.quarantine}
        offered = [{**tool.definition, "id": name, "pinned": tool.pinned} for name, tool in usable.items()]
        call = _call(server, "tools/list", {"_meta": META})
        question = policy_input("list", server, identity, call, None, Candidates(offered))
        verdict = await corridor.policy.judge(question)
        visible = frozenset(verdict.visible) if verdict.effect is Effect.ALLOW else frozenset[str]()
        return [_offer(tool) for name, tool in usable.items() if name in visible]

    def _ask_as(self, person: Person, server_name: str) -> tuple[Server, Identity]:
        """The server, and the person as its caller. Raises `Refused(POLICY_DENIED)`."""
        server = self._servers.get(server_name)
        if server is None or person.issuer not in server.issuers:
            raise Refused(Refusal.POLICY_DENIED, "no such server for this issuer")
        identity = Identity(
            issuer=person.issuer,
            subject=person.subject,
            client_id=person.client,
            tenant=person.tenant,
            scopes=person.scopes,
            groups=person.groups,
            claims=person.claims,
        )
        return server, identity


def _call(server: Server, method: str, params: Mapping[str, Any], *headers: tuple[bytes, bytes]) -> Call:
    """Read as if it had come over the wire: the same strictness, and the same form of everything that is bound."""
    envelope = parse_envelope(orjson.dumps({"jsonrpc": "2.0", "id": 0, "method": method, "params": params}))
    lines = ((b"mcp-protocol-version", PROTOCOL_VERSION.encode()), (b"mcp-method", method.encode()), *headers)
    return match_headers(Received(server, "POST", server.path, lines), envelope)


def _offer(tool: Tool) -> Offer:
    said = described(tool.definition)
    title, description = said.get("title", ""), said.get("description", "")
    return Offer(tool.name, title, description, tool.definition.get("inputSchema", {}))
