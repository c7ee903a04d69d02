"""Passage -> audit record: what is written down of a request, and nothing else (design.md, "Audit line").

Every record has the same members, `null` where there is nothing to say. No token, cookie, query or header value has a
way in: only verified claims, configured names, the policy's answer and redacted arguments are read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from approvals.ticket import Asked, Claimed, Held, Transition
from gateway.contract.chain import ZERO, Chain, Checkpoint, Finding, chain, verify_chain
from gateway.contract.passage import Identity, Passage, RequestId
from gateway.contract.printable import printable, remark
from gateway.contract.redaction import AuditKeys, Redactor

__all__ = [
    "ZERO",
    "AuditKeys",
    "Chain",
    "Checkpoint",
    "Finding",
    "Redactor",
    "admin_record",
    "approval_record",
    "chain",
    "closing_outcome",
    "decision_record",
    "log_fields",
    "outcome_record",
    "refusal_record",
    "verify_chain",
]

MAX_STRANGE_NAME: Final = 128
"""Characters of a name that no server offers, escapes included."""

MAX_NAME: Final = 512
MAX_ACTOR: Final = 256
_SAFE_INTEGER = 2**53 - 1
_SHORT: Final = 12
"""Characters of a text that has no secret's shape, an address aside."""

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NOTHING: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("actor", "arguments", "arguments_hmac", "code")),
    "count": 1,
    **dict.fromkeys(
        ("decision_id", "detail", "environment", "key_id", "kind", "latency_ms", "legacy", "method", "name")
    ),
    **dict.fromkeys(("outcome", "policy_revision", "quirks", "reasons", "replica", "request_id", "resource")),
    **dict.fromkeys(("result_hmac", "server", "status", "task", "ticket", "trace_id", "verdict")),
}
"""In the order in which a line has them: what is sorted already is sorted in half the time."""
_OF_SOME: Final = (
    "leg", "answers_ticket", "upstream_revision", "challenge", "disclosed", "retries", "idempotency_key", "replay_of",
)  # fmt: skip
"""What only some records hold: of a request that goes on with an earlier one; to a server of an earlier revision; of
a call that waits for a person, how its caller was told so; that the caller was told the policy's reasons; how often
the request was sent again; the HMAC of the key that it came under, and the decision by which a call under that key
ran before."""

_LOGGED = (
    "kind", "decision_id", "request_id", "trace_id", "server", "replica", "method", "name", "verdict", "reasons",
    "policy_revision", "ticket", "status", "code", "latency_ms", "outcome", "detail", "legacy", "quirks",
    "task", "upstream_revision", "retries", "replay_of",
)  # fmt: skip


def decision_record(passage: Passage, redactor: Redactor) -> dict[str, Any]:
    """What was decided about a request that is about to be forwarded."""
    record = _walked("decision", passage, redactor)
    if passage.verdict is not None:
        record["reasons"] = _names(passage.verdict.reasons)
    _asked_for(record, passage, redactor)
    return record


def outcome_record(passage: Passage, redactor: Redactor) -> dict[str, Any]:
    """How a forwarded request ended: `outcome`, status, result; a refusal on the way back is its reason."""
    record = (
        _went_on(passage.decided, passage, redactor) if passage.decided else _walked("outcome", passage, redactor)
    )
    record["outcome"] = passage.outcome or "unknown"
    record["status"] = passage.status or None
    record["code"] = passage.code or None
    record["latency_ms"] = _milliseconds(passage.latency_s)
    record["result_hmac"] = redactor.result(passage.result_digest)
    if passage.retries:
        record["retries"] = passage.retries
    if passage.refused is not None:
        record["reasons"] = [passage.refused.refusal.reason]
        record["detail"] = remark(passage.refused.detail)
    elif passage.ended:
        record["reasons"] = [passage.ended]
    return record


def refusal_record(passage: Passage, redactor: Redactor) -> dict[str, Any]:
    """Why a request went no further, whichever room refused it. The first reason is the refusal's own name."""
    record = _walked("refusal", passage, redactor)
    refused = passage.refused
    reasons: list[str] = []
    if refused is not None:
        row = refused.refusal.value
        reasons.append(refused.refusal.reason)
        record["detail"] = remark(refused.detail)
        record["status"] = passage.status or row.status
        record["code"] = passage.code or row.code
        if "reasons" in refused.data:
            record["disclosed"] = True
    if isinstance(passage.settled, Held):
        reasons.append(passage.settled.why)
    if passage.verdict is not None:
        reasons += passage.verdict.reasons
    record["reasons"] = _names(reasons)
    record["latency_ms"] = _milliseconds(passage.latency_s)
    if passage.envelope is not None and passage.identity is not None:
        _asked_for(record, passage, redactor)
    return record


