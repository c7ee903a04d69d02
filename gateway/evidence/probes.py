"""Each way to be refused that can be brought about from outside: one request with one thing wrong, and its row.

A probe is asked between two good calls, so that it can't be refused for another reason and breaks nothing. The rows
that no caller can bring about are named beside it with the reason; a test holds both to the table of refusals.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.contract.refusals import Refusal
from gateway.evidence.site import Site
from gateway.evidence.wire import Request, ask

STRANGE: Final = "no-such-thing"


@dataclass(frozen=True, slots=True)
class Probe:
    """`spoil` makes the request. The rest is the check's (checks.py)."""

    group: str
    name: str
    row: Refusal
    rule: str
    asked: str
    spoil: Callable[[Site], Request]

    @property
    def file(self) -> str:
        """Its transcript."""
        return f"{self.group}/{self.name}.json"


def _version(site: Site) -> Request:
    good = site.read()
    document = good.document()
    document["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "v999.0.0"
    return good.with_headers(MCP_Protocol_Version="v999.0.0").with_body(json.dumps(document).encode())


def _audience(site: Site) -> Request:
    plan = site.plan
    called = {"name": plan.gated, "arguments": dict(plan.gated_arguments)}
    return ask(site.endpoint(plan.gated_server), site.token("caller"), "tools/call", called)


def _forged(site: Site) -> Request:
    head, _, signature = site.token("caller").rpartition(".")
    turned = signature[:-8] + signature[-8:].swapcase()[::-1]
    return site.read().with_headers(Authorization=f"Bearer {head}.{turned}")


def _elsewhere(site: Site) -> Request:
    good = site.read()
    return Request(good.verb, f"{site.url}/{STRANGE}/mcp", good.headers, good.body)


def _get(site: Site) -> Request:
    good = site.read()
    return Request("GET", good.url, good.headers)


def _changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Site], Request]:
    """A good call whose body is another value."""

    def spoil(site: Site) -> Request:
        good = site.read()
        return good.with_body(json.dumps(change(good.document())).encode())

    return spoil


def _headed(**changes: str | None) -> Callable[[Site], Request]:
    """A good call with other headers."""
    return lambda site: site.read().with_headers(**changes)


def _twice(site: Site) -> Request:
    good = site.read()
    return good.with_body(good.body[:-1] + b', "method": "tools/list"}')


def _unlisted(site: Site) -> Request:
    url = site.endpoint(site.plan.server)
    return ask(url, site.token("caller"), "tools/call", {"name": STRANGE, "arguments": {}})


def _task(site: Site) -> Request:
    return ask(site.endpoint(site.plan.server), site.token("caller"), "tasks/get", {"taskId": STRANGE})


def _method(site: Site) -> Request:
    return ask(site.endpoint(site.plan.server), site.token("caller"), f"{STRANGE}/method", {})


