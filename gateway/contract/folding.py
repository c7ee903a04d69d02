"""Refusals of one kind: what may share a record when it comes in a flood, and what the record then still says.

Invariant: what a policy or a person decided, what went on with an earlier request, and what was or might have been
forwarded has a record of its own, always. Who was refused, where and why stays in a shared one (docs/audit.md).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gateway.contract.methods import METHODS
from gateway.contract.passage import Passage
from gateway.contract.refusals import Refusal

Actor = tuple[str, str, str, str]
"""Issuer, subject, client and tenant."""

OF_THE_CONTRACT: Final = frozenset(
    {
        Refusal.ACCEPT_UNSUPPORTED, Refusal.CONTENT_UNSUPPORTED, Refusal.BODY_TOO_LARGE, Refusal.BODY_NOT_JSON,
        Refusal.BODY_AMBIGUOUS, Refusal.ENVELOPE_INVALID, Refusal.PARAMS_INVALID, Refusal.HEADER_MISMATCH,
        Refusal.META_MISSING, Refusal.VERSION_UNSUPPORTED, Refusal.METHOD_UNKNOWN, Refusal.IDEMPOTENCY_KEY_INVALID,
        Refusal.CAPABILITY_MISSING, Refusal.ARGUMENTS_INVALID,
    }
)  # fmt: skip
"""Requests that are malformed whoever sends them: the only refusals of a known caller that may share a record."""

_OF_ANY_SIZE: Final = frozenset({Refusal.HEAD_TOO_LARGE, Refusal.BODY_TOO_LARGE})
"""Their details are numbers of the sender's choice, who could make a kind of each until no other found room."""

_DETAIL: Final = 256


class Kind(NamedTuple):
    """What refusals have in common that share a record. `actor` is `None` for a caller who is not known.

    `method` and `name` are empty where they are the caller's own words, `detail` where it is a size of the caller's
    choice: a stranger's text makes no kind. `rest` is what else a record says of such a request: the older revision,
    the policy's verdict on a call with bad arguments.
    """

    actor: Actor | None
    server: str
    reason: str
    detail: str
    method: str = ""
    name: str = ""
    rest: tuple[Any, ...] = ()


def kind_of(passage: Passage) -> Kind | None:
    """The kind of a request that was refused, or `None` where it has a record of its own whatever comes."""
    refused, identity = passage.refused, passage.identity
    if refused is None:
        return None
    server = passage.server.name if passage.server is not None else ""
    detail = refused.detail[:_DETAIL] if refused.refusal not in _OF_ANY_SIZE else ""
    if identity is None:
        return Kind(None, server, refused.refusal.reason, detail)
    if refused.refusal not in OF_THE_CONTRACT or _goes_further(passage):
        return None
    envelope, heard, verdict = passage.envelope, passage.heard, passage.verdict
    rest: tuple[Any, ...] = ()
    if heard is not None or verdict is not None:
        rest = (
            (heard.spoken.version if heard.spoken else None, heard.quirks) if heard is not None else None,
            (verdict.effect, verdict.revision, tuple(verdict.reasons)) if verdict is not None else None,
        )
    return Kind(
        (identity.issuer, identity.subject, identity.client_id, identity.tenant),
        server,
        refused.refusal.reason,
        detail,
        envelope.method if envelope is not None and envelope.method in METHODS else "",
        passage.tool.name if passage.tool is not None else "",
        rest,
    )


def _goes_further(passage: Passage) -> bool:
    """Whether anything happened but that a room for malformed requests looked at it.

    The data plane alone has a head that was received: what the approvals API refuses is about people's decisions.
    """
    refused = passage.refused
    return (
        passage.received is None
        or passage.committed
        or passage.sent
        or passage.errand is not None
        or passage.opened_state is not None
        or passage.waits is not None
        or passage.settled is not None
        or bool(passage.tasks.found or passage.key or passage.challenge or passage.taken)
        or (passage.verdict is not None and (refused is None or refused.refusal is not Refusal.ARGUMENTS_INVALID))
    )