def approval_record(transition: Transition, redactor: Redactor, decision_id: str | None = None) -> dict[str, Any]:
    """A ticket or one of its uses moved: `transition`, `by` whom, and `seen`, the digest of what they saw.

    `actor` is who moved it, `requester` whose call it is. A person's comment stays in the store, here is its HMAC;
    why the gateway itself moved it (`tool_changed`, say) is the `detail`.
    """
    ticket = transition.ticket
    asked = ticket.asked
    # An issuer's URL holds no bar, a subject may; whoever has none is the gateway or a local administrator.
    issuer, _, subject = transition.by.partition("|") if "|" in transition.by else ("", "", transition.by)
    record = _blank("approval", redactor.key_id)
    record |= {
        "decision_id": decision_id,
        "actor": _actor(issuer, subject, ""),
        "requester": _actor(asked.issuer, asked.subject, asked.client, asked.tenant),
        "server": asked.server,
        "resource": asked.resource,
        "environment": asked.environment,
        "method": printable(asked.method, MAX_STRANGE_NAME),
        "name": _asked_name(asked, redactor),
        "reasons": _names(ticket.reasons),
        "ticket": printable(ticket.id, MAX_STRANGE_NAME),
        "ticket_state": ticket.state.value,
        "transition": transition.verb,
        "by": printable(transition.by, 2 * MAX_ACTOR),
        "seen": printable(transition.seen, MAX_STRANGE_NAME) or None,
        "use": printable(transition.use_id, MAX_STRANGE_NAME) or None,
        "leg": transition.leg if transition.use_id else None,
        # The digest itself would confirm a guess at the arguments: all its other parts stand in this record.
        "effect_hmac": redactor.tag(b"effect", asked.digest.encode("ascii")),
        "tool_digest": asked.tool_digest,
        "comment_hmac": redactor.tag(b"comment", transition.comment.encode("utf-8", "surrogatepass"))
        if transition.comment
        else None,
        "detail": remark(transition.comment) if transition.by == "ostiary" and transition.comment else None,
    }
    return record


def admin_record(
    act: str, by: str = "ostiary", facts: Mapping[str, Any] | None = None, *, decision_id: str | None = None
) -> dict[str, Any]:
    """Something that the house (`ostiary`) or its administrator (`local:UID@HOST`) did: `act` is its stable name.

    `facts` are few and small: numbers, booleans and texts of the house itself, never a caller's data.
    """
    record = _blank("admin", None)
    record["act"] = printable(act, 64)
    record["actor"] = _actor("", by, "")
    record["by"] = printable(by, 2 * MAX_ACTOR)
    record["decision_id"] = decision_id
    record["facts"] = {printable(name, 64): _fact(value) for name, value in (facts or {}).items()}
    return record


def closing_outcome(decision_id: str, decision: Mapping[str, Any], outcome: str, reason: str) -> dict[str, Any]:
    """The end of a request that nobody saw ending, from its decision's record (empty where only the id is known)."""
    record = _blank("outcome", None)
    record |= {name: value for name, value in decision.items() if name in record or name in _OF_SOME}
    record |= {"kind": "outcome", "decision_id": decision_id, "outcome": outcome, "reasons": [reason]}
    record |= {"arguments": None, "arguments_hmac": None}
    return record


def log_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """The same projection for the canonical log line: flat, without arguments, HMACs and what is not there."""
    fields = {name: value for name in _LOGGED if (value := record.get(name)) or value == 0}
    actor = record.get("actor")
    if actor:
        fields["issuer"], fields["subject"], fields["client"] = actor["issuer"], actor["subject"], actor["client"]
    return fields


def _blank(kind: str, key_id: str | None) -> dict[str, Any]:
    return {**_NOTHING, "kind": kind, "key_id": key_id, "reasons": []}


def _walked(kind: str, passage: Passage, redactor: Redactor) -> dict[str, Any]:
    """What every record of a request says, as far as it walked."""
    record = {**_NOTHING, "kind": kind, "key_id": redactor.key_id, "reasons": []}
    record["decision_id"] = passage.decision_id
    if passage.trace_id:
        record["trace_id"] = printable(passage.trace_id, 64)
    server = passage.server
    if server is not None:
        record["server"] = server.name
        record["resource"] = server.resource
        record["environment"] = server.environment
        if server.past:
            record["upstream_revision"] = server.past
    identity = passage.identity
    if identity is not None:
        record["actor"] = identity.once(_caller)
    envelope = passage.envelope
    if envelope is not None:
        record["request_id"] = _request_id(envelope.id)
        record["method"] = printable(envelope.method, MAX_STRANGE_NAME)
        record["name"] = _name(passage, redactor)
    elif passage.refused is not None:
        record["request_id"] = _request_id(passage.refused.request_id)
    heard = passage.heard
    if heard is not None:
        record["legacy"] = heard.spoken.version if heard.spoken else None
        record["quirks"] = [quirk.value for quirk in heard.quirks] or None
    if passage.verdict is not None:
        record["verdict"] = passage.verdict.effect.value
        record["policy_revision"] = printable(passage.verdict.revision, MAX_STRANGE_NAME)
    _ran_under(record, passage)
    if passage.key:
        record["idempotency_key"] = redactor.tag(b"idempotency key", passage.key.encode("ascii"))
    if passage.replay_of:
        record["replay_of"] = passage.replay_of
    _led_to(record, passage, redactor)
    return record