PROBES: Final = (
    Probe("wire", "wrong_version", Refusal.VERSION_UNSUPPORTED, "RPC-05", "A call of version v999.0.0", _version),
    Probe(
        "wire",
        "header_mismatch",
        Refusal.HEADER_MISMATCH,
        "HDR-02",
        "A call whose Mcp-Name is not the name in its body",
        _headed(Mcp_Name=STRANGE),
    ),
    Probe(
        "wire",
        "missing_scope",
        Refusal.SCOPE_INSUFFICIENT,
        "JWT-09",
        "The gated call, with a token that lacks its scope",
        lambda site: site.gated("narrow caller"),
    ),
    Probe(
        "wire", "wrong_audience", Refusal.TOKEN_INVALID, "JWT-05", "A call with a token for another server", _audience
    ),
    Probe(
        "wire",
        "malformed_arguments",
        Refusal.ARGUMENTS_INVALID,
        "docs/arguments.md",
        "A call whose arguments do not fit the tool's schema",
        lambda site: site.read(site.plan.malformed),
    ),
    Probe(
        "authorization",
        "no_token",
        Refusal.TOKEN_MISSING,
        "JWT-01",
        "A call without a token",
        _headed(Authorization=None),
    ),
    Probe(
        "authorization", "forged_token", Refusal.TOKEN_INVALID, "JWT-02", "A token with another signature", _forged
    ),
    Probe(
        "authorization", "unknown_server", Refusal.SERVER_UNKNOWN, "FRM-06", "A path that serves nothing", _elsewhere
    ),
    Probe("authorization", "get", Refusal.METHOD_NOT_POST, "FRM-06", "GET instead of POST", _get),
    Probe(
        "authorization",
        "foreign_host",
        Refusal.HOST_FORBIDDEN,
        "ORG-03",
        "Another Host",
        _headed(Host="host.example"),
    ),
    Probe(
        "authorization",
        "foreign_origin",
        Refusal.ORIGIN_FORBIDDEN,
        "ORG-01",
        "An Origin that is not allowed",
        _headed(Origin="https://origin.example"),
    ),
    Probe(
        "authorization",
        "large_head",
        Refusal.HEAD_TOO_LARGE,
        "FRM-09",
        "A head of more than a thousand lines",
        _headed(**{f"X_Line_{at}": "1" for at in range(1100)}),
    ),
    Probe(
        "authorization",
        "wrong_accept",
        Refusal.ACCEPT_UNSUPPORTED,
        "docs/protocol.md",
        "An Accept without event streams",
        _headed(Accept="application/json"),
    ),
    Probe(
        "authorization",
        "wrong_media_type",
        Refusal.CONTENT_UNSUPPORTED,
        "FRM-07",
        "A body that says it is text/plain",
        _headed(Content_Type="text/plain"),
    ),
    Probe(
        "authorization",
        "not_json",
        Refusal.BODY_NOT_JSON,
        "JSN-05",
        "A body that is no JSON",
        lambda site: site.read().with_body(b'{"jsonrpc": "2.0", "id": NaN'),
    ),
    Probe("authorization", "two_readings", Refusal.BODY_AMBIGUOUS, "JSN-01", "A member of the body twice", _twice),
    Probe(
        "authorization", "batch", Refusal.ENVELOPE_INVALID, "RPC-01", "A batch", _changed(lambda told: [told, told])
    ),
    Probe(
        "authorization",
        "no_metadata",
        Refusal.META_MISSING,
        "RPC-04",
        "A call without the metadata of the revision",
        _changed(lambda told: told | {"params": told["params"] | {"_meta": {}}}),
    ),
    Probe(
        "authorization",
        "wrong_params",
        Refusal.PARAMS_INVALID,
        "RPC-03",
        "Arguments that are a list",
        _changed(lambda told: told | {"params": told["params"] | {"arguments": []}}),
    ),
    Probe(
        "authorization", "unknown_method", Refusal.METHOD_UNKNOWN, "RPC-06", "A method that does not exist", _method
    ),
    Probe(
        "authorization",
        "missing_capability",
        Refusal.CAPABILITY_MISSING,
        "docs/tasks.md",
        "A task, without the capability for tasks",
        _task,
    ),
    Probe(
        "authorization",
        "made_up_state",
        Refusal.STATE_NOT_ACCEPTED,
        "APR-11",
        "A requestState that nobody sealed",
        _changed(lambda told: told | {"params": told["params"] | {"requestState": "AAAA"}}),
    ),
    Probe(
        "authorization",
        "wrong_key",
        Refusal.IDEMPOTENCY_KEY_INVALID,
        "docs/idempotency.md",
        "An idempotency key that is none",
        _headed(Idempotency_Key="one, two"),
    ),
    Probe(
        "authorization",
        "unlisted_tool",
        Refusal.POLICY_DENIED,
        "AZ-05",
        "A tool that the policy does not list",
        _unlisted,
    ),
)
"""Asked one by one, each between two good calls."""

TOLD_ELSEWHERE: Final[Mapping[Refusal, str]] = {
    Refusal.APPROVAL_REQUIRED: "authorization/approved_call.json",
    Refusal.APPROVAL_REFUSED: "authorization/approved_call.json",
    Refusal.UPSTREAM_UNREACHABLE: "scale/sent_once.json",
    Refusal.IDEMPOTENCY_UNKNOWN: "scale/sent_once.json",
    Refusal.IDEMPOTENCY_CONFLICT: "scale/repeated.json",
}
"""Rows that belong to a longer story, and its transcript."""

NOT_ASKED: Final[Mapping[Refusal, str]] = {
    Refusal.REQUEST_MALFORMED: "an HTTP client that keeps to the rules can't send it",
    Refusal.BODY_TOO_LARGE: "it would send megabytes to a deployment that is in use",
    Refusal.REQUEST_TIMEOUT: "it takes as long as the deadline",
    Refusal.RATE_LIMITED: "it would use up a caller's allowance",
    Refusal.CALLER_BUSY: "it would take up all of a caller's room",
    **dict.fromkeys(
        (
            Refusal.IDEMPOTENCY_IN_FLIGHT,
            Refusal.IDEMPOTENCY_NOT_KEPT,
            Refusal.IDEMPOTENCY_ASKED,
        ),
        "a server would have to answer late, at length, or with a question",
    ),
    Refusal.TASK_UNKNOWN: "only where a server has tasks",
    Refusal.TOOL_QUARANTINED: "a server would have to change its definitions",
    Refusal.SESSION_MISMATCH: "only where clients of earlier revisions are served",
    Refusal.SESSION_UNKNOWN: "only where clients of earlier revisions are served",
    Refusal.REVISION_REQUIRED: "only where clients of earlier revisions are served",
    Refusal.SIGN_IN_REFUSED: "it is of the pages for people",
    Refusal.SIGN_IN_UNAVAILABLE: "the identity provider would have to fail",
    Refusal.KEYS_UNAVAILABLE: "the issuer would have to fail",
    Refusal.POLICY_UNAVAILABLE: "the policy engine would have to fail",
    Refusal.APPROVALS_UNAVAILABLE: "the database would have to fail",
    Refusal.AUDIT_UNAVAILABLE: "the audit's disk would have to fail",
    Refusal.OVERLOADED: "the deployment would have to be overloaded",
    Refusal.UPSTREAM_INVALID: "a replica would have to answer what is no answer",
    Refusal.UPSTREAM_TIMEOUT: "it takes as long as the deadline",
    Refusal.CLIENT_GONE: "whoever went away sees no answer; scale and wire show what follows",
    Refusal.INTERNAL_ERROR: "the gateway would have to fail",
}
"""Rows that no caller can bring about without harm, and why; tests/rows runs each of them."""
