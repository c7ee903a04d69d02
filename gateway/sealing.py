"""Authenticated encryption of what passes through a caller's hands, under keys that rotate.

Every purpose has its own key, derived with HKDF-SHA256 from the configured ones: the first seals, all open
(contract.md section 5). AES-256-GCM, random 96-bit nonces. What a seal is bound to is its room's business.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
NONCE_BYTES = 12
KEY_ID_BYTES = 4


class NotSealed(Exception):  # noqa: N818 - what was found
    """The text is no seal of ours for this binding. Its text says why: for the record, never for the caller."""


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


class Sealer:
    """Seals and opens bytes for one purpose. Holds derived keys only. A sealed text is unpadded base64url."""

    def __init__(self, keys: Sequence[bytes], label: str) -> None:
        derived = derive_keys(keys, label)
        self._order = [_key_id(key) for key in derived]
        self._ciphers = {key_id: AESGCM(key) for key_id, key in zip(self._order, derived, strict=True)}

    def seal(self, payload: bytes, binding: bytes) -> str:
        """`payload` -> text that opens only with the same `binding`. Two seals of the same are never alike."""
        nonce = os.urandom(NONCE_BYTES)
        key_id = self._order[0]
        sealed = self._ciphers[key_id].encrypt(nonce, payload, binding)
        return base64.urlsafe_b64encode(key_id + nonce + sealed).rstrip(b"=").decode()

    def open(self, text: str, binding: bytes) -> bytes:
        """The payload. Raises `NotSealed` for anything forged, bound otherwise, or spelt otherwise."""
        try:
            if "=" in text:
                raise NotSealed("not a seal")
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != text:
                raise NotSealed("another spelling")
            cipher = self._ciphers.get(raw[:KEY_ID_BYTES])
            if cipher is None:
                raise NotSealed("unknown key")
            start = KEY_ID_BYTES + NONCE_BYTES
            return cipher.decrypt(raw[KEY_ID_BYTES:start], raw[start:], binding)
        except InvalidTag as error:
            raise NotSealed("not authentic for this call") from error
        except ValueError as error:
            raise NotSealed(str(error)) from error


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"ostiary/key-id" + key).digest()[:KEY_ID_BYTES]
