"""Idempotency keys: what a caller may write, which call a key stands for, and the answer that is told again.

A key has one reading: the `Idempotency-Key` header bare or as the quoted string of the IETF's draft (HTTPAPI,
draft-ietf-httpapi-idempotency-key-header), or `_meta` for clients that can't set headers; both have to agree. It is
the gateway's own: it is taken off before anything is judged, and no server sees it (docs/idempotency.md).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from approvals.keyed_call import Outcome, Wanted
from gateway.contract.fingerprint import bound_meta, spelling
from gateway.contract.guard import RPC_ERROR, TASK, Guarded, guard_message
from gateway.contract.methods import declares_tasks
from gateway.contract.passage import Call, Identity, OpenedState, Passage, Received, Server
from gateway.contract.refusals import Refusal, Refused

HEADER: Final = b"idempotency-key"
META_KEY: Final = "io.ostiary/idempotencyKey"
REPLAY_OF: Final = b"ostiary-replay-of"
"""The header of an answer that was told before: the decision by which the call ran."""

KEYED: Final = "tools/call"
"""The one method that a key has a meaning for."""

MOST_CHARACTERS: Final = 255
_KEY: Final = re.compile(rb"[!#-+\--:<-\[\]-~]{1,%d}" % MOST_CHARACTERS)
"""Visible ASCII but for what would give a header's value two readings: `"`, `\\`, `,` and `;`."""


def read_key(received: Received, call: Call) -> str:
    """The call's idempotency key, `""` where it has none. Raises `Refused(IDEMPOTENCY_KEY_INVALID)`."""
    found = received.values(HEADER)
    if len(found) > 1:
        raise _invalid("Idempotency-Key header was sent more than once")
    key = ""
    if found:
        (value,) = found
        bare = value[1:-1] if len(value) > 1 and value[:1] == value[-1:] == b'"' else value
        if not _KEY.fullmatch(bare):
            raise _invalid("Idempotency-Key header")
        key = bare.decode("ascii")
    if META_KEY not in call.extra_meta:
        return key
    said = call.extra_meta[META_KEY]
    if not isinstance(said, str) or not _KEY.fullmatch(said.encode("utf-8", "surrogatepass")):
        raise _invalid(f"_meta.{META_KEY}")
    if key not in {"", said}:
        raise _invalid("header and _meta name two keys")
    return said


def key_line(key: str) -> tuple[tuple[bytes, bytes], ...]:
    """The header line of a call that is made again as it was; none without a key."""
    return ((HEADER, key.encode("ascii")),) if key else ()


def without_key(call: Call) -> Call:
    """The call as it is judged and sent: nothing of it says under which key it came."""
    if META_KEY not in call.extra_meta:
        return call
    meta = {name: value for name, value in call.envelope.meta.items() if name != META_KEY}
    params = {**call.envelope.params, "_meta": meta}
    message = {"jsonrpc": "2.0", "id": call.envelope.id, "method": call.method, "params": params}
    envelope = replace(call.envelope, raw=orjson.dumps(message), params=params, meta=meta)
    return replace(call, envelope=envelope, extra_meta={name: meta[name] for name in call.extra_meta if name in meta})


def want(passage: Passage, volatile_meta: frozenset[str]) -> Wanted:
    """The call as it stands in its passage, as what its key is used for.

    Bound are the caller and the server (other ones have keys of their own), the method, name and arguments, the
    `_meta` keys that are not the protocol's own and not volatile, parameters' headers, and the revision that the
    client speaks; of a leg its answers and the state that it goes on with as well.
    """
    identity, server, call = _of(passage)
    opened, spoken = passage.opened_state, passage.spoken
    base = _digest(
        [
            call.method,
            call.name,
            call.arguments,
            bound_meta(call, volatile_meta),
            sorted([name.decode("ascii"), value.decode("latin-1")] for name, value in call.param_headers),
            "" if spoken is None else spoken.version,
        ]
    )
    return Wanted(
        party=(identity.issuer, identity.subject),
        scope=(identity.client_id, identity.tenant, server.name, server.resource, server.environment),
        key=passage.key,
        base=base,
        whole=_digest([base, call.input_responses, _goes_on_with(opened)]),
        leg=0 if opened is None else opened.leg,
    )


def _of(passage: Passage) -> tuple[Identity, Server, Call]:
    identity, server, call = passage.identity, passage.server, passage.call
    assert identity is not None and server is not None and call is not None  # noqa: PT018, S101 - it was judged
    return identity, server, call


def _goes_on_with(opened: OpenedState | None) -> Any:
    if opened is None:
        return None
    return [opened.leg, opened.value, "" if opened.use is None else opened.use.use_id]


def _digest(parts: list[Any]) -> str:
    # Exact for every number that JSON can hold here, and blind to the order of members; a number that is written
    # otherwise is another one, which costs a conflict and never a second call.
    return hashlib.sha256(spelling({"": parts})).hexdigest()


def tell_again(passage: Passage, outcome: Outcome) -> Guarded:
    """What is kept of a call, as the answer to this request for it: under its id, and held to the rules of answers.

    Raises `Refused`: IDEMPOTENCY_NOT_KEPT for what this client can't be given, UPSTREAM_INVALID.
    """
    _, _, call = _of(passage)
    if outcome.word == TASK and not declares_tasks(call.capabilities):
        raise not_kept(outcome, "task")
    message: dict[str, Any] = {**orjson.loads(outcome.text), "id": call.envelope.id}
    raw = orjson.dumps(message)
    if passage.spoken is not None and outcome.word == RPC_ERROR:  # which an older client was told in our own words
        return Guarded(RPC_ERROR, message, raw)
    guarded = guard_message(call, message, raw)
    if guarded.outcome != outcome.word:
        raise Refused(Refusal.UPSTREAM_INVALID, "what was kept is not what it is said to be")
    return guarded


def not_kept(outcome: Outcome, why: str) -> Refused:
    """The call has ended, is not sent again, and its answer can't be told: the caller learns what is known of it."""
    told: Mapping[str, Any] = {"outcome": outcome.word, "why": why, "replayOf": outcome.decision}
    return Refused(Refusal.IDEMPOTENCY_NOT_KEPT, f"{outcome.word}: {why}", **told)


def _invalid(what: str) -> Refused:
    return Refused(Refusal.IDEMPOTENCY_KEY_INVALID, what)
