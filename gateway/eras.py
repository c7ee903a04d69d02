"""Who speaks: a client of the revision that is served, one of an older, or one that is known to deviate.

Asked only for servers whose configuration has `legacy_clients` or `quirks`; everywhere else there is one revision and
no tolerance. Comes after the token and the envelope, before anything is judged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from gateway.contract.headers import PROTOCOL_VERSION
from gateway.contract.legacy import (
    INITIALIZE,
    SESSION,
    VERSION,
    Heard,
    Spoken,
    check_unmixed,
    mismatch,
    modernise,
    negotiate,
    speaks_older,
)
from gateway.contract.passage import Envelope, Identity, Received
from gateway.contract.quirks import Quirk
from gateway.contract.refusals import Refusal, Refused
from gateway.media import accepts_both_answers
from gateway.sessions import Sessions

_METHOD: Final = b"mcp-method"
_DISCOVER: Final = "server/discover"


@dataclass(frozen=True, slots=True)
class Eras:
    """Tells older clients and quirks from what is plainly wrong. One per worker."""

    sessions: Sessions

    def hear(self, received: Received, identity: Identity, envelope: Envelope, now: float) -> Heard:
        """`Refused`: ACCEPT_UNSUPPORTED, SESSION_MISMATCH, SESSION_UNKNOWN, PARAMS_INVALID, ENVELOPE_INVALID."""
        server = received.server
        quirks: list[Quirk] = []
        accept = b",".join(received.values(b"accept"))
        if Quirk.ACCEPT_JSON_ONLY in server.quirks and not accepts_both_answers(accept):
            if envelope.method == "subscriptions/listen":  # a stream without an end is no JSON object
                raise Refused(Refusal.ACCEPT_UNSUPPORTED, "a subscription is a stream", request_id=envelope.id)
            quirks.append(Quirk.ACCEPT_JSON_ONLY)
        spoken: Spoken | None = None
        if server.legacy_clients and speaks_older(received, envelope):
            check_unmixed(received, envelope)
            if envelope.method == INITIALIZE:
                spoken = self._begin(received, identity, envelope, now)
            else:
                spoken = self._resume(received, identity, envelope, now, quirks)
        elif Quirk.DISCOVER_WITHOUT_METHOD in server.quirks and _lacks_method(received, envelope):
            quirks.append(Quirk.DISCOVER_WITHOUT_METHOD)
        return Heard(spoken, tuple(quirks))

    def _begin(self, received: Received, identity: Identity, envelope: Envelope, now: float) -> Spoken:
        if received.values(SESSION):
            raise mismatch("Mcp-Session-Id header was sent with initialize", envelope)
        session = negotiate(envelope)
        versions = received.values(VERSION)  # absent, or the one that is asked for: there is no other yet
        if versions and versions != [envelope.params["protocolVersion"].encode()]:
            raise mismatch("MCP-Protocol-Version header does not equal params.protocolVersion", envelope)
        return Spoken(session, self.sessions.begin(session, identity, received.server, now))

    def _resume(
        self, received: Received, identity: Identity, envelope: Envelope, now: float, quirks: list[Quirk]
    ) -> Spoken:
        ids, versions = received.values(SESSION), received.values(VERSION)
        if len(ids) != 1:
            what = "was sent more than once" if ids else "is missing; a conversation begins with initialize"
            raise mismatch(f"Mcp-Session-Id header {what}", envelope)
        session = self.sessions.resume(ids[0], identity, received.server, envelope, now)
        if versions == [session.version.encode()]:
            return Spoken(session)
        if versions:
            raise mismatch("MCP-Protocol-Version header is not once the version that was agreed on", envelope)
        if Quirk.SESSION_WITHOUT_VERSION not in received.server.quirks:
            raise mismatch("MCP-Protocol-Version header is missing", envelope)
        quirks.append(Quirk.SESSION_WITHOUT_VERSION)
        return Spoken(session)


def in_served_words(heard: Heard, received: Received, envelope: Envelope) -> tuple[Received, Envelope]:
    """The request as the corridor judges it. Raises like `modernise`."""
    if heard.spoken is not None:
        return modernise(heard.spoken, received, envelope)
    if Quirk.DISCOVER_WITHOUT_METHOD in heard.quirks:
        lines = (*received.headers, (_METHOD, _DISCOVER.encode()))
        return replace(received, headers=lines), envelope
    return received, envelope


def _lacks_method(received: Received, envelope: Envelope) -> bool:
    return (
        envelope.method == _DISCOVER
        and not received.values(_METHOD)
        and received.values(VERSION) == [PROTOCOL_VERSION.encode()]
    )