def _went_on(decided: Mapping[str, Any], passage: Passage, redactor: Redactor) -> dict[str, Any]:
    """The same of a request whose decision was recorded: since then only where it went and its task are news."""
    record = {**decided, "kind": "outcome", "reasons": [], "arguments": None, "arguments_hmac": None}
    _led_to(record, passage, redactor)
    return record


def _led_to(record: dict[str, Any], passage: Passage, redactor: Redactor) -> None:
    if passage.replica:
        record["replica"] = printable(redactor.replica(passage.replica), MAX_ACTOR)
    task, server = passage.task, passage.server
    if task is not None and server is not None:
        record["task"] = redactor.tag(b"task", orjson.dumps([server.name, task.errand or task.id]))
        record["ticket"] = record["ticket"] or task.ticket or None


def _ran_under(record: dict[str, Any], passage: Passage) -> None:
    """The ticket, and which leg of a conversation this is: a request that begins one has no such member."""
    opened, settled = passage.opened_state, passage.settled
    if passage.challenge:
        record["challenge"] = passage.challenge
    if opened is not None and opened.leg:
        record["leg"] = opened.leg
        if opened.use is not None:
            record["ticket"] = opened.use.ticket_id
    if isinstance(settled, Claimed):
        record["ticket"] = settled.ticket_id
        if settled.answers is not None:
            record["answers_ticket"] = settled.answers.ticket_id
    elif isinstance(settled, Held):
        of_the_answers = record["ticket"] not in {None, settled.ticket.id}
        record["answers_ticket" if of_the_answers else "ticket"] = settled.ticket.id
    elif passage.waits is not None:
        of_the_answers = record["ticket"] not in {None, passage.waits.ticket_id}
        record["answers_ticket" if of_the_answers else "ticket"] = passage.waits.ticket_id


def _asked_for(record: dict[str, Any], passage: Passage, redactor: Redactor) -> None:
    """The arguments as a shape, and the HMAC of their whole; those of a request about a task are what it is given."""
    if passage.call is not None:
        given = passage.call.input_responses if passage.call.kind == "task" else None
        arguments: Any = passage.call.arguments if given is None else {"inputResponses": given}
    else:
        arguments = passage.envelope.params.get("arguments") if passage.envelope else None
    if not isinstance(arguments, dict):
        return
    verdict, tool = passage.verdict, passage.tool
    record["arguments_hmac"] = redactor.whole(arguments)
    record["arguments"] = redactor.shape(
        arguments,
        verdict.clear if verdict else (),
        verdict.mask if verdict else (),
        (tool.digest, tool.definition) if tool else None,
    )


def _name(passage: Passage, redactor: Redactor) -> str | None:
    """The tool's or prompt's name or the resource's URI; cut short unless a server offers it or it was admitted."""
    call = passage.call
    if call is not None:
        name, is_uri = call.name, call.kind == "resource"
    else:
        params = passage.envelope.params if passage.envelope else {}
        name, is_uri = params.get("name"), False
        if not isinstance(name, str):
            name, is_uri = params.get("uri"), True
    if not isinstance(name, str):
        return None
    known = passage.tool is not None or passage.admitted is not None
    if is_uri:
        return remark(redactor.uri(name), MAX_NAME if known else MAX_STRANGE_NAME)
    return printable(name, MAX_NAME) if known else remark(name, MAX_STRANGE_NAME)


def _asked_name(asked: Asked, redactor: Redactor) -> str:
    if asked.method == "resources/read":
        return remark(redactor.uri(asked.name), MAX_NAME)
    return printable(asked.name, MAX_NAME)


def _caller(identity: Identity) -> Mapping[str, str]:
    return _actor(identity.issuer, identity.subject, identity.client_id, identity.tenant)


def _actor(issuer: str, subject: str, client: str, tenant: str = "") -> dict[str, str]:
    return {
        **({"tenant": printable(tenant, MAX_ACTOR)} if tenant else {}),
        "issuer": printable(issuer, MAX_ACTOR),
        "subject": printable(subject, MAX_ACTOR),
        "client": printable(client, MAX_ACTOR),
    }


def _request_id(value: RequestId | None) -> RequestId | None:
    if isinstance(value, str):
        plain = _UUID.fullmatch(value) or (len(value) < _SHORT and "@" not in value)
        return printable(value, MAX_STRANGE_NAME) if plain else remark(value, MAX_STRANGE_NAME)
    # RFC 8785 knows integers up to 2^53 - 1; larger ones are kept as their digits.
    return str(value) if value is not None and abs(value) > _SAFE_INTEGER else value


def _milliseconds(seconds: float) -> int | float:
    """Milliseconds to three decimals; whole numbers as integers, because RFC 8785 writes them without `.0`."""
    micros = max(0, min(round(seconds * 1e6), _SAFE_INTEGER))
    return micros // 1000 if not micros % 1000 else micros / 1000


def _names(names: Sequence[str]) -> list[str]:
    return [printable(name, 64) for name in names[:16]]


def _fact(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_fact(item) for item in value[:512]]
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) <= _SAFE_INTEGER):
        return value
    return printable(str(value), 256)
