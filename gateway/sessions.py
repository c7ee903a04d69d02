"""Sessions of older clients: nothing is stored, the id itself is the seal of what was agreed on.

Bound to issuer, subject, server and resource; it proves nothing but what `initialize` led to, so every request needs
its token all the same. A session that is forged, another's, over or spelt otherwise is unknown: all look alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from gateway.contract.legacy import Session
from gateway.contract.passage import Envelope, Identity, Server
from gateway.contract.refusals import Refusal, Refused
from gateway.sealing import NotSealed, Sealer

LONGEST: Final = 1024
"""Characters of a session's id; ours have fewer."""


class Sessions:
    """Begins and resumes sessions that live `ttl_s` seconds from their `initialize`."""

    def __init__(self, keys: Sequence[bytes], ttl_s: float = 43_200.0) -> None:
        self._sealer = Sealer(keys, "legacy-session")
        self._ttl_s = ttl_s

    @staticmethod
    def _binding(identity: Identity, server: Server) -> bytes:
        return orjson.dumps([identity.issuer, identity.subject, server.name, server.resource])

    def begin(self, session: Session, identity: Identity, server: Server, now: float) -> str:
        """What was agreed on -> the id that only this caller can use, at this server."""
        payload: dict[str, Any] = {
            "exp": now + self._ttl_s,
            "version": session.version,
            "capabilities": session.capabilities,
        }
        return self._sealer.seal(orjson.dumps(payload), self._binding(identity, server))

    def resume(self, text: bytes, identity: Identity, server: Server, envelope: Envelope, now: float) -> Session:
        """The id -> what was agreed on. Raises `Refused(SESSION_UNKNOWN)` with the id of the request, `envelope`."""
        try:
            if len(text) > LONGEST or not text.isascii():
                raise NotSealed("not a session of ours")
            payload = orjson.loads(self._sealer.open(text.decode(), self._binding(identity, server)))
        except NotSealed as error:
            raise Refused(Refusal.SESSION_UNKNOWN, f"session: {error}", request_id=envelope.id) from error
        if payload["exp"] <= now:
            raise Refused(Refusal.SESSION_UNKNOWN, "session: expired", request_id=envelope.id)
        return Session(payload["version"], payload["capabilities"])
