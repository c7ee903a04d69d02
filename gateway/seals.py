"""Authenticated encryption of what passes through a caller's hands, bound to its owner.

A seal is opened only for the same issuer, subject, server, method, name and arguments, before its expiry, and has one
spelling. Every purpose has its own key, derived with HKDF-SHA256 from the configured ones: the first seals, all open
(contract.md section 5). AES-256-GCM, random 96-bit nonces.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from typing import Any

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.contract.passage import Call, Identity, Server
from gateway.contract.refusals import Refusal, Refused

KEY_BYTES = 32
NONCE_BYTES = 12
KEY_ID_BYTES = 4
STATE_TTL_S = 3600.0


def read_keys(text: str, setting: str) -> tuple[bytes, ...]:
    """Comma-separated 32-byte keys in base64url -> keys. Raises `ValueError` naming the setting."""
    keys = []
    for index, part in enumerate(text.split(",")):
        word = part.strip().rstrip("=")
        try:
            key = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"{setting}: key {index + 1} is not base64url") from error
        if len(key) != KEY_BYTES:
            raise ValueError(f"{setting}: key {index + 1} has {len(key)} bytes instead of {KEY_BYTES}")
        keys.append(key)
    if len(set(keys)) != len(keys):
        raise ValueError(f"{setting}: a key stands twice")
    return tuple(keys)


def derive_keys(keys: Sequence[bytes], label: str) -> tuple[bytes, ...]:
    """One 32-byte key per configured key, for the one purpose that `label` names."""
    return tuple(
        HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=f"ostiary/{label}/v1".encode()).derive(key)
        for key in keys
    )


class Seals:
    """Seals and opens `requestState`. Holds derived keys only."""

    def __init__(self, keys: Sequence[bytes], *, label: str = "request-state") -> None:
        derived = derive_keys(keys, label)
        self._order = [self._key_id(key) for key in derived]
        self._ciphers = {key_id: AESGCM(key) for key_id, key in zip(self._order, derived, strict=True)}

    @staticmethod
    def _key_id(key: bytes) -> bytes:
        return hashlib.sha256(b"ostiary/key-id" + key).digest()[:KEY_ID_BYTES]

    @staticmethod
    def _binding(identity: Identity, server: Server, call: Call) -> bytes:
        # A JSON array keeps the parts apart whatever they hold. orjson writes one form per value; sorting makes the
        # order of members meaningless, as RFC 8785 has it, and integers beyond 2^53 stay exact.
        arguments = hashlib.sha256(orjson.dumps(call.arguments, option=orjson.OPT_SORT_KEYS)).hexdigest()
        parts = [identity.issuer, identity.subject, server.name, server.resource, call.method, call.name, arguments]
        return orjson.dumps(parts)

    def seal_state(self, state: str | None, identity: Identity, server: Server, call: Call, expires_at: float) -> str:
        """The upstream's `requestState` (`None`: it gave none) -> text that only this caller can bring back."""
        payload: dict[str, Any] = {"exp": expires_at, "state": state}
        nonce = os.urandom(NONCE_BYTES)
        key_id = self._order[0]
        sealed = self._ciphers[key_id].encrypt(nonce, orjson.dumps(payload), self._binding(identity, server, call))
        return base64.urlsafe_b64encode(key_id + nonce + sealed).rstrip(b"=").decode()

    def open_state(self, text: str, identity: Identity, server: Server, call: Call, now: float) -> str | None:
        """The sealed text -> the upstream's own `requestState`, or `None` where it gave none.

        Raises `Refused(STATE_NOT_ACCEPTED)` for anything forged, foreign, moved, expired or spelt otherwise.
        """
        try:
            if "=" in text:
                raise ValueError("not a seal")
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != text:
                raise ValueError("another spelling")
            key_id, nonce = raw[:KEY_ID_BYTES], raw[KEY_ID_BYTES : KEY_ID_BYTES + NONCE_BYTES]
            sealed = raw[KEY_ID_BYTES + NONCE_BYTES :]
            cipher = self._ciphers.get(key_id)
            if cipher is None:
                raise ValueError("unknown key")
            payload = orjson.loads(cipher.decrypt(nonce, sealed, self._binding(identity, server, call)))
        except InvalidTag as error:
            raise Refused(Refusal.STATE_NOT_ACCEPTED, "seal: not authentic for this call") from error
        except ValueError as error:
            raise Refused(Refusal.STATE_NOT_ACCEPTED, f"seal: {error}") from error
        if payload["exp"] <= now:
            raise Refused(Refusal.STATE_NOT_ACCEPTED, "seal: expired")
        state: str | None = payload["state"]
        return state
