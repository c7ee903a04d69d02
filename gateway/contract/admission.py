"""What the policy is asked, and `admit()`: the only maker of `Admitted`.

The policy's question is built from verified claims and the judged body alone: no token, no self-reported client name,
no header. What was judged is what is sent: an allowed call leaves as the very bytes that came in, a gated one with
its arguments in the canonical text that was digested and approved (design.md; rules G3, G6, G7).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeGuard

import orjson

from approvals.ticket import Claimed, Held
from gateway.contract.bindings import mirror_anew
from gateway.contract.fingerprint import bound_meta, effect_text
from gateway.contract.headers import PROTOCOL_VERSION, encode_value
from gateway.contract.methods import METHODS, REMOVED
from gateway.contract.passage import (
    NO_TASKS,
    Admitted,
    Call,
    Identity,
    OpenedState,
    OpenedTasks,
    Passage,
    Received,
    Server,
    Task,
    Tool,
)
from gateway.contract.repeating import is_repeatable
from gateway.contract.tracing import meta_of, retrace
from policies.question import Candidates, Question
from policies.verdict import Effect

_FIXED = (
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
    (b"mcp-protocol-version", PROTOCOL_VERSION.encode()),
)


class RoomSkipped(Exception):  # noqa: N818 - what happened; a defect of the corridor, never a caller's fault
    """`admit` was asked for a call that has not passed every room. Nothing is admitted."""


def policy_input(  # noqa: PLR0917 - in the order in which the corridor learns them
    phase: Literal["call", "list"],
    server: Server,
    identity: Identity,
    call: Call,
    tool: Tool | None,
    candidates: Candidates | None = None,
    tasks: OpenedTasks = NO_TASKS,
    opened: OpenedState | None = None,
    grant: Mapping[str, Any] | None = None,
) -> Question:
    """The input document of one evaluation (design.md, "What a policy is asked").

    `request.leg` and `request.approved` are the seal's word and never the caller's: 0 for a first request, n for one
    that answers the n-th `input_required` result (1 for the answers to a task, whose handle is a seal as well); and
    whether the conversation runs under a person's approval. `request.tasks` are the tasks that the request names: the
    id as the caller holds it, the tool that made it (`null`: the caller has no such task, and whatever the policy
    answers, the request goes no further), whether an approved call did; `held` stands there, true, only where the
    task is a held call that its server knows nothing of. `candidates` are what a list offers; the member is there in
    the list phase only. `request.grant` is `{schema}` where a grant is asked for, without arguments, and
    where a call would run under one; else there is no such member.
    """
    told = b"null" if tool is None else tool.once(_tell_tool)
    facts = b'{"phase":"%b","server":%b,"subject":%b,"tool":%b' % (
        phase.encode(), server.once(_tell_server), identity.once(_tell_subject), told,
    )  # fmt: skip
    request: dict[str, Any] = {
        "method": call.method,
        "kind": call.kind,
        "name": call.name,
        "input_responses": call.input_responses,
        "tasks": [_task(*named) for named in zip(call.task_ids, tasks.found, strict=True)] if call.task_ids else (),
        "leg": int(call.kind == "task" and call.input_responses is not None) if opened is None else opened.leg,
        "approved": opened is not None and opened.use is not None,
    }
    if grant is not None:
        request["grant"] = {"schema": grant}
    begins = opened is None and grant is None and call.input_responses is None and not (call.goes_on or call.task_ids)
    return Question(facts, request, call.arguments, begins=begins, candidates=candidates)


def _tell_server(server: Server) -> bytes:
    return orjson.dumps({"name": server.name, "resource": server.resource, "environment": server.environment})


def _tell_subject(identity: Identity) -> bytes:
    return orjson.dumps(
        {
            "issuer": identity.issuer,
            "id": identity.subject,
            "client_id": identity.client_id,
            "tenant": identity.tenant,
            "scopes": sorted(identity.scopes),
            "claims": identity.claims,
        },
        default=dict,
    )


def _tell_tool(tool: Tool) -> bytes:
    told = {"annotations": tool.annotations, "digest": tool.digest, "pinned": tool.pinned}
    return orjson.dumps(told, default=dict)


def _task(handle: str, task: Task | None) -> dict[str, Any]:
    if task is None:
        return {"id": handle, "tool": None, "approved": False}
    if task.held:
        return {"id": handle, "tool": task.tool, "approved": False, "held": True}
    return {"id": handle, "tool": task.tool, "approved": bool(task.ticket)}


def admit(passage: Passage, *, volatile_meta: frozenset[str] = frozenset()) -> Admitted:
    """Proof that the call passed every room, with exactly what goes upstream.

    A gated call (an approval's use was consumed for it) leaves with the digested texts and without the `_meta` keys
    named in `volatile_meta`; a call that continues a sealed `requestState` leaves with the opened one, a request that
    names tasks with the server's own ids of them, and none with what the revision removed. Raises `RoomSkipped` where
    a fact is missing or does not belong to the others.
    """
    received, identity, call, use = _passed(passage)
    params = call.param_headers
    found = passage.tasks.found
    tasks = tuple(task for task in found if task is not None) if found else ()
    surplus = REMOVED.get(call.method) in call.envelope.params
    span, trace, meta = passage.span, passage.trace, call.envelope.meta
    if span is not None:
        meta = meta_of(span, trace, meta) if span.sampled else meta
        trace = span.outgoing(trace)
    if use is None and passage.opened_state is None and not tasks and not surplus:
        body = call.envelope.raw if span is None else retrace(call.envelope.raw, call.envelope.params, meta)
    else:
        body = _rewrite(call, passage.opened_state, tasks, meta, gated=use is not None, volatile_meta=volatile_meta)
        if passage.tool is not None and passage.tool.bindings:
            params = mirror_anew(passage.tool.bindings, call.arguments, params)
    headers = _outgoing(call, tasks) + params + trace
    again = is_repeatable(received.server, call, passage.tool, once=use is not None or bool(passage.key))
    return Admitted(passage.decision_id, received.server, identity, call, body, headers, use, tasks, again)


def _passed(passage: Passage) -> tuple[Received, Identity, Call, Claimed | None]:
    """The facts that admission stands on, or `RoomSkipped` naming the room that left none."""
    received, call, verdict, settled = passage.received, passage.call, passage.verdict, passage.settled
    identity = passage.identity
    if received is None or received.server is not passage.server:
        raise RoomSkipped("receive")
    if identity is None or not identity.subject:
        raise RoomSkipped("identify")
    if passage.spoken is not None and not received.server.legacy_clients:
        raise RoomSkipped("hear")
    if call is None or call.envelope is not passage.envelope:
        raise RoomSkipped("match_headers")
    if call.method not in METHODS and call.method not in received.server.methods:
        raise RoomSkipped("match_headers")
    if passage.refused is not None or passage.admitted is not None:
        raise RoomSkipped("the walk is over")
    if call.kind == "tool" and (passage.tool is None or passage.tool.name != call.name):
        raise RoomSkipped("look_up")
    if passage.tool is not None and passage.tool.quarantine:
        raise RoomSkipped("check_call")
    opened = passage.opened_state
    # Answers without a state are part of an allowed call; no person's yes covers them.
    if (opened is None) is not (call.request_state is None) or (
        opened is None and call.goes_on and settled is not None
    ):
        raise RoomSkipped("open_state")
    found = passage.tasks.found
    if (found or call.task_ids) and tuple(task and task.handle for task in found) != call.task_ids:
        raise RoomSkipped("open_tasks")
    if verdict is None or not _is_settled(settled, verdict.effect, None if opened is None else opened.use):
        raise RoomSkipped("judge and settle")
    if settled is not None and call.name is None:
        raise RoomSkipped("judge and settle")
    return received, identity, call, settled


def _is_settled(settled: Claimed | Held | None, effect: Effect, waiting: Claimed | None) -> TypeGuard[Claimed | None]:
    """Whether this verdict was met: nothing consumed for an allow, a use for an approve.

    Of a call that runs under an approval (`waiting` is its use, as the seal names it) the very leg must have been
    continued, whatever the verdict; and its answers approved as well where that asks for it.
    """
    if waiting is not None:
        return (
            effect is not Effect.DENY
            and isinstance(settled, Claimed)
            and (settled.ticket_id, settled.use_id, settled.leg) == (waiting.ticket_id, waiting.use_id, waiting.leg)
            and (settled.answers is not None) is (effect is Effect.APPROVE)
        )
    if effect is Effect.ALLOW:
        return settled is None
    return effect is Effect.APPROVE and isinstance(settled, Claimed) and settled.answers is None


def _rewrite(
    call: Call,
    opened: OpenedState | None,
    tasks: tuple[Task, ...],
    meta: Mapping[str, Any],
    *,
    gated: bool,
    volatile_meta: frozenset[str],
) -> bytes:
    """The body anew, from the judged values: what was sealed is replaced by what is in it, gated parts canonical.

    `meta` is the request's, but for the trace.
    """
    gone = ("requestState", REMOVED.get(call.method))
    params = {name: value for name, value in call.envelope.params.items() if name not in gone}
    if "_meta" in params:
        params["_meta"] = meta
    if opened is not None and opened.value is not None:
        params["requestState"] = opened.value
    if tasks and call.kind == "task":
        params["taskId"] = tasks[0].id
    elif tasks:
        params["notifications"] = {**params["notifications"], "taskIds": [task.id for task in tasks if not task.held]}
    if gated:
        kept = bound_meta(call, volatile_meta)
        params["_meta"] = {
            key: _canonical(value) if key in kept else value
            for key, value in meta.items()
            if key in kept or key not in call.extra_meta
        }
        if call.kind != "resource":
            params["arguments"] = _canonical(call.arguments)
        if call.input_responses is not None:
            params["inputResponses"] = _canonical(call.input_responses)
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": call.envelope.id, "method": call.method, "params": params}
    return orjson.dumps(message)


def _canonical(value: Any) -> orjson.Fragment:
    return orjson.Fragment(effect_text(value))


def _outgoing(call: Call, tasks: tuple[Task, ...]) -> tuple[tuple[bytes, bytes], ...]:
    """What goes upstream but for `Mcp-Param-*`, a valid trace, the server's own credentials and framing.

    Nothing of it is copied: the mirrored ones are anew from the body.
    """
    mirrored = ((b"mcp-method", call.method.encode()),)
    name = tasks[0].id if call.kind == "task" else call.name
    named = () if name is None else ((b"mcp-name", encode_value(name)),)
    return _FIXED + mirrored + named
